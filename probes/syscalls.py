"""Spinning in user space, busy in the kernel, or blocked: what a process's system calls
say.

Alone::

    from mmrepro.probes.base import run_probe
    from mmrepro.probes.syscalls import SyscallsProbe
    result = run_probe(SyscallsProbe(pid), Path("evidence"), 8)
    print(result.data.verdict, result.data.why)
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Literal, Self

from mmrepro.base import processes
from mmrepro.probes.base import Probe, RawSink, Subject, TimedOut, Unavailable
from mmrepro.probes.data import SyscallsData
from mmrepro.probes.processes import resume_after_trace, thread_runs, wait_until

Verdict = Literal[
    "spinning-in-user-space", "busy-in-kernel", "blocked", "working", "unclear"
]

_SPIN_PCT = 70.0
IDLE_PCT = 5.0
_FEW_CALLS_PER_S = 200.0
_FEW_LOCK_CALLS_PER_S = 2000.0
_FEW_SWITCHES_PER_S = 100.0
ENOUGH_S = 0.03
"""Least processor time that is judged: three clock ticks."""

# Calls of threads that queue for a lock. CPython's waiters for the GIL wake every 5 ms,
# so a thread that spins while others wait comes with hundreds of them: contention, not
# work.
_LOCK_CALLS = frozenset({"futex", "futex_waitv", "sched_yield", "restart_syscall"})


@dataclass(frozen=True)
class Load:
    """What was measured over the window. Percentages are of one core, rates per second.

    ``queued_pct``: how long the busiest thread was runnable without a core. On a
    crowded machine a spinning thread gets a tenth of a core; what counts is that it
    never once slept."""

    user_pct: float
    system_pct: float
    busiest_user_pct: float
    busiest_system_pct: float
    queued_pct: float
    switches_per_s: float
    threads: int
    asleep: int
    stopped: int
    calls_per_s: float | None = None
    lock_calls_per_s: float = 0.0
    busiest_calls_per_s: float | None = None
    busiest_tid: int = 0
    seconds: float = 2.0

    @property
    def share(self) -> float:
        """Part of its runnable time in which the busiest thread had a core; 1: it never
        queued."""
        ran = self.busiest_user_pct + self.busiest_system_pct
        return ran / (ran + self.queued_pct) if ran else 1.0


def judge(load: Load) -> tuple[Verdict, str]:
    """What ``load`` says of the process, and one sentence with the numbers. Pure.

    Without counted calls the busiest thread's voluntary context switches stand in for
    them: a thread that does I/O or takes locks sleeps now and then, one that spins
    never does."""
    cpu = (
        f"user CPU {load.user_pct:.0f} %, system CPU {load.system_pct:.0f} % of a core"
    )
    rate = _rate(load)
    total = load.user_pct + load.system_pct
    few = _few_calls(load)
    if load.threads and load.stopped == load.threads:
        return "blocked", f"every thread is stopped by a signal or a tracer; {cpu}"
    if load.system_pct >= 50 and load.system_pct > load.user_pct:
        return (
            "busy-in-kernel",
            f"most of its time goes into system calls: {cpu}, {rate}",
        )
    # What other threads do beside a spinning one (polling with a timeout, say) is no
    # progress.
    own = load.busiest_calls_per_s
    spins = _looks_spinning(load) and (
        few if own is None else own < _FEW_CALLS_PER_S * load.share
    )
    if total < IDLE_PCT and not spins:
        if load.asleep == load.threads and few:
            return "blocked", f"all {load.threads} threads wait: {cpu}, {rate}"
        if not few:
            return "working", f"little CPU but many system calls: {cpu}, {rate}"
        return "unclear", f"{load.asleep} of {load.threads} threads wait: {cpu}, {rate}"
    if spins:
        queued = (
            f" (and waited {load.queued_pct:.0f} % of the time for a core)"
            if load.queued_pct >= 10
            else ""
        )
        return (
            "spinning-in-user-space",
            f"one thread computes without end at {load.busiest_user_pct:.0f} % of a "
            f"core{queued} and hardly calls the kernel: {cpu}, {rate}",
        )
    if not few:
        return "working", f"it computes and calls the kernel: {cpu}, {rate}"
    return "unclear", f"neither idle nor clearly spinning: {cpu}, {rate}"


def _looks_spinning(load: Load) -> bool:
    """Whether one thread takes all the CPU that it can get, in user space; calls are
    not counted.

    Its processor time is judged against the time in which it was runnable, so that the
    verdict is the same on a crowded machine."""
    demand = load.busiest_user_pct + load.queued_pct
    enough = load.busiest_user_pct / 100 * load.seconds >= ENOUGH_S
    pure = load.busiest_system_pct <= 0.2 * load.busiest_user_pct
    return demand >= _SPIN_PCT and enough and pure


def _few_calls(load: Load) -> bool:
    """Whether the rates are low for the share of a core that the busiest thread had.

    Locks have no share: their waiters wake by the clock.
    """
    if load.calls_per_s is None:
        return load.switches_per_s < _FEW_SWITCHES_PER_S * load.share
    other = load.calls_per_s - load.lock_calls_per_s
    return (
        other < _FEW_CALLS_PER_S * load.share
        and load.lock_calls_per_s < _FEW_LOCK_CALLS_PER_S
    )


def _rate(load: Load) -> str:
    if load.busiest_calls_per_s is not None:
        own = f"{load.busiest_calls_per_s:.0f} of its busiest thread"
        return f"{load.calls_per_s or 0:.0f} system calls/s, {own}"
    if load.calls_per_s is None:
        return (
            f"{load.switches_per_s:.0f} voluntary context switches/s of its busiest "
            "thread"
        )
    return f"{load.calls_per_s:.0f} system calls/s"


class SyscallsProbe(Probe[SyscallsData]):
    """Watches all threads of ``pid`` for ``window_s`` seconds.

    strace counts the calls where it is installed and allowed (``use_strace``); it slows
    a process down that makes many of them. Otherwise /proc tells which threads wait in
    which call."""

    name = "syscalls"
    needs = "pid"

    @classmethod
    def on(cls, subject: Subject) -> Self:
        return cls(subject.pid)

    def __init__(
        self, pid: int, window_s: float = 2.0, use_strace: bool = True
    ) -> None:
        self.pid = pid
        self.window_s = window_s
        self.use_strace = use_strace

    def collect(self, sink: RawSink, deadline: float) -> SyscallsData:
        """Watch the process. Raises Unavailable when it is not there, TimedOut without time
        to watch it."""
        if not processes.alive(self.pid):
            raise Unavailable(f"process {self.pid} does not exist (any more)")
        reserve_s = DETACH_S if self.use_strace else 0.2
        window_s = min(self.window_s, deadline - time.monotonic() - reserve_s)
        if window_s < 0.1:
            raise TimedOut(f"no time to watch process {self.pid}")
        # Before strace comes: while it traces, what waits in which call is not to be seen.
        asleep, stopped, waiting = _settled_threads(self.pid)
        first = processes.threads(self.pid)
        started = time.monotonic()
        counts: dict[str, int] | None = None
        counted_s = 0.0
        note = ""
        if self.use_strace:
            try:
                counts, table, counted_s = count_calls(self.pid, window_s)
                sink.write("strace.txt", table or "no system call was seen\n")
            except StraceRefused as refusal:
                note = f" (calls not counted: {refusal})"

        left_s = window_s - (time.monotonic() - started)
        time.sleep(max(min(left_s, window_s), 0))
        second = processes.threads(self.pid)
        seconds = time.monotonic() - started
        if not second:
            raise Unavailable(f"process {self.pid} ended while it was watched")
        if counts is None:
            asleep, stopped, waiting = _settled_threads(self.pid)
        load = _measure(first, second, seconds, asleep, stopped)
        total: int | None = None
        if counts is not None:
            total = sum(counts.values())
            locks = sum(counts.get(name, 0) for name in _LOCK_CALLS)
            load = replace(
                load,
                calls_per_s=total / counted_s,
                lock_calls_per_s=locks / counted_s,
            )
            if _looks_spinning(load) and not _few_calls(load):
                load = self._count_busiest(load, sink, deadline)
        verdict, why = judge(load)
        return SyscallsData(
            pid=self.pid,
            method="proc" if counts is None else "strace",
            window_s=round(counted_s if counts is not None else seconds, 3),
            counts=counts or {},
            total=total,
            waiting_in=dict(Counter(waiting.values()).most_common()),
            waits=waiting,
            user_pct=load.user_pct,
            system_pct=load.system_pct,
            verdict=verdict,
            why=why + note,
        )

    def _count_busiest(self, load: Load, sink: RawSink, deadline: float) -> Load:
        """Count the calls of the busiest thread alone; unchanged when there is no time
        or right."""
        window_s = min(0.5, deadline - time.monotonic() - DETACH_S)
        if window_s < 0.1:
            return load
        try:
            counts, table, seconds = count_calls(
                load.busiest_tid, window_s, follow=False
            )
        except StraceRefused:
            return load
        sink.write("strace-busiest.txt", table or "no system call was seen\n")
        return replace(load, busiest_calls_per_s=sum(counts.values()) / seconds)


def _measure(
    first: dict[int, processes.Thread],
    second: dict[int, processes.Thread],
    seconds: float,
    asleep: int,
    stopped: int,
) -> Load:
    """Return the load between two readings of a process's threads, ``seconds`` apart."""
    runs = thread_runs(first, second, seconds)
    busiest = runs[0]
    # Of threads that used no processor time none is the busiest: their switches show no
    # work.
    busy = busiest.user_pct + busiest.system_pct > 0
    return Load(
        user_pct=round(sum(run.user_pct for run in runs), 1),
        system_pct=round(sum(run.system_pct for run in runs), 1),
        busiest_user_pct=busiest.user_pct,
        busiest_system_pct=busiest.system_pct,
        queued_pct=min(busiest.queued_pct, 100.0) if busy else 0.0,
        switches_per_s=busiest.voluntary / seconds if busy else 0.0,
        busiest_tid=busiest.stat.pid if busy else 0,
        threads=len(second),
        asleep=min(asleep, len(second)),
        stopped=min(stopped, len(second)),
        seconds=seconds,
    )


