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
from mmrepro.engines.environments import EnvironmentSpec
from mmrepro.failure.documents import Attempt, Cell, Lost, Planned, Role
from mmrepro.history import History, Settled, settle_cell, surprise_of

ASSUMED_RUN_S = 60.0
ASSUMED_BUILD_S = 180.0
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
        """Name it for people: ``vllm 0.23.0 (cpu)``."""
        return f"{self.engine} {self.commit[:9] or self.release} ({self.device})"

    @property
    def spec(self) -> EnvironmentSpec | None:
        """The environment; None: there is no such release, as its runs will say."""
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
    """The cells by environment, in the order in which they come."""
    by_environment: dict[tuple[str, str, str, str], list[Planned]] = {}
    for planned in cells:
        by_environment.setdefault(environment_of(planned), []).append(planned)

    groups = []
    for (engine, release, commit, device), members in by_environment.items():
        group = EnvironmentGroup(
            engine=engine,
            release=release,
            device=device,
            commit=commit,
            cells=tuple(members),
        )
        groups.append(group)

    return groups


def environment_of(planned: Planned) -> tuple[str, str, str, str]:
    """Engine, release, commit and device: cells with one of these share it."""
    cell = planned.cell
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
        for name in self._names(cell).values():
            self._seconds.setdefault(name, []).append(seconds)

    def of(self, cell: Cell) -> tuple[float, str]:
        """Seconds of one run, and what that is based on."""
        for what, name in self._names(cell).items():
            seconds = self._seconds.get(name)
            if seconds:
                why = f"median of {len(seconds)} attempts of this {what}"
                return statistics.median(seconds), why

        return ASSUMED_RUN_S, ASSUMED_WHY

    @staticmethod
    def _names(cell: Cell) -> dict[str, str]:
        """What an attempt at it tells of, the nearest first."""
        return {
            "cell": f"cell {cell.id}",
            "row": f"row {cell.line}",
            "engine": f"engine {cell.engine}",
        }


REPEAT = 1
"""Where nothing else is said."""
CONFIRM = 3
"""Likewise."""
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
        if any(attempt.lost in _HOPELESS for attempt in attempts):
            return None

        last = attempts[-1]
        if last.lost is Lost.INFRASTRUCTURE and last.role != "retry":
            return Next(number, "retry")
        if _count(attempts, "planned") < self.repeat:
            return Next(number, "planned")
        if _count(attempts, "confirm") >= self.confirm:
            return None

        # What the planned runs came to, before any was confirmed.
        unconfirmed = takewhile(lambda attempt: attempt.role != "confirm", attempts)
        settled = settle_cell(list(unconfirmed))
        before = self.before.get(planned.cell.id)
        if surprise_of(settled, before, planned.expected):
            return Next(number, "confirm")
        return None

    def left(self, attempts: Sequence[Attempt], planned: Planned) -> int:
        """Runs of a cell that are still to be made, if nothing surprises from here
        on."""
        following = self.next(attempts, planned)
        if following is None:
            return 0
        if following.role == "confirm":
            return self.confirm - _count(attempts, "confirm")
        waiting = max(0, self.repeat - _count(attempts, "planned"))
        return waiting + (following.role == "retry")


