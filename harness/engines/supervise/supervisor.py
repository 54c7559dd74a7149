"""The processes that own an engine: they end all of a run, whatever happens to the
harness.

    guardian ── supervisor ── engine ── what the engine starts

Started as a script (``__init__``), or forked by a fork server (``fork_server``), which
then forks the engine in turn. Guardian and supervisor are child subreapers: a process
whose parent ended becomes the supervisor's child, and the guardian's once the
supervisor is gone. A run therefore owns what descends from them, and what the
supervisor wrote down: pairs of process id and start time, since the kernel gives an id
to another process later. The supervisor ends the run when its standard input ends,
which means that the harness is gone; the guardian ends it when the supervisor is gone,
after a SIGKILL as well."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import NoReturn, Protocol

if __package__:
    from mmrepro.base import processes as processes
else:  # run under the engine's interpreter, or as a script: no package is imported
    sys.path.insert(0, f"{os.path.dirname(os.path.abspath(__file__))}/../../base")  # noqa: PTH100, PTH120
    import processes  # type: ignore[import-not-found,no-redef]

    del sys.path[0]

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None, use_errno=True)
_ASKING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
SOCKET, FACTS = "socket", "facts.json"
"""In a fork server's folder."""
_FACTS_BYTES = 1 << 16
_SCAN_INTERVAL_S = 0.5
_KILL_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Entry:
    """What an engine's process runs, as ``python -m MODULE ARGUMENTS`` would.

    ``path`` holds folders that come first on the module path.
    """

    module: str
    arguments: list[str]
    path: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class LaunchOrder:
    """The first line that the supervisor reads.

    ``argv`` is the engine's command line; with ``entry`` nothing is executed, the
    supervisor's own process is forked and runs that. ``preface``: a file whose contents
    come first in the log, "" for none. ``log`` receives stdout and stderr of the
    engine; in a box, which does not see that path, it is the open file ``log_fd``.
    ``tmp`` is the run's own temporary folder, removed at the end; ``grace_s`` is the
    time between SIGTERM and SIGKILL."""

    argv: list[str]
    env: dict[str, str]
    cwd: str
    log: str
    tmp: str
    grace_s: float = 10.0
    entry: Entry | None = None
    preface: str = ""
    log_fd: int = -1

    @classmethod
    def from_line(cls, line: str) -> LaunchOrder:
        fields = json.loads(line)
        entry = fields.pop("entry", None)
        return cls(**fields, entry=Entry(**entry) if entry else None)


@dataclass
class StopReport:
    """What the end of an engine looked like.

    ``forced``: processes that needed SIGKILL; ``shm_removed``: /dev/shm entries that
    the engine left and the supervisor removed; ``left``: what is still there, which
    should be nothing."""

    exit_code: int | None = None
    forced: list[str] = field(default_factory=list)
    shm_removed: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    seconds: float = 0.0


@dataclass(frozen=True)
class ForkServerOrder:
    """The first line that a fork server reads.

    ``module`` is what its servers run; ``preload`` what is imported besides, as far as
    the release has it; ``idle_s``: it ends when nothing was started for so long; 0:
    with its owner, who holds its standard input open.

    In a box, which does not see the fork server's folder, ``listener`` is the listening
    socket and ``facts_fd`` the open file of its facts; else both are -1."""

    module: str
    preload: list[str]
    path: list[str] = field(default_factory=list)
    idle_s: float = 0.0
    label: str = ""
    listener: int = -1
    facts_fd: int = -1

    @property
    def boxed(self) -> bool:
        """Whether it runs in a box."""
        return self.listener >= 0


@dataclass
class ForkServerFacts:
    """What became of a fork server; written anew whenever it has forked a server.

    Attributes:
        born: its start time in clock ticks, so that no later process with the same id
            is taken for it.
        label, idle_s: of its order.
        imports_s: seconds that the imports took.
        memory_bytes: its proportional share of memory (PSS) after them.
        threads: number of threads by name, its own first one apart.
        files: what is open besides the standard streams.
        missing: modules that the release does not have, or that could not be imported.
        served: servers that were forked.
        refused: why nothing can be forked from it; "" where it can.
        cold: that is a thread, which a fork in start mode ``fork`` would meet as well.
    """

    pid: int
    born: int
    label: str
    idle_s: float
    imports_s: float = 0.0
    memory_bytes: int = 0
    threads: dict[str, int] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    served: int = 0
    refused: str = ""
    cold: bool = False

    def write(self, descriptor: int = -1) -> None:
        """Into the working directory, whole or not at all; or into an open file, in one
        write.

        An open file always has the same length, so that a reader never sees a part of
        it."""
        if descriptor >= 0:
            os.pwrite(
                descriptor, json.dumps(asdict(self)).encode().ljust(_FACTS_BYTES), 0
            )
            return
        temporary = Path(FACTS + ".tmp")
        temporary.write_text(json.dumps(asdict(self)), encoding="utf-8")
        temporary.replace(FACTS)


