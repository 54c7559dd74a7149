"""minivllm: failures of vLLM, SGLang and LMDeploy, in twenty lines each.

Each variant switches one of them on in the engine of ``reproducers/minivllm``, drives it there over
HTTP, and looks for the symptom of the original and for its reason. Small and fast, so that the
harness's own tests can have every kind of failure: a hang, a dead loop, single errors, silence.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from mmrepro import checks, live
from mmrepro.drive import Drive
from mmrepro.evidence import Evidence
from mmrepro.incident import Reference
from mmrepro.probes.data import StackSample, StacksData, ThreadStack
from mmrepro.scenario import LiveFacts, RunFacts, Scenario
from mmrepro.scenarios.borrowed_base import (
    AFTER,
    BLOCK_SIZE,
    METRICS,
    ROLE,
    BorrowedFault,
    all_answered,
    told,
)
from mmrepro.scenarios.borrowed_pad_value import PadValueKey
from mmrepro.scenarios.ghost_key_evidence import (
    MIN_SAMPLES,
    counted,
    digest_in,
    is_named,
    matches,
)
from mmrepro.scenarios.mm_cache_desync import ISSUE, short_hash
from mmrepro.scenarios.mm_prefill_contract import place
from mmrepro.signature import Condition, Finding, Truth

# ---------------------------------------------------------------- vLLM's ghost key

FILLS = 5
TOO_LONG, AGAIN = "image X, too long", "image X again"
MISSING = re.compile(r"Expected a cached item for mm_hash='([0-9a-f]{64})'")
PATH = ("put", "received", "<genexpr>", "add", "_take", "_loop")


def loop_threads(sample: StackSample) -> list[ThreadStack]:
    """The engine's thread: its outermost own frame is Service._loop."""
    return [t for t in sample.threads if matches(t.frames, ("_loop",))]


def ghost_of(thread: ThreadStack) -> str:
    """The digest that pop_oldest looks at, from py-spy's locals; "": not there."""
    for frame in thread.frames:
        if frame.function.rpartition(".")[2] == "pop_oldest":
            return digest_in(frame.locals.get("digest", ""))
    return ""


def _threads(evidence: Evidence) -> tuple[list[ThreadStack], int, list[str]]:
    samples = [s for _, data in evidence.results(StacksData, "check") for s in data.samples]
    raw = [n for r, _ in evidence.results(StacksData, "check") for n in r.raw][:3]
    return [t for s in samples for t in loop_threads(s)], len(samples), raw


def eviction_stack(evidence: Evidence) -> Finding:
    threads, samples, raw = _threads(evidence)
    if len(threads) < MIN_SAMPLES:
        why = evidence.why_missing("stacks", "check")
        return Finding.unknown(f"the engine's loop in {len(threads)} of {samples} samples; {why}")
    # Not active in some: it gives the GIL to the front's threads, in the middle of its loop.
    inside = [t for t in threads if matches(t.frames, PATH)]
    running = sum(t.active for t in inside)
    popping = sum(matches(t.frames, ("pop_oldest", *PATH)) for t in inside)
    text = f"{len(inside)} of {len(threads)} samples in ImageCache.put, {popping} in pop_oldest"
    met = len(inside) == len(threads) and popping > 0 and running > 0
    return Finding.of(met, f"{text}, {running} running", *raw)


def missing_item(evidence: Evidence) -> Finding:
    return checks.logged(evidence, "cached-item-assertion", '"Expected a cached item"')


def ghost_is_the_key(evidence: Evidence) -> Finding:
    lines = checks.log_lines(evidence, "cached-item-assertion")
    named = {m[1] for line in lines if (m := MISSING.search(line.text))}
    keys = [key for t in _threads(evidence)[0] if (key := ghost_of(t))]
    if not keys or not named:
        return Finding.unknown(f"{len(keys)} keys in stacks, {len(named)} digests in the log")
    wanted = ", ".join(short_hash(d) for d in sorted(named))
    said = f"pop_oldest looks at {counted(keys)}; the assertion named {wanted}"
    return Finding(is_named(keys, named), said)


