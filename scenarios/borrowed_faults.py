"""minivllm: failures of vLLM, SGLang and LMDeploy, in twenty lines each.

Each variant switches one of them on in the engine of ``reproducers/minivllm``, drives it there over
HTTP, and looks for the symptom of the original and for its reason. Small and fast, so that the
harness's own tests can have every kind of failure: a hang, a dead loop, single errors, silence.

This one is vLLM's ghost key; the others are in the modules ``borrowed_*`` beside it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from mmrepro.evidence import Evidence
from mmrepro.probes.data import StackSample, StacksData, ThreadStack
from mmrepro.scenario import LiveFacts, RunFacts, with_variants
from mmrepro.scenario.vllm import MM_CACHE_ISSUE
from mmrepro.scenarios.borrowed_base import (
    AFTER,
    METRICS,
    ROLE,
    BorrowedFault,
    all_answered,
)
from mmrepro.scenarios.borrowed_kv_budget import KvBudget
from mmrepro.scenarios.borrowed_pad_value import PadValueKey
from mmrepro.scenarios.borrowed_reused_mask import ReusedMask
from mmrepro.signature import Condition, Finding, checks
from mmrepro.signature import live_server as live
from mmrepro.signature.digests import digest_in, same_digest
from mmrepro.traffic.drive import Drive

FILLS = 5
MIN_SAMPLES = 3
TOO_LONG, AGAIN = "image X, too long", "image X again"
MISSING = re.compile(r"Expected a cached item for mm_hash='([0-9a-f]{64})'")
PATH = ("put", "received", "<genexpr>", "add", "_take", "_loop")


def loop_threads(sample: StackSample) -> list[ThreadStack]:
    """The engine's thread: its outermost own frame is Service._loop."""
    return [t for t in sample.threads if t.within("_loop")]


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
    inside = [t for t in threads if t.within(*PATH)]
    running = sum(t.active for t in inside)
    popping = sum(t.within("pop_oldest", *PATH) for t in inside)
    text = f"{len(inside)} of {len(threads)} samples in ImageCache.put, {popping} in pop_oldest"
    met = len(inside) == len(threads) and popping > 0 and running > 0
    return Finding.of(met, f"{text}, {running} running", *raw)


def missing_item(evidence: Evidence) -> Finding:
    return checks.logged(evidence, "cached-item-assertion", '"Expected a cached item"')


def ghost_is_the_key(evidence: Evidence) -> Finding:
    lines = checks.log_lines(evidence, "cached-item-assertion")
    named = {m[1] for line in lines if (m := MISSING.search(line.text))}
    keys = [key for t in _threads(evidence)[0] if (key := ghost_of(t))]
    return same_digest(keys, named, "pop_oldest looks at")


class GhostKeyLru(BorrowedFault):
    """The image cache's eviction never ends, while /health stays 200.

    What: After a request was refused for its length and its image was sent again, the next
    eviction never ends: the engine's thread spins, /health is green, nothing is answered.

    Why: `touch()` gives a missing key a place in the LRU order: a ghost. When it is the oldest,
    `pop_oldest()` removes nothing, and `put()` asks for room for ever.
    """

    variant = "ghost-key-lru"
    origin = "vllm#43941"
    options_of_fault = ("--mm-cache-tokens", "130")
    references = (MM_CACHE_ISSUE,)
    log_patterns = {"cached-item-assertion": r"AssertionError: Expected a cached item for mm_hash="}
    key_log_patterns = ("cached-item-assertion",)

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

    def healthy_after(self, evidence: Evidence, facts: RunFacts) -> Finding:
        return all_answered(evidence, [AGAIN, *(f"fill {i + 1}" for i in range(FILLS)), AFTER])


SCENARIO = with_variants(GhostKeyLru(), PadValueKey(), KvBudget(), ReusedMask())
