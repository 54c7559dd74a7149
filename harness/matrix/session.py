"""A night: the cells of a plan, group by group, each attempt in the ledger as it ends."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from mmrepro.campaign.dispatch import SETUP_S, Costs, Dispatcher, Slice
from mmrepro.campaign.groups import ASSUMED_BUILD_S, ASSUMED_WHY, Estimates, Group, groups_of
from mmrepro.campaign.schedule import Next, Schedule
from mmrepro.campaign.work import Began, Order, Place, Places, lost
from mmrepro.errors import NoPlaceLeft, PlaceLost
from mmrepro.history.events import events
from mmrepro.history.ledger import Ledger, NightRuns
from mmrepro.history.states import Settled, settle
from mmrepro.incident.ledger import Attempt, Cell, Night, NightState, Planned
from mmrepro.records import Moment

POLL_S = 0.2
STRIKES = 3
"""So often in a row a machine may be lost, or the same cells, before anything came of them."""


class Watcher(Protocol):
    """Is told how a night goes, from several threads."""

    def say(self, text: str) -> None:
        """What happens beside the runs."""

    def group(self, group: Group, machine: str) -> None:
        """Its environment is looked for, and then its cells are run; "": on this machine."""

    def began(self, planned: Planned, coming: Next) -> None:
        """A run was started."""

    def ended(self, planned: Planned, attempt: Attempt, whole: Settled | None) -> None:
        """``whole``: what the cell came to, if no run of it is left."""


@dataclass(frozen=True)
class SessionOptions:
    """How a night is run; what it is to run is in the ledger.

    Attributes:
        max_time_s: no run is started that is not expected to end within it; None: no limit.
        sliced: the cells of an environment may go to several machines.
        build_s: what an environment takes, and
        setup_s: what an order takes beside that and its runs; a slice is to be worth them.
        wait_s: how long to wait for a machine when none is left.
    """

    max_time_s: float | None = None
    sliced: bool = False
    build_s: Callable[[Group], float] = lambda group: ASSUMED_BUILD_S
    setup_s: float = SETUP_S
    wait_s: float = 60.0


@dataclass(frozen=True)
class _Told:
    """How an order ended."""

    place: Place
    slice: Slice
    runs: int = 0
    """That the place told of."""
    loss: PlaceLost | None = None
    began: bool = False
    """A run was lost with the place, and is an attempt."""
    error: BaseException | None = None


class Session:
    """A night in progress.

    One thread gives the orders; each is worked on in a thread of its own, which appends what comes
    of it to the ledger. Where a machine is lost, the run that it had begun is an attempt that
    infrastructure lost, and what it had not begun goes to others.
    """

    def __init__(
        self,
        ledger: Ledger,
        runs: NightRuns,
        places: Places,
        options: SessionOptions,
        watcher: Watcher | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``runs``: of the ledger's history, begun by :func:`~mmrepro.matrix.nights.begin`."""
        self.ledger = ledger
        self.runs = runs
        self.estimates = Estimates(ledger.history)
        self._places, self._options, self._watcher = places, options, watcher
        self._clock = clock
        limit = options.max_time_s
        self._until = None if limit is None else clock() + limit
        self._before = {name: self._last(name) for name in runs.planned}
        self._stopped = False
        self._busy: dict[int, tuple[Place, threading.Thread]] = {}
        self._told: queue.SimpleQueue[_Told] = queue.SimpleQueue()
        self._strikes: Counter[str] = Counter()

    # ------------------------------------------------------------------ what is left

    def next(self, planned: Planned) -> Next | None:
        """The next run of a cell; None: it is whole."""
        return self._schedule.next(self.runs.attempts_of(planned.cell.id), planned)

    def left(self, planned: Planned) -> int:
        """Runs of a cell that are still to be made, if nothing surprises."""
        return self._schedule.left(self.runs.attempts_of(planned.cell.id), planned)

    @property
    def _schedule(self) -> Schedule:
        return Schedule(self.runs.night.repeat, self.runs.night.confirm, self._before)

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
        seconds = {p.cell.id: self.left(p) * self.estimates.of(p.cell)[0] for p in cells}
        costs = Costs(seconds, self._options.build_s, self._options.setup_s)
        dispatcher = Dispatcher(groups, costs, sliced=self._options.sliced)
        self._places.expect(groups)
        try:
            self._give(dispatcher)
        except BaseException:
            try:
                self._stopped = True
                self._places.stop()
                for _, thread in self._busy.values():
                    thread.join()
            finally:
                self._mark(NightState.INTERRUPTED)
            raise
        self._places.join()
        state = NightState.OUT_OF_TIME if self.todo else NightState.COMPLETE
        self._tell_changes(state)
        return self._mark(state)

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

    # ------------------------------------------------------------------ giving orders

    def _give(self, dispatcher: Dispatcher) -> None:
        """Until nothing waits and nothing is under way."""
        alone = time.monotonic()
        while True:
            there = [p for p in self._places.there() if self._strikes[p.name] < STRIKES]
            names = {p.name for p in (*there, *(p for p, _ in self._busy.values()))}
            for place in there:
                if id(place) not in self._busy:
                    self._start(dispatcher, place, names)
            if there or self._busy:
                alone = time.monotonic()
            if not self._busy:
                if not dispatcher.waiting:
                    return
                if time.monotonic() - alone >= self._options.wait_s:
                    raise NoPlaceLeft(
                        f"No machine is left for night {self.runs.night.id}: "
                        f"{len(self.todo)} of {len(self.runs.planned)} cells have runs left."
                    )
            with contextlib.suppress(queue.Empty):
                self._take(dispatcher, self._told.get(timeout=POLL_S))

    def _start(self, dispatcher: Dispatcher, place: Place, names: set[str]) -> None:
        while (slice := dispatcher.next(place.name, place.has, names)) is not None:
            if any(self._fits(planned.cell) for planned in slice.group.cells):
                thread = threading.Thread(
                    target=self._thread, args=(place, slice), name=f"matrix-{place.name}"
                )
                self._busy[id(place)] = place, thread
                thread.start()
                return
            dispatcher.ended(slice)

    def _take(self, dispatcher: Dispatcher, told: _Told) -> None:
        """An order has ended."""
        del self._busy[id(told.place)]
        if told.error is not None:
            raise told.error
        place, slice = told.place.name, told.slice
        if told.runs:
            self._strikes[place] = 0
        if told.loss is None:
            dispatcher.ended(slice)
            return
        self._strikes[place] += 1
        cells = [p for p in slice.group.cells if self.next(p) is not None]
        again = []
        for planned in cells:
            name = f"cell {planned.cell.id}"
            self._strikes[name] = 0 if told.runs or told.began else self._strikes[name] + 1
            if self._strikes[name] < STRIKES:
                again.append(planned)
            else:
                self._give_up(planned, told.loss.message, place)
        dispatcher.lost(slice, again)
        if self._watcher is not None:
            gone = ", and is not used any more" if self._strikes[place] >= STRIKES else ""
            self._watcher.say(
                f"{place or 'this machine'} was lost{gone}: {told.loss.message} "
                f"{len(again)} cells of {slice.group.name} go to others."
            )

    def _give_up(self, planned: Planned, why: str, machine: str) -> None:
        while (coming := self.next(planned)) is not None:
            began = Began(planned, coming)
            self._began(began)
            self._ended_run(lost(self.runs.night.id, began, why, machine))

    def _fits(self, cell: Cell) -> bool:
        """Whether a run of ``cell``, begun now, is expected to end in time."""
        until = self._until
        return until is None or self._clock() + self.estimates.of(cell)[0] <= until

    # ------------------------------------------------------------------ in an order's thread

    def _thread(self, place: Place, slice: Slice) -> None:
        try:
            told = self._work(place, slice)
        except BaseException as error:
            ended = self._stopped and isinstance(error, KeyboardInterrupt)
            told = _Told(place, slice, error=None if ended else error)
        self._told.put(told)

    def _work(self, place: Place, slice: Slice) -> _Told:
        if self._watcher is not None:
            self._watcher.group(slice.group, place.name)
        runs, began = 0, None
        try:
            with contextlib.closing(place.work(self._order(slice), self.ledger.folder)) as working:
                for told in working:
                    if isinstance(told, Began):
                        began = told
                        self._began(told)
                    else:
                        self._ended_run(told)
                        runs, began = runs + 1, None
        except PlaceLost as loss:
            if began is not None:
                self._ended_run(lost(self.runs.night.id, began, loss.message, place.name))
            return _Told(place, slice, runs, loss, began is not None)
        return _Told(place, slice, runs)

    def _order(self, slice: Slice) -> Order:
        cells = [planned.cell for planned in slice.group.cells]
        known = {cell.id: self.estimates.of(cell) for cell in cells}
        return Order(
            night=self.runs.night.id,
            group=slice.group,
            attempts={cell.id: tuple(self.runs.attempts_of(cell.id)) for cell in cells},
            before={cell.id: self._before[cell.id] for cell in cells},
            seconds={name: seconds for name, (seconds, why) in known.items() if why != ASSUMED_WHY},
            repeat=self.runs.night.repeat,
            confirm=self.runs.night.confirm,
            until=self._until,
            ahead=slice.ahead,
        )

    def _began(self, began: Began) -> None:
        if self._watcher is not None:
            self._watcher.began(*began)

    def _ended_run(self, attempt: Attempt) -> None:
        self.ledger.append(attempt)
        planned = self.runs.planned[attempt.cell]
        if attempt.outcome is not None:
            self.estimates.note(planned.cell, attempt.seconds)
        if self._watcher is not None:
            whole = self.next(planned) is None
            settled = settle(self.runs.attempts_of(planned.cell.id)) if whole else None
            self._watcher.ended(planned, attempt, settled)
