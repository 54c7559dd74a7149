"""Cells by environment: which run of one comes next, and which machine gets which.

Without a clock, a file or a machine: the same every time. So a campaign that was killed
goes on as if it had not been: what was appended counts, what was not is run again."""

from __future__ import annotations

import bisect
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import NamedTuple

from mmrepro.base.errors import MmreproError
from mmrepro.engines import spec_for
from mmrepro.engines.environments.spec import EnvironmentSpec
from mmrepro.failure.documents.ledger import Attempt, Cell, Lost, Planned, Role
from mmrepro.history.ledger import History
from mmrepro.history.states import Settled, settle, surprise

ASSUMED_RUN_S, ASSUMED_BUILD_S = 60.0, 180.0
ASSUMED_WHY = "no earlier attempt of this engine is in the ledger: 60 s is assumed"


@dataclass(frozen=True)
class EnvironmentGroup:
    """The cells of one environment.

    Attributes:
        date: of the commit, RFC 3339: its requirements are resolved as of then.
    """

    engine: str
    release: str
    device: str
    commit: str
    cells: tuple[Planned, ...]
    date: str = ""

    @property
    def name(self) -> str:
        """For people: ``vllm 0.23.0 (cpu)``."""
        return f"{self.engine} {self.commit[:9] or self.release} ({self.device})"

    @property
    def spec(self) -> EnvironmentSpec | None:
        """None: there is no such release, as its runs will say."""
        try:
            return spec_for(
                self.engine,
                self.release,
                self.device,
                commit=self.commit,
                date=self.date,
            )
        except MmreproError:
            return None


def groups_of(cells: Iterable[Planned]) -> list[EnvironmentGroup]:
    found: dict[tuple[str, ...], list[Planned]] = {}
    for one in cells:
        found.setdefault(environment_of(one), []).append(one)

    return [
        EnvironmentGroup(engine, release, device, commit, tuple(some))
        for (engine, release, commit, device), some in found.items()
    ]


def environment_of(one: Planned) -> tuple[str, str, str, str]:
    cell = one.cell
    return (cell.engine, cell.release, cell.commit, cell.device)


class Estimates:
    """What a run of a cell takes, by earlier attempts."""

    def __init__(self, history: History) -> None:
        self._seconds: dict[str, list[float]] = {}
        for night in history.nights:
            for attempt in night.attempts:
                planned = night.planned.get(attempt.cell)
                if planned is not None and attempt.outcome is not None:
                    self.note(planned.cell, attempt.seconds)

    def note(self, cell: Cell, seconds: float) -> None:
        """Another attempt at ``cell`` reached its outcome."""
        for name in self._names(cell):
            self._seconds.setdefault(name, []).append(seconds)

    def of(self, cell: Cell) -> tuple[float, str]:
        """Seconds of one run, and what that is based on."""
        for name, what in zip(
            self._names(cell), ("cell", "row", "engine"), strict=True
        ):
            if some := self._seconds.get(name):
                return statistics.median(
                    some
                ), f"median of {len(some)} attempts of this {what}"

        return ASSUMED_RUN_S, ASSUMED_WHY

    @staticmethod
    def _names(cell: Cell) -> tuple[str, str, str]:
        return (f"cell {cell.id}", f"row {cell.line}", f"engine {cell.engine}")


REPEAT, CONFIRM = 1, 3
"""Where nothing else is said."""
_HOPELESS = (Lost.UNLOADABLE, Lost.USAGE)
"""Another run of the same ends the same way."""


class Next(NamedTuple):
    number: int
    """Within the night and cell, from 1: the attempt's index."""
    role: Role


