"""Conditions that several scenarios share: hangs that look healthy, and crashes.

Each function takes evidence and returns a finding; none raises on purpose (the evaluator turns
a raise into "unknown"), and none is met by the absence of evidence.
"""

from __future__ import annotations

from pathlib import Path

from mmrepro.evidence import Evidence, Phase
from mmrepro.probes.data import (
    HttpData,
    InferenceData,
    LogLine,
    LogsData,
    MetricsData,
    ProcessesData,
    ProcessUse,
    SyscallsData,
)
from mmrepro.signature import Finding, Truth

BUSY_PCT = 50.0
"""A thread that spins takes a whole core; on a crowded machine it gets half of one."""
QUEUED_PCT, STARVED_PCT, WANTED_PCT = 10.0, 10.0, 80.0
"""% of the time without a core that is worth saying; least use, and use with waiting, of a thread
that spins on an overloaded machine."""
IDLE_PCT = 30.0


def unanswered(evidence: Evidence) -> Finding:
    """A request of the trigger got no answer within its deadline, after others had."""
    hung = [r for r in evidence.requests_in("trigger") if r.timed_out]
    if not evidence.requests_in("trigger"):
        return Finding.unknown("no request was sent in the trigger")
    if not hung:
        count = len(evidence.requests_in("trigger"))
        return Finding.of(False, f"all {count} requests of the trigger ended in time")
    first = hung[0]
    gate = [r.latency_s for r in evidence.requests_in("gate") if r.answered]
    usual = f", against {max(gate):.2f} s at most in the gate" if gate else ""
    return Finding.of(True, f"{first.label}: no answer in {first.latency_s:.1f} s{usual}")


def probe_unanswered(evidence: Evidence) -> Finding:
    """A fresh small request after the trigger gets no answer either."""
    for _, data in evidence.results(InferenceData, "check"):
        if data.answered:
            return Finding.of(False, f"a new request was answered in {data.seconds:.2f} s")
        if data.status is not None:
            return Finding.of(False, f"a new request got HTTP {data.status}")
        if data.seconds < 0.9 * data.deadline_s:
            return Finding.of(False, f"a new request failed at once: {data.error}")
        return Finding.of(True, f"a new request got no answer in {data.seconds:.1f} s")
    return Finding.unknown(evidence.why_missing("inference", "check"))


def endpoints_green(evidence: Evidence) -> Finding:
    """The front says that all is well: every asked endpoint answers 200."""
    for _, data in evidence.results(HttpData, "check"):
        if not data.answers:
            return Finding.unknown("no endpoint was asked")
        said = ", ".join(f"{a.path} {a.status or a.error}" for a in data.answers)
        return Finding.of(all(a.status == 200 for a in data.answers), said)
    return Finding.unknown(evidence.why_missing("http", "check"))


def metric_readings(evidence: Evidence, names: tuple[str, ...], *phases: Phase) -> list[float]:
    """Values of the first of ``names`` that the server knows, one a reading, oldest first."""
    for name in names:
        values = [data.total(name) for _, data in evidence.results(MetricsData, *phases)]
        known = [v for v in values if v is not None]
        if known:
            return known
    return []


def queue_empty(evidence: Evidence, running: tuple[str, ...], waiting: tuple[str, ...]) -> Finding:
    """The scheduler reports nothing running and nothing waiting, in two readings."""
    runs = metric_readings(evidence, running, "check")
    waits = metric_readings(evidence, waiting, "check")
    if len(runs) < 2 or len(waits) < 2:
        return Finding.unknown(
            f"{min(len(runs), len(waits))} readings; " + evidence.why_missing("metrics", "check")
        )
    text = f"running {_numbers(runs)}, waiting {_numbers(waits)} (two readings)"
    return Finding.of(not any(runs) and not any(waits), text)


def no_progress(evidence: Evidence, counters: dict[str, tuple[str, ...]]) -> Finding:
    """Counters of finished work do not move between two readings."""
    moved: list[str] = []
    still: list[str] = []
    unread: list[str] = []
    for short, names in counters.items():
        values = metric_readings(evidence, names, "check")
        if len(values) < 2:
            unread.append(short)
        else:
            (still if values[0] == values[-1] else moved).append(f"{short} {_numbers(values)}")
    if not moved and (unread or not still):
        return Finding.unknown(f"not read twice: {', '.join(unread) or 'any counter'}")
    return Finding.of(not moved, "; ".join(moved or still))


def core_processes(evidence: Evidence, role: str, *phases: Phase) -> list[ProcessUse]:
    """One entry a reading for the process with that role."""
    return [
        process
        for _, data in evidence.results(ProcessesData, *phases)
        for process in data.processes
        if role in process.role
    ]


def core_burns_cpu(evidence: Evidence, role: str) -> Finding:
    """The engine's core process uses a core in user space; idle in the gate, it did not.

    On a machine that is overloaded it cannot have a whole one: what it waited for is counted as
    wanted, as long as it spent what it got in user space.
    """
    now = core_processes(evidence, role, "check")
    if not now:
        return Finding.unknown(f"no process {role} was measured")
    before = core_processes(evidence, role, "gate")
    baseline = f", idle in the gate {before[-1].user_pct:.0f} %" if before else ""
    use = now[-1]
    queued = f" (it waited {use.queued_pct:.0f} % of the time for one)"
    text = f"{role} {use.user_pct:.0f} % user + {use.system_pct:.0f} % system of a core"
    text += (queued if use.queued_pct >= QUEUED_PCT else "") + baseline
    if use.user_pct < BUSY_PCT and not _wants_a_core(use):
        if use.queued_pct >= BUSY_PCT:
            return Finding.unknown(f"{text}: the machine is overloaded")
        return Finding.of(False, text)
    if not before:
        return Finding.unknown(f"{text}; what it used in the gate was not measured")
    return Finding.of(before[-1].user_pct <= IDLE_PCT, text)


