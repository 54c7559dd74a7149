"""A policy that is written as plain code: it asks for runs, and waits for them.

Each line of work is a greenlet: :meth:`Search.results` hands its wishes to the campaign and goes on
when they are met. Several lines go on beside each other where several places are free. Whoever goes
on with a search after a kill walks the same way again: runs that the journal has are not made.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar, cast

from greenlet import getcurrent, greenlet
from mmrepro.campaign.campaign import STRIKES, Campaign
from mmrepro.campaign.work import Began, Order, Place
from mmrepro.errors import PlaceLost
from mmrepro.records import Record

T = TypeVar("T")
LineT = TypeVar("LineT", bound=Record)
DocumentT = TypeVar("DocumentT")


class Spent(Exception):
    """There is no time, or no budget, for one more run."""


@dataclass(eq=False)
class _Line:
    """A line of work, and what it waits for."""

    greenlet: greenlet
    wants: Sequence[Began] = ()
    parts: list[_Line] = field(default_factory=list)
    """Lines that it waits for."""


class Search(Generic[DocumentT, LineT]):
    """What :class:`~mmrepro.campaign.campaign.Policy` asks for, but for the way of the search.

    A kind of search has, besides: ``kind``, ``folder``, ``resume_command``, ``end`` and

    - ``begin``, which takes in :attr:`done` what the journal holds, and calls this one's;
    - :meth:`more`, :meth:`order_of`, :meth:`keep`.

    Attributes:
        done: what is known of runs, by what is run and which run it is.
    """

    campaign: Campaign[DocumentT]

    def __init__(self) -> None:
        self.done: dict[tuple[str, int], LineT] = {}
        self._lines: list[_Line] = []
        self._given: dict[int, tuple[Order, Began]] = {}
        self._strikes: dict[tuple[str, int], int] = {}
        self._spent = False

    # ------------------------------------------------------------------ what a search has

    def more(self) -> Callable[[], None] | None:
        """Another line of work for a place that is free; None: none now."""
        raise NotImplementedError

    def order_of(self, want: Began) -> Order:
        """What a place is told, to make that run."""
        raise NotImplementedError

    def keep(self, line: LineT) -> tuple[str, int]:
        """Write it down; whose it is."""
        raise NotImplementedError

    def affords(self, want: Began) -> bool:
        """Whether there is time, and budget, for that run."""
        return True

    def lose(self, want: Began, why: str, place: str) -> LineT | None:
        """What is written of a run that was lost with its place; None: it is made again."""
        return None

    # ------------------------------------------------------------------ within a line of work

    def results(self, wants: Sequence[Began]) -> list[LineT]:
        """What came of these runs, made now or by an earlier call; beside each other where places
        are free.

        Raises:
            Spent: there is no time for one of them.
        """
        if any((w.id, w.index) not in self.done for w in wants):
            getcurrent().parent.switch(wants)
        if self._spent and any((w.id, w.index) not in self.done for w in wants):
            raise Spent
        return [self.done[w.id, w.index] for w in wants]

    def result(self, want: Began) -> LineT:
        """As :meth:`results`, of one run."""
        return self.results([want])[0]

    def beside(self, works: Sequence[Callable[[], T]]) -> list[T]:
        """What these come to, each a line of work of its own.

        Raises:
            Spent: there was no time for all of one of them.
        """
        came: dict[int, T] = {}

        def line_of(number: int, work: Callable[[], T]) -> _Line:
            return _Line(greenlet(lambda: came.update({number: work()}), hub))

        mine = next(line for line in self._lines if line.greenlet is getcurrent())
        hub = mine.greenlet.parent
        mine.parts = [line_of(number, work) for number, work in enumerate(works)]
        hub.switch(())
        mine.parts = []
        if len(came) < len(works):
            raise Spent
        return [came[number] for number in range(len(works))]

    # ------------------------------------------------------------------ asked by the campaign

    def begin(self, campaign: Campaign[DocumentT]) -> None:
        self.campaign = campaign

    def order(self, place: Place, names: Collection[str]) -> Order | None:
        while True:
            if (found := self._open()) is not None:
                line, want = found
                if self.affords(want):
                    order = self.order_of(want)
                    self._given[id(order)] = order, want
                    return order
                self._give_up(line)
            elif not self._begin_more():
                return None

    def waits(self) -> bool:
        if self._spent or any(
            (w.id, w.index) not in self.done for line in self._lines for w in line.wants
        ):
            return True
        # Nobody has asked for more where no place is there yet.
        return self._begin_more()

    def began(self, order: Order, began: Began) -> None:
        return

    def line(self, order: Order, result: Record) -> Record:
        return result

    def took(self, order: Order, line: Record) -> None:
        mine = cast(LineT, line)
        self.done[self.keep(mine)] = mine
        self._go_on()

    def over(self, order: Order) -> None:
        self._given.pop(id(order), None)

    def lost(self, order: Order, loss: PlaceLost, began: Began | None, place: str) -> str:
        _, want = self._given.pop(id(order))
        key = want.id, want.index
        if key in self.done:
            return "What it had done is kept."
        self._strikes[key] = self._strikes.get(key, 0) + 1
        line = self.lose(want, loss.message, place) if began is not None else None
        if line is not None:
            self.took(order, line)
            return "Its run is lost."
        if self._strikes[key] >= STRIKES:
            raise loss
        return "Its run goes to others."

    # ------------------------------------------------------------------ lines of work

    def _open(self) -> tuple[_Line, Began] | None:
        """The oldest line's first wish that is neither met nor given to a place."""
        given = {(want.id, want.index) for _, want in self._given.values()}
        for line in self._lines:
            for want in line.wants:
                if (want.id, want.index) not in self.done.keys() | given:
                    return line, want
        return None

    def _begin_more(self) -> bool:
        """Whether there is another line that has anything to ask for."""
        while (work := self.more()) is not None:
            line = _Line(greenlet(work))
            self._lines.append(line)
            self._switch(line)
            self._go_on()
            if line in self._lines:
                return True
        return False

    def _switch(self, line: _Line) -> None:
        """Let it go on to its next wish, or to its end; what it waits for begins."""
        wants: Sequence[Began] = ()
        with contextlib.suppress(Spent):
            wants = line.greenlet.switch()
        if line.greenlet.dead:
            self._lines.remove(line)
            return
        line.wants = wants
        for part in line.parts:
            self._lines.append(part)
            self._switch(part)

    def _go_on(self) -> None:
        """All lines whose wishes are met."""
        while (line := next(filter(self._met, self._lines), None)) is not None:
            self._switch(line)

    def _met(self, line: _Line) -> bool:
        return all((w.id, w.index) in self.done for w in line.wants) and all(
            part.greenlet.dead for part in line.parts
        )

    def break_off(self) -> None:
        """End all lines of work where they wait, so that what they hold open is closed."""
        for line in self._lines:
            if not line.greenlet.dead:
                line.greenlet.throw()
        self._lines.clear()

    def _give_up(self, line: _Line) -> None:
        """There is no time for what it asks for: it hears so."""
        self._spent = True
        self._switch(line)
        self._go_on()
