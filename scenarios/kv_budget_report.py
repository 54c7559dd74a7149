"""The tables of an undersized-kv-budget incident: what was seen beside what the report says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmrepro.evidence import Evidence
from mmrepro.incident import ClaimResult, ClaimStatus, SymptomRow
from mmrepro.scenario import RunFacts
from mmrepro.scenarios import kv_witness as kv
from mmrepro.signature import Finding, Truth, checks

if TYPE_CHECKING:
    from mmrepro.scenarios.undersized_kv_budget import UndersizedKvBudget

SOURCE = "the report"
CHAIN = "lmdeploy_kv_chain.py"


def claim(name: str, text: str, finding: Finding, source: str = SOURCE) -> ClaimResult:
    status = {
        Truth.MET: ClaimStatus.CONFIRMED,
        Truth.NOT_MET: ClaimStatus.REFUTED,
        Truth.UNKNOWN: ClaimStatus.NOT_TESTED,
    }[finding.truth]
    return ClaimResult(id=name, text=text, source=source, status=status, observed=finding.observed)


def symptom_rows(scenario: UndersizedKvBudget, evidence: Evidence) -> list[SymptomRow]:
    ours, other = kv.sizing(evidence), kv.sizing(evidence, "control")

    def row(check: str, label: str, reported: str) -> SymptomRow:
        healthy = kv.answered(evidence, f"{kv.CONTROL_LABEL}: {label}")
        for record in evidence.labelled(label):
            found = scenario.graded(evidence, record)
            return SymptomRow(
                check=check,
                healthy="" if healthy.truth is Truth.UNKNOWN else healthy.observed,
                observed=str(found),
                abnormal=found.kind != "answered",
                reported=reported,
            )
        return SymptomRow(
            check=check, healthy="", observed="not sent", abnormal=None, reported=reported
        )

    def number(check: str, name: str, reported: str) -> SymptomRow:
        mine = getattr(ours, name) if ours else None
        theirs = getattr(other, name) if other else None
        return SymptomRow(
            check=check,
            healthy="" if theirs is None else f"{theirs:g}",
            observed="not seen" if mine is None else f"{mine:g}",
            abnormal=None if mine is None or theirs is None else mine < theirs,
            reported=reported,
        )

    return [
        row(f"a prompt of {scenario.prompt_tokens} tokens", "the prompt", "HTTP 500"),
        row("the same, streamed", "the prompt, streamed", ""),
        number("cache_max_entry_count", "share", "0.1 against 0.5"),
        number("num_gpu_blocks", "blocks", "21 (in one place 24) against 107"),
        number("max_session_len", "max_tokens", "1344 against 6848"),
    ]


def claims(scenario: UndersizedKvBudget, evidence: Evidence, facts: RunFacts) -> list[ClaimResult]:
    ours, other = kv.sizing(evidence), kv.sizing(evidence, "control")
    original = not facts.mitigations  # under a mitigation the setting is not the report's

    def seen(holds: bool, text: str) -> Finding:
        return Finding.of(holds, text)

    def sized(name: str, wanted: float, text: str, *, big: bool = False) -> Finding:
        found = other if big else ours
        if found is None or not (big or original):
            return Finding.unknown("not seen in this run")
        value = getattr(found, name)
        return seen(value == wanted, f"{text} {value:g} with {found.share:g}")

    def of_fault(finding: Finding) -> Finding:
        if not original:
            return Finding.unknown("this run is mitigated")
        return finding

    tokens = kv.refusal(evidence, scenario.prompt_tokens)
    length = (
        seen(
            tokens["input_tokens"] == kv.PROMPT,
            f"the engine counts {tokens['input_tokens']} tokens",
        )
        if tokens
        else Finding.unknown("the witness saw no such request")
    )
    silent = checks.log_count(evidence, "says-length")
    quiet = (
        Finding.unknown(evidence.why_missing("logs", "check"))
        if silent is None
        else seen(silent == 0, f"{silent} lines of LMDeploy's own that name a length or a limit")
    )
    early = [
        claim("fails-with-0.1", "with 0.1 the prompt gets HTTP 500", of_fault(
            scenario.opaque(evidence))),
        claim("works-with-0.5", "with 0.5 the same prompt is answered",
              kv.answered(evidence, f"{kv.CONTROL_LABEL}: the prompt")),
        claim("works-with-0.8", "with 0.8 it is answered as well",
              Finding.unknown("this run starts no server with 0.8; `mmrepro kv-budget` says "
                              f"{scenario.at('0.8').blocks} blocks")),
        claim("validation-error",
              "the traceback is pydantic's: finish_reason must be 'stop', 'length' or "
              "'tool_calls', got 'error'", of_fault(scenario.validation_error(evidence))),
        claim("status", "the engine's output is ResponseType.INPUT_LENGTH_ERROR",
              of_fault(scenario.input_length_error(evidence))),
        claim("silence", "at the default log level the engine says nothing of a length", quiet,
              "observation in the lab"),
    ]  # fmt: skip
    if scenario.variant != "image":
        early.append(claim("prompt", "the prompt has 3446 tokens", length))
    found = [
        *early,
        claim("blocks-21", "num_gpu_blocks is 21 with 0.1", sized("blocks", 21, "num_gpu_blocks")),
        claim(
            "blocks-24",
            "blocks went “from 24 to 107”",
            contradiction(sized("blocks", 24, "num_gpu_blocks")),
        ),
        claim(
            "limit-1344",
            "max_input_len = max_session_len = 1344 = 21 × 64",
            sized("max_tokens", 1344, "max_session_len"),
        ),
        claim(
            "blocks-107",
            "with 0.5 there are 107 blocks",
            sized("blocks", 107, "num_gpu_blocks", big=True),
        ),
        claim(
            "limit-6848",
            "with 0.5 the limit is 6848 tokens",
            sized("max_tokens", 6848, "max_session_len", big=True),
        ),
        *full_size(evidence),
        prediction(scenario, evidence, facts),
    ]
    return [of_that_release(c, scenario, facts) for c in found]


def of_that_release(
    found: ClaimResult, scenario: UndersizedKvBudget, facts: RunFacts
) -> ClaimResult:
    """The report is of about 0.6.4: another release that does otherwise does not refute it."""
    elsewhere = not scenario.affects(facts.release)
    if not elsewhere or found.status is not ClaimStatus.REFUTED or found.id == "blocks-24":
        return found
    told = f"the report is of about 0.6.4; on {facts.release}: {found.observed}"
    return found.model_copy(update={"status": ClaimStatus.NOT_TESTED, "observed": told})


def contradiction(finding: Finding) -> Finding:
    """24 blocks would be 1536 tokens, which contradicts the report's own 1344."""
    if finding.truth is Truth.UNKNOWN:
        return finding
    why = "24 × 64 = 1536 tokens would contradict the report's own 1344; 21 × 64 is 1344"
    return Finding(finding.truth, f"{finding.observed}; {why}")


