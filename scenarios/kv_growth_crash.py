"""LMDeploy: a prompt that fits the KV cache, an answer that does not: the engine loop
dies."""

from functools import partial

from mmrepro.scenario import (
    Drive,
    FailureClass,
    Finding,
    Logs,
    Missing,
    Outcome,
    RequestRecord,
    Requests,
    Severity,
    Upstream,
    UpstreamState,
    cause,
    claim,
    endpoints_green,
    lmdeploy as kv,
    precondition,
    pull,
    quote,
    row,
    symptom,
)
from mmrepro.scenario.more import answers, every_request_fails
from packaging.specifiers import SpecifierSet

ROOM = 44
"""Tokens of answer that still fit after the prompt: 1300 of 1344 on 0.6.4."""
ANSWER = 100
_NAMELESS = SpecifierSet(">=0.9.0,<0.9.2")
"""``Engine.async_loop`` logs the exception's class and its text, of which this one has
none."""
_CUT = pull(
    "lmdeploy#3751", "limit max_session_len: the answer is cut", release="0.9.2"
)
_LATER = ("short after 1", "short after 2", "short after 3")
_in_lab = partial(
    claim,
    source="observation in the lab",
    given="prompt-fits",
    otherwise="no request of this run outgrew the cache",
)


def prompt_tokens(release: str) -> int:
    """Just so many that ``ROOM`` tokens are left below the limit, by arithmetic."""
    return kv.kv_plan(release).forward(kv.SMALL).max_tokens - ROOM


def fails(sent: RequestRecord) -> bool:
    """An error of the server, or no end: a 4xx is a refusal, which tells nothing of the
    engine."""
    refused = sent.status is not None and 400 <= sent.status < 500
    return not refused and answers.grade(sent).kind not in ("answered", "refusal")


def _growth_fails(requests: Requests) -> Finding:
    sent = requests.first("growing")
    return Finding.of(fails(sent), told(sent))


def _all_fail_after(requests: Requests) -> Finding:
    sent = [requests.first(label) for label in _LATER]
    words = [answers.grade(record).words for record in sent]
    return Finding.of(all(fails(record) for record in sent), "; ".join(words))


def _cut_short(requests: Requests, witness: kv.Witness) -> Finding:
    sent, limit = requests.first("growing"), witness.sizing().max_session_len
    tokens = length(sent)
    if not sent.answered or (tokens < limit and generated(sent) < ANSWER):
        raise Missing(f"it did not end at the limit of {limit:g}: {told(sent)}")
    return Finding.of(tokens == limit, told(sent))


def length(sent: RequestRecord) -> int:
    """Tokens of prompt and answer, as the client was told."""
    return (sent.prompt_tokens or 0) + generated(sent)


def generated(sent: RequestRecord) -> int:
    """Of those, the answer's."""
    return sent.completion_tokens or 0


def told(sent: RequestRecord) -> str:
    grade, tokens = answers.grade(sent), sent.completion_tokens
    if grade.kind == "answered" and tokens is not None and tokens < ANSWER:
        return f"{grade.words}, cut short: {ANSWER} were asked for"
    return grade.words


