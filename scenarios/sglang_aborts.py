"""SGLang: an abort that ends requests of others, and one that ends nothing."""

import asyncio
import re
from collections import Counter
from itertools import permutations

from mmrepro.scenario import (
    Check,
    Drive,
    FailureClass,
    Finding,
    Logs,
    Measured,
    Metrics,
    Reproducers,
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
    sglang,
    symptom,
    unmitigated,
    upgrade,
)
from mmrepro.scenario.more import checks

_REPRODUCER = "abort_by_prefix.py"
_FLAG = pull(
    "sglang#32237", "aborting requests by rid prefix, with a flag", "makes it explicit"
)
_VICTIM_S, _VICTIM_MOST = 12.0, 1900
"""Seconds that a victim decodes, more than the two that a disconnect's abort may take;
tokens."""
_ABORTED = "aborted-by-rid"
_CONTROL = "control: user10-a beside user2"
_LEFT, _ASKED = "victim: user10-b beside user1", "victim: user10-c beside user1"
_NUMBERED = "victim: req-10 beside req-1"
_CASES = {_CONTROL: False, _LEFT: False, _ASKED: True, _NUMBERED: False}
"""Whether the other one is aborted over /abort_request; else its client goes away."""
_VICTIMS = (_LEFT, _ASKED, _NUMBERED)


def _rids(label: str) -> tuple[str, str]:
    """The ids of the victim and of the other one."""
    words = label.split()
    return words[1], words[3]


def _ended(requests: Requests, label: str) -> tuple[bool, str]:
    """Whether that request was ended by an abort, and how it ended, for people."""
    sent = requests.first(label)
    ending = sent.finish_reason or sent.error[:80] or sent.reply
    early = "abort" in ending.lower() and (sent.completion_tokens or 0) < (
        sent.max_tokens or 0
    )
    return (
        early,
        f"{label}: {ending}, {sent.completion_tokens} of {sent.max_tokens} tokens",
    )


def _aborted(logs: Logs) -> list[tuple[str, str]]:
    """When, and the id, of each request that the scheduler ended."""
    lines = [
        (line.time or "", re.search(r"rid='([^']*)'", line.text))
        for line in logs.lines(_ABORTED)
    ]
    return [(time, found[1]) for time, found in lines if found]


def _taken_along(logs: Logs) -> Finding:
    pairs = [(a, b) for a, b in permutations(_aborted(logs), 2) if a[0] == b[0]]
    longer = sorted(
        {
            f"{b[1]} with {a[1]}"
            for a, b in pairs
            if a[1] != b[1] and b[1].startswith(a[1])
        }
    )
    return Finding.of(
        bool(longer), f"aborted in one second: {', '.join(longer) or 'none begins so'}"
    )


def _more_than_asked(logs: Logs, metrics: Metrics) -> Finding:
    asked = metrics.readings((sglang.ABORTS,), least=1)[-1]
    ended = len(_aborted(logs))
    return Finding.of(
        ended > asked, f"{asked:g} aborts asked for, {ended} requests aborted"
    )


def whole(*labels: str) -> Check:
    """Each of these was answered, with all the tokens that were asked for."""

    def all_whole(requests: Requests) -> Finding:
        every_one = True
        observed: list[str] = []
        for label in labels:
            sent = requests.first(label)
            is_whole = sent.answered and sent.completion_tokens == sent.max_tokens
            every_one = every_one and is_whole
            observed.append(_ended(requests, label)[1])
        return Finding.of(every_one, "; ".join(observed))

    return all_whole


def _alone(reproducers: Reproducers) -> Finding:
    said = reproducers.facts(_REPRODUCER).get("the_whole_id_ends")
    return Finding.of(said == "user10-b", f"an abort of user10-b ends {said}")


def _ended_row(label: str) -> Check:
    def early(requests: Requests) -> Finding:
        return Finding.of(*_ended(requests, label))

    return early


