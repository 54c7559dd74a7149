"""What the variants of chunked-mm-prefill share: the bug report, its assertion, its claims."""

from __future__ import annotations

from functools import partial
from typing import Any

from mmrepro.scenario import (
    Declared,
    Fidelity,
    Finding,
    Label,
    Row,
    RunFacts,
    answered,
    cause,
    changed,
    claim,
    crash,
    death_rows,
    first_error,
    happened,
    hypothesis,
    issue,
    unchanged,
)

SERVER = """--trust-remote-code --max-num-seqs 8 --limit-mm-per-prompt '{"image":1}'"""
LOG_PATTERNS = {
    **crash.LOG_PATTERNS,
    "mask-mismatch": r"Number of elements of source < number of ones in mask"
    r"|masked_scatter_size_check"
    r"|Attempted to assign .{1,200} multimodal tokens to \d+ placeholders",
}
"""masked_scatter with more ones than rows: torch's words on a CPU, on a GPU, and vLLM's own."""
SAME_CRASH = issue(
    "vllm#30624",
    "`masked_scatter_size_check` failed when running Qwen3VLMoE",
    "the same assertion on another model, with --async-scheduling",
)


def mismatch(more: str, part: Any = cause) -> Declared:
    statement = f"the first exception of the log is EngineCore's, in masked_scatter: more {more}"
    return first_error("mask-mismatch", f"{statement}; all others are its echoes", part)


def rows(failing: Label) -> tuple[Row, ...]:
    assertion = "masked_scatter_size_check: totalElements <= srcSize"
    return death_rows(failing, "500, EngineCore encountered an issue", assertion)


# ------------------------------------------------------------------ what the report claims

SOURCE = "the report of 2025-11-01"
reported = partial(claim, source=SOURCE)
of_crash = partial(reported, by="first-error", given="first-error", otherwise="no crash")
"""A statement of the report that only a crash tests."""

FIRST, SECOND = "image A, of three steps", "image B, of three steps"


def on_a_gpu(facts: RunFacts) -> Finding:
    return Finding.of(facts.fidelity is Fidelity.GPU, f"fidelity {facts.fidelity}")


UNTOLD = "this run tells nothing of it (mmrepro ablate chunked-mm-prefill --variant async-race)"
refuted = partial(of_crash, otherwise=UNTOLD, refuted=True)
RACE_CLAIMS = (
    of_crash(
        "assertion", "masked_scatter: more image rows than embeddings (masked_scatter_size_check)"
    ),
    of_crash(
        "request-1-passes",
        "the first large image is answered, the second crashes",
        by=happened(answered(FIRST)),
        note="why the reporter's request 1 passed is not established",
    ),
    refuted(
        "prefix-caching",
        "hypothesis 1: prefix caching is the cause",
        given=(changed("prefix-caching"), "first-error"),
    ),
    refuted(
        "chunk-budget",
        "hypothesis 2: a chunk budget below the image's tokens is the cause, a larger one the cure",
        by="unordered-buffer",
        given=(changed("budget", "chunk-budget"), answered(FIRST, SECOND), "unordered-buffer"),
    ),
    refuted(
        "graphs",
        "hypothesis 3: a CUDA graph is replayed with the wrong size",
        given=(unchanged("eager-mode"), "first-error"),
        note="with --enforce-eager there is no graph",
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
        untested="not established: the report names no build, and released 0.11.0, its latest "
        "release, has no such buffer",
    ),
    reported(
        "on-a-gpu",
        "the race happens on a GPU as it does here",
        by="first-error",
        given=on_a_gpu,
        otherwise="no run on a GPU was made; see docs/chunked-mm-prefill.md",
    ),
)
HYPOTHESES = (
    hypothesis(
        "prefix-caching",
        "hypothesis 1: prefix caching is the cause (refuted in the report)",
        SOURCE,
        causes="prefix-caching",
    ),
    hypothesis(
        "chunk-budget",
        "hypothesis 2: a chunk budget below the image's tokens is the cause (confirmed in the "
        "report: 8192 cures it)",
        SOURCE,
        causes="chunk-budget",
    ),
    hypothesis(
        "graphs",
        "hypothesis 3: CUDA graphs (in the report the explanation; never tried alone)",
        SOURCE,
        causes="eager-mode",
    ),
    hypothesis(
        "async-scheduling",
        "asynchronous scheduling is the cause (not considered in the report)",
        SOURCE,
        causes="async-scheduling",
    ),
    hypothesis(
        "reporters-build",
        "the reporter's server died of this race",
        SOURCE,
        untested="not established: the report names no build, and why its request 1 passes is open",
    ),
)
