"""What the kernel says of a server's processes: who lives, who traces, what the OOM
killer took."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import NamedTuple

from mmrepro.base import processes
from mmrepro.failure.documents import TargetFacts
from mmrepro.failure.signature.live_server import CORE_ALIVE
from mmrepro.live.diagnose.discover import ServerTarget
from mmrepro.live.diagnose.ranks import OWN, workers
from mmrepro.live.diagnose.titles import expected
from mmrepro.probes import LogsData
from mmrepro.traffic.evidence import Evidence

EXIT_CODE = 49
"""Field 52 of /proc/PID/stat (proc_pid_stat(5)), less the three before the state's own;
readable with the right to trace only, else 0."""
MAX_RECORDS = 20_000
_KILLED = re.compile(
    r"^\d+,\d+,(?P<us>\d+),[^;]*;(?P<words>[^\n]{0,60}?Killed process (?P<pid>\d+) "
    r"\((?P<name>.*)\))(?=,? |$)",
    re.M,
)
"""Kernel's mm/oom_kill.c, __oom_kill_process; microseconds after the boot are as in
Documentation/ABI/testing/dev-kmsg."""
_GROUP = re.compile(
    r";oom-kill:.*task_memcg=(?P<cgroup>[^,\n]*),task=.*,pid=(?P<pid>\d+),uid="
)
"""dump_oom_victim of the same file, just before it (4.19 and later)."""
CLOCK_S = 2.0
"""The kernel's log and its processes do not have quite the same clock."""
_LAST_WORDS_S = 60.0
"""Between a process's last line of log and its end."""


def note_kernel(target: ServerTarget, evidence: Evidence) -> None:
    """Keep exit codes of the dead, tracers of the traced, and the OOM killer's last
    word."""
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
    misses = "oom" not in evidence.facts and (
        lives is False or _incomplete(target.facts)
    )
    if misses and (kill := oom_kill(target, evidence, oom_kills())):
        evidence.facts["oom"] = kill


def core_lives(target: ServerTarget) -> bool | None:
    """Whether a core process lives; None where that cannot be seen, or where no process
    is called so: not every release names its processes, nor does every core run below
    the front."""
    facts = target.facts
    if facts.cores:
        return any(process.state not in "ZX" for process in facts.cores)
    if facts.root_pid is not None:
        ended = all(process.state in "ZX" for process in facts.processes)
        return False if ended else None
    return False if facts.place != "remote" and facts.listening is False else None


NOT_RESTARTED = (
    "exit code 0 after a failure: systemd's Restart=on-failure and Kubernetes' "
    "restartPolicy: OnFailure do not start it again (vllm#48966); Restart=always does"
)
"""What an engine's front does whose engine has died: it shuts down in order."""


def exit_code(pid: int) -> int | None:
    """The wait status of a zombie: signal in the low seven bits, exit code above
    eight."""
    raw = processes.read(pid, "stat")
    fields = raw.rpartition(b")")[2].split()
    if len(fields) <= EXIT_CODE or fields[0] not in (b"Z", b"X"):
        return None
    return int(fields[EXIT_CODE])


def _incomplete(facts: TargetFacts) -> bool:
    """Whether a process of it has ended, or there are fewer than its command line asks
    for."""
    if any(process.state in "ZX" for process in facts.processes):
        return True
    living = [process for process in workers(facts) if process.state not in "ZX"]
    return 0 < len(living) < prod(expected(facts).values())


class Kill(NamedTuple):
    """An OOM kill as the kernel logged it. ``at_s``: seconds after the boot;
    ``cgroup``: of memory, "" where the record is lost; ``name`` has 15 characters at
    most."""

    pid: int
    name: str
    at_s: float
    cgroup: str
    words: str


def oom_kills() -> list[Kill]:
    """The kernel log's OOM kills, oldest first; [] as well where the log is closed to
    us."""
    try:
        handle = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return []
    kills: list[Kill] = []
    groups: dict[int, str] = {}
    try:
        # The end of the log is an error as well: nothing more to read without waiting.
        with contextlib.suppress(OSError):
            for _ in range(MAX_RECORDS):
                record = os.read(handle, 8192).decode("utf-8", "replace")
                if group := _GROUP.search(record):
                    groups[int(group["pid"])] = group["cgroup"]
                if killed := _KILLED.search(record):
                    pid = int(killed["pid"])
                    kills.append(
                        Kill(
                            pid=pid,
                            name=killed["name"],
                            at_s=int(killed["us"]) / 1e6,
                            cgroup=groups.get(pid, ""),
                            words=killed["words"],
                        )
                    )
    finally:
        os.close(handle)
    return kills


def oom_kill(target: ServerTarget, evidence: Evidence, kills: Sequence[Kill]) -> str:
    """The last of ``kills`` that was of a process of this server; "": none is known to
    be.

    It was one that was here and is not any more; one whose pid the server's log has,
    with its name; or one with the title of the engine's processes, in the server's
    memory cgroup since it started. Another program's is none of ours."""
    for kill in reversed(kills):
        known = _killed_here(target, kill)
        if known is None:
            known = _logged_there(target, evidence, kill)
        if known:
            return kill.words
        # A number that is known to be another process's is not guessed about.
        if known is None and _looks_ours(target, kill):
            return f"{kill.words}, by its name a process of this engine"
    return ""


def _killed_here(target: ServerTarget, kill: Kill) -> bool | None:
    """None: no process with that number was here."""
    starts = [start for pid, start in target.titled if pid == kill.pid]
    if not starts:
        return None
    began_s = starts[-1] / processes.TICKS_PER_S
    return kill.at_s >= began_s - CLOCK_S and not processes.alive(kill.pid, starts[-1])


def _logged_there(target: ServerTarget, evidence: Evidence, kill: Kill) -> bool | None:
    """Whether a line of the log is of that process. One that has no title of its own is
    called as its program is: then the log has to end with it. None: the log has no such
    number."""
    for _, data in evidence.results(LogsData, partial=True):
        for name in data.last_by_process:
            match = OWN.match(name)
            if match is None or int(match["pid"]) != kill.pid:
                continue
            if "::" in kill.name:
                return match["role"].startswith(target.role_of(kill.name, ""))
            with contextlib.suppress(OSError):
                ended_s = Path(data.file).stat().st_mtime
                killed_s = (
                    time.time()
                    - processes.now_ticks() / processes.TICKS_PER_S
                    + kill.at_s
                )
                return abs(ended_s - killed_s) < _LAST_WORDS_S
            return False
    return None


def _looks_ours(target: ServerTarget, kill: Kill) -> bool:
    """Whether it has the title of a process of the engine, and the server's memory
    cgroup, and is younger than the server."""
    root, engine = target.facts.root_pid, target.engine
    status = processes.stat(root) if root is not None else None
    if status is None or engine is None or "::" not in kill.name:
        return False
    role = target.role_of(kill.name, "")
    ours = False
    # The kernel cuts a name after 15 characters: either may be the longer one.
    for name in filter(None, (engine.core_role, engine.worker_role)):
        if role.startswith(name) or name.startswith(role):
            ours = True
    since = kill.at_s >= status.start_ticks / processes.TICKS_PER_S - CLOCK_S
    return ours and since and kill.cgroup == processes.memory_cgroup(status.pid)
