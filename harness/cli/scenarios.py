"""``mmrepro list`` and ``mmrepro show``."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

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


def list_scenarios(
    scenario: Annotated[
        list[str] | None, typer.Argument(help="Only these.  [default: all]")
    ] = None,
    alive: Annotated[
        bool,
        typer.Option("--alive", help="Which are alive in the newest release, by recorded runs."),
    ] = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="The whole catalogue, as docs/catalogue.md has it.")
    ] = False,
    ledger: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Of --alive and --markdown: the runs of these nights as well."
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """List the known failure modes.

    Example:  mmrepro list --alive
    """
    if (markdown and (alive or json)) or (ledger is not None and not (alive or markdown)):
        from mmrepro.errors import UsageError

        raise UsageError(
            "--markdown is a form of its own, and --ledger is of --alive and --markdown.",
            hint="mmrepro list --alive --ledger nights",
        )
    if alive:
        from mmrepro.cli.scenarios_alive import tell_alive

        tell_alive(scenario or (), ledger, json)
        return
    if markdown:
        from mmrepro.cli.scenarios_alive import page

        typer.echo(page(scenario or (), ledger), nl=False)
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


def show(
    scenario: Annotated[str, typer.Argument(help="Name or path of a scenario.")],
    variant: Annotated[str, typer.Option(help="Show this variant of it.")] = "",
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Show one failure mode: what happens, why, its signature, mitigations and references.

    Example:  mmrepro show ghost-key-eviction
    """
    from mmrepro.incident import Fidelity
    from mmrepro.scenario import LiveFacts, RunFacts
    from mmrepro.scenario.registry import load_scenario

    loaded = load_scenario(scenario).with_variant(variant)
    facts = RunFacts(loaded.release, Fidelity.CPU, frozenset(), 0.0)
    conditions = loaded.conditions(facts)
    live = {c.id for c in loaded.live_conditions(LiveFacts(loaded.engine, loaded.release))}
    if json:
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
    chosen = f" --variant {variant}" if variant else ""
    out.print(f"\nRun it:  [bold]mmrepro run {loaded.name}{chosen}")
