"""What a scenario declares of its report, judged: the rows of symptoms, the report's claims."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from mmrepro.evidence import Evidence, Missing
from mmrepro.incident import ClaimResult, ClaimStatus, SymptomRow
from mmrepro.records import Fidelity
from mmrepro.scenario.bind import Check, bind
from mmrepro.scenario.declare import PROJECTS, Claim, Many, Row, many, named, tagged
from mmrepro.scenario.parts import RunFacts
from mmrepro.signature import ConditionResult, Finding, Part, Truth, combine, evaluate
from mmrepro.signature.decide import all_met, guarded, trigger_arrived
from packaging.specifiers import SpecifierSet

if TYPE_CHECKING:
    from mmrepro.scenario.base import Scenario

STATUS = {
    Truth.MET: ClaimStatus.CONFIRMED,
    Truth.NOT_MET: ClaimStatus.REFUTED,
    Truth.UNKNOWN: ClaimStatus.NOT_TESTED,
}
OPPOSITE = {Truth.MET: Truth.NOT_MET, Truth.NOT_MET: Truth.MET}


def symptom_rows(scenario: Scenario, evidence: Evidence, facts: RunFacts) -> list[SymptomRow]:
    """``scenario.rows``; where there are none, a row for each condition of the symptom."""
    case = _Case(scenario, evidence, facts)
    rows = scenario.rows or tuple(
        Row(scenario.filled(c.statement), c.id, reported=c.reported, abnormal_if=c.abnormal)
        for c in scenario.declared()
        if c.part == "symptom"
    )
    return [case.row(row) for row in rows]


def claim_results(scenario: Scenario, evidence: Evidence, facts: RunFacts) -> list[ClaimResult]:
    """``scenario.claims``, then its ``@claim`` methods."""
    case = _Case(scenario, evidence, facts)
    methods = tagged(type(scenario)).claims
    return [
        *(case.claim(_filled(claim, scenario), claim.by) for claim in scenario.claims),
        *(
            case.claim(_filled(claim, scenario), getattr(scenario, name))
            for name, claim in methods.items()
        ),
    ]


def _filled(claim: Claim, scenario: Scenario) -> Claim:
    return replace(
        claim,
        text=scenario.filled(claim.text),
        source=scenario.filled(named(claim.source)),
        otherwise=scenario.filled(claim.otherwise),
        untested=scenario.filled(claim.untested),
    )


def _whole(judged: Sequence[ConditionResult], part: Part) -> Finding:
    """All required conditions of a part, as one."""
    results = [r for r in judged if r.required and r.part == part]
    observed = "; ".join(f"{r.id}: {r.observed}" for r in results)
    return Finding(combine([r.truth for r in results]), observed)


class _Case:
    """One run of a scenario, and what its conditions are."""

    def __init__(self, scenario: Scenario, evidence: Evidence, facts: RunFacts) -> None:
        self.scenario, self.evidence, self.facts = scenario, evidence, facts
        judged = evaluate(scenario.conditions(facts), evidence)
        gate = guarded(scenario.gate_check, evidence)
        self.results: Mapping[str, Finding] = {
            "symptom": _whole(judged, "symptom"),
            "cause": _whole(judged, "cause"),
            "arrived": all_met(gate, Finding.of(*trigger_arrived(judged))),
            **{r.id: Finding(r.truth, r.observed, tuple(r.evidence)) for r in judged},
        }

    def row(self, row: Row) -> SymptomRow:
        found = self.found(row.by)
        known = found.truth is not Truth.UNKNOWN and row.abnormal_if is not None
        return SymptomRow(
            check=self.text(row.name),
            healthy=self.text(row.healthy),
            observed=found.observed,
            abnormal=(found.truth is Truth.MET) == row.abnormal_if if known else None,
            reported=row.reported,
        )

    def text(self, text: str | Callable[..., str | Finding]) -> str:
        if isinstance(text, str):
            return text
        try:
            told = bind(text, self.scenario, self.facts)(self.evidence)
        except Missing:
            return ""
        return told.observed if isinstance(told, Finding) else str(told)

    def claim(self, claim: Claim, by: str | Many | Check | None) -> ClaimResult:
        found = self._tested(claim, by)
        note = f" ({claim.note})" if claim.note and found.truth is not Truth.UNKNOWN else ""
        truth = OPPOSITE.get(found.truth, found.truth) if claim.refuted else found.truth
        observed = found.observed + note
        if claim.solved and truth is Truth.MET:
            truth = Truth.UNKNOWN
            observed += f": consistent with it, no more: {claim.solved}"
        return ClaimResult(
            id=claim.id,
            text=claim.text,
            source=named(claim.source) or self.scenario.report,
            status=STATUS[truth],
            observed=observed,
        )

    def _tested(self, claim: Claim, by: str | Many | Check | None) -> Finding:
        if claim.untested:
            return Finding.unknown(claim.untested)
        project = (named(claim.source) or self.scenario.report).partition("#")[0]
        taught = self.facts.fidelity is Fidelity.TEACHING_ENGINE
        if taught and project in PROJECTS and project != self.scenario.engine:
            return Finding.unknown(f"a run of a teaching engine tells nothing of {project}")
        if claim.releases and self.facts.version not in SpecifierSet(claim.releases):
            return Finding.unknown(
                f"this run is of {self.facts.release}; it is said of {claim.releases}"
            )
        for condition in many(claim.given):
            if self.found(condition).truth is not Truth.MET:
                without = f" without {condition}" if isinstance(condition, str) else ""
                why = claim.otherwise or f"not tested{without}"
                return Finding.unknown(f"{why}: {self.found(condition).observed}")
        if not by:
            return Finding.unknown("not tested")
        return self._held(claim, all_met(*(self.found(one) for one in many(by))))

    def _held(self, claim: Claim, found: Finding) -> Finding:
        """``found``, unless it would refute the claim by a release of which nobody said it."""
        against = found.truth is (Truth.MET if claim.refuted else Truth.NOT_MET)
        where = claim.refutable_on
        if not (against and where) or self.facts.version in SpecifierSet(where):
            return found
        return Finding.unknown(f"said of {where}; on {self.facts.release}: {found.observed}")

    def found(self, by: str | Check) -> Finding:
        """Of a condition, by its id, or of a check. An id that there is not is unknown."""
        if isinstance(by, str):
            return self.results.get(by) or Finding.unknown(f"there is no condition {by} here")
        return guarded(bind(by, self.scenario, self.facts), self.evidence)
