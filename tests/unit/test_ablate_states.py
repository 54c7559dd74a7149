"""What a run and a cell show. An unknown cause is never one that is gone."""

from itertools import product

import pytest
from hypothesis import given, strategies as st
from mmrepro.base.records import Moment
from mmrepro.campaign.ablate.search import decided, state_of_cell, state_of_run
from mmrepro.failure.documents.searches import CellRun, CellState
from mmrepro.failure.signature import Outcome, Truth

NOW = Moment.now()
MET, NOT_MET, UNKNOWN = Truth.MET, Truth.NOT_MET, Truth.UNKNOWN
FAILS, CURED, HIDDEN = CellState.FAILS, CellState.CURED, CellState.HIDDEN
OTHER, UNDECIDED, LOST = CellState.OTHER, CellState.UNDECIDED, CellState.LOST
UNTESTED = CellState.NOT_TESTED


def made(
    outcome: Outcome | None,
    symptom: Truth = NOT_MET,
    cause: Truth = NOT_MET,
    gate: bool = True,
) -> CellRun:
    return CellRun(
        key="k",
        index=1,
        created=NOW,
        seconds=1,
        outcome=outcome,
        gate_passed=gate,
        symptom=symptom,
        cause=cause,
    )


@pytest.mark.parametrize(
    ("run", "state"),
    [
        (made(Outcome.REPRODUCED, MET, MET), FAILS),
        (made(Outcome.NOT_REPRODUCED), CURED),
        (made(Outcome.NOT_REPRODUCED, cause=UNKNOWN), UNDECIDED),
        (made(Outcome.NOT_REPRODUCED, cause=MET), HIDDEN),
        # The trigger did not get there: no cure, but a cause that was seen was seen.
        (made(Outcome.INCONCLUSIVE, cause=MET), HIDDEN),
        (made(Outcome.INCONCLUSIVE, cause=NOT_MET), UNDECIDED),
        (made(Outcome.INCONCLUSIVE, cause=MET, gate=False), UNDECIDED),
        (made(Outcome.INCONCLUSIVE, UNKNOWN, MET), UNDECIDED),
        (made(Outcome.INCONCLUSIVE, MET, UNKNOWN), UNDECIDED),
        (made(Outcome.DIFFERENT_FAILURE, MET, NOT_MET), OTHER),
        (made(Outcome.DIFFERENT_FAILURE, NOT_MET, MET), OTHER),
        (made(None), LOST),
    ],
)
def test_a_run(run: CellRun, state: CellState) -> None:
    assert state_of_run(run) is state


def test_only_a_cause_that_was_seen_to_be_gone_makes_a_cure() -> None:
    for outcome, symptom, cause, gate in product(
        [*Outcome, None], Truth, Truth, (True, False)
    ):
        state = state_of_run(made(outcome, symptom, cause, gate))
        if state is CURED:
            assert (outcome, symptom, cause, gate) == (
                Outcome.NOT_REPRODUCED,
                NOT_MET,
                NOT_MET,
                True,
            )
        if state is HIDDEN:
            assert (symptom, cause, gate) == (NOT_MET, MET, True)


def test_a_flip_that_took_no_effect_shows_nothing_whatever_the_run_shows() -> None:
    """Issue 14, item 5: `--no-enforce-eager` on a CPU was published as a refutation."""
    for outcome, symptom, cause in product(Outcome, Truth, Truth):
        run = made(outcome, symptom, cause)
        run.without_effect = "CUDA graphs: the log names none"
        assert state_of_run(run) is UNTESTED


@pytest.mark.parametrize(
    ("states", "repeat", "threshold", "state"),
    [
        ([FAILS], 1, 1, FAILS),
        ([CURED], 1, 1, CURED),
        ([CURED, FAILS], 5, 1, FAILS),
        ([FAILS, CURED, FAILS, CURED, CURED], 5, 2, FAILS),
        ([FAILS, CURED, CURED, CURED, CURED], 5, 2, UNDECIDED),
        ([CURED, CURED], 3, 1, UNDECIDED),
        ([CURED, CURED, CURED], 3, 1, CURED),
        ([CURED, HIDDEN, CURED], 3, 1, HIDDEN),
        ([CURED, OTHER, CURED], 3, 1, OTHER),
        ([CURED, LOST, CURED], 3, 1, UNDECIDED),
        ([CURED, UNTESTED, CURED], 3, 1, UNTESTED),
        ([UNTESTED], 1, 1, UNTESTED),
        ([HIDDEN, UNDECIDED, HIDDEN], 3, 1, UNDECIDED),
        ([LOST, LOST], 2, 1, LOST),
        ([], 1, 1, UNDECIDED),
    ],
)
def test_a_cell(
    states: list[CellState], repeat: int, threshold: int, state: CellState
) -> None:
    found, why = state_of_cell(states, repeat, threshold)
    assert found is state
    assert why


many = st.lists(st.sampled_from(list(CellState)), min_size=1, max_size=6)


@given(states=many, threshold=st.integers(1, 6))
def test_a_cell_of_flaky_runs(states: list[CellState], threshold: int) -> None:
    repeat = len(states)
    threshold = min(threshold, repeat)
    found, _ = state_of_cell(states, repeat, threshold)
    fails = states.count(FAILS)
    assert (found is FAILS) == (fails >= threshold)
    assert (found is CURED) == (set(states) == {CURED})
    if found is HIDDEN:
        assert set(states) <= {CURED, HIDDEN}
        assert HIDDEN in states
    if 0 < fails < threshold:
        assert found is UNDECIDED


@given(states=many, more=many, threshold=st.integers(1, 6))
def test_a_decided_cell_keeps_its_state(
    states: list[CellState], more: list[CellState], threshold: int
) -> None:
    """Stopping early never changes what is said."""
    repeat = len(states) + len(more)
    threshold = min(threshold, repeat)
    if decided(states, repeat, threshold):
        early, _ = state_of_cell(states, repeat, threshold)
        whole, _ = state_of_cell([*states, *more], repeat, threshold)
        assert early is whole
