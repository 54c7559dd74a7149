"""Processes of an engine: started, watched and ended by a supervisor of their own."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

from mmrepro.base import processes
from mmrepro.base.box import TEMPORARY, WORK, Box, BoxEnded, BoxOrder
from mmrepro.base.errors import SupervisorError
from mmrepro.base.machine import local_get, refuse_other_kinds
from mmrepro.engines.supervise import supervisor
from mmrepro.engines.supervise.supervisor import (
    Entry as Entry,
    ForkServerOrder,
    LaunchOrder as LaunchOrder,
    StopReport as StopReport,
)

TMP_PLACEHOLDER = "{run-tmp}"
"""In the value of a variable, or in an option: the run's temporary folder."""
SCRIPTS: Final = (Path(supervisor.__file__).parent, Path(processes.__file__))
"""What runs under an engine's interpreter, or in a box."""
_ENDED: Final = 0
"""No process has this id."""
_START_TIMEOUT_S = 30.0
_STOP_MARGIN_S = 15.0
_END_S = 10.0
"""Within which a guardian has ended what a killed supervisor left."""


def free_port() -> int:
    """A loopback port that is free right now (bound to 0 and let go)."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(url: str) -> bool:
    """Whether ``url`` is answered with 200 within two seconds, past any proxy."""
    try:
        status, _ = local_get(url)
    except OSError:
        return False
    return status == 200


class EngineProcess:
    """An engine under its supervisor.

    Attributes:
        pid: the supervisor's: ending it ends the engine.
        engine_pid: of the engine's first process.
    """

    def __init__(
        self,
        order: LaunchOrder,
        orders: BinaryIO,
        events: BinaryIO,
        guardian: subprocess.Popen[bytes] | None = None,
        box: Box | None = None,
    ) -> None:
        """``orders`` and ``events`` lead to the supervisor, ``guardian`` if it is our
        child.

        ``box``: in which it all runs; the box ends with the engine where ``guardian``
        is given."""
        self._order = order
        self._box = box
        self._orders = orders
        self._stream = events
        self._guardian = guardian
        self._events: dict[str, dict[str, Any]] = {}
        self._changed = threading.Condition()
        self._report: StopReport | None = None
        self.pid = self.engine_pid = 0
        self.log = Path(order.log)
        threading.Thread(target=self._read, name="supervisor", daemon=True).start()

    def begin(self) -> None:
        """Send the order, and return once the engine's process exists. Raises
        SupervisorError."""
        self._write(to_line(self._order))
        started = self._wait_for("started", _START_TIMEOUT_S)
        if started is None:
            why = self._events.get("failed", {}).get("why")
            with contextlib.suppress(OSError):
                self._orders.close()  # it ends what it may have started
            raise SupervisorError(
                "The engine could not be started: "
                f"{why or 'its supervisor gives no reason'}."
            )
        self.pid, self.engine_pid = started["supervisor"][0], started["engine"][0]
        if self._box is not None:
            try:
                self.pid = self._box.outside(self.pid)
            except BoxEnded as error:
                raise SupervisorError(
                    f"The engine could not be started: {error}"
                ) from error
            try:
                self.engine_pid = self._box.outside(self.engine_pid)
            except BoxEnded:
                self.engine_pid = _ENDED  # already: its exit code follows

    @property
    def door(self) -> Path | None:
        """The way into its box; None: it runs in none."""
        return self._box.door if self._box is not None else None

    @property
    def isolation(self) -> str:
        """What its box showed as it was tested; "": it runs in none."""
        return self._box.isolation if self._box is not None else ""

    def reach(self, port: int) -> None:
        """Make the engine's ``port`` answer on this machine's loopback. Raises
        SupervisorError."""
        if self._box is None:
            return
        try:
            self._box.expose(port)
        except BoxEnded as error:
            raise SupervisorError(error.message) from error

    @property
    def exit_code(self) -> int | None:
        """Exit code of the engine's first process, if it ended by itself."""
        with self._changed:
            if "exited" in self._events:
                return int(self._events["exited"]["code"])
            if (
                "gone" in self._events
                and not self._report
                and "stopped" not in self._events
            ):
                if self._box is not None and self._box.over:
                    raise SupervisorError(
                        f"The engine's box was ended: {self._box.over}."
                    )
                raise SupervisorError(
                    "The supervisor of the engine ended, and the engine with it."
                )
            return None

    def process_ids(self) -> list[int]:
        """All living processes of the engine."""
        return [*processes.descendants(self.pid)]

    def detach(self) -> None:
        """Let the engine outlive the harness (``--keep-server``)."""
        self._write(b"detach\n")
        self._wait_for("detached", _START_TIMEOUT_S)

    def stop(self, grace_s: float | None = None) -> StopReport:
        """End the engine and all that it left; safe to call twice.

        Args:
            grace_s: seconds between SIGTERM and SIGKILL; those of the start by default.
        """
        if self._report is None:
            grace_s = self._order.grace_s if grace_s is None else grace_s
            self._write(f"stop {grace_s}\n".encode())  # it may have stopped by itself
            stopped = self._wait_for("stopped", grace_s + _STOP_MARGIN_S)
            self._report = (
                StopReport(**stopped["report"]) if stopped else self._end_by_force()
            )
            if self._box is not None and self._guardian is not None:
                self._box.end()
        return self._report

    def _end_by_force(self) -> StopReport:
        """The supervisor does not answer: kill it, and its guardian cleans up."""
        if self._box is not None:
            self._box.end()
            return StopReport(
                forced=["the supervisor did not answer, and its box was ended"]
            )
        owned = dict(self._events["started"].values()) | processes.descendants(self.pid)
        if processes.alive(self.pid, owned[self.pid]):
            with contextlib.suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)
        deadline = time.monotonic() + _END_S
        while left := [
            pid for pid, born in owned.items() if processes.alive(pid, born)
        ]:
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
        return StopReport(
            forced=["the supervisor did not answer and was killed"],
            left=[processes.label(pid) for pid in left],
        )

    def _write(self, data: bytes) -> None:
        # It ended, which `_wait_for` finds out.
        with contextlib.suppress(OSError, ValueError):
            self._orders.write(data)
            self._orders.flush()

    def _read(self) -> None:
        """Keep what the supervisor reports; each event comes once."""
        with contextlib.suppress(OSError):
            for line in self._stream:
                with contextlib.suppress(ValueError):
                    self._take(json.loads(line))
        self._take({"event": "gone"})

    def _take(self, event: dict[str, Any]) -> None:
        with self._changed:
            self._events[event.pop("event")] = event
            self._changed.notify_all()

    def _wait_for(self, event: str, timeout_s: float) -> dict[str, Any] | None:
        """The event; None: it does not come, or not in time."""
        ends = {event, "failed", "gone"}
        with self._changed:
            self._changed.wait_for(lambda: ends & self._events.keys(), timeout_s)
            return self._events.get(event)


