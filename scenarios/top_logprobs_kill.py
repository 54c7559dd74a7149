"""SGLang: one request for more top_logprobs than there are tokens ends the whole server."""

from __future__ import annotations

import json

from mmrepro.scenario import (
    Drive,
    FailureClass,
    Finding,
    Logs,
    Missing,
    RequestRecord,
    Requests,
    Scenario,
    Severity,
    Upstream,
    UpstreamState,
    answered,
    cause,
    claim,
    issue,
    precondition,
    pull,
    quote,
    row,
    symptom,
    unmitigated,
)
from mmrepro.scenario.more import TinyQwen2VL, crash
from mmrepro.scenario.sglang import ENDED, ENDED_LOG, PATCH_LOG, mended, patch_worked, server_lost
from mmrepro.traffic.reading import MAX_LIKELIEST, Watch

VOCABULARY = TinyQwen2VL().vocab_size
MANY = 100_000
LEGAL, TOO_MANY = "all of the vocabulary", "more than the vocabulary"
TRACE = (ENDED, "in-top-logprobs", "out-of-range")


def likeliest(sent: RequestRecord) -> int:
    """How many were told of the first token, as far as they are kept."""
    return max((len(top) for choice in sent.choices for top in choice.top), default=0)


REPORT = issue("sglang#40076", "top_logprobs > vocab size kills the scheduler")


class TopLogprobsKill(Scenario):
    """One request with top_logprobs beyond the vocabulary ends SGLang, for everybody.

    What: A chat completion with `top_logprobs: 100000` gets no answer: the connection is
    closed, and the server is gone for everybody. As many as the vocabulary has are answered.

    Why: Nothing holds `top_logprobs` against the vocabulary before the sampler takes the `topk`
    of the logits, which raises "selected index k out of range" in the scheduler's loop. The
    scheduler has no answer to an exception but to end the whole tree of processes.
    """

    name, engine, release = "top-logprobs-kill", "sglang", "0.5.23"
    # Run: 0.5.23, the newest there is. By source (layers/sampler.py, layers/logprob_processor.py)
    # 0.5.6 and 0.5.17 do it too.
    affected = ">=0.5.6"
    log_patterns = (
        PATCH_LOG
        | ENDED_LOG
        | {
            "in-top-logprobs": r"line \d+, in _?get_top_logprobs",
            "out-of-range": r"RuntimeError: selected index k out of range",
        }
    )
    key_log_patterns = TRACE
    mitigations = (
        mended(
            "top-logprobs",
            "TokenizerManager._validate_one_request, which compares top_logprobs first",
            "more top_logprobs than the vocabulary has tokens are refused with 400",
        ),
    )
    failure_class, severity = FailureClass.ENGINE_DEATH, Severity.CRITICAL
    upstream = Upstream(UpstreamState.OPEN, REPORT, "2026-11-24")
    references = (
        REPORT,
        pull("sglang#28794", "reject out-of-range top_logprobs_num", "a fix, not in 0.5.23"),
    )
    sources = (
        quote(
            "sglang/srt/layers/logprob_processor.py", "get_top_logprobs_raw",
            "k is what the request says", ".topk(max_k",
        ),
        quote(
            "sglang/srt/layers/sampler.py", "get_top_logprobs",
            "the same, in older releases", ".topk(max_k",
        ),
    )  # fmt: skip

    async def ask_for(self, drive: Drive, label: str, number: int) -> RequestRecord:
        body = {
            "model": drive.traffic.model, "messages": [{"role": "user", "content": "hello"}],
            "max_tokens": 2, "temperature": 0, "logprobs": True, "top_logprobs": number,
        }  # fmt: skip
        watch, data = Watch(lambda: None, lambda _: None), json.dumps(body).encode()
        return await drive.traffic.send(label, data, watch, deadline_s=drive.deadline_s)

    async def trigger(self, drive: Drive) -> None:
        await self.ask_for(drive, LEGAL, VOCABULARY)
        await drive.unless_stuck(self.ask_for(drive, TOO_MANY, MANY))
        await crash.watch(drive)

    @precondition("the number came as far as it is looked at: refused by name, given, or in topk")
    def looked_at(self, requests: Requests, logs: Logs) -> Finding:
        """A proxy that drops the field, or refuses the request for something else, is none."""
        sent = requests.first(TOO_MANY)
        if sent.status is not None and 400 <= sent.status < 500:
            return Finding.of("top_logprobs" in sent.error, sent.reply)
        if sent.answered:
            return Finding.of(likeliest(sent) == MAX_LIKELIEST, f"{likeliest(sent)} or more given")
        if not logs.count("in-top-logprobs"):
            raise Missing(f"it is not seen how far it came: {sent.reply}")
        return Finding.of(True, "the traceback goes through get_top_logprobs")

    @symptom("the request's connection ends without an answer, and so does every later one")
    def no_answer(self, requests: Requests) -> Finding:
        sent, later = requests.first(TOO_MANY), requests.first(crash.AFTER)
        text = f"{sent.reply}; then a new text: {later.reply}"
        if sent.timed_out or later.timed_out:
            return Finding.unknown(text)
        return Finding.of(sent.status is None and later.status is None, text)

    @symptom("as many as the vocabulary has are answered", id="legal-answered", live=False)
    def legal_answered(self, requests: Requests) -> Finding:
        sent = requests.first(LEGAL)
        given = likeliest(sent) == MAX_LIKELIEST
        return Finding.of(sent.answered and given, f"{VOCABULARY} asked for: {sent.reply}")

    symptoms = (server_lost(),)

    @cause("the scheduler ended on topk's exception in get_top_logprobs, the log's first one")
    def topk_raised(self, logs: Logs) -> Finding:
        found = {name: logs.lines(name) for name in TRACE}
        text = ", ".join(f"{len(lines)} × {name}" for name, lines in found.items())
        if not all(found.values()):
            return Finding.of(False, text)
        begun, inside, raised = (lines[0].number for lines in found.values())
        return Finding.of(begun < inside < raised, f"{text}; lines {begun}, {inside}, {raised}")

    rows = (
        row(f"top_logprobs {MANY}", "no-answer", answered(LEGAL), "connection closed"),
        row("the server", "server-gone", "alive", "gone"),
        row("the log's exception", "topk-raised", "none", "selected index k out of range"),
        row(f"top_logprobs {VOCABULARY}", "legal-answered", "200", abnormal_if=False),
    )
    claims = (
        claim(
            "kills", "one request with top_logprobs beyond the vocabulary ends the server",
            by=("no-answer", "server-gone"),
            given=("looked-at", unmitigated), refutable_on=affected,
        ),
        claim(
            "topk", "topk raises: selected index k out of range", by="topk-raised",
            given=("looked-at", unmitigated), refutable_on=affected,
        ),
        claim("bound", "up to the vocabulary's size it is answered", by="legal-answered"),
    )  # fmt: skip
    works_after = ("legal-answered", answered(crash.AFTER), patch_worked)


SCENARIO = TopLogprobsKill()
