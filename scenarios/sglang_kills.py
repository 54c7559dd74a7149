"""SGLang: requests, each of which ends the scheduler, and with it the whole server."""

import json
import re

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
    sglang,
    symptom,
    unmitigated,
    upgrade,
)
from mmrepro.scenario.more import TinyQwen2VL, TinyText, crash
from mmrepro.traffic import MAX_LIKELIEST, RequestWatch

_VOCABULARY = TinyQwen2VL().vocab_size
_BEYOND = 100_000
_LEGAL, _TOO_MANY = "all of the vocabulary", "more than the vocabulary"
_TRACE = (sglang.ENDED, "in-top-logprobs", "out-of-range")


def _likeliest(sent: RequestRecord) -> int:
    """How many were told of the first token, as far as they are kept."""
    most = 0
    for choice in sent.choices:
        for top in choice.top:
            most = max(most, len(top))
    return most


def _unanswered_since(requests: Requests, label: str) -> Finding:
    """Neither that request nor a later one got an HTTP answer, and neither waited for
    it."""
    sent, later = requests.first(label), requests.first(crash.AFTER)
    text = f"{sent.reply}; then a new text: {later.reply}"
    if sent.timed_out or later.timed_out:
        return Finding.unknown(text)
    return Finding.of(sent.status is None and later.status is None, text)


def _in_order(logs: Logs, trace: tuple[str, ...]) -> Finding:
    """The first line of each pattern, each after the one before: one traceback."""
    lines_of = {name: logs.lines(name) for name in trace}
    text = ", ".join(f"{len(lines)} × {name}" for name, lines in lines_of.items())
    if not all(lines_of.values()):
        return Finding.of(False, text)
    begun, inside, raised = (lines[0].number for lines in lines_of.values())
    observed = f"{text}; lines {begun}, {inside}, {raised}"
    return Finding.of(begun < inside < raised, observed)


_LOGPROBS_REPORT = issue(
    "sglang#40076", "top_logprobs > vocab size kills the scheduler"
)


