"""What runs show: the state of one, the state of a cell of several. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from mmrepro.incident.searches import CellRun, CellState
from mmrepro.signature import Outcome, Truth


def state_of_run(run: CellRun) -> CellState:
    """An unknown cause is not a cause that is gone: it leaves a run without symptom undecided.

    A run without the symptom may be inconclusive for the scenario, because the trigger did not
    come as far as it must. Then it shows no cure; but a cause that was seen was seen.
    """
    if run.outcome is None:
        return CellState.LOST
    if run.without_effect:
        return CellState.NOT_TESTED
    if run.outcome is Outcome.REPRODUCED:
        return CellState.FAILS
    if run.outcome is Outcome.DIFFERENT_FAILURE:
        return CellState.OTHER
    if not run.gate_passed or run.symptom is not Truth.NOT_MET:
        return CellState.UNDECIDED
    if run.cause is Truth.MET:
        return CellState.HIDDEN
    if run.cause is Truth.NOT_MET and run.outcome is Outcome.NOT_REPRODUCED:
        return CellState.CURED
    return CellState.UNDECIDED


def state_of_cell(
    states: Sequence[CellState], repeat: int, threshold: int
) -> tuple[CellState, str]:
    """The state of a cell, and why.

    ``threshold`` failing runs of ``repeat`` make it fail. Below that, one failing run is enough to
    say that it is no cure. Every run has to show a cure for a cell to be one; one that shows the
    hidden cause makes it hidden.
    """
    count = Counter(states)
    fails, done = count[CellState.FAILS], len(states)
    said = ", ".join(f"{number} × {state}" for state, number in count.most_common())
    if fails >= threshold:
        return CellState.FAILS, said
    if fails:
        return (
            CellState.UNDECIDED,
            f"{said}: it comes and goes, {threshold} are needed to call it one",
        )
    if done < repeat:
        return CellState.UNDECIDED, f"{said or 'no run'}, of {repeat}"
    if count[CellState.LOST] == done:
        return CellState.LOST, said
    for state in (CellState.OTHER, CellState.NOT_TESTED):
        if count[state]:
            return state, said
    if count[CellState.UNDECIDED] or count[CellState.LOST]:
        return CellState.UNDECIDED, said
    return (CellState.HIDDEN if count[CellState.HIDDEN] else CellState.CURED), said


def decided(states: Sequence[CellState], repeat: int, threshold: int) -> bool:
    """Whether further runs of the cell could not change its state any more."""
    if len(states) >= repeat:
        return True
    count = Counter(states)
    fails, left = count[CellState.FAILS], repeat - len(states)
    return fails >= threshold or (fails > 0 and fails + left < threshold)
