"""The process that owns an engine: it ends everything of a run, whatever happens to the harness.

Started by :mod:`mmrepro.supervise.client` as a script, or forked by a warm parent
(:mod:`mmrepro.supervise.parent`), which it then forks for the engine in turn. It is a child
subreaper, so that whatever the engine leaves behind becomes its child; the end of its standard
input means that the harness is gone (SIGKILL included). A guardian, forked at the start, does the
same for the supervisor: it holds the other end of a pipe, and when the supervisor vanishes it kills
all that carries the run's marker.

Standard library only; no threads; all state in one object.
"""

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
from collections.abc import Callable
from types import FrameType
from typing import Protocol

if __package__:
    from mmrepro.base import processes as processes
    from mmrepro.supervise.protocol import LaunchOrder, StopReport
else:  # run under the engine's interpreter, or as a script: no package is imported
    _HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    sys.path[:0] = [_HERE, f"{_HERE}/../base"]
    import processes  # type: ignore[import-not-found,no-redef]
    from protocol import LaunchOrder, StopReport  # type: ignore[import-not-found,no-redef]

    del sys.path[:2]

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
LIBC = ctypes.CDLL(None, use_errno=True)
SCAN_INTERVAL_S = 0.5
KILL_TIMEOUT_S = 5.0


class Launched(Protocol):
    """The engine's first process, a child of this one."""

    @property
    def pid(self) -> int: ...


Launch = Callable[[LaunchOrder, int], Launched]
"""Starts the engine; its second argument is the file descriptor for its stdout and stderr."""


