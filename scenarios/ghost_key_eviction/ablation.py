"""What may or may not matter to ghost-key-eviction, and the two parts of its fix."""

from __future__ import annotations

from mmrepro.scenario import Factor, Finding, Logs, vllm
from mmrepro.scenario.more import Patch, StandIn, hypothesis
from mmrepro.scenarios.ghost_key_eviction import ghost

PATCH = Patch(
    "ghost_key_patch",
    StandIn(
        name="ghost_key_patch",
        replaces="vllm.utils.cache.LRUCache.touch and .popitem, by the fixed versions",
        why="the mitigation under test, as the report's author patched by hand",
    ),
)
LOADED = f"{PATCH.folder}-loaded"


def half(method: str, what: str) -> Factor:
    """One of the two parts of the fix."""
    stand_in = StandIn(
        name=f"ghost_key_patch, {method}() alone",
        replaces=f"vllm.utils.cache.LRUCache.{method}, by the fixed version",
        why="which part of the fix is needed is to be found out",
    )

    def patched(logs: Logs) -> Finding:
        """The engine's own process says which methods it has replaced, as it does."""
        done = sorted({m[1] for m in logs.search(LOADED, r"LRUCache\.(\w+) is patched")})
        return Finding.of(
            done == [method], f"patched in the engine: {', '.join(done) or 'nothing'}"
        )

    return Factor(
        f"{method}-fix",
        what,
        f"the engine's LRUCache.{method}()",
        f"{method}() as fixed",
        patch=Patch(PATCH.folder, stand_in, env={"MMREPRO_GHOST_KEY_PATCH": method}),
        claim="vllm#43595: both parts are needed",
        took_effect=patched,
    )


FACTORS = (
    vllm.PREFIX_CACHING,
    Factor(
        "concurrency",
        "how many requests the scheduler runs at once",
        "--max-num-seqs 8",
        server_args=("--max-num-seqs", "1"),
        claim="vllm#43941: it takes high concurrency",
        took_effect=vllm.parsed_as("max_num_seqs", "1"),
    ),
    Factor(
        "cache-size",
        "how much the multimodal processor cache holds before it evicts",
        f"--mm-processor-cache-gb {vllm.CACHE_GB}",
        server_args=("--mm-processor-cache-gb", "4"),
        claim="a larger cache is the first thing that one tries; 4 is vLLM's default",
        took_effect=ghost.keeps_all,
    ),
    vllm.REFUSAL,
    vllm.MM_CACHE,
    half("touch", "the first part of vllm#43595: touch() ignores keys that are not cached"),
    half("popitem", "the second part of vllm#43595: popitem() drops keys that are not cached"),
)
HYPOTHESES = (
    hypothesis(
        "high-concurrency",
        "it takes high concurrency",
        matters="concurrency",
        note="The traffic here is one request at a time in any case",
    ),
    hypothesis(
        "disable-cache", "turning the multimodal processor cache off cures it", cures="mm-cache"
    ),
    hypothesis(
        "larger-cache",
        "a larger multimodal processor cache cures it",
        "the obvious guess",
        cures="cache-size",
    ),
    hypothesis(
        "both-parts",
        "it takes both parts of the fix, in touch() and in popitem()",
        "the obvious question",
        cures=("touch-fix", "popitem-fix"),
    ),
)
