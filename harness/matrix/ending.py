"""What a night came to: its cells, its exit code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

from mmrepro.errors import ExitCode
from mmrepro.history.ledger import NightRuns
from mmrepro.history.states import State, settle
from mmrepro.incident.ledger import Cell, Event, EventKind, Lost, NightState
from mmrepro.records import Record
from pydantic import Field

ALARMS = frozenset(
    {
        EventKind.BUG_RETURNED,
        EventKind.DIFFERENT_FAILURE,
        EventKind.DRIFT,
        EventKind.FLAKY,
    }
)
"""Events that make a night not as expected, unless their cell is in quarantine."""

Excuse = Callable[[Cell], str]
"""Why a cell is in quarantine; "": it is not."""


class CellResult(Record):
    """One cell of a night."""

    id: str
    row: str
    engine: str
    release: str
    device: str
    state: State
    why: str
    expected: str
    as_expected: Annotated[bool | None, Field(description="None: nothing was expected, or learnt")]
    quarantine: Annotated[str, Field(description="the reason; empty: not in quarantine")] = ""
    attempts: int
    reproduced: int
    conclusive: Annotated[int, Field(description="attempts with a verdict on the engine")]
    low: Annotated[float, Field(description="95 % interval of reproduced of conclusive")]
    high: float
    whole: Annotated[bool, Field(description="no run of it is left")]
    incident: Annotated[str, Field(description="of its last attempt, below the folder")]


class NightResult(Record):
    """A night, for machines."""

    night: str
    state: NightState
    folder: str
    exit_code: int
    cells: list[CellResult]
    left: Annotated[list[str], Field(description="ids of the cells that have runs left")]
    events: list[Event]
    notes: Annotated[list[str], Field(description="what was asked for and not planned")] = []
    resume: Annotated[str, Field(description="command that goes on; empty: nothing is left")] = ""


def result_of(
    runs: NightRuns,
    folder: str,
    left: Sequence[str],
    excuse: Excuse,
    *,
    notes: Sequence[str] = (),
    resume: str = "",
) -> NightResult:
    """The night as it stands."""
    cells = []
    for name, planned in runs.planned.items():
        attempts = runs.attempts_of(name)
        settled = settle(attempts)
        cell = planned.cell
        cells.append(
            CellResult(
                id=name,
                row=cell.row,
                engine=cell.engine,
                release=cell.release,
                device=cell.device,
                state=settled.state,
                why=settled.why,
                expected=planned.expected or "",
                as_expected=settled.as_expected,
                quarantine=excuse(cell),
                attempts=len(attempts),
                reproduced=settled.reproduced,
                conclusive=settled.conclusive,
                low=round(settled.low, 4),
                high=round(settled.high, 4),
                whole=name not in left,
                incident=next((a.incident for a in reversed(attempts) if a.incident), ""),
            )
        )
    return NightResult(
        night=runs.night.id,
        state=runs.night.state,
        folder=folder,
        exit_code=exit_code(runs, cells),
        cells=cells,
        left=list(left),
        events=list(runs.events),
        notes=list(notes),
        resume=resume if left else "",
    )


def exit_code(runs: NightRuns, cells: Sequence[CellResult]) -> ExitCode:
    """1: a verdict that was not expected, a flaky cell or an alarming event, outside of quarantine;
    else 4: infrastructure failed in every run; else 3: a cell of which nothing is known."""
    excused = {cell.id for cell in cells if cell.quarantine}
    counted = [cell for cell in cells if cell.id not in excused]
    alarmed = any(e.what in ALARMS and e.cell not in excused for e in runs.events)
    if alarmed or any(_surprises(cell) for cell in counted):
        return ExitCode.NOT_AS_EXPECTED
    if runs.attempts and all(a.lost is Lost.INFRASTRUCTURE for a in runs.attempts):
        return ExitCode.INFRASTRUCTURE
    unknown = (State.INCONCLUSIVE, State.LOST, State.MISSING)
    if any(cell.state in unknown or not cell.whole for cell in counted):
        return ExitCode.INCONCLUSIVE
    return ExitCode.AS_EXPECTED


def _surprises(cell: CellResult) -> bool:
    if cell.state in (State.INCONCLUSIVE, State.LOST, State.MISSING):
        return False
    return cell.state is State.FLAKY or cell.as_expected is False
