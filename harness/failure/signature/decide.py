"""Conditions over evidence, and the verdict that follows from them. Pure functions, no
I/O.

The rules (DESIGN.md, "Verdicts are sacred"): a condition that cannot be decided is
unknown and never true; ``reproduced`` needs every required condition of the symptom and
of the cause; neither it nor ``not-reproduced`` is said where the trigger was not seen
to arrive (the preconditions); a checker that crashes yields unknown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Literal

from mmrepro.base.records import Record
from mmrepro.traffic.evidence import Evidence, Missing, doubts_read, files_read
from pydantic import Field


class Truth(StrEnum):
    MET = "met"
    NOT_MET = "not-met"
    UNKNOWN = "unknown"


class Outcome(StrEnum):
    REPRODUCED = "reproduced"
    DIFFERENT_FAILURE = "different-failure"
    NOT_REPRODUCED = "not-reproduced"
    INCONCLUSIVE = "inconclusive"

    @property
    def words(self) -> str:
        """Within a sentence."""
        return self.value.replace("-", " ")


Part = Literal["precondition", "symptom", "cause", "flip"]
"""``precondition``: the trigger came as far as the failure needs it. ``flip``: a
flipped factor took effect; of a run's verdict it decides nothing."""
FLIP = "flip-{}"
"""Id of the condition that the factor called so took effect."""


@dataclass(frozen=True)
class Finding:
    """What a checker found. ``evidence`` names raw files below ``evidence/``."""

    truth: Truth
    observed: str
    evidence: tuple[str, ...] = ()

    @classmethod
    def of(cls, holds: bool, observed: str, *evidence: str) -> Finding:
        return cls(Truth.MET if holds else Truth.NOT_MET, observed, evidence)

    @classmethod
    def unknown(cls, why: str, *evidence: str) -> Finding:
        return cls(Truth.UNKNOWN, why, evidence)


Checker = Callable[[Evidence], Finding]


@dataclass(frozen=True)
class Condition:
    """One named statement about evidence.

    ``required=False`` marks a supporting condition: shown, never decisive (a bare /proc
    cannot count system calls, say). ``waived``: of a precondition, the mitigation or
    flipped factor of this run that takes it away; "": none does. ``usual``: a healthy
    server meets it as well, so it sets a failure apart from others and shows none by
    itself."""

    id: str
    part: Part
    statement: str
    check: Checker
    required: bool = True
    waived: str = ""
    usual: bool = False


class ConditionResult(Record):
    id: str
    part: Part
    statement: str
    required: bool
    truth: Truth
    observed: str
    evidence: Annotated[list[str], Field(description="raw files below evidence/")] = []
    waived: Annotated[
        str,
        Field(description="what takes this precondition away in this run, on purpose"),
    ] = ""


class Verdict(Record):
    outcome: Outcome
    expected: Annotated[
        Outcome | None, Field(description="None: nothing is expected")
    ] = None
    expected_because: str = ""
    as_expected: bool = False
    explanation: str
    conditions: list[ConditionResult]


def evaluate(
    conditions: Sequence[Condition], evidence: Evidence
) -> list[ConditionResult]:
    """Judge every condition, each with the raw files that its checker read."""
    return [_judge(condition, evidence) for condition in conditions]


def _judge(condition: Condition, evidence: Evidence) -> ConditionResult:
    finding = guarded(condition.check, evidence)
    return ConditionResult(
        id=condition.id,
        part=condition.part,
        statement=condition.statement,
        required=condition.required,
        truth=finding.truth,
        observed=finding.observed,
        evidence=list(finding.evidence),
        waived=condition.waived,
    )


def guarded(check: Checker, evidence: Evidence) -> Finding:
    """What ``check`` finds, with the raw files that it read. Evidence that is missing
    or doubted, and a checker that fails, make it unknown: never a verdict."""
    with files_read() as files, doubts_read() as doubts:
        try:
            found = check(evidence)
            if doubts:
                return Finding.unknown("doubted: " + "; ".join(doubts), *files)
            return Finding(
                Truth(found.truth), found.observed, found.evidence or tuple(files)
            )
        except Missing as missing:
            return Finding.unknown(str(missing), *files)
        except Exception as error:
            return Finding.unknown(
                f"the checker failed: {type(error).__name__}: {error}"
            )


def combine(truths: Sequence[Truth]) -> Truth:
    """Three-valued AND; of nothing at all: unknown, never true."""
    if any(t is Truth.NOT_MET for t in truths):
        return Truth.NOT_MET
    if not truths or any(t is Truth.UNKNOWN for t in truths):
        return Truth.UNKNOWN
    return Truth.MET


