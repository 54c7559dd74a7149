"""The rules of DESIGN.md, "Verdicts are sacred", as properties of pure functions."""

from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given, strategies as st
from mmrepro.failure.signature import (
    Condition,
    ConditionResult,
    Finding,
    Outcome,
    Part,
    Truth,
    combine,
    evaluate,
)
from mmrepro.failure.signature.decide import FLIP, decide
from mmrepro.traffic.evidence import Evidence

TRUTHS = st.sampled_from(Truth)
PARTS: st.SearchStrategy[Part] = st.sampled_from(get_args(Part))


def result(
    part: Part,
    truth: Truth,
    *,
    required: bool = True,
    name: str = "c",
    waived: str = "",
) -> ConditionResult:
    return ConditionResult(
        id=name,
        part=part,
        statement="a statement",
        required=required,
        truth=truth,
        observed="seen",
        waived=waived,
    )


ARRIVED = result("precondition", Truth.MET)


@st.composite
def _results(draw: st.DrawFn) -> list[ConditionResult]:
    """Of every part; a flip may be one that a precondition is waived by."""
    drawn = draw(
        st.lists(st.tuples(PARTS, TRUTHS, st.booleans(), st.booleans()), max_size=8)
    )
    return [
        result(
            part,
            truth,
            required=required,
            name=FLIP.format("off") if part == "flip" else "c",
            waived="off" if waived and part == "precondition" else "",
        )
        for part, truth, required, waived in drawn
    ]


RESULTS = _results()
FINDINGS = TRUTHS.map(lambda truth: Finding(truth, "after the trigger"))


def required(results: list[ConditionResult], part: Part) -> list[Truth]:
    return [r.truth for r in results if r.required and r.part == part]


def arrived(results: list[ConditionResult]) -> bool:
    """As the rules say it: the other way round than the code does."""
    effective = all(r.truth is Truth.MET for r in results if r.part == "flip")
    own = [r for r in results if r.required and r.part == "precondition"]
    return bool(own) and not any(
        r.truth is not Truth.MET and not (r.waived and effective) for r in own
    )


@given(st.lists(TRUTHS))
def test_combine_is_met_only_of_met_ones(truths: list[Truth]) -> None:
    combined = combine(truths)
    assert (combined is Truth.MET) == (bool(truths) and set(truths) == {Truth.MET})
    assert (combined is Truth.NOT_MET) == (Truth.NOT_MET in truths)


@given(st.lists(TRUTHS), st.randoms())
def test_combine_does_not_depend_on_the_order(
    truths: list[Truth], random: object
) -> None:
    shuffled = list(truths)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert combine(shuffled) is combine(truths)


@given(RESULTS, st.booleans(), FINDINGS)
def test_reproduced_needs_the_gate_and_every_required_condition(
    results: list[ConditionResult], gate: bool, healthy: Finding
) -> None:
    outcome, why = decide(results, gate_passed=gate, healthy_after=healthy)
    symptom, cause = required(results, "symptom"), required(results, "cause")
    all_met = bool(symptom) and bool(cause) and {*symptom, *cause} == {Truth.MET}
    all_met = all_met and arrived(results)
    assert (outcome is Outcome.REPRODUCED) == (gate and all_met)
    assert why


@given(RESULTS, FINDINGS)
def test_a_failed_gate_is_always_inconclusive(
    results: list[ConditionResult], healthy: Finding
) -> None:
    outcome, _ = decide(results, gate_passed=False, healthy_after=healthy)
    assert outcome is Outcome.INCONCLUSIVE


@given(RESULTS, st.booleans(), FINDINGS, st.lists(st.tuples(PARTS, TRUTHS), max_size=4))
def test_supporting_conditions_never_decide(
    results: list[ConditionResult],
    gate: bool,
    healthy: Finding,
    supporting: list[tuple[Part, Truth]],
) -> None:
    more = results + [
        result(part, truth, required=False)
        for part, truth in supporting
        if part != "flip"
    ]
    alone = decide(results, gate_passed=gate, healthy_after=healthy)
    assert decide(more, gate_passed=gate, healthy_after=healthy) == alone


@given(RESULTS, FINDINGS, st.data())
def test_unknown_never_makes_an_outcome_firmer(
    results: list[ConditionResult], healthy: Finding, data: st.DataObject
) -> None:
    """Take any one required condition away: the outcome is what it was, or
    inconclusive."""
    known = [i for i, r in enumerate(results) if r.required and r.truth is Truth.MET]
    if not known:
        return
    before, _ = decide(results, gate_passed=True, healthy_after=healthy)
    index = data.draw(st.sampled_from(known))
    blurred = list(results)
    blurred[index] = results[index].model_copy(update={"truth": Truth.UNKNOWN})
    after, _ = decide(blurred, gate_passed=True, healthy_after=healthy)
    assert after in (before, Outcome.INCONCLUSIVE)
    if before is Outcome.REPRODUCED:
        assert after is Outcome.INCONCLUSIVE


@given(RESULTS, FINDINGS)
def test_not_reproduced_needs_an_absent_symptom_and_an_engine_seen_to_work(
    results: list[ConditionResult], healthy: Finding
) -> None:
    outcome, _ = decide(results, gate_passed=True, healthy_after=healthy)
    absent = Truth.NOT_MET in required(results, "symptom")
    works = healthy.truth is Truth.MET
    assert (outcome is Outcome.NOT_REPRODUCED) == (
        absent and works and arrived(results)
    )


