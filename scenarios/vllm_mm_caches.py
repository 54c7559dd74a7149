"""vLLM: two failures of the caches that know images: one loses step, one believes the
client."""

from collections.abc import Mapping
from functools import partial

from mmrepro.engines import Engine
from mmrepro.scenario import (
    Check,
    Drive,
    Evidence,
    FailureClass,
    Finding,
    LiveFacts,
    Logs,
    Measured,
    Processes,
    Requests,
    Scenario,
    Severity,
    Truth,
    Upstream,
    UpstreamState,
    answered,
    cause,
    claim,
    cure,
    endpoints_green,
    issue,
    precondition,
    pull,
    quote,
    row,
    some_requests_fail,
    symptom,
    vllm,
)
from mmrepro.scenario.more import ComparedAnswers, Condition, Failure, Picture
from mmrepro.scenario.silent import as_in_a_run, may_show, under_anothers_uuid

_RETRIES = 4
OTHER, TEXT = "control: another image", "control: text only"
_GIVEN_UP = "request-given-up"
"""EngineCore's line before it answers a request with an error, and the API server's
when it passes that on (``_handle_request_preproc_error``, ``_raise_if_error``; 0.14.0
to 0.32.0)."""


def _fails_for_ever(requests: Requests) -> Finding:
    again = requests.all(vllm.AGAIN)
    if len(again) < _RETRIES:
        return Finding.unknown(f"image X was sent {len(again)} times of {_RETRIES}")
    return Finding.of(all(r.status == 500 for r in again), vllm.statuses(requests))


def _fails_at_all(requests: Requests) -> Finding:
    failed = any(r.status == 500 for r in requests.all(vllm.AGAIN))
    return Finding.of(failed, vllm.statuses(requests))


