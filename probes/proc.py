"""Reading /proc without ever failing on a process that goes away.

Straight from the files rather than through psutil where threads are concerned: one pass gives the
state, the name and both CPU times, which psutil reads from three places.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

# /proc/PID/stat as man proc_pid_stat numbers it, less the pid and the name before the last ")".
_STATE, _PPID, _UTIME, _STIME, _THREADS, _STARTTIME, _RSS = 0, 1, 11, 12, 17, 19, 21


@dataclass(frozen=True)
class Stat:
    """One line of /proc/PID/stat or /proc/PID/task/TID/stat; times in clock ticks."""

    pid: int
    name: str
    state: str
    ppid: int
    user_ticks: int
    system_ticks: int
    threads: int
    start_ticks: int
    rss_bytes: int


@dataclass(frozen=True)
class ThreadTimes:
    """A thread's stat and how long, in seconds, it waited for a core."""

    stat: Stat
    queued_s: float
    voluntary: int
    involuntary: int


def parse_stat(content: bytes) -> Stat | None:
    """None for anything that is no stat line. The name may itself hold blanks and parentheses."""
    opening, closing = content.find(b"("), content.rfind(b")")
    if opening < 0 or closing < opening:
        return None
    fields = content[closing + 1 :].split()
    try:
        return Stat(
            pid=int(content[:opening]),
            name=content[opening + 1 : closing].decode("utf-8", "replace"),
            state=fields[_STATE].decode("ascii", "replace"),
            ppid=int(fields[_PPID]),
            user_ticks=int(fields[_UTIME]),
            system_ticks=int(fields[_STIME]),
            threads=int(fields[_THREADS]),
            start_ticks=int(fields[_STARTTIME]),
            rss_bytes=int(fields[_RSS]) * PAGE_BYTES,
        )
    except (ValueError, IndexError):
        return None


def read(path: Path | str, limit: int = 65536) -> bytes | None:
    """The file's first ``limit`` bytes; None when it is gone or not ours to read."""
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123  (a third of Path.open's time)
            return file.read(limit)
    except OSError:
        return None


def read_stat(pid: int) -> Stat | None:
    content = read(f"/proc/{pid}/stat")
    return parse_stat(content) if content else None


def alive(pid: int) -> bool:
    """There, and not merely a zombie that waits to be reaped."""
    stat = read_stat(pid)
    return stat is not None and stat.state not in ("Z", "X")


def thread_ids(pid: int) -> list[int]:
    try:
        return sorted(int(name) for name in os.listdir(f"/proc/{pid}/task"))  # noqa: PTH208
    except OSError:
        return []


def read_threads(pid: int, limit: int = 4096) -> dict[int, ThreadTimes]:
    """Every thread of ``pid``; those that end while we read are left out."""
    threads: dict[int, ThreadTimes] = {}
    for tid in thread_ids(pid)[:limit]:
        task = f"/proc/{pid}/task/{tid}"
        content = read(f"{task}/stat")
        stat = parse_stat(content) if content else None
        if stat is None:
            continue
        # schedstat: nanoseconds on a core, nanoseconds runnable but without one, time slices.
        sched = (read(f"{task}/schedstat") or b"").split()
        queued = int(sched[1]) if len(sched) >= 2 else 0
        voluntary, involuntary = _switches(read(f"{task}/status") or b"")
        threads[tid] = ThreadTimes(stat, queued / 1e9, voluntary, involuntary)
    return threads


def _switches(status: bytes) -> tuple[int, int]:
    voluntary = involuntary = 0
    for line in status.splitlines():
        if line.startswith(b"voluntary_ctxt_switches:"):
            voluntary = int(line.split()[1])
        elif line.startswith(b"nonvoluntary_ctxt_switches:"):
            involuntary = int(line.split()[1])
    return voluntary, involuntary


def cmdline(pid: int) -> str:
    """Arguments joined by blanks, cut at 2000 characters; a title set by setproctitle as it is."""
    content = read(f"/proc/{pid}/cmdline", 16384) or b""
    return content.replace(b"\0", b" ").decode("utf-8", "replace").strip()[:2000]


def tree(root: int, also: Sequence[int] = ()) -> list[int]:
    """``root``, ``also`` and all their living descendants, parents before children."""
    children: dict[int, list[int]] = {}
    try:
        entries = os.listdir("/proc")  # noqa: PTH208
    except OSError:
        return []
    for entry in entries:
        if entry.isdigit() and (stat := read_stat(int(entry))) is not None:
            children.setdefault(stat.ppid, []).append(stat.pid)
    pids: dict[int, None] = {}
    todo = [pid for pid in (root, *also) if (PROC / str(pid)).exists()]
    while todo:
        pid = todo.pop(0)
        if pid not in pids:
            pids[pid] = None
            todo.extend(sorted(children.get(pid, ())))
    return list(pids)


def tracer_of(pid: int) -> int:
    """The process that traces ``pid``; 0 when none does."""
    for line in (read(f"/proc/{pid}/status") or b"").splitlines():
        if line.startswith(b"TracerPid:"):
            return int(line.split()[1])
    return 0


def wait_until(condition: Callable[[], bool], seconds: float, step_s: float = 0.01) -> bool:
    """Poll ``condition`` for at most ``seconds``; whether it came true."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= until:
            return False
        time.sleep(step_s)
    return True


def resume_after_trace(pid: int, state_before: str) -> bool:
    """Undo a stop that a tracer of ours left behind; whether there was one.

    A tracer that dies between attaching and its first wait can leave its target stopped. One that
    was stopped before we came is left so.
    """
    wait_until(lambda: tracer_of(pid) == 0, 2.0)
    stat = read_stat(pid)
    if stat is None or stat.state != "T" or state_before == "T":
        return False
    try:
        os.kill(pid, signal.SIGCONT)
    except OSError:
        return False
    return True
