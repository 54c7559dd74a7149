"""Counting a process's system calls with strace, and letting go of it whatever happens."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import IO

from mmrepro.base import processes
from mmrepro.probes import _traced

ATTACH_S = 3.0
DETACH_S = 3.0


class StraceRefused(Exception):
    """strace is not here or may not trace this process; the text says which."""


def count_calls(
    pid: int, window_s: float, *, follow: bool = True
) -> tuple[dict[str, int], str, float]:
    """Calls of all threads of ``pid`` by name, strace's own table, and the seconds counted.

    Without ``follow``, ``pid`` is a thread's id and only that thread is counted. On return strace
    is gone and the target runs on as before.

    Raises:
        StraceRefused: not installed, or not allowed.
    """
    strace = shutil.which("strace")
    if strace is None:
        raise StraceRefused("strace is not installed")
    before = processes.stat(pid)
    if before is None:
        raise StraceRefused(f"process {pid} is gone")
    with tempfile.TemporaryDirectory(prefix="mmrepro-strace-") as folder:
        table = Path(folder) / "calls"
        command = [strace, "-c", "-S", "calls", "-o", str(table), "-p", str(pid)]
        if follow:
            command.insert(1, "-f")
        # Were this process killed now, strace would stay attached for ever: let it end itself.
        if timeout := shutil.which("timeout"):
            command = [timeout, "-s", "INT", "-k", "5", str(window_s + ATTACH_S + 5), *command]
        try:
            counted_s, stderr = _trace(command, pid, window_s)
        finally:
            _traced.resume_after_trace(pid, before.state)
        text = table.read_text("utf-8", "replace") if table.exists() else ""
        if counted_s <= 0:
            raise StraceRefused(_why_refused(stderr))
    return parse_table(text), text, counted_s


def _trace(command: list[str], pid: int, window_s: float) -> tuple[float, str]:
    """Seconds that strace was attached (0: never), and what it said."""
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env={**os.environ, "LC_ALL": "C"},
            start_new_session=True,
        )
        counted_s = 0.0
        try:
            _traced.wait_until(
                lambda: process.poll() is not None or b"attached" in _so_far(errors), ATTACH_S
            )
            # Attached now, or given up: strace ends at once when it is refused.
            if process.poll() is None and processes.tracer(pid) != 0:
                attached = time.monotonic()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(window_s)
                counted_s = time.monotonic() - attached
        finally:
            wrote_its_table = _end(process)
        if not wrote_its_table:
            # No table reads like "no call at all": that must never be taken for a count.
            raise StraceRefused("strace did not end when asked to and was killed")
        return counted_s, _so_far(errors).decode("utf-8", "replace")


def _end(process: subprocess.Popen[bytes]) -> bool:
    """End strace; whether it ended by itself. SIGINT makes it detach and write its table, SIGKILL
    only makes it detach."""
    for sign in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            break
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, sign)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(DETACH_S)
    return process.poll() not in (None, -signal.SIGKILL)


def _so_far(file: IO[bytes]) -> bytes:
    return os.pread(file.fileno(), 65536, 0)


def _why_refused(stderr: str) -> str:
    line = next((line for line in stderr.splitlines() if line.strip()), "strace did not attach")
    if "not permitted" in stderr:
        return (
            "strace may not trace it (needs root or CAP_SYS_PTRACE, kernel.yama.ptrace_scope 0, "
            "docker --cap-add SYS_PTRACE; only one tracer at a time)"
        )
    return line[:300]


def parse_table(text: str) -> dict[str, int]:
    """Calls by name of ``strace -c``; lines that are no row are skipped, never fatal.

    A row reads ``% time, seconds, usecs/call, calls, [errors,] syscall``. No table at all means
    that there was no call.
    """
    counts: dict[str, int] = {}
    for line in text.splitlines():
        fields = line.split()
        if len(fields) not in (5, 6) or fields[-1] == "total":
            continue
        try:
            float(fields[0]), float(fields[1])
            calls = int(fields[3])
        except ValueError:
            continue
        if calls >= 0:
            counts[fields[-1]] = counts.get(fields[-1], 0) + calls
    return counts
