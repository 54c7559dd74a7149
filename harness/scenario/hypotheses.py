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
    tested = ablation.factor(factor)
    if tested is None:
        return Finding.unknown(f"{factor} was not among the factors")
    known = tested.factor_class not in _UNCLEAR
    if not known and tested.factor_class not in classes:
        return Finding.unknown(f"{factor}: {tested.why or 'not run'}")
    return Finding.of(tested.factor_class in classes, f"{factor}: {tested.why}")


def _cures(ablation: Ablation, factor: str) -> Finding:
    """Whether flipping ``factor`` alone cures: symptom and cause gone."""
    return _classed(ablation, factor, _CURES)


def causes(ablation: Ablation, factor: str) -> Finding:
    """Whether ``factor`` is the cause; unknown where it is one only together with
    others."""
    cured = _cures(ablation, factor)
    part = _classed(ablation, factor, (FactorClass.CONTRIBUTES,))
    if part.truth is Truth.MET:
        return Finding.unknown(cured.observed)
    return cured


def _matters(ablation: Ablation, factor: str) -> Finding:
    """Whether ``factor`` changes anything, be it only that the failure is hidden."""
    classes = (*_CURES, FactorClass.CONTRIBUTES, FactorClass.HIDES)
    return _classed(ablation, factor, classes)


def judged(declared: Hypothesis, ablation: Ablation, source: str) -> ClaimResult:
    """A declared hypothesis; ``source``: of one that names none."""
    finding = _finding(declared, ablation)
    observed = finding.observed
    if declared.note:
        observed = f"{observed}. {declared.note}"
    return ClaimResult(
        id=declared.id,
        text=declared.text,
        source=named(declared.source) or source,
        status=STATUS[finding.truth],
        observed=observed,
    )


def _finding(declared: Hypothesis, ablation: Ablation) -> Finding:
    """What the table says of it."""
    if declared.untested:
        return Finding.unknown(declared.untested)
    if declared.matters:
        return _matters(ablation, declared.matters)
    if declared.causes:
        return causes(ablation, declared.causes)
    if isinstance(declared.cures, str):
        return _takes_all(ablation, declared.cures)
    return _takes_all(ablation, *declared.cures)


def _takes_all(ablation: Ablation, *factors: str) -> Finding:
    """Whether none of ``factors`` cures alone, and all of them do together; of one:
    whether it cures."""
    if len(factors) == 1:
        return _cures(ablation, factors[0])
    alone = [_cures(ablation, name) for name in factors]
    observed = "; ".join(finding.observed for finding in alone)
    if any(finding.truth is Truth.MET for finding in alone):
        return Finding.of(False, observed)
    for cure in ablation.cures:
        if set(factors) <= set(cure.flips):
            return Finding.of(True, observed)
    return Finding.unknown(
        f"no combination with all of them was seen to cure; {observed}"
    )
