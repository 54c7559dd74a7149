"""A campaign of any kind, from its first run to its document.

A policy says what a free place is to do next, and what follows from what was seen. All
else is
here, once: the places and their losses, the threads, the time, what is written when,
how it ends, and who hears of it: what happens is an event, to which progress, JSON
lines and documents listen."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from mmrepro.base.errors import MmreproError, NoPlaceLeft, PlaceLost
from mmrepro.base.records import Record
from mmrepro.campaign.events import (
    CampaignBegan,
    CampaignEnded,
    CampaignEvent,
    Handler,
    Note,
    RunBegan,
)
from mmrepro.campaign.work import Order, Place, Places, StartedRun

POLL_S = 0.2
WAIT_S = 60.0
STRIKES = 3
"""So often in a row a machine may be lost, or the same order, before anything came of
them."""

DocumentT = TypeVar("DocumentT")


class CampaignState(StrEnum):
    """How a campaign stands; its document has the same words."""

    COMPLETE = "complete"
    INTERRUPTED = "interrupted"
    FAILED = "failed"
    OUT_OF_TIME = "out-of-time"


class Policy(Protocol[DocumentT]):
    """All that a kind of campaign writes for itself. Everything but :meth:`line` is
    called from the campaign's own thread."""

    kind: str
    """That people call it: 'bisection'."""

    @property
    def folder(self) -> Path: ...

    @property
    def resume_command(self) -> str:
        """The command that goes on with it."""

    def standing(self) -> str:
        """How far it is, in a line: '3 of 8 cells are whole'. Also from other
        threads."""

    def begin(self, campaign: Campaign[DocumentT]) -> None:
        """Take in what the journal holds, and write down that it goes on."""

    def order(self, place: Place, names: Collection[str]) -> Order | None:
        """What a free place is to do next; None: nothing now.

        Args:
            names: of all places that there are.
        """

    def waits(self) -> bool:
        """Whether something is to be done that no place has been given."""

    def began(self, order: Order, began: StartedRun) -> None:
        """A place begins that run, once this returns."""

    def line(self, order: Order, result: Record) -> Record:
        """What is written down of a run; called in the thread of the order."""

    def took(self, order: Order, line: Record) -> None:
        """Write the line down, and draw what follows from it."""

    def over(self, order: Order) -> None:
        """All of an order was done, or all that there was time for."""

    def lost(
        self, order: Order, loss: PlaceLost, began: StartedRun | None, place: str
    ) -> str:
        """The place is gone; ``began``: the run that it had begun. Whatever was not
        done is given to others. Returns what becomes of it, for people."""

    def end(self, state: CampaignState, failure: str) -> DocumentT:
        """Write down how it ended; from the same journal always the same document
        follows."""


@dataclass(frozen=True)
class _Worked:
    place: Place
    order: Order
    item: StartedRun | Record | None = None
    """None: the order has ended."""
    loss: PlaceLost | None = None
    error: BaseException | None = None
    taken: threading.Event = field(default_factory=threading.Event)
    """The journal has it: the place may go on."""