class MmCacheDesync(vllm.MmCacheScenario):
    """The image of a refused request fails with HTTP 500 when it is sent again.

    What: A multimodal request that is refused with HTTP 400 for its length leaves its
    image in the API server's cache only. The next request with the same image, valid
    and short, gets HTTP 500, while other images are answered and /health stays 200. On
    older releases every later request with it fails; newer ones notice and answer the
    one after.

    Why: vLLM keeps two caches that must stay in step: the API server's (sender) knows
    which images EngineCore's (receiver) holds, so that a repeated image travels as a
    hash. The sender's entry is written while the prompt is processed, before the length
    check. When the check refuses the request, the receiver never gets the image. The
    next request with it carries the hash alone, the receiver has nothing under it, and
    the request ends in 500."""

    name = "mm-cache-desync"
    release = "0.24.0"
    affected = ">=0.14.0"
    references = (vllm.MM_CACHE_ISSUE,)
    failure_class, severity = FailureClass.REQUESTS_FAIL, Severity.HIGH
    needs = ("images",)
    upstream = Upstream(
        UpstreamState.OPEN,
        pull("vllm#51897", "Roll back mirrored cache entries after rejection"),
        "2026-11-24",
        note="vllm#46747, which is in 0.33.0, fixes it in part; vllm#46451 is closed",
    )
    log_patterns = vllm.MmCacheScenario.log_patterns | {
        _GIVEN_UP: "Unexpected error pre-processing request |"
        r"Request \S+ failed with an internal error during generation"
    }
    sources = (
        quote(
            "vllm/multimodal/cache.py",
            "MultiModalProcessorSenderCache.get_and_update_item",
            "the API server's side: the image is remembered before the request is "
            "validated, and next time only its hash is sent",
            "return None, cached_item",
            "self._cache[mm_hash] =",
        ),
        vllm.RECEIVER,
    )
    mitigations = (vllm.DISABLE_CACHE,)
    factors = (vllm.PREFIX_CACHING, vllm.REFUSAL, vllm.MM_CACHE)

    async def trigger(self, drive: Drive) -> None:
        image = drive.picture("X", 777)
        before = await drive.metric("vllm:mm_cache_hits_total")
        await vllm.desynchronise(drive, image)
        # Between the two readings, because the API server adds a request's hits only
        # when the engine's next output arrives.
        await drive.ask(OTHER, image=drive.picture("Y", 778))
        drive.fact("mm_cache_hits_before", before)
        drive.fact(
            "mm_cache_hits_after", await drive.metric("vllm:mm_cache_hits_total")
        )
        for attempt in range(2, _RETRIES + 1):
            await drive.ask(f"{vllm.AGAIN} ({attempt})", image=image)
        await drive.ask(TEXT)

    preconditions = (vllm.REFUSED, vllm.CACHE_ON)
    symptoms = (
        symptom(
            "a short request with the image of the refused one gets HTTP 500",
            vllm.image_fails,
            id="same-image-500",
        ),
        symptom(
            "another image and a text-only request are answered at the same time",
            answered(OTHER, TEXT),
            id="others-answered",
        ),
        endpoints_green(),
        symptom(
            f"the image fails again every time ({_RETRIES} of {_RETRIES})",
            _fails_for_ever,
            id="for-ever",
            required=False,
        ),
    )
    # Which image fails is not known to one who does not send it: the log tells that
    # some do. A stream that fails has answered 200; by 0.23.0 its client gets no token
    # and [DONE].
    live_only = some_requests_fail(_GIVEN_UP)

    @cause(
        "EngineCore logs that it does not hold the promised image, of one and the same "
        "mm_hash, once for each failed request",
        live=cause(
            "EngineCore logs that it does not hold an image that it was promised",
            vllm.missing_item,
            id="receiver-misses",
        ),
    )
    def receiver_misses(
        self, logs: Logs, processes: Processes, engine: Engine, requests: Requests
    ) -> Finding:
        missing = vllm.missed_in_run(logs, processes, engine)
        if missing.truth is not Truth.MET:
            return missing
        own = vllm.lines_of_core(logs, processes, engine)
        hashes = [name for lines in own.values() for name in vllm.hashes_in(lines)]
        failed = sum(r.status == 500 for r in requests.all(vllm.AGAIN))
        text = (
            f"{len(hashes)} lines for {len(set(hashes))} hash, {failed} failed requests"
        )
        return Finding.of(len(set(hashes)) == 1 and len(hashes) == failed, text)

    @cause(
        "the API server's cache counts a hit for the failed request: it believes that "
        "EngineCore holds the image"
    )
    def sender_hits(self, measured: Measured, requests: Requests) -> Finding:
        before = measured.number("mm_cache_hits_before")
        after = measured.number("mm_cache_hits_after")
        status = requests.first(vllm.AGAIN).status
        text = f"hits {before:g} → {after:g} over the request that got {status}"
        return Finding.of(status == 500 and after - before == 1, text)

    works_after = (
        answered(vllm.AGAIN, f"{vllm.AGAIN} ({_RETRIES})"),
        answered(OTHER, TEXT),
    )
    rows = (
        row(
            "too long request with image X",
            "refused-for-length",
            "400",
            "400 Bad Request",
            abnormal_if=False,
        ),
        row("image X again, short", _fails_at_all, "200", "500 Internal Server Error"),
        row("other image, text only", "others-answered", "200", abnormal_if=False),
        row("/health, /v1/models", "endpoints-green", "200, 200", abnormal_if=False),
    )
    if_it_fails = partial(
        claim, given="same-image-500", otherwise="image X did not fail in this run"
    )
    claims = (
        claim(
            "step-1",
            "a too long request with an image is refused with 400",
            by="refused-for-length",
        ),
        claim(
            "step-2",
            "the same image in a short request then gets 500",
            by="same-image-500",
            given=("refused-for-length", "cache-on"),
            refutable_on=affected,
        ),
        claim(
            "assertion",
            "the log holds Expected a cached item for mm_hash",
            by=vllm.cached_item_assertion,
        ),
        if_it_fails(
            "two-caches",
            "the API server's cache holds the image, EngineCore's does not",
            by=("sender-hits", vllm.missed_in_run),
        ),
        if_it_fails(
            "for-ever", "the image fails from then on, every time", by="for-ever"
        ),
        claim(
            "fixed-desync",
            "vllm#43595 (0.24.0) fixes the desynchronised caches",
            vllm.LRU_FIX,
            by=vllm.image_survives,
            given=("refused-for-length", "cache-on"),
            releases=">=0.24.0",
        ),
    )