@dataclass(frozen=True)
class Schedule:
    """How often the cells of one campaign are run.

    Attributes:
        repeat: planned runs.
        confirm: further ones where those surprise.
        before: what a cell settled on in the last night that learnt something of it, by
            its id.
    """

    repeat: int
    confirm: int
    before: Mapping[str, Settled | None] = field(default_factory=dict)

    def next(self, attempts: Sequence[Attempt], planned: Planned) -> Next | None:
        """The next run of a cell; None: it is whole.

        Infrastructure that failed is tried once more. A run that took too long is not:
        it would take as long again, and the next night has its turn. If the planned
        runs surprise, ``confirm`` more follow, whatever the first of them shows, so
        that k of n means what it says.

        Args:
            attempts: of the cell in this campaign, by their index.
        """
        number = len(attempts) + 1
        if not attempts:
            return Next(number, "planned")
        last = attempts[-1]
        if any(a.lost in _HOPELESS for a in attempts):
            return None
        if last.lost is Lost.INFRASTRUCTURE and last.role != "retry":
            return Next(number, "retry")
        if sum(a.role == "planned" for a in attempts) < self.repeat:
            return Next(number, "planned")
        # What the planned runs came to, before any was confirmed.
        came = settle(list(takewhile(lambda a: a.role != "confirm", attempts)))
        confirmed = sum(a.role == "confirm" for a in attempts)
        before = self.before.get(planned.cell.id)
        if confirmed < self.confirm and surprise(came, before, planned.expected):
            return Next(number, "confirm")
        return None

    def left(self, attempts: Sequence[Attempt], planned: Planned) -> int:
        """Runs of a cell that are still to be made, if nothing surprises from here
        on."""
        following = self.next(attempts, planned)
        if following is None:
            return 0
        if following.role == "confirm":
            return self.confirm - sum(a.role == "confirm" for a in attempts)
        waiting = max(0, self.repeat - sum(a.role == "planned" for a in attempts))
        return waiting + (following.role == "retry")


SETUP_S = 6.0
"""What an order takes beside its runs: the import of an engine into a fork server. In
the night of docs/nightly 1.7 s for minivllm, 4.4 to 7.5 s for vLLM on a CPU."""
_PAYS = 5
"""An order is given cells for so many times that, where there are as many."""
_HELPS = 2
"""A machine that would have to build the environment first helps another one with it
only if so many times the build are left."""
_SHARE = 2
"""An order is at most 1/_SHARE of a machine's fair part of what waits, so that all end
together."""


@dataclass(frozen=True)
class Costs:
    """What is expected to take how long, in seconds.

    Attributes:
        cell: all runs of a cell that are left, by its id.
        build: of an environment.
        setup: of each order, beside that.
    """

    cell: Mapping[str, float]
    build: Callable[[EnvironmentGroup], float]
    setup: float


@dataclass(frozen=True, eq=False)
class Slice:
    """Cells of one environment for one machine."""

    machine: str
    group: EnvironmentGroup
    """With these cells only."""
    number: int
    """Of its environment in the plan."""
    ahead: EnvironmentGroup | None = None
    """Whose environment this machine should fetch meanwhile."""


@dataclass
class _Open:
    """What is left of an environment's cells."""

    group: EnvironmentGroup
    number: int
    waiting: list[int]
    """Positions in the group's cells, in order."""
    seconds: list[float]
    """Of all its cells."""
    positions: dict[str, int]
    """By the cell's id."""
    out: int = 0
    """Slices that are being worked on."""
    promised: str | None = None
    """The machine that fetches it ahead."""
    lost_on: str | None = None
    """The machine that lost cells of it last: they are for the others."""
    left: float = 0.0
    """Seconds of what waits."""

    def count(self) -> None:
        self.left = sum(self.seconds[position] for position in self.waiting)


