"""What the nightly's jobs ask of a ledger: is a night missing, what is to be told, to whom."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import typer
from mmrepro.base import common_options as common
from mmrepro.base.options import LIMITS, OUTPUT, Command, Option, option
from mmrepro.cli.matrix_ledger import chosen_night, quarantine_of
from mmrepro.cli.options import command
from mmrepro.matrix.options import DEFAULT_OUT
from mmrepro.matrix.quantity import seconds, seconds_text, size

if TYPE_CHECKING:
    from mmrepro.history.overdue import Watch
    from mmrepro.reports.night_view import NightView

EVERY = Option(
    "Time between two nightly runs, e.g. 24h.",
    "TIME",
    LIMITS,
    own=True,
    shown="as the last one says",
    read=seconds,
    write=seconds_text,
)


@dataclass(frozen=True)
class OverdueCommand(Command):
    COMMAND: ClassVar[str] = "matrix overdue"
    ledger: Path = common.LEDGER(Path(DEFAULT_OUT))
    every: float | None = EVERY(None)
    json: bool = common.JSON(False)


@command(OverdueCommand)
def overdue(asked: OverdueCommand) -> None:
    """Say whether the next night should have begun by now and has not.

    Exit codes: 0 not yet; 1 overdue: none began, the last one never ended, or none ever ran
    anything; 2 there is no ledger, or nobody said how often nights are due.

    Example:  mmrepro matrix overdue nights --every 24h
    """
    from datetime import UTC, datetime

    from mmrepro.errors import ExitCode, UsageError
    from mmrepro.history.ledger import read
    from mmrepro.history.overdue import watch
    from mmrepro.text.sanitize import one_line

    ledger = asked.ledger
    seen = watch(read(ledger), datetime.now(UTC), _hours(asked.every))
    if seen.event is None and seen.due is None:
        raise UsageError(
            f"No night of {ledger} says when the next one is due.",
            hint=f"mmrepro matrix overdue {ledger} --every 24h",
        )
    text = seen.event.text if seen.event is not None else _in_time(seen)
    if asked.json:
        _print({**_watched(seen), "text": text})
    else:
        typer.echo(one_line(text))
    if seen.event is not None:
        raise typer.Exit(ExitCode.NOT_AS_EXPECTED)


@dataclass(frozen=True)
class AnnotateCommand(Command):
    COMMAND: ClassVar[str] = "matrix annotate"
    ledger: Path = common.LEDGER(Path(DEFAULT_OUT))
    night: str = common.NIGHT("")
    quarantine: Path | None = common.QUARANTINE(None)
    most: int = option(
        10, "Maximum number of lines, the worst first.", "N", OUTPUT, name="--max", least=1, most=50
    )


@command(AnnotateCommand)
def annotate(asked: AnnotateCommand) -> None:
    """Print a night as GitHub workflow commands: errors, warnings, notices.

    Example:  mmrepro matrix annotate nights --quarantine quarantine.toml
    """
    from mmrepro.reports.annotations import annotations_of

    for one in annotations_of(_view(asked.ledger, asked.night, asked.quarantine), asked.most):
        typer.echo(one.line)


@dataclass(frozen=True)
class SurprisesCommand(Command):
    COMMAND: ClassVar[str] = "matrix surprises"
    out: Path = common.OUT(Path(), help="Folder for the bundles and their index.md.", required=True)
    ledger: Path = common.LEDGER(Path(DEFAULT_OUT))
    night: str = common.NIGHT("")
    quarantine: Path | None = common.QUARANTINE(None)
    max_bytes: int = option(
        200 << 20,
        "Largest size of all bundles together; the rest is named, not packed.",
        "SIZE",
        OUTPUT,
        shown="200M",
        read=size,
    )
    json: bool = common.JSON(False)


@command(SurprisesCommand)
def surprises(asked: SurprisesCommand) -> None:
    """Bundle the runs that were not as expected, redacted as by mmrepro bundle.

    A night as expected writes nothing.

    Example:  mmrepro matrix surprises nights --out surprises
    """
    from mmrepro.reports.surprises import write_surprises

    ledger, out = asked.ledger, asked.out
    view = _view(ledger, asked.night, asked.quarantine)
    done = write_surprises(view, ledger, out, asked.max_bytes)
    if asked.json:
        told = [one.as_json() for one in [*done.packed, *done.left_out]]
        _print({"night": done.night, "out": str(out), "runs": told})
        return
    if not done.packed and not done.left_out:
        typer.echo(f"Night {done.night} has nothing to bundle.")
        return
    for one in done.packed:
        typer.echo(f"{out / one.file}: {one.bytes >> 10} KiB, {one.square.words}")
    for one in done.left_out:
        typer.echo(f"left out: {one.square.cell.id}, {one.square.words}: {one.why}", err=True)


@dataclass(frozen=True)
class IssuesCommand(Command):
    COMMAND: ClassVar[str] = "matrix issues"
    open_issues: Path = option(
        Path(),
        "What gh issue list --json number,title,body,labels,state prints.",
        "FILE",
        name="--open",
        required=True,
    )
    ledger: Path = common.LEDGER(Path(DEFAULT_OUT))
    quarantine: Path | None = common.QUARANTINE(None)
    every: float | None = EVERY(None)
    most: int = option(
        10, "Maximum number of new issues, the worst first.", "N", OUTPUT, name="--max-new", least=0
    )
    absent: bool = option(False, "Tonight no machine delivered anything.")
    run_url: str = option("", "Address of the run that asks: linked in each body.", "URL", OUTPUT)
    json: bool = common.JSON(False)


@command(IssuesCommand)
def issues(asked: IssuesCommand) -> None:
    """Say which issues to open, rewrite and close, so that each concern has one; do nothing.

    Example:  mmrepro matrix issues nights --open open.json --json
    """
    from datetime import UTC, datetime

    from mmrepro.history.concerns import Concern, concerns
    from mmrepro.history.issues import decide
    from mmrepro.history.ledger import read
    from mmrepro.reports.issue_markdown import as_json, title
    from mmrepro.text.sanitize import one_line

    history, excused = read(asked.ledger), quarantine_of(asked.quarantine)
    today = history.newest.night.created.wall if history.newest is not None else None

    def quarantined(concern: Concern) -> bool:
        if concern.cell is None or today is None:
            return False
        return excused.entry_for(concern.cell, today) is not None

    now = datetime.now(UTC)
    known = concerns(history, now, _hours(asked.every), absent=asked.absent)
    decided = decide(known, _issues(asked.open_issues), quarantined, asked.most)
    told = [as_json(action, asked.run_url) for action in decided.actions]
    held = [title(concern) for concern in decided.held]
    if asked.json:
        _print({"actions": told, "held": held})
        return
    for one in told:
        number = f" #{one['number']}" if "number" in one else ""
        typer.echo(one_line(f"{one['do']}{number}: {one.get('title', one['identity'])}"))
    if held:
        typer.echo(f"{len(held)} more wait for the next night: {', '.join(held[:3])}")
    if not told and not held:
        typer.echo("Nothing is to be done.")


COMMANDS: tuple[Callable[..., None], ...] = (overdue, annotate, surprises, issues)


def _view(ledger: Path, night: str, quarantine: Path | None) -> NightView:
    from mmrepro.history.ledger import read
    from mmrepro.reports.night_view import night_view

    history = read(ledger)
    return night_view(history, chosen_night(ledger, night, history), quarantine_of(quarantine))


def _hours(every: float | None) -> float | None:
    return every / 3600 if every else None


def _in_time(seen: Watch) -> str:
    assert seen.last is not None
    assert seen.due is not None
    night = seen.last.night
    return (
        f"{night.id} began at {night.created.wall:%Y-%m-%d %H:%M} UTC and is {night.state}; the "
        f"next night is due at {seen.due:%Y-%m-%d %H:%M} UTC."
    )


def _watched(seen: Watch) -> dict[str, Any]:
    night = seen.last.night if seen.last is not None else None
    return {
        "overdue": seen.event is not None,
        "identity": seen.event.identity if seen.event is not None else None,
        "night": night.id if night is not None else None,
        "state": night.state.value if night is not None else None,
        "began": night.created.wall.isoformat() if night is not None else None,
        "due": seen.due.isoformat() if seen.due is not None else None,
        "late_from": seen.late_from.isoformat() if seen.late_from is not None else None,
    }


def _issues(path: Path) -> list[Any]:
    from mmrepro.errors import UsageError
    from mmrepro.history.issues import ISSUES
    from mmrepro.machine.files import read_file
    from mmrepro.text.sanitize import one_line
    from pydantic import ValidationError

    hint = (
        "gh issue list --label mmrepro-nightly --state all --limit 1000 "
        f"--json number,title,body,labels,state > {path}"
    )
    try:
        return list(ISSUES.validate_json(read_file(path, 64 << 20)))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}.", hint=hint) from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        why = one_line(f"{'.'.join(map(str, first['loc']))}: {first['msg']}", 200)
        raise UsageError(f"{path} is no list of issues: {why}.", hint=hint) from error


def _print(document: dict[str, Any]) -> None:
    import json

    typer.echo(json.dumps(document, indent=1, ensure_ascii=False))
