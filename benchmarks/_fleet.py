"""A nightly run on machines that do not exist: its own dispatcher, and a clock that is
a sum.

Each order takes what its environment, its set-up and its runs are expected to take.
Nothing fails, nothing is unexpected, and no run slows another one."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from mmrepro.campaign.schedule import (
    SETUP_S,
    Costs,
    Dispatcher,
    EnvironmentGroup,
    Slice,
)
from mmrepro.failure.documents.ledger import Planned


@dataclass(frozen=True)
class Times:
    """What things take.

    Attributes:
        run: seconds of one run, by the cell's id.
        build: seconds that a group's environment takes.
        packages: unpacked bytes of what is in it, by name; a machine has each once.
        room: bytes that --disk asks for before it is built.
        repeat: runs of each cell.
        setup: seconds of each order of an environment that has several runs in the
            plan: their engine is imported before them. (One that has a single run
            imports it by itself.)
    """

    run: Mapping[str, float]
    build: Callable[[EnvironmentGroup], float]
    packages: Callable[[EnvironmentGroup], Mapping[str, int]] = lambda group: {}
    room: Callable[[EnvironmentGroup], int] = lambda group: 0
    repeat: int = 1
    setup: float = SETUP_S


@dataclass(frozen=True)
class Fleet:
    """The machines, all alike.

    Attributes:
        jobs: orders at a time on each.
        fetched: all environments are there from the start.
        disk: bytes that the nightly run may add on each.
        max_time_s: no run is started that does not end within it.
    """

    machines: int
    jobs: int = 1
    fetched: bool = False
    disk: int | None = None
    max_time_s: float | None = None


@dataclass(frozen=True)
class Simulated:
    """A nightly run as it would go.

    Attributes:
        jobs: orders at a time on each machine.
        makespan_s: from the start to the end of the last run.
        efficiency: what one machine takes alone, divided by what all of them have time
            for.
        longest_s: the longest order, its environment included.
        idle_s: of all machines together.
        builds: environments that were fetched and built.
        fetched_bytes: unpacked.
        disk_bytes: added on the fullest machine.
        dropped: environments, for --disk.
        again_bytes: of what had been dropped there before.
        left: cells without time, or without room on the disk.
    """

    machines: int
    jobs: int
    makespan_s: float
    efficiency: float
    runs: int
    orders: int
    longest_s: float
    idle_s: float
    builds: int
    fetched_bytes: int
    disk_bytes: int
    dropped: int
    again_bytes: int
    left: int


def simulate(
    groups: Sequence[EnvironmentGroup], times: Times, fleets: Sequence[Fleet]
) -> list[Simulated]:
    """Each of the fleets; the efficiency is that against one such machine."""
    known: dict[Fleet, Simulated] = {}
    for fleet in (
        one for wanted in fleets for one in (wanted, replace(wanted, machines=1))
    ):
        if fleet not in known:
            known[fleet] = _Run(groups, times, fleet).result()
    results = []
    for fleet in fleets:
        alone, these = known[replace(fleet, machines=1)].makespan_s, known[fleet]
        efficiency = (
            alone / (fleet.machines * these.makespan_s) if these.makespan_s else 1.0
        )
        results.append(replace(these, efficiency=round(efficiency, 3)))
    return results


class _Machine:
    """One of the fleet: its environments, its disk, and who builds."""

    def __init__(self, name: str, times: Times, fleet: Fleet) -> None:
        self.name = name
        self._times, self._fleet = times, fleet
        self._ready: dict[str, float] = {}
        self._packages: dict[str, Mapping[str, int]] = {}
        """Of each environment that was built, the oldest first."""
        self._have: Counter[str] = Counter()
        self.busy: Counter[str] = Counter()
        """Orders, by environment: none of those is dropped."""
        self._had: set[str] = set()
        """Packages, also of what was dropped."""
        self._builds_until = 0.0
        self._bytes = 0
        self.builds = self.drops = self.fetched_bytes = self.again_bytes = (
            self.peak_bytes
        ) = 0

    def has(self, group: EnvironmentGroup) -> bool:
        return self._fleet.fetched or group.name in self._ready

    def ahead(self, group: EnvironmentGroup, now: float) -> None:
        """Fetch it beside the runs, one at a time."""
        if self._builds_until <= now:
            self.build(group, now)

    def build(self, group: EnvironmentGroup, now: float) -> float | None:
        """When the environment is there; None: it has no room."""
        name = group.name
        if self._fleet.fetched:
            return now
        if name not in self._ready:
            if not self._make_room(self._times.room(group)):
                return None
            self._builds_until = max(now, self._builds_until) + self._times.build(group)
            self._ready[name] = self._builds_until
            self._add(name, self._times.packages(group))
        return max(now, self._ready[name])

    def _add(self, name: str, packages: Mapping[str, int]) -> None:
        missing = {
            package: size
            for package, size in packages.items()
            if not self._have[package]
        }
        new = sum(missing.values())
        self.again_bytes += sum(
            size for package, size in missing.items() if package in self._had
        )
        self._have.update(packages.keys())
        self._had.update(packages)
        self._packages[name] = packages
        self._bytes += new
        self.fetched_bytes += new
        self.peak_bytes = max(self.peak_bytes, self._bytes)
        self.builds += 1

    def _make_room(self, needed: int) -> bool:
        limit = self._fleet.disk
        if limit is None:
            return True
        for name in list(self._packages):
            if self._bytes + needed <= limit:
                break
            if not self.busy[name]:
                self._drop(name)
        return self._bytes + needed <= limit

    def _drop(self, name: str) -> None:
        packages = self._packages.pop(name)
        self._have.subtract(packages.keys())
        self._bytes -= sum(
            size for package, size in packages.items() if not self._have[package]
        )
        del self._ready[name]
        self.drops += 1


class _Run:
    def __init__(
        self, groups: Sequence[EnvironmentGroup], times: Times, fleet: Fleet
    ) -> None:
        self._times, self._fleet = times, fleet
        names = [planned.cell.id for group in groups for planned in group.cells]
        seconds = {name: times.run[name] * times.repeat for name in names}
        costs = Costs(seconds, times.build, times.setup)
        self._several = [len(group.cells) * times.repeat > 1 for group in groups]
        self._dispatcher = Dispatcher(groups, costs, sliced=fleet.machines > 1)
        labels = [f"machine-{number}" for number in range(1, fleet.machines + 1)]
        self._machines = {label: _Machine(label, times, fleet) for label in labels}
        self._busy_s = self._longest_s = 0.0
        self._runs = self._orders = self._left = 0

    def result(self) -> Simulated:
        now = 0.0
        idle = [
            (job, m)
            for m in range(self._fleet.machines)
            for job in range(self._fleet.jobs)
        ]
        ends: list[tuple[float, int, tuple[int, int], Slice]] = []
        machines = list(self._machines.values())
        while True:
            waiting = []
            for place in sorted(idle):
                machine = machines[place[1]]
                slice = self._dispatcher.next(machine.name, machine.has, self._machines)
                if slice is None:
                    waiting.append(place)
                    continue
                machine.busy[slice.group.name] += 1
                end = self._work(machine, slice, now)
                self._orders += 1
                heapq.heappush(ends, (end, self._orders, place, slice))
            if not ends:
                break
            now, _, place, slice = heapq.heappop(ends)
            machines[place[1]].busy[slice.group.name] -= 1
            self._dispatcher.ended(slice)
            idle = [*waiting, place]
        return self._summary(now)

    def _work(self, machine: _Machine, slice: Slice, began: float) -> float:
        """When the order ends."""
        group, limit = slice.group, self._fleet.max_time_s or float("inf")
        shortest = min(self._times.run[planned.cell.id] for planned in group.cells)
        build = 0.0 if machine.has(group) else self._times.build(group)
        now = machine.build(group, began) if began + build + shortest <= limit else None
        if now is None:
            self._left += len(group.cells)
            return began
        if slice.ahead is not None:
            machine.ahead(slice.ahead, now)
        if self._several[slice.number]:
            now += self._times.setup
        for planned in group.cells:
            seconds = self._times.run[planned.cell.id]
            for _ in range(self._times.repeat):
                if now + seconds > limit:
                    self._left += 1
                    break
                now += seconds
                self._runs += 1
        self._busy_s += now - began
        self._longest_s = max(self._longest_s, now - began)
        return now

    def _summary(self, makespan_s: float) -> Simulated:
        fleet, machines = self._fleet, self._machines.values()
        return Simulated(
            machines=fleet.machines,
            jobs=fleet.jobs,
            makespan_s=makespan_s,
            efficiency=1.0,
            runs=self._runs,
            orders=self._orders,
            longest_s=self._longest_s,
            idle_s=fleet.machines * fleet.jobs * makespan_s - self._busy_s,
            builds=sum(machine.builds for machine in machines),
            fetched_bytes=sum(machine.fetched_bytes for machine in machines),
            disk_bytes=max(machine.peak_bytes for machine in machines),
            dropped=sum(machine.drops for machine in machines),
            again_bytes=sum(machine.again_bytes for machine in machines),
            left=self._left,
        )


def copies(cells: Sequence[Planned], number: int) -> list[tuple[Planned, str]]:
    """So many cells, and of each the id of the one that it is or is a copy of.

    A copy is in the same environment; it differs by an option that no scenario knows.
    """
    made = []
    for position in range(number):
        original = cells[position % len(cells)]
        again = position // len(cells)
        if not again:
            made.append((original, original.cell.id))
            continue
        options = (*original.cell.options, f"copy={again}")
        cell = original.cell.model_copy(update={"options": options})
        made.append((original.model_copy(update={"cell": cell}), original.cell.id))
    return made