class GhostKeyLru(BorrowedFault):
    variant: ClassVar[str] = "ghost-key-lru"
    title: ClassVar[str] = "The image cache's eviction never ends, while /health stays 200"
    summary: ClassVar[str] = (
        "After a request was refused for its length and its image was sent again, the next "
        "eviction never ends: the engine's thread spins, /health is green, nothing is answered."
    )
    explanation: ClassVar[str] = (
        "`touch()` gives a missing key a place in the LRU order: a ghost. When it is the oldest, "
        "`pop_oldest()` removes nothing, and `put()` asks for room for ever."
    )
    origin: ClassVar[str] = "vllm#43941"
    options_of_fault: ClassVar[tuple[str, ...]] = ("--mm-cache-tokens", "130")
    references: ClassVar[tuple[Reference, ...]] = (ISSUE,)
    log_patterns = {"cached-item-assertion": r"AssertionError: Expected a cached item for mm_hash="}
    key_log_patterns: ClassVar[tuple[str, ...]] = ("cached-item-assertion",)

    @property
    def variants(self) -> tuple[Scenario, ...]:
        return VARIANTS

    async def trigger(self, drive: Drive) -> None:
        image = drive.picture("X", 777)
        await drive.chat(TOO_LONG, text="x" * (drive.max_model_len + 50), images=[image])
        await drive.chat(AGAIN, images=[image])
        for i in range(1, FILLS + 1):
            request = drive.chat(f"fill {i}", images=[drive.picture(f"fill-{i}", 1000 + i)])
            if await drive.unless_stuck(request) is None:
                return
        await drive.unless_stuck(drive.chat(AFTER, text="hello"))

    def enough_stacks(self, samples: Sequence[StackSample]) -> bool:
        return any(ghost_of(t) for s in samples for t in loop_threads(s))

    def healthy_answer(self, label: str) -> str:
        return "400" if label == TOO_LONG else "200"

    def conditions(self, facts: RunFacts) -> list[Condition]:
        return [
            Condition("image-unanswered", "symptom", "an image is not answered", checks.unanswered),
            *self._seen_from_outside(),
            Condition(
                "core-burns-cpu",
                "symptom",
                "the engine uses a whole core in user space, idle before",
                lambda e: checks.core_burns_cpu(e, ROLE),
            ),
            *self._cause(),
        ]

    def live_conditions(self, facts: LiveFacts) -> list[Condition]:
        return [
            *self._seen_from_outside(),
            Condition(
                "core-busy",
                "symptom",
                "the engine uses a whole core in user space",
                lambda e: checks.core_busy(e, ROLE),
            ),
            *self._cause(),
        ]

    def _seen_from_outside(self) -> list[Condition]:
        return [
            live.not_answered(),
            Condition(
                "endpoints-green",
                "symptom",
                "/health and /v1/models answer 200",
                checks.endpoints_green,
            ),
            Condition(
                "nothing-queued",
                "symptom",
                "nothing runs and nothing waits",
                lambda e: checks.queue_empty(e, METRICS["running"], METRICS["waiting"]),
            ),
            live.no_progress(METRICS),
        ]

    def _cause(self) -> list[Condition]:
        return [
            Condition(
                "eviction-stack",
                "cause",
                "in every stack sample the engine's loop is inside ImageCache.put",
                eviction_stack,
            ),
            Condition(
                "cached-item-assertion",
                "cause",
                'the log holds "Expected a cached item for mm_hash=…"',
                missing_item,
            ),
            Condition(
                "ghost-is-the-key",
                "cause",
                "the key that cannot be evicted is the mm_hash of that assertion",
                ghost_is_the_key,
            ),
        ]

    def cause_remains(self, evidence: Evidence, facts: RunFacts) -> Finding:
        """The stack needs the hang; the ghost is made before it."""
        return missing_item(evidence)

    def healthy_after(self, evidence: Evidence) -> Finding:
        return all_answered(evidence, [AGAIN, *(f"fill {i + 1}" for i in range(FILLS)), AFTER])


# ---------------------------------------------------------------- LMDeploy's small budget

NUM_BLOCKS = 81
ROOM = (NUM_BLOCKS - 1) * BLOCK_SIZE
PROMPT, GROWS = "a prompt of 300 characters", "an answer of 300 tokens"
ADDED = re.compile(r"Added request \S+: (\d+) tokens")


