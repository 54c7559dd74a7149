"""The search and its classes over made-up oracles: monotone, not monotone, unclear."""

from collections.abc import Callable, Sequence
from itertools import combinations

import pytest
from hypothesis import given, strategies as st
from mmrepro.campaign.ablate.search import (
    NOT_CURED,
    AblationResult,
    Flips,
    bound,
    search,
)
from mmrepro.failure.documents.searches import CellState, Conclusion, FactorClass, Role

FAILS, CURED, HIDDEN = CellState.FAILS, CellState.CURED, CellState.HIDDEN
NAMES = "abcde"
Truth = Callable[[frozenset[str]], CellState]


def explored(
    truth: Truth, names: str = NAMES
) -> tuple[AblationResult, list[frozenset[str]]]:
    asked: list[frozenset[str]] = []

    def oracle(cells: Sequence[Flips], role: Role) -> list[CellState]:
        for flips in cells:
            assert list(flips) == sorted(flips), "flips come in the factors' own order"
            asked.append(frozenset(flips))
        return [truth(frozenset(flips)) for flips in cells]

    return search(names, oracle), asked


def cured_by(*cures: str, hides: str = "") -> Truth:
    """Whatever contains one of ``cures`` cures; one of ``hides`` takes the symptom
    away."""

    def truth(flips: frozenset[str]) -> CellState:
        if any(set(cure) <= flips for cure in cures):
            return CURED
        return HIDDEN if flips & set(hides) else FAILS

    return truth


def classes(found: AblationResult) -> dict[str, FactorClass]:
    return {name: judged.factor_class for name, judged in found.factors.items()}


def test_one_necessary_factor_one_that_hides_it_and_the_rest() -> None:
    found, asked = explored(cured_by("a", hides="b"))
    assert classes(found) == {
        "a": FactorClass.NECESSARY,
        "b": FactorClass.HIDES,
        **dict.fromkeys("cde", FactorClass.IRRELEVANT),
    }
    assert [c.flips for c in found.cures] == [("a",)]
    assert found.conclusion is Conclusion.CURE
    assert "b" in found.left_out
    assert not any("b" in cell and len(cell) > 1 for cell in asked), (
        "it would mask the others"
    )
    assert frozenset("cde") in asked, "that nothing else cures is seen, not supposed"
    assert found.factors["a"].needed is True


def test_two_that_cure_alone_are_not_necessary() -> None:
    found, _ = explored(cured_by("a", "c"))
    assert classes(found)["a"] is classes(found)["c"] is FactorClass.SUFFICIENT
    assert found.factors["a"].needed is False
    assert [c.flips for c in found.cures] == [("a",), ("c",)]


def test_one_cures_alone_and_two_others_together() -> None:
    found, _ = explored(cured_by("a", "ce"))
    assert classes(found) == {
        "a": FactorClass.SUFFICIENT,
        "b": FactorClass.IRRELEVANT,
        "c": FactorClass.CONTRIBUTES,
        "d": FactorClass.IRRELEVANT,
        "e": FactorClass.CONTRIBUTES,
    }
    assert [c.flips for c in found.cures] == [("a",), ("c", "e")]
    assert found.factors["c"].needed is False


def test_only_a_combination_cures() -> None:
    found, _ = explored(cured_by("bd"))
    assert [c.flips for c in found.cures] == [("b", "d")]
    assert found.cures[0].minimal is True
    assert classes(found)["b"] is FactorClass.CONTRIBUTES
    assert found.factors["b"].needed is True
    assert classes(found)["a"] is FactorClass.IRRELEVANT


def test_two_combinations_cure_and_neither_is_needed() -> None:
    found, _ = explored(cured_by("ab", "cd"))
    assert len(found.cures) == 1
    assert {found.factors[n].needed for n in found.cures[0].flips} == {False}


@pytest.mark.parametrize("state", [s for s in CellState if s is not FAILS])
def test_a_baseline_that_does_not_fail_ends_it(state: CellState) -> None:
    found, asked = explored(lambda flips: state)
    assert found.conclusion is Conclusion.INCONCLUSIVE
    assert asked == [frozenset()]
    assert set(classes(found).values()) == {FactorClass.INCONCLUSIVE}
    assert not found.cures


def test_nothing_cures() -> None:
    found, asked = explored(cured_by())
    assert found.conclusion is Conclusion.NO_CURE
    assert frozenset(NAMES) in asked
    assert set(classes(found).values()) == {FactorClass.IRRELEVANT}


