"""``mmrepro matrix run``, from the options to the exit code."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import mmrepro
import typer
from mmrepro.campaign.groups import Estimates
from mmrepro.campaign.provisions import Say
from mmrepro.campaign.schedule import CONFIRM, REPEAT, left
from mmrepro.campaign.work import Places
from mmrepro.cli.campaign import Where, conduct, placed
from mmrepro.cli.console import table_console
from mmrepro.cli.matrix_progress import print_dry_run
from mmrepro.errors import ExitCode, NoPlaceLeft, UsageError
from mmrepro.history.ledger import History, Ledger, NightRuns, read
from mmrepro.history.quarantine import Quarantine, load as load_quarantine
from mmrepro.incident.ledger import LEDGER_FILE, Night, NightState, Planned
from mmrepro.machine.host import host_facts
from mmrepro.matrix.ending import exit_code
from mmrepro.matrix.file import MatrixFile, Rows, Settings, load
from mmrepro.matrix.measured import Measured
from mmrepro.matrix.nights import begin, night_options, unfinished
from mmrepro.matrix.options import DEFAULT_OUT, MatrixRunCommand
from mmrepro.matrix.plan import dry_run, plan, sharded
from mmrepro.matrix.session import Nightly, Slicing
from mmrepro.records import Moment
from mmrepro.reports.blocks import count
from mmrepro.reports.night_json import night_document
from mmrepro.reports.nightly import HTML_FILE, NightView, compose, write_night
from mmrepro.reports.terminal import print_page
from mmrepro.run.key import gpu_models
from rich.console import Console


def execute(asked: MatrixRunCommand) -> ExitCode:
    """Run the night, or go on with it, or print what it would be. Raises MmreproError."""
    asked, given = asked.under(load(asked.file) if asked.file is not None else MatrixFile())
    settings = asked.settings.over(given.matrix)
    folder = Path(settings.out or DEFAULT_OUT)
    console = table_console(stderr=asked.json or asked.events == "-")
    if asked.resume and (asked.scenarios or asked.night or asked.shard):
        raise UsageError(
            "--resume goes on with the plan that is written down: no --scenario, --night, --shard.",
            hint=f"mmrepro matrix run --resume --out {shlex.quote(str(folder))}",
        )
    if asked.dry_run:
        return _dry_run(asked, given, settings, folder, console)
    planned, notes = ([], []) if asked.resume else planned_of(asked, given)
    if asked.resume and not (folder / LEDGER_FILE).is_file():
        read(folder)  # raises: there is none
    night = _night(asked, settings)
    jobs = asked.settings.jobs if settings.ray else settings.jobs
    with placed(jobs, settings.ray or "") as where, Ledger(folder) as ledger:
        if not asked.resume:
            runs = begin(ledger, night, planned)
        elif (found := unfinished(ledger)) is not None:
            runs = found
        else:
            return _nothing_unfinished(ledger, asked, settings, folder, console)
        for note in notes:
            console.print(f"Left out: {note}.", highlight=False, soft_wrap=True)
        return _run(ledger, runs, asked, given, settings, where, notes, console)


def _run(
    ledger: Ledger,
    runs: NightRuns,
    asked: MatrixRunCommand,
    given: MatrixFile,
    settings: Settings,
    where: Where,
    notes: Sequence[str],
    console: Console,
) -> ExitCode:
    again = asked.resumed(ledger.folder)
    options = night_options(settings, runs.night.machine)
    quarantine = _quarantine(settings, runs, console)
    slicing = Slicing(sliced=where.cluster is not None, build_s=Measured().build_s)
    policy = Nightly(ledger, runs, slicing, again)

    def places(say: Say) -> Places:
        return where.places(
            say,
            options,
            device=max((planned.cell.device for planned in runs.planned.values()), default="cpu"),
            disk=settings.disk,
            kept=ledger.folder / f".disk-{runs.night.id}.json",
            needs=given.cluster.model_dump(),
        )

    idle = not policy.todo and runs.night.state is NightState.COMPLETE
    try:
        budget_s = asked.budget_s or settings.max_time
        conduct(policy, places, console, budget_s=budget_s, events=asked.events)
    except (KeyboardInterrupt, NoPlaceLeft):
        write_night(ledger.history, runs, ledger.folder, quarantine)
        raise
    if not (idle and (ledger.folder / HTML_FILE).exists()):
        write_night(ledger.history, runs, ledger.folder, quarantine)
    left = [planned.cell.id for planned in policy.todo]
    ended = Ended(ledger.history, runs, ledger.folder, quarantine, left, again, tuple(notes), idle)
    return _tell(ended, asked, console)


@dataclass(frozen=True)
class Ended:
    """A night that is not run any more, for now."""

    history: History
    runs: NightRuns
    folder: Path
    quarantine: Quarantine
    left: Sequence[str] = ()
    resume: str = ""
    notes: tuple[str, ...] = ()
    idle: bool = True


def _tell(ended: Ended, asked: MatrixRunCommand, console: Console) -> ExitCode:
    night = ended.runs.night
    shown = NightView(ended.history, ended.runs, ended.quarantine)
    code = exit_code(
        ended.runs,
        lambda cell: ended.quarantine.entry_for(cell, night.created.wall) is not None,
        ended.left,
    )
    if asked.json:
        document = night_document(shown).model_dump(mode="json")
        document["run"] = {
            "folder": str(ended.folder),
            "exit_code": int(code),
            "idle": ended.idle,
            "left": list(ended.left),
            "left_out": list(ended.notes),
            "resume": ended.resume if ended.left else "",
        }
        typer.echo(json.dumps(document, indent=1, ensure_ascii=False))
        return code
    if ended.idle:
        console.print(f"{night.id} is complete: nothing was left to run.", highlight=False)
    page = compose(shown)
    if ended.left:
        resume = (f"{count(len(ended.left), 'job')} left; to resume, run", ended.resume)
        page = replace(page, commands=[resume, *page.commands[1:]])
    print_page(page, console, str(ended.folder / HTML_FILE), full=asked.full)
    return code


def _quarantine(settings: Settings, runs: NightRuns, console: Console) -> Quarantine:
    if settings.quarantine is None:
        return Quarantine()
    loaded = load_quarantine(Path(settings.quarantine))
    cells = list(runs.cells.values())
    for warning in loaded.warnings(cells, runs.night.created.wall):
        console.print(warning, style="yellow", highlight=False, soft_wrap=True)
    return loaded


def _nothing_unfinished(
    ledger: Ledger, asked: MatrixRunCommand, settings: Settings, folder: Path, console: Console
) -> ExitCode:
    newest = ledger.history.newest
    if newest is None:
        raise UsageError(
            f"{folder} has no night to go on with.",
            hint=f"mmrepro matrix run --scenario ghost-key-eviction --out {folder}",
        )
    quarantine = _quarantine(settings, newest, console)
    return _tell(Ended(ledger.history, newest, folder, quarantine), asked, console)


# ---------------------------------------------------------------- the plan


def planned_of(asked: MatrixRunCommand, given: MatrixFile) -> tuple[list[Planned], list[str]]:
    """The cells that are asked for, and what was left out of them. Raises MmreproError."""
    rows = _rows(asked, given)
    made = plan(_name(asked), rows, asked.settings, given.matrix)
    cells = sharded(made.cells, asked.shard)
    if not cells:
        made.notes.append(f"no environment of the plan falls into shard {asked.shard}")
    return cells, made.notes


def _rows(asked: MatrixRunCommand, given: MatrixFile) -> list[Rows]:
    """The file's, those with a scenario of the command line if that names any; or that one's."""
    arguments, options = list(asked.server_args), list(asked.options)
    if asked.file is None or not given.cell:
        own = Rows(scenario=list(asked.scenarios), server_arg=arguments, option=options)
        return [own] if asked.scenarios else []
    rows = []
    for group in given.cell:
        names = [s for s in group.scenario if not asked.scenarios or _named(s, asked.scenarios)]
        if names:
            added = {
                "scenario": names,
                "server_arg": group.server_arg + arguments,
                "option": group.option + options,
            }
            rows.append(group.model_copy(update=added))
    if not rows:
        raise UsageError(
            f"{asked.file} has no row of {', '.join(asked.scenarios)}.",
            hint=f"mmrepro matrix run {asked.file} --dry-run",
        )
    return rows


def _named(name: str, wanted: Sequence[str]) -> bool:
    return "all" in wanted or name in wanted or name.partition(":")[0] in wanted


def _name(asked: MatrixRunCommand) -> str:
    return asked.night or f"{datetime.now(UTC):%Y-%m-%d}"


def _night(asked: MatrixRunCommand, settings: Settings) -> Night:
    try:
        return Night(
            id=_name(asked),
            created=Moment.now(),
            command=asked.command_line(ray="auto" if asked.ray else ""),
            mmrepro_version=mmrepro.__version__,
            machine=settings.machine or "",
            host=host_facts(gpu_models()),
            repeat=settings.repeat or REPEAT,
            confirm=CONFIRM if settings.confirm is None else settings.confirm,
            every_h=settings.every / 3600 if settings.every else None,
            shard=asked.shard,
        )
    except ValueError as error:
        raise UsageError(
            f"{asked.night!r} cannot name a night.", hint="letters, digits, dots, dashes"
        ) from error


# ---------------------------------------------------------------- --dry-run


def _dry_run(
    asked: MatrixRunCommand, given: MatrixFile, settings: Settings, folder: Path, console: Console
) -> ExitCode:
    history = read(folder) if (folder / LEDGER_FILE).is_file() else History()
    notes: list[str] = []
    if asked.resume:
        waiting = [r for r in history.nights if r.night.state is not NightState.COMPLETE]
        if not waiting:
            raise UsageError(f"{folder} has no night that is unfinished.")
        night = waiting[-1].night
        cells = list(waiting[-1].planned.values())
    else:
        cells, notes = planned_of(asked, given)
        night = _night(asked, settings)
    runs = history.find(night.id)

    def to_run(one: Planned) -> int:
        attempts = runs.attempts_of(one.cell.id) if runs is not None else []
        return left(attempts, one, repeat=night.repeat, confirm=night.confirm)

    told = dry_run(night.id, cells, to_run, Estimates(history), notes, night.shard)
    if asked.json:
        typer.echo(told.model_dump_json(indent=1))
    else:
        print_dry_run(told, console)
    return ExitCode.AS_EXPECTED