def decide(
    results: Sequence[ConditionResult],
    *,
    gate_passed: bool,
    healthy_after: Finding,
    refused: Finding | None = None,
) -> tuple[Outcome, str]:
    """The outcome and one sentence why.

    Args:
        results: the judged conditions; only required ones decide, and no ``flip``.
        gate_passed: the steady state was reached before the trigger.
        healthy_after: whether the engine still does its work after the trigger; it
            tells "nothing happened" from "something else broke" when the symptom is
            absent.
        refused: whether the server refused, as it started, what the failure needs. Then
            there was no gate and no request; the preconditions say whether it refused
            just that.
    """
    arrived, missing = trigger_arrived(results)
    if refused is not None and refused.truth is Truth.MET:
        why = f"the server refuses to start so: {refused.observed}"
        return (
            (Outcome.NOT_REPRODUCED, why)
            if arrived
            else (Outcome.INCONCLUSIVE, missing)
        )
    if not gate_passed:
        return (
            Outcome.INCONCLUSIVE,
            "the gate failed: the engine was not healthy to begin with",
        )
    symptom = combine([r.truth for r in results if r.required and r.part == "symptom"])
    cause = combine([r.truth for r in results if r.required and r.part == "cause"])
    if symptom is Truth.MET:
        if cause is Truth.MET and arrived:
            return (
                Outcome.REPRODUCED,
                "every condition of the symptom and of the cause is met",
            )
        if cause is Truth.MET:
            return Outcome.INCONCLUSIVE, f"symptom and cause are there, but {missing}"
        if cause is Truth.NOT_MET:
            return (
                Outcome.DIFFERENT_FAILURE,
                "the symptom is there but not by this cause: "
                + _named(results, "cause", Truth.NOT_MET),
            )
        return (
            Outcome.INCONCLUSIVE,
            "the symptom is there but its cause could not be seen: "
            + _named(results, "cause", Truth.UNKNOWN),
        )
    if symptom is Truth.UNKNOWN:
        return (
            Outcome.INCONCLUSIVE,
            "the symptom could not be decided: "
            + _named(results, "symptom", Truth.UNKNOWN),
        )
    if healthy_after.truth is Truth.MET and not arrived:
        return (
            Outcome.INCONCLUSIVE,
            f"the symptom is absent, which means nothing: {missing}",
        )
    if healthy_after.truth is Truth.MET:
        return (
            Outcome.NOT_REPRODUCED,
            "the symptom is absent and the engine still works: "
            + _named(results, "symptom", Truth.NOT_MET),
        )
    if healthy_after.truth is Truth.NOT_MET:
        return Outcome.DIFFERENT_FAILURE, f"another failure: {healthy_after.observed}"
    return (
        Outcome.INCONCLUSIVE,
        "the symptom is absent but whether the engine still works is unknown: "
        f"{healthy_after.observed}",
    )


def trigger_arrived(results: Sequence[ConditionResult]) -> tuple[bool, str]:
    """Whether every required precondition is met or taken away on purpose; else what is
    lacking.

    A flip that was not seen to take effect takes nothing away. Of a scenario without
    any precondition nobody knows what its trigger must do: it did not arrive."""
    own = [r for r in results if r.required and r.part == "precondition"]
    flips = {r.id: r.truth for r in results if r.part == "flip"}
    counted = [r for r in own if not _taken_away(r, flips)]
    if not own:
        return False, "the scenario declares no precondition"
    if all(r.truth is Truth.MET for r in counted):
        return True, ""
    lacking = (r for r in counted if r.truth is not Truth.MET)
    return False, "the trigger was not seen to arrive: " + "; ".join(
        f"{r.id} is {r.truth} ({r.observed})" for r in lacking
    )


def _taken_away(result: ConditionResult, flips: Mapping[str, Truth]) -> bool:
    by = result.waived
    return bool(by) and flips.get(FLIP.format(by), Truth.MET) is Truth.MET


def _named(results: Sequence[ConditionResult], part: Part, truth: Truth) -> str:
    picked = [r for r in results if r.required and r.part == part and r.truth is truth]
    return (
        "; ".join(f"{r.id} ({r.observed})" for r in picked)
        or "no condition was declared"
    )


def all_met(*findings: Finding) -> Finding:
    """The first finding that is not met; if all are, what all of them observed."""
    bad = next((f for f in findings if f.truth is not Truth.MET), None)
    if not findings:
        return Finding.unknown("there was nothing to judge")
    return bad or Finding.of(True, "; ".join(f.observed for f in findings))