class TopLogprobsKill(Scenario):
    """One request with top_logprobs beyond the vocabulary ends SGLang, for everybody.

    What: A chat completion with `top_logprobs: 100000` gets no answer: the connection
    is closed, and the server is gone for everybody. As many as the vocabulary has are
    answered.

    Why: Nothing holds `top_logprobs` against the vocabulary before the sampler takes
    the `topk` of the logits, which raises "selected index k out of range" in the
    scheduler's loop. The scheduler has no answer to an exception but to end the whole
    tree of processes."""

    name, engine, release = "top-logprobs-kill", "sglang", "0.5.23"
    # Run: 0.5.23, the newest there is. By source (layers/sampler.py,
    # layers/logprob_processor.py) 0.5.6 and 0.5.17 do it too.
    affected = ">=0.5.6"
    log_patterns = (
        sglang.PATCH_LOG
        | sglang.ENDED_LOG
        | {
            "in-top-logprobs": r"line \d+, in _?get_top_logprobs",
            "out-of-range": r"RuntimeError: selected index k out of range",
        }
    )
    key_log_patterns = _TRACE
    mitigations = (
        sglang.mended(
            "top-logprobs",
            "TokenizerManager._validate_one_request, which compares top_logprobs first",
            "more top_logprobs than the vocabulary has tokens are refused with 400",
        ),
    )
    failure_class, severity = FailureClass.ENGINE_DEATH, Severity.CRITICAL
    needs = ("top_logprobs", "top_logprobs_num")
    upstream = Upstream(UpstreamState.OPEN, _LOGPROBS_REPORT, "2026-11-24")
    references = (
        _LOGPROBS_REPORT,
        pull(
            "sglang#28794",
            "reject out-of-range top_logprobs_num",
            "a fix, not in 0.5.23",
        ),
    )
    sources = (
        quote(
            "sglang/srt/layers/logprob_processor.py",
            "get_top_logprobs_raw",
            "k is what the request says",
            ".topk(max_k",
        ),
        quote(
            "sglang/srt/layers/sampler.py",
            "get_top_logprobs",
            "the same, in older releases",
            ".topk(max_k",
        ),
    )

    async def ask_for(self, drive: Drive, label: str, number: int) -> RequestRecord:
        body = {
            "model": drive.traffic.model,
            "messages": [{"role": "user", "content": "hello"}],
            "max_tokens": 2,
            "temperature": 0,
            "logprobs": True,
            "top_logprobs": number,
        }
        watch, data = (
            RequestWatch(lambda: None, lambda _: None),
            json.dumps(body).encode(),
        )
        return await drive.traffic.send(label, data, watch, deadline_s=drive.deadline_s)

    async def trigger(self, drive: Drive) -> None:
        await self.ask_for(drive, _LEGAL, _VOCABULARY)
        await drive.unless_stuck(self.ask_for(drive, _TOO_MANY, _BEYOND))
        await crash.watch(drive)

    @precondition(
        "the number came as far as it is looked at: refused by name, given, or in topk"
    )
    def looked_at(self, requests: Requests, logs: Logs) -> Finding:
        """A proxy that drops the field, or refuses the request for something else, is
        none."""
        sent = requests.first(_TOO_MANY)
        if sent.status is not None and 400 <= sent.status < 500:
            return Finding.of("top_logprobs" in sent.error, sent.reply)
        if sent.answered:
            return Finding.of(
                _likeliest(sent) == MAX_LIKELIEST, f"{_likeliest(sent)} or more given"
            )
        if not logs.count("in-top-logprobs"):
            raise Missing(f"it is not seen how far it came: {sent.reply}")
        return Finding.of(True, "the traceback goes through get_top_logprobs")

    @symptom(
        "the request's connection ends without an answer, and so does every later one"
    )
    def no_answer(self, requests: Requests) -> Finding:
        return _unanswered_since(requests, _TOO_MANY)

    @symptom(
        "as many as the vocabulary has are answered", id="legal-answered", live=False
    )
    def legal_answered(self, requests: Requests) -> Finding:
        sent = requests.first(_LEGAL)
        given = _likeliest(sent) == MAX_LIKELIEST
        return Finding.of(
            sent.answered and given, f"{_VOCABULARY} asked for: {sent.reply}"
        )

    symptoms = (sglang.server_lost(),)

    @cause(
        "the scheduler ended on topk's exception in get_top_logprobs, the log's first "
        "one"
    )
    def topk_raised(self, logs: Logs) -> Finding:
        return _in_order(logs, _TRACE)

    rows = (
        row(
            f"top_logprobs {_BEYOND}",
            "no-answer",
            answered(_LEGAL),
            "connection closed",
        ),
        row("the server", "server-gone", "alive", "gone"),
        row(
            "the log's exception",
            "topk-raised",
            "none",
            "selected index k out of range",
        ),
        row(f"top_logprobs {_VOCABULARY}", "legal-answered", "200", abnormal_if=False),
    )
    claims = (
        claim(
            "kills",
            "one request with top_logprobs beyond the vocabulary ends the server",
            by=("no-answer", "server-gone"),
            given=("looked-at", unmitigated),
            refutable_on=affected,
        ),
        claim(
            "topk",
            "topk raises: selected index k out of range",
            by="topk-raised",
            given=("looked-at", unmitigated),
            refutable_on=affected,
        ),
        claim(
            "bound", "up to the vocabulary's size it is answered", by="legal-answered"
        ),
    )
    works_after = ("legal-answered", answered(crash.AFTER), sglang.patch_worked)


TOP_LOGPROBS_KILL = TopLogprobsKill()


_BOOTSTRAP_REPORT = issue(
    "sglang#36855", "skip_radix_cache_insert livelocks on chunked prefill"
)
_CHUNK, _ROOM = 128, 8192
_WORDS = "one two three four five six seven " * 12
"""A prompt of three chunks and more, in the tiny model's tokens."""
_HOST = {"bootstrap_host": "2.2.2.2", "bootstrap_port": 8998, "bootstrap_room": 1}
_WITHOUT, _SHORT, FAKE = (
    "long, without a host",
    "short, with the host",
    "long, with the host",
)
_MANY, _LAST = 50, 5
"""Batches for which a prompt is much too short; lines that the log's probe keeps of its
end."""
_NEW, _OUT, _PENDING = "prefill", "prefill-out-of-memory", "prefill-unfinished"


def _prefilled(logs: Logs) -> list[int]:
    """New tokens of each batch of prefill, as the log has them."""
    batches = logs.search(_NEW, r"#new-token: (\d+)")
    return [int(batch[1]) for batch in batches]


