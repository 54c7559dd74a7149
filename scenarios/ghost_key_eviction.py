"""vLLM: EngineCore spins for ever when the multimodal cache evicts, with /health green.

Starts from the desynchronised caches of ``mm-cache-desync``: the failed request leaves a key in
the receiver's LRU order that is not in the cache, and the first eviction never ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from mmrepro.evidence import Evidence
from mmrepro.incident import (
    ClaimResult,
    KeyStack,
    Reference,
    SymptomRow,
)
from mmrepro.probes.data import StackSample
from mmrepro.scenario import LiveFacts, Mitigation, RunFacts, SourceRef, unmet
from mmrepro.scenarios.ghost_key_evidence import (
    FILLS,
    METRICS,
    ROLE,
    code_loops,
    eviction_stack,
    ghost_in,
    ghost_is_the_key,
    healthy_after,
    input_threads,
)
from mmrepro.scenarios.ghost_key_factors import FACTORS, PATCH, hypotheses
from mmrepro.scenarios.ghost_key_report import claims, key_stack, symptom_rows
from mmrepro.scenarios.mm_cache_desync import (
    DISABLE_CACHE,
    ISSUE,
    RECEIVER_SOURCE,
    MmCacheScenario,
    cached_item_assertion,
    desynchronise,
)
from mmrepro.scenarios.mm_cache_live import without_cache
from mmrepro.signature import Condition, Finding, checks
from mmrepro.signature import live_server as live
from mmrepro.traffic.drive import Drive

if TYPE_CHECKING:
    from mmrepro.incident.ablation import Ablation


class GhostKeyEviction(MmCacheScenario):
    """EngineCore hangs in multimodal cache eviction while /health stays 200.

    What: After a multimodal request was refused for its length and its image was sent again,
    the next eviction of EngineCore's multimodal cache never ends. One thread spins in user
    space and holds the GIL; /health and /v1/models answer 200, nothing runs, nothing waits, and
    no request is ever answered again.

    Why: `LRUCache.touch()` puts a key that is not in the cache into the LRU order: a ghost. The
    request that failed with 'Expected a cached item' has just touched one. When the cache is
    full, `popitem()` picks the oldest key, which is now the ghost; `pop()` finds nothing and
    returns None, so `currsize` does not shrink, and cachetools' `while currsize + size >
    maxsize: popitem()` never ends. The loop runs in the thread that receives requests, so none
    reaches the scheduler.
    """

    name = "ghost-key-eviction"
    release = "0.23.0"
    affected = ">=0.14.0,<0.24.0"
    reproducers = ("ghost_key.py",)
    sources = (
        SourceRef(
            file="vllm/utils/cache.py",
            qualname="LRUCache.touch",
            note="a missing key gets a place in the LRU order",
            highlight=("except KeyError", "order[key] = None"),
        ),
        SourceRef(
            file="vllm/utils/cache.py",
            qualname="LRUCache.popitem",
            note="the oldest key of the order is taken to be in the cache",
            highlight=("value = self.pop(",),
        ),
        SourceRef(
            file="cachetools/__init__.py",
            qualname="Cache.__setitem__",
            note="the loop that never ends: popitem() removes nothing, so the size stays",
            highlight=("while", "self.popitem()"),
        ),
        RECEIVER_SOURCE,
    )
    mitigations = (
        Mitigation(
            name="release",
            description="upgrade to 0.24.0, the first release with vllm#43595",
            release="0.24.0",
        ),
        DISABLE_CACHE,
        Mitigation(
            name="patch",
            description="vllm#43595 applied at start: touch() ignores missing keys, popitem() "
            "drops ghosts",
            patch=PATCH,
        ),
    )
    factors = FACTORS
    references = (
        ISSUE,
        Reference(
            id="vllm#43595",
            title="fix: prevent MM cache hang from stale LRU order keys",
            url="https://github.com/vllm-project/vllm/pull/43595",
            note="the fix, in 0.24.0",
        ),
        Reference(
            id="vllm#47958",
            title="EngineCore process_input_sockets thread hangs indefinitely in mm cache eviction",
            url="https://github.com/vllm-project/vllm/issues/47958",
            note="the same hang in production, found by a py-spy dump",
        ),
    )

    async def trigger(self, drive: Drive) -> None:
        await desynchronise(drive, drive.picture("X", 777))
        first = drive.picture("fill-1", 1001)
        for i in range(1, FILLS + 1):
            picture = first if i == 1 else drive.picture(f"fill-{i}", 1000 + i)
            if await drive.unless_stuck(drive.chat(f"fill {i}", images=[picture])) is None:
                drive.fact("fills_until_hang", i)
                return
        # No hang. Was there an eviction at all? The first image must have left the cache.
        hits = await drive.metric("vllm:mm_cache_hits_total")
        await drive.unless_stuck(drive.chat("fill 1, again", images=[first]))
        await drive.unless_stuck(
            drive.chat("after: a new image", images=[drive.picture("after", 9001)])
        )
        drive.fact("mm_cache_hits_before", hits)
        drive.fact("mm_cache_hits_after", await drive.metric("vllm:mm_cache_hits_total"))
        drive.fact("mm_cache_queries", await drive.metric("vllm:mm_cache_queries_total"))

    def enough_stacks(self, samples: Sequence[StackSample]) -> bool:
        return any(ghost_in(t.frames) for s in samples for t in input_threads(s))

    def conditions(self, facts: RunFacts) -> list[Condition]:
        return [
            Condition(
                "no-answer",
                "symptom",
                "a request is not answered within a deadline many times the usual latency",
                checks.unanswered,
            ),
            Condition(
                "no-answer-later",
                "symptom",
                "a new text-only request is not answered either",
                checks.probe_unanswered,
            ),
            Condition(
                "endpoints-green",
                "symptom",
                "/health and /v1/models answer 200 all the while",
                checks.endpoints_green,
            ),
            Condition(
                "nothing-queued",
                "symptom",
                "num_requests_running and num_requests_waiting are 0",
                lambda e: checks.queue_empty(e, METRICS["running"], METRICS["waiting"]),
            ),
            Condition(
                "added-not-scheduled",
                "symptom",
                'the API server logged "Added request" for requests that never finished',
                lambda e: checks.added_but_unfinished(e, METRICS["finished"]),
            ),
            Condition(
                "no-progress",
                "symptom",
                "counters of finished requests and tokens stand still",
                lambda e: checks.no_progress(
                    e, {k: METRICS[k] for k in ("finished", "prompt_tokens", "generation_tokens")}
                ),
            ),
            Condition(
                "core-burns-cpu",
                "symptom",
                "EngineCore uses a whole core in user space, idle before",
                lambda e: checks.core_burns_cpu(e, ROLE),
            ),
            Condition(
                "user-space-spin",
                "cause",
                "EngineCore spins in user space instead of waiting in a system call",
                checks.spins_in_user_space,
            ),
            Condition(
                "eviction-stack",
                "cause",
                "in every stack sample the thread process_input_sockets is inside the eviction "
                "loop: popitem ← __setitem__ ← __setitem__ ← get_and_update_item ← "
                "get_and_update_features ← preprocess_add_request",
                eviction_stack,
            ),
            Condition(
                "cached-item-assertion",
                "cause",
                'EngineCore logged "Expected a cached item for mm_hash=…" before the hang',
                cached_item_assertion,
            ),
            Condition(
                "ghost-is-the-key",
                "cause",
                "the key that popitem() tries to evict is the mm_hash of that assertion",
                ghost_is_the_key,
            ),
            Condition(
                "engine-code-loops",
                "cause",
                "the installed LRUCache, alone, never ends an eviction after touch() of a "
                "missing key",
                code_loops,
            ),
        ]

    def cause_remains(self, evidence: Evidence, facts: RunFacts) -> Finding:
        """A ghost was made, and the installed class cannot evict one. The spin needs the hang."""
        return unmet(cached_item_assertion(evidence), code_loops(evidence))

    def live_conditions(self, facts: LiveFacts) -> list[Condition]:
        """Less what needs the trigger's own requests, a gate, or code run in the environment."""
        kept = {c.id: c for c in super().live_conditions(facts)}
        return [
            replace(kept["no-answer-later"], statement="a small text-only request is not answered"),
            kept["endpoints-green"],
            kept["nothing-queued"],
            live.no_progress(METRICS),
            Condition(
                "core-busy",
                "symptom",
                "EngineCore uses a whole core in user space",
                lambda e: checks.core_busy(e, ROLE),
            ),
            kept["user-space-spin"],
            kept["eviction-stack"],
            kept["cached-item-assertion"],
            kept["ghost-is-the-key"],
            Condition(
                "affected-release",
                "cause",
                f"the release is one of those whose LRU order takes in ghosts "
                f"({self.affected_range})",
                lambda e: self.exposure(facts),
                required=False,
            ),
        ]

    def exposure(self, facts: LiveFacts) -> Finding:
        return without_cache(facts) or super().exposure(facts)

    def healthy_after(self, evidence: Evidence, facts: RunFacts) -> Finding:
        return healthy_after(evidence)

    def hypotheses(self, ablation: Ablation) -> list[ClaimResult]:
        return hypotheses(ablation)

    def key_stack(self, evidence: Evidence) -> KeyStack | None:
        return key_stack(evidence)

    def symptom_rows(self, evidence: Evidence, facts: RunFacts) -> list[SymptomRow]:
        return symptom_rows(evidence)

    def claim_results(self, evidence: Evidence, facts: RunFacts) -> list[ClaimResult]:
        return claims(evidence, facts)


SCENARIO = GhostKeyEviction()
