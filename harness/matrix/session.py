"""A night: the cells of a plan, group by group, each attempt in the ledger as it ends."""

from __future__ import annotations

import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from mmrepro.errors import UsageError
from mmrepro.history.events import events
from mmrepro.history.ledger import Ledger, NightRuns
from mmrepro.history.states import Settled, settle
from mmrepro.incident.ledger import Attempt, Cell, Lost, Night, NightState, Planned, Role
from mmrepro.matrix.plan import Estimates, Group, groups_of
from mmrepro.matrix.schedule import Next, left, next_run
from mmrepro.matrix.work import INCIDENTS, Providing, Runner
from mmrepro.records import Moment

JOIN_S = 0.2


class Watcher(Protocol):
    """Is told how a night goes, from several threads."""

    def group(self, group: Group) -> None:
        """Its environment is looked for, and then its cells are run."""

    def began(self, planned: Planned, coming: Next) -> None:
        """A run was started."""

    def ended(self, planned: Planned, attempt: Attempt, whole: Settled | None) -> None:
        """``whole``: what the cell came to, if no run of it is left."""


@dataclass(frozen=True)
class SessionOptions:
    """How a night is run; what it is to run is in the ledger.

    Attributes:
        jobs: groups at a time.
        max_time_s: no run is started that is not expected to end within it; None: no limit.
    """

    jobs: int = 1
    max_time_s: float | None = None


def begin(ledger: Ledger, night: Night, cells: Sequence[Planned]) -> NightRuns:
    """Write down that ``night`` runs these cells, or goes on with them.

    The cells of a night that is there already stay in it. Nothing is written if nothing is new.
    """
    runs = ledger.history.find(night.id)
    new = [p for p in cells if runs is None or p.cell.id not in runs.planned]
    if runs is None or new or _asked(runs.night) != _asked(night):
        total = len(new) + (len(runs.planned) if runs else 0)
        created = runs.night.created if runs else night.created
        ledger.append(night.model_copy(update={"created": created, "cells": total}))
        for planned in new:
            ledger.append(planned)
    return ledger.history.night(night.id)


def _asked(night: Night) -> tuple[int, int]:
    return night.repeat, night.confirm


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


