"""A policy that is written as plain code: it asks for runs, and waits for them.

Each line of work is a greenlet: :meth:`Search.results` hands its wishes to the campaign
and goes on when they are met. Several lines go on beside each other where several
places are free. Whoever goes on with a search after a kill walks the same way again:
runs that the journal has are not made."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar, cast

import mmrepro
from greenlet import getcurrent, greenlet
from mmrepro.base.errors import PlaceLost
from mmrepro.base.machine import Device, host_facts, is_there
from mmrepro.base.records import Moment, Record
from mmrepro.base.text import Redactor
from mmrepro.campaign.campaign import STRIKES, Campaign, CampaignState
from mmrepro.campaign.events import run_ended
from mmrepro.campaign.schedule import EnvironmentGroup, Estimates
from mmrepro.campaign.trial import incident_in
from mmrepro.campaign.work import CellOrder, Order, Place, StartedRun, lost
from mmrepro.failure.documents import (
    LEDGER_FILE,
    Attempt,
    Cell,
    Incident,
    Night,
    NightState,
    Planned,
    new_folder,
    prepared_folder,
    refuse_taken,
)
from mmrepro.failure.documents.searches import SearchDocument, begun
from mmrepro.history import History, Ledger
from mmrepro.runs import SeveralRuns, gpu_models
from mmrepro.scenario import Scenario
from pydantic import ValidationError

T = TypeVar("T")
LineT = TypeVar("LineT", bound=Record)
DocumentT = TypeVar("DocumentT")


class Spent(Exception):
    """There is no time, or no budget, for one more run."""


@dataclass(eq=False)
class _Line:
    greenlet: greenlet
    wants: Sequence[StartedRun] = ()
    parts: list[_Line] = field(default_factory=list)
    """Lines that it waits for."""


class Search(Generic[DocumentT, LineT]):
    """What :class:`~mmrepro.campaign.campaign.Policy` asks for, but for the way of the
    search.

    A kind of search has, besides: ``kind``, ``folder``, ``resume_command``, ``end`` and

    - ``begin``, which takes in :attr:`done` what the journal holds, and calls this
      one's;
    - :meth:`order_of`, :meth:`keep`, and :attr:`works` or :meth:`more`.

    Attributes:
        works: lines of work that are still to be begun, in their order.
        done: what is known of runs, by what is run and which run it is.
    """

    campaign: Campaign[DocumentT]

    def __init__(self) -> None:
        self.done: dict[tuple[str, int], LineT] = {}
        self.works: list[Callable[[], object]] = []
        self._lines: list[_Line] = []
        self._given: dict[int, tuple[Order, StartedRun]] = {}
        self._strikes: Counter[tuple[str, int]] = Counter()
        self._spent = False

    # ---------------------------------------------------------------- what a search has

    def more(self) -> Callable[[], object] | None:
        """Another line of work for a place that is free; None: none now."""
        return self.works.pop(0) if self.works else None

    def order_of(self, want: StartedRun) -> Order:
        """What a place is told, to make that run."""
        raise NotImplementedError

    def keep(self, line: LineT) -> tuple[str, int]:
        """Write it down; whose it is."""
        raise NotImplementedError

    def affords(self, want: StartedRun) -> bool:
        """Whether there is time, and budget, for that run."""
        return True

    def lose(self, want: StartedRun, why: str, place: str) -> LineT | None:
        """What is written of a run that was lost with its place; None: it is made
        again."""
        return None

    # ------------------------------------------------------------ within a line of work

    def results(self, wants: Sequence[StartedRun]) -> list[LineT]:
        """What came of these runs, made now or by an earlier call; beside each other
        where places are free.

        Raises:
            Spent: there is no time for one of them.
        """
        if not self._all_done(wants):
            getcurrent().parent.switch(wants)
        if self._spent and not self._all_done(wants):
            raise Spent
        return [self.done[want.key] for want in wants]

    def _all_done(self, wants: Sequence[StartedRun]) -> bool:
        return all(want.key in self.done for want in wants)

    def result(self, want: StartedRun) -> LineT:
        return self.results([want])[0]

    def beside(self, works: Sequence[Callable[[], T]]) -> list[T]:
        """What these come to, each a line of work of its own.

        Raises:
            Spent: there was no time for all of one of them.
        """
        came: dict[int, T] = {}

        def line_of(number: int, work: Callable[[], T]) -> _Line:
            return _Line(greenlet(lambda: came.update({number: work()}), hub))

        current = getcurrent()
        mine = next(line for line in self._lines if line.greenlet is current)
        hub = mine.greenlet.parent
        mine.parts = [line_of(number, work) for number, work in enumerate(works)]
        hub.switch(())
        mine.parts = []
        if len(came) < len(works):
            raise Spent
        return [came[number] for number in range(len(works))]

    # ------------------------------------------------------------ asked by the campaign

    def begin(self, campaign: Campaign[DocumentT]) -> None:
        self.campaign = campaign

    def order(self, place: Place, names: Collection[str]) -> Order | None:
        while True:
            wish = self._open()
            if wish is None:
                if not self._begin_more():
                    return None
                continue
            line, want = wish
            if self.affords(want):
                order = self.order_of(want)
                self._given[id(order)] = order, want
                return order
            self._give_up(line)

    def waits(self) -> bool:
        if self._spent:
            return True
        if not all(self._all_done(line.wants) for line in self._lines):
            return True
        # Nobody has asked for more where no place is there yet.
        return self._begin_more()

    def began(self, order: Order, began: StartedRun) -> None:
        return

    def line(self, order: Order, result: Record) -> Record:
        return result

    def took(self, order: Order, line: Record) -> None:
        mine = cast(LineT, line)
        self.done[self.keep(mine)] = mine
        self._go_on()

    def over(self, order: Order) -> None:
        self._given.pop(id(order), None)

    def lost(
        self, order: Order, loss: PlaceLost, began: StartedRun | None, place: str
    ) -> str:
        _, want = self._given.pop(id(order))
        if want.key in self.done:
            return "What it had done is kept."
        self._strikes[want.key] += 1
        line = self.lose(want, loss.message, place) if began is not None else None
        if line is not None:
            self.took(order, line)
            return "Its run is lost."
        if self._strikes[want.key] >= STRIKES:
            raise loss
        return "Its run goes to others."

    # ------------------------------------------------------------------ lines of work

    def _open(self) -> tuple[_Line, StartedRun] | None:
        """The oldest line's first wish that is neither met nor given to a place."""
        taken = self.done.keys() | {want.key for _, want in self._given.values()}
        for line in self._lines:
            for want in line.wants:
                if want.key not in taken:
                    return line, want

        return None

    def _begin_more(self) -> bool:
        """Whether there is another line that has anything to ask for."""
        while True:
            work = self.more()
            if work is None:
                return False
            line = _Line(greenlet(work))
            self._lines.append(line)
            self._switch(line)
            self._go_on()
            # One whose runs are all known from before has ended by now.
            if line in self._lines:
                return True

    def _switch(self, line: _Line) -> None:
        """Let it go on to its next wish, or to its end; what it waits for begins."""
        wants: Sequence[StartedRun] = ()
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
        while True:
            met = [line for line in self._lines if self._met(line)]
            if not met:
                return
            # One at a time: what it does may meet, or end, another.
            self._switch(met[0])

    def _met(self, line: _Line) -> bool:
        ended = all(part.greenlet.dead for part in line.parts)
        return ended and self._all_done(line.wants)

    def break_off(self) -> None:
        """End all lines of work where they wait, so that what they hold open is
        closed."""
        for line in self._lines:
            if not line.greenlet.dead:
                line.greenlet.throw()

        self._lines.clear()

    def _give_up(self, line: _Line) -> None:
        """There is no time for what it asks for: it hears so."""
        self._spent = True
        self._switch(line)
        self._go_on()