def _settled_threads(pid: int, looks: int = 3) -> tuple[int, int, dict[int, str]]:
    """The look at ``waiting_threads`` that found most of them at rest.

    A thread that polls once a second must not make an idle process look busy because we
    came at the wrong moment."""
    taken = [waiting_threads(pid)]
    for _ in range(looks - 1):
        time.sleep(0.02)
        taken.append(waiting_threads(pid))
    return max(taken, key=lambda look: look[0])


def waiting_threads(pid: int) -> tuple[int, int, dict[int, str]]:
    """How many threads are asleep and how many stopped, and the call that each sleeping
    one waits in, by thread id.

    The call's name needs the right to trace; without it the kernel function (``wchan``)
    is named if it can be read, else ``unknown``."""
    asleep = stopped = 0
    calls: dict[int, str] = {}
    for tid in processes.thread_ids(pid):
        stat = processes.stat(pid, tid)
        if stat is None:
            continue
        if stat.state in ("T", "t"):
            stopped += 1
        elif stat.state in ("S", "D", "I"):
            asleep += 1
            calls[tid] = _waits_in(pid, tid)
    return asleep, stopped, calls


def _waits_in(pid: int, tid: int) -> str:
    """Return the call that a sleeping thread waits in, or the kernel's function."""
    fields = processes.read(pid, f"task/{tid}/syscall").split()
    if fields and fields[0].isdigit():
        return syscall_name(int(fields[0]))
    wchan = processes.read(pid, f"task/{tid}/wchan")
    function = wchan.decode("ascii", "replace").strip()
    return function if function not in ("", "0") else "unknown"


