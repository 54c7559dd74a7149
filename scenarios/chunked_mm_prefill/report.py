"""What the variants of chunked-mm-prefill share: the bug report, its assertion, its
claims."""

from functools import partial
from typing import Any

from mmrepro.engines import Engine
from mmrepro.scenario import (
    Check,
    Claim,
    Finding,
    Logs,
    Metrics,
    Missing,
    Requests,
    RunFacts,
    cause,
    claim,
    common,
    issue,
    vllm,
)
from mmrepro.scenario.more import Declared, Fidelity, Row, crash, hypothesis
from mmrepro.scenarios.chunked_mm_prefill import stream

SERVER = """--trust-remote-code --max-num-seqs 8 --limit-mm-per-prompt '{"image":1}'"""
MISMATCH = "mask-mismatch"
LOG_PATTERNS = {
    **crash.LOG_PATTERNS,
    **vllm.CONFIG_LINES,
    **vllm.BATCH_LINES,
    "budget": r"Chunked prefill is enabled with max_num_batched_tokens=\d+",
    "placeholders": r"mm_position=PlaceholderRange\(offset=\d+, length=\d+",
    "arguments": r"non-default args: \{",
    "scatter-line": r"inputs_embeds\.masked_scatter_\(",
    MISMATCH: r"Number of elements of source < number of ones in mask"
    r"|masked_scatter_size_check"
    r"|Attempted to assign .{1,200} multimodal tokens to \d+ placeholders",
}
"""masked_scatter with more ones than rows: torch's words on a CPU, those that a GPU
prints (what is raised later names no cause), and vLLM's own."""
SAME_CRASH = issue(
    "vllm#30624",
    "`masked_scatter_size_check` failed when running Qwen3VLMoE",
    "the same assertion on another model, with --async-scheduling",
)


_COUNTS = r"Attempted to assign [\d +=]*?(\d+) multimodal tokens to (\d+) placeholders"


def mismatch(more: str, part: Any = cause) -> Declared:
    statement = f"EngineCore's first exception is in masked_scatter: more {more}"
    declared: Declared = part(
        f"{statement}; all others are its echoes", too_many, id="first-error"
    )
    return declared


def too_many(logs: Logs, engine: Engine) -> Finding:
    """It is the first error, and where vLLM counted, there were more rows than
    embeddings."""
    first = crash.first_error(logs, engine.core_role, MISMATCH)
    for counts in logs.search(MISMATCH, _COUNTS):
        if int(counts[2]) <= int(counts[1]):
            return Finding.of(
                False, f"not too many rows: {counts[0]}; {first.observed}"
            )
    return first


def rows(failing: common.Label) -> tuple[Row, ...]:
    assertion = "masked_scatter_size_check: totalElements <= srcSize"
    return common.death_rows(failing, "500, EngineCore encountered an issue", assertion)


# --------------------------------------------------------------- what the report claims

_SOURCE = "the report of 2025-11-01"
CRASHED = ("core-died", "first-error")
reported = partial(claim, source=_SOURCE)
of_crash = partial(reported, by="first-error", given=CRASHED, otherwise="no crash")
"""A statement of the report that only a crash tests."""

TWO = "image of two steps"
FIRST, SECOND = "image A, of three steps", "image B, of three steps"


def on_a_gpu(facts: RunFacts) -> Finding:
    return Finding.of(facts.fidelity is Fidelity.GPU, f"fidelity {facts.fidelity}")


def _budgets_of(logs: Logs) -> list[int]:
    """Tokens of a step, as the engine logged them."""
    return [int(m[1]) for m in logs.search("budget", r"max_num_batched_tokens=(\d+)")]


def with_budget_above_the_image(logs: Logs) -> Finding:
    """By what the engine logged: several steps of the image of one chunk cannot be the
    cause."""
    budgets = _budgets_of(logs)
    rows = [int(counts[1]) for counts in logs.search(MISMATCH, _COUNTS)]
    if not budgets or not rows:
        return Finding.unknown("the engine did not log its budget and the image's rows")
    told = f"an image of {max(rows)} tokens and a budget of {min(budgets)}"
    return Finding.of(max(rows) < min(budgets), told)


def without_async_scheduling(logs: Logs) -> Finding:
    """The API server listed all that is not as by default, which is without it up to
    0.13.0."""
    lists = [line.text for line in logs.lines("arguments") if line.text.endswith("}")]
    if not lists:
        return Finding.unknown("the API server did not log what is not as by default")
    on = any("'async_scheduling': True" in text for text in lists)
    return Finding.of(not on, f"asynchronous scheduling is {'on' if on else 'off'}")


