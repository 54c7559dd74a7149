"""``mmrepro matrix``: scenarios × releases, night after night."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import typer
from mmrepro.base import common_options as common
from mmrepro.base.errors import ExitCode, UsageError
from mmrepro.base.options import OUTPUT, Command, option
from mmrepro.base.units import count
from mmrepro.campaign.matrix import DEFAULT_OUT, MatrixRunCommand
from mmrepro.cli.console import (
    console_for,
    done_head,
    emit,
    head_of_page,
    planned_head,
    say,
    table_console,
)
from mmrepro.cli.options import CommandGroup, DeclaredCommand, command

if TYPE_CHECKING:
    from mmrepro.campaign import Places, Say
    from mmrepro.campaign.cluster import Where
    from mmrepro.campaign.matrix import DryRun, MatrixFile
    from mmrepro.history import History, Ledger, NightRuns, Quarantine
    from rich.console import Console

app = typer.Typer(
    name="matrix",
    cls=CommandGroup,
    help=(
        "Run many scenarios on many releases, keep the results, and report "
        "what changed."
    ),
    no_args_is_help=True,
)


def _quarantine_of(path: Path | None) -> Quarantine:
    from mmrepro.history import Quarantine, load_quarantine

    return load_quarantine(path) if path is not None else Quarantine()


# ---------------------------------------------------------------- mmrepro matrix run


@app.command(cls=DeclaredCommand)
@command(MatrixRunCommand)
def run(asked: MatrixRunCommand) -> None:
    """Make a nightly run: every scenario on every release that is asked for, each in
    its own process.

    The same command on the same day continues it; what has ended is kept.
    Example: mmrepro matrix run --scenario ghost-key-eviction --releases boundary,newest
    """
    raise typer.Exit(execute(asked))


def execute(asked: MatrixRunCommand) -> ExitCode:
    """Make the nightly run, or continue it, or print what it would be. Raises
    MmreproError."""
    from mmrepro.campaign.cluster import placed_runs
    from mmrepro.campaign.matrix import (
        MatrixFile,
        begin_night,
        dry_run_of,
        load_matrix,
        night_of,
        planned_of,
        unfinished_night,
    )
    from mmrepro.cli.sources import released
    from mmrepro.failure.documents import LEDGER_FILE, refuse_taken
    from mmrepro.history import Ledger, read_history

    asked = released(asked)
    asked, given = asked.under(
        load_matrix(asked.file) if asked.file is not None else MatrixFile()
    )
    settings = asked.over(given.matrix)
    folder = settings.out or Path(DEFAULT_OUT)
    console = console_for(asked)
    if asked.resume and (asked.scenarios or asked.night or asked.shard):
        raise UsageError(
            (
                "--resume goes on with the plan that is written down: no --scenario, "
                "--night, --shard."
            ),
            hint=f"mmrepro matrix run --resume --out {shlex.quote(str(folder))}",
        )
    if asked.dry_run:
        made = dry_run_of(asked, given, settings, folder)
        if asked.json:
            emit(made, planned_head(asked, made.seconds), "nightly-plan")
        else:
            _print_dry_run(made, console)
        return ExitCode.AS_EXPECTED
    planned, notes = ([], []) if asked.resume else planned_of(asked, given)
    if asked.resume and not (folder / LEDGER_FILE).is_file():
        read_history(folder)  # raises: there is none
    if not (folder / LEDGER_FILE).is_file():
        refuse_taken(folder)
    night = night_of(asked, settings)
    jobs = asked.jobs if settings.ray else settings.jobs
    with placed_runs(jobs, settings.ray) as where, Ledger(folder) as ledger:
        runs = (
            unfinished_night(ledger)
            if asked.resume
            else begin_night(ledger, night, planned)
        )
        if runs is not None:
            _refuse_files(runs, asked)
            for note in notes:
                _line(console, f"Left out: {note}.")
            return _run(ledger, runs, asked, given, settings, where, notes, console)
        newest = ledger.history.newest
        if newest is None:
            raise UsageError(
                f"{folder} has no night to go on with.",
                hint=f"mmrepro matrix run --scenario ghost-key-eviction --out {folder}",
            )
        excused = _excused(settings, newest, console)
        return _print_ended(
            _EndedNight(ledger.history, newest, folder, excused), asked, console
        )


def _refuse_files(runs: NightRuns, asked: MatrixRunCommand) -> None:
    """Raises UntrustedFile: the ledger, whoever wrote it, names a Python file to be
    run."""
    from mmrepro.scenario.registry import is_file_name, known_scenario

    for planned in runs.planned.values():
        name = planned.cell.scenario
        if is_file_name(name) and not asked.runs_file(name):
            known_scenario(name, trust=False)


def _run(
    ledger: Ledger,
    runs: NightRuns,
    asked: MatrixRunCommand,
    given: MatrixFile,
    settings: MatrixRunCommand,
    where: Where,
    notes: Sequence[str],
    console: Console,
) -> ExitCode:
    from mmrepro.base.errors import NoPlaceLeft
    from mmrepro.campaign.matrix import (
        EnvironmentCosts,
        Nightly,
        Slicing,
        night_options,
    )
    from mmrepro.cli.campaign import conduct
    from mmrepro.failure.documents import NightState
    from mmrepro.reports import write_night

    again, folder = asked.resumed(ledger.folder), ledger.folder
    options = night_options(settings, runs.night.machine)
    excused = _excused(settings, runs, console)
    slicing = Slicing(EnvironmentCosts().build_s) if where.cluster is not None else None
    policy = Nightly(ledger, runs, slicing, again)

    def places(say: Say) -> Places:
        return where.places(
            say,
            options,
            device=max(
                (planned.cell.device for planned in runs.planned.values()),
                default="cpu",
            ),
            disk=settings.disk,
            kept=folder / f".disk-{runs.night.id}.json",
            needs=given.cluster,
        )

    idle = not policy.todo and runs.night.state is NightState.COMPLETE
    try:
        conduct(
            policy, places, console, asked, budget_s=asked.budget_s or settings.max_time
        )
    except (KeyboardInterrupt, NoPlaceLeft):
        write_night(ledger.history, runs, folder, excused)
        raise
    if not (idle and (folder / "dashboard.html").exists()):
        write_night(ledger.history, runs, folder, excused)
    left = [planned.cell.id for planned in policy.todo]
    ended = _EndedNight(ledger.history, runs, folder, excused, left, again, notes, idle)
    return _print_ended(ended, asked, console)


@dataclass(frozen=True)
class _EndedNight:
    """A nightly run that has ended, or has stopped for now."""

    history: History
    runs: NightRuns
    folder: Path
    excused: Quarantine
    left: Sequence[str] = ()
    resume: str = ""
    notes: Sequence[str] = field(default_factory=list)
    idle: bool = True


def _print_ended(
    ended: _EndedNight, asked: MatrixRunCommand, console: Console
) -> ExitCode:
    from mmrepro.campaign.matrix import night_exit_code
    from mmrepro.history import NightView, night_document
    from mmrepro.reports import NIGHT_HTML_FILE, compose_night
    from mmrepro.reports.blocks import count, slug
    from mmrepro.reports.terminal import print_page

    night = ended.runs.night
    shown = NightView(ended.history, ended.runs, ended.excused)
    code = night_exit_code(
        ended.runs,
        lambda cell: ended.excused.entry_for(cell, night.created.wall) is not None,
        ended.left,
    )
    page = compose_night(shown)
    if ended.left:
        resume = (f"{count(len(ended.left), 'job')} left; to resume, run", ended.resume)
        page = replace(page, commands=[resume, *page.commands[1:]])
    place = str(ended.folder / NIGHT_HTML_FILE)
    if asked.json:
        run = {
            "folder": str(ended.folder),
            "exit_code": int(code),
            "idle": ended.idle,
            "left": list(ended.left),
            "left_out": list(ended.notes),
            "resume": ended.resume if ended.left else "",
        }
        document = night_document(shown).model_dump(mode="json")
        head = head_of_page(page, slug(page.badge.label), code, place)
        emit({**document, "run": run}, head)
        return code
    if ended.idle:
        _line(console, f"{night.id} is complete: nothing was left to run.")
    print_page(page, table_console(), place, full=asked.full, quiet=asked.quiet)
    return code


def _line(console: Console, text: str, style: str = "") -> None:
    from mmrepro.base.text import wrapped

    if console.is_terminal:
        text = wrapped(text, console.width, hang=2)
    console.print(text, style=style, highlight=False, soft_wrap=True)


def _excused(
    settings: MatrixRunCommand, runs: NightRuns, console: Console
) -> Quarantine:
    loaded = _quarantine_of(settings.quarantine)
    for warning in loaded.warnings(list(runs.cells.values()), runs.night.created.wall):
        _line(console, warning, "yellow")
    return loaded


def _print_dry_run(made: DryRun, console: Console) -> None:
    """The cells by environment, what each takes, and what is fetched first."""
    from mmrepro.base.text import one_line
    from mmrepro.base.units import duration, size
    from mmrepro.reports.blocks import count, table
    from mmrepro.reports.terminal import print_blocks

    rows: list[tuple[str, ...]] = []
    # What the estimates are based on, each once.
    reasons: dict[str, None] = {}
    for group in made.groups:
        fetched = "" if not group.download_bytes else f", {group.environment}"
        for number, cell in enumerate(group.cells):
            name = f"{group.name}{fetched}" if number == 0 else ""
            about = "–"
            if cell.runs:
                about = duration(cell.seconds)
                reasons[cell.seconds_from] = None
            row = one_line(cell.cell.row, 120)
            rows.append((name, row, cell.expected or "–", str(cell.runs), about))
    heads = "environment:name | cell:name | expected:name | runs:number | about:name"
    print_blocks(table(heads, rows), console)
    cells = sum(len(group.cells) for group in made.groups)
    places = f"{count(cells, 'job')} in {count(len(made.groups), 'environment')}"
    text = f"Nightly run {made.night}: {places}, {count(made.runs, 'run')}"
    if made.runs:
        text += f", about {duration(made.seconds)}."
    else:
        text += ": nothing is left to run."
    if made.download_bytes:
        text += f" About {size(made.download_bytes)} are unpacked first, at most."
    _line(console, text)
    for why in reasons:
        _line(console, f"Times: {why}.")
    for note in made.notes:
        _line(console, f"Left out: {note}.")


# ---------------------------------------------------------------- what reads a ledger


@dataclass(frozen=True)
class _MatrixReportCommand(Command):
    COMMAND: ClassVar[str] = "matrix report"
    ledger: Path = common.LEDGER(Path(DEFAULT_OUT))
    night: str = common.NIGHT("")
    format: str = option(
        "terminal",
        "What to print.",
        group=OUTPUT,
        choices=("terminal", "md", "html", "json", "junit"),
    )
    full: bool = common.FULL(False)
    quarantine: Path | None = common.QUARANTINE(None)
    write: Path | None = option(
        None, "Write all files of the report into this folder instead.", "DIR", OUTPUT
    )


@app.command(cls=DeclaredCommand)
@command(_MatrixReportCommand)
def report(asked: _MatrixReportCommand) -> None:
    """Report a nightly run again, from the ledger alone.

    Example:  mmrepro matrix report nights --format md >> "$GITHUB_STEP_SUMMARY"
    """
    from mmrepro.history import NightView, chosen_night
    from mmrepro.reports import NIGHT_REPORT, compose_night, write_night
    from mmrepro.reports.documents import render
    from mmrepro.reports.terminal import print_page

    history, chosen = chosen_night(asked.ledger, asked.night)
    excused = _quarantine_of(asked.quarantine)
    if asked.write is not None:
        for path in write_night(history, chosen, asked.write, excused):
            typer.echo(str(path))
        return
    shown = NightView(history, chosen, excused, asked.ledger)
    if asked.format == "terminal":
        print_page(compose_night(shown), table_console(), full=asked.full)
    else:
        typer.echo(render(NIGHT_REPORT, shown, asked.format).rstrip("\n"))


@dataclass(frozen=True)
class _MatrixDiffCommand(Command):
    COMMAND: ClassVar[str] = "matrix diff"
    DOCUMENTS: ClassVar[tuple[str, ...]] = ("mmrepro.history.nightly:DiffDocument",)
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
@command(_MatrixDiffCommand)
def diff(asked: _MatrixDiffCommand) -> None:
    """Show what changed from one nightly run to another.

    Example:  mmrepro matrix diff nights 2026-11-21 2026-11-22
    """
    from mmrepro.base.records import DocumentHead
    from mmrepro.history import (
        ALARMS,
        DiffDocument,
        chosen_night,
        diff_nights as find,
        read_history,
    )
    from mmrepro.reports import events_table
    from mmrepro.reports.blocks import Paragraph, count
    from mmrepro.reports.terminal import print_blocks

    ledger = asked.ledger
    _, after = chosen_night(ledger, asked.now)
    if asked.before:
        _, first = chosen_night(ledger, asked.before)
    else:
        earlier = read_history(ledger).before(after.night)
        if not earlier:
            raise UsageError(
                f"{ledger} has no night before {after.night.id}.",
                hint=f"mmrepro matrix report {ledger}",
            )
        first = earlier[-1]
    events = find(first, after)
    changes = count(len(events), "change") if events else "Nothing changed"
    text = f"{changes} from {first.night.id} to {after.night.id}"
    alarms = any(event.what in ALARMS for event in events)
    code = ExitCode.NOT_AS_EXPECTED if alarms else ExitCode.AS_EXPECTED
    if asked.json:
        status = "alert" if alarms else "changed" if events else "unchanged"
        head = DocumentHead(status=status, exit_code=code, summary=text)
        document = DiffDocument(
            before=first.night.id, now=after.night.id, events=events
        )
        emit(document, head)
    else:
        print_blocks([Paragraph(text), *events_table(events)], table_console())
    raise typer.Exit(code)


@dataclass(frozen=True)
class _MatrixHistoryCommand(Command):
    COMMAND: ClassVar[str] = "matrix history"
    DOCUMENTS: ClassVar[tuple[str, ...]] = ("mmrepro.history.nightly:NightsDocument",)
    ledger: Path = common.LEDGER(Path(DEFAULT_OUT))
    scenario: str = option(
        "",
        "Only the jobs of this scenario.",
        "NAME",
        configurable=False,
        names="scenario",
    )
    json: bool = common.JSON(False)


@app.command(cls=DeclaredCommand)
@command(_MatrixHistoryCommand)
def history(asked: _MatrixHistoryCommand) -> None:
    """Show every job over the nightly runs, oldest first.

    Example:  mmrepro matrix history nights --scenario ghost-key-eviction
    """
    from mmrepro.history import history_document, read_history
    from mmrepro.reports import history_blocks
    from mmrepro.reports.blocks import count
    from mmrepro.reports.terminal import print_blocks

    known = read_history(asked.ledger)
    if asked.json:
        document = history_document(known, asked.scenario)
        cells = count(len(document.cells), "job")
        nights = count(len(document.nights), "nightly run")
        emit(document, done_head("listed", f"{cells} over {nights}."))
    else:
        print_blocks(history_blocks(known, asked.scenario), table_console())


@dataclass(frozen=True)
class _MatrixMergeCommand(Command):
    COMMAND: ClassVar[str] = "matrix merge"
    folders: tuple[Path, ...] = option(
        (),
        "Folders of ledgers: of shards, or of nightly runs.",
        "DIR…",
        argument=True,
        required=True,
    )
    out: Path = common.OUT(
        Path(), help="The ledger that they are added to.", required=True
    )
    incidents: bool = option(
        True, "Copy the incidents as well.", name="--incidents/--no-incidents"
    )
    quarantine: Path | None = common.QUARANTINE(None)


@app.command(cls=DeclaredCommand)
@command(_MatrixMergeCommand)
def merge(asked: _MatrixMergeCommand) -> None:
    """Make one ledger of several, and its reports; what is there already is kept.

    Example:  mmrepro matrix merge shard-1 shard-2 --out nights
    """
    from mmrepro.base.text import one_line
    from mmrepro.history import merge_ledgers as join, read_history
    from mmrepro.reports import write_night

    out, excused = asked.out, _quarantine_of(asked.quarantine)
    done = join(list(asked.folders), out, incidents=asked.incidents)
    if done.nothing:
        say(f"{out} has all of that already.")
        return
    counted = [
        count(done.cells, "cell"),
        count(done.attempts, "run"),
        count(done.events, "event"),
    ]
    copied = count(done.incidents, "incident")
    nights = ", ".join(done.nights)
    say(f"{out}: {', '.join(counted)} of {nights}; {copied} copied.")
    for missing in done.missing:
        say(f"no such incident: {one_line(missing, 500)}", stderr=True)
    known = read_history(out)
    if known.newest is not None:
        write_night(known, known.newest, out, excused)