# ------------------------------------------------------------------ strace


_ATTACH_S = 3.0
DETACH_S = 3.0


class StraceRefused(Exception):
    """strace is not here or may not trace this process; the text says which."""


def count_calls(
    pid: int, window_s: float, *, follow: bool = True
) -> tuple[dict[str, int], str, float]:
    """Calls of all threads of ``pid`` by name, strace's own table, and the seconds
    counted.

    Without ``follow``, ``pid`` is a thread's id and only that thread is counted. On
    return strace is gone and the target runs on as before.

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
        # Were this process killed now, strace would stay attached for ever: let it end
        # itself.
        if timeout := shutil.which("timeout"):
            command = [
                timeout,
                "-s",
                "INT",
                "-k",
                "5",
                str(window_s + _ATTACH_S + 5),
                *command,
            ]
        try:
            counted_s, stderr = _trace(command, pid, window_s)
        finally:
            resume_after_trace(pid, before.state)
        text = table.read_text("utf-8", "replace") if table.exists() else ""
        if counted_s <= 0:
            raise StraceRefused(_why_refused(stderr))
    return parse_table(text), text, counted_s


def _trace(command: list[str], pid: int, window_s: float) -> tuple[float, str]:
    """Return the seconds that strace was attached (0: never), and what it wrote to
    stderr. Raises StraceRefused: it had to be killed."""
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env={**os.environ, "LC_ALL": "C"},
            start_new_session=True,
        )

        def attached_or_ended() -> bool:
            return process.poll() is not None or b"attached" in _so_far(errors)

        counted_s = 0.0
        try:
            wait_until(attached_or_ended, _ATTACH_S)
            # Attached now, or given up: strace ends at once when it is refused.
            if process.poll() is None and processes.tracer(pid) != 0:
                attached = time.monotonic()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(window_s)
                counted_s = time.monotonic() - attached
        finally:
            wrote_its_table = _end(process)
        if not wrote_its_table:
            # No table reads like "no call at all": that must never be taken for a
            # count.
            raise StraceRefused("strace did not end when asked to and was killed")
        return counted_s, _so_far(errors).decode("utf-8", "replace")


def _end(process: subprocess.Popen[bytes]) -> bool:
    """End strace; return whether it ended by itself. SIGINT makes it detach and write
    its table, SIGKILL only makes it detach."""
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
    """Return why strace did not attach: its first line, if that is not known better."""
    if "not permitted" in stderr:
        return (
            "strace may not trace it (needs root or CAP_SYS_PTRACE, "
            "kernel.yama.ptrace_scope 0, "
            "docker --cap-add SYS_PTRACE; only one tracer at a time)"
        )
    for line in stderr.splitlines():
        if line.strip():
            return line[:300]
    return "strace did not attach"


def parse_table(text: str) -> dict[str, int]:
    """Calls by name of ``strace -c``; lines that are no row are skipped, never fatal.

    A row reads ``% time, seconds, usecs/call, calls, [errors,] syscall``. No table at
    all means that there was no call."""
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


# ------------------------------------------------------------------ names of calls


# Name, number on x86_64 and on aarch64 (-: it has none) of the calls that threads block
# in.
# Sources: arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h.
_CALLS = """
    read 0 63, write 1 64, poll 7 -, pread64 17 67, pwrite64 18 68, select 23 -,
    sched_yield 24 124, pause 34 -, nanosleep 35 101, connect 42 203, accept 43 202,
    sendto 44 206, recvfrom 45 207, sendmsg 46 211, recvmsg 47 212, wait4 61 260, fcntl 72 25,
    flock 73 32, fsync 74 82, rt_sigtimedwait 128 137, rt_sigsuspend 130 133, futex 202 98,
    restart_syscall 219 128, clock_nanosleep 230 115, epoll_wait 232 -, waitid 247 95,
    pselect6 270 72, ppoll 271 73, epoll_pwait 281 22, accept4 288 242, recvmmsg 299 243,
    io_uring_enter 426 426, epoll_pwait2 441 441, futex_waitv 449 449
"""
_COLUMNS = {"x86_64": 1, "aarch64": 2, "arm64": 2}


def syscall_name(number: int, machine: str | None = None) -> str:
    """Return ``futex`` for 202 on x86_64; ``syscall_<number>`` for one that the table
    lacks."""
    column = _COLUMNS.get(machine or platform.machine(), 0)
    for row in _CALLS.split(","):
        fields = row.split()
        if fields[column] == str(number):
            return fields[0]
    return f"syscall_{number}"
