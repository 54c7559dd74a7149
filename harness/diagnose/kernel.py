"""What the kernel says of processes that ended or were stopped: exit codes, the OOM killer."""

from __future__ import annotations

import contextlib
import os
import re

from mmrepro.base import processes
from mmrepro.diagnose.discover import Target
from mmrepro.evidence import Evidence
from mmrepro.signature.live_server import CORE_ALIVE

EXIT_CODE = 49
"""Field 52 of /proc/PID/stat (proc_pid_stat(5)), less the three before the state's own; readable
with the right to trace only, else 0."""
MAX_RECORDS = 20_000
_KILLED = re.compile(
    r"(?:Out of memory: |Memory cgroup out of memory: )?Killed process \d+ \([^)]*\)"
)


def note(target: Target, evidence: Evidence) -> None:
    """Keep exit codes of the dead, tracers of the traced, and the OOM killer's last word."""
    for process in target.facts.processes:
        if process.state in "ZX" and (code := exit_code(process.pid)) is not None:
            evidence.facts[f"exit:{process.pid}"] = code
        if process.state == "t" and (tracer := processes.tracer(process.pid)):
            evidence.facts[f"tracer:{process.pid}"] = tracer
    lives = core_lives(target)
    if lives is None and evidence.facts.get(CORE_ALIVE) is not None:
        lives = False  # it was there when this look began
    if lives is not None:
        evidence.facts[CORE_ALIVE] = lives
    if lives is False and (kill := last_oom_kill()):
        evidence.facts["oom"] = kill


def core_lives(target: Target) -> bool | None:
    """Whether a core process lives; None where that cannot be seen, or where no process is called
    so: not every release names its processes, nor does every core run below the front."""
    facts = target.facts
    if facts.cores:
        return any(p.state not in "ZX" for p in facts.cores)
    if facts.root_pid is not None:
        return False if all(p.state in "ZX" for p in facts.processes) else None
    return False if facts.place != "remote" and facts.listening is False else None


def exit_code(pid: int) -> int | None:
    """The wait status of a zombie: signal in the low seven bits, exit code above eight."""
    raw = processes.read(pid, "stat")
    fields = raw.rpartition(b")")[2].split()
    if len(fields) <= EXIT_CODE or fields[0] not in (b"Z", b"X"):
        return None
    return int(fields[EXIT_CODE])


def last_oom_kill() -> str:
    """The kernel log's last OOM kill; "" when there was none or the log is closed to us."""
    try:
        handle = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return ""
    last = ""
    try:
        with contextlib.suppress(OSError):
            for _ in range(MAX_RECORDS):
                record = os.read(handle, 8192).decode("utf-8", "replace")
                if match := _KILLED.search(record):
                    last = match[0]
    finally:
        os.close(handle)
    return last