class _Launched(Protocol):
    """The engine's first process, a child of this one."""

    @property
    def pid(self) -> int: ...


_Launch = Callable[[LaunchOrder, int], _Launched]
"""Starts the engine; its second argument is the file descriptor for its stdout and
stderr."""


class _Owned:
    """What a run owns: its processes, as {pid: start time}, and its shared memory.

    ``notes``: the pipe to the guardian, which gets a line of each; -1: this is the
    guardian."""

    def __init__(self, shm_before: set[str], notes: int = -1) -> None:
        self.shm_before = shm_before
        self.notes = notes
        self.known: dict[int, int] = {}
        self.shm: set[str] = set()

    def running(self) -> dict[int, int]:
        """Living descendants, and those that were one: what descends from a process
        whose first thread has ended is not found below it while its other threads
        run."""
        found = processes.descendants(os.getpid())
        self._note(f"{pid} {born}" for pid, born in found.items() - self.known.items())
        both = (self.known | found).items()
        self.known = {pid: born for pid, born in both if processes.alive(pid, born)}
        return self.known

    def scan(self) -> dict[int, int]:
        """Return ``running``, after their shared memory was written down: it is found
        through the processes that map it. What was there before the run belongs to
        others."""
        running = self.running()
        for pid in running:
            mapped = processes.shared_memory(pid) - self.shm
            new = {
                path
                for path in mapped
                if processes.shm_name(path) not in self.shm_before
            }
            self._note(new)
            self.shm |= new
        return running

    def _note(self, lines: Iterable[str]) -> None:
        if self.notes >= 0:
            with contextlib.suppress(OSError):  # the guardian was killed
                for line in lines:
                    os.write(self.notes, f"{line}\n".encode())

    def take(self, notes: str) -> None:
        """Read what a supervisor wrote down."""
        for line in notes.splitlines():
            if line.startswith(processes.SHM):
                self.shm.add(line)
            else:
                pid, born = map(int, line.split())
                self.known[pid] = born

    def kill(self) -> dict[int, str]:
        """SIGKILL to all that runs; return what that was, by process id."""
        labels = {pid: processes.label(pid) for pid in self.scan()}
        for pid in labels:
            _signal(pid, signal.SIGKILL)
        return labels

    def remove_shm(self) -> list[str]:
        """Remove the shared memory that is left, and return its paths."""
        removed = []
        for path in sorted(self.shm):
            with contextlib.suppress(OSError):
                os.unlink(path)  # noqa: PTH108
                removed.append(path)
        return removed