_CellDocumentT = TypeVar("_CellDocumentT", bound=SearchDocument)
Write = Callable[[_CellDocumentT, Path], object]


class CellSearch(Search[_CellDocumentT, Attempt]):
    """What a search over cells does beside searching.

    A kind has, besides: :meth:`standing`, :meth:`more`, :meth:`blank` and
    :meth:`check`.

    Attributes:
        night: names the campaign in the ledger.
        root: new folders are below it.
        parents: as of :class:`CellOrder`.
        going_on: options of the command that goes on, beside the folder.
        cells: those that may be run, by id.
        start: the cell that is run first.
        dates: of commits, RFC 3339.
        ahead: whose environment is worth fetching beside the next run.
        document: valid, if partial, at every moment.
    """

    kind: str
    night: str
    root: ClassVar[str]
    file: ClassVar[str]
    model: type[_CellDocumentT]
    start: Cell
    parents: ClassVar[int] = 1
    going_on: ClassVar[Mapping[str, Any]] = {}

    def __init__(
        self,
        scenario: Scenario,
        options: SeveralRuns,
        device: Device,
        write: Write[_CellDocumentT],
        suffix: str,
    ) -> None:
        """
        Args:
            write: writes the documents below the folder, each time that they have
                grown.
            suffix: ends the name of a new folder.
        """
        super().__init__()
        self.scenario, self.device = scenario, device
        self._asked_for, self._write_documents = options, write
        self.cells: dict[str, Cell] = {}
        self.dates: Mapping[str, str] = {}
        self.ahead: EnvironmentGroup | None = None
        self._names: dict[str, str] = {}
        self.folder = self._folder(options.out, suffix)
        self.document = self.blank(
            **begun(
                self.kind,
                self.command(jobs=None, ray="", budget_s=None),
                self.resume_command,
            ),
            scenario=scenario.facts,
            engine=scenario.engine,
            device=device,
            host=host_facts(gpu_models(device)),
        )

    @property
    def resume_command(self) -> str:
        return self.command(out=self.folder, **self.going_on)

    def command(self, **changed: Any) -> str:
        """The command that repeats it. A cluster's address is left out: others read
        documents."""
        asked = self._asked_for
        here = {
            "scenario": asked.scenario or self.scenario.name,
            "ray": asked.ray and "auto",
        }
        return asked.command_line(**{**here, **changed})

    # ------------------------------------------------------------------ what a kind has

    def blank(self, **facts: Any) -> _CellDocumentT:
        """The document before anything is known; ``facts``: what every kind's has."""
        raise NotImplementedError

    def check(self, folder: Path, old: _CellDocumentT | None) -> None:
        """Look at a folder that holds something already; ``old``: its document, if it
        has one that can be read.

        Raises:
            UnwritableOutput: it is not to be gone on with.
        """
        raise NotImplementedError

    def night_of(self, history: History) -> str:
        """The campaign's name in the ledger, one that is gone on with or a new one."""
        return self.night

    def closing(self) -> None:
        """Do what is still to be done, however it ends; the document is written
        afterwards."""

    # ------------------------------------------------------------ within a line of work

    def attempt(self, want: StartedRun) -> Attempt:
        """Return that run, made now or by an earlier call, which is reported."""
        kept = want.key in self.done
        attempt = self.result(want)
        if kept:
            self.campaign.emit(run_ended(want.what, attempt, kept=True))
        return attempt

    def incident(self, attempt: Attempt) -> Incident | None:
        return incident_in(self.folder / attempt.incident) if attempt.incident else None

    def write(self) -> None:
        self._write_documents(Redactor().redact_model(self.document), self.folder)

    def group(self, cell: Cell) -> EnvironmentGroup:
        planned = Planned(night=self.night, cell=cell)
        date = self.dates.get(cell.commit, "")
        return EnvironmentGroup(
            cell.engine, cell.release, cell.device, cell.commit, (planned,), date
        )

    # ------------------------------------------------------------ asked by the campaign

    def begin(self, campaign: Campaign[_CellDocumentT]) -> None:
        super().begin(campaign)
        self._ledger = Ledger(self.folder)
        self.night = self.night_of(self._ledger.history)
        before = self._ledger.history.find(self.night)
        if before is not None:
            self.done = {(a.cell, a.index): a for a in before.attempts}
        self._night = Night(
            id=self.night,
            created=before.night.created if before else Moment.now(),
            command=self.resume_command,
            mmrepro_version=mmrepro.__version__,
            host=self.document.host,
        )
        self._ledger.append(self._night)
        self._estimates = Estimates(self._ledger.history)
        # All cells share its scenario and device: by these a cluster's machines are
        # chosen.
        campaign.places.expect([self.group(self.start)])

    def order_of(self, want: StartedRun) -> Order:
        group = self.group(self.cells[want.id])
        if want.id not in self._ledger.history.night(self.night).planned:
            self._ledger.append(group.cells[0])
        self._names[want.id] = want.what
        ahead, self.ahead = self.ahead, None
        return CellOrder(self.night, group, want, self.parents, ahead=ahead)

    def keep(self, line: Attempt) -> tuple[str, int]:
        self._ledger.append(line)
        if line.outcome is not None:
            self._estimates.note(self.cells[line.cell], line.seconds)
        self.campaign.emit(run_ended(self._names[line.cell], line))
        return line.cell, line.index

    def lose(self, want: StartedRun, why: str, place: str) -> Attempt:
        return lost(self.night, want, why, place)

    def affords(self, want: StartedRun) -> bool:
        return self.campaign.fits(self._estimates.of(self.cells[want.id])[0])

    def end(self, state: CampaignState, failure: str) -> _CellDocumentT:
        document = self.document
        try:
            self.closing()
            if state is CampaignState.OUT_OF_TIME:
                document.state = "interrupted"
                failure = f"its time is over; to resume, run: {self.resume_command}"
            else:
                document.state = state.value  # type: ignore[assignment]
            document.failure, document.finished = failure, Moment.now()
            self.write()
            # After a failure the night goes on as it is.
            if state is not CampaignState.FAILED:
                self._end_night(state)
        finally:
            self._ledger.close()
        return document

    def _end_night(self, state: CampaignState) -> None:
        marked = NightState.INTERRUPTED
        if state is CampaignState.COMPLETE:
            marked = NightState.COMPLETE
        update = {"state": marked, "finished": Moment.now()}
        self._ledger.append(self._night.model_copy(update=update))

    # ------------------------------------------------------------------ the folder

    def _folder(self, out: Path | None, suffix: str) -> Path:
        """A new one, or the one of the same search that is to be gone on with."""
        if out is None:
            return prepared_folder(
                new_folder(self.root, self.scenario.full_name, suffix)
            )
        file = out / self.file
        if is_there(file) or is_there(out / LEDGER_FILE):
            try:
                old = self.model.model_validate_json(file.read_bytes())
            except (OSError, ValidationError):
                old = None
            self.check(out, old)
        else:
            refuse_taken(out)

        return prepared_folder(out)
