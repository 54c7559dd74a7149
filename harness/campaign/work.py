"""What a place is told to do, and the doing of it, run by run; this machine's places.

The same here and on another machine: an order goes there, what began and what came of
it comes back. Nothing in here knows the journal."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias, TypeVar

from mmrepro.base.errors import InfrastructureError
from mmrepro.base.records import Moment, Record
from mmrepro.campaign.schedule import EnvironmentGroup, Estimates, Next, Schedule
from mmrepro.campaign.trial import Children, Trials
from mmrepro.engines import spec_for
from mmrepro.engines.environments import EnvironmentSpec
from mmrepro.failure.documents import Attempt, Cell, Lost, Planned, Role
from mmrepro.history import History, Settled
from mmrepro.runs.play import Players, Servers
from mmrepro.traffic.case import Case, ServerWanted, write_case

if TYPE_CHECKING:
    from mmrepro.campaign.provisions import Provisions

INCIDENTS = "incidents"
T = TypeVar("T")


class StartedRun(NamedTuple):
    """A run was started.

    Attributes:
        id: what is run: a cell's id, a case's digest.
        index: which of its runs, from 1.
        what: the same for people.
    """

    id: str
    index: int  # type: ignore[assignment]  # tuple has a method of that name
    role: Role = "planned"
    what: str = ""

    @property
    def key(self) -> tuple[str, int]:
        return self.id, self.index


Working: TypeAlias = Generator[StartedRun | Record, None, None]
"""Each run as it begins, and what came of it. Closed, it leaves nothing behind."""


@dataclass
class Workplace:
    """What a place works with, on its machine.

    Attributes:
        machine: its label in the ledger.
        children: other programs that orders start here, and
        players: what replays cases here. Places on one machine share them.
    """

    trials: Trials
    provisions: Provisions
    machine: str = ""
    children: Children = field(default_factory=Children)
    clock: Callable[[], float] = time.time
    players: Players = field(default_factory=Players)
    _inside: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _environment: str = ""
    _cells: Collection[Cell] = ()
    _why: str = ""

    def enter(self, group: EnvironmentGroup, runs: int) -> str:
        """Have the environment, and its engine imported for ``runs`` runs of each cell,
        until another environment is entered or :meth:`leave`: cells of one environment
        share a warm parent where their variables allow it. Why its cells cannot be run;
        "" else."""
        if group.name != self._environment:
            self.leave()
            self._environment = group.name
            self.provisions.expect([group])
            self._inside.callback(self.provisions.done, group)
            self._why = self.provisions.prepare(group)

        cells = [planned.cell for planned in group.cells]
        if cells != self._cells and not self._why:
            self._cells = cells
            self._inside.enter_context(
                self.provisions.warm([(cell, runs) for cell in cells])
            )

        return self._why

    def leave(self) -> None:
        """The last environment is done with: its fork servers end."""
        self._inside.close()
        self._environment = ""
        self._cells = ()

    def stopped(self) -> bool:
        """Whether to start nothing any more."""
        return self.children.stopped

    def stop(self) -> None:
        """End all that is in progress, from any thread; nothing is started any more."""
        with contextlib.ExitStack() as all_of_it:
            all_of_it.callback(self.trials.stop)
            all_of_it.callback(self.provisions.stop)
            all_of_it.callback(self.children.stop)
            all_of_it.callback(self.players.stop)


class Order(Protocol):
    """What a place is to do next. Can be pickled."""

    @property
    def name(self) -> str:
        """What is worked on, for people: its environment."""

    @property
    def device(self) -> str: ...

    @property
    def environment(self) -> EnvironmentSpec | None: ...

    @property
    def campaign(self) -> str:
        """Names the campaign, on each machine."""

    def expect(self, here: Workplace) -> None:
        """Say what is to be run, on a machine that was told of nothing before."""

    def folder(self, began: StartedRun) -> Path:
        """Where that run's files are, below the campaign's folder."""

    def files(self, result: Record) -> str:
        """The same of a result; "": it left none."""

    def carry_out(self, here: Workplace, root: Path) -> Working:
        """Do it; the files of a run are below ``root`` when what came of it is
        yielded."""

    def not_carried(self, result: Record, why: str) -> Record:
        """What stands for the result of a run whose files cannot be brought here."""


class WithoutEnvironment:
    """An order that finds what it needs by itself."""

    @property
    def environment(self) -> EnvironmentSpec | None:
        return None

    def expect(self, here: Workplace) -> None:
        return


@dataclass(frozen=True)
class OnServers:
    """An order that starts servers of its own, whose environments are built when they
    are wanted.

    Attributes:
        id: names what is done within the campaign.
        what: the same for people.
        servers: how those of the campaign are started.
        place: folder for its files, below the campaign's.
        images: of its case, on another machine.
    """

    id: str
    what: str
    servers: Servers
    place: str = ""
    images: dict[str, bytes] | None = field(default=None, kw_only=True)

    @property
    def wanted(self) -> ServerWanted:
        return self.servers.wanted

    @property
    def began(self) -> StartedRun:
        return StartedRun(self.id, 1, what=self.what)

    @property
    def name(self) -> str:
        return f"{self.wanted.engine} {self.wanted.release}"

    @property
    def device(self) -> str:
        return self.environment.device

    @property
    def environment(self) -> EnvironmentSpec:
        return spec_for(self.wanted.engine, self.wanted.release, self.servers.device)

    @property
    def campaign(self) -> str:
        return self.wanted.engine

    def expect(self, here: Workplace) -> None:
        return

    def folder(self, began: StartedRun) -> Path:
        return Path(self.place)

    def contents_at(self, root: Path, case: Case, contents: Path | None) -> Path | None:
        """Where the case's images are: those that were taken along are written below
        ``root``."""
        if self.images is None:
            return contents
        return write_case(case, root / "case", self.images).parent

    @staticmethod
    def attempted(folder: Path, work: Callable[[], T]) -> tuple[T, str]:
        """What ``work`` comes to, for which ``folder`` is emptied; and why the first
        attempt, if there was another, told nothing of the engine. Raises as the second
        one does."""
        # Of a run that was killed in the middle.
        shutil.rmtree(folder, ignore_errors=True)
        try:
            return work(), ""
        except InfrastructureError as error:
            shutil.rmtree(folder, ignore_errors=True)
            return work(), error.message


@dataclass(frozen=True)
class _OfCells:
    """An order of cells of one environment.

    Attributes:
        night: the campaign's name in the ledger.
        group: the environment, with these cells of it only.
        ahead: whose environment is worth fetching meanwhile.
    """

    night: str
    group: EnvironmentGroup
    ahead: EnvironmentGroup | None = field(default=None, kw_only=True)

    @property
    def name(self) -> str:
        return self.group.name

    @property
    def device(self) -> str:
        return self.group.device

    @property
    def environment(self) -> EnvironmentSpec | None:
        return self.group.spec

    @property
    def campaign(self) -> str:
        return self.night

    def expect(self, here: Workplace) -> None:
        groups = [self.group]
        if self.ahead is not None:
            groups.append(self.ahead)
        here.provisions.expect(groups)

    def folder(self, began: StartedRun) -> Path:
        return Path(INCIDENTS, self.night, began.id, f"run-{began.index}")

    def files(self, result: Record) -> str:
        assert isinstance(result, Attempt)
        return result.incident

    def not_carried(self, result: Record, why: str) -> Record:
        kept = {
            "night",
            "cell",
            "index",
            "role",
            "created",
            "seconds",
            "machine",
            "command",
        }
        made = result.model_dump(include=kept)
        return Attempt(**made, lost=Lost.INFRASTRUCTURE, error=why)

    def run(
        self, cell: Cell, began: StartedRun, here: Workplace, root: Path
    ) -> Attempt:
        folder = root / self.folder(began)
        # Of a run that was killed before the ledger heard of it.
        shutil.rmtree(folder, ignore_errors=True)
        return here.trials.run(
            cell, folder, root, night=self.night, index=began.index, role=began.role
        )


@dataclass(frozen=True)
class CellOrder(_OfCells):
    """One run of the group's only cell.

    Attributes:
        began: which run it is.
        parents: the engine stays imported for so many more runs of it; 1: it does not.
    """

    began: StartedRun
    parents: int = 1

    def carry_out(self, here: Workplace, root: Path) -> Working:
        why = here.enter(self.group, self.parents)
        if self.ahead is not None:
            here.provisions.prefetch(self.ahead)
        yield self.began
        if why:
            yield lost(self.night, self.began, why, here.machine)
        else:
            yield self.run(self.group.cells[0].cell, self.began, here, root)


@dataclass(frozen=True)
class CellsUntilWhole(_OfCells):
    """All runs of the group's cells: what comes next follows from what came before.

    Attributes:
        attempts: of this night so far, by the cell's id.
        before: what the cell settled on in the last night that learnt something of it.
        seconds: of one run, by the cell's id; without those of which nothing was
            measured yet.
        until: Unix time; no run is started that is not expected to end by then. None:
            no limit.
    """

    attempts: Mapping[str, tuple[Attempt, ...]]
    before: Mapping[str, Settled | None]
    seconds: Mapping[str, float]
    repeat: int
    confirm: int
    until: float | None = None

    def carry_out(self, here: Workplace, root: Path) -> Working:
        """Have the environment, then run each cell until it is whole or there is no
        time.

        The provisions expect the group; here they learn that it is done.

        Raises:
            KeyboardInterrupt: trials or provisions were stopped.
        """
        provisions = here.provisions
        work = _CellsWork(self, here, root)
        fetched_s = provisions.seconds(self.group)
        cells = self.group.cells
        if any(work.fits(planned.cell, fetched_s) for planned in cells):
            why = provisions.prepare(self.group)
            with contextlib.ExitStack() as warm:
                if not why:
                    if self.ahead is not None and work.fits(self.ahead.cells[0].cell):
                        provisions.prefetch(self.ahead)
                    runs = [(planned.cell, work.left(planned)) for planned in cells]
                    warm.enter_context(provisions.warm(runs))

                for planned in cells:
                    yield from work.whole(planned, why)

        provisions.done(self.group)


class _CellsWork:
    """The runs of one order, on one machine."""

    def __init__(self, order: CellsUntilWhole, here: Workplace, root: Path) -> None:
        self._order = order
        self._here = here
        self._root = root
        self._schedule = Schedule(order.repeat, order.confirm, order.before)
        self._measured = Estimates(History())
        self._attempts: dict[str, list[Attempt]] = {}
        for planned in order.group.cells:
            name = planned.cell.id
            self._attempts[name] = list(order.attempts.get(name, ()))

    def left(self, planned: Planned) -> int:
        """Runs of a cell that are still to be made, if nothing surprises."""
        return self._schedule.left(self._attempts[planned.cell.id], planned)

    def fits(self, cell: Cell, first_s: float = 0.0) -> bool:
        """Whether a run of it is expected to end in time, which begins after
        ``first_s``."""
        until = self._order.until
        if until is None:
            return True
        seconds = self._order.seconds.get(cell.id)
        if seconds is None:
            seconds, _ = self._measured.of(cell)
        return self._here.clock() + first_s + seconds <= until

    def whole(self, planned: Planned, why: str) -> Working:
        """Run a cell until it is whole. ``why``: it cannot be run, so that all of its
        runs are lost; "": it can."""
        attempts = self._attempts[planned.cell.id]
        while not self._here.stopped():
            coming = self._schedule.next(attempts, planned)
            if coming is None or (not why and not self.fits(planned.cell)):
                return
            began = began_of(planned, coming)
            yield began
            if why:
                attempt = lost(self._order.night, began, why, self._here.machine)
            else:
                attempt = self._order.run(planned.cell, began, self._here, self._root)

            # Before anybody hears of it: what comes next follows from it.
            attempts.append(attempt)
            if attempt.outcome is not None:
                self._measured.note(planned.cell, attempt.seconds)
            yield attempt


class Place(Protocol):
    """Where orders are worked on, one at a time."""

    @property
    def name(self) -> str:
        """The machine's label in the ledger; several places may be on one machine."""

    def has(self, group: EnvironmentGroup) -> bool:
        """Whether the group's environment is known to be there, by an order of before
        too."""

    def work(self, order: Order, root: Path) -> Working:
        """Do it, as :meth:`Order.carry_out`.

        Raises:
            PlaceLost: the machine, or what worked there, is gone.
            KeyboardInterrupt: it was stopped.
        """