class Session:
    """A night in progress."""

    def __init__(
        self,
        ledger: Ledger,
        runs: NightRuns,
        trials: Runner,
        provisions: Providing,
        options: SessionOptions,
        watcher: Watcher | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``runs``: of the ledger's history, begun by :func:`begin`."""
        self.ledger = ledger
        self.runs = runs
        self.estimates = Estimates(ledger.history)
        self._trials, self._provisions = trials, provisions
        self._options, self._watcher = options, watcher
        self._clock, self._began = clock, clock()
        self._before = {name: self._last(name) for name in runs.planned}
        self._lock = threading.Lock()
        self._stopped = False
        self._errors: list[BaseException] = []
        self._waiting: deque[Group] = deque()

    # ------------------------------------------------------------------ what is left

    def next(self, planned: Planned) -> Next | None:
        """The next run of a cell; None: it is whole."""
        night = self.runs.night
        return next_run(
            self.runs.attempts_of(planned.cell.id),
            planned,
            repeat=night.repeat,
            confirm=night.confirm,
            before=self._before[planned.cell.id],
        )

    def left(self, planned: Planned) -> int:
        """Runs of a cell that are still to be made, if nothing surprises."""
        night = self.runs.night
        return left(
            self.runs.attempts_of(planned.cell.id),
            planned,
            repeat=night.repeat,
            confirm=night.confirm,
            before=self._before[planned.cell.id],
        )

    @property
    def todo(self) -> list[Planned]:
        """The cells that are not whole."""
        return [p for p in self.runs.planned.values() if self.next(p) is not None]

    @property
    def seconds_left(self) -> float:
        """What the runs that are left take, one after another, about."""
        cells = self.todo
        return sum(self.left(p) * self.estimates.of(p.cell)[0] for p in cells)

    def _last(self, cell: str) -> Settled | None:
        """What the cell settled on in the newest earlier night that learnt something of it."""
        for night in reversed(self.ledger.history.before(self.runs.night)):
            settled = settle(night.attempts_of(cell))
            if settled.keys:
                return settled
        return None

    # ------------------------------------------------------------------ from start to end

    def execute(self) -> Night:
        """Run what is left of the night. The ledger has all that ended, whatever happens.

        Raises:
            KeyboardInterrupt: the night's state is ``interrupted``.
            MmreproError: the ledger cannot be written any more.
        """
        cells = self.todo
        if not cells and self.runs.night.state is NightState.COMPLETE:
            return self.runs.night
        self._mark(NightState.RUNNING)
        groups = groups_of(cells)
        self._waiting = deque(groups)
        self._provisions.expect(groups)
        workers = [
            threading.Thread(target=self._work, name=f"matrix-{number}")
            for number in range(min(self._options.jobs, len(groups)))
        ]
        try:
            for worker in workers:
                worker.start()
            for worker in workers:
                while worker.is_alive():
                    worker.join(JOIN_S)
            if self._errors:
                raise self._errors[0]
        except BaseException:
            try:
                self._stop()
                for worker in workers:
                    worker.join()
            finally:
                self._mark(NightState.INTERRUPTED)
            raise
        self._provisions.join()
        state = NightState.OUT_OF_TIME if self.todo else NightState.COMPLETE
        self._tell_changes(state)
        return self._mark(state)

    def _stop(self) -> None:
        self._stopped = True
        self._waiting.clear()
        try:
            self._provisions.stop()
        finally:
            self._trials.stop()

    def _tell_changes(self, state: NightState) -> None:
        """Write down what changed since the nights before; each event once.

        Before the night is said to have ended: what is killed in between goes on here.
        """
        known = {event.identity for event in self.runs.events}
        for event in events(self.ledger.history, replace(self.runs, night=self._ended(state))):
            if event.identity not in known:
                self.ledger.append(event)

    def _mark(self, state: NightState) -> Night:
        night = self._ended(state)
        self.ledger.append(night)
        return night

    def _ended(self, state: NightState) -> Night:
        finished = None if state is NightState.RUNNING else Moment.now()
        return self.runs.night.model_copy(update={"state": state, "finished": finished})

    # ------------------------------------------------------------------ in a worker's thread

    def _work(self) -> None:
        try:
            while not self._stopped:
                with self._lock:
                    if not self._waiting:
                        return
                    group = self._waiting.popleft()
                self._group(group)
        except KeyboardInterrupt:
            if not self._stopped:
                self._fail(KeyboardInterrupt())
        except BaseException as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._errors.append(error)
        self._stop()

    def _group(self, group: Group) -> None:
        fetched_s = self._provisions.seconds(group)
        if not any(self._fits(planned.cell, fetched_s) for planned in group.cells):
            return
        if self._watcher is not None:
            self._watcher.group(group)
        why = self._provisions.prepare(group)
        if why:
            for planned in group.cells:
                self._cell(planned, instead=why)
            self._provisions.done(group)
            return
        with self._lock:
            following = self._waiting[0] if self._waiting else None
        if following is not None and self._fits(following.cells[0].cell):
            self._provisions.prefetch(following)
        with self._provisions.warm([(p.cell, self.left(p)) for p in group.cells]):
            for planned in group.cells:
                self._cell(planned)
        self._provisions.done(group)

    def _fits(self, cell: Cell, first_s: float = 0.0) -> bool:
        """Whether a run of ``cell``, ``first_s`` seconds from now, is expected to end in time."""
        limit = self._options.max_time_s
        spent = self._clock() - self._began
        return limit is None or spent + first_s + self.estimates.of(cell)[0] <= limit

    def _cell(self, planned: Planned, instead: str = "") -> None:
        """Run a cell until it is whole or there is no time. ``instead``: why it cannot be run."""
        while (coming := self.next(planned)) is not None and not self._stopped:
            if not instead and not self._fits(planned.cell):
                return
            if self._watcher is not None:
                self._watcher.began(planned, coming)
            attempt = (
                self._lost(planned, coming, instead) if instead else self._run(planned, coming)
            )
            self.ledger.append(attempt)
            if attempt.outcome is not None:
                self.estimates.note(planned.cell, attempt.seconds)
            if self._watcher is not None:
                whole = self.next(planned) is None
                settled = settle(self.runs.attempts_of(planned.cell.id)) if whole else None
                self._watcher.ended(planned, attempt, settled)

    def _run(self, planned: Planned, coming: Next) -> Attempt:
        root, night = self.ledger.folder, self.runs.night.id
        folder = root / INCIDENTS / night / planned.cell.id / f"run-{coming.number}"
        # Of a run that was killed before the ledger heard of it.
        shutil.rmtree(folder, ignore_errors=True)
        return self._trials.run(
            planned.cell, folder, root, night=night, index=coming.number, role=coming.role
        )

    def _lost(self, planned: Planned, coming: Next, why: str) -> Attempt:
        return Attempt(
            night=self.runs.night.id,
            cell=planned.cell.id,
            index=coming.number,
            role=coming.role,
            created=Moment.now(),
            seconds=0.0,
            lost=Lost.INFRASTRUCTURE,
            error=why,
            machine=self.runs.night.machine,
        )
