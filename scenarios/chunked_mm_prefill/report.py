"""What the variants of chunked-mm-prefill share: the bug report and its assertion."""

from __future__ import annotations

from functools import partial
from typing import Any

from mmrepro.scenario import Declared, Row, cause, claim, crash, death_rows, first_error, issue
from mmrepro.scenario.common import Label

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

SOURCE = "the report of 2025-11-01"
reported = partial(claim, source=SOURCE)
of_crash = partial(reported, by="first-error", given="first-error", otherwise="no crash")
"""A statement of the report that only a crash tests."""


def mismatch(more: str, part: Any = cause) -> Declared:
    statement = f"the first exception of the log is EngineCore's, in masked_scatter: more {more}"
    return first_error("mask-mismatch", f"{statement}; all others are its echoes", part)


def rows(failing: Label) -> tuple[Row, ...]:
    assertion = "masked_scatter_size_check: totalElements <= srcSize"
    return death_rows(failing, "500, EngineCore encountered an issue", assertion)