def _at_once(requests: Requests) -> Finding:
    """The second large image was sent before the first one was answered."""
    first, second = requests.first(FIRST), requests.first(SECOND)
    lead = first.sent.mono + first.latency_s - second.sent.mono
    text = (
        f"{abs(lead):.1f} s {'before' if lead > 0 else 'after'} the first one's answer"
    )
    return Finding.of(lead > 0, f"the second was sent {text}")


def _one_at_a_time(requests: Requests) -> Finding:
    return stream.opposite(_at_once(requests))


def _no_hit_with_caching_on(metrics: Metrics) -> Finding:
    """Where something was found in the cache, nothing is said of a rate of 0."""
    asked = metrics.readings(["vllm:prefix_cache_queries_total"], "gate", least=1)[-1]
    hits = metrics.readings(["vllm:prefix_cache_hits_total"], "gate", least=1)[-1]
    text = f"prefix caching is on, and {hits:g} of {asked:g} tokens were found in it"
    return Finding.of(True, text) if asked and not hits else Finding.unknown(text)


def _into_input_embeddings(logs: Logs) -> Finding:
    """The line that the traceback quotes: image rows are put among the text's
    embeddings."""
    lines = logs.lines("scatter-line")
    if not lines:
        return Finding.unknown("the log quotes no line of code that scatters")
    return Finding.of(True, f"the traceback's line: {lines[0].text.strip()}")


KV_CACHE = of_crash(
    "kv-cache-scatter",
    "the second chunk's image tokens are scattered into the KV cache",
    by=_into_input_embeddings,
    refuted=True,
)
_UNTOLD = (
    "this run tells nothing of it (mmrepro ablate chunked-mm-prefill --variant "
    "async-race)"
)
_refuted = partial(of_crash, otherwise=_UNTOLD, refuted=True)
_IN_LARGER_STEPS = (
    common.changed("budget", "chunk-budget"),
    stream.larger_steps,
    "unordered-buffer",
)
"""The report's cure took effect, on an engine that was seen to race."""
_cured = partial(reported, by=(common.answered(FIRST, SECOND), stream.right_rows))
RACE_CLAIMS = (
    of_crash(
        "assertion",
        "masked_scatter: more image rows than embeddings (masked_scatter_size_check)",
    ),
    of_crash(
        "request-1-passes",
        "the first large image is answered, the second crashes",
        by=common.happened(common.answered(FIRST)),
        note="why the reporter's request 1 passed is not established",
    ),
    _refuted(
        "prefix-caching",
        "hypothesis 1: prefix caching is the cause",
        given=(
            common.changed("prefix-caching"),
            vllm.cache_says("enable_prefix_caching", "False"),
            *CRASHED,
        ),
    ),
    _refuted(
        "chunk-budget",
        (
            "hypothesis 2: a chunk budget below the image's tokens is the cause, a "
            "larger one the cure"
        ),
        by="unordered-buffer",
        given=(
            common.changed("budget", "chunk-budget"),
            stream.larger_steps,
            common.answered(FIRST, SECOND),
            "unordered-buffer",
        ),
    ),
    _cured(
        "budget-cures",
        "the larger budget alone is enough: images are answered",
        given=(*_IN_LARGER_STEPS, _one_at_a_time),
        otherwise=_UNTOLD,
    ),
    _cured(
        "cure-holds-at-once",
        (
            "it is as well with several images at a time, whose tokens together are "
            "more than it"
        ),
        given=(*_IN_LARGER_STEPS, _at_once),
        otherwise="to test: mmrepro run {name} --variant {variant} --mitigation budget "
        "--option at-once",
    ),
    _cured(
        "cure-holds-above",
        "with it larger images can be handled in the future",
        given=(*_IN_LARGER_STEPS, stream.above_larger_budget),
        otherwise="to test: mmrepro run {name} --variant {variant} --mitigation budget "
        "--option above-budget",
    ),
    _cured(
        "three-flags",
        "with all three flags the server is stable",
        given=(
            *_IN_LARGER_STEPS,
            common.changed("prefix-caching"),
            vllm.cache_says("enable_prefix_caching", "False"),
            vllm.config_says("enforce_eager", "True"),
        ),
        otherwise="to test: mmrepro run {name} --variant {variant} --flip prefix-caching "
        "--flip chunk-budget",
    ),
    of_crash(
        "first-chunk-passes",
        "the image's first chunk goes through, the second one crashes",
        by=stream.first_chunk_passed,
        note="the device reads the mask of the second one while it works at the first",
    ),
    of_crash(
        "two-chunks-crash",
        "an image of two chunks crashes in its second one",
        by=common.happened(common.answered(TWO)),
        refuted=True,
        otherwise="no crash, or none of a later image",
        note=(
            "it is answered, with embeddings in wrong rows; the image of three "
            "chunks crashes"
        ),
    ),
    reported(
        "zero-hit-rate",
        "a prefix cache hit rate of 0.0 % shows that prefix caching is off",
        by=_no_hit_with_caching_on,
        given=vllm.cache_says("enable_prefix_caching", "True"),
        otherwise="prefix caching was off",
        refuted=True,
    ),
    _refuted(
        "graphs",
        "hypothesis 3: a CUDA graph is replayed with the wrong size",
        given=(common.unchanged("eager-mode"), vllm.no_graph_ran, *CRASHED),
        note="no batch was run by a graph",
    ),
    of_crash(
        "buffer",
        "the mask's buffer is rewritten while its copy is queued",
        source="vllm#30624, vllm#31373",
        by="unordered-buffer",
    ),
    reported(
        "reporters-build",
        "the reporter's server died of this race",
        untested="not established: the report names no build, and released 0.11.0, its "
        "latest release, has no such buffer",
    ),
    reported(
        "on-a-gpu",
        "the race happens on a GPU as it does here",
        by="first-error",
        given=on_a_gpu,
        otherwise="no vLLM with that buffer ran on a GPU; the bare race did, see "
        "docs/lab/chunked-mm-prefill.md",
    ),
)


