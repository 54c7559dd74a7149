"""vLLM: after a request was refused for its length, its image fails with HTTP 500.

The API server's cache (sender) remembers an image before the length check refuses the request;
EngineCore's cache (receiver) never sees it. The next request with that image sends only the hash.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from mmrepro.evidence import Evidence, RequestRecord
from mmrepro.incident import ClaimResult, ClaimStatus, Reference, SymptomRow
from mmrepro.scenario import Factor, LiveFacts, Mitigation, RunFacts, Scenario, SourceRef, unmet
from mmrepro.scenarios.mm_cache_live import live_conditions, without_cache
from mmrepro.signature import Condition, Finding, Outcome, Truth, checks
from mmrepro.traffic.drive import Drive
from mmrepro.traffic.pictures import Picture
from packaging.version import Version

CACHE_GB = 0.02
"""Small, so that a dozen images fill it. Both caches get it; the failure does not depend on it."""

TEXT_MARGIN = 150
"""Tokens that the long text leaves free: enough for the chat template, too few for an image."""

RETRIES = 4
FIX_RELEASE = Version("0.24.0")

BASE_ARGS = (
    "--max-num-seqs",
    "8",
    "--enable-prefix-caching",
    "--mm-processor-cache-gb",
    str(CACHE_GB),
    "--limit-mm-per-prompt",
    '{"image":4,"video":0}',
    "--enable-log-requests",
)

LOG_PATTERNS = {
    "cached-item-assertion": r"AssertionError: Expected a cached item for mm_hash=",
    "cache-drift": r"Multi-modal cache miss for request .*P0/P1 cache drift",
}
"""What EngineCore says of a promised image that it does not hold: an assertion up to 0.24.0 at
least, by 0.32.0 a warning (v1/engine/core.py:2011), after which the API server forgets it too."""

MM_HASH = re.compile(r"mm_hash(?:es)?=\[?'([0-9a-f]{16,128})'")

DISABLE_CACHE = Mitigation(
    name="disable-mm-cache",
    description="turn the multimodal processor cache off (costs re-processing of repeated images)",
    server_args=("--mm-processor-cache-gb", "0"),
)

PREFIX_CACHING = Factor(
    name="prefix-caching",
    description="whether equal beginnings of prompts share their KV cache",
    failing="--enable-prefix-caching",
    server_args=("--no-enable-prefix-caching",),
    claim="another cache that knows images by their hash",
)
REFUSAL = Factor(
    name="refusal",
    description="whether the first request with the image is refused for its length",
    failing="first request too long",
    cure="first request short",
    claim="vllm#43941: it takes a refused request",
)
MM_CACHE = Factor(
    name="mm-cache",
    description="whether there is a multimodal processor cache at all",
    failing=f"--mm-processor-cache-gb {CACHE_GB}",
    server_args=DISABLE_CACHE.server_args,
    claim="vllm#43941: turning it off avoids it",
)

RECEIVER_SOURCE = SourceRef(
    file="vllm/multimodal/cache.py",
    qualname="MultiModalReceiverCache.get_and_update_item",
    note="EngineCore's side: no data came with the hash, and the hash is not cached here",
    highlight=("assert mm_item is not None",),
)
SENDER_SOURCE = SourceRef(
    file="vllm/multimodal/cache.py",
    qualname="MultiModalProcessorSenderCache.get_and_update_item",
    note="the API server's side: the image is remembered before the request is validated, "
    "and next time only its hash is sent",
    highlight=("return None, cached_item", "self._cache[mm_hash] ="),
)

ISSUE = Reference(
    id="vllm#43941",
    title="Infinite loop in EngineCore during multimodal cache eviction after 400/500 sequence "
    "with reused image",
    url="https://github.com/vllm-project/vllm/issues/43941",
    note="the report; its steps 1 and 2 are this desynchronisation",
)


HANDLER = Version("0.14.0")
"""First release whose EngineCore survives the assertion (_handle_request_preproc_error in
v1/engine/core.py; absent in 0.13.0)."""


def before_handler(release: str, mitigations: frozenset[str]) -> tuple[Outcome, str] | None:
    """What the same trigger does to older releases: the assertion ends the input thread."""
    if Version(release) >= HANDLER or DISABLE_CACHE.name in mitigations:
        return None
    return (
        Outcome.DIFFERENT_FAILURE,
        f"before {HANDLER} the assertion ends the thread that receives requests: the server hangs "
        "at once, without an eviction",
    )


async def steady_state(drive: Drive) -> None:
    """The gate: images and text are answered, a repeated image from the cache as well."""
    first = drive.picture("gate-1", 11)
    await drive.chat("gate: image 1 (cold)", images=[first])
    await drive.chat("gate: image 1 again", images=[first])
    await drive.chat("gate: image 2", images=[drive.picture("gate-2", 12)])
    await drive.chat("gate: text only", text="hello")
    await drive.chat("gate: image 1, streamed", images=[first], stream=True)


def same_answer_twice(evidence: Evidence) -> Finding:
    """The cached image gives one and the same answer each time (greedy, fixed weights).

    The first, uncached answer is not compared: with prefix caching the later ones compute less of
    the prompt at once, and rounding may differ between the two ways.
    """
    labels = ("gate: image 1 again", "gate: image 1, streamed")
    texts = {r.text for r in evidence.requests_in("gate") if r.label in labels}
    if len(texts) != 1:
        return Finding.of(False, f"image 1 was answered in {len(texts)} ways: {sorted(texts)!r}")
    return Finding.of(True, "every request answered; the cached image alike, whole and streamed")


async def desynchronise(drive: Drive, picture: Picture) -> RequestRecord | None:
    """A request refused for its length with ``picture``, then a short one with it.

    With the factor ``refusal`` flipped, the first one is short as well.
    """
    label = f"image {picture.name}"
    if REFUSAL.name in drive.flips:
        await drive.unless_stuck(drive.chat(f"{label}, short", images=[picture]))
    else:
        text = await drive.text_of_tokens(drive.max_model_len - TEXT_MARGIN)
        await drive.unless_stuck(drive.chat(f"{label}, too long", text=text, images=[picture]))
    return await drive.unless_stuck(drive.chat(f"{label} again, short", images=[picture]))


def refused_for_length(evidence: Evidence, label: str = "image X, too long") -> Finding:
    for record in evidence.labelled(label):
        said = f"{record.label}: {record.status} {record.error[:120]}"
        return Finding.of(record.status == 400 and "length" in record.error.lower(), said)
    return Finding.unknown("the refused request was not sent")


def missing_item(evidence: Evidence, *patterns: str) -> Finding:
    """EngineCore logged that the cached item which it was promised is not there."""
    patterns = patterns or tuple(LOG_PATTERNS)
    counts = {p: checks.log_count(evidence, p) for p in patterns}
    if any(count is None for count in counts.values()):
        return Finding.unknown(evidence.why_missing("logs", "check"))
    for pattern, count in counts.items():
        if count:
            first = checks.log_lines(evidence, pattern)[0]
            where = first.process or "a process without a name"
            found = ", ".join(sorted({short_hash(h) for h in missing_hashes(evidence)}))
            text = f"{count} × {pattern} in {where}, first at {first.time}: mm_hash {found}"
            return Finding.of(True, text, *checks.log_files(evidence))
    return Finding.of(False, "the log holds no line that says so")


def cached_item_assertion(evidence: Evidence) -> Finding:
    return missing_item(evidence, "cached-item-assertion")


def missing_hashes(evidence: Evidence) -> list[str]:
    """The hashes that those log lines name, one a line."""
    lines = [line for p in LOG_PATTERNS for line in checks.log_lines(evidence, p)]
    return [found[1] for line in lines if (found := MM_HASH.search(line.text))]


def short_hash(text: str) -> str:
    return text[:16] + "…" if len(text) > 17 else text


class MmCacheScenario(Scenario):
    """What the scenarios of the two multimodal caches share: server, gate, older releases."""

    server = shlex.join(BASE_ARGS)
    log_patterns = LOG_PATTERNS
    key_log_patterns = tuple(LOG_PATTERNS)

    def expected(self, release: str, mitigations: frozenset[str]) -> tuple[Outcome, str]:
        return before_handler(release, mitigations) or super().expected(release, mitigations)

    async def gate(self, drive: Drive) -> None:
        await steady_state(drive)

    def gate_check(self, evidence: Evidence) -> Finding:
        answered = super().gate_check(evidence)
        return answered if answered.truth is not Truth.MET else same_answer_twice(evidence)


class MmCacheDesync(MmCacheScenario):
    """The image of a refused request fails with HTTP 500 when it is sent again.

    What: A multimodal request that is refused with HTTP 400 for its length leaves its image in
    the API server's cache only. The next request with the same image, valid and short, gets
    HTTP 500, while other images are answered and /health stays 200. On older releases every
    later request with it fails; newer ones notice and answer the one after.

    Why: vLLM keeps two caches that must stay in step: the API server's (sender) knows which
    images EngineCore's (receiver) holds, so that a repeated image travels as a hash. The
    sender's entry is written while the prompt is processed, before the length check. When the
    check refuses the request, the receiver never gets the image. The next request with it
    carries the hash alone, the receiver has nothing under it, and the request ends in 500.
    """

    name = "mm-cache-desync"
    release = "0.24.0"
    affected = ">=0.14.0"
    sources = (SENDER_SOURCE, RECEIVER_SOURCE)
    mitigations = (DISABLE_CACHE,)
    factors = (PREFIX_CACHING, REFUSAL, MM_CACHE)
    references = (ISSUE,)

    async def trigger(self, drive: Drive) -> None:
        x, other = drive.picture("X", 777), drive.picture("Y", 778)
        before = await drive.metric("vllm:mm_cache_hits_total")
        await desynchronise(drive, x)
        # Between the two readings, because the API server adds a request's hits only when the
        # engine's next output arrives.
        await drive.unless_stuck(drive.chat("control: another image", images=[other]))
        drive.fact("mm_cache_hits_before", before)
        drive.fact("mm_cache_hits_after", await drive.metric("vllm:mm_cache_hits_total"))
        for attempt in range(2, RETRIES + 1):
            await drive.unless_stuck(drive.chat(f"image X again, short ({attempt})", images=[x]))
        await drive.unless_stuck(drive.chat("control: text only", text="hello"))

    def conditions(self, facts: RunFacts) -> list[Condition]:
        return [
            Condition(
                "same-image-500",
                "symptom",
                "a short request with the image of the refused one gets HTTP 500",
                self._same_image_fails,
            ),
            Condition(
                "others-answered",
                "symptom",
                "another image and a text-only request are answered at the same time",
                self._controls_answered,
            ),
            Condition(
                "endpoints-green",
                "symptom",
                "/health and /v1/models answer 200",
                checks.endpoints_green,
            ),
            Condition(
                "refused-for-length",
                "cause",
                "the image's first request was refused with HTTP 400 for its length",
                refused_for_length,
            ),
            Condition(
                "receiver-misses",
                "cause",
                "EngineCore logs that it does not hold the promised image, of one and the same "
                "mm_hash, once for each failed request",
                self._one_hash,
            ),
            Condition(
                "sender-hits",
                "cause",
                "the API server's cache counts a hit for the failed request: it believes that "
                "EngineCore holds the image",
                self._sender_hits,
            ),
            Condition(
                "for-ever",
                "symptom",
                f"the image fails again every time ({RETRIES} of {RETRIES})",
                self._fails_for_ever,
                required=False,
            ),
        ]

    def live_conditions(self, facts: LiveFacts) -> list[Condition]:
        return live_conditions(missing_item)

    def exposure(self, facts: LiveFacts) -> Finding:
        return without_cache(facts) or super().exposure(facts)

    def healthy_after(self, evidence: Evidence, facts: RunFacts) -> Finding:
        again = evidence.labelled("image X again, short")
        bad = [r for r in again if not r.answered]
        if bad:
            return Finding.of(False, f"{bad[0].label}: {bad[0].status} {bad[0].error[:120]}")
        if len(again) < RETRIES:
            return Finding.unknown(f"image X was sent {len(again)} times of {RETRIES}")
        return self._controls_answered(evidence)

    def symptom_rows(self, evidence: Evidence, facts: RunFacts) -> list[SymptomRow]:
        again = evidence.labelled("image X again, short")
        gate = evidence.labelled("gate: image 1 again")
        refused = refused_for_length(evidence)
        green = checks.endpoints_green(evidence)
        return [
            SymptomRow(
                check="too long request with image X",
                healthy="400",
                observed=refused.observed,
                abnormal=None if refused.truth == "unknown" else refused.truth != "met",
                reported="400 Bad Request",
            ),
            SymptomRow(
                check="image X again, short",
                healthy=f"{gate[0].status} (image 1 again)" if gate else "",
                observed=_statuses(again),
                abnormal=any(r.status == 500 for r in again) if again else None,
                reported="500 Internal Server Error",
            ),
            SymptomRow(
                check="other image, text only",
                healthy="200",
                observed=(controls := self._controls_answered(evidence)).observed,
                abnormal=None if controls.truth == "unknown" else controls.truth != "met",
            ),
            SymptomRow(
                check="/health, /v1/models",
                healthy="200, 200",
                observed=green.observed,
                abnormal=None if green.truth == "unknown" else green.truth != "met",
            ),
        ]

    def claim_results(self, evidence: Evidence, facts: RunFacts) -> list[ClaimResult]:
        failed = self._same_image_fails(evidence)
        for_ever = self._fails_for_ever(evidence)
        if failed.truth is not Truth.MET:
            for_ever = Finding.unknown("image X did not fail in this run")
        return [
            claim(
                "step-1",
                "a too long request with an image is refused with 400",
                refused_for_length(evidence),
            ),
            claim("step-2", "the same image in a short request then gets 500", failed),
            claim(
                "assertion",
                "the log holds Expected a cached item for mm_hash",
                cached_item_assertion(evidence),
            ),
            claim(
                "two-caches",
                "the API server's cache holds the image, EngineCore's does not",
                unmet(self._sender_hits(evidence), missing_item(evidence)),
            ),
            claim("for-ever", "the image fails from then on, every time", for_ever),
            claim(
                "fixed-desync",
                "vllm#43595 (0.24.0) fixes the desynchronised caches",
                Finding.of(failed.truth is not Truth.MET, f"on {facts.release} {failed.observed}")
                if facts.version >= FIX_RELEASE and failed.truth is not Truth.UNKNOWN
                else Finding.unknown(
                    f"this run is of {facts.release}; to test: mmrepro run {self.name} "
                    f"--release {FIX_RELEASE}"
                ),
                "vllm#43595",
            ),
        ]

    # ------------------------------------------------------------------ checks

    def _same_image_fails(self, evidence: Evidence) -> Finding:
        again = evidence.labelled("image X again, short")
        if not again:
            return Finding.unknown("image X was not sent again")
        return Finding.of(again[0].status == 500, "image X: " + _statuses(again))

    def _fails_for_ever(self, evidence: Evidence) -> Finding:
        again = evidence.labelled("image X again, short")
        if len(again) < RETRIES:
            return Finding.unknown(f"image X was sent {len(again)} times of {RETRIES}")
        return Finding.of(all(r.status == 500 for r in again), "image X: " + _statuses(again))

    def _controls_answered(self, evidence: Evidence) -> Finding:
        controls = evidence.labelled("control:")
        if len(controls) < 2:
            return Finding.unknown(f"{len(controls)} of 2 control requests ended")
        said = "; ".join(f"{c.label.removeprefix('control: ')} {c.status}" for c in controls)
        return Finding.of(all(c.answered for c in controls), said)

    def _one_hash(self, evidence: Evidence) -> Finding:
        found = missing_item(evidence)
        if found.truth is not Truth.MET:
            return found
        hashes = missing_hashes(evidence)
        failed = sum(r.status == 500 for r in evidence.labelled("image X again, short"))
        text = f"{len(hashes)} lines for {len(set(hashes))} hash, {failed} failed requests"
        return Finding.of(len(set(hashes)) == 1 and len(hashes) == failed, text)

    def _sender_hits(self, evidence: Evidence) -> Finding:
        before = evidence.facts.get("mm_cache_hits_before")
        after = evidence.facts.get("mm_cache_hits_after")
        if not isinstance(before, int | float) or not isinstance(after, int | float):
            return Finding.unknown("this release does not count hits of the multimodal cache")
        again = evidence.labelled("image X again, short")
        if not again:
            return Finding.unknown("image X was not sent again")
        text = f"hits {before:g} → {after:g} over the request that got {again[0].status}"
        return Finding.of(again[0].status == 500 and after - before == 1, text)


def _statuses(records: Sequence[RequestRecord]) -> str:
    return ", ".join(str(r.status or "no answer") for r in records)


def claim(
    name: str, text: str, finding: Finding, source: str = "vllm#43941", note: str = ""
) -> ClaimResult:
    """A claim of the report, judged by a finding of this run."""
    status = {
        "met": ClaimStatus.CONFIRMED,
        "not-met": ClaimStatus.REFUTED,
        "unknown": ClaimStatus.NOT_TESTED,
    }[finding.truth]
    observed = f"{finding.observed}. {note}" if note else finding.observed
    return ClaimResult(id=name, text=text, source=source, status=status, observed=observed)


SCENARIO = MmCacheDesync()