@given(RESULTS, FINDINGS)
def test_a_different_failure_is_a_seen_failure(
    results: list[ConditionResult], healthy: Finding
) -> None:
    outcome, _ = decide(results, gate_passed=True, healthy_after=healthy)
    symptom, cause = (
        combine(required(results, "symptom")),
        combine(required(results, "cause")),
    )
    other_cause = symptom is Truth.MET and cause is Truth.NOT_MET
    other_symptom = symptom is Truth.NOT_MET and healthy.truth is Truth.NOT_MET
    assert (outcome is Outcome.DIFFERENT_FAILURE) == (other_cause or other_symptom)


@given(RESULTS, st.booleans(), FINDINGS, TRUTHS)
def test_where_the_trigger_was_not_seen_to_arrive_nothing_is_said(
    results: list[ConditionResult], gate: bool, healthy: Finding, truth: Truth
) -> None:
    """Neither that it was reproduced nor that it was not: a precondition that is not
    met."""
    more = [*results, result("precondition", truth)]
    outcome, _ = decide(more, gate_passed=gate, healthy_after=healthy)
    if truth is not Truth.MET:
        assert outcome in (Outcome.INCONCLUSIVE, Outcome.DIFFERENT_FAILURE)


def test_only_what_takes_it_away_on_purpose_waives_a_precondition() -> None:
    absent = [result("symptom", Truth.NOT_MET), result("cause", Truth.NOT_MET)]
    works = Finding(Truth.MET, "it works")

    def outcome(*more: ConditionResult) -> Outcome:
        return decide([*absent, *more], gate_passed=True, healthy_after=works)[0]

    waived = result("precondition", Truth.NOT_MET, waived="off")
    assert outcome(waived) is Outcome.NOT_REPRODUCED
    assert outcome(result("precondition", Truth.NOT_MET)) is Outcome.INCONCLUSIVE
    assert outcome() is Outcome.INCONCLUSIVE, (
        "it has none: what its trigger must do nobody knows"
    )
    for truth in Truth:  # a flip that took no effect takes nothing away
        flip = result("flip", truth, name=FLIP.format("off"))
        met = truth is Truth.MET
        assert outcome(waived, flip) is (
            Outcome.NOT_REPRODUCED if met else Outcome.INCONCLUSIVE
        )


@pytest.mark.parametrize("healthy", list(Truth))
@pytest.mark.parametrize("only", [None, "symptom", "cause"])
def test_a_part_without_conditions_is_never_reproduced(
    healthy: Truth, only: Part | None
) -> None:
    results = [result(only, Truth.MET)] if only else []
    outcome, why = decide(results, gate_passed=True, healthy_after=Finding(healthy, ""))
    assert outcome is Outcome.INCONCLUSIVE
    assert "no condition was declared" in why


@given(
    st.lists(
        st.tuples(PARTS, st.one_of(FINDINGS, st.none()), st.booleans()), max_size=6
    )
)
def test_a_checker_that_raises_leaves_its_condition_unknown(
    drawn: list[tuple[Part, Finding | None, bool]],
) -> None:
    def checker(finding: Finding | None) -> Finding:
        if finding is None:
            raise KeyError("popitem")
        return finding

    conditions = [
        Condition(
            f"c{i}", part, "statement", lambda _, f=finding: checker(f), required=needed
        )
        for i, (part, finding, needed) in enumerate(drawn)
    ]
    results = evaluate(conditions, Evidence())
    assert [r.id for r in results] == [c.id for c in conditions]
    for (part, finding, needed), judged in zip(drawn, results, strict=True):
        assert (judged.part, judged.required) == (part, needed)
        assert judged.truth is (finding.truth if finding else Truth.UNKNOWN)
        if finding is None:
            assert "the checker failed: KeyError: 'popitem'" in judged.observed


@pytest.mark.parametrize("answer", [None, True, "met", Truth.MET])
def test_a_checker_that_returns_no_finding_is_unknown(answer: object) -> None:
    condition = Condition("c", "cause", "statement", lambda _: answer)  # type: ignore[arg-type,return-value]
    (judged,) = evaluate([condition], Evidence())
    assert judged.truth is Truth.UNKNOWN


def test_a_checker_with_a_finding_that_cannot_be_kept_is_unknown() -> None:
    odd = replace(Finding.of(True, "seen"), truth="perhaps")  # type: ignore[arg-type]
    (judged,) = evaluate([Condition("c", "cause", "s", lambda _: odd)], Evidence())
    assert judged.truth is Truth.UNKNOWN


def test_the_sentence_names_the_conditions_that_decided() -> None:
    results = [
        result("symptom", Truth.MET, name="no-answer"),
        result("cause", Truth.NOT_MET, name="eviction-stack"),
        result("cause", Truth.NOT_MET, name="supporting", required=False),
    ]
    outcome, why = decide(results, gate_passed=True, healthy_after=Finding.unknown(""))
    assert outcome is Outcome.DIFFERENT_FAILURE
    assert "eviction-stack (seen)" in why
    assert "supporting" not in why
