"""vLLM: after a request was refused for its length, its image fails with HTTP 500.

The API server's cache (sender) remembers an image before the length check refuses the request;
EngineCore's cache (receiver) never sees it. The next request with that image sends only the hash.
"""

from __future__ import annotations

from typing import ClassVar

from mmrepro import checks
from mmrepro.drive import Drive
from mmrepro.evidence import Evidence, RequestRecord
from mmrepro.incident import ClaimResult, ClaimStatus, Reference, SymptomRow
from mmrepro.pictures import Picture
from mmrepro.scenario import Mitigation, RunFacts, Scenario, SourceRef
from mmrepro.signature import Condition, Finding
from packaging.specifiers import SpecifierSet

CACHE_GB = 0.02
"""Small, so that a dozen images fill it. Both caches get it; the failure does not depend on it."""

TEXT_MARGIN = 150
"""Tokens that the long text leaves free: enough for the chat template, too few for an image."""

RETRIES = 4

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
    "cached-item-frame": r"in get_and_update_item",
}

HASH = "Expected a cached item for mm_hash="

DISABLE_CACHE = Mitigation(
    name="disable-mm-cache",
    description="turn the multimodal processor cache off (costs re-processing of repeated images)",
    server_args=("--mm-processor-cache-gb", "0"),
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


async def steady_state(drive: Drive) -> None:
    """The gate: images and text are answered, a repeated image from the cache as well."""
    first = drive.picture("gate-1", 11)
    await drive.chat("gate: image 1 (cold)", images=[first])
    await drive.chat("gate: image 1 again", images=[first])
    await drive.chat("gate: image 2", images=[drive.picture("gate-2", 12)])
    await drive.chat("gate: text only", text="hello")
    await drive.chat("gate: image 1, streamed", images=[first], stream=True)


def same_answer_twice(evidence: Evidence) -> Finding:
    """The cached image gives the answer that the fresh one gave (greedy, fixed weights)."""
    texts = {r.text for r in evidence.requests_in("gate") if r.label.startswith("gate: image 1")}
    if len(texts) != 1:
        return Finding.of(False, f"image 1 was answered in {len(texts)} ways: {sorted(texts)!r}")
    return Finding.of(True, "every request answered; image 1 alike fresh, cached and streamed")


async def desynchronise(drive: Drive, picture: Picture) -> RequestRecord | None:
    """A request refused for its length with ``picture``, then a short one with it."""
    text = await drive.text_of_tokens(drive.max_model_len - TEXT_MARGIN)
    label = f"image {picture.name}"
    await drive.unless_stuck(drive.chat(f"{label}, too long", text=text, images=[picture]))
    return await drive.unless_stuck(drive.chat(f"{label} again, short", images=[picture]))


def refused_for_length(evidence: Evidence, label: str = "image X, too long") -> Finding:
    for record in evidence.labelled(label):
        said = f"{record.label}: {record.status} {record.error[:120]}"
        return Finding.of(record.status == 400 and "length" in record.error.lower(), said)
    return Finding.unknown("the refused request was not sent")


def cached_item_assertion(evidence: Evidence) -> Finding:
    """EngineCore logged that the cached item which it was promised is not there."""
    count = checks.log_count(evidence, "cached-item-assertion")
    if count is None:
        return Finding.unknown(evidence.why_missing("logs", "check"))
    if count == 0:
        return Finding.of(False, "the log holds no such assertion")
    lines = checks.log_lines(evidence, "cached-item-assertion")
    found = ", ".join(sorted({short_hash(h) for h in assertion_hashes(evidence)}))
    where = lines[0].process or "a process without a name"
    return Finding.of(True, f"{count} × in {where}, first at {lines[0].time}: mm_hash {found}")


def assertion_hashes(evidence: Evidence) -> list[str]:
    """The hashes that the log's assertions name, one a line."""
    hashes = []
    for line in checks.log_lines(evidence, "cached-item-assertion"):
        _, _, tail = line.text.partition(HASH)
        hashes.append(tail.strip().strip("'\"").split("'")[0])
    return hashes


def short_hash(text: str) -> str:
    return text[:16] + "…" if len(text) > 17 else text


class MmCacheDesync(Scenario):
    name: ClassVar[str] = "mm-cache-desync"
    title: ClassVar[str] = "An image of a refused request fails with HTTP 500 from then on"
    summary: ClassVar[str] = (
        "A multimodal request that is refused with HTTP 400 for its length leaves its image in the "
        "API server's cache only. Every later request with the same image gets HTTP 500, while "
        "other images are answered and /health stays 200."
    )
    explanation: ClassVar[str] = (
        "vLLM keeps two caches that must stay in step: the API server's (sender) knows which "
        "images EngineCore's (receiver) holds, so that a repeated image travels as a hash. The "
        "sender's entry is written while the prompt is processed, before the length check. When "
        "the check refuses the request, the receiver never gets the image. The next request with "
        "it carries the hash alone, the receiver's assertion fails, and the request ends in 500."
    )
    default_release: ClassVar[str] = "0.24.0"
    affected: ClassVar[SpecifierSet] = SpecifierSet(">=0.12.0")
    server_args: ClassVar[tuple[str, ...]] = BASE_ARGS
    log_patterns = LOG_PATTERNS
    key_log_patterns: ClassVar[tuple[str, ...]] = ("cached-item-assertion",)
    sources: ClassVar[tuple[SourceRef, ...]] = (SENDER_SOURCE, RECEIVER_SOURCE)
    mitigations: ClassVar[tuple[Mitigation, ...]] = (DISABLE_CACHE,)
    references: ClassVar[tuple[Reference, ...]] = (ISSUE,)

    async def gate(self, drive: Drive) -> None:
        await steady_state(drive)

    def gate_check(self, evidence: Evidence) -> Finding:
        answered = super().gate_check(evidence)
        return answered if answered.truth != "met" else same_answer_twice(evidence)

    async def trigger(self, drive: Drive) -> None:
        x = drive.picture("X", 777)
        before = await drive.metric("vllm:mm_cache_hits_total")
        await desynchronise(drive, x)
        for attempt in range(2, RETRIES + 1):
            await drive.unless_stuck(drive.chat(f"image X again, short ({attempt})", images=[x]))
        other = drive.picture("Y", 778)
        await drive.unless_stuck(drive.chat("control: another image", images=[other]))
        await drive.unless_stuck(drive.chat("control: text only", text="hello"))
        # Read last: the API server adds a request's hits when the engine's next output arrives.
        drive.fact("mm_cache_hits_before", before)
        drive.fact("mm_cache_hits_after", await drive.metric("vllm:mm_cache_hits_total"))

    def conditions(self, facts: RunFacts) -> list[Condition]:
        return [
            Condition(
                "same-image-500",
                "symptom",
                f"the image of the refused request gets HTTP 500, {RETRIES} times of {RETRIES}",
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
                "cached-item-assertion",
                "cause",
                'EngineCore logs "Expected a cached item for mm_hash=…" for one and the same hash, '
                "once for each failed request",
                self._one_hash,
            ),
            Condition(
                "sender-hits",
                "cause",
                "the API server's cache counts a hit for each failed request: it believes that "
                "EngineCore holds the image",
                self._sender_hits,
            ),
        ]

    def healthy_after(self, evidence: Evidence) -> Finding:
        again = evidence.labelled("image X again, short")
        bad = [r for r in again if not r.answered]
        if bad:
            return Finding.of(False, f"{bad[0].label}: {bad[0].status} {bad[0].error[:120]}")
        if len(again) < RETRIES:
            return Finding.unknown(f"image X was sent {len(again)} times of {RETRIES}")
        return self._controls_answered(evidence)

    def symptom_rows(self, evidence: Evidence) -> list[SymptomRow]:
        again = evidence.labelled("image X again, short")
        gate = evidence.labelled("gate: image 1 again")
        statuses = ", ".join(str(r.status or "none") for r in again)
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
                observed=statuses,
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

    def claims(self, evidence: Evidence, facts: RunFacts) -> list[ClaimResult]:
        refused, failed = refused_for_length(evidence), self._same_image_fails(evidence)
        return [
            claim("step-1", "a too long request with an image is refused with 400", refused),
            claim("step-2", "the same image in a short request then gets 500", failed),
            claim(
                "assertion",
                "the log holds Expected a cached item for mm_hash",
                cached_item_assertion(evidence),
            ),
            claim(
                "two-caches",
                "the API server's cache holds the image, EngineCore's does not",
                self._sender_hits(evidence),
            ),
        ]

    # ------------------------------------------------------------------ checks

    def _same_image_fails(self, evidence: Evidence) -> Finding:
        again = evidence.labelled("image X again, short")
        if len(again) < RETRIES:
            return Finding.unknown(f"image X was sent {len(again)} times of {RETRIES}")
        failed = sum(r.status == 500 for r in again)
        statuses = ", ".join(str(r.status or "none") for r in again)
        return Finding.of(failed == len(again), f"image X: {statuses}")

    def _controls_answered(self, evidence: Evidence) -> Finding:
        controls = evidence.labelled("control:")
        if len(controls) < 2:
            return Finding.unknown(f"{len(controls)} of 2 control requests ended")
        said = "; ".join(f"{c.label.removeprefix('control: ')} {c.status}" for c in controls)
        return Finding.of(all(c.answered for c in controls), said)

    def _one_hash(self, evidence: Evidence) -> Finding:
        found = cached_item_assertion(evidence)
        if found.truth != "met":
            return found
        hashes = assertion_hashes(evidence)
        failed = sum(r.status == 500 for r in evidence.labelled("image X again, short"))
        count = checks.log_count(evidence, "cached-item-assertion") or 0
        text = f"{count} assertions for {len(set(hashes))} hash, {failed} failed requests"
        return Finding.of(len(set(hashes)) == 1 and count == failed, text)

    def _sender_hits(self, evidence: Evidence) -> Finding:
        before = evidence.facts.get("mm_cache_hits_before")
        after = evidence.facts.get("mm_cache_hits_after")
        if not isinstance(before, int | float) or not isinstance(after, int | float):
            return Finding.unknown("this release does not count hits of the multimodal cache")
        failed = sum(r.status == 500 for r in evidence.labelled("image X again, short"))
        text = f"hits {before:g} → {after:g} over {failed} failed requests"
        return Finding.of(failed > 0 and after - before == failed, text)


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
