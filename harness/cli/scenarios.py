"""The known failures: ``mmrepro list``, ``mmrepro show`` and ``mmrepro claims``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import typer
from mmrepro.base import common_options as common
from mmrepro.base.options import Command, option
from mmrepro.cli.console import emit, table, table_console
from mmrepro.cli.options import command
from mmrepro.errors import BrokenScenario, UsageError
from mmrepro.run.options import NamedScenario

if TYPE_CHECKING:
    from datetime import datetime

    from mmrepro.catalogue.recorded import RecordedRun
    from mmrepro.catalogue.standing import Newest, Standing
    from mmrepro.scenario.definition import Scenario


# ---------------------------------------------------------------- mmrepro list


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
    alive, markdown, names = asked.alive, asked.markdown, asked.scenarios
    if (markdown and (alive or asked.json)) or (
        asked.ledger is not None and not (alive or markdown)
    ):
        raise UsageError(
            "--markdown is a form of its own, and --ledger is for --alive and --markdown.",
            hint="mmrepro list --alive --ledger nights",
        )
    if alive:
        _alive(names, asked.ledger, as_json=asked.json)
        return
    if markdown:
        from mmrepro.catalogue.standing import known, page

        failures, broken = known(_recorded(asked.ledger), names)
        for error in broken.values():
            raise error
        typer.echo(page(failures), nl=False)
        return
    from mmrepro.scenario.registry import load_scenario, scenario_names

    facts: list[dict[str, Any]] = []
    for name in names or scenario_names():
        try:
            facts.append(_facts(load_scenario(name, conditions=False)))
        except BrokenScenario as error:  # one broken plug-in does not hide the others
            facts.append({"name": name, "error": error.message})
    if asked.json:
        emit(facts)
        return
    rows = [("scenario", "engine", "affected", "default", "what happens")]
    for one in facts:
        title = one["error"] if "error" in one else one["title"]
        title += f" ({one['variants']})" if one.get("variants") else ""
        columns = [one.get(key, "") for key in ("engine", "affected", "default_release")]
        rows.append((one["name"], *columns, title))
    _print_rows(rows)


def _print_rows(rows: Sequence[Sequence[str]]) -> None:
    """Print them with the last column wrapped. Importing rich would take a tenth of the command."""
    import shutil
    import textwrap

    from mmrepro.text.sanitize import one_line

    rows = [[one_line(cell, 400) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in list(zip(*rows, strict=True))[:-1]]
    left = sum(widths) + 2 * len(widths)
    room = max(24, shutil.get_terminal_size().columns - left)
    for number, row in enumerate(rows):
        first, *rest = textwrap.wrap(row[-1], room) or [""]
        cells = [f"{cell:{width}}" for cell, width in zip(row, widths, strict=False)]
        for cell in range(1 if number else len(cells)):
            cells[cell] = typer.style(cells[cell], bold=True)
        typer.echo("\n".join(["  ".join([*cells, first]), *(" " * left + line for line in rest)]))


def _facts(loaded: Scenario) -> dict[str, Any]:
    return {
        "name": loaded.name,
        "engine": loaded.engine,
        "affected": loaded.affected_range,
        "default_release": loaded.release,
        "title": loaded.title,
        "variants": ", ".join(v.variant for v in loaded.variants),
        **_standing(loaded),
    }


def _standing(loaded: Scenario) -> dict[str, Any]:
    """What a user observes, how bad that is, and what the engine's project says."""
    upstream = loaded.upstream
    facts = {name: getattr(upstream, name) for name in ("state", "release", "looked_up", "note")}
    source = upstream.source.model_dump() if upstream.source else None
    return {
        "failure_class": loaded.failure_class,
        "severity": loaded.severity,
        "upstream": {**facts, "source": source},
    }


