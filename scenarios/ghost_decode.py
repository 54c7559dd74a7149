"""SGLang: a client goes away, and its request decodes on with nobody who could end it."""

from __future__ import annotations

import asyncio
from collections import Counter

from mmrepro.scenario import (
    Drive,
    FailureClass,
    Finding,
    Logs,
    Measured,
    Requests,
    Scenario,
    Severity,
    Truth,
    Upstream,
    UpstreamState,
    answered,
    cause,
    claim,
    endpoints_green,
    issue,
    precondition,
    pull,
    quote,
    row,
    symptom,
    unmitigated,
    upgrade,
)
from mmrepro.scenario.more import checks
from mmrepro.scenario.sglang import (
    ABORTS,
    LONG_S,
    abort,
    measure_pace,
    paced,
    stream,
)

DECODE_S, MOST = 25.0, 8000
"""Seconds that a whole answer decodes, many times the two after which an abort is sent; tokens."""
LEAST_S, LOOK_S = 10.0, 5.0
LONG, SHORT = 0.4, 0.2
"""Of the time of a whole answer: what waits that long waits for it; what waits so long does not."""
STAYS, GHOST, AFTER = "control: a client that stays", "ghost: a client that leaves", "afterwards"
RIDS = {STAYS: "stays-1", GHOST: "ghost-1"}
FORGOTTEN = "output-for-nobody"
FLOOD = 20
"""Lines for one request: a few may come while an abort is under way."""


def waits_for_it(requests: Requests) -> Finding:
    waited, whole = requests.first(AFTER), requests.first(STAYS).latency_s
    text = f"{waited.latency_s:.1f} s for a new request; a whole answer takes {whole:.1f} s"
    if not waited.timed_out and SHORT * whole < waited.latency_s < LONG * whole:
        return Finding.unknown(text)
    return Finding.of(waited.timed_out or waited.latency_s >= LONG * whole, text)


def at_once(requests: Requests) -> Finding:
    found = waits_for_it(requests)
    if found.truth is Truth.UNKNOWN:
        return found
    return Finding.of(found.truth is Truth.NOT_MET, found.observed)


def forgotten(logs: Logs) -> Counter[str]:
    """How many lines there are of output for nobody, of those that were kept, by request."""
    return Counter(found[1] for found in logs.search(FORGOTTEN, r"rid='([^']+)'"))


def none_forgotten(logs: Logs) -> Finding:
    count = logs.count(FORGOTTEN)
    return Finding.of(count < FLOOD, f"{count} × {FORGOTTEN} in the log")


def flooded(logs: Logs) -> Finding:
    most = forgotten(logs).most_common(1)
    text = f"{most[0][1]} lines or more of {most[0][0]}" if most else "none is forgotten"
    return Finding.of(bool(most) and most[0][1] >= FLOOD, text)


FIX = pull("sglang#35255", "abort handling after a client disconnect", release="0.5.20")


