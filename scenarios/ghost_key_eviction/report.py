"""The tables of ghost-key-eviction: its symptoms and claims, and what an ablation may
toggle."""

from functools import partial

from mmrepro.scenario import Factor, Finding, Logs, claim, common, row, vllm
from mmrepro.scenario.more import (
    Patch,
    StandIn,
    checks,
    gpu_idle,
    gpu_memory_held,
    hypothesis,
)
from mmrepro.scenarios.ghost_key_eviction import ghost

_NO_HANG = "there was no hang in this run"
_ARTICLE = "the article of 2026-07-02"
"""On a server of the author's own; vllm#43941, which it names, is another report of the
failure."""
_of_hang = partial(
    claim,
    source=_ARTICLE,
    given="no-answer",
    otherwise=_NO_HANG,
    refutable_on=">=0.14.0,<0.24.0",
)
"""A statement of the article about the hang: only a run that hung tests it, and what
releases that hang in another way show does not speak against it."""
_of_ghost = partial(
    claim,
    source=_ARTICLE,
    given=("no-answer", "cause"),
    otherwise="not this hang, or no hang",
)
"""One about the ghost key: only a run tests it that was seen to hang by it."""

_stated = partial(claim, source=_ARTICLE)

_STEPS = ("refused-for-length", "cache-on")
_of_fix = partial(claim, source=vllm.LRU_FIX, releases=">=0.24.0")
"""One about the release with the fix: an older one does not test it, nor one without
the cache."""

