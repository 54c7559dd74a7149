"""What the variants of chunked-mm-prefill share: the bug report, its crash, its tables."""

from __future__ import annotations

from collections.abc import Mapping

from mmrepro import deaths
from mmrepro.evidence import Evidence
from mmrepro.incident import ClaimResult, ClaimStatus, Reference, SymptomRow
from mmrepro.signature import Finding, Truth

SOURCE = "the report of 2025-11-01"

MISMATCH: Mapping[str, str] = {
    "mask-mismatch": (
        r"Number of elements of source < number of ones in mask"
        r"|masked_scatter_size_check"
        r"|Attempted to assign .{1,200} multimodal tokens to \d+ placeholders"
    )
}
"""masked_scatter with more ones than rows: torch's words on a CPU, on a GPU, and vLLM's own."""

SAME_CRASH = Reference(
    id="vllm#30624",
    title="`masked_scatter_size_check` failed when running Qwen3VLMoE",
    url="https://github.com/vllm-project/vllm/issues/30624",
    note="the same assertion on another model, with --async-scheduling",
)


def claim(name: str, text: str, finding: Finding, source: str = SOURCE) -> ClaimResult:
    """A statement of the report, judged by a finding of this run."""
    status = {
        Truth.MET: ClaimStatus.CONFIRMED,
        Truth.NOT_MET: ClaimStatus.REFUTED,
        Truth.UNKNOWN: ClaimStatus.NOT_TESTED,
    }[finding.truth]
    return ClaimResult(id=name, text=text, source=source, status=status, observed=finding.observed)


def symptom_table(evidence: Evidence, failing: str, role: str) -> list[SymptomRow]:
    """The crash as a user sees it, beside what the report says."""
    gate = [r for r in evidence.requests_in("gate") if r.images]
    rows = [
        (
            failing,
            f"{gate[0].status} ({gate[0].label})" if gate else "",
            deaths.requests_fail_with_500(evidence, failing),
            "500, EngineCore encountered an issue",
        ),
        ("EngineCore", "alive", deaths.core_died(evidence, role), "dies"),
        ("/health", "200", deaths.health_is_503(evidence), ""),
        ("the server's process", "alive", deaths.server_exits(evidence), ""),
        (
            "first error of the log",
            "none",
            deaths.first_error(evidence, role, "mask-mismatch"),
            "masked_scatter_size_check: totalElements <= srcSize",
        ),
    ]
    tested = bool(evidence.labelled(failing))
    return [
        SymptomRow(
            check=check,
            healthy=healthy,
            observed=finding.observed,
            abnormal=None
            if finding.truth is Truth.UNKNOWN or not tested
            else finding.truth is Truth.MET,
            reported=reported,
        )
        for check, healthy, finding, reported in rows
    ]