def _same_again(logs: Logs) -> tuple[int, list[int]]:
    """How many batches left some of a prompt for later, and how much the last ones
    left."""
    matches = [
        re.search(r"#pending-token: (\d+)", one.text)
        for one in logs.lines(_PENDING)[-_LAST:]
    ]
    return logs.count(_PENDING), [int(match[1]) for match in matches if match]


def _no_progress(logs: Logs, least: int = _MANY) -> Finding:
    """No prompt has so many chunks, and each leaves less than the one before."""
    count, left = _same_again(logs)
    text = f"{count} batches leave some of a prompt; the last {_LAST} left {left}"
    return Finding.of(count >= least and left == sorted(left), text)


class FakeBootstrap(Scenario):
    """A request with bootstrap_host 2.2.2.2 prefills its first chunk for ever, and
    SGLang dies.

    What: A server that is not disaggregated is sent a prompt longer than
    `--chunked-prefill-size` with `bootstrap_host: "2.2.2.2"`. Its first chunk is
    prefilled again and again until the KV cache is full; then the scheduler ends, and
    the server with it. Without the field the same prompt is answered, and a short one
    is answered with it.

    Why: That address is the engine's own mark of a rehearsal, whose tokens are to stay
    out of the prefix cache. The function that keeps them out is also the one that notes
    how far the prompt has come: the next chunk begins at the same place, in new memory,
    and the old is lost."""

    name, engine, release = "fake-bootstrap", "sglang", "0.5.21"
    # Run: 0.5.21, and 0.5.23, the newest there is, which is well. By source
    # (mem_cache/common.py): 0.5.17 to 0.5.20 have the same function, and 0.5.22 is the
    # first without it.
    affected = ">=0.5.17,<0.5.22"
    server = f"--chunked-prefill-size {_CHUNK} --max-total-tokens {_ROOM}"
    log_patterns = sglang.ENDED_LOG | {
        _OUT: r"RuntimeError: (?:Prefill o|O)ut of memory",
        _PENDING: r"Prefill batch.*#pending-token: [1-9]",
    }
    key_log_patterns = (_OUT, sglang.ENDED)
    mitigations = (
        upgrade("0.5.23", "upgrade to 0.5.23; by source 0.5.22 is well, too"),
    )
    failure_class, severity = FailureClass.ENGINE_DEATH, Severity.CRITICAL
    needs = ("bootstrap_host", "bootstrap_room")
    upstream = Upstream(
        UpstreamState.OPEN, _BOOTSTRAP_REPORT, "2026-11-25", note="by 0.5.23 it is gone"
    )
    references = (_BOOTSTRAP_REPORT,)
    sources = (
        quote(
            "sglang/srt/mem_cache/common.py",
            "maybe_cache_unfinished_req",
            "what stays out of the cache does not get any further",
            "return",
        ),
        quote(
            "sglang/srt/mem_cache/common.py",
            "checkpoint_kv_cache",
            "in 0.5.23: the prompt gets further in any case",
            "req.prefix_len = ",
        ),
    )

    async def trigger(self, drive: Drive) -> None:
        await drive.ask(_WITHOUT, text=f"a {_WORDS}")
        await drive.ask(_SHORT, text="hello", extra=_HOST)
        wait = max(drive.deadline_s, sglang.LONG_S)  # until the cache is full
        await drive.traffic.chat(FAKE, text=f"b {_WORDS}", extra=_HOST, deadline_s=wait)
        await crash.watch(drive)

    @precondition("the same prompt was prefilled in chunks")
    def in_chunks(self, requests: Requests, logs: Logs) -> Finding:
        tokens = requests.first(_WITHOUT).prompt_tokens or 0
        sizes = _prefilled(logs)
        text = f"{tokens} tokens of prompt; batches of {max(sizes, default=0)} at most"
        return Finding.of(tokens > 2 * _CHUNK and max(sizes, default=0) == _CHUNK, text)

    @precondition("the request with the host was prefilled")
    def fake_arrived(self, requests: Requests, logs: Logs) -> Finding:
        sent, plain = requests.first(FAKE), requests.first(_WITHOUT).prompt_tokens
        if sent.answered:
            return Finding.of(
                sent.prompt_tokens == plain, f"answered: {sent.prompt_tokens} tokens"
            )
        if not logs.count(_OUT):
            raise Missing(f"not seen: {sent.reply}")
        return Finding.of(True, "it took all the memory there was")

    @symptom(
        "the long prompt with the host gets no answer, and so does every later request"
    )
    def no_answer(self, requests: Requests) -> Finding:
        sent, later = requests.first(FAKE), requests.first(crash.AFTER)
        text = f"{sent.reply}; then a new text: {later.reply}"
        if later.timed_out:
            return Finding.unknown(text)
        return Finding.of(not sent.answered and later.status is None, text)

    symptoms = (
        sglang.server_lost(),
        symptom(
            "the same prompt without it, and a short one with it, are answered",
            answered(_WITHOUT, _SHORT),
            id="others-answered",
        ),
    )

    @cause(
        "one prompt's chunks are prefilled many times over",
        live=cause("a chunk is prefilled over and over", _no_progress),
    )
    def never_gets_further(self, logs: Logs, requests: Requests) -> Finding:
        chunks = (requests.first(_WITHOUT).prompt_tokens or _ROOM) // _CHUNK + 1
        found = _no_progress(logs, 10 * chunks)
        return Finding(found.truth, f"{found.observed}; the prompt has {chunks} chunks")

    @cause("the scheduler ended because its prefill found no memory", live=True)
    def out_of_memory(self, logs: Logs) -> Finding:
        out, ended = logs.lines(_OUT), logs.lines(sglang.ENDED)
        text = (
            f"{len(out)} × {_OUT}, {len(ended)} × an exception that ended the scheduler"
        )
        return Finding.of(bool(out) and bool(ended), text)

    rows = (
        row("long, with the host", "no-answer", answered(_WITHOUT)),
        row("the server", "server-gone", "alive", "dies"),
        row("batches of prefill", "never-gets-further", "one a chunk"),
        row(
            "long without, short with the host",
            "others-answered",
            "200",
            abnormal_if=False,
        ),
    )
    claims = (
        claim(
            "no-progress",
            "the same chunk is prefilled again and again",
            by="never-gets-further",
            given=("in-chunks", unmitigated),
            refutable_on=affected,
        ),
        claim(
            "dies",
            "the scheduler ends out of memory in a prefill, and the server with it",
            by=("out-of-memory", "server-gone"),
            given=("in-chunks", unmitigated),
            refutable_on=affected,
        ),
        claim(
            "any-client",
            "any client's request does it",
            by="fake-arrived",
            given="no-answer",
        ),
    )
    works_after = ("others-answered", answered(FAKE, crash.AFTER))