class Supervisor:
    def __init__(
        self, order: LaunchOrder, shm_before: set[str], guardian: tuple[int, int], launch: Launch
    ) -> None:
        self.order = order
        self.shm_before = shm_before
        self.guardian, self.guard_pipe = guardian
        self.launch = launch
        self.seen: dict[int, int] = {}
        self.shm: set[str] = set()
        self.detached = False
        self.engine: Launched | None = None
        self.exit_code: int | None = None
        self.stop_asked = False
        self.grace_s = order.grace_s

    # -------------------------------------------------------------- life

    def run(self) -> None:
        LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        self._launch()
        while not self.stop_asked:
            self._listen(SCAN_INTERVAL_S)
            self._reap()
            self.scan()
            if self.exit_code is not None and self.detached:
                break  # nobody listens any more, and the engine ended by itself
        report = self.stop()
        self.say({"event": "stopped", "report": report.__dict__})

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.stop_asked = True

    def _launch(self) -> None:
        os.makedirs(self.order.tmp, mode=0o700, exist_ok=True)  # noqa: PTH103
        if self.order.preface:
            shutil.copyfile(self.order.preface, self.order.log)
        # A plain number: a forked engine leaves these frames with its files closed behind them.
        log = os.open(self.order.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        self.engine = self.launch(self.order, log)
        os.close(log)
        pids = {"pid": self.engine.pid, "supervisor": os.getpid(), "guardian": self.guardian}
        self.say({"event": "started", **pids})

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
            self.say({"event": "detached"})
        elif b"stop" in data:
            self.stop_asked = True
            with contextlib.suppress(ValueError, IndexError):  # "stop SECONDS" sets the grace
                self.grace_s = float(data.split(b"stop", 1)[1].split()[0])
        elif not data:
            self.stop_asked = True
            self.grace_s = 0.0

    def _reap(self) -> None:
        """Collect ended children, adopted ones included."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if self.engine is not None and pid == self.engine.pid:
                self.exit_code = os.waitstatus_to_exitcode(status)
                self.say({"event": "exited", "code": self.exit_code})

    def scan(self) -> None:
        """Remember every process of the run and the shared memory that it uses."""
        self.seen.update(processes.descendants(os.getpid()))
        self.seen.pop(self.guardian, None)
        for pid, start in self.seen.items():
            if processes.alive(pid, start):
                self._note_shm(pid)

    def _note_shm(self, pid: int) -> None:
        """Remember shared memory that the run made; what was there before belongs to others.

        The guardian is told as well: when it must act, the processes that mapped it are gone.
        """
        mapped = processes.shared_memory(pid) - self.shm
        new = {entry for entry in mapped if processes.shm_name(entry) not in self.shm_before}
        self.shm |= new
        with contextlib.suppress(OSError):
            for entry in new:
                os.write(self.guard_pipe, entry.encode() + b"\n")

    # -------------------------------------------------------------- end

    def running(self) -> dict[int, int]:
        running = processes.descendants(os.getpid()) | processes.marked(self.order.marker)
        running |= {p: s for p, s in self.seen.items() if processes.alive(p, s)}
        running.pop(self.guardian, None)
        return running

    def stop(self) -> StopReport:
        """SIGTERM to the engine, then SIGKILL to all that is left of the run.

        An orphaned run is not asked first: the polite way leaves a window in which a process
        makes a semaphore and dies before it was seen.
        """
        began = time.monotonic()
        report = StopReport()
        self.scan()
        if self.grace_s > 0 and self.engine is not None and self.exit_code is None:
            _signal(self.engine.pid, signal.SIGTERM)
            _signal(self.engine.pid, signal.SIGCONT)
        deadline = began + self.grace_s
        while self.running() and time.monotonic() < deadline:
            self.scan()
            self._reap()
            time.sleep(0.05)
        deadline = time.monotonic() + KILL_TIMEOUT_S
        forced: dict[int, str] = {}
        while (left := self.running()) and time.monotonic() < deadline:
            for pid in left:
                forced.setdefault(pid, processes.label(pid))
                self._note_shm(pid)
            for pid in left:
                _signal(pid, signal.SIGKILL)
            time.sleep(0.02)
            self._reap()
        # Its first thread may be gone from sight while others still end: then there is no code yet.
        while self.engine is not None and self.exit_code is None and time.monotonic() < deadline:
            self._reap()
            time.sleep(0.005)
        report.exit_code = self.exit_code
        report.forced = list(forced.values())
        report.left = [processes.label(pid) for pid in self.running()]
        for entry in sorted(self.shm):
            if os.path.exists(entry):  # noqa: PTH110
                with contextlib.suppress(OSError):
                    os.unlink(entry)  # noqa: PTH108
                    report.shm_removed.append(entry)
        shutil.rmtree(self.order.tmp, ignore_errors=True)
        report.left += [p for p in (*self.shm, self.order.tmp) if os.path.exists(p)]  # noqa: PTH110
        report.seconds = round(time.monotonic() - began, 3)
        return report

    def say(self, message: dict[str, object]) -> None:
        with contextlib.suppress(OSError):
            os.write(1, (json.dumps(message) + "\n").encode())


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, number)


def die_with_parent() -> None:
    """The kernel kills this process when the one that forked it ends."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def guard(order: LaunchOrder, shm_before: set[str]) -> tuple[int, int]:
    """Fork a guardian that outlives a SIGKILL of the supervisor.

    It finds the run's processes by their marker alone: the tree is gone by then. Returns its pid
    and a pipe to it, which takes names of shared memory, one a line.
    """
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid:
        os.close(ours)
        return pid, theirs  # the pipe stays open until this process ends, however it ends
    os.close(theirs)
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    for stream in (0, 1, 2):
        os.dup2(os.open(os.devnull, os.O_RDWR), stream)
    told = b""
    while data := os.read(ours, 65536):
        told += data
    shm = set(told.decode("utf-8", "replace").splitlines())
    deadline = time.monotonic() + KILL_TIMEOUT_S
    while (left := processes.marked(order.marker)) and time.monotonic() < deadline:
        for pid in left:
            mapped = processes.shared_memory(pid)
            shm |= {entry for entry in mapped if processes.shm_name(entry) not in shm_before}
        for pid in left:
            _signal(pid, signal.SIGKILL)
        time.sleep(0.02)
    for entry in shm:
        with contextlib.suppress(OSError):
            os.unlink(entry)  # noqa: PTH108
    shutil.rmtree(order.tmp, ignore_errors=True)
    os._exit(0)


def first_line() -> str:
    """The first line of standard input, and not a byte more: what follows is for ``select``."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            sys.exit("the harness ended before it said what to start")
        line += byte
    return line.decode()


def execute(order: LaunchOrder, log: int) -> Launched:
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


def main(launch: Launch = execute) -> None:
    """Take an order from standard input, and see to the engine until its end."""
    order = LaunchOrder.from_line(first_line())
    shm_before = processes.shm_names()
    supervisor = Supervisor(order, shm_before, guard(order, shm_before), launch)
    try:
        supervisor.run()
    except Exception as error:
        supervisor.say({"event": "failed", "why": f"{type(error).__name__}: {error}"})
        supervisor.stop()
        sys.exit(1)


if __name__ == "__main__":
    main()
