"""For scenarios: what an ablation's table says of a hypothesis. Unknown where it does
not tell."""

from collections.abc import Collection

from mmrepro.failure.documents import ClaimResult
from mmrepro.failure.documents.searches import Ablation, FactorClass
from mmrepro.failure.signature import Finding, Truth
from mmrepro.scenario.parts import STATUS, Hypothesis, named

_CURES = (FactorClass.NECESSARY, FactorClass.SUFFICIENT)
_UNCLEAR = (None, FactorClass.INCONCLUSIVE, FactorClass.OTHER, FactorClass.NOT_TESTED)


def _classed(
    ablation: Ablation, factor: str, classes: Collection[FactorClass]
) -> Finding:
    """Whether ``factor`` is in one of ``classes``; unknown unless its class was
    established."""
    found = ablation.factor(factor)
    if found is None:
        return Finding.unknown(f"{factor} was not among the factors")
    if found.factor_class in _UNCLEAR and found.factor_class not in classes:
        return Finding.unknown(f"{factor}: {found.why or 'not run'}")
    return Finding.of(found.factor_class in classes, f"{factor}: {found.why}")


def cures(ablation: Ablation, factor: str) -> Finding:
    """Whether flipping ``factor`` alone cures: symptom and cause gone."""
    return _classed(ablation, factor, _CURES)


def causes(ablation: Ablation, factor: str) -> Finding:
    """Whether ``factor`` is the cause; unknown where it is one only together with
    others."""
    cured = cures(ablation, factor)
    part = _classed(ablation, factor, (FactorClass.CONTRIBUTES,))
    return Finding.unknown(cured.observed) if part.truth is Truth.MET else cured


def _matters(ablation: Ablation, factor: str) -> Finding:
    """Whether ``factor`` changes anything, be it only that the failure is hidden."""
    return _classed(
        ablation, factor, (*_CURES, FactorClass.CONTRIBUTES, FactorClass.HIDES)
    )


def judged(declared: Hypothesis, ablation: Ablation, source: str) -> ClaimResult:
    """A declared hypothesis; ``source``: of one that names none."""
    if declared.untested:
        finding = Finding.unknown(declared.untested)
    elif declared.matters:
        finding = _matters(ablation, declared.matters)
    elif declared.causes:
        finding = causes(ablation, declared.causes)
    else:
        cured = declared.cures
        finding = _takes_all(ablation, *((cured,) if isinstance(cured, str) else cured))
    return ClaimResult(
        id=declared.id,
        text=declared.text,
        source=named(declared.source) or source,
        status=STATUS[finding.truth],
        observed=f"{finding.observed}. {declared.note}"
        if declared.note
        else finding.observed,
    )


def _takes_all(ablation: Ablation, *factors: str) -> Finding:
    """Whether none of ``factors`` cures alone, and all of them do together; of one:
    whether it cures."""
    if len(factors) == 1:
        return cures(ablation, factors[0])
    alone = [cures(ablation, name) for name in factors]
    told = "; ".join(one.observed for one in alone)
    if any(one.truth is Truth.MET for one in alone):
        return Finding.of(False, told)
    if any(set(factors) <= set(cure.flips) for cure in ablation.cures):
        return Finding.of(True, told)
    return Finding.unknown(f"no combination with all of them was seen to cure; {told}")