FAKE_BOOTSTRAP = FakeBootstrap()


_EMBEDS_REPORT = issue(
    "sglang#40728", "input_embeds through a session crash the scheduler"
)
SESSION, _EMBEDDED = "session-of-a-client", 4
_IN_SESSION = "embeddings in a session"
_WITHOUT_SESSION, _TEXT_IN_SESSION = (
    "embeddings without a session",
    "token ids in a session",
)
_EMBED_TRACE = (sglang.ENDED, "in-session-request", "no-length")


class SessionEmbeds(Scenario):
    """Embeddings that a client sends in a session end SGLang, for everybody.

    What: On a server that takes `input_embeds` a request brings them in a session that
    the client has opened. It gets no answer, and the server is gone for everybody.
    Without the session the same embeddings are answered, and so are token ids in the
    session.

    Why: A request of embeddings has no token ids. Outside of a session the scheduler
    makes some up, one an embedding. A session builds its requests elsewhere, takes the
    length of the ids that there are none of, and the exception is raised in the
    scheduler's loop."""

    name, engine, release = "session-embeds", "sglang", "0.5.23"
    # Run: 0.5.23, the newest there is. The length is taken in 0.5.23 (session/
    # session_controller.py), and not in 0.5.6 and 0.5.17.
    affected = ">=0.5.20"
    model = TinyText()
    server = "--disable-radix-cache"
    log_patterns = (
        sglang.PATCH_LOG
        | sglang.ENDED_LOG
        | {
            "in-session-request": r"session_controller\.py\", line \d+, in create_req",
            "no-length": r"TypeError: object of type 'NoneType' has no len\(\)",
        }
    )
    key_log_patterns = _EMBED_TRACE
    mitigations = (
        sglang.mended(
            "session-embeds",
            "TokenizerManager._validate_one_request, which looks for both first",
            "embeddings in a session are refused with 400",
        ),
    )
    failure_class, severity = FailureClass.ENGINE_DEATH, Severity.CRITICAL
    needs = ("input_embeds", "session_params")
    upstream = Upstream(UpstreamState.OPEN, _EMBEDS_REPORT, "2026-11-26")
    references = (_EMBEDS_REPORT,)
    sources = (
        quote(
            "sglang/srt/session/session_controller.py",
            "Session.create_req",
            "the length of token ids that a request of embeddings has none of",
            "len(input_ids)",
        ),
        quote(
            "sglang/srt/managers/scheduler.py",
            "Scheduler.handle_generate_request",
            "outside of a session they are made up",
            "[1]) * seq_length",
        ),
    )

    async def ask_for(
        self, drive: Drive, label: str, **fields: object
    ) -> RequestRecord:
        body = {"sampling_params": {"max_new_tokens": 4, "temperature": 0}, **fields}
        return await drive.traffic.raw(
            label,
            path="/generate",
            body=json.dumps(body).encode(),
            deadline_s=drive.deadline_s,
        )

    async def trigger(self, drive: Drive) -> None:
        opened = {"capacity_of_str_len": 1000, "session_id": SESSION}
        await drive.traffic.raw(
            "open the session",
            path="/open_session",
            body=json.dumps(opened).encode(),
            deadline_s=drive.deadline_s,
        )
        embeds, session = [[0.01] * TinyText().width] * _EMBEDDED, {"id": SESSION}
        await self.ask_for(drive, _WITHOUT_SESSION, input_embeds=embeds)
        await self.ask_for(
            drive, _TEXT_IN_SESSION, input_ids=[1] * _EMBEDDED, session_params=session
        )
        await drive.unless_stuck(
            self.ask_for(
                drive, _IN_SESSION, input_embeds=embeds, session_params=session
            )
        )
        await crash.watch(drive)

    @precondition(
        "the session is open, and the embeddings came as far as it: refused, or in it"
    )
    def in_the_session(self, requests: Requests, logs: Logs) -> Finding:
        opened, sent = requests.first("open the session"), requests.first(_IN_SESSION)
        if opened.status != 200:
            return Finding.of(False, f"the session is not open: {opened.reply}")
        if sent.status is not None and 400 <= sent.status < 500:
            return Finding.of("input_embeds" in sent.error, sent.reply)
        if sent.answered:
            return Finding.of(True, sent.reply)
        if not logs.count("in-session-request"):
            raise Missing(f"it is not seen how far it came: {sent.reply}")
        return Finding.of(True, "the traceback goes through the session's create_req")

    @symptom(
        "the request's connection ends without an answer, and so does every later one"
    )
    def no_answer(self, requests: Requests) -> Finding:
        return _unanswered_since(requests, _IN_SESSION)

    symptoms = (
        sglang.server_lost(),
        symptom(
            "the embeddings without a session, and token ids in it, are answered",
            answered(_WITHOUT_SESSION, _TEXT_IN_SESSION),
            id="others-answered",
        ),
    )

    @cause(
        "the scheduler ended on the length of nothing in the session's create_req, the "
        "log's first exception"
    )
    def length_of_nothing(self, logs: Logs) -> Finding:
        return _in_order(logs, _EMBED_TRACE)

    rows = (
        row(
            "embeddings in a session",
            "no-answer",
            answered(_WITHOUT_SESSION),
            "connection closed",
        ),
        row("the server", "server-gone", "alive", "gone"),
        row(
            "the log's exception", "length-of-nothing", "none", "NoneType has no len()"
        ),
        row("one without the other", "others-answered", "200", abnormal_if=False),
    )
    claims = (
        claim(
            "kills",
            "embeddings through a session end the scheduler, and the server with it",
            by=("no-answer", "server-gone"),
            given=("in-the-session", unmitigated),
            refutable_on=affected,
        ),
        claim(
            "no-ids",
            "the session takes the length of token ids that there are none of",
            by="length-of-nothing",
            given=("in-the-session", unmitigated),
            refutable_on=affected,
        ),
        claim(
            "apart",
            "each of the two without the other is answered",
            by="others-answered",
        ),
    )
    works_after = ("others-answered", answered(crash.AFTER), sglang.patch_worked)


SESSION_EMBEDS = SessionEmbeds()