class AbortByPrefix(Scenario):
    """SGLang's abort of one request ends those of other clients whose ids begin alike.

    What: A client with the request id `user1` goes away, or aborts its request: the
    request `user10-b` of another client ends with finish_reason `abort`. Ids that are
    numbered collide without any intent: `req-1` takes `req-10` with it.

    Why: The scheduler ends each request of which `rid.startswith(…)` is true, of its
    queue as of its running batch. What ids there are is for the callers to choose."""

    name, engine, release = "abort-by-prefix", "sglang", "0.5.23"
    # Run: 0.5.23, the newest there is. By source (managers/scheduler.py) so do 0.5.6
    # and 0.5.17; on 0.5.18 and 0.5.19 no abort of a client that left reaches the
    # scheduler (ghost-decode).
    affected = ">=0.5.6,!=0.5.18,!=0.5.19"
    server = "--log-level debug"
    reproducers = (_REPRODUCER,)
    log_patterns = sglang.PATCH_LOG | {
        _ABORTED: r"Abort (?:running|queued) request\. req\.rid='"
    }
    key_log_patterns = (_ABORTED,)
    mitigations = (
        sglang.mended(
            "exact-rid",
            (
                "Scheduler.abort_request, which sees requests whose id only begins so "
                "under another"
            ),
            "an abort ends the request that is called so, and no other",
        ),
    )
    failure_class, severity = FailureClass.REQUESTS_FAIL, Severity.HIGH
    upstream = Upstream(
        UpstreamState.OPEN, _FLAG, "2026-11-25", note="as a flag, so by wish only"
    )
    references = (
        issue("sglang#45002", "abort_request ends requests whose rid begins alike"),
        _FLAG,
    )
    sources = (
        quote(
            "sglang/srt/managers/scheduler.py",
            "Scheduler.abort_request",
            "ids that only begin alike are aborted as well",
            ".startswith(recv_req.rid)",
        ),
    )

    async def gate(self, drive: Drive) -> None:
        await drive.chat("gate: text only", text="hello")
        await sglang.measure_pace(drive, _VICTIM_S, _VICTIM_MOST)

    async def trigger(self, drive: Drive) -> None:
        tokens = sglang.paced(drive)
        for label, over_api in _CASES.items():
            (mine, other), before = (
                _rids(label),
                await drive.metric(sglang.ABORTS) or 0.0,
            )
            started, first = asyncio.Event(), asyncio.Event()
            victim = asyncio.ensure_future(
                sglang.stream(drive, label, mine, tokens, started=started)
            )
            await started.wait()
            leave = None if over_api else 2
            beside = sglang.stream(
                drive, f"other: {other}", other, tokens, leave_at=leave, started=first
            )
            leaving = asyncio.ensure_future(beside)
            await first.wait()
            if over_api:
                await sglang.abort(drive, other)
            await asyncio.gather(leaving, victim)
            drive.fact(
                f"aborts, {label}", (await drive.metric(sglang.ABORTS) or 0.0) - before
            )
        await drive.ask("afterwards", text="hello")

    @precondition("each time the server passed one abort on to its scheduler")
    def aborts_arrived(self, measured: Measured) -> Finding:
        counts = {label: measured.number(f"aborts, {label}") for label in _CASES}
        observed = "; ".join(f"{label}: {count:g}" for label, count in counts.items())
        return Finding.of(set(counts.values()) == {1}, observed)

    @symptom(
        "the request whose id begins with the one that was aborted ends as aborted, 3 "
        "of 3"
    )
    def victims_abort(self, requests: Requests) -> Finding:
        every_one = True
        observed: list[str] = []
        for label in _VICTIMS:
            early, text = _ended(requests, label)
            every_one = every_one and early
            observed.append(text)
        return Finding.of(every_one, "; ".join(observed))

    symptoms = (
        symptom(
            "one whose id does not begin so is answered whole",
            whole(_CONTROL),
            id="control",
        ),
        endpoints_green(),
    )

    @cause(
        "with each abort the scheduler's log has the victim's id, and never the control's",
        live=cause(
            "the scheduler's log has an id beside one that it begins with", _taken_along
        ),
    )
    def others_aborted(self, logs: Logs) -> Finding:
        aborted = [rid for _, rid in _aborted(logs)]
        victims = {_rids(label)[0] for label in _VICTIMS}
        control = _rids(_CONTROL)[0]
        only_victims = victims <= set(aborted) and control not in aborted
        return Finding.of(only_victims, f"aborted, by the log: {', '.join(aborted)}")

    @cause(
        "the engine's own scheduler, asked to abort one id, ends those that begin so"
    )
    def by_prefix(self, reproducers: Reproducers) -> Finding:
        names = ("ends_its_own", "ends_a_longer_one", "ends_others")
        own, longer, others = (reproducers.truth(_REPRODUCER, name) for name in names)
        ended = reproducers.facts(_REPRODUCER).get("ended")
        return Finding.of(
            own and longer and not others, f"an abort of user1 ends {ended}"
        )

    live_only = (
        symptom("more requests were aborted than was asked for", _more_than_asked),
        symptom("a small request is answered", checks.engine_works),
    )
    works_after = (whole(*_CASES), answered("afterwards"), sglang.patch_worked)
    rows = (
        row("user10-b, as user1's client leaves", _ended_row(_LEFT), "length", "abort"),
        row("user10-c, as user1 is aborted", _ended_row(_ASKED), "length", "abort"),
        row("req-10, as req-1's client leaves", _ended_row(_NUMBERED), "length"),
        row(
            "user10-a, as user2's client leaves", "control", "length", abnormal_if=False
        ),
    )
    claims = (
        claim(
            "prefix",
            "an abort ends each request whose rid begins with the given one",
            by=("by-prefix", "victims-abort", "others-aborted"),
            given=("aborts-arrived", unmitigated),
            refutable_on=affected,
        ),
        claim(
            "disconnect",
            "a client that goes away is enough",
            by=(_ended_row(_LEFT), "others-aborted"),
            given=("aborts-arrived", unmitigated),
            refutable_on=affected,
        ),
        claim(
            "whole-id", "an abort by the whole id ends that request alone", by=_alone
        ),
    )


