"""One run of a cell: `mmrepro run` in a process of its own, and what became of it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any, Protocol

from mmrepro.base.errors import ExitCode
from mmrepro.base.machine import Device, die_with_parent
from mmrepro.base.options import ONLY_ARGUMENTS, Command
from mmrepro.base.records import Moment
from mmrepro.base.units import duration
from mmrepro.failure.documents import INCIDENT_FILE, Attempt, Cell, Incident, Lost, Role
from mmrepro.runs import RunCommand, StartMode
from mmrepro.scenario import Scenario
from pydantic import ValidationError

GRACE_S = 30.0
"""Between SIGTERM, on which a run writes what it has and ends its engine, and
SIGKILL."""


def spawn(
    arguments: Sequence[str], variables: Mapping[str, str], **how: Any
) -> subprocess.Popen[bytes]:
    """Start ``mmrepro ARGUMENTS``; as :func:`spawn_program`. What a file or a variable
    says of options is in the arguments already, where it holds."""
    # -P: the current folder may be a stranger's, and nothing is imported from it.
    command = [sys.executable, "-P", "-m", "mmrepro", *arguments]
    return spawn_program(command, {**variables, **ONLY_ARGUMENTS}, **how)


def spawn_program(
    command: Sequence[str],
    variables: Mapping[str, str],
    *,
    nice: int = 0,
    stdout: int | IO[bytes] = subprocess.DEVNULL,
    stderr: int | IO[bytes] = subprocess.DEVNULL,
) -> subprocess.Popen[bytes]:
    """Start ``command``. It is killed with the thread that calls this.

    In a session of its own: a Ctrl-C on the terminal is the caller's to pass on.
    """

    def prepared() -> None:
        die_with_parent()
        os.nice(nice)

    return subprocess.Popen(
        command,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
        preexec_fn=prepared,
    )


def end(children: Collection[subprocess.Popen[bytes]], grace_s: float) -> None:
    """End them: SIGTERM, and SIGKILL for those that are left after ``grace_s``
    seconds."""
    for child in children:
        # Not SIGINT, which a shell's background job and its children ignore.
        child.terminate()

    deadline = time.monotonic() + grace_s
    for child in children:
        try:
            child.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


class Children:
    """Those in progress. Any thread may start one, and any may end them all."""

    def __init__(self, grace_s: float = GRACE_S) -> None:
        self.stopped = False
        self._grace_s = grace_s
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def running(
        self, start: Callable[[], subprocess.Popen[bytes]]
    ) -> Iterator[subprocess.Popen[bytes]]:
        """A child that ``start`` starts; it has ended when the block is left.

        Raises:
            KeyboardInterrupt: :meth:`stop` was called before.
        """
        with self._lock:
            if self.stopped:
                raise KeyboardInterrupt
            child = start()
            self._running.add(child)

        try:
            yield child
        finally:
            # Left by an exception: what it started would live on.
            if child.poll() is None:
                end([child], self._grace_s)
            with self._lock:
                self._running.discard(child)

    def stop(self) -> None:
        """End them, and start none any more."""
        with self._lock:
            self.stopped = True
            running = list(self._running)

        end(running, self._grace_s)


TIMEOUT_S = 600.0
BUILD_S = 1800.0
"""For the environment, before a run's own time limit begins."""
_LAST_WORDS = 2000
ENDED_SILENTLY = "mmrepro run ended with"
"""Before the exit code of a run that left nothing and said nothing: its scenario ended
it."""


class Making(Protocol):
    """How a cell is run, and what became of it. Can be pickled."""

    @property
    def file(self) -> str:
        """The document that a run leaves in its folder."""

    @property
    def starts(self) -> int:
        """Servers that one run may start one after another; each may take the time
        limit."""

    def command(self, cell: Cell, options: TrialOptions) -> Command:
        """The options of the command that runs ``cell``."""

    def outcome(self, folder: Path, code: int | None, words: str) -> dict[str, object]:
        """The part of an attempt that says what became of it, by what is in ``folder``;
        ``code`` and ``words``: as of :func:`outcome_of`."""


@dataclass(frozen=True)
class ByRun:
    """A scenario, by ``mmrepro run``."""

    file: str = INCIDENT_FILE
    starts: int = 1

    def command(self, cell: Cell, options: TrialOptions) -> RunCommand:
        return run_options(cell, options)

    def outcome(self, folder: Path, code: int | None, words: str) -> dict[str, object]:
        return outcome_of(incident_in(folder), code, words)


@dataclass(frozen=True)
class TrialOptions:
    """What is the same for all cells."""

    timeout_s: float = TIMEOUT_S
    start_mode: StartMode = StartMode.AUTO
    machine: str = ""
    """Label of this machine, for the ledger."""
    env: Mapping[str, str] = field(default_factory=dict)
    """More variables for the run."""
    commit_dates: Mapping[str, str] = field(default_factory=dict)
    """When each commit was made, RFC 3339: its requirements are resolved as of then."""
    making: Making = field(default_factory=ByRun)