class Campaign(Generic[DocumentT]):
    """A campaign in progress.

    One thread gives the orders and writes the journal; each order is worked on in a
    thread of its own. Where a machine is lost, the run that it had begun is one that
    infrastructure lost, and what it had not begun goes to others.

    Attributes:
        until: of the campaign's clock; no run is started that is not expected to end by
            then.
        alone: there is no other place that could take a second run meanwhile.
    """

    def __init__(
        self,
        policy: Policy[DocumentT],
        places: Places,
        handlers: Sequence[Handler] = (),
        *,
        budget_s: float | None = None,
        wait_s: float | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """
        Args:
            budget_s: seconds that it may take; None: no limit.
            wait_s: how long to wait for a machine when none is left.
        """
        self.policy, self.places, self.clock = policy, places, clock
        self.until = None if budget_s is None else clock() + budget_s
        self._handlers = handlers
        self._wait_s = WAIT_S if wait_s is None else wait_s
        self._stopped = self._left = False
        self._busy: dict[int, tuple[Place, threading.Thread]] = {}
        self._began: dict[int, StartedRun] = {}
        self._runs: Counter[int] = Counter()
        self._worked: queue.SimpleQueue[_Worked] = queue.SimpleQueue()
        self._strikes: Counter[str] = Counter()

    def execute(self) -> DocumentT:
        """Run what is left of it. The journal has all that ended, whatever happens.

        Raises:
            KeyboardInterrupt: what had ended is on disk, and the document is the
                partial one.
            MmreproError: infrastructure that no run can do without, usage, or a full
                disk.
        """
        policy = self.policy
        policy.begin(self)
        resume = policy.resume_command
        self.emit(
            CampaignBegan(kind=policy.kind, folder=str(policy.folder), resume=resume)
        )
        try:
            self._give()
        except BaseException as error:
            try:
                self._stop()
            finally:
                self._left = True
                state, failure = _ending(error, resume)
                # A full disk cannot take the document either: the first error is the
                # one to report.
                with contextlib.suppress(MmreproError, OSError):
                    policy.end(state, failure)
                self._ended(state, failure)
            raise
        self.places.join()
        state = CampaignState.OUT_OF_TIME if policy.waits() else CampaignState.COMPLETE
        document = policy.end(state, "")
        self._ended(state, "")
        return document

    def emit(self, event: CampaignEvent) -> None:
        for handler in self._handlers:
            handler(event)

    def began(self, began: StartedRun, machine: str = "") -> None:
        what = began.what or began.id
        self.emit(
            RunBegan(what=what, index=began.index, role=began.role, machine=machine)
        )

    def note(self, text: str, *, passing: bool = False) -> None:
        self.emit(Note(text=text, passing=passing))

    def fits(self, seconds: float) -> bool:
        """Whether a run that takes so long, begun now, is expected to end in time."""
        return self.until is None or self.clock() + seconds <= self.until

    # ------------------------------------------------------------------ giving orders

    def _give(self) -> None:
        """Until nothing waits and nothing is under way."""
        alone = time.monotonic()
        while True:
            there = [p for p in self.places.there() if self._strikes[p.name] < STRIKES]
            names = {p.name for p in (*there, *(p for p, _ in self._busy.values()))}
            for place in there:
                if id(place) in self._busy:
                    continue
                if (order := self.policy.order(place, names)) is not None:
                    self._start(place, order)
            if there or self._busy:
                alone = time.monotonic()
            if not self._busy:
                if there or not self.policy.waits():
                    return
                if time.monotonic() - alone >= self._wait_s:
                    raise NoPlaceLeft(
                        (
                            f"No machine is left for the {self.policy.kind}: "
                            f"{self.policy.standing()}."
                        ),
                        hint=self.policy.resume_command,
                    )
            with contextlib.suppress(queue.Empty):
                self._take(self._worked.get(timeout=POLL_S))
                while True:  # what has come meanwhile, before anything is given
                    self._take(self._worked.get_nowait())

    def _start(self, place: Place, order: Order) -> None:
        name = f"mmrepro-{place.name}"
        thread = threading.Thread(target=self._thread, args=(place, order), name=name)
        self._busy[id(place)] = place, thread
        thread.start()

    def _take(self, worked: _Worked) -> None:
        """Raises as the order's thread did, or as the journal does."""
        try:
            self._taken(worked)
        finally:
            worked.taken.set()

    def _taken(self, worked: _Worked) -> None:
        place, order = worked.place, worked.order
        if worked.error is not None:
            del self._busy[id(place)]
            raise worked.error
        if isinstance(worked.item, StartedRun):
            began = worked.item
            self._began[id(place)] = began
            self.policy.began(order, began)
            self.began(began, place.name)
        elif worked.item is not None:
            self._began.pop(id(place), None)
            self._runs[id(place)] += 1
            self._strikes[place.name] = 0
            self.policy.took(order, worked.item)
        else:
            self._over(worked)

    def _over(self, worked: _Worked) -> None:
        place, order = worked.place, worked.order
        del self._busy[id(place)]
        began = self._began.pop(id(place), None)
        if worked.loss is None:
            self.policy.over(order)
            return
        self._strikes[place.name] += 1
        becomes = self.policy.lost(order, worked.loss, began, place.name)
        gone = (
            ", and is not used any more" if self._strikes[place.name] >= STRIKES else ""
        )
        name = place.name or "this machine"
        self.note(f"{name} was lost{gone}: {worked.loss.message} {becomes}")

    # ------------------------------------------------------------- in an order's thread

    def _thread(self, place: Place, order: Order) -> None:
        try:
            with contextlib.closing(place.work(order, self.policy.folder)) as working:
                for item in working:
                    line = (
                        item
                        if isinstance(item, StartedRun)
                        else self.policy.line(order, item)
                    )
                    worked = _Worked(place, order, line)
                    self._worked.put(worked)
                    # No run ahead of the journal: a kill costs the run in progress and
                    # no other.
                    while not worked.taken.wait(POLL_S):
                        if self._left:
                            raise KeyboardInterrupt
        except PlaceLost as loss:
            self._worked.put(_Worked(place, order, loss=loss))
        except BaseException as error:
            ended = self._stopped and isinstance(error, KeyboardInterrupt)
            self._worked.put(_Worked(place, order, error=None if ended else error))
        else:
            self._worked.put(_Worked(place, order))

    # ------------------------------------------------------------------ the end

    def _stop(self) -> None:
        """End what is in progress, and take in what had ended by then."""
        self._stopped = True
        self.places.stop()
        while any(thread.is_alive() for _, thread in self._busy.values()):
            self._last_words(POLL_S)
        self._last_words(0.0)
        self.places.join()

    def _last_words(self, timeout_s: float) -> None:
        """Write down a run that ended as it was stopped, if the journal still takes
        it."""
        with contextlib.suppress(queue.Empty):
            worked = self._worked.get(timeout=timeout_s)
            try:
                with contextlib.suppress(MmreproError):
                    if worked.item is not None and not isinstance(
                        worked.item, StartedRun
                    ):
                        self.policy.took(worked.order, worked.item)
            finally:
                worked.taken.set()
            self._last_words(0.0)

    def _ended(self, state: CampaignState, failure: str) -> None:
        policy = self.policy
        self.emit(
            CampaignEnded(
                kind=policy.kind,
                folder=str(policy.folder),
                state=state,
                failure=failure,
                resume="" if state is CampaignState.COMPLETE else policy.resume_command,
            )
        )


def _ending(error: BaseException, resume: str) -> tuple[CampaignState, str]:
    if isinstance(error, KeyboardInterrupt):
        return CampaignState.INTERRUPTED, f"interrupted; to resume, run: {resume}"
    if isinstance(error, NoPlaceLeft):
        return CampaignState.INTERRUPTED, error.message
    if isinstance(error, MmreproError):
        return CampaignState.FAILED, error.message
    return (
        CampaignState.FAILED,
        f"mmrepro itself failed: {type(error).__name__}: {error}",
    )
