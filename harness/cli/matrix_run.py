"""``mmrepro matrix run``, from the options to the exit code."""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import mmrepro
import typer
from mmrepro.cli.console import table_console
from mmrepro.cli.matrix_progress import MatrixProgress, print_dry_run
from mmrepro.errors import ExitCode, NoPlaceLeft, UsageError
from mmrepro.history.ledger import History, Ledger, NightRuns, read
from mmrepro.history.quarantine import Quarantine, load as load_quarantine
from mmrepro.incident.ledger import LEDGER_FILE, Night, NightState, Planned
from mmrepro.machine.facts import host_facts
from mmrepro.machine.gpu import free_devices, read_gpus
from mmrepro.matrix.disk import Bound
from mmrepro.matrix.ending import exit_code
from mmrepro.matrix.file import Cluster, MatrixFile, Rows, Settings, load
from mmrepro.matrix.local import LocalPlaces
from mmrepro.matrix.measured import Measured
from mmrepro.matrix.nights import begin, unfinished
from mmrepro.matrix.options import DEFAULT_OUT, MatrixRunCommand
from mmrepro.matrix.plan import Estimates, dry_run, plan, sharded
from mmrepro.matrix.provisions import Provisions
from mmrepro.matrix.schedule import CONFIRM, REPEAT, left
from mmrepro.matrix.session import Session, SessionOptions
from mmrepro.matrix.trial import TrialOptions, Trials, night_options
from mmrepro.matrix.work import Places
from mmrepro.records import Moment
from mmrepro.reports.dashboard import HTML_FILE
from mmrepro.reports.night import night_view, write_night
from mmrepro.reports.night_json import night_json
from mmrepro.reports.night_terminal import print_night
from mmrepro.run.key import gpu_models
from rich.console import Console

JOBS = 1


def execute(asked: MatrixRunCommand) -> ExitCode:
    """Run the night, or go on with it, or print what it would be. Raises MmreproError."""
    asked, given = asked.under(load(asked.file) if asked.file is not None else MatrixFile())
    settings = asked.settings.over(given.matrix)
    folder = Path(settings.out or DEFAULT_OUT)
    console = table_console(stderr=asked.json)
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
    with contextlib.ExitStack() as held:
        ray = held.enter_context(_connected(asked, settings)) if settings.ray else None
        ledger = held.enter_context(Ledger(folder))
        if not asked.resume:
            runs = begin(ledger, night, planned)
        elif (found := unfinished(ledger)) is not None:
            runs = found
        else:
            return _nothing_unfinished(ledger, asked, settings, folder, console)
        for note in notes:
            console.print(f"Left out: {note}.", highlight=False, soft_wrap=True)
        return _run(ledger, runs, asked, given, settings, ray, notes, console)


def _connected(
    asked: MatrixRunCommand, settings: Settings
) -> contextlib.AbstractContextManager[Any]:
    from mmrepro.cluster.machines import connected

    if asked.settings.jobs:
        raise UsageError(
            "--jobs is for one machine: those of a cluster work on one environment each.",
            hint="leave out --jobs, or --ray",
        )
    return connected(settings.ray or "")


def _run(
    ledger: Ledger,
    runs: NightRuns,
    asked: MatrixRunCommand,
    given: MatrixFile,
    settings: Settings,
    ray: Any,
    notes: Sequence[str],
    console: Console,
) -> ExitCode:
    again = asked.resumed(ledger.folder)
    options = night_options(settings, runs.night.machine)
    quarantine = _quarantine(settings, runs, console)
    display = MatrixProgress(console)
    places = (
        _here(settings, options, ledger, runs, display)
        if ray is None
        else _machines(ray, given.cluster, settings, options, display)
    )
    how = SessionOptions(settings.max_time, sliced=ray is not None, build_s=Measured().build_s)
    session = Session(ledger, runs, places, how, display)
    display.session = session
    idle = not session.todo and runs.night.state is NightState.COMPLETE
    try:
        with display:
            session.execute()
    except (KeyboardInterrupt, NoPlaceLeft):
        write_night(ledger.history, runs, ledger.folder, quarantine)
        whole = len(runs.planned) - len(session.todo)
        told = f"Night {runs.night.id}: {whole} of {len(runs.planned)} cells are whole and kept"
        typer.echo(told, err=True)
        typer.echo(f"to resume, run: {again}", err=True)
        raise
    if not (idle and (ledger.folder / HTML_FILE).exists()):
        write_night(ledger.history, runs, ledger.folder, quarantine)
    left = [planned.cell.id for planned in session.todo]
    ended = Ended(ledger.history, runs, ledger.folder, quarantine, left, again, tuple(notes), idle)
    return _tell(ended, asked, console)


def _here(
    settings: Settings,
    options: TrialOptions,
    ledger: Ledger,
    runs: NightRuns,
    display: MatrixProgress,
) -> Places:
    bound = None
    if settings.disk is not None:
        bound = Bound(settings.disk, ledger.folder / f".disk-{runs.night.id}.json")
    provisions = Provisions(options, bound, display.say)
    jobs = _jobs(settings.jobs or JOBS, runs, display.console)
    return LocalPlaces(Trials(options), provisions, jobs, runs.night.machine)


def _jobs(wanted: int, runs: NightRuns, console: Console) -> int:
    """No more than there are free GPUs, if cells want one: each run takes one for itself."""
    if wanted == 1 or all(planned.cell.device == "cpu" for planned in runs.planned.values()):
        return wanted
    free = free_devices(read_gpus())
    if free is None or free >= wanted:
        return wanted
    jobs = max(1, free)
    console.print(f"--jobs {jobs}, not {wanted}: {free} GPUs are free, and each run takes one.")
    return jobs


def _machines(
    ray: Any, cluster: Cluster, settings: Settings, options: TrialOptions, display: MatrixProgress
) -> Places:
    from mmrepro.cluster.machines import Machines, Needs
    from mmrepro.cluster.remote import Engines

    needs = Needs(cpus=cluster.cpus, gpus=cluster.gpus, memory=cluster.memory)
    return Machines(ray, Engines(options, settings.disk), needs, display.say)


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
    shown = night_view(ended.history, ended.runs, ended.quarantine)
    code = exit_code(
        ended.runs,
        lambda cell: ended.quarantine.entry_for(cell, night.created.wall) is not None,
        ended.left,
    )
    if asked.json:
        document = json.loads(night_json(shown))
        document["run"] = {
            "folder": str(ended.folder),
            "exit_code": int(code),
            "idle": ended.idle,
            "left": list(ended.left),
            "left_out": list(ended.notes),
            "resume": ended.resume if ended.left else "",
        }
        typer.echo(json.dumps(document, indent=1, ensure_ascii=False))
    else:
        print_night(shown, console)
    if ended.idle:
        console.print(f"Night {night.id} is complete: nothing was left to run.", highlight=False)
    else:
        console.print(f"Reports: {ended.folder / HTML_FILE}", highlight=False, soft_wrap=True)
    if ended.left:
        console.print(
            f"{len(ended.left)} cells have runs left; to resume, run: {ended.resume}",
            highlight=False,
            soft_wrap=True,
        )
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