class GhostDecode(Scenario):
    """A client of SGLang goes away, and its request decodes on to max_tokens, beyond any abort.

    What: The client of a stream goes away. Its request goes on decoding to `max_tokens`, takes
    one of the places in the batch, and the log gets a line for each of its tokens. An
    `/abort_request` with its id answers 200 and ends nothing.

    Why: The tokenizer manager drops the state of a request whose client went away. The abort that
    it sends two seconds later, and each later one, are dropped because there is no such state any
    more: the scheduler is never told.
    """

    name, engine, release = "ghost-decode", "sglang", "0.5.19"
    # Run: 0.5.19, and 0.5.20, which is well. By sglang#35936 0.5.17 is well, and 0.5.18 is not.
    affected = ">=0.5.18,<0.5.20"
    max_model_len = 8192
    server = "--max-running-requests 1"
    log_patterns = {
        FORGOTTEN: r"Received output for rid='[^']+' but the state was deleted",
    }
    key_log_patterns = (FORGOTTEN,)
    mitigations = (upgrade("0.5.20"),)
    failure_class, severity = FailureClass.WORK_SURVIVES_CLIENT, Severity.HIGH
    upstream = Upstream(UpstreamState.FIXED, FIX, "2026-11-24", "0.5.20")
    references = (
        issue("sglang#36333", "a disconnected client leaves a request that decodes on"),
        FIX,
    )
    sources = (
        quote(
            "sglang/srt/managers/tokenizer_manager.py", "TokenizerManager.abort_request",
            "an abort without a state goes no further", "rid not in self.rid_to_state",
        ),
        quote(
            "sglang/srt/managers/tokenizer_manager.py",
            "TokenizerManager._discard_pending_req_states",
            "the state goes, whether or not the scheduler has the request", "rid_to_state.pop",
        ),
    )  # fmt: skip

    async def gate(self, drive: Drive) -> None:
        await drive.chat("gate: text only", text="hello")
        await measure_pace(drive, DECODE_S, MOST)

    async def trigger(self, drive: Drive) -> None:
        await stream(drive, STAYS, RIDS[STAYS], paced(drive))
        before = await drive.metric(ABORTS) or 0.0
        await stream(drive, GHOST, RIDS[GHOST], paced(drive), leave_at=2)
        asking = drive.traffic.chat(AFTER, text="hello", deadline_s=max(drive.deadline_s, LONG_S))
        after = asyncio.ensure_future(asking)
        await asyncio.wait({after}, timeout=LOOK_S)
        await abort(drive, RIDS[GHOST])
        await after
        drive.fact("aborts_passed_on", (await drive.metric(ABORTS) or 0.0) - before)

    @precondition("the client left in the middle of what takes its time")
    def left_early(self, requests: Requests) -> Finding:
        stayed, left = requests.first(STAYS), requests.first(GHOST)
        text = f"left after {left.pieces} of {left.max_tokens} pieces; "
        text += f"a whole answer takes {stayed.latency_s:.1f} s"
        early = left.left and left.pieces == 2 and stayed.answered
        return Finding.of(early and stayed.latency_s >= LEAST_S, text)

    symptoms = (
        symptom(
            "the one place in the batch stays taken, for as long as a whole answer takes",
            waits_for_it,
        ),
        endpoints_green(),
    )
    live_only = (symptom("the server answers: a small request is answered", checks.engine_works),)

    @cause(
        "the log has line after line of output for it that nobody waits for, and for no other",
        live=cause("the log has line after line of output of a request that is forgotten", flooded),
    )
    def for_nobody(self, logs: Logs) -> Finding:
        found = forgotten(logs)
        text = ", ".join(f"{count} × {rid}" for rid, count in found.items()) or "none"
        return Finding.of(found.keys() == {RIDS[GHOST]} and found[RIDS[GHOST]] >= FLOOD, text)

    def to_the_end(self, logs: Logs, requests: Requests) -> Finding:
        """Each token has its line, but for those that the client saw, and the last."""
        lines, tokens = logs.count(FORGOTTEN), requests.first(GHOST).max_tokens or 0
        text = f"{lines} lines for {tokens} tokens"
        return Finding.of(tokens > 0 and lines >= tokens * 9 // 10, text)

    @cause("the tokenizer manager passed none of its aborts on to the scheduler")
    def never_passed_on(self, measured: Measured, requests: Requests) -> Finding:
        asked, passed = requests.first("abort").status, measured.number("aborts_passed_on")
        text = f"/abort_request answered {asked}; aborts passed on: {passed:g}"
        return Finding.of(asked == 200 and passed == 0, text)

    works_after = (at_once, none_forgotten, answered(STAYS, AFTER))
    rows = (
        row("a new request", waits_for_it, "answered at once"),
        row("output for nobody, in the log", "for-nobody", "none"),
        row("another client's requests", answered(STAYS, AFTER), "answered", abnormal_if=False),
    )
    claims = (
        claim(
            "decodes-on", "the request decodes on after its client left",
            by=(waits_for_it, to_the_end), given=("left-early", unmitigated), refutable_on=affected,
        ),
        claim(
            "abort-dropped", "/abort_request answers 200 and has no effect",
            by="never-passed-on", given=(waits_for_it, "left-early"),
        ),
        claim(
            "fixed", "sglang#35255 (0.5.20) fixes it", FIX,
            by=at_once, given="left-early", releases=">=0.5.20",
        ),
    )  # fmt: skip


SCENARIO = GhostDecode()