ABORT_BY_PREFIX = AbortByPrefix()


_DECODE_S, _GHOST_MOST = 25.0, 8000
"""Seconds that a whole answer decodes, many times the two after which an abort is sent;
tokens."""
_LEAST_S, _LOOK_S = 10.0, 5.0
_LONG, _SHORT = 0.4, 0.2
"""Of the time of a whole answer: what waits that long waits for it; what waits so long
does not."""
_STAYS, GHOST, _AFTER = (
    "control: a client that stays",
    "ghost: a client that leaves",
    "afterwards",
)
_RIDS = {_STAYS: "stays-1", GHOST: "ghost-1"}
_FORGOTTEN = "output-for-nobody"
_FLOOD = 20
"""Lines for one request: a few may come while an abort is under way."""


def _waits_for_it(requests: Requests) -> Finding:
    waited, whole = requests.first(_AFTER), requests.first(_STAYS).latency_s
    text = (
        f"{waited.latency_s:.1f} s for a new request; a whole answer takes "
        f"{whole:.1f} s"
    )
    if not waited.timed_out and _SHORT * whole < waited.latency_s < _LONG * whole:
        return Finding.unknown(text)
    return Finding.of(waited.timed_out or waited.latency_s >= _LONG * whole, text)


def _at_once(requests: Requests) -> Finding:
    waits = _waits_for_it(requests)
    if waits.truth is Truth.UNKNOWN:
        return waits
    return Finding.of(waits.truth is Truth.NOT_MET, waits.observed)


def _forgotten(logs: Logs) -> Counter[str]:
    """How many lines there are of output for nobody, of those that were kept, by
    request."""
    lines = logs.search(_FORGOTTEN, r"rid='([^']+)'")
    return Counter(line[1] for line in lines)


def _none_forgotten(logs: Logs) -> Finding:
    count = logs.count(_FORGOTTEN)
    return Finding.of(count < _FLOOD, f"{count} × {_FORGOTTEN} in the log")


def _flooded(logs: Logs) -> Finding:
    forgotten = _forgotten(logs).most_common(1)
    if not forgotten:
        return Finding.of(False, "none is forgotten")
    rid, count = forgotten[0]
    return Finding.of(count >= _FLOOD, f"{count} lines or more of {rid}")


_FIX = pull(
    "sglang#35255", "abort handling after a client disconnect", release="0.5.20"
)


