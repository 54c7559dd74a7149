"""Spinning in user space, busy in the kernel, or blocked: what a process's system calls say.

Alone::

    from mmrepro.probes.base import run_probe
    from mmrepro.probes.syscalls import SyscallsProbe
    result = run_probe(SyscallsProbe(pid), Path("evidence"), 8)
    print(result.data.verdict, result.data.why)
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, replace
from typing import Literal, Self

from mmrepro.base import processes
from mmrepro.probes._strace import DETACH_S, StraceRefused, count_calls
from mmrepro.probes._syscall_names import syscall_name
from mmrepro.probes.base import Probe, RawSink, Subject, TimedOut, Unavailable
from mmrepro.probes.data import SyscallsData

Verdict = Literal["spinning-in-user-space", "busy-in-kernel", "blocked", "working", "unclear"]

SPIN_PCT = 70.0
IDLE_PCT = 5.0
FEW_CALLS_PER_S = 200.0
FEW_LOCK_CALLS_PER_S = 2000.0
FEW_SWITCHES_PER_S = 100.0

# Calls of threads that queue for a lock. CPython's waiters for the GIL wake every 5 ms, so a
# thread that spins while others wait comes with hundreds of them: contention, not work.
LOCK_CALLS = frozenset({"futex", "futex_waitv", "sched_yield", "restart_syscall"})


@dataclass(frozen=True)
class Load:
    """What was measured over the window. Percentages are of one core, rates per second.

    ``queued_pct``: how long the busiest thread was runnable without getting a core. On a crowded
    machine a spinning thread gets half a core; what counts is that it never once slept.
    """

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


def judge(load: Load) -> tuple[Verdict, str]:
    """What ``load`` says of the process, and one sentence with the numbers. Pure.

    Without counted calls the busiest thread's voluntary context switches stand in for them: a
    thread that does I/O or takes locks sleeps now and then, one that spins never does.
    """
    cpu = f"user CPU {load.user_pct:.0f} %, system CPU {load.system_pct:.0f} % of a core"
    rate = _rate(load)
    total = load.user_pct + load.system_pct
    few = _few_calls(load)
    if load.threads and load.stopped == load.threads:
        return "blocked", f"every thread is stopped by a signal or a tracer; {cpu}"
    if load.system_pct >= 50 and load.system_pct > load.user_pct:
        return "busy-in-kernel", f"most of its time goes into system calls: {cpu}, {rate}"
    if total < IDLE_PCT:
        if load.asleep == load.threads and few:
            return "blocked", f"all {load.threads} threads wait: {cpu}, {rate}"
        if not few:
            return "working", f"little CPU but many system calls: {cpu}, {rate}"
        return "unclear", f"{load.asleep} of {load.threads} threads wait: {cpu}, {rate}"
    # What other threads do beside a spinning one (polling with a timeout, say) is no progress.
    own = load.busiest_calls_per_s
    spins = few if own is None else own < FEW_CALLS_PER_S
    if looks_spinning(load) and spins:
        queued = (
            f" (and waited {load.queued_pct:.0f} % of the time for a core)"
            if load.queued_pct >= 10
            else ""
        )
        return (
            "spinning-in-user-space",
            f"one thread computes without end at {load.busiest_user_pct:.0f} % of a core{queued} "
            f"and hardly calls the kernel: {cpu}, {rate}",
        )
    if not few:
        return "working", f"it computes and calls the kernel: {cpu}, {rate}"
    return "unclear", f"neither idle nor clearly spinning: {cpu}, {rate}"


def looks_spinning(load: Load) -> bool:
    """Whether one thread takes all the CPU that it can get, in user space; calls not looked at."""
    demand = load.busiest_user_pct + load.queued_pct
    pure = load.busiest_system_pct <= 0.2 * load.busiest_user_pct
    return demand >= SPIN_PCT and load.busiest_user_pct >= 20 and pure


def _few_calls(load: Load) -> bool:
    if load.calls_per_s is None:
        return load.switches_per_s < FEW_SWITCHES_PER_S
    other = load.calls_per_s - load.lock_calls_per_s
    return other < FEW_CALLS_PER_S and load.lock_calls_per_s < FEW_LOCK_CALLS_PER_S


def _rate(load: Load) -> str:
    if load.busiest_calls_per_s is not None:
        own = f"{load.busiest_calls_per_s:.0f} of its busiest thread"
        return f"{load.calls_per_s or 0:.0f} system calls/s, {own}"
    if load.calls_per_s is None:
        return f"{load.switches_per_s:.0f} voluntary context switches/s of its busiest thread"
    return f"{load.calls_per_s:.0f} system calls/s"


class SyscallsProbe(Probe[SyscallsData]):
    """Watches all threads of ``pid`` for ``window_s`` seconds.

    strace counts the calls where it is installed and allowed (``use_strace``); it slows a process
    down that makes many of them. Otherwise /proc tells which threads wait in which call.
    """

    name = "syscalls"
    needs = "pid"

    @classmethod
    def on(cls, subject: Subject) -> Self:
        return cls(subject.pid)

    def __init__(self, pid: int, window_s: float = 2.0, use_strace: bool = True) -> None:
        self.pid = pid
        self.window_s = window_s
        self.use_strace = use_strace

    def collect(self, sink: RawSink, deadline: float) -> SyscallsData:
        """Raises Unavailable when the process is not there, TimedOut without time to watch it."""
        if not processes.alive(self.pid):
            raise Unavailable(f"process {self.pid} does not exist (any more)")
        reserve_s = DETACH_S if self.use_strace else 0.2
        window_s = min(self.window_s, deadline - time.monotonic() - reserve_s)
        if window_s < 0.1:
            raise TimedOut(f"no time to watch process {self.pid}")
        asleep, stopped, waiting = settled_threads(self.pid)
        first, started = processes.threads(self.pid), time.monotonic()
        counts: dict[str, int] | None = None
        note, counted_s = "", 0.0
        if self.use_strace:
            try:
                counts, table, counted_s = count_calls(self.pid, window_s)
                sink.write("strace.txt", table or "no system call was seen\n")
            except StraceRefused as refusal:
                note = f" (calls not counted: {refusal})"
        time.sleep(max(min(window_s - (time.monotonic() - started), window_s), 0))
        second, seconds = processes.threads(self.pid), time.monotonic() - started
        if not second:
            raise Unavailable(f"process {self.pid} ended while it was watched")
        if counts is None:
            asleep, stopped, waiting = settled_threads(self.pid)
        load = measure(first, second, seconds, asleep, stopped)
        if counts is not None:
            locks = sum(counts.get(name, 0) for name in LOCK_CALLS)
            load = replace(
                load,
                calls_per_s=sum(counts.values()) / counted_s,
                lock_calls_per_s=locks / counted_s,
            )
            if looks_spinning(load) and not _few_calls(load):
                load = self._count_busiest(load, sink, deadline)
        verdict, why = judge(load)
        return SyscallsData(
            pid=self.pid,
            method="proc" if counts is None else "strace",
            window_s=round(counted_s if counts is not None else seconds, 3),
            counts=counts or {},
            total=None if counts is None else sum(counts.values()),
            waiting_in=dict(Counter(waiting.values()).most_common()),
            waits=waiting,
            user_pct=load.user_pct,
            system_pct=load.system_pct,
            verdict=verdict,
            why=why + note,
        )

    def _count_busiest(self, load: Load, sink: RawSink, deadline: float) -> Load:
        """Count the calls of the busiest thread alone; unchanged when there is no time or right."""
        window_s = min(0.5, deadline - time.monotonic() - DETACH_S)
        if window_s < 0.1:
            return load
        try:
            counts, table, seconds = count_calls(load.busiest_tid, window_s, follow=False)
        except StraceRefused:
            return load
        sink.write("strace-busiest.txt", table or "no system call was seen\n")
        return replace(load, busiest_calls_per_s=sum(counts.values()) / seconds)


def measure(
    first: dict[int, processes.Thread],
    second: dict[int, processes.Thread],
    seconds: float,
    asleep: int,
    stopped: int,
) -> Load:
    """The load between two readings of a process's threads, ``seconds`` apart."""
    user = system = 0.0
    busiest = (0.0, 0.0, 0.0, 0.0, 0)
    for tid, after in second.items():
        before = first.get(tid)
        if before is None:
            continue
        pct = 100 / processes.TICKS_PER_S / seconds
        thread_user = (after.stat.user_ticks - before.stat.user_ticks) * pct
        thread_system = (after.stat.system_ticks - before.stat.system_ticks) * pct
        user, system = user + thread_user, system + thread_system
        if thread_user + thread_system > busiest[0] + busiest[1]:
            queued = (after.queued_s - before.queued_s) / seconds * 100
            switches = (after.voluntary - before.voluntary) / seconds
            busiest = (thread_user, thread_system, min(max(queued, 0.0), 100.0), switches, tid)
    return Load(
        user_pct=round(user, 1),
        system_pct=round(system, 1),
        busiest_user_pct=busiest[0],
        busiest_system_pct=busiest[1],
        queued_pct=busiest[2],
        switches_per_s=busiest[3],
        busiest_tid=busiest[4],
        threads=len(second),
        asleep=min(asleep, len(second)),
        stopped=min(stopped, len(second)),
    )


def settled_threads(pid: int, looks: int = 3) -> tuple[int, int, dict[int, str]]:
    """The look at ``waiting_threads`` that found most of them at rest.

    A thread that polls once a second must not make an idle process look busy because we came at
    the wrong moment.
    """
    taken = [waiting_threads(pid)]
    for _ in range(looks - 1):
        time.sleep(0.02)
        taken.append(waiting_threads(pid))
    return max(taken, key=lambda look: look[0])


def waiting_threads(pid: int) -> tuple[int, int, dict[int, str]]:
    """How many threads are asleep and how many stopped, and the call that each sleeping one
    waits in, by thread id.

    The call's name needs the right to trace; without it the kernel function (``wchan``) is named
    if it can be read, else ``unknown``.
    """
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
    fields = processes.read(pid, f"task/{tid}/syscall").split()
    if fields and fields[0].isdigit():
        return syscall_name(int(fields[0]))
    kernel_function = processes.read(pid, f"task/{tid}/wchan").decode("ascii", "replace").strip()
    return kernel_function if kernel_function not in ("", "0") else "unknown"