def start_engine(
    argv: list[str],
    env: dict[str, str],
    *,
    cwd: Path,
    log: Path,
    grace_s: float = 10.0,
    box: BoxOrder | None = None,
) -> EngineProcess:
    """Start ``argv`` under a supervisor of its own and return once the process exists.

    ``box``: what it may see, to run in a box with its supervisor; None: it runs in
        none.

    Raises:
        SupervisorError: the supervisor or the engine's command could not be started.
        NoBox: no box can be made.
    """
    order = launch_order(
        argv, env, cwd=cwd, log=log, grace_s=grace_s, boxed=box is not None
    )
    if box is not None:
        return _start_boxed(order, box)
    try:
        guardian = subprocess.Popen(
            [sys.executable, "-I", supervisor.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        shutil.rmtree(order.tmp, ignore_errors=True)
        raise SupervisorError(
            f"The supervisor process could not be started: {error}."
        ) from error
    orders, events = cast(BinaryIO, guardian.stdin), cast(BinaryIO, guardian.stdout)
    process = EngineProcess(order, orders, events, guardian)
    process.begin()
    return process


def _start_boxed(order: LaunchOrder, box: BoxOrder) -> EngineProcess:
    """As ``start_engine``, with the supervisor and all below it in a box."""
    log = open_log(Path(order.log))
    python = str(Path(sys.executable).resolve())
    try:
        running = Box(
            replace(
                box,
                argv=(python, "-I", supervisor.__file__),
                env={"PATH": os.defpath},
                readable=(*box.readable, *SCRIPTS),
                door=True,
                descriptors=(log,),
            ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
    finally:
        os.close(log)
    guardian = running.process
    orders, events = cast(BinaryIO, guardian.stdin), cast(BinaryIO, guardian.stdout)
    process = EngineProcess(
        replace(order, log_fd=log), orders, events, guardian, running
    )
    try:
        process.begin()
    except SupervisorError:
        running.end()
        raise
    return process


def open_log(file: Path) -> int:
    """A descriptor for what an engine writes, to be handed into a box. Raises
    SupervisorError."""
    try:
        return os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    except OSError as error:
        raise SupervisorError(f"{file} cannot be written: {error.strerror}.") from error


def launch_order(
    argv: list[str],
    env: dict[str, str],
    *,
    cwd: Path,
    log: Path,
    grace_s: float,
    entry: Entry | None = None,
    preface: str = "",
    boxed: bool = False,
) -> LaunchOrder:
    """An order with a temporary folder of its own, which a box makes for itself.

    The engine gets a short temporary folder as ``TMPDIR``: its sockets live there, and
    a path of a Unix socket holds 107 bytes.

    Raises:
        SupervisorError: where ``log`` shall be there is something that is no plain
            file.
    """
    try:
        refuse_other_kinds(log)
    except OSError as error:
        raise SupervisorError(f"{log} cannot be written: {error.strerror}.") from error
    if boxed:
        tmp, cwd = str(TEMPORARY / f"mmr-{secrets.token_hex(4)}"), WORK
    else:
        tmp = tempfile.mkdtemp(prefix="mmr-")
    env = run_variables(env, tmp)
    argv = [word.replace(TMP_PLACEHOLDER, tmp) for word in argv]
    if entry is not None:
        words = [word.replace(TMP_PLACEHOLDER, tmp) for word in entry.arguments]
        entry = replace(entry, arguments=words)
    return LaunchOrder(argv, env, str(cwd), str(log), tmp, grace_s, entry, preface)


def to_line(order: LaunchOrder | ForkServerOrder) -> bytes:
    """The first line that a supervisor or a fork server reads."""
    return json.dumps(asdict(order)).encode() + b"\n"


def run_variables(env: Mapping[str, str], tmp: str) -> dict[str, str]:
    """``env`` with the variables that every run has for itself.

    With ``SPT_NOENV`` setproctitle leaves the environment of a process that renames
    itself as it is in /proc."""
    own = {name: value.replace(TMP_PLACEHOLDER, tmp) for name, value in env.items()}
    return {**own, "TMPDIR": tmp, "SPT_NOENV": "1"}