class _Supervisor:
    def __init__(
        self, order: LaunchOrder, owned: _Owned, launch: _Launch, log: int = -1
    ) -> None:
        """``log``: the open file that the engine writes to; -1: the order's path is
        opened."""
        self.order = order
        self.log = log
        self.owned = owned
        self.launch = launch
        self.detached = False
        self.engine: _Launched | None = None
        self.exit_code: int | None = None
        self.stop_asked = False
        self.grace_s = order.grace_s

    def run(self) -> None:
        for number in _ASKING:
            signal.signal(number, self._on_signal)
        self._launch()
        while not self.stop_asked:
            self._listen(_SCAN_INTERVAL_S)
            self._reap()
            self.owned.scan()
            if self.exit_code is not None and self.detached:
                break  # nobody listens any more, and the engine ended by itself
        self.say("stopped", report=asdict(self.stop()))

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.stop_asked = True

    def _launch(self) -> None:
        os.makedirs(self.order.tmp, mode=0o700, exist_ok=True)  # noqa: PTH103
        if self.order.preface:
            shutil.copyfile(self.order.preface, self.order.log)
        # A plain number: a forked engine leaves these frames with its files closed
        # behind them.
        log = self.log
        if log < 0:
            log = os.open(self.order.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        self.engine = self.launch(self.order, log)
        os.close(log)
        pids = {
            "engine": self.engine.pid,
            "supervisor": os.getpid(),
            "guardian": os.getppid(),
        }
        self.say(
            "started",
            **{name: [pid, processes.born(pid)] for name, pid in pids.items()},
        )

    def _listen(self, seconds: float) -> None:
        """Read one command, or notice that the harness is gone."""
        try:
            ready, _, _ = select.select([] if self.detached else [0], [], [], seconds)
        except InterruptedError:
            return
        if not ready:
            return
        data = os.read(0, 4096)
        if b"detach" in data:
            self.detached = True
            self.say("detached")
        elif b"stop" in data:
            self.stop_asked = True
            # "stop SECONDS" sets the grace.
            with contextlib.suppress(ValueError, IndexError):
                self.grace_s = float(data.split(b"stop", 1)[1].split()[0])
        elif not data:
            self.stop_asked = True
            self.grace_s = 0.0

    def _reap(self) -> None:
        """Collect ended children, adopted ones included."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if self.engine is not None and pid == self.engine.pid:
                    self.exit_code = os.waitstatus_to_exitcode(status)
                    self.say("exited", code=self.exit_code)

    def stop(self) -> StopReport:
        """SIGTERM to the engine, then SIGKILL to all that is left of the run.

        An orphaned run is not asked first: the polite way leaves a window in which a
        process makes a semaphore and dies before it was found."""
        began = time.monotonic()
        self.owned.scan()
        if self.grace_s > 0 and self.engine is not None and self.exit_code is None:
            _signal(self.engine.pid, signal.SIGTERM)
            _signal(self.engine.pid, signal.SIGCONT)
        deadline = began + self.grace_s
        while self.owned.scan() and time.monotonic() < deadline:
            self._reap()
            time.sleep(0.05)
        deadline = time.monotonic() + _KILL_TIMEOUT_S
        forced: dict[int, str] = {}
        while (killed := self.owned.kill()) and time.monotonic() < deadline:
            forced = killed | forced
            time.sleep(0.02)
            self._reap()
        # Its first thread may be gone from sight while others still end: then there is
        # no code yet.
        while (
            self.engine is not None
            and self.exit_code is None
            and time.monotonic() < deadline
        ):
            self._reap()
            time.sleep(0.005)
        removed = self.owned.remove_shm()
        shutil.rmtree(self.order.tmp, ignore_errors=True)
        paths = [*sorted(self.owned.shm), self.order.tmp]
        left_over = [processes.label(pid) for pid in self.owned.running()]
        left_over += [path for path in paths if os.path.exists(path)]  # noqa: PTH110
        seconds = round(time.monotonic() - began, 3)
        return StopReport(
            self.exit_code, list(forced.values()), removed, left_over, seconds
        )

    def say(self, event: str, **facts: object) -> None:
        with contextlib.suppress(OSError):
            os.write(1, (json.dumps({"event": event, **facts}) + "\n").encode())


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, number)


def die_with_parent() -> None:
    """The kernel kills this process when the one that forked it ends."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def stand_aside() -> None:
    """Leave the standard streams to others, and let no terminal end this process."""
    for number in _ASKING:
        signal.signal(number, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    os.close(null)


def _guard(notes: int, owned: _Owned, tmp: str) -> NoReturn:
    """Outlive the supervisor, a child of this process, and end what it leaves of its
    run.

    ``notes``: the pipe that ends with it, however it ends.
    """
    stand_aside()
    noted = b""
    while data := os.read(notes, 65536):
        noted += data
    owned.take(noted.decode("utf-8", "replace"))
    deadline = time.monotonic() + _KILL_TIMEOUT_S
    # One look may miss a process that changes its parent meanwhile: only a guardian
    # without any child, which the kernel reports as an error, has nothing below it.
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < deadline:
            owned.kill()
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            time.sleep(0.02)
    owned.remove_shm()
    shutil.rmtree(tmp, ignore_errors=True)
    os._exit(0)


def first_line() -> str:
    """The first line of standard input, and not a byte more: what follows is for
    ``select``."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            sys.exit("the harness ended before it gave its order")
        line += byte
    return line.decode()


def execute(order: LaunchOrder, log: int) -> _Launched:
    """Start the engine's own command."""
    return subprocess.Popen(
        order.argv,
        env=order.env,
        cwd=order.cwd,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
        preexec_fn=die_with_parent,
    )


def main(launch: _Launch = execute, log: int = -1) -> None:
    """Take an order from standard input, become its guardian, and fork its supervisor.

    ``log``: the open file for what the engine writes, where it came with the order; -1:
    it did not."""
    order = LaunchOrder.from_line(first_line())
    log = log if log >= 0 else order.log_fd
    shm_before = processes.shm_names()
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    ours, theirs = os.pipe()
    if os.fork():
        os.close(theirs)
        if log >= 0:
            os.close(log)
        _guard(ours, _Owned(shm_before), order.tmp)
    os.close(ours)
    os.setsid()  # what is sent to the supervisor's group does not reach the guardian
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # a fork does not inherit it
    supervisor = _Supervisor(order, _Owned(shm_before, theirs), launch, log)
    try:
        supervisor.run()
    except Exception as error:
        supervisor.say("failed", why=f"{type(error).__name__}: {error}")
        supervisor.stop()
        sys.exit(1)


if __name__ == "__main__":
    main()