class Dispatcher:
    """Hands out cells, each once unless it is given back."""

    def __init__(
        self, groups: Sequence[EnvironmentGroup], costs: Costs, *, sliced: bool = True
    ) -> None:
        """``sliced``: an environment's cells may go to several machines; else they stay
        together, and the environments come in the order of the plan."""
        self._costs, self._sliced = costs, sliced
        self._open = []
        for number, group in enumerate(groups):
            positions = {planned.cell.id: at for at, planned in enumerate(group.cells)}
            seconds = [costs.cell[name] for name in positions]
            self._open.append(
                _Open(group, number, [*positions.values()], seconds, positions)
            )
            self._open[-1].count()

        self._current: dict[str, int] = {}

    @property
    def waiting(self) -> int:
        """Cells that nobody has been given."""
        return sum(len(one.waiting) for one in self._open)

    def next(
        self,
        machine: str,
        has: Callable[[EnvironmentGroup], bool],
        machines: Collection[str],
    ) -> Slice | None:
        """What ``machine``, which is free, is to do; None: nothing that others do not
        do sooner.

        It goes on with the environment it has worked with. Else it begins the largest
        one that nobody works with, rather one that it has. Else it helps with the one
        of which most is left, if what is left is worth the build of the environment.

        Args:
            has: whether the environment is on that machine.
            machines: all that there are.
        """
        for one in self._open:
            if one.promised is not None and one.promised not in machines:
                one.promised = None

        if (chosen := self._pick(machine, has, machines)) is None:
            return None
        cells = self._take(chosen, machine, has, machines)
        chosen.out += 1
        if chosen.promised == machine:
            chosen.promised = None
        self._current[machine] = chosen.number
        ahead = None if chosen.waiting else self._ahead(machine, has, machines)
        return Slice(machine, replace(chosen.group, cells=cells), chosen.number, ahead)

    def ended(self, slice: Slice) -> None:
        one = self._open[slice.number]
        one.out -= 1
        one.lost_on = None

    def lost(self, slice: Slice, cells: Iterable[Planned]) -> None:
        """The machine was lost: ``cells`` of the slice wait again, before the
        others."""
        one = self._open[slice.number]
        one.out -= 1
        one.lost_on = slice.machine
        for planned in cells:
            bisect.insort(one.waiting, one.positions[planned.cell.id])

        one.count()
        for other in self._open:
            if other.promised == slice.machine:
                other.promised = None

        self._current.pop(slice.machine, None)

    # ------------------------------------------------------------------ the choice

    def _pick(
        self,
        machine: str,
        has: Callable[[EnvironmentGroup], bool],
        machines: Collection[str],
    ) -> _Open | None:
        several = len(machines) > 1
        ranked = [
            (rank, one.number)
            for one in self._open
            if one.waiting
            and not (several and machine == one.lost_on)
            and (rank := self._rank(one, machine, has, several)) is not None
        ]
        return self._open[min(ranked)[1]] if ranked else None

    def _rank(
        self,
        one: _Open,
        machine: str,
        has: Callable[[EnvironmentGroup], bool],
        several: bool,
    ) -> tuple[int, float] | None:
        """The smallest comes first; None: it is left to others."""
        taken = self._taken(one, machine)
        if not self._sliced:
            return None if taken else (0, 0.0)
        if self._current.get(machine) == one.number or one.promised == machine:
            return (0 if one.promised is None else 1, 0.0)
        if not several:
            return (2, 0.0)
        if taken:
            if has(one.group):
                return (4, -one.left)
            return (
                (5, -one.left)
                if one.left > _HELPS * self._costs.build(one.group)
                else None
            )

        return (2 if has(one.group) else 3, -one.left)

    def _taken(self, one: _Open, machine: str) -> bool:
        """Whether somebody else works with it, or is about to."""
        return one.out > 0 or one.promised not in (None, machine)

    def _take(
        self,
        one: _Open,
        machine: str,
        has: Callable[[EnvironmentGroup], bool],
        machines: Collection[str],
    ) -> tuple[Planned, ...]:
        wanted, count = float("inf"), 0
        if self._sliced:
            total = sum(other.left for other in self._open if other.waiting)
            wanted = max(total / (_SHARE * len(machines)), _PAYS * self._costs.setup)
            if self._taken(one, machine) and self._current.get(machine) != one.number:
                # Both are to be done with the rest at the same time.
                build = 0.0 if has(one.group) else self._costs.build(one.group)
                wanted = min(wanted, (one.left - build - self._costs.setup) / 2)

        for position in one.waiting:
            if count and one.seconds[position] > wanted:
                break
            wanted -= one.seconds[position]
            count += 1

        taken = tuple(one.group.cells[position] for position in one.waiting[:count])
        del one.waiting[:count]
        one.count()
        return taken

    def _ahead(
        self,
        machine: str,
        has: Callable[[EnvironmentGroup], bool],
        machines: Collection[str],
    ) -> EnvironmentGroup | None:
        """The environment that this machine begins next, if that can be said."""
        following = self._pick(machine, has, machines)
        if following is not None and self._sliced:
            if following.out or has(following.group):
                return None
            following.promised = machine

        return None if following is None else following.group