def _count(attempts: Sequence[Attempt], role: Role) -> int:
    return sum(attempt.role == role for attempt in attempts)


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
        self._costs = costs
        self._sliced = sliced
        self._current: dict[str, int] = {}
        self._open = []
        for number, group in enumerate(groups):
            positions = {planned.cell.id: at for at, planned in enumerate(group.cells)}
            unfinished = _Open(
                group=group,
                number=number,
                waiting=[*positions.values()],
                seconds=[costs.cell[name] for name in positions],
                positions=positions,
            )
            unfinished.count()
            self._open.append(unfinished)

    @property
    def waiting(self) -> int:
        """Cells that nobody has been given."""
        return sum(len(unfinished.waiting) for unfinished in self._open)

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
        # A machine that is gone fetches nothing ahead.
        for unfinished in self._open:
            if unfinished.promised not in (None, *machines):
                unfinished.promised = None

        chosen = self._pick(machine, has, machines)
        if chosen is None:
            return None
        cells = self._take(chosen, machine, has, machines)
        chosen.out += 1
        if chosen.promised == machine:
            chosen.promised = None
        self._current[machine] = chosen.number
        ahead = None if chosen.waiting else self._ahead(machine, has, machines)
        return Slice(machine, replace(chosen.group, cells=cells), chosen.number, ahead)

    def ended(self, slice: Slice) -> None:
        unfinished = self._open[slice.number]
        unfinished.out -= 1
        unfinished.lost_on = None

    def lost(self, slice: Slice, cells: Iterable[Planned]) -> None:
        """The machine was lost: ``cells`` of the slice wait again, before the
        others."""
        unfinished = self._open[slice.number]
        unfinished.out -= 1
        unfinished.lost_on = slice.machine
        for planned in cells:
            position = unfinished.positions[planned.cell.id]
            bisect.insort(unfinished.waiting, position)

        unfinished.count()
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
        ranked = []
        for unfinished in self._open:
            # What it lost cells of is for the others, if there are any.
            lost_here = several and machine == unfinished.lost_on
            if not unfinished.waiting or lost_here:
                continue
            rank = self._rank(unfinished, machine, has, several)
            if rank is not None:
                ranked.append((rank, unfinished.number))

        return self._open[min(ranked)[1]] if ranked else None

    def _rank(
        self,
        unfinished: _Open,
        machine: str,
        has: Callable[[EnvironmentGroup], bool],
        several: bool,
    ) -> tuple[int, float] | None:
        """The smallest comes first; None: it is left to others."""
        taken = self._taken(unfinished, machine)
        if not self._sliced:
            return None if taken else (0, 0.0)
        current = self._current.get(machine) == unfinished.number
        if current or unfinished.promised == machine:
            return (0 if unfinished.promised is None else 1, 0.0)
        if not several:
            return (2, 0.0)

        # Of alike ones that of which most is left.
        left = unfinished.left
        there = has(unfinished.group)
        if not taken:
            return (2 if there else 3, -left)
        if there:
            return (4, -left)
        worth_it = left > _HELPS * self._costs.build(unfinished.group)
        return (5, -left) if worth_it else None

    def _taken(self, unfinished: _Open, machine: str) -> bool:
        """Whether somebody else works with it, or is about to."""
        return unfinished.out > 0 or unfinished.promised not in (None, machine)

    def _take(
        self,
        unfinished: _Open,
        machine: str,
        has: Callable[[EnvironmentGroup], bool],
        machines: Collection[str],
    ) -> tuple[Planned, ...]:
        """The first cells that wait, for as long as this machine should work."""
        wanted = float("inf")
        if self._sliced:
            wanted = self._wanted_s(unfinished, machine, has, machines)

        count = 0
        for position in unfinished.waiting:
            # One cell at least, however long it takes.
            if count and unfinished.seconds[position] > wanted:
                break
            wanted -= unfinished.seconds[position]
            count += 1

        positions = unfinished.waiting[:count]
        del unfinished.waiting[:count]
        unfinished.count()
        return tuple(unfinished.group.cells[position] for position in positions)

    def _wanted_s(
        self,
        unfinished: _Open,
        machine: str,
        has: Callable[[EnvironmentGroup], bool],
        machines: Collection[str],
    ) -> float:
        setup = self._costs.setup
        total = sum(other.left for other in self._open if other.waiting)
        fair = total / (_SHARE * len(machines))
        wanted = max(fair, _PAYS * setup)
        current = self._current.get(machine) == unfinished.number
        if self._taken(unfinished, machine) and not current:
            # Both are to be done with the rest at the same time.
            group = unfinished.group
            build = 0.0 if has(group) else self._costs.build(group)
            wanted = min(wanted, (unfinished.left - build - setup) / 2)
        return wanted

    def _ahead(
        self,
        machine: str,
        has: Callable[[EnvironmentGroup], bool],
        machines: Collection[str],
    ) -> EnvironmentGroup | None:
        """The environment that this machine begins next, if that can be said."""
        following = self._pick(machine, has, machines)
        if following is None:
            return None
        if self._sliced:
            if following.out or has(following.group):
                return None
            following.promised = machine
        return following.group
