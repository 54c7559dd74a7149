"""What a machine is told to do for a night, and the doing of it, run by run.

The same here and on another machine: an :class:`Order` goes there, what began and what came of it
comes back. Nothing in here knows the ledger.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias

from mmrepro.campaign.groups import Estimates, Group
from mmrepro.campaign.schedule import Next, Schedule
from mmrepro.errors import PlaceLost as PlaceLost
from mmrepro.history.ledger import History
from mmrepro.history.states import Settled
from mmrepro.incident.ledger import Attempt, Cell, Lost, Planned, Role
from mmrepro.records import Moment

INCIDENTS = "incidents"


class Runner(Protocol):
    """Runs cells: `Trials`."""

    def run(
        self, cell: Cell, folder: Path, root: Path, *, night: str, index: int, role: Role
    ) -> Attempt: ...

    def stop(self) -> None: ...


class Providing(Protocol):
    """What runs need beside them: `Provisions`."""

    def expect(self, groups: Sequence[Group]) -> None: ...
    def prepare(self, group: Group) -> str: ...
    def prefetch(self, group: Group) -> None: ...
    def warm(self, runs: Sequence[tuple[Cell, int]]) -> contextlib.AbstractContextManager[None]: ...
    def seconds(self, group: Group) -> float: ...
    def done(self, group: Group) -> None: ...
    def stop(self) -> None: ...
    def join(self) -> None: ...


@dataclass(frozen=True)
class Order:
    """What a machine is to do next: cells of one environment. Can be pickled.

    Attributes:
        group: the environment, with these cells of it only.
        attempts: of this night so far, by the cell's id.
        before: what the cell settled on in the last night that learnt something of it.
        seconds: of one run, by the cell's id; without those of which nothing was measured yet.
        until: Unix time; no run is started that is not expected to end by then. None: no limit.
        ahead: whose environment is worth fetching meanwhile.
    """

    night: str
    group: Group
    attempts: Mapping[str, tuple[Attempt, ...]]
    before: Mapping[str, Settled | None]
    seconds: Mapping[str, float]
    repeat: int
    confirm: int
    until: float | None = None
    ahead: Group | None = None


class Began(NamedTuple):
    """A run was started."""

    planned: Planned
    coming: Next


Working: TypeAlias = Generator[Began | Attempt, None, None]
"""Each run as it begins and as it ends. Closed, it leaves nothing behind."""


class Place(Protocol):
    """Where orders are worked on, one at a time."""

    @property
    def name(self) -> str:
        """The machine's label in the ledger; several places may be on one machine."""

    def has(self, group: Group) -> bool:
        """Whether the group's environment is known to be there, by an order of before too."""

    def work(self, order: Order, root: Path) -> Working:
        """Do it; the incident of a run is below ``root`` when its attempt is told.

        Raises:
            PlaceLost: the machine, or what worked there, is gone.
            KeyboardInterrupt: it was stopped.
        """


class Places(Protocol):
    """All that there are."""

    def there(self) -> Sequence[Place]:
        """Those that there are now, the same objects each time, also while they work.

        Asked several times a second; they may come and go.
        """

    def expect(self, groups: Sequence[Group]) -> None:
        """These are to be run: said once, before the first order."""

    def stop(self) -> None:
        """End all that is in progress; nothing is begun any more."""

    def join(self) -> None:
        """Wait for what is still done beside the runs."""


def lost(night: str, began: Began, why: str, machine: str = "") -> Attempt:
    """A run that was not to be, or that nobody will hear of any more."""
    return Attempt(
        night=night,
        cell=began.planned.cell.id,
        index=began.coming.number,
        role=began.coming.role,
        created=Moment.now(),
        seconds=0.0,
        lost=Lost.INFRASTRUCTURE,
        error=why,
        machine=machine,
    )


def work(
    order: Order,
    trials: Runner,
    provisions: Providing,
    root: Path,
    *,
    machine: str = "",
    stopped: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.time,
) -> Working:
    """Have the environment, then run each cell until it is whole or there is no time.

    The provisions were told to :meth:`~Providing.expect` the group; they are told that it is done.

    Args:
        root: the ledger's folder, or what stands for it; a run's folder is new.
        machine: label of this machine, for runs that were not to be.
        stopped: whether to start no run any more.

    Raises:
        KeyboardInterrupt: trials or provisions were stopped.
    """
    group, state = order.group, _State(order)

    def fits(cell: Cell, first_s: float = 0.0) -> bool:
        return order.until is None or clock() + first_s + state.seconds(cell) <= order.until

    def whole(planned: Planned, why: str) -> Working:
        while (coming := state.next(planned)) is not None and not stopped():
            if not why and not fits(planned.cell):
                return
            began = Began(planned, coming)
            yield began
            if why:
                attempt = lost(order.night, began, why, machine)
            else:
                attempt = _run(order, began, trials, root)
            state.note(planned, attempt)
            yield attempt

    fetched_s = provisions.seconds(group)
    if any(fits(planned.cell, fetched_s) for planned in group.cells):
        why = provisions.prepare(group)
        if why:
            runs: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        else:
            if order.ahead is not None and fits(order.ahead.cells[0].cell):
                provisions.prefetch(order.ahead)
            runs = provisions.warm([(p.cell, state.left(p)) for p in group.cells])
        with runs:
            for planned in group.cells:
                yield from whole(planned, why)
    provisions.done(group)


class _State:
    """How an order stands: its attempts of before, and those made since."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self._schedule = Schedule(order.repeat, order.confirm, order.before)
        names = [planned.cell.id for planned in order.group.cells]
        self._attempts = {name: list(order.attempts.get(name, ())) for name in names}
        self._measured = Estimates(History())

    def next(self, planned: Planned) -> Next | None:
        """The next run of a cell; None: it is whole."""
        return self._schedule.next(self._attempts[planned.cell.id], planned)

    def left(self, planned: Planned) -> int:
        """Runs of a cell that are still to be made, if nothing surprises."""
        return self._schedule.left(self._attempts[planned.cell.id], planned)

    def note(self, planned: Planned, attempt: Attempt) -> None:
        """Another run of that cell has ended."""
        self._attempts[planned.cell.id].append(attempt)
        if attempt.outcome is not None:
            self._measured.note(planned.cell, attempt.seconds)

    def seconds(self, cell: Cell) -> float:
        """What a run of it takes, about."""
        known = self.order.seconds.get(cell.id)
        return self._measured.of(cell)[0] if known is None else known


def run_folder(order: Order, began: Began) -> Path:
    """Of a run, below the ledger's folder."""
    return Path(INCIDENTS, order.night, began.planned.cell.id, f"run-{began.coming.number}")


def _run(order: Order, began: Began, trials: Runner, root: Path) -> Attempt:
    planned, coming = began
    folder = root / run_folder(order, began)
    # Of a run that was killed before the ledger heard of it.
    shutil.rmtree(folder, ignore_errors=True)
    return trials.run(
        planned.cell, folder, root, night=order.night, index=coming.number, role=coming.role
    )