ROWS = (
    row("process alive", checks.engine_alive, "yes", "yes", abnormal_if=False),
    row(
        "/health, /v1/models",
        "endpoints-green",
        "200, 200",
        "200, 200",
        abnormal_if=False,
    ),
    row("/v1/chat/completions", "no-answer", common.usual_latency, "no answer in 15 s"),
    row("a new text-only request", "no-answer-later", common.usual_latency),
    row(
        "running, waiting",
        common.idle_while_asked,
        "0, 0 when idle",
        "0 and 0, with a request added",
    ),
    row(
        "requests added, finished",
        "added-not-scheduled",
        "equal",
        "added, never scheduled",
    ),
    row("EngineCore CPU", "core-burns-cpu", common.idle_cpu, "136 %"),
    row(
        "system calls of EngineCore",
        "user-space-spin",
        "blocked when idle",
        "8 futex calls in 3 s",
    ),
    row("GPU utilisation", gpu_idle, reported="0 %, memory held"),
)
CLAIMS = (
    _of_hang(
        "alive-and-green",
        "the process lives, /health and /v1/models answer 200",
        by="endpoints-green",
    ),
    _of_hang(
        "no-answer",
        "/v1/chat/completions gets no answer (the article waited 15 s)",
        by="no-answer",
        note="the deadline here follows from the gate's latencies",
    ),
    _of_hang(
        "idle-metrics",
        "num_requests_running and num_requests_waiting are 0",
        by="nothing-queued",
    ),
    _of_hang(
        "added-request",
        'the API server logged "Added request" for the unanswered request',
        by="added-not-scheduled",
    ),
    _of_hang("cpu", "EngineCore burns CPU", by="core-burns-cpu"),
    _stated(
        "cpu-136",
        "it is 136 % of a core",
        untested=(
            "a figure of the author's machine, model and load; the loop is one "
            "thread, a core"
        ),
    ),
    _of_hang(
        "gpu-idle",
        "GPU utilisation is 0 %, memory stays held",
        by=(gpu_idle, gpu_memory_held),
    ),
    _of_hang(
        "stack",
        (
            "py-spy: process_input_sockets, active, with the GIL, in popitem below "
            "the cache update"
        ),
        by="eviction-stack",
    ),
    _of_hang(
        "gil-blocks-all",
        "by the GIL that thread blocks all other Python threads of EngineCore",
        by=ghost.streamed_on,
        refuted=True,
        otherwise="to test: mmrepro run ghost-key-eviction --option stream",
        note=(
            "CPython hands the GIL on: steps go on, some tokens a second; no "
            "new request comes in"
        ),
    ),
    _of_hang(
        "user-space",
        "strace: pure user-space spinning (8 futex calls in 3 s)",
        by="user-space-spin",
    ),
    _of_hang(
        "last-line",
        'the last EngineCore log line is "waiting for work"',
        by=common.last_line("waiting for work"),
    ),
    _of_hang(
        "throughput",
        "the log's generation throughput is 0.0 from then on",
        by=ghost.throughput_ends,
    ),
    _of_hang(
        "assertion-before",
        "Expected a cached item for mm_hash stands in the log before the hang",
        by="cached-item-assertion",
    ),
    claim(
        "step-1",
        "step 1: a too long request with image X is refused with 400",
        by=vllm.refused_for_length,
    ),
    claim(
        "step-2",
        "step 2: image X in a short request gets 500",
        by=vllm.image_fails,
        given=_STEPS,
        refutable_on=">=0.14.0,<0.24.0",
    ),
    _of_ghost(
        "cause",
        (
            "touch() makes a ghost key that popitem() cannot remove, so eviction "
            "never ends"
        ),
        by="cause",
    ),
    _of_ghost(
        "goes-on",
        "after the assertion other requests are served, until something is evicted",
        by=(vllm.image_fails, ghost.served_meanwhile),
    ),
    _of_ghost(
        "at-will",
        "it is hard to trigger at will: days of uptime, high concurrency, luck",
        by=ghost.hangs_one_at_a_time,
        refuted=True,
    ),
    _of_ghost(
        "not-atomic",
        "an exception between touch() and __setitem__ leaves the ghost key behind",
        by="ghost-is-the-key",
        note="it is get_and_update_features that calls touch(), for all items, before "
        "get_and_update_item: see the sources",
    ),
    _of_hang(
        "needs-prefix-caching",
        "it takes prefix caching",
        given=("no-answer", vllm.PREFIX_CACHING.took_effect),
        otherwise="prefix caching was on, or there was no hang",
        by="no-answer",
        refuted=True,
    ),
    _stated(
        "videos",
        "videos do it as well: the article's clients sent video_url",
        by=("symptom", "cause"),
        given=ghost.sent_videos,
        otherwise="to test: mmrepro run ghost-key-eviction --option video",
    ),
    _stated(
        "authors-route",
        (
            "the ghost came from high concurrency and a request whose hash is not in "
            "the cache"
        ),
        untested="not established: the article does not name the request. Here it is a "
        "refused one (vllm#43941); docs/found/vllm-0.23.0-overtaken shows one that "
        "another overtook",
    ),
    _stated(
        "unit-test-hangs",
        "the article's unit test loops for ever without the fix",
        by=ghost.article_test_hangs,
    ),
    _stated(
        "first-layer",
        "touch() that leaves a missing key alone prevents it",
        by=ghost.ends_it_alone("touch"),
    ),
    _stated(
        "second-layer",
        (
            "popitem() that skips and drops ghost keys prevents the loop, whatever "
            "made them"
        ),
        by=ghost.ends_it_alone("popitem"),
    ),
    _of_fix(
        "fixed-hang",
        "0.24.0 fixes the hang",
        by=ghost.WORKS_AFTER,
        given=(*_STEPS, "broken-promise", "evicted"),
    ),
    _of_fix(
        "fixed-desync",
        "0.24.0 fixes the cause, the desynchronised caches",
        by=vllm.image_survives,
        given=_STEPS,
        note="see the scenario mm-cache-desync",
    ),
)


PATCH = Patch(
    "ghost_key_patch",
    StandIn(
        name="ghost_key_patch",
        replaces="vllm.utils.cache.LRUCache.touch and .popitem, by the fixed versions",
        why="the mitigation under test, as the report's author patched by hand",
    ),
)
_LOADED = f"{PATCH.folder}-loaded"


def _half(method: str, what: str) -> Factor:
    """One of the two parts of the fix."""
    stand_in = StandIn(
        name=f"ghost_key_patch, {method}() alone",
        replaces=f"vllm.utils.cache.LRUCache.{method}, by the fixed version",
        why="which part of the fix is needed is to be found out",
    )

    def patched(logs: Logs) -> Finding:
        """The engine's own process says which methods it has replaced, as it does."""
        done = sorted(
            {m[1] for m in logs.search(_LOADED, r"LRUCache\.(\w+) is patched")}
        )
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
    _half(
        "touch",
        "the first part of vllm#43595: touch() ignores keys that are not cached",
    ),
    _half(
        "popitem",
        "the second part of vllm#43595: popitem() drops keys that are not cached",
    ),
)
HYPOTHESES = (
    hypothesis(
        "high-concurrency",
        "it takes high concurrency",
        matters="concurrency",
        note="The traffic here is one request at a time in any case",
    ),
    hypothesis(
        "disable-cache",
        "turning the multimodal processor cache off cures it",
        cures="mm-cache",
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
