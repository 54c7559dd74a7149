"""What the bug report claims, judged by a run of async-race."""

from __future__ import annotations

from functools import partial

from mmrepro.scenario import (
    Fidelity,
    Finding,
    RunFacts,
    answered,
    changed,
    happened,
    unchanged,
)
from mmrepro.scenarios.chunked_mm_prefill import report

FIRST, SECOND = "image A, of three steps", "image B, of three steps"


def on_a_gpu(facts: RunFacts) -> Finding:
    return Finding.of(facts.fidelity is Fidelity.GPU, f"fidelity {facts.fidelity}")


UNTOLD = "this run tells nothing of it (mmrepro ablate chunked-mm-prefill --variant async-race)"
refuted = partial(report.of_crash, otherwise=UNTOLD, refuted=True)
CLAIMS = (
    report.of_crash(
        "assertion", "masked_scatter: more image rows than embeddings (masked_scatter_size_check)"
    ),
    report.of_crash(
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
    report.of_crash(
        "buffer",
        "the mask's buffer is rewritten while its copy is queued",
        source="vllm#30624, vllm#31373",
        by="unordered-buffer",
    ),
    report.reported(
        "reporters-build",
        "the reporter's server died of this race",
        untested="not established: the report names no build, and released 0.11.0, its latest "
        "release, has no such buffer",
    ),
    report.reported(
        "on-a-gpu",
        "the race happens on a GPU as it does here",
        by="first-error",
        given=on_a_gpu,
        otherwise="no run on a GPU was made; see docs/chunked-mm-prefill.md",
    ),
)