def _recorded(ledger: Path | None) -> list[RecordedRun]:
    """The runs that come with mmrepro, and those of a ledger.

    Raises:
        InfrastructureError: the list that comes with mmrepro cannot be read.
        BadLedger: the ledger cannot be.
    """
    from mmrepro.catalogue.recorded import load, of_history
    from mmrepro.history.ledger import read
    from mmrepro.scenarios.data import recorded_runs

    found = load(recorded_runs())
    return found if ledger is None else [*found, *of_history(read(ledger), str(ledger))]


def _alive(names: Sequence[str], ledger: Path | None, *, as_json: bool) -> None:
    """What recorded runs show of the newest releases. Raises as :func:`_recorded`."""
    from mmrepro.catalogue import standing

    runs = _recorded(ledger)
    failures, broken = standing.known(runs, names)
    engines = {one.scenario.engine: one.scenario.release for one in failures}
    newest = [standing.newest_of(engine, runs, release) for engine, release in engines.items()]
    standings = standing.standings(failures, newest)
    unknown = [] if names else standing.strangers(runs, failures)
    if as_json:
        emit(
            {
                "engines": [one.model_dump(mode="json") for one in newest],
                "failures": [one.model_dump(mode="json") for one in standings],
                "broken": {name: error.message for name, error in broken.items()},
                "not_registered": unknown,
            }
        )
        return
    head = ("failure", "class", "newest release", "observed there", "when", "last run")
    table_console().print(table(head, map(_row, standings)))
    for line in (*_notes(newest), *(error.message for error in broken.values())):
        typer.echo(line, err=True)
    if unknown:
        typer.echo(f"Recorded, and no scenario here: {', '.join(unknown)}.", err=True)


def _row(row: Standing) -> tuple[str, ...]:
    name = f"{row.scenario} ({row.variant})" if row.variant else row.scenario
    state = "still unfixed" if row.alive else row.outcome.replace("-", " ")
    if row.reproduced and row.reproduced < row.runs:
        state += f" ({row.reproduced} of {row.runs} runs)"
    last = ""
    if row.last_release and not row.runs:
        last = f"{row.last_release}: {row.last_outcome.replace('-', ' ')}, {_day(row.last_at)}"
    style = {True: "red", False: "green", None: "yellow"}[row.alive]
    kind = (row.failure_class or "").replace("-", " ")
    newest = f"{row.engine} {row.newest}"
    return (f"[bold]{name}", kind, newest, f"[{style}]{state}", _day(row.at), last)


def _notes(newest: Iterable[Newest]) -> Iterable[str]:
    from mmrepro.catalogue.standing import INDEX

    for one in newest:
        if one.says != INDEX:
            yield (
                f"{one.engine}: {one.why}. Its newest release that is known here, "
                f"{one.release}, stands in the place of the newest one."
            )


def _day(moment: datetime | None) -> str:
    return moment.date().isoformat() if moment else ""


# ---------------------------------------------------------------- mmrepro show


@dataclass(frozen=True)
class ShowCommand(NamedScenario):
    COMMAND: ClassVar[str] = "show"
    variant: str = common.VARIANT("", configurable=False)
    json: bool = common.JSON(False)


PARTS = {
    "precondition": "Preconditions: the trigger arrived",
    "symptom": "Conditions of the symptom",
    "cause": "Conditions of the cause",
}


