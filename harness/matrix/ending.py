"""What a night exits with."""

from __future__ import annotations

from collections.abc import Callable, Collection

from mmrepro.errors import ExitCode
from mmrepro.history.events import ALARMS
from mmrepro.history.ledger import NightRuns
from mmrepro.history.states import State, settle
from mmrepro.incident.ledger import Cell, Lost

UNKNOWN = (State.INCONCLUSIVE, State.LOST, State.MISSING)


def exit_code(
    runs: NightRuns, excused: Callable[[Cell], bool], left: Collection[str] = ()
) -> ExitCode:
    """Of a night: the first of these that holds.

    1: outside of quarantine a verdict that was not expected, a flaky cell, or an alarming event;
    4: infrastructure failed in every run; 3: of a cell nothing is known, or runs of it are left.

    Args:
        excused: whether a cell is in quarantine.
        left: ids of the cells that have runs left.
    """
    free = {name for name, planned in runs.planned.items() if excused(planned.cell)}
    settled = {name: settle(runs.attempts_of(name)) for name in runs.planned if name not in free}
    if any(event.what in ALARMS and event.cell not in free for event in runs.events):
        return ExitCode.NOT_AS_EXPECTED
    if any(
        one.state is State.FLAKY or (one.as_expected is False and one.state not in UNKNOWN)
        for one in settled.values()
    ):
        return ExitCode.NOT_AS_EXPECTED
    if runs.attempts and all(a.lost is Lost.INFRASTRUCTURE for a in runs.attempts):
        return ExitCode.INFRASTRUCTURE
    if any(one.state in UNKNOWN or name in left for name, one in settled.items()):
        return ExitCode.INCONCLUSIVE
    return ExitCode.AS_EXPECTED