def _as_dumped(offset: int, tokens: int, budget: int) -> Check:
    """What vLLM dumps of the step that failed, and logs of its budget."""

    def same(logs: Logs) -> Finding:
        dumps = logs.search(
            "placeholders", r"PlaceholderRange\(offset=(\d+), length=(\d+)"
        )
        budgets = _budgets_of(logs)
        if not dumps or not budgets:
            raise Missing("the engine dumped no placeholders, or logged no budget")
        dumped = (int(dumps[-1][1]), int(dumps[-1][2]), budgets[-1])
        text = "offset {}, length {}, {} tokens a step".format(*dumped)
        return Finding.of(dumped == (offset, tokens, budget), text)

    return same


def _with_budget(budget: int) -> Check:
    def logged(logs: Logs) -> Finding:
        budgets = _budgets_of(logs)
        return Finding.of(
            budgets == [budget], f"a budget of {', '.join(map(str, budgets))}"
        )

    return logged


def _chunks_of(tokens: int, count: int) -> Check:
    """An image of so many tokens went in so many steps, as they were watched."""

    def same(logs: Logs) -> Finding:
        whole = [steps for steps in stream.image_steps(logs) if sum(steps) == tokens]
        if not whole:
            raise Missing(f"no image of {tokens} rows was prefilled whole")
        return Finding.of(
            len(whole[0]) == count, f"{' + '.join(map(str, whole[0]))} rows"
        )

    return same


def size_claims(tokens: int, budget: int) -> tuple[Claim, ...]:
    """Of a run with the report's own sizes."""
    return (
        of_crash(
            "as-dumped",
            f"the image is at offset 2, {tokens} tokens long, {budget} are scheduled",
            by=_as_dumped(2, tokens, budget),
        ),
        reported(
            "in-two-chunks",
            f"it is cut in two chunks, 0 to {budget} and {budget} to {tokens}",
            by=_chunks_of(tokens, 2),
            given=_with_budget(budget),
            cured=True,
            otherwise=(
                "to test: mmrepro run {name} --variant {variant} --mitigation barrier"
            ),
        ),
    )


_offered = partial(hypothesis, source=_SOURCE)
HYPOTHESES = (
    _offered(
        "prefix-caching",
        "hypothesis 1: prefix caching is the cause (refuted in the report)",
        causes="prefix-caching",
    ),
    _offered(
        "chunk-budget",
        "hypothesis 2: a chunk budget below the image's tokens is the cause (confirmed "
        "in the report: 8192 cures it)",
        causes="chunk-budget",
    ),
    _offered(
        "graphs",
        "hypothesis 3: CUDA graphs (in the report the explanation; never tried alone)",
        causes="eager-mode",
    ),
    _offered(
        "async-scheduling",
        "asynchronous scheduling is the cause (not considered in the report)",
        causes="async-scheduling",
    ),
    _offered(
        "reporters-build",
        "the reporter's server died of this race",
        untested=(
            "not established: the report names no build, and why its request 1 "
            "passes is open"
        ),
    ),
)