def variables(options: TrialOptions) -> dict[str, str]:
    return {**os.environ, "NO_COLOR": "1", **options.env}


def run_options(cell: Cell, options: TrialOptions) -> RunCommand:
    return RunCommand(
        scenario=cell.scenario,
        variant=cell.variant,
        release=cell.release,
        commit=cell.commit,
        commit_date=options.commit_dates.get(cell.commit, ""),
        device=cell.device,
        mitigations=cell.mitigations,
        flips=cell.flips,
        server_args=cell.server_args,
        options=cell.options,
        timeout_s=options.timeout_s,
        start_mode=options.start_mode,
    )


def cell_of(scenario: Scenario, run: RunCommand, device: Device, **which: Any) -> Cell:
    """The cell of ``run``. ``which``: its release or commit, and flips.

    A file below the home folder is named relative to the current one: a ledger is made
    to be shown."""
    name = run.scenario or scenario.name
    if Path(name).is_absolute() and Path(name).is_relative_to(Path.home()):
        name = os.path.relpath(name)
    return Cell(
        scenario=name,
        variant=run.variant,
        engine=scenario.engine,
        device=device,
        mitigations=run.mitigations,
        server_args=run.server_args,
        options=run.options,
        **which,
    )


class Trials:
    """Runs cells, from any thread, and can end those in progress.

    Each run is a child of the thread that called :meth:`run` and is killed with it; its
    engine is its supervisor's, which ends it then."""

    def __init__(self, options: TrialOptions) -> None:
        self.options = options
        self._children = Children()

    def run(
        self,
        cell: Cell,
        folder: Path,
        root: Path,
        *,
        night: str,
        index: int,
        role: Role,
    ) -> Attempt:
        """Run ``cell`` into ``folder``, a new one below ``root``. Never raises for a
        failed run.

        Raises:
            KeyboardInterrupt: :meth:`stop` was called; the folder holds a partial
                incident.
        """
        began = time.monotonic()
        created = Moment.now()
        making = self.options.making
        made = making.command(cell, self.options)
        code, words = self._child(made, folder)
        # What was ended from outside says nothing of the cell.
        if self._children.stopped:
            raise KeyboardInterrupt

        has_left_one = (folder / making.file).is_file()
        attempt = Attempt(
            night=night,
            cell=cell.id,
            index=index,
            role=role,
            created=created,
            seconds=round(time.monotonic() - began, 2),
            machine=self.options.machine,
            command=made.command_line(),
            incident=str(folder.relative_to(root)) if has_left_one else "",
        )
        return attempt.model_copy(update=making.outcome(folder, code, words))

    def stop(self) -> None:
        """End all runs in progress; those that come later are not started."""
        self._children.stop()

    def _child(self, made: Command, folder: Path) -> tuple[int | None, str]:
        """Exit code (None: too late, and killed) and the last words on stderr."""
        arguments = made.argv(out=folder, json=True)
        limit_s = BUILD_S + self.options.making.starts * self.options.timeout_s
        start = partial(
            spawn, arguments, variables(self.options), stderr=subprocess.PIPE
        )
        with self._children.running(start) as child:
            try:
                _, errors = child.communicate(timeout=limit_s)
            except subprocess.TimeoutExpired:
                child.kill()
                child.communicate()
                return None, f"it did not end within {duration(limit_s)}"

        text = errors.decode("utf-8", "replace")
        return child.returncode, text[-_LAST_WORDS:].strip()


def outcome_of(
    incident: Incident | None, code: int | None, words: str
) -> dict[str, object]:
    """The part of an attempt that tells what became of it.

    Args:
        code: the exit code of `mmrepro run`; None: it was killed, being late.
        words: its last ones on stderr.
    """
    if incident is None:
        kind = Lost.USAGE if code == ExitCode.USAGE else Lost.INFRASTRUCTURE
        return {"lost": kind, "error": words or f"{ENDED_SILENTLY} {code}"}

    facts: dict[str, object] = {
        "key": incident.key,
        "parts": incident.decided_by,
        "fidelity": incident.fidelity,
        "start_mode": incident.engine.start_mode,
        "runner": incident.engine.runner,
        "gpus": incident.host.gpus,
    }
    verdict = incident.verdict
    # A run that broke off after its verdict (its engine could not be ended, say) proves
    # nothing.
    if verdict is None or incident.state != "complete":
        kinds = {"UnloadableWheel": Lost.UNLOADABLE, "RunTimeout": Lost.TIMEOUT}
        kind = kinds.get(incident.failure_class, Lost.INFRASTRUCTURE)
        error = incident.failure or words or "no verdict"
        return {**facts, "lost": kind, "error": error}

    return {
        **facts,
        "outcome": verdict.outcome,
        "expected": verdict.expected,
        "explanation": verdict.explanation,
        "conditions": {known.id: known.truth for known in verdict.conditions},
    }


def incident_in(folder: Path) -> Incident | None:
    """What a run left there; None: nothing that can be read."""
    try:
        return Incident.model_validate_json((folder / INCIDENT_FILE).read_bytes())
    except (OSError, ValidationError):
        return None