class KvBudget(BorrowedFault):
    variant: ClassVar[str] = "kv-budget"
    title: ClassVar[str] = "A KV cache of a tenth of its budget: an opaque 500, then a dead loop"
    summary: ClassVar[str] = (
        "A prompt that the settings have room for gets 'internal error happened'; an answer that "
        "outgrows the cache ends the engine's loop, and every later request fails."
    )
    explanation: ClassVar[str] = (
        "The cache gets a tenth of the blocks that were asked for, and nobody checks what fits. A "
        "prompt that never will is given up without a reason; where one sequence alone outgrows "
        "the cache, nothing is left to preempt, and the scheduler's assertion ends its thread."
    )
    origin: ClassVar[str] = "LMDeploy 0.6.4 and 0.7.0.post3"
    options_of_fault: ClassVar[tuple[str, ...]] = (
        *("--num-blocks", str(NUM_BLOCKS)),
        "--no-prefix-caching",
    )
    references: ClassVar[tuple[Reference, ...]] = (
        Reference(
            id="lmdeploy#2981",
            title="the error as a finish reason (0.7.0)",
            url="https://github.com/InternLM/lmdeploy/pull/2981",
            note="the real things are undersized-kv-budget and kv-growth-crash",
        ),
    )
    log_patterns = {
        "nothing-to-preempt": r"AssertionError: len\(running\) > 0: nothing is left to preempt",
        "raised-in-decode": place("scheduler.py", "_decode"),
        "added-with-tokens": r"Added request \S+: \d+ tokens",
    }
    key_log_patterns: ClassVar[tuple[str, ...]] = ("nothing-to-preempt",)

    async def trigger(self, drive: Drive) -> None:
        await drive.unless_stuck(drive.chat(PROMPT, text="x" * 300))
        grows = drive.chat(GROWS, text="hello", max_tokens=300, extra={"ignore_eos": True})
        await drive.unless_stuck(grows)
        await drive.unless_stuck(drive.chat(AFTER, text="hello"))

    def conditions(self, facts: RunFacts) -> list[Condition]:
        return [
            Condition(
                "opaque-500",
                "symptom",
                "a prompt gets HTTP 500 that names no limit: 'internal error happened'",
                lambda e: _failed(e, PROMPT, "internal error happened"),
            ),
            Condition(
                "loop-ends",
                "symptom",
                "an answer that grows gets HTTP 500: the engine is dead",
                lambda e: _failed(e, GROWS, "the engine is dead"),
            ),
            live.every_request_fails(),
            Condition(
                "budget-too-small",
                "cause",
                f"the cache holds less than that prompt, where --num-blocks asked for {ROOM}",
                budget_too_small,
            ),
            self._assertion(),
        ]

    def live_conditions(self, facts: LiveFacts) -> list[Condition]:
        return [live.every_request_fails(), self._assertion()]

    def _assertion(self) -> Condition:
        return Condition(
            "nothing-to-preempt",
            "cause",
            "the scheduler's assertion that something is left to preempt ended the loop",
            raised_in_decode,
        )

    def healthy_after(self, evidence: Evidence) -> Finding:
        return all_answered(evidence, [PROMPT, GROWS, AFTER])


def _failed(evidence: Evidence, label: str, says: str) -> Finding:
    for record in evidence.labelled(label):
        return Finding.of(record.status == 500 and says in record.error, told(record))
    return Finding.unknown(f"{label} was not sent")


def budget_too_small(evidence: Evidence) -> Finding:
    blocks = checks.metric_readings(evidence, ("minivllm:kv_cache_blocks",), "gate", "check")
    lines = checks.log_lines(evidence, "added-with-tokens")
    largest = max((int(m[1]) for line in lines if (m := ADDED.search(line.text))), default=0)
    if not blocks or not largest:
        return Finding.unknown(f"{len(blocks)} readings of kv_cache_blocks, {len(lines)} prompts")
    has = int(blocks[-1]) * BLOCK_SIZE
    said = f"the cache holds {has} tokens of the {ROOM} asked for; the longest prompt has {largest}"
    return Finding.of(has < largest < ROOM, said)


def raised_in_decode(evidence: Evidence) -> Finding:
    counts = [checks.log_count(evidence, n) for n in ("nothing-to-preempt", "raised-in-decode")]
    if None in counts:
        return Finding.unknown(evidence.why_missing("logs", "check"))
    said = f"{counts[0]} × the assertion, {counts[1]} × raised in scheduler.py:_decode"
    return Finding.of(all(counts), said, *checks.log_files(evidence))


# ---------------------------------------------------------------- vLLM's reused mask

CLIENTS = 4
TOGETHER = [f"image {i + 1} and a long text" for i in range(CLIENTS)]
SCATTER = "Number of elements of source < number of ones in mask"
ROWS = re.compile(r"mask-rows: (\d+) tokens are marked for (\d+) rows")