def full_size(evidence: Evidence) -> list[ClaimResult]:
    """The report's bytes, by the installed engine's own code in its environment."""
    result = evidence.reproducer(CHAIN)
    facts = result.facts if result else {}
    why = (result.error if result else "") or f"reproducers/{CHAIN} did not run"

    def fact(name: str, wanted: float, text: str) -> Finding:
        value = facts.get(name)
        if not isinstance(value, int | float):
            return Finding.unknown(why)
        return Finding.of(value == wanted, f"{text} {value:.0f}, by reproducers/{CHAIN}")

    return [
        claim(
            "block-bytes",
            "cache_block_size is 8 388 608 B for InternVL2-8B",
            fact("block_bytes", 8_388_608, "cache_block_size"),
        ),
        claim(
            "runtime",
            "the runtime reserve is 5061 MB",
            fact("runtime_mib", 5061, "MiB (>> 20, as LMDeploy logs it):"),
        ),
        claim(
            "gpu-mem",
            "gpu_mem is 903 548 928 B with 0.5",
            fact("pool_big", 903_548_928, "gpu_mem"),
        ),
    ]


def prediction(scenario: UndersizedKvBudget, evidence: Evidence, facts: RunFacts) -> ClaimResult:
    """What `mmrepro kv-budget` foretold, against what the engine has."""
    best = scenario.predicted
    text = (
        f"--cache-max-entry-count {best.setting} is enough: {best.blocks} blocks, "
        f"{best.max_tokens} tokens"
    )
    ours = kv.sizing(evidence)
    how = f"to test: mmrepro run {scenario.name} --mitigation kv-budget"
    if "kv-budget" not in facts.mitigations or ours is None:
        return claim("prediction", text, Finding.unknown(how), "mmrepro kv-budget")
    expected = scenario.plan_of(facts.release).forward(best.setting)
    answered = kv.answered(evidence, "the prompt")
    said = f"the engine has {ours.blocks:g} blocks, {ours.max_tokens:g} tokens; {answered.observed}"
    if answered.truth is Truth.UNKNOWN:
        return claim("prediction", text, answered, "mmrepro kv-budget")
    holds = (ours.blocks, ours.max_tokens) == (expected.blocks, expected.max_tokens)
    met = holds and answered.truth is Truth.MET
    return claim("prediction", text, Finding.of(met, said), "mmrepro kv-budget")