MM_CACHE_DESYNC = MmCacheDesync()


_QUESTION, _TOKENS = "what is this", 12
_SHARED, _OWN = "picture-1", "picture-2"
"""Names that a client gives: the first to both pictures."""
X_SHARED, Y_SHARED, Y_OWN = "X as picture-1", "Y as picture-1", "Y as picture-2"
_HITS = "vllm:mm_cache_hits_total"
_UUID_REPORT = issue(
    "vllm#55547",
    "Client-supplied mm uuid is the sole cache key with no content binding",
    (
        "open; docs/features/multimodal_inputs.md says that the caller has to keep "
        "them unique"
    ),
)
_TENANTS = issue("vllm#53582", "uuids of one client meet those of another")


def _is_of(label: str, picture: str) -> Check:
    """The request was answered as ``picture`` alone was, token by token."""

    def whose(answers: ComparedAnswers) -> Finding:
        owner = answers.whose(label, "X", "Y")
        return Finding.of(
            owner == picture, f"{label}: the answer of {owner or 'neither'}"
        )

    return whose


def _known_again(answers: ComparedAnswers) -> Finding:
    cached = [
        answers.to(f"gate: {name} again").cached_tokens or 0 for name in ("X", "Y")
    ]
    return Finding.of(all(cached), f"prompt tokens from the prefix cache: {cached}")