@command(ShowCommand)
def show(asked: ShowCommand) -> None:
    """Show one failure mode: what happens, why, its signature, mitigations and references.

    Example:  mmrepro show ghost-key-eviction
    """
    from mmrepro.records import Fidelity
    from mmrepro.scenario.parts import LiveFacts, RunFacts
    from mmrepro.scenario.registry import load_scenario

    loaded = load_scenario(asked.scenario).with_variant(asked.variant)
    conditions = loaded.conditions(RunFacts(loaded.release, Fidelity.CPU, frozenset(), 0.0))
    live = {c.id for c in loaded.live_conditions(LiveFacts(loaded.engine, loaded.release))}
    if asked.json:
        emit(
            {
                **_facts(loaded),
                "variant": loaded.variant,
                "variants": [v.variant for v in loaded.variants],
                "summary": loaded.summary,
                "explanation": loaded.explanation,
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
        )
        return
    from rich.console import Console
    from rich.padding import Padding

    out = Console(highlight=False)
    out.print(f"[bold]{loaded.name}[/]  {loaded.title}")
    out.print(f"{loaded.engine} {loaded.affected_range}, run by default at {loaded.release}")
    if loaded.failure_class and loaded.severity:
        upstream = loaded.upstream
        when = f" ({upstream.looked_up})" if upstream.looked_up else ""
        where = f": {upstream.source.id}" if upstream.source else ""
        kind = f"{loaded.failure_class.words}, {loaded.severity}"
        out.print(f"{kind}; upstream: {upstream.words}{where}{when}")
    out.print()
    out.print(Padding(loaded.summary, (0, 2)))
    out.print("\n[bold]Why")
    out.print(Padding(loaded.explanation, (0, 2)), markup=False)
    for part, title in PARTS.items():
        out.print(f"\n[bold]{title}")
        for condition in conditions:
            if condition.part == part:
                marks = "" if condition.required else ", supporting"
                marks += "" if condition.id in live else ", not on a live server"
                text = f"[cyan]{condition.id}[/]  {condition.statement}[dim]{marks}[/]"
                out.print(Padding(text, (0, 2)))
    factors = [(f.name, f"{f.failing} → {f.setting}") for f in loaded.factors]
    for title, entries in (
        ("Variants", [(v.variant, v.title) for v in loaded.variants]),
        ("Mitigations", [(m.name, m.description) for m in loaded.mitigations]),
        ("Options (--option NAME=VALUE)", list(loaded.options.items())),
        ("Factors (mmrepro ablate)", factors),
    ):
        if entries:
            out.print(f"\n[bold]{title}")
        for name, text in entries:
            out.print(Padding(f"[cyan]{name}[/]  {text}", (0, 2)))
    out.print("\n[bold]References")
    for reference in loaded.references:
        out.print(Padding(f"{reference.id}  {reference.title}  {reference.url}", (0, 2)))
    chosen = f":{asked.variant}" if asked.variant else ""
    out.print(f"\nRun it:  [bold]mmrepro run {loaded.name}{chosen}")


# ---------------------------------------------------------------- mmrepro claims


STATUSES = {"confirmed": "green", "refuted": "red", "not-tested": "yellow"}


@dataclass(frozen=True)
class ClaimsCommand(Command):
    COMMAND: ClassVar[str] = "claims"
    scenarios: tuple[str, ...] = common.SCENARIOS(())
    status: str | None = option(None, "Only those with this status.", choices=(*STATUSES,))
    markdown: bool = common.MARKDOWN(False)
    json: bool = common.JSON(False)


@command(ClaimsCommand)
def claims(asked: ClaimsCommand) -> None:
    """List the claims of the original reports, and the run that judged each.

    Example:  mmrepro claims ghost-key-eviction --status refuted
    """
    from mmrepro.catalogue.claims import load, page, words
    from mmrepro.scenario.registry import load_scenario
    from mmrepro.scenarios.data import claims as file

    if asked.markdown and asked.json:
        raise UsageError("--markdown and --json are two forms.", hint="mmrepro claims --json")
    names = {load_scenario(name).name for name in asked.scenarios}
    found = [
        one
        for one in load(file())
        if (not names or one.scenario in names) and asked.status in (None, one.judged.status)
    ]
    if asked.json:
        emit({"claims": [one.model_dump(mode="json") for one in found]})
        return
    if asked.markdown:
        typer.echo(page(found), nl=False)
        return
    from rich.markup import escape

    rows = []
    for one in found:
        judged = one.judged
        status = f"[{STATUSES[judged.status]}]{words(judged.status)}"
        name, by, when = f"[bold]{escape(one.name)}", escape(judged.command), judged.at.date()
        rows.append((name, escape(one.made_in), status, escape(one.text), by, f"{when}"))
    head = ("claim", "made in", "status", "what it says", "judged by", "on")
    table_console().print(table(head, rows))
