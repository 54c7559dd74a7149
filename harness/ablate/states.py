"""What runs show: the state of one, the state of a cell of several. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from mmrepro.incident.ablation import CellRun, State
from mmrepro.signature import Outcome, Truth


def state_of_run(run: CellRun) -> State:
    """An unknown cause is not a cause that is gone: it leaves a run without symptom undecided.

    A run without the symptom may be inconclusive for the scenario, because the trigger did not
    come as far as it must. Then it shows no cure; but a cause that was seen was seen.
    """
    if run.outcome is None:
        return State.LOST
    if run.outcome is Outcome.REPRODUCED:
        return State.FAILS
    if run.outcome is Outcome.DIFFERENT_FAILURE:
        return State.OTHER
    if not run.gate_passed or run.symptom is not Truth.NOT_MET:
        return State.UNDECIDED
    if run.cause is Truth.MET:
        return State.HIDDEN
    if run.cause is Truth.NOT_MET and run.outcome is Outcome.NOT_REPRODUCED:
        return State.CURED
    return State.UNDECIDED


def state_of_cell(states: Sequence[State], repeat: int, threshold: int) -> tuple[State, str]:
    """The state of a cell, and why.

    ``threshold`` failing runs of ``repeat`` make it fail. Below that, one failing run is enough to
    say that it is no cure. Every run has to show a cure for a cell to be one; one that shows the
    hidden cause makes it hidden.
    """
    count = Counter(states)
    fails, done = count[State.FAILS], len(states)
    said = ", ".join(f"{number} × {state}" for state, number in count.most_common())
    if fails >= threshold:
        return State.FAILS, said
    if fails:
        return State.UNDECIDED, f"{said}: it comes and goes, {threshold} are needed to call it one"
    if done < repeat:
        return State.UNDECIDED, f"{said or 'no run'}, of {repeat}"
    if count[State.LOST] == done:
        return State.LOST, said
    for state in (State.OTHER, State.UNDECIDED, State.LOST):
        if count[state]:
            return state if state is State.OTHER else State.UNDECIDED, said
    return (State.HIDDEN if count[State.HIDDEN] else State.CURED), said


def decided(states: Sequence[State], repeat: int, threshold: int) -> bool:
    """Whether further runs of the cell could not change its state any more."""
    if len(states) >= repeat:
        return True
    count = Counter(states)
    fails, left = count[State.FAILS], repeat - len(states)
    return fails >= threshold or (fails > 0 and fails + left < threshold)
