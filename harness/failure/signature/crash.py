"""Conditions that scenarios share whose engine dies: an engine core that ends on an
exception.

What a user sees of it: one request fails with 500 and every later one too, `/health`
says 503 until the server gives up and exits, and the log repeats the one error that
matters many times over.

As in ``checks``, a function takes evidence and returns a finding, and none is
met by the absence of evidence.
"""

import asyncio
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence

from mmrepro.engines import Engine
from mmrepro.failure.signature.decide import Finding
from mmrepro.failure.signature.views import Logs, Requests, core_processes, log_lines
from mmrepro.probes import LogLine, LogPattern, ProcessesData
from mmrepro.traffic import Drive
from mmrepro.traffic.evidence import Evidence, Missing, RequestRecord

LOG_PATTERNS: Mapping[str, str] = {
    "exception": LogPattern(
        r"(?:^|[\])] )(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception): ",
        "Error",
        "Exception",
    ),
    "engine-dead": r"EngineDeadError|engine core reported fatal failure",
    "device-assert": r": block: \[\d+,\d+,\d+\], thread: \[\d+,\d+,\d+\] Assertion ",
}
"""``exception``: the last line of a traceback. ``engine-dead``: the API server's word
for it (vllm/v1/engine/exceptions.py, 0.11.0 to 0.14.0), and that of vllm-rs (0.33.0).
``device-assert``: what a GPU
prints of a thread whose assertion failed (recorded:
tests/unit/device_assert_h100.json)."""

ASSERT_TRIGGERED = "CUDA error: device-side assert triggered"
"""What the next call that waits for the device raises: torch.AcceleratorError, in torch
2.11."""

HEALTH = "health after the failure"
AFTER = "after: a new text"
_EXIT_WAIT_S = 15.0
"""The API server looks every 5 s whether its engine died (entrypoints/launcher.py)."""
_POLL_S = 0.25


async def watch(drive: Drive) -> None:
    """Ask ``/health`` until it answers 200 or nobody listens any more; a new request on
    the way."""
    first = await _health(drive)
    await drive.unless_stuck(drive.chat(AFTER, text="hello"))
    if first.status == 200:
        return
    end = time.monotonic() + _EXIT_WAIT_S
    while time.monotonic() < end:
        if (await _health(drive)).status is None:
            return
        await asyncio.sleep(_POLL_S)


async def _health(drive: Drive) -> RequestRecord:
    return await drive.traffic.raw(HEALTH, path="/health", method="GET", deadline_s=5.0)


_OF_RUST = "engine core reported fatal failure"


def core_died(evidence: Evidence, logs: Logs, engine: Engine) -> Finding:
    """The API server calls its engine dead, and no living process has the engine's
    role."""
    count, role = logs.count("engine-dead"), engine.core_role
    if not count:
        return Finding.of(False, "the log holds no EngineDeadError")
    by_rust = any(_OF_RUST in line.text for line in logs.lines("engine-dead"))
    word = f'"{_OF_RUST}"' if by_rust else "EngineDeadError"
    uses = core_processes(evidence, role, "check")
    alive = [use.pid for use in uses if use.state not in ("Z", "X")]
    if alive:
        return Finding.of(False, f"{word} in the log, but {role} {alive[-1]} is alive")

    # That no core was seen says something only where processes were read, and where
    # the gate knew one by this role; of a server that ended nothing is left to read.
    if evidence.engine_exit is None:
        if not list(evidence.results(ProcessesData, "check")):
            why = evidence.why_missing("processes", "check")
            raise Missing(f"{word} in the log; {why}")
        if not core_processes(evidence, role, "gate"):
            raise Missing(
                f"{word} in the log; no process was called {role} in the gate either"
            )
    return Finding.of(True, f"{count} × {word} in the log and no process {role} left")


def requests_fail_with_500(requests: Requests, label: str) -> Finding:
    """The last request called ``label`` gets 500, and so does, or worse, every later
    one.

    Without an answer in time it may be late: that tells no death from a machine that is
    busy."""
    sent = requests.last(label)
    observed = f"{label}: {sent.status or 'no answer'} {sent.error[:120]}".rstrip()
    if sent.timed_out:
        return Finding.unknown(observed)
    if sent.status != 500:
        return Finding.of(False, observed)

    later = requests.first(AFTER)
    if later.timed_out:
        return Finding.unknown(f"{observed}; then a new text: {later.error[:80]}")
    reply = later.status or later.error[:80]
    return Finding.of(not later.answered, f"{observed}; then a new text: {reply}")