class UuidAlias(Scenario):
    """A picture under another one's uuid is answered as that other one: a documented
    hazard.

    What: A client may name a picture (`uuid`), to spare the hashing. Two pictures under
    one name are one: the second is answered as the first, word for word, with HTTP 200.
    Under a name of its own it is not. Names are shared by all clients of a server.

    Why: The name takes the place of the hash of the content, and nothing holds it
    against the content. The processor's cache, the encoder's and the prefix cache all
    go by it. The documentation says so: names have to be unique for different media.
    """

    name = "uuid-alias"
    release, affected = "0.23.0", ">=0.14.0"
    failure_class, severity = FailureClass.WRONG_ANSWERS, Severity.HIGH
    needs = ("images",)
    upstream = Upstream(UpstreamState.DOCUMENTED, _UUID_REPORT, "2026-11-24")
    references = (_UUID_REPORT, _TENANTS)
    server = (
        "--max-num-seqs 8 --enable-prefix-caching --enable-prompt-tokens-details "
        """--limit-mm-per-prompt '{"image":1,"video":0}'"""
    )
    sources = (
        quote(
            "vllm/multimodal/processing/inputs.py",
            "ProcessorInputs.get_mm_hashes",
            "the client's name is taken as the hash, as it is",
            "hashes.append(uuid_item)",
        ),
    )
    mitigations = (
        cure(
            "no-caches",
            "--mm-processor-cache-gb 0 --no-enable-prefix-caching",
            (
                "turn both caches off: then each request gets names of its own (costs "
                "all reuse)"
            ),
        ),
    )

    async def gate(self, drive: Drive) -> None:
        await drive.chat("gate: text only", text="hello")
        for name, picture in self.pictures(drive).items():
            for kind in ("alone", "again"):
                await self.ask(drive, f"gate: {name} {kind}", picture)

    def pictures(self, drive: Drive) -> Mapping[str, Picture]:
        return {"X": drive.picture("X", 11), "Y": drive.picture("Y", 12)}

    async def ask(
        self, drive: Drive, label: str, picture: Picture, uuid: str = ""
    ) -> None:
        """A picture before a text, by its content or by ``uuid``, with logprobs."""
        shown = {"type": "image_url", "image_url": {"url": picture.data_url}}
        content = [
            {**shown, **({"uuid": uuid} if uuid else {})},
            {"type": "text", "text": _QUESTION},
        ]
        asked = {"messages": [{"role": "user", "content": content}]}
        extra = {"logprobs": True, "top_logprobs": 1, **asked}
        await drive.ask(
            label, images=[picture], text=_QUESTION, max_tokens=_TOKENS, extra=extra
        )

    async def trigger(self, drive: Drive) -> None:
        x, y = self.pictures(drive).values()
        await self.ask(drive, X_SHARED, x, _SHARED)
        for label, uuid in ((Y_SHARED, _SHARED), (Y_OWN, _OWN)):
            # The API server counts a request's lookups when the engine's next output
            # arrives.
            before = await drive.metric(_HITS)
            await self.ask(drive, label, y, uuid)
            await drive.ask(f"{label}: a text after it")
            after = await drive.metric(_HITS)
            known = before is not None and after is not None
            drive.fact(
                f"hits: {label}", (after or 0) - (before or 0) if known else None
            )

    def gate_check(self, evidence: Evidence) -> Finding:
        answered = super().gate_check(evidence)
        if answered.truth is not Truth.MET:
            return answered
        return ComparedAnswers(evidence).differ("X", "Y")

    preconditions = (
        precondition(
            "the first picture under the name gets its own answer",
            _is_of(X_SHARED, "X"),
            id="own",
        ),
        precondition(
            "a picture sent again by its content is known from the caches",
            _known_again,
            id="caches-on",
            removed_by=("no-caches",),
        ),
    )
    symptoms = (
        symptom(
            (
                "the second picture under that name is answered as the first, word "
                "for word"
            ),
            _is_of(Y_SHARED, "X"),
            id="answered-as-the-first",
        ),
        symptom(
            "under a name of its own it is answered as itself",
            _is_of(Y_OWN, "Y"),
            id="own-name-own-answer",
            abnormal=False,
        ),
    )

    @cause(
        "the processor's cache finds the second picture under the first one's name, "
        "where it was never sent, and finds nothing under a new one"
    )
    def found_by_name(self, measured: Measured) -> Finding:
        shared = measured.number(f"hits: {Y_SHARED}")
        own = measured.number(f"hits: {Y_OWN}")
        return Finding.of(shared == 1 and own == 0, f"hits: {shared:g} and {own:g}")

    @cause(
        "the prefix cache gives the second picture more tokens than the text before it"
    )
    def prefix_by_name(self, answers: ComparedAnswers) -> Finding:
        """A whole block and more holds the picture, which under a new name is not
        found."""
        shared, own = (
            answers.to(label).cached_tokens or 0 for label in (Y_SHARED, Y_OWN)
        )
        return Finding.of(
            shared > own, f"{shared} prompt tokens; under a new name {own}"
        )

    def live_conditions(self, facts: LiveFacts) -> list[Condition]:
        return as_in_a_run(self, facts)

    def recognises(self, failure: Failure) -> Finding:
        able = may_show(self, failure)
        return under_anothers_uuid(failure) if able.truth is Truth.MET else able

    works_after = (_is_of(X_SHARED, "X"), _is_of(Y_SHARED, "Y"), _is_of(Y_OWN, "Y"))
    claims = (
        claim(
            "sole-key",
            "the uuid is the sole cache key, with no binding to the content",
            by=("found-by-name", "prefix-by-name"),
            given="arrived",
        ),
        claim(
            "stale",
            "with as many tokens the second picture silently gets the first's answer",
            by="answered-as-the-first",
            given="arrived",
        ),
    )


UUID_ALIAS = UuidAlias()