def core_busy(evidence: Evidence, role: str) -> Finding:
    """The engine's core process uses a core in user space; of a live server, where nothing is
    known of how it was before. On a crowded machine a reading may be low: the thread queued."""
    uses = core_processes(evidence, role, "check")
    if not uses:
        return Finding.unknown(f"no process {role} was measured")
    shares = ", ".join(f"{use.user_pct:.0f}" for use in uses)
    text = f"{role} {shares} % of a core in user space ({len(uses)} readings)"
    spins = spinning(evidence, {use.pid for use in uses})
    busy = spins or any(use.user_pct >= BUSY_PCT for use in uses)
    return Finding.of(busy, text)


def spinning(evidence: Evidence, pids: set[int]) -> bool:
    """Whether one of the processes was seen to spin in user space."""
    return any(
        data.pid in pids and data.verdict == "spinning-in-user-space"
        for _, data in evidence.results(SyscallsData, "check")
    )


def engine_works(evidence: Evidence, counters: dict[str, tuple[str, ...]], role: str) -> Finding:
    """A fresh small request is answered; where none was sent, counters of work done move.

    Without a request, a core that spins while nothing is finished speaks against it.
    """
    for _, data in evidence.results(InferenceData, "check"):
        said = f"answered in {data.seconds:.2f} s" if data.answered else data.error[:200]
        return Finding.of(data.answered, f"a small request: {said}")
    still = no_progress(evidence, counters)
    if still.truth is Truth.NOT_MET:
        return Finding(Truth.MET, still.observed)
    if still.truth is Truth.MET and spinning(
        evidence, {p.pid for p in core_processes(evidence, role, "check")}
    ):
        return Finding.of(False, f"{role} spins and finishes nothing: {still.observed}")
    return Finding.unknown(evidence.why_missing("inference", "check"))


def logged(evidence: Evidence, pattern: str, what: str) -> Finding:
    """The log holds lines of a named pattern."""
    count = log_count(evidence, pattern)
    if count is None:
        return Finding.unknown(evidence.why_missing("logs", "check"))
    if not count:
        return Finding.of(False, f"the log holds no line of {what}")
    first = log_lines(evidence, pattern)[0]
    when = f", first at {first.time}" if first.time else ""
    return Finding.of(True, f"{count} lines of {what}{when}")


def _wants_a_core(use: ProcessUse) -> bool:
    """Whether it would have used a core in user space, had it been given one."""
    in_user_space = use.user_pct >= STARVED_PCT and use.user_pct >= 4 * use.system_pct
    return in_user_space and use.user_pct + use.queued_pct >= WANTED_PCT


def spins_in_user_space(evidence: Evidence) -> Finding:
    """System calls tell spinning from waiting."""
    for _, data in evidence.results(SyscallsData, "check"):
        text = f"{data.verdict} ({data.method}): {data.why}"
        if data.verdict == "unclear":
            return Finding.unknown(text)
        return Finding.of(data.verdict == "spinning-in-user-space", text)
    return Finding.unknown(evidence.why_missing("syscalls", "check"))


def log_lines(evidence: Evidence, pattern: str) -> list[LogLine]:
    """Kept lines that match a named pattern, of the last reading of each log."""
    lines: dict[str, list[LogLine]] = {}
    for _, data in evidence.results(LogsData):
        if pattern in data.matches:
            lines[data.file] = data.matches[pattern]
    return [line for found in lines.values() for line in found]


def log_count(evidence: Evidence, pattern: str) -> int | None:
    """How many lines match a named pattern, of all logs; None if no log was searched for it, or
    if there is none in one of which only the end was read."""
    counts: dict[str, int] = {}
    unsure = False
    for _, data in evidence.results(LogsData):
        if pattern in data.match_counts:
            counts[data.file] = data.match_counts[pattern]
            unsure = unsure or data.skipped_bytes > 0
    total = sum(counts.values())
    return None if not counts or (total == 0 and unsure) else total


def log_files(evidence: Evidence) -> list[str]:
    """Names of the logs that were read, below evidence/."""
    return list(dict.fromkeys(Path(d.file).name for _, d in evidence.results(LogsData)))


def added_but_unfinished(evidence: Evidence, finished: tuple[str, ...]) -> Finding:
    """The front logged more requests as added than the engine ever finished.

    Whether a request that ended in an error counts as finished differs between releases, so those
    are held against the finding: they alone do not make it.
    """
    added = log_count(evidence, "added-request")
    done = metric_readings(evidence, finished, "check")
    if added is None:
        return Finding.unknown(evidence.why_missing("logs", "check"))
    if not done:
        return Finding.unknown(evidence.why_missing("metrics", "check"))
    if added == 0:
        return Finding.unknown('the log has no line "Added request": is it at DEBUG level?')
    failed = sum(1 for r in evidence.requests if r.status is not None and r.status >= 500)
    text = f'{added} requests logged as "Added request", {done[-1]:g} finished'
    if done[-1] < added <= done[-1] + failed:
        return Finding.unknown(f"{text}, {failed} failed: it may be those")
    return Finding.of(added > done[-1], text)


def engine_alive(evidence: Evidence) -> Finding:
    if evidence.engine_exit is None:
        return Finding.of(True, "the server's process runs")
    return Finding.of(False, f"the server's process ended with {evidence.engine_exit}")


def _numbers(values: list[float]) -> str:
    return " → ".join(f"{v:g}" for v in values)
