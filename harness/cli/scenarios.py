"""``mmrepro list`` and ``mmrepro show``."""

from __future__ import annotations

import json as jsonlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import typer
from mmrepro.base import common_options as common
from mmrepro.base.options import Command, option
from mmrepro.cli.options import command

if TYPE_CHECKING:
    from mmrepro.scenario import Scenario


def standing(scenario: Scenario) -> dict[str, Any]:
    """What a user sees of it, how bad that is, and what its project says."""
    said = scenario.upstream
    return {
        "failure_class": scenario.failure_class,
        "severity": scenario.severity,
        "upstream": {
            "state": said.state,
            "release": said.release,
            "source": said.source.model_dump() if said.source else None,
            "looked_up": said.looked_up,
            "note": said.note,
        },
    }


@dataclass(frozen=True)
class ListCommand(Command):
    COMMAND: ClassVar[str] = "list"
    scenarios: tuple[str, ...] = common.SCENARIOS(())
    alive: bool = option(False, "Which are still unfixed in the newest release, by recorded runs.")
    markdown: bool = common.MARKDOWN(False)
    ledger: Path | None = common.LEDGER(
        None, help="With --alive or --markdown: the runs of this ledger as well.", argument=False
    )
    json: bool = common.JSON(False)


@command(ListCommand)
def list_scenarios(asked: ListCommand) -> None:
    """List the known failure modes.

    Example:  mmrepro list --alive
    """
    alive, markdown, json = asked.alive, asked.markdown, asked.json
    scenario, ledger = asked.scenarios, asked.ledger
    if (markdown and (alive or json)) or (ledger is not None and not (alive or markdown)):
        from mmrepro.errors import UsageError

        raise UsageError(
            "--markdown is a form of its own, and --ledger is of --alive and --markdown.",
            hint="mmrepro list --alive --ledger nights",
        )
    if alive:
        from mmrepro.cli.scenarios_alive import tell_alive

        tell_alive(scenario, ledger, json)
        return
    if markdown:
        from mmrepro.cli.scenarios_alive import page

        typer.echo(page(scenario, ledger), nl=False)
        return
    from mmrepro.errors import BrokenScenario
    from mmrepro.scenario.registry import load_scenario, scenario_names

    rows = []
    for name in scenario or scenario_names():
        try:
            loaded = load_scenario(name)
        except BrokenScenario as error:  # one broken plug-in does not hide the others
            rows.append({"name": name, "error": error.message})
            continue
        rows.append(
            {
                "name": name,
                "engine": loaded.engine,
                "affected": loaded.affected_range,
                "default_release": loaded.release,
                "title": loaded.title,
                "variants": ", ".join(v.variant for v in loaded.variants),
                **standing(loaded),
            }
        )
    if json:
        typer.echo(jsonlib.dumps(rows, indent=1))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("scenario", "engine", "affected", "default", "what happens", box=None)
    for row in rows:
        if "error" in row:
            table.add_row(row["name"], "", "", "", f"[red]{row['error']}")
        else:
            title = row["title"] + (f" ({row['variants']})" if row["variants"] else "")
            table.add_row(
                f"[bold]{row['name']}",
                row["engine"],
                row["affected"],
                row["default_release"],
                title,
            )
    Console().print(table)


@dataclass(frozen=True)
class ShowCommand(Command):
    COMMAND: ClassVar[str] = "show"
    scenario: str = common.SCENARIO("")
    variant: str = common.VARIANT("", configurable=False)
    json: bool = common.JSON(False)


@command(ShowCommand)
def show(asked: ShowCommand) -> None:
    """Show one failure mode: what happens, why, its signature, mitigations and references.

    Example:  mmrepro show ghost-key-eviction
    """
    from mmrepro.incident import Fidelity
    from mmrepro.scenario import LiveFacts, RunFacts
    from mmrepro.scenario.registry import load_scenario

    loaded = load_scenario(asked.scenario).with_variant(asked.variant)
    facts = RunFacts(loaded.release, Fidelity.CPU, frozenset(), 0.0)
    conditions = loaded.conditions(facts)
    live = {c.id for c in loaded.live_conditions(LiveFacts(loaded.engine, loaded.release))}
    if asked.json:
        document = {
            "name": loaded.name,
            "variant": loaded.variant,
            "variants": [v.variant for v in loaded.variants],
            "title": loaded.title,
            "summary": loaded.summary,
            "explanation": loaded.explanation,
            "engine": loaded.engine,
            "affected": loaded.affected_range,
            "default_release": loaded.release,
            **standing(loaded),
            "server_args": list(loaded.server_args),
            "conditions": [
                {
                    "id": c.id,
                    "part": c.part,
                    "statement": c.statement,
                    "required": c.required,
                    "live": c.id in live,
                }
                for c in conditions
            ],
            "mitigations": [
                {"name": m.name, "description": m.description, "release": m.release}
                for m in loaded.mitigations
            ],
            "options": dict(loaded.options),
            "factors": [
                {"name": f.name, "failing": f.failing, "setting": f.setting, "claim": f.claim}
                for f in loaded.factors
            ],
            "references": [r.model_dump() for r in loaded.references],
        }
        typer.echo(jsonlib.dumps(document, indent=1))
        return
    from rich.console import Console
    from rich.padding import Padding

    out = Console(highlight=False)
    out.print(f"[bold]{loaded.name}[/]  {loaded.title}")
    out.print(f"{loaded.engine} {loaded.affected_range}, run by default at {loaded.release}")
    if loaded.failure_class and loaded.severity:
        said = loaded.upstream
        when = f" ({said.looked_up})" if said.looked_up else ""
        where = f": {said.source.id}" if said.source else ""
        out.print(
            f"{loaded.failure_class.words}, {loaded.severity}; upstream: {said.words}{where}{when}"
        )
    out.print()
    out.print(Padding(loaded.summary, (0, 2)))
    out.print("\n[bold]Why")
    out.print(Padding(loaded.explanation, (0, 2)), markup=False)
    titles = {
        "precondition": "Preconditions: the trigger arrived",
        "symptom": "Conditions of the symptom",
        "cause": "Conditions of the cause",
    }
    for part, title in titles.items():
        out.print(f"\n[bold]{title}")
        for condition in conditions:
            if condition.part == part:
                marks = "" if condition.required else ", supporting"
                marks += "" if condition.id in live else ", not on a live server"
                told = f"[cyan]{condition.id}[/]  {condition.statement}[dim]{marks}[/]"
                out.print(Padding(told, (0, 2)))
    for title, entries in (
        ("Variants", [(v.variant, v.title) for v in loaded.variants]),
        ("Mitigations", [(m.name, m.description) for m in loaded.mitigations]),
        ("Options (--option NAME=VALUE)", list(loaded.options.items())),
        (
            "Factors (mmrepro ablate)",
            [(f.name, f"{f.failing} → {f.setting}") for f in loaded.factors],
        ),
    ):
        if entries:
            out.print(f"\n[bold]{title}")
        for name, told in entries:
            out.print(Padding(f"[cyan]{name}[/]  {told}", (0, 2)))
    out.print("\n[bold]References")
    for reference in loaded.references:
        out.print(Padding(f"{reference.id}  {reference.title}  {reference.url}", (0, 2)))
    chosen = f" --variant {asked.variant}" if asked.variant else ""
    out.print(f"\nRun it:  [bold]mmrepro run {loaded.name}{chosen}")
