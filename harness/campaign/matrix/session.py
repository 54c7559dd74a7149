"""A nightly run: the cells of a plan, group by group, each attempt in the ledger as it
ends."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from mmrepro.base.errors import ExitCode, PlaceLost, UsageError
from mmrepro.base.records import Moment, Record
from mmrepro.base.units import duration
from mmrepro.campaign.campaign import STRIKES, Campaign, CampaignState
from mmrepro.campaign.events import Established, run_ended
from mmrepro.campaign.matrix import selectors
from mmrepro.campaign.matrix.options import MatrixRunCommand
from mmrepro.campaign.schedule import (
    ASSUMED_BUILD_S,
    ASSUMED_WHY,
    SETUP_S,
    Costs,
    Dispatcher,
    EnvironmentGroup,
    Estimates,
    Next,
    Schedule,
    Slice,
    groups_of,
)
from mmrepro.campaign.trial import TIMEOUT_S, TrialOptions
from mmrepro.campaign.work import (
    CellsUntilWhole,
    Order,
    Place,
    StartedRun,
    began_of,
    lost,
)
from mmrepro.engines.environments import Stored, list_environments
from mmrepro.failure.documents import Attempt, Cell, Lost, Night, NightState, Planned
from mmrepro.history import (
    ALARMS,
    JobState as CellState,
    Ledger,
    NightRuns,
    Settled,
    events_between,
    settle_cell,
)
from mmrepro.runs import StartMode


def begin(ledger: Ledger, night: Night, cells: Sequence[Planned]) -> NightRuns:
    """Write down that ``night`` runs these cells, or goes on with them.

    The cells of a night that is there already stay in it. Nothing is written if nothing
    is new."""
    runs = ledger.history.find(night.id)
    new = [p for p in cells if runs is None or p.cell.id not in runs.planned]
    counts = (night.repeat, night.confirm)
    if runs is None or new or (runs.night.repeat, runs.night.confirm) != counts:
        total = len(new) + (len(runs.planned) if runs else 0)
        created = runs.night.created if runs else night.created
        ledger.append(night.model_copy(update={"created": created, "cells": total}))
        for planned in new:
            ledger.append(planned)
    return ledger.history.night(night.id)


def unfinished(ledger: Ledger) -> NightRuns | None:
    """The newest night that was not run to its end; None: there is none.

    Raises:
        UsageError: it was killed before its plan was written down.
    """
    for runs in reversed(ledger.history.nights):
        if runs.night.state is NightState.COMPLETE:
            continue
        if runs.night.cells is not None and len(runs.planned) < runs.night.cells:
            raise UsageError(
                f"Night {runs.night.id} ended before its plan was written down.",
                hint=f"run it again: {runs.night.command}",
            )
        return runs
    return None


def night_options(settings: MatrixRunCommand, machine: str) -> TrialOptions:
    """Those of a night. Its start mode is always the same, however many runs an
    environment has: the mode is a part of the key."""
    mode = settings.start_mode or StartMode.AUTO
    return TrialOptions(
        timeout_s=settings.timeout or TIMEOUT_S,
        start_mode=StartMode.WARM if mode is StartMode.AUTO else mode,
        machine=machine,
    )


UNKNOWN = (CellState.INCONCLUSIVE, CellState.LOST, CellState.MISSING)


def exit_code(
    runs: NightRuns, excused: Callable[[Cell], bool], left: Collection[str] = ()
) -> ExitCode:
    """Of a night: the first of these that holds.

    1: outside of quarantine a verdict that was not expected, a flaky cell, or an
    alarming event; 4: infrastructure failed in every run; 3: of a cell nothing is
    known, or runs of it are left.

    Args:
        excused: whether a cell is in quarantine.
        left: ids of the cells that have runs left.
    """
    free = {name for name, planned in runs.planned.items() if excused(planned.cell)}
    counted = [name for name in runs.planned if name not in free]
    settled = {name: settle_cell(runs.attempts_of(name)) for name in counted}
    for event in runs.events:
        if event.what in ALARMS and event.cell not in free:
            return ExitCode.NOT_AS_EXPECTED
    if any(_surprises(cell) for cell in settled.values()):
        return ExitCode.NOT_AS_EXPECTED
    if runs.attempts and all(a.lost is Lost.INFRASTRUCTURE for a in runs.attempts):
        return ExitCode.INFRASTRUCTURE
    for name, cell in settled.items():
        if cell.state in UNKNOWN or name in left:
            return ExitCode.INCONCLUSIVE
    return ExitCode.AS_EXPECTED


def _surprises(cell: Settled) -> bool:
    if cell.state is CellState.FLAKY:
        return True
    return cell.as_expected is False and cell.state not in UNKNOWN


class EnvironmentCosts:
    """What environments take; one that is not here is taken to be like the engine's
    others."""

    def __init__(self, stored: Sequence[Stored] | None = None) -> None:
        self._stored = list_environments(sizes=False) if stored is None else stored
        self._builds: dict[str, float] = {}

    def build_s(self, group: EnvironmentGroup) -> float:
        """Seconds that its build takes, about."""
        if group.name not in self._builds:
            own = self.own(group)
            like = [own] if own is not None else self.alike(group)
            took = [stored.manifest.build_seconds for stored in like]
            median = statistics.median(took) if took else ASSUMED_BUILD_S
            self._builds[group.name] = median
        return self._builds[group.name]

    def own(self, group: EnvironmentGroup) -> Stored | None:
        """That of the same release, or commit; None: it is not here."""
        wanted = (group.release, group.commit)
        for stored in self.alike(group):
            if (stored.manifest.release, stored.manifest.commit) == wanted:
                return stored
        return None

    def alike(self, group: EnvironmentGroup) -> list[Stored]:
        """Those of the same engine and device, oldest release first."""
        wanted = (group.engine, group.device)
        alike: list[Stored] = []
        for stored in self._stored:
            if (stored.manifest.engine, stored.manifest.device) == wanted:
                alike.append(stored)
        alike.sort(key=lambda stored: selectors.version_of(stored.manifest.release))
        return alike


_STATES = {
    CampaignState.COMPLETE: NightState.COMPLETE,
    CampaignState.OUT_OF_TIME: NightState.OUT_OF_TIME,
    CampaignState.INTERRUPTED: NightState.INTERRUPTED,
    CampaignState.FAILED: NightState.INTERRUPTED,
}


class Slicing(NamedTuple):
    """The cells of an environment may go to several machines: what an environment
    takes, and what an order takes beside that and its runs. A slice is to be worth
    them."""

    build_s: Callable[[EnvironmentGroup], float] = lambda group: ASSUMED_BUILD_S
    setup_s: float = SETUP_S


class Nightly:
    """The policy of a nightly run: each cell until it is whole."""

    kind = "nightly run"

    def __init__(
        self,
        ledger: Ledger,
        runs: NightRuns,
        slicing: Slicing | None = None,
        resume_command: str = "",
    ) -> None:
        """``runs``: of the ledger's history, begun by :func:`begin`."""
        self.ledger, self.runs, self.resume_command = ledger, runs, resume_command
        self.folder: Path = ledger.folder
        self.estimates = Estimates(ledger.history)
        self._slicing = slicing
        self._before = {name: self._last(name) for name in runs.planned}
        self._strikes: Counter[str] = Counter()
        self._came: Counter[int] = Counter()
        self._slices: dict[int, Slice] = {}

    # ------------------------------------------------------------------ what is left

    def next(self, planned: Planned) -> Next | None:
        return self._schedule.next(self.runs.attempts_of(planned.cell.id), planned)

    def left(self, planned: Planned) -> int:
        return self._schedule.left(self.runs.attempts_of(planned.cell.id), planned)

    @property
    def _schedule(self) -> Schedule:
        return Schedule(self.runs.night.repeat, self.runs.night.confirm, self._before)

    @property
    def todo(self) -> list[Planned]:
        return [p for p in self.runs.planned.values() if self.next(p) is not None]

    @property
    def seconds_left(self) -> float:
        """What the runs that are left take, one after another, about."""
        return sum(self._seconds(p) for p in self.todo)

    def standing(self) -> str:
        total, seconds = len(self.runs.planned), self.seconds_left
        words = f"{total - len(self.todo)} of {total} cells done"
        return words + (f", about {duration(seconds)} left" if seconds else "")

    def _seconds(self, planned: Planned) -> float:
        return self.left(planned) * self.estimates.of(planned.cell)[0]

    def _last(self, cell: str) -> Settled | None:
        """What the cell settled on in the newest earlier night that learnt something of
        it."""
        for night in reversed(self.ledger.history.before(self.runs.night)):
            settled = settle_cell(night.attempts_of(cell))
            if settled.keys:
                return settled
        return None

    # ------------------------------------------------------------ asked by the campaign

    def begin(self, campaign: Campaign[Night]) -> None:
        self.campaign, cells = campaign, self.todo
        if cells or self.runs.night.state is not NightState.COMPLETE:
            self._mark(NightState.RUNNING)
        groups = groups_of(cells)
        seconds = {p.cell.id: self._seconds(p) for p in cells}
        costs = Costs(seconds, *(self._slicing or Slicing()))
        self._dispatcher = Dispatcher(groups, costs, sliced=self._slicing is not None)
        campaign.places.expect(groups)

    def order(self, place: Place, names: Collection[str]) -> Order | None:
        while True:
            slice = self._dispatcher.next(place.name, place.has, names)
            if slice is None:
                return None
            group = slice.group
            seconds = [self.estimates.of(planned.cell)[0] for planned in group.cells]
            if not any(map(self.campaign.fits, seconds)):
                self._dispatcher.ended(slice)
                continue
            where = f"{group.name} on {place.name}" if place.name else group.name
            self.campaign.note(where)
            order = self._order(slice)
            self._slices[id(order)] = slice
            return order

    def waits(self) -> bool:
        return bool(self.todo)

    def began(self, order: Order, began: StartedRun) -> None:
        return

    def line(self, order: Order, result: Record) -> Record:
        return result

    def took(self, order: Order, line: Record) -> None:
        assert isinstance(line, Attempt)
        self._came[id(order)] += 1
        self._append(line)

    def over(self, order: Order) -> None:
        self._dispatcher.ended(self._slices.pop(id(order)))

    def lost(
        self, order: Order, loss: PlaceLost, began: StartedRun | None, place: str
    ) -> str:
        slice, came = self._slices.pop(id(order)), self._came.pop(id(order), 0)
        if began is not None:
            self._append(lost(self.runs.night.id, began, loss.message, place))
        again: list[Planned] = []
        for planned in slice.group.cells:
            if self.next(planned) is None:
                continue
            name = planned.cell.id
            self._strikes[name] = 0 if came or began else self._strikes[name] + 1
            if self._strikes[name] < STRIKES:
                again.append(planned)
            else:
                self._give_up(planned, loss.message, place)
        self._dispatcher.lost(slice, again)
        return f"{len(again)} cells of {slice.group.name} go to others."

    def end(self, state: CampaignState, failure: str) -> Night:
        """Before the night is written down as ended, what changed since the nights
        before is, each event once: what is killed in between goes on here."""
        marked = _STATES[state]
        night = self.runs.night
        if night.state is NightState.COMPLETE:
            return night
        if state in (CampaignState.COMPLETE, CampaignState.OUT_OF_TIME):
            known = {event.identity for event in self.runs.events}
            ended = replace(self.runs, night=self._ended(marked))
            for event in events_between(self.ledger.history, ended):
                if event.identity not in known:
                    self.ledger.append(event)
        return self._mark(marked)

    # ------------------------------------------------------------------ the ledger

    def _order(self, slice: Slice) -> Order:
        cells = [planned.cell for planned in slice.group.cells]
        measured: dict[str, float] = {}
        for cell in cells:
            seconds, why = self.estimates.of(cell)
            if why != ASSUMED_WHY:
                measured[cell.id] = seconds
        return CellsUntilWhole(
            night=self.runs.night.id,
            group=slice.group,
            attempts={cell.id: tuple(self.runs.attempts_of(cell.id)) for cell in cells},
            before={cell.id: self._before[cell.id] for cell in cells},
            seconds=measured,
            repeat=self.runs.night.repeat,
            confirm=self.runs.night.confirm,
            until=self.campaign.until,
            ahead=slice.ahead,
        )

    def _give_up(self, planned: Planned, why: str, machine: str) -> None:
        coming = self.next(planned)
        while coming is not None:
            began = began_of(planned, coming)
            self.campaign.began(began, machine)
            self._append(lost(self.runs.night.id, began, why, machine))
            coming = self.next(planned)

    def _append(self, attempt: Attempt) -> None:
        self.ledger.append(attempt)
        planned = self.runs.planned[attempt.cell]
        if attempt.outcome is not None:
            self.estimates.note(planned.cell, attempt.seconds)
        what = began_of(planned, Next(attempt.index, attempt.role)).what
        self.campaign.emit(run_ended(what, attempt, planned.expected))
        if self.next(planned) is None:
            settled = settle_cell(self.runs.attempts_of(attempt.cell))
            if settled.state is CellState.FLAKY:
                text = f"{planned.cell.row}: flaky, {settled.why}"
                self.campaign.emit(Established(text=text, tone="unsure"))

    def _mark(self, state: NightState) -> Night:
        night = self._ended(state)
        self.ledger.append(night)
        return night

    def _ended(self, state: NightState) -> Night:
        finished = None if state is NightState.RUNNING else Moment.now()
        return self.runs.night.model_copy(update={"state": state, "finished": finished})
