"""What engine tests share: a finished or running ``mmrepro run``, and what is left of
one."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mmrepro.runs.starter import ROOT_VARIABLE

COMMAND = [sys.executable, "-m", "mmrepro"]
SHM = Path("/dev/shm")
NO_PYTHON = re.compile(
    r"Python [\d.]+ is not here, and could not be downloaded"
    r"|\S+ has no wheel for this Python and could not be built"
)
"""Of releases that nothing here can run; Python 3.11 has wheels of all of them."""


def need_python(told: str) -> None:
    """Skip the test where ``told``, an error, says that a release has no Python
    here."""
    if (found := NO_PYTHON.search(told)) and sys.version_info[:2] != (3, 11):
        pytest.skip(found[0])


@dataclass(frozen=True)
class Finished:
    """One finished ``mmrepro run … --json``."""

    exit_code: int
    stdout: str
    stderr: str
    folder: Path

    @property
    def document(self) -> dict[str, Any]:
        assert self.stdout, self.stderr
        return json.loads(self.stdout)

    @property
    def outcome(self) -> str:
        return self.document["verdict"]["outcome"]

    @property
    def why(self) -> str:
        """What a failed assertion should show: the conditions that are not met, the
        run's words."""
        try:
            verdict = self.document["verdict"]
        except (AssertionError, ValueError, KeyError):
            return self.stderr or self.stdout[-2000:]
        missed = [c for c in verdict["conditions"] if c["truth"] != "met"]
        told = [f"{c['id']}: {c['truth']}: {c['observed']}" for c in missed]
        return "\n".join([verdict["explanation"], *told, self.stderr[-2000:]])

    def condition(self, name: str) -> dict[str, Any]:
        conditions = self.document["verdict"]["conditions"]
        return next(c for c in conditions if c["id"] == name)

    def claim(self, name: str) -> dict[str, Any]:
        return next(c for c in self.document["claims"] if c["id"] == name)

    def requests(self, label: str) -> list[dict[str, Any]]:
        found = self.document["evidence"]["requests"]
        return [r for r in found if r["label"].startswith(label)]


RunOnce = Callable[..., Finished]


@dataclass
class Running:
    """A run in progress, in a process of its own."""

    process: subprocess.Popen[str]
    folder: Path

    def wait_for_event(self, text: str, seconds: float = 180) -> None:
        """Wait until the run's engine log or saved incident shows ``text``."""
        log = self.folder / "evidence" / "engine.log"
        wait_for(
            lambda: log.exists() and text in log.read_text(errors="replace"),
            seconds,
            f"{text!r} in the engine's log",
        )

    def run_processes(self) -> list[int]:
        """Every process whose environment carries this run's folder as its working
        directory."""
        return processes_in(self.folder)


def wait_for(condition: Callable[[], Any], seconds: float, what: str) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.1)
    raise AssertionError(f"not within {seconds} s: {what}")


def processes_in(folder: Path) -> list[int]:
    """Living processes whose working directory is ``folder``: the engine's, all of
    them."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            if state not in "ZX" and (entry / "cwd").readlink() == folder:
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def children(variables: dict[str, str]) -> list[int]:
    """Living processes that have the warm root of this test among their variables."""
    mark = f"{ROOT_VARIABLE}={variables[ROOT_VARIABLE]}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            if state not in "ZX" and mark in (entry / "environ").read_bytes().split(
                b"\0"
            ):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def listening(port: int) -> bool:
    wanted = f":{port:04X}"
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return any(
        line.split()[1].endswith(wanted) and line.split()[3] == "0A" for line in lines
    )


def shared_memory() -> set[str]:
    return {entry.name for entry in SHM.iterdir()}


def left_of(folder: Path, shm_before: set[str]) -> list[str]:
    """What of a run is still there: its processes and new entries of /dev/shm."""
    processes = [f"process {pid}" for pid in processes_in(folder)]
    return processes + sorted(shared_memory() - shm_before)


def assert_nothing_left(
    folder: Path, shm_before: set[str], seconds: float, port: int | None = None
) -> None:
    """Within ``seconds``: no process, no shared memory, and nobody listens on ``port``.

    The port is waited for too: the threads of a killed process close its sockets after
    its first thread is gone from sight."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        left = left_of(folder, shm_before)
        if port is not None and listening(port):
            left.append(f"port {port}")
        if not left:
            return
        time.sleep(0.1)
    raise AssertionError(left)
