"""``mmrepro matrix``: scenarios × releases, night after night."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import ClassVar

import typer
from mmrepro.base import common_options as common
from mmrepro.base.options import OUTPUT, Command, option
from mmrepro.cli.matrix_ledger import chosen_night, quarantine_of
from mmrepro.cli.options import DeclaredCommand, command
from mmrepro.matrix.options import DEFAULT_OUT, MatrixRunCommand

app = typer.Typer(
    name="matrix",
    help="Run many scenarios on many releases, keep what came of it, and say what changed.",
    no_args_is_help=True,
)


@app.command(cls=DeclaredCommand)
@command(MatrixRunCommand)
def run(asked: MatrixRunCommand) -> None:
    """Run a night: every scenario on every release that is asked for, each in its own process.

    The same command on the same night goes on with it; what has ended is kept.
    Exit codes: 0 all as expected; 1 a surprise; 3 inconclusive or left; 4 infrastructure.

    Example:  mmrepro matrix run --scenario ghost-key-eviction --releases boundary,newest
    """
    from mmrepro.cli.matrix_run import execute

    raise typer.Exit(execute(asked))


class Format(StrEnum):
    TERMINAL = "terminal"
    MD = "md"
    HTML = "html"
    JSON = "json"
    JUNIT = "junit"


@dataclass(frozen=True)
class MatrixReportCommand(Command):
    COMMAND: ClassVar[str] = "matrix report"
    ledger: Path = common.LEDGER(Path(DEFAULT_OUT))
    night: str = common.NIGHT("")
    format: Format = option(Format.TERMINAL, "What to print.", group=OUTPUT)
    quarantine: Path | None = common.QUARANTINE(None)
    full: bool = common.FULL(False)
    write: Path | None = option(
        None, "Write all files of the report into this folder instead.", "DIR", OUTPUT
    )


@app.command(cls=DeclaredCommand)
@command(MatrixReportCommand)
def report(asked: MatrixReportCommand) -> None:
    """Report a nightly run again, from the ledger alone.

    Example:  mmrepro matrix report nights --format md >> "$GITHUB_STEP_SUMMARY"
    """
    from mmrepro.cli.console import table_console
    from mmrepro.history.ledger import read
    from mmrepro.reports.documents import render
    from mmrepro.reports.nightly import KIND, NightView, compose, write_night
    from mmrepro.reports.terminal import print_page

    ledger, format = asked.ledger, asked.format
    history = read(ledger)
    chosen = chosen_night(ledger, asked.night, history)
    excused = quarantine_of(asked.quarantine)
    if asked.write is not None:
        for path in write_night(history, chosen, asked.write, excused):
            typer.echo(str(path))
        return
    shown = NightView(history, chosen, excused, ledger)
    if format is Format.TERMINAL:
        print_page(compose(shown), table_console(), full=asked.full)
        return
    typer.echo(render(KIND, shown, format.value).rstrip("\n"))


@dataclass(frozen=True)
class MatrixDiffCommand(Command):
    COMMAND: ClassVar[str] = "matrix diff"
    ledger: Path = common.LEDGER(Path(DEFAULT_OUT))
    before: str = option(
        "",
        "A nightly run, or DIR:NIGHT of another ledger.",
        "BEFORE",
        argument=True,
        shown="the last",
    )
    now: str = option("", "Likewise.", "NOW", argument=True, shown="the newest")
    json: bool = common.JSON(False)


@app.command(cls=DeclaredCommand)
@command(MatrixDiffCommand)
def diff(asked: MatrixDiffCommand) -> None:
    """Say what changed from one night to another.

    Exit codes: 0 nothing that alarms; 1 a bug came back, a drift, a flaky cell, another failure.

    Example:  mmrepro matrix diff nights 2026-11-21 2026-11-22
    """
    from mmrepro.cli.console import table_console
    from mmrepro.errors import ExitCode, UsageError
    from mmrepro.history.events import ALARMS, diff as find
    from mmrepro.history.ledger import read
    from mmrepro.reports.blocks import Paragraph, count
    from mmrepro.reports.nightly import events_table
    from mmrepro.reports.terminal import print_blocks

    ledger = asked.ledger
    after = chosen_night(ledger, asked.now)
    if asked.before:
        first = chosen_night(ledger, asked.before)
    else:
        earlier = read(ledger).before(after.night)
        if not earlier:
            raise UsageError(
                f"{ledger} has no night before {after.night.id}.",
                hint=f"mmrepro matrix report {ledger}",
            )
        first = earlier[-1]
    found = find(first, after)
    if asked.json:
        import json as json_module

        told = [event.model_dump(mode="json") for event in found]
        ids = {"before": first.night.id, "now": after.night.id}
        typer.echo(json_module.dumps({**ids, "events": told}, indent=1, ensure_ascii=False))
    else:
        changes = count(len(found), "change") if found else "Nothing changed"
        text = Paragraph(f"{changes} from {first.night.id} to {after.night.id}")
        print_blocks([text, *events_table(found)], table_console())
    if any(event.what in ALARMS for event in found):
        raise typer.Exit(ExitCode.NOT_AS_EXPECTED)


@dataclass(frozen=True)
class MatrixHistoryCommand(Command):
    COMMAND: ClassVar[str] = "matrix history"
    ledger: Path = common.LEDGER(Path(DEFAULT_OUT))
    scenario: str = option("", "Each cell of this one.", "NAME", configurable=False)
    json: bool = common.JSON(False)


@app.command(cls=DeclaredCommand)
@command(MatrixHistoryCommand)
def history(asked: MatrixHistoryCommand) -> None:
    """Show every row over the nights, oldest first.

    Example:  mmrepro matrix history nights --scenario ghost-key-eviction
    """
    from mmrepro.cli.console import table_console
    from mmrepro.history.ledger import read
    from mmrepro.reports.documents import document_json
    from mmrepro.reports.night_json import history_document
    from mmrepro.reports.nightly import history_blocks
    from mmrepro.reports.terminal import print_blocks

    known, scenario = read(asked.ledger), asked.scenario
    if asked.json:
        typer.echo(document_json(history_document(known, scenario)).rstrip("\n"))
        return
    print_blocks(history_blocks(known, scenario), table_console())


@dataclass(frozen=True)
class MatrixMergeCommand(Command):
    COMMAND: ClassVar[str] = "matrix merge"
    folders: tuple[Path, ...] = option(
        (), "Folders of ledgers: of shards, or of nights.", "DIR…", argument=True, required=True
    )
    out: Path = common.OUT(Path(), help="The ledger that they are added to.", required=True)
    incidents: bool = option(True, "Copy the incidents as well.", name="--incidents/--no-incidents")
    quarantine: Path | None = common.QUARANTINE(None)


@app.command(cls=DeclaredCommand)
@command(MatrixMergeCommand)
def merge(asked: MatrixMergeCommand) -> None:
    """Make one ledger of several, and its reports; what is there already is kept.

    Example:  mmrepro matrix merge shard-1 shard-2 --out nights
    """
    from mmrepro.history.ledger import read
    from mmrepro.history.merge import merge as join
    from mmrepro.reports.nightly import write_night

    out, excused = asked.out, quarantine_of(asked.quarantine)
    done = join(list(asked.folders), out, incidents=asked.incidents)
    if done.nothing:
        typer.echo(f"{out} has all of that already.")
        return
    nights = ", ".join(done.nights)
    typer.echo(
        f"{out}: {done.cells} cells, {done.attempts} runs, {done.events} events of {nights}; "
        f"{done.incidents} incidents copied."
    )
    for missing in done.missing:
        typer.echo(f"no such incident: {missing}", err=True)
    known = read(out)
    if known.newest is not None:
        write_night(known, known.newest, out, excused)