def test_nothing_cures_and_one_is_not_known() -> None:
    found, _ = explored(lambda flips: CellState.LOST if flips == {"c"} else FAILS)
    assert found.conclusion is Conclusion.INCONCLUSIVE
    assert classes(found)["c"] is FactorClass.INCONCLUSIVE
    assert "c" in found.explanation


NOT_CLEAR = {
    CellState.UNDECIDED: FactorClass.INCONCLUSIVE,
    CellState.LOST: FactorClass.INCONCLUSIVE,
    CellState.OTHER: FactorClass.OTHER,
    CellState.NOT_TESTED: FactorClass.NOT_TESTED,
}


@pytest.mark.parametrize("state", list(NOT_CLEAR))
def test_what_is_not_clear_alone_is_in_no_combination(state: CellState) -> None:
    def truth(flips: frozenset[str]) -> CellState:
        return state if flips == {"c"} else cured_by("a")(flips)

    found, asked = explored(truth)
    assert classes(found)["c"] is NOT_CLEAR[state]
    assert found.factors["c"].cures_alone is None
    assert not any("c" in cell and len(cell) > 1 for cell in asked)
    assert classes(found)["a"] is FactorClass.NECESSARY


def test_whether_it_is_necessary_is_not_known_where_the_rest_is_not() -> None:
    def truth(flips: frozenset[str]) -> CellState:
        return CellState.UNDECIDED if flips == set("bcde") else cured_by("a")(flips)

    found, _ = explored(truth)
    assert found.factors["a"].needed is None
    assert classes(found)["a"] is FactorClass.SUFFICIENT


def test_a_smallest_cure_whose_parts_are_unclear_is_not_called_minimal() -> None:
    def truth(flips: frozenset[str]) -> CellState:
        if len(flips) > 1 and not flips >= set("ab"):
            return CellState.UNDECIDED
        return cured_by("abc")(flips)

    found, _ = explored(truth)
    assert found.cures[0].flips == ("a", "b", "c")
    assert found.cures[0].minimal is None


def test_one_factor_alone() -> None:
    found, asked = explored(cured_by("a"), "a")
    assert classes(found) == {"a": FactorClass.NECESSARY}
    assert asked == [frozenset(), frozenset("a")]


states = st.sampled_from(list(CellState))
cells = [frozenset(c) for n in range(5) for c in combinations("abcd", n)]


@given(table=st.fixed_dictionaries(dict.fromkeys(cells, states)))
def test_whatever_the_oracle_says_the_words_mean_what_they_say(
    table: dict[frozenset[str], CellState],
) -> None:
    found, asked = explored(table.__getitem__, "abcd")
    assert len(asked) == len(set(asked)) <= 11 + bound(4)
    assert {cell: table[cell] for cell in asked} == found.asked
    assert set(found.factors) == set("abcd")
    if table[frozenset()] is not FAILS:
        return
    for cure in found.cures:
        assert table[frozenset(cure.flips)] is CURED
        for left_out in cure.flips:
            smaller = frozenset(cure.flips) - {left_out}
            assert smaller in asked
            assert table[smaller] is not CURED
            if cure.minimal:
                assert table[smaller] in NOT_CURED
    for name, judged in found.factors.items():
        alone = table[frozenset(name)]
        chosen = judged.factor_class
        without = {table[cell] for cell in asked if name not in cell}
        assert (judged.cures_alone is True) == (alone is CURED)
        assert (chosen is FactorClass.HIDES) == (alone is HIDDEN)
        assert (chosen in (FactorClass.NECESSARY, FactorClass.SUFFICIENT)) == (
            alone is CURED
        )
        if chosen is FactorClass.NECESSARY:
            assert judged.needed is True
        if judged.needed:
            assert CURED not in without
        if chosen is FactorClass.IRRELEVANT:
            assert alone is FAILS
            assert not any(name in cure.flips for cure in found.cures)
        if alone in (CellState.UNDECIDED, CellState.LOST):
            assert chosen is FactorClass.INCONCLUSIVE
    assert (found.conclusion is Conclusion.CURE) == bool(found.cures)
    if found.conclusion is Conclusion.NO_CURE:
        assert CURED not in found.asked.values()
        assert not set(found.asked.values()) & {CellState.UNDECIDED, CellState.LOST}