class ReusedMask(BorrowedFault):
    variant: ClassVar[str] = "reused-mask"
    title: ClassVar[str] = "The next step is prepared in the mask that this step still reads"
    summary: ClassVar[str] = (
        "Requests with images that are prefilled in chunks beside each other end in masked_scatter "
        "or get wrong embeddings; alone, in one step, they are answered."
    )
    explanation: ClassVar[str] = (
        "With asynchronous scheduling the next prefill step is prepared before this one has run. "
        "There is one mask buffer for both: this step scatters its embeddings by the next one's "
        "mask. Where that marks more tokens, masked_scatter refuses; else nobody notices."
    )
    origin: ClassVar[str] = "vllm#30624"
    options_of_fault: ClassVar[tuple[str, ...]] = (
        *("--max-batched-tokens", "96", "--num-blocks", "600"),
        *("--no-prefix-caching", "--check-contract=log"),
    )
    references: ClassVar[tuple[Reference, ...]] = (
        Reference(
            id="vllm#30624",
            title="`masked_scatter_size_check` failed when running Qwen3VLMoE",
            url="https://github.com/vllm-project/vllm/issues/30624",
            note="the real thing is chunked-mm-prefill, variant async-race",
        ),
        Reference(
            id="vllm#31841",
            title="Two buffers for is_mm_embed",
            url="https://github.com/vllm-project/vllm/pull/31841",
            note="the fix, in 0.14.0",
        ),
    )
    log_patterns = {
        "scatter-error": r"RuntimeError: .*" + SCATTER,
        "mask-rows": r"contract violated: mask-rows: ",
    }
    key_log_patterns: ClassVar[tuple[str, ...]] = ("mask-rows", "scatter-error")

    async def trigger(self, drive: Drive) -> None:
        text = "x" * 1800
        requests = [
            drive.unless_stuck(drive.chat(label, text=text, images=[drive.picture(label, i + 1)]))
            for i, label in enumerate(TOGETHER)
        ]
        await asyncio.gather(*requests)
        await drive.unless_stuck(drive.chat(AFTER, text="hello"))

    def conditions(self, facts: RunFacts) -> list[Condition]:
        return [
            Condition(
                "image-500",
                "symptom",
                "requests with an image get HTTP 500 from masked_scatter",
                some_scattered,
            ),
            Condition(
                "text-answered",
                "symptom",
                "text is answered afterwards",
                lambda e: all_answered(e, [AFTER]),
            ),
            Condition(
                "endpoints-green",
                "symptom",
                "/health and /v1/models answer 200",
                checks.endpoints_green,
            ),
            self._error(),
            self._mask(),
        ]

    def live_conditions(self, facts: LiveFacts) -> list[Condition]:
        """The contract's words are there only with --check-contract: they are not required."""
        return [
            *live.some_requests_fail(METRICS, ROLE),
            self._error(),
            replace(self._mask(), required=False),
        ]

    def _error(self) -> Condition:
        return Condition(
            "scatter-error",
            "cause",
            f"the log holds masked_scatter's '{SCATTER}'",
            lambda e: checks.logged(e, "scatter-error", "masked_scatter's error"),
        )

    def _mask(self) -> Condition:
        return Condition(
            "mask-of-another-step",
            "cause",
            "the contract names a step whose mask marks more tokens than it has embeddings",
            mask_of_another_step,
        )

    def healthy_after(self, evidence: Evidence) -> Finding:
        answered = all_answered(evidence, [*TOGETHER, AFTER])
        count = checks.log_count(evidence, "contract-violated")
        if answered.truth is not Truth.MET or count == 0:
            return answered
        if count is None:
            return Finding.unknown(evidence.why_missing("logs", "check"))
        return Finding.of(False, f"answered, but the contract was violated {count} times")


def some_scattered(evidence: Evidence) -> Finding:
    sent = [r for label in TOGETHER for r in evidence.labelled(label)]
    if len(sent) < CLIENTS:
        return Finding.unknown(f"{len(sent)} of {CLIENTS} requests were sent")
    bad = [r for r in sent if r.status == 500 and SCATTER in r.error]
    said = "; ".join(f"{r.label}: {told(r)}" for r in sent)
    return Finding.of(bool(bad), said)


def mask_of_another_step(evidence: Evidence) -> Finding:
    if checks.log_count(evidence, "mask-rows") is None:
        return Finding.unknown(evidence.why_missing("logs", "check"))
    lines = checks.log_lines(evidence, "mask-rows")
    found = [(int(m[1]), int(m[2])) for line in lines if (m := ROWS.search(line.text))]
    more = [(marked, rows) for marked, rows in found if marked > rows]
    said = f"{len(found)} steps whose mask does not fit its rows"
    said += f", e.g. {more[0][0]} marked for {more[0][1]} rows" if more else ""
    return Finding.of(bool(more), said, *checks.log_files(evidence))


SCENARIO = GhostKeyLru()
VARIANTS: tuple[Scenario, ...] = (SCENARIO, PadValueKey(), KvBudget(), ReusedMask())
