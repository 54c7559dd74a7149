"""Conditions that scenarios share whose engine dies: an engine core that ends on an exception.

What a user sees of it: one request fails with 500 and every later one too, `/health` says 503 until
the server gives up and exits, and the log repeats the one error that matters many times over.

As in :mod:`mmrepro.signature.checks`, a function takes evidence and returns a finding, and none is
met by the absence of evidence.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from mmrepro.evidence import Evidence, RequestRecord
from mmrepro.probes.data import LogLine, ProcessesData
from mmrepro.signature import Finding, checks
from mmrepro.traffic.drive import Drive

LOG_PATTERNS: Mapping[str, str] = {
    "exception": r"(?:^|[\])] )(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception): ",
    "engine-dead": r"EngineDeadError",
}
"""``exception``: the last line of a traceback. ``engine-dead``: the API server's word for it
(vllm/v1/engine/exceptions.py, 0.11.0 to 0.14.0)."""

HEALTH = "health after the failure"
AFTER = "after: a new text"
EXIT_WAIT_S = 15.0
"""The API server looks every 5 s whether its engine died (entrypoints/launcher.py)."""
POLL_S = 0.25


async def watch(drive: Drive) -> None:
    """Ask ``/health`` until it answers 200 or nobody listens any more; a new request on the way."""
    first = await _health(drive)
    await drive.unless_stuck(drive.chat(AFTER, text="hello"))
    if first.status == 200:
        return
    end = time.monotonic() + EXIT_WAIT_S
    while time.monotonic() < end:
        if (await _health(drive)).status is None:
            return
        await asyncio.sleep(POLL_S)


async def _health(drive: Drive) -> RequestRecord:
    return await drive.traffic.raw(HEALTH, path="/health", method="GET", deadline_s=5.0)


def core_died(evidence: Evidence, role: str) -> Finding:
    """The API server calls its engine dead, and no living process has the engine's role."""
    said = checks.log_count(evidence, "engine-dead")
    if said is None:
        return Finding.unknown(evidence.why_missing("logs", "check"))
    if not said:
        return Finding.of(False, "the log holds no EngineDeadError")
    alive = [
        p.pid
        for _, data in evidence.results(ProcessesData, "check")
        for p in data.processes
        if role in p.role and p.state not in ("Z", "X")
    ]
    if alive:
        return Finding.of(False, f"EngineDeadError in the log, but {role} {alive[-1]} is alive")
    left = evidence.why_missing("processes", "check")
    if evidence.engine_exit is None and not list(evidence.results(ProcessesData, "check")):
        return Finding.unknown(f"EngineDeadError in the log; {left}")
    gone = f"{said} × EngineDeadError in the log and no process {role} left"
    return Finding.of(True, gone)


def requests_fail_with_500(evidence: Evidence, label: str) -> Finding:
    """The last request called ``label`` gets 500, and so does, or worse, every later one."""
    sent = evidence.labelled(label)
    if not sent:
        return Finding.unknown(f"{label} was not sent")
    said = f"{label}: {sent[-1].status or 'no answer'} {sent[-1].error[:120]}".rstrip()
    if sent[-1].status != 500:
        return Finding.of(False, said)
    later = evidence.labelled(AFTER)
    if not later:
        return Finding.unknown(f"{said}; no request was sent after it")
    text = f"{said}; then a new text: {later[0].status or later[0].error[:80]}"
    return Finding.of(not later[0].answered, text)


def health_is_503(evidence: Evidence) -> Finding:
    """``/health`` says 503 from the death on, every time, for as long as anybody listens."""
    asked = evidence.labelled(HEALTH)
    told = [r.status for r in asked if r.status is not None]
    if not asked:
        return Finding.unknown("/health was not asked after the failure")
    if not told:
        return Finding.unknown(f"/health did not answer any more: {asked[0].error[:120]}")
    text = ", ".join(f"{told.count(s)} × {s}" for s in dict.fromkeys(told))
    return Finding.of(all(s == 503 for s in told), f"/health after the failure: {text}")


def server_exits(evidence: Evidence) -> Finding:
    """The whole server ends by itself, some seconds after its engine."""
    if evidence.engine_exit is None and not evidence.labelled(HEALTH):
        return Finding.unknown("/health was not asked after the failure")
    if evidence.engine_exit is None:
        return Finding.of(False, "the server's process goes on without its engine")
    silent = [r for r in evidence.labelled(HEALTH) if r.status is None]
    first = next(iter(evidence.labelled(HEALTH)), None)
    after = (
        f" about {silent[0].sent.mono - first.sent.mono:.0f} s later" if silent and first else ""
    )
    return Finding.of(True, f"the server ended by itself{after}, exit code {evidence.engine_exit}")


def first_error(evidence: Evidence, role: str, wanted: str) -> Finding:
    """The first exception of the log is ``role``'s and matches pattern ``wanted``; others echo it.

    A dying engine fills its log: the same traceback again when the process ends, and the API
    server's EngineDeadError for every request. Which line came first tells what it died of.
    """
    count = checks.log_count(evidence, "exception")
    if count is None or checks.log_count(evidence, wanted) is None:
        return Finding.unknown(evidence.why_missing("logs", "check"))
    lines = checks.log_lines(evidence, "exception")
    if not lines:
        return Finding.of(False, "the log holds no exception")
    first = lines[0]
    numbers = {line.number for line in checks.log_lines(evidence, wanted)}
    text = f"{_where(first)}: {first.text[:160]}; {count - 1} later lines echo it"
    holds = role in first.process and first.number in numbers
    return Finding.of(holds, text)


def _where(line: LogLine) -> str:
    return f"line {line.number}, {line.process or 'a process without a name'}"