class Places(Protocol):
    """All that there are."""

    def there(self) -> Collection[Place]:
        """Those that there are now, the same objects each time, also while they work.

        Asked several times a second; they may come and go.
        """

    def expect(self, groups: Sequence[EnvironmentGroup]) -> None:
        """These are to be run: said once, before the first order."""

    def stop(self) -> None:
        """End all that is in progress; nothing is begun any more."""

    def join(self) -> None:
        """Wait for what is still done beside the runs."""


def began_of(planned: Planned, coming: Next) -> StartedRun:
    """The run that comes next, and what it is of for people."""
    cell = planned.cell
    return StartedRun(
        id=cell.id,
        index=coming.number,
        role=coming.role,
        what=f"{cell.row} on {cell.release or cell.commit[:12]}",
    )


def lost(night: str, began: StartedRun, why: str, machine: str = "") -> Attempt:
    """A run that was not to be, or that nobody will hear of any more."""
    return Attempt(
        night=night,
        cell=began.id,
        index=began.index,
        role=began.role,
        created=Moment.now(),
        seconds=0.0,
        lost=Lost.INFRASTRUCTURE,
        error=why,
        machine=machine,
    )


class LocalPlaces:
    """``jobs`` places on this machine, which share its environments and fork
    servers."""

    def __init__(
        self,
        trials: Trials,
        provisions: Provisions,
        jobs: int = 1,
        machine: str = "",
        clock: Callable[[], float] = time.time,
        players: Players | None = None,
    ) -> None:
        """``machine``: its label in the ledger; ``players``: others than the usual
        ones."""
        children = Children()
        shared = players or Players()
        self._places = []
        for _ in range(jobs):
            here = Workplace(
                trials=trials,
                provisions=provisions,
                machine=machine,
                children=children,
                clock=clock,
                players=shared,
            )
            self._places.append(LocalPlace(here))

        self._here = self._places[0].here

    def there(self) -> Sequence[LocalPlace]:
        return self._places

    def expect(self, groups: Sequence[EnvironmentGroup]) -> None:
        self._here.provisions.expect(groups)

    def stop(self) -> None:
        self._here.stop()

    def join(self) -> None:
        for place in self._places:
            place.here.leave()

        self._here.players.end()
        self._here.provisions.join()


class LocalPlace:
    """A place on this machine, which has no label of its own."""

    name = ""

    def __init__(self, here: Workplace) -> None:
        self.here = here

    def has(self, group: EnvironmentGroup) -> bool:
        """Always False: on one machine the environments come in the order of the
        plan."""
        return False

    def work(self, order: Order, root: Path) -> Working:
        return order.carry_out(self.here, root)