def health_is_503(requests: Requests) -> Finding:
    """``/health`` says 503 from the death on, every time, for as long as anybody
    listens."""
    asked = requests.all(HEALTH)
    statuses = [r.status for r in asked if r.status is not None]
    if not statuses:
        raise Missing(f"/health did not answer any more: {asked[0].error[:120]}")
    counts = Counter(statuses)
    text = ", ".join(f"{count} × {status}" for status, count in counts.items())
    return Finding.of(counts.keys() == {503}, f"/health after the failure: {text}")


def server_exits(evidence: Evidence) -> Finding:
    """The whole server ends by itself, some seconds after its engine."""
    asked, code = evidence.labelled(HEALTH), evidence.engine_exit
    if code is None:
        if not asked:
            raise Missing("/health was not asked after the failure")
        return Finding.of(False, "the server's process goes on without its engine")

    after = ""
    silent = [request.sent.mono for request in asked if request.status is None]
    if silent:
        after = f" about {silent[0] - asked[0].sent.mono:.0f} s later"
    return Finding.of(True, f"the server ended by itself{after}, exit code {code}")


def first_error(
    logs: Logs, role: str, wanted: str, asserted: str | None = None
) -> Finding:
    """The first exception of ``role``'s own process matches pattern ``wanted``; others
    echo it.

    A dying engine fills its log: the same traceback again when the process ends, and
    the API server's EngineDeadError for every request. Which line of the process that
    died came first tells what it died of; the API server has exceptions of its own, of
    each request that it refuses. Where the gate saw the process, one with another pid
    is another one.

    Of a device-side assert the exception says nothing but that there was one. Then what
    the device printed first, before it, has to match; it goes to stderr past Python, so
    no process is named.

    Args:
        wanted: "": no exception's own words are this one.
        asserted: expression of what the device prints, "": none is this one; None:
            pattern ``wanted`` has its words as well.
    """
    lines = logs.lines("exception")
    matching = {line.number for line in logs.lines(wanted)} if wanted else set()
    printed = log_lines(logs.evidence, "device-assert")
    if not lines:
        return _without_exception("the log holds no exception", printed)
    first = _first_of(role, lines, logs)
    if first is None:
        observed = f"none is of {role}'s process; {_where(lines[0])}"
        return _without_exception(observed, printed)

    # Of many lines the first and the last are kept: in the second half of those, an
    # earlier one of this process may be among the lines that were not.
    place, count = lines.index(first), logs.count("exception")
    if count > len(lines) and place * 2 >= len(lines):
        return Finding.unknown(
            f"{count - len(lines)} of {count} exceptions were not kept"
        )
    text = f"{_where(first)}; {count - place - 1} later lines echo it"
    if ASSERT_TRIGGERED not in first.text:
        return Finding.of(first.number in matching, text)

    before = [line for line in printed if line.number < first.number]
    if not before:
        return Finding.unknown(f"{text}; the log does not show which assertion it was")
    device = before[0]
    text = f"{text}; the device: {_shown(device, 240)}"
    if asserted is None:
        return Finding.of(device.number in matching, text)
    return Finding.of(bool(asserted and re.search(asserted, device.text)), text)


def _first_of(role: str, lines: Sequence[LogLine], logs: Logs) -> LogLine | None:
    """The first line of the role's process, by its pid where the gate saw it."""
    in_gate = {f"pid={use.pid}" for use in core_processes(logs.evidence, role, "gate")}
    for line in lines:
        if role not in line.process:
            continue
        if not in_gate or in_gate & set(line.process.split()):
            return line
    return None


def _without_exception(observed: str, printed: Sequence[LogLine]) -> Finding:
    """A process that a device-side assert aborts (freeing pinned memory does) logs
    none."""
    if printed:
        return Finding.unknown(
            f"{observed}; but a device printed: {_shown(printed[0], 240)}"
        )
    return Finding.of(False, observed)


def _shown(line: LogLine, most: int) -> str:
    # A scenario's file needs no forms of lines.
    from mmrepro.probes.log_words import public_line

    return public_line(line, most)


def _where(line: LogLine) -> str:
    process = line.process or "a process without a name"
    return f"line {line.number}, {process}: {_shown(line, 160)}"