class GhostDecode(Scenario):
    """A client of SGLang goes away, and its request decodes on to max_tokens, beyond
    any abort.

    What: The client of a stream goes away. Its request goes on decoding to
    `max_tokens`, takes one of the places in the batch, and the log gets a line for each
    of its tokens. An `/abort_request` with its id answers 200 and ends nothing.

    Why: The tokenizer manager drops the state of a request whose client went away. The
    abort that it sends two seconds later, and each later one, are dropped because there
    is no such state any
    more: the scheduler is never told.
    """

    name, engine, release = "ghost-decode", "sglang", "0.5.19"
    # Run: 0.5.19, and 0.5.20, which is well. By sglang#35936 0.5.17 is well, and 0.5.18
    #     is not.
    affected = ">=0.5.18,<0.5.20"
    max_model_len = 8192
    server = "--max-running-requests 1"
    log_patterns = {
        _FORGOTTEN: r"Received output for rid='[^']+' but the state was deleted"
    }
    key_log_patterns = (_FORGOTTEN,)
    mitigations = (upgrade("0.5.20"),)
    failure_class, severity = FailureClass.WORK_SURVIVES_CLIENT, Severity.HIGH
    needs = ("a client that leaves",)
    upstream = Upstream(UpstreamState.FIXED, _FIX, "2026-11-24", "0.5.20")
    references = (
        issue("sglang#36333", "a disconnected client leaves a request that decodes on"),
        _FIX,
    )
    sources = (
        quote(
            "sglang/srt/managers/tokenizer_manager.py",
            "TokenizerManager.abort_request",
            "an abort without a state goes no further",
            "rid not in self.rid_to_state",
        ),
        quote(
            "sglang/srt/managers/tokenizer_manager.py",
            "TokenizerManager._discard_pending_req_states",
            "the state goes, whether or not the scheduler has the request",
            "rid_to_state.pop",
        ),
    )

    async def gate(self, drive: Drive) -> None:
        await drive.chat("gate: text only", text="hello")
        await sglang.measure_pace(drive, _DECODE_S, _GHOST_MOST)

    async def trigger(self, drive: Drive) -> None:
        await sglang.stream(drive, _STAYS, _RIDS[_STAYS], sglang.paced(drive))
        before = await drive.metric(sglang.ABORTS) or 0.0
        await sglang.stream(drive, GHOST, _RIDS[GHOST], sglang.paced(drive), leave_at=2)
        asking = drive.traffic.chat(
            _AFTER, text="hello", deadline_s=max(drive.deadline_s, sglang.LONG_S)
        )
        after = asyncio.ensure_future(asking)
        await asyncio.wait({after}, timeout=_LOOK_S)
        await sglang.abort(drive, _RIDS[GHOST])
        await after
        drive.fact(
            "aborts_passed_on", (await drive.metric(sglang.ABORTS) or 0.0) - before
        )

    @precondition("the client left in the middle of what takes its time")
    def left_early(self, requests: Requests) -> Finding:
        stayed, left = requests.first(_STAYS), requests.first(GHOST)
        text = f"left after {left.pieces} of {left.max_tokens} pieces; "
        text += f"a whole answer takes {stayed.latency_s:.1f} s"
        early = left.left and left.pieces == 2 and stayed.answered
        return Finding.of(early and stayed.latency_s >= _LEAST_S, text)

    symptoms = (
        symptom(
            (
                "the one place in the batch stays taken, for as long as a whole "
                "answer takes"
            ),
            _waits_for_it,
        ),
        endpoints_green(),
    )
    live_only = (
        symptom("the server answers: a small request is answered", checks.engine_works),
    )

    @cause(
        (
            "the log has line after line of output for it that nobody waits for, and "
            "for no other"
        ),
        live=cause(
            "the log has line after line of output of a request that is forgotten",
            _flooded,
        ),
    )
    def for_nobody(self, logs: Logs) -> Finding:
        lines = _forgotten(logs)
        text = ", ".join(f"{count} × {rid}" for rid, count in lines.items()) or "none"
        return Finding.of(
            lines.keys() == {_RIDS[GHOST]} and lines[_RIDS[GHOST]] >= _FLOOD, text
        )

    def to_the_end(self, logs: Logs, requests: Requests) -> Finding:
        """Each token has its line, but for those that the client saw, and the last."""
        lines, tokens = logs.count(_FORGOTTEN), requests.first(GHOST).max_tokens or 0
        text = f"{lines} lines for {tokens} tokens"
        return Finding.of(tokens > 0 and lines >= tokens * 9 // 10, text)

    @cause("the tokenizer manager passed none of its aborts on to the scheduler")
    def never_passed_on(self, measured: Measured, requests: Requests) -> Finding:
        asked, passed = (
            requests.first("abort").status,
            measured.number("aborts_passed_on"),
        )
        text = f"/abort_request answered {asked}; aborts passed on: {passed:g}"
        return Finding.of(asked == 200 and passed == 0, text)

    works_after = (_at_once, _none_forgotten, answered(_STAYS, _AFTER))
    rows = (
        row("a new request", _waits_for_it, "answered at once"),
        row("output for nobody, in the log", "for-nobody", "none"),
        row(
            "another client's requests",
            answered(_STAYS, _AFTER),
            "answered",
            abnormal_if=False,
        ),
    )
    claims = (
        claim(
            "decodes-on",
            "the request decodes on after its client left",
            by=(_waits_for_it, to_the_end),
            given=("left-early", unmitigated),
            refutable_on=affected,
        ),
        claim(
            "abort-dropped",
            "/abort_request answers 200 and has no effect",
            by="never-passed-on",
            given=(_waits_for_it, "left-early"),
        ),
        claim(
            "fixed",
            "sglang#35255 (0.5.20) fixes it",
            _FIX,
            by=_at_once,
            given="left-early",
            releases=">=0.5.20",
        ),
    )


GHOST_DECODE = GhostDecode()
