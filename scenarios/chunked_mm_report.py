"""What the variants of chunked-mm-prefill share: the bug report, its crash, its tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from mmrepro.evidence import Evidence
from mmrepro.incident import ClaimResult, ClaimStatus, Fidelity, Reference, SymptomRow
from mmrepro.scenario import RunFacts
from mmrepro.signature import Finding, Truth
from mmrepro.signature import crash as deaths

if TYPE_CHECKING:
    from mmrepro.incident.ablation import Ablation

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


def race_claims(
    evidence: Evidence,
    facts: RunFacts,
    first_error: Finding,
    unordered: Finding,
    first: str,
    second: str,
) -> list[ClaimResult]:
    """The report's statements, judged by one run; what takes several is for ``mmrepro ablate``."""
    crashed = first_error.truth is Truth.MET
    ablate = "to test: mmrepro ablate chunked-mm-prefill --variant async-race"

    def crash_without(flip: str, what: str) -> Finding:
        """Refuted by a crash without ``what``; one run with it tells nothing."""
        if flip in facts.flips and crashed:
            return Finding.of(False, f"it crashes {what} as well: {first_error.observed}")
        return Finding.unknown(f"this run tells nothing of it; {ablate}")

    pattern = Finding.unknown(f"there was no crash: {first_error.observed}")
    if crashed:
        said = [(label, evidence.labelled(label)) for label in (first, second)]
        text = "; ".join(f"{label}: {r[0].status if r else 'not sent'}" for label, r in said)
        holds = all(r and r[0].answered for _, r in said[:1])
        pattern = (
            Finding.of(holds, text)
            if holds
            else Finding.unknown(
                f"{text}: here the first one crashes. Why the reporter's request 1 passed is not "
                "established"
            )
        )
    graphs = Finding.unknown(f"this run tells nothing of it; {ablate}")
    if crashed and "eager-mode" not in facts.flips:
        graphs = Finding.of(False, "EngineCore died with --enforce-eager: there was no graph")
    budget = Finding.unknown(f"this run tells nothing of it; {ablate}")
    larger = bool({"budget", "chunk-budget"} & (facts.mitigations | facts.flips))
    if larger and not crashed and unordered.truth is Truth.MET:
        budget = Finding.of(False, f"no crash, but the cause is still there: {unordered.observed}")
    return [
        claim(
            "assertion",
            "masked_scatter: more image rows than embeddings (masked_scatter_size_check)",
            first_error if crashed else Finding.unknown(f"no crash: {first_error.observed}"),
        ),
        claim("request-1-passes", "the first large image is answered, the second crashes", pattern),
        claim(
            "prefix-caching",
            "hypothesis 1: prefix caching is the cause",
            crash_without("prefix-caching", "with --no-enable-prefix-caching"),
        ),
        claim(
            "chunk-budget",
            "hypothesis 2: a chunk budget below the image's tokens is the cause, a larger one the "
            "cure",
            budget,
        ),
        claim("graphs", "hypothesis 3: a CUDA graph is replayed with the wrong size", graphs),
        claim(
            "buffer",
            "the mask's buffer is rewritten while its copy is queued",
            unordered if crashed else Finding.unknown(f"no crash; {unordered.observed}"),
            "vllm#30624, vllm#31373",
        ),
        claim(
            "reporters-build",
            "the reporter's server died of this race",
            Finding.unknown(
                "not established: the report names no build, and released 0.11.0, its latest "
                "release, has no such buffer"
            ),
        ),
        claim(
            "on-a-gpu",
            "the race happens on a GPU as it does here",
            Finding.unknown("no run on a GPU was made; see docs/chunked-mm-prefill.md")
            if facts.fidelity is not Fidelity.GPU
            else first_error,
        ),
    ]


def hypotheses(ablation: Ablation) -> list[ClaimResult]:
    """The report's three hypotheses, and the one that it did not have, against the table."""
    from mmrepro.incident.ablation import FactorClass

    def judged(name: str, confirms: set[FactorClass], refutes: set[FactorClass]) -> Finding:
        factor = ablation.factor(name)
        if factor is None or factor.factor_class is None:
            return Finding.unknown(f"factor {name} was not judged")
        text = f"{name} is classed {factor.factor_class.value}: {factor.why}"
        if factor.factor_class in confirms:
            return Finding.of(True, text)
        if factor.factor_class in refutes:
            return Finding.of(False, text)
        return Finding.unknown(text)

    cause = {FactorClass.NECESSARY, FactorClass.SUFFICIENT}
    no_cause = {FactorClass.IRRELEVANT, FactorClass.HIDES}
    return [
        claim(
            "prefix-caching",
            "hypothesis 1: prefix caching is the cause (refuted in the report)",
            judged("prefix-caching", cause, no_cause),
        ),
        claim(
            "chunk-budget",
            "hypothesis 2: a chunk budget below the image's tokens is the cause (confirmed in the "
            "report: 8192 cures it)",
            judged("chunk-budget", cause, no_cause),
        ),
        claim(
            "graphs",
            "hypothesis 3: CUDA graphs (in the report the explanation; never tried alone)",
            judged("eager-mode", cause, no_cause),
        ),
        claim(
            "async-scheduling",
            "asynchronous scheduling is the cause (not considered in the report)",
            judged("async-scheduling", cause, no_cause),
        ),
        claim(
            "reporters-build",
            "the reporter's server died of this race",
            Finding.unknown(
                "not established: the report names no build, and why its request 1 passes is open"
            ),
        ),
    ]
