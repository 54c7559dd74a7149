"""Nights without an engine: made-up cells, and fakes of what runs them."""

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmrepro.base.errors import PlaceLost
from mmrepro.base.records import HostFacts, Moment
from mmrepro.campaign.campaign import Campaign
from mmrepro.campaign.events import Handler
from mmrepro.campaign.matrix.session import Nightly, Slicing
from mmrepro.campaign.schedule import EnvironmentGroup
from mmrepro.campaign.work import CellsUntilWhole, Order, Places, Working, Workplace
from mmrepro.failure.documents.ledger import Attempt, Cell, Lost, Night, Planned, Role
from mmrepro.failure.signature import Outcome
from mmrepro.history.ledger import AnyRecord, Ledger, NightRuns

Came = Outcome | Lost
World = Callable[[Cell, int], Came]
HOST = HostFacts(
    os="made up", kernel="1", cpu="one", cores=2, memory_bytes=1, python="3.11"
)


def execute(
    ledger: Ledger,
    runs: NightRuns,
    places: Places,
    slicing: Slicing | None = None,
    handlers: Sequence[Handler] = (),
    **how: Any,
) -> Night:
    """The campaign over what is left of it."""
    policy = Nightly(ledger, runs, slicing)
    return Campaign(policy, places, handlers, **{"wait_s": 0.1, **how}).execute()


class Killed(BaseException):
    """The process is gone: nothing that comes after is done."""


def night(name: str = "n1", *, repeat: int = 1, confirm: int = 3) -> Night:
    return Night(
        id=name,
        created=Moment.now(),
        command="mmrepro matrix run --scenario a",
        mmrepro_version="0",
        host=HOST,
        repeat=repeat,
        confirm=confirm,
    )


def planned(
    scenario: str,
    release: str,
    expected: Outcome | None = Outcome.REPRODUCED,
    name: str = "n1",
) -> Planned:
    cell = Cell(scenario=scenario, engine="minivllm", release=release, device="cpu")
    return Planned(night=name, cell=cell, expected=expected)


def attempt(
    one: Planned, index: int, came: Came, role: Role = "planned", seconds: float = 10.0
) -> Attempt:
    lost = came if isinstance(came, Lost) else None
    return Attempt(
        night=one.night,
        cell=one.cell.id,
        index=index,
        role=role,
        created=Moment.now(),
        seconds=seconds,
        outcome=None if isinstance(came, Lost) else came,
        lost=lost,
        expected=one.expected,
        key="" if lost else f"key of {one.cell.id}",
        error="it broke" if lost else "",
    )


@dataclass
class FakeTrials:
    """Runs cells as ``world`` says; a folder is there before anything is known of the
    run."""

    world: World
    during: Callable[[Cell, int], None] = lambda cell, index: None
    made: list[tuple[str, int, str]] = field(default_factory=list)
    stopped: bool = False

    def run(
        self,
        cell: Cell,
        folder: Path,
        root: Path,
        *,
        night: str,
        index: int,
        role: Role,
    ) -> Attempt:
        folder.mkdir(parents=True)  # raises if one is left there
        if self.stopped:
            raise KeyboardInterrupt
        self.during(cell, index)
        if self.stopped:
            raise KeyboardInterrupt
        self.made.append((cell.id, index, role))
        expected = Outcome.NOT_REPRODUCED if cell.mitigations else Outcome.REPRODUCED
        one = Planned(night=night, cell=cell, expected=expected)
        (folder / "whole").touch()
        done = attempt(one, index, self.world(cell, index), role)
        return done.model_copy(update={"incident": str(folder.relative_to(root))})

    def stop(self) -> None:
        self.stopped = True


@dataclass
class FakeProvisions:
    """Has every environment, or says why not."""

    refused: str = ""
    told: list[str] = field(default_factory=list)

    def expect(self, groups: Sequence[EnvironmentGroup]) -> None:
        self.told.append(f"expect {len(groups)}")

    def prepare(self, group: EnvironmentGroup) -> str:
        self.told.append(f"prepare {group.release}")
        return self.refused

    def prefetch(self, group: EnvironmentGroup) -> None:
        self.told.append(f"prefetch {group.release}")

    @contextlib.contextmanager
    def warm(self, runs: Sequence[tuple[Cell, int]]) -> Iterator[None]:
        self.told.append(f"warm {sum(number for _, number in runs)}")
        try:
            yield
        finally:
            self.told.append("cold")

    def seconds(self, group: EnvironmentGroup) -> float:
        return 0.0

    def done(self, group: EnvironmentGroup) -> None:
        self.told.append(f"done {group.release}")

    def stop(self) -> None:
        self.told.append("stop")

    def join(self) -> None:
        pass


class FakePlace:
    """A machine that is none: a thread of this one, lost at the steps that it is told.

    A step is what it tells of: a run that begins (0, 2, …) or that has ended (1, 3, …).
    """

    def __init__(
        self,
        name: str,
        world: World,
        losses: Collection[int] = (),
        *,
        stays: bool = False,
    ) -> None:
        """``stays``: it is there again at once."""
        self.name, self.losses, self.stays = name, losses, stays
        self.trials = FakeTrials(world)
        self.orders: list[CellsUntilWhole] = []
        self.known: set[str] = set()
        self.gone = False
        self._step = 0

    def has(self, group: EnvironmentGroup) -> bool:
        return group.name in self.known

    def work(self, order: Order, root: Path) -> Working:
        assert isinstance(order, CellsUntilWhole)
        self.orders.append(order)
        self.known.add(order.group.name)
        working = order.carry_out(Workplace(self.trials, FakeProvisions()), root)
        while True:
            # A loss while a run is under way: the run is made, and nobody hears of it.
            told = next(working, None)
            step, self._step = self._step, self._step + 1
            if step in self.losses:
                self.gone = not self.stays
                raise PlaceLost(f"{self.name} is gone.")
            if told is None:
                return
            if isinstance(told, Attempt):
                told = told.model_copy(update={"machine": self.name})
            yield told


@dataclass
class FakePlaces:
    """Machines that are none. ``late``: joins when it was asked for so often who is
    there."""

    places: list[FakePlace]
    late: int = 0
    stopped: bool = False

    def there(self) -> list[FakePlace]:
        self.late -= 1
        return (
            [] if self.late > 0 else [place for place in self.places if not place.gone]
        )

    def expect(self, groups: Sequence[EnvironmentGroup]) -> None:
        pass

    def stop(self) -> None:
        self.stopped = True
        for place in self.places:
            place.trials.stop()

    def join(self) -> None:
        pass


class DyingLedger(Ledger):
    """Dies at the ``at``-th record that is to be written: before it, after it, or in
    its middle."""

    at: int = 10**9
    how: str = "before"
    dead: bool = False

    def append(self, record: AnyRecord) -> None:
        if self.dead:
            raise Killed
        self.at -= 1
        if self.at < 0:
            self.dead = True
            if self.how == "after":
                super().append(record)
            elif self.how == "torn":
                with self.path.open("ab") as file:
                    file.write(self._line(record)[0][:40])
            raise Killed
        super().append(record)
