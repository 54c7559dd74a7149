"""A search over the cells of one scenario: its folder, its ledger, and a document that grows."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import mmrepro
from mmrepro.campaign.campaign import Campaign, State
from mmrepro.campaign.events import run_ended
from mmrepro.campaign.groups import Estimates, Group
from mmrepro.campaign.search import Search
from mmrepro.campaign.trial import incident_in
from mmrepro.campaign.work import Began, CellRun, Order, lost
from mmrepro.history.ledger import History, Ledger
from mmrepro.incident import Incident
from mmrepro.incident.folder import new_folder, prepared
from mmrepro.incident.ledger import LEDGER_FILE, Attempt, Cell, Night, NightState, Planned
from mmrepro.incident.searches import SearchDocument
from mmrepro.machine.files import Device, is_there
from mmrepro.machine.host import host_facts
from mmrepro.records import Moment
from mmrepro.run.key import gpu_models
from mmrepro.run.options import SeveralRuns
from mmrepro.scenario import Scenario
from mmrepro.text.redact import Redactor
from pydantic import ValidationError

DocumentT = TypeVar("DocumentT", bound=SearchDocument)
Write = Callable[[DocumentT, Path], object]


class CellSearch(Search[DocumentT, Attempt]):
    """What a search over cells does beside searching.

    A kind has, besides: :meth:`standing`, :meth:`more`, :meth:`blank` and :meth:`check`.

    Attributes:
        night: names the campaign in the ledger.
        root: new folders are below it.
        parents: as of :class:`CellRun`.
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
    model: type[DocumentT]
    start: Cell
    parents: ClassVar[int] = 1
    going_on: ClassVar[Mapping[str, Any]] = {}

    def __init__(
        self,
        scenario: Scenario,
        options: SeveralRuns,
        device: Device,
        write: Write[DocumentT],
        suffix: str,
    ) -> None:
        """
        Args:
            write: writes the documents below the folder, each time that they have grown.
            suffix: ends the name of a new folder.
        """
        super().__init__()
        self.scenario, self.device = scenario, device
        self._asked_for, self._write_documents = options, write
        self.cells: dict[str, Cell] = {}
        self.dates: Mapping[str, str] = {}
        self.ahead: Group | None = None
        self._names: dict[str, str] = {}
        self.folder = self._folder(options.out, suffix)
        self.document = self.blank(
            mmrepro_version=mmrepro.__version__,
            id=uuid.uuid4().hex[:12],
            created=Moment.now(),
            state="interrupted",
            failure=f"the {self.kind} has not ended; to resume, run: {self.resume_command}",
            command=self.command(jobs=None, ray="", budget_s=None),
            scenario=scenario.facts,
            engine=scenario.engine,
            device=device,
            host=host_facts(gpu_models(device)),
        )

    @property
    def resume_command(self) -> str:
        return self.command(out=self.folder, **self.going_on)

    def command(self, **changed: Any) -> str:
        """The command that repeats it. A cluster's address is left out: others read documents."""
        asked = self._asked_for
        here = {"scenario": asked.scenario or self.scenario.name, "ray": asked.ray and "auto"}
        return asked.command_line(**{**here, **changed})

    # ------------------------------------------------------------------ what a kind has

    def blank(self, **facts: Any) -> DocumentT:
        """The document before anything is known; ``facts``: what every kind's has."""
        raise NotImplementedError

    def check(self, folder: Path, old: DocumentT | None) -> None:
        """Look at a folder that holds something already; ``old``: its document, if it has one
        that can be read.

        Raises:
            UnwritableOutput: it is not to be gone on with.
        """
        raise NotImplementedError

    def night_of(self, history: History) -> str:
        """The campaign's name in the ledger, one that is gone on with or a new one."""
        return self.night

    def closing(self) -> None:
        """Do what is still to be done, however it ends; the document is written afterwards."""

    # ------------------------------------------------------------------ within a line of work

    def attempt(self, want: Began) -> Attempt:
        """That run, made now or by an earlier call, which is reported."""
        kept = (want.id, want.index) in self.done
        attempt = self.result(want)
        if kept:
            self.campaign.emit(run_ended(want.what, attempt, kept=True))
        return attempt

    def incident(self, attempt: Attempt) -> Incident | None:
        """What the run left; None: nothing that can be read."""
        return incident_in(self.folder / attempt.incident) if attempt.incident else None

    def write(self) -> None:
        self._write_documents(Redactor().redact_model(self.document), self.folder)

    def group(self, cell: Cell) -> Group:
        planned = Planned(night=self.night, cell=cell)
        date = self.dates.get(cell.commit, "")
        return Group(cell.engine, cell.release, cell.device, cell.commit, (planned,), date)

    # ------------------------------------------------------------------ asked by the campaign

    def begin(self, campaign: Campaign[DocumentT]) -> None:
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
        # All cells share its scenario and device: by these a cluster's machines are chosen.
        campaign.places.expect([self.group(self.start)])

    def order_of(self, want: Began) -> Order:
        group = self.group(self.cells[want.id])
        if want.id not in self._ledger.history.night(self.night).planned:
            self._ledger.append(group.cells[0])
        self._names[want.id] = want.what
        ahead, self.ahead = self.ahead, None
        return CellRun(self.night, group, want, self.parents, ahead=ahead)

    def keep(self, line: Attempt) -> tuple[str, int]:
        self._ledger.append(line)
        if line.outcome is not None:
            self._estimates.note(self.cells[line.cell], line.seconds)
        self.campaign.emit(run_ended(self._names[line.cell], line))
        return line.cell, line.index

    def lose(self, want: Began, why: str, place: str) -> Attempt:
        return lost(self.night, want, why, place)

    def affords(self, want: Began) -> bool:
        return self.campaign.fits(self._estimates.of(self.cells[want.id])[0])

    def end(self, state: State, failure: str) -> DocumentT:
        made, out_of_time = self.document, state is State.OUT_OF_TIME
        try:
            self.closing()
            made.state = "interrupted" if out_of_time else state.value  # type: ignore[assignment]
            if out_of_time:
                failure = f"its time is over; to resume, run: {self.resume_command}"
            made.failure, made.finished = failure, Moment.now()
            self.write()
            if state is not State.FAILED:
                marked = NightState.COMPLETE if state is State.COMPLETE else NightState.INTERRUPTED
                update = {"state": marked, "finished": Moment.now()}
                self._ledger.append(self._night.model_copy(update=update))
        finally:
            self._ledger.close()
        return made

    # ------------------------------------------------------------------ the folder

    def _folder(self, out: Path | None, suffix: str) -> Path:
        """A new one, or the one of the same search that is to be gone on with."""
        if out is None:
            return prepared(new_folder(self.root, self.scenario.full_name, suffix))
        file = out / self.file
        if is_there(file) or is_there(out / LEDGER_FILE):
            try:
                old = self.model.model_validate_json(file.read_bytes())
            except (OSError, ValidationError):
                old = None
            self.check(out, old)
        return prepared(out)
