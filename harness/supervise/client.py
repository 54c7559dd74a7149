"""The harness's side of the supervisor: start an engine, ask after it, end it."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast

from mmrepro.base import processes
from mmrepro.errors import SupervisorError
from mmrepro.machine.files import refuse_other_kinds
from mmrepro.supervise import supervisor
from mmrepro.supervise.protocol import MARKER_VARIABLE, Entry, LaunchOrder, StopReport

TMP_PLACEHOLDER = "{run-tmp}"
"""In the value of a variable: the run's temporary folder."""
Child = subprocess.Popen[bytes]
START_TIMEOUT_S = 30.0
STOP_MARGIN_S = 15.0


def free_port() -> int:
    """A loopback port that is free right now (bound to 0 and let go)."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class EngineProcess:
    """An engine under its supervisor.

    Attributes:
        pid: the supervisor's: ending it ends the engine.
        engine_pid: of the engine's first process.
    """

    def __init__(
        self, order: LaunchOrder, orders: BinaryIO, events: BinaryIO, child: Child | None = None
    ) -> None:
        """``orders`` and ``events`` lead to the supervisor, ``child`` if it is one of ours."""
        self._order = order
        self._orders = orders
        self._messages = events
        self._child = child
        self._events: queue.Queue[dict[str, Any]] = queue.Queue()
        self._report: StopReport | None = None
        self._exit_code: int | None = None
        self._gone = False
        self._guardian = 0
        self.pid = child.pid if child is not None else 0
        self.engine_pid = 0
        self.log = Path(order.log)
        threading.Thread(target=self._read, name="supervisor", daemon=True).start()

    def begin(self) -> None:
        """Send the order, and return once the engine's process exists. Raises SupervisorError."""
        self._write(self._order.to_line().encode())
        if self._wait_for("started", START_TIMEOUT_S) is None:
            self._kill()
            raise SupervisorError("The supervisor did not start the engine in time.")

    @property
    def exit_code(self) -> int | None:
        """Exit code of the engine's first process, if it ended by itself."""
        self._drain()
        if self._gone and self._exit_code is None and self._report is None:
            raise SupervisorError("The supervisor of the engine ended, and the engine with it.")
        return self._exit_code

    def process_ids(self) -> list[int]:
        """All living processes of the engine."""
        return [
            pid
            for pid in processes.descendants(self.pid)
            if pid != self._guardian and processes.name(pid)
        ]

    def detach(self) -> None:
        """Let the engine outlive the harness (``--keep-server``)."""
        self._write(b"detach\n")
        self._wait_for("detached", START_TIMEOUT_S)

    def stop(self, grace_s: float | None = None) -> StopReport:
        """End the engine and all that it left; safe to call twice.

        Args:
            grace_s: seconds between SIGTERM and SIGKILL; those of the start by default.
        """
        self._drain()  # it may have ended by itself, and said how
        if self._report is None:
            grace_s = self._order.grace_s if grace_s is None else grace_s
            self._write(f"stop {grace_s}\n".encode())
            self._wait_for("stopped", grace_s + STOP_MARGIN_S)
        if self._report is None:
            self._report = self._end_by_force()
        return self._report

    def _end_by_force(self) -> StopReport:
        """The supervisor did not answer: kill it, and its guardian cleans up."""
        self._kill()
        deadline = time.monotonic() + 10
        while (left := processes.marked(self._order.marker)) and time.monotonic() < deadline:
            time.sleep(0.05)
        return StopReport(
            forced=["the supervisor did not answer and was killed"],
            left=[processes.label(pid) for pid in left],
        )

    def _kill(self) -> None:
        if self.pid:
            with contextlib.suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)
        if self._child is not None:
            self._child.wait(5)

    def _write(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # it ended; `_wait_for` will tell
            self._orders.write(data)
            self._orders.flush()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            for line in self._messages:
                with contextlib.suppress(ValueError):
                    self._events.put(json.loads(line))
        self._events.put({"event": "gone"})

    def _take(self, message: dict[str, Any]) -> None:
        if message["event"] == "started":
            self.engine_pid = int(message["pid"])
            self.pid, self._guardian = int(message["supervisor"]), int(message["guardian"])
        elif message["event"] == "exited":
            self._exit_code = int(message["code"])
        elif message["event"] == "stopped":
            self._report = StopReport(**message["report"])
        elif message["event"] == "gone":
            self._gone = True

    def _drain(self) -> None:
        while True:
            try:
                self._take(self._events.get_nowait())
            except queue.Empty:
                return

    def _wait_for(self, event: str, timeout_s: float) -> dict[str, Any] | None:
        deadline = time.monotonic() + timeout_s
        while not self._gone and (left := deadline - time.monotonic()) > 0:
            try:
                message = self._events.get(timeout=left)
            except queue.Empty:
                break
            self._take(message)
            if message["event"] == event:
                return message
            if message["event"] in ("failed", "gone"):
                if event == "started":
                    raise SupervisorError(
                        f"The engine could not be started: {message.get('why', 'no reason given')}."
                    )
                break
        return None


def start_engine(
    argv: list[str], env: dict[str, str], *, cwd: Path, log: Path, grace_s: float = 10.0
) -> EngineProcess:
    """Start ``argv`` under a supervisor of its own and return once the process exists.

    Raises:
        SupervisorError: the supervisor or the engine's command could not be started.
    """
    order = launch_order(argv, env, cwd=cwd, log=log, grace_s=grace_s)
    try:
        child = subprocess.Popen(
            [sys.executable, "-I", supervisor.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        shutil.rmtree(order.tmp, ignore_errors=True)
        raise SupervisorError(f"The supervisor process could not be started: {error}.") from error
    assert child.stdin is not None
    assert child.stdout is not None
    process = EngineProcess(order, cast(BinaryIO, child.stdin), cast(BinaryIO, child.stdout), child)
    process.begin()
    return process


def launch_order(
    argv: list[str],
    env: dict[str, str],
    *,
    cwd: Path,
    log: Path,
    grace_s: float,
    entry: Entry | None = None,
    preface: str = "",
) -> LaunchOrder:
    """An order with a marker and a temporary folder of its own.

    The engine gets a short temporary folder as ``TMPDIR`` (its sockets live there, and a path of
    a Unix socket holds 107 bytes), the run's marker, and ``SPT_NOENV``, so that a process that
    renames itself keeps its environment readable in /proc.

    Raises:
        SupervisorError: where ``log`` shall be there is something that is no plain file.
    """
    try:
        refuse_other_kinds(log)
    except OSError as error:
        raise SupervisorError(f"{log} cannot be written: {error.strerror}.") from error
    marker = f"mmrepro-{uuid.uuid4().hex}"
    tmp = tempfile.mkdtemp(prefix="mmr-")
    return LaunchOrder(
        argv=argv,
        env=run_variables(env, tmp, marker),
        cwd=str(cwd),
        log=str(log),
        tmp=tmp,
        marker=marker,
        grace_s=grace_s,
        entry=entry,
        preface=preface,
    )


def run_variables(env: Mapping[str, str], tmp: str, marker: str) -> dict[str, str]:
    """``env`` with the variables that every run has for itself."""
    return {
        **{name: value.replace(TMP_PLACEHOLDER, tmp) for name, value in env.items()},
        MARKER_VARIABLE: marker,
        "TMPDIR": tmp,
        "SPT_NOENV": "1",
    }
