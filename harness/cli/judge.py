"""``mmrepro judge``: what was recorded, judged again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import typer
from mmrepro.base import common_options as common
from mmrepro.base.options import Command, option
from mmrepro.cli.options import command

if TYPE_CHECKING:
    from mmrepro.incident import Incident
    from mmrepro.run.judge import Rejudged
    from rich.console import Console

STYLES = {"met": "green", "confirmed": "green", "not-met": "red", "refuted": "red"}


@dataclass(frozen=True)
class JudgeCommand(Command):
    COMMAND: ClassVar[str] = "judge"
    incidents: tuple[Path, ...] = option(
        (), "Folders of incidents, or bundles.", "DIR…", argument=True, required=True
    )
    scenario: str = option(
        "",
        "Judge by this scenario: a name, or a path that ends in .py.",
        "NAME|FILE",
        shown="the one that was run",
        configurable=False,
    )
    json: bool = common.JSON(False)


@command(JudgeCommand)
def judge(asked: JudgeCommand) -> None:
    """Judge recorded evidence again, without an engine: each condition and claim, then and now.

    It is how a signature is improved on runs that were made, and how a stranger checks a verdict.
    Exit code 1: a verdict is another one than was recorded.

    Example:  mmrepro judge incidents/ghost-key-eviction-0.23.0-20261121-030000
    """
    from mmrepro.reports import load
    from mmrepro.run.judge import rejudge

    judged: list[tuple[Path, Incident, Rejudged]] = []
    for path in asked.incidents:
        incident = load(path)
        judged.append((path, incident, rejudge(incident, _scenario(incident, asked.scenario))))
    if asked.json:
        import json as jsonlib

        typer.echo(jsonlib.dumps([_document(*one) for one in judged], indent=1))
    else:
        _tell(judged)
    if any(found.differs for _, _, found in judged):
        raise typer.Exit(1)


def _scenario(incident: Incident, given: str) -> Any:
    """Raises UsageError: it is none of those that are known, and none was given."""
    from mmrepro.errors import UnknownScenario, UsageError
    from mmrepro.scenario.registry import load_scenario

    try:
        found = load_scenario(given or incident.scenario.name)
    except UnknownScenario as error:
        if given:
            raise
        raise UsageError(
            f"{incident.scenario.name} is no scenario that is known here.",
            hint=f"mmrepro judge {incident.incident_dir} --scenario FILE.py",
        ) from error
    variant = incident.scenario.variant
    known = {one.variant for one in found.variants}
    return found.with_variant(variant if variant in known else "")


def _document(path: Path, incident: Incident, found: Rejudged) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "incident": str(path),
        "scenario": incident.scenario.name,
        "variant": incident.scenario.variant,
        "then": found.then.outcome.value,
        "now": found.now.outcome.value,
        "differs": found.differs,
        "explanation": found.now.explanation,
        "parts": [asdict(part) for part in found.parts],
    }


def _tell(judged: list[tuple[Path, Incident, Rejudged]]) -> None:
    from rich.console import Console

    out = Console(highlight=False, soft_wrap=True)
    for path, _, found in judged:
        told = found.now.outcome.value
        if found.differs:
            told = f"[bold red]{found.then.outcome.value} → {told}[/]"
        parts = f"{len(found.changes)} of {len(found.parts)} conditions and claims differ"
        if not found.changes:
            parts = f"as recorded, with all {len(found.parts)} conditions and claims"
        out.print(f"{path.name}  {told}  {parts}")
        _parts(out, found, every=len(judged) == 1)
    if len(judged) > 1:
        other = sum(found.differs for _, _, found in judged)
        alone = sum(bool(found.changes) and not found.differs for _, _, found in judged)
        out.print(
            f"{len(judged)} judged again: {len(judged) - other - alone} as recorded, {other} with "
            f"another verdict, {alone} with other conditions or claims alone"
        )


def _parts(out: Console, found: Rejudged, *, every: bool) -> None:
    from mmrepro.text.sanitize import plain
    from rich.markup import escape
    from rich.table import Table

    shown = found.parts if every else found.changes
    if not shown:
        return
    table = Table(box=None, pad_edge=False)
    for column in ("", "", "then", "now", "observed"):
        table.add_column(column, overflow="fold")
    for part in shown:
        now = part.now or "gone"
        style = "bold yellow" if part.differs else STYLES.get(now, "dim")
        table.add_row(
            part.kind, part.id, part.then or "new", f"[{style}]{now}[/]",
            escape(plain(part.observed)),
        )  # fmt: skip
    out.print(table)
    if every:
        out.print(escape(plain(f"{found.now.outcome.value}: {found.now.explanation}")))
