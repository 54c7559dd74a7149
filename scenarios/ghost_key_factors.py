"""What may or may not matter to ghost-key-eviction, and what an ablation says of its report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmrepro.incident import ClaimResult, StandIn
from mmrepro.scenario import Factor, Patch
from mmrepro.scenarios.mm_cache_desync import CACHE_GB, MM_CACHE, PREFIX_CACHING, REFUSAL
from mmrepro.signature import Finding, Truth

if TYPE_CHECKING:
    from mmrepro.incident.ablation import Ablation

PATCH = Patch(
    "ghost_key_patch",
    StandIn(
        name="ghost_key_patch",
        replaces="vllm.utils.cache.LRUCache.touch and .popitem, by the fixed versions",
        why="the mitigation under test, as the report's author patched by hand",
    ),
)


def half(method: str) -> Patch:
    """One of the two parts of the fix."""
    return Patch(
        PATCH.folder,
        StandIn(
            name=f"ghost_key_patch, {method}() alone",
            replaces=f"vllm.utils.cache.LRUCache.{method}, by the fixed version",
            why="which part of the fix is needed is to be found out",
        ),
        env={"MMREPRO_GHOST_KEY_PATCH": method},
    )


FACTORS = (
    PREFIX_CACHING,
    Factor(
        name="concurrency",
        description="how many requests the scheduler runs at once",
        failing="--max-num-seqs 8",
        server_args=("--max-num-seqs", "1"),
        claim="vllm#43941: it takes high concurrency",
    ),
    Factor(
        name="cache-size",
        description="how much the multimodal processor cache holds before it evicts",
        failing=f"--mm-processor-cache-gb {CACHE_GB}",
        server_args=("--mm-processor-cache-gb", "4"),
        claim="a larger cache is the first thing that one tries; 4 is vLLM's default",
    ),
    REFUSAL,
    MM_CACHE,
    Factor(
        name="touch-fix",
        description="the first part of vllm#43595: touch() ignores keys that are not cached",
        failing="the engine's LRUCache.touch()",
        cure="touch() as fixed",
        patch=half("touch"),
        claim="vllm#43595: both parts are needed",
    ),
    Factor(
        name="popitem-fix",
        description="the second part of vllm#43595: popitem() drops keys that are not cached",
        failing="the engine's LRUCache.popitem()",
        cure="popitem() as fixed",
        patch=half("popitem"),
        claim="vllm#43595: both parts are needed",
    ),
)


def hypotheses(ablation: Ablation) -> list[ClaimResult]:
    """The explanations and cures that were offered, against the table."""
    from mmrepro.scenario.hypotheses import cures, hypothesis, matters

    return [
        hypothesis(
            "high-concurrency",
            "it takes high concurrency",
            "vllm#43941",
            matters(ablation, "concurrency"),
            note="The traffic here is one request at a time in any case",
        ),
        hypothesis(
            "disable-cache",
            "turning the multimodal processor cache off cures it",
            "vllm#43941",
            cures(ablation, "mm-cache"),
        ),
        hypothesis(
            "larger-cache",
            "a larger multimodal processor cache cures it",
            "the obvious guess",
            cures(ablation, "cache-size"),
        ),
        hypothesis(
            "both-parts",
            "the fix needs both parts, in touch() and in popitem()",
            "vllm#43595",
            both_needed(ablation),
        ),
    ]


def both_needed(ablation: Ablation) -> Finding:
    """Met: neither half cures alone, and both do together."""
    from mmrepro.scenario.hypotheses import cures

    halves = [cures(ablation, name) for name in ("touch-fix", "popitem-fix")]
    said = "; ".join(half.observed for half in halves)
    if any(half.truth is Truth.MET for half in halves):
        return Finding.of(False, said)
    together = {"touch-fix", "popitem-fix"}
    if any(together <= set(cure.flips) for cure in ablation.cures):
        return Finding.of(True, said)
    return Finding.unknown(f"no combination with both was seen to cure; {said}")