class KvGrowthCrash(kv.SmallKvCache):
    """An answer that outgrows the KV cache ends the engine loop for good.

    What: A prompt that fits the KV cache is accepted although the answer it asks for
    does not fit. When it has grown to the last block, the engine loop ends with an
    assertion. The HTTP server lives on, /health stays 200, and every later request
    fails.

    Why: The only sequence needs one more block and there is none, so the scheduler
    takes it out of the running ones to make room for itself. The engine loop is handed
    a step without a sequence, where `assert len(running) > 0` ends it. Nothing restarts
    the loop: each later request finds it dead after a second and fails."""

    name = "kv-growth-crash"
    release, affected = kv.RELEASE, ">=0.6.4,<0.9.2"
    references = (kv.FIX, _CUT)
    failure_class, severity = FailureClass.ENGINE_DEATH, Severity.CRITICAL
    upstream = Upstream(
        UpstreamState.NOT_LOOKED_UP, _CUT, note="this is the fix, in 0.9.2"
    )
    sources = (
        quote(
            "lmdeploy/pytorch/engine/engine.py",
            "Engine._async_loop_background",
            "the loop trusts that a step has a sequence",
            "assert len(running) > 0",
        ),
        kv.LIMIT_SOURCE,
    )
    log_patterns = kv.SmallKvCache.log_patterns | {
        "assertion": r"assert len\(running\) > 0",
        "loop-ended": r"Engine (?:main )?loop failed|Task <MainLoop\w*> failed|"
        r"_raise_exception_on_finish|exception happened: <class|AssertionError",
        "truncated": r"Update max_new_tokens|Truncate max_new_tokens",
    }
    key_log_patterns = ("assertion", "witness-limit", "truncated")
    needed = prompt_tokens(kv.RELEASE) + ANSWER
    mitigations = (
        kv.larger_setting(needed, f"prompt and answer ({needed} tokens)")[1],
    )
    outgrowing, later = ("growing",), _LATER
    trigger_deadline_s = 60.0
    """0.6.4 fails at once; on 0.7.0.post3 the growing request never ends."""

    async def outgrow(self, drive: Drive, where: str, short: RequestRecord) -> None:
        text = kv.filling(prompt_tokens(drive.release), short)
        await kv.ask(drive, f"{where}growing", text, ANSWER)

    def expected(
        self, release: str, mitigations: frozenset[str]
    ) -> tuple[Outcome, str]:
        outcome, why = super().expected(release, mitigations)
        if outcome is Outcome.REPRODUCED and _NAMELESS.contains(release):
            outcome = Outcome.INCONCLUSIVE
            why = f"{release} logs that an assertion ended the loop, and not which"
        return outcome, why

    async def gate(self, drive: Drive) -> None:
        short = await kv.ask(drive, "gate: short")
        text = kv.filling(prompt_tokens(drive.release), short)
        await kv.ask(drive, "gate: the prompt, a short answer", text)
        await kv.ask(drive, "gate: short again")

    def asked(self, witness: kv.Witness) -> int:
        return max(sent.tokens for sent in witness.requests()) + ANSWER

    @precondition("the answer grew until the cache was full, or it was given whole")
    def grew(self, requests: Requests, witness: kv.Witness, logs: Logs) -> Finding:
        """One that ended before tells nothing of a full cache."""
        sent, sizing = requests.first("growing"), witness.sizing()
        limit, kind = sizing.max_session_len, answers.grade(sent).kind
        if kind == "refusal":
            return Finding.of(True, f"refused for its length: {told(sent)}")
        if kind == "answered":
            whole = generated(sent) >= ANSWER or length(sent) >= limit
            return Finding.of(whole, f"{length(sent)} tokens in the end: {told(sent)}")

        seen = witness.requests()
        most = max(request.tokens for request in seen)
        longest = [request for request in seen if request.tokens == most]
        # The first is the gate's.
        if len(longest) > 1 and longest[1].generated:
            tokens = most + longest[1].generated
            text = f"the engine had {tokens} tokens of {limit:g} when it ended"
            return Finding.of(tokens > limit - sizing.block_size, text)
        if kv.since_start(logs, "assertion"):
            return Finding.of(
                True, "the engine loop ended with a step that had no sequence left"
            )
        raise Missing("how far the answer grew was not seen")

    symptoms = (
        symptom("the request that grows beyond the cache fails", _growth_fails),
        symptom("every later request fails (3 of 3, short ones)", _all_fail_after),
        endpoints_green("/health and /v1/models still answer 200", id="front-lives"),
        kv.control_answers("growing", "request"),
    )
    live_only = (every_request_fails(),)

    @cause(
        "the engine accepts the prompt: it is within max_input_len, and prompt and "
        "answer together are not"
    )
    def prompt_fits(self, witness: kv.Witness) -> Finding:
        sizing, seen = witness.sizing(), witness.requests()
        tokens = max(request.tokens for request in seen)
        refused = any(request.refused for request in seen if request.tokens == tokens)
        limit = sizing.max_session_len
        return Finding.of(
            not refused and tokens <= limit < tokens + ANSWER,
            f"{tokens} tokens, {limit:g} is the limit ({sizing.num_gpu_blocks:g} "
            f"blocks), {tokens + ANSWER} asked for",
        )

    @cause("the log holds `assert len(running) > 0` of the engine loop")
    def assertion(self, logs: Logs) -> Finding:
        from mmrepro.probes.log_words import public_line

        lines = kv.since_start(logs, "assertion")
        if lines:
            first = lines[0]
            return Finding.of(
                True,
                f"{len(lines)} × {public_line(first).strip()}, line {first.number}",
            )
        ended = [
            public_line(line).strip() for line in kv.since_start(logs, "loop-ended")
        ]
        if asserted := [text for text in ended if "AssertionError" in text]:
            raise Missing(f"the log does not say which assertion it was: {asserted[0]}")
        if ended:
            return Finding.of(False, f"the loop ended, not by that: {ended[0]}")
        raise Missing(
            "the log does not say that the loop ended: it did not, or errors are off"
        )

    works_after = (answers.given("growing", or_explained=True), answers.given(*_LATER))
    rows = (
        row(
            "the growing request", "growth-fails", answers.given(f"{kv.CONTROL}growing")
        ),
        row("short requests after it", "all-fail-after", "200"),
        row("/health, /v1/models", "front-lives", "200", abnormal_if=False),
    )
    claims = (
        _in_lab(
            "asserts",
            "0.6.4 to 0.7.1: the engine loop ends with assert len(running) > 0",
            by="assertion",
            releases=">=0.6.4,<=0.7.1",
        ),
        _in_lab(
            "all-fail",
            "0.6.4 to 0.7.1: the server lives on and fails every request",
            by=("assertion", "all-fail-after"),
            releases=">=0.6.4,<=0.7.1",
        ),
        _in_lab(
            "truncates",
            "0.18.0 cuts the answer at the limit",
            by=_cut_short,
            releases=">=0.9.2",
        ),
    )


SCENARIO = KvGrowthCrash()
