"""The policy of a bisection: its points, the runs of each, and its document at every step."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import mmrepro
from mmrepro.bisect.board import Board, SearchOptions, Verdict, start
from mmrepro.bisect.options import BisectOptions
from mmrepro.bisect.points import Field, cell_of
from mmrepro.bisect.search import Conclusion, Direction, Found, search
from mmrepro.bisect.telling import limits, side_of, verdict_of
from mmrepro.campaign.campaign import Campaign, State
from mmrepro.campaign.events import Found as FoundEvent, Tone, run_ended
from mmrepro.campaign.groups import Estimates, Group
from mmrepro.campaign.search import Search
from mmrepro.campaign.trial import incident_in
from mmrepro.campaign.work import Began, CellRun, Order, lost
from mmrepro.engines import spec_for
from mmrepro.environments.build import existing
from mmrepro.environments.spec import EnvironmentSpec
from mmrepro.environments.store import prune
from mmrepro.errors import MmreproError, UnwritableOutput, UsageError
from mmrepro.history.ledger import Ledger
from mmrepro.incident.bisection import BISECTION_FILE, Bisection
from mmrepro.incident.folder import new_folder, prepared
from mmrepro.incident.ledger import (
    LEDGER_FILE,
    Attempt,
    Cell,
    Lost,
    Night,
    NightState,
    Planned,
    Role,
)
from mmrepro.machine.facts import host_facts
from mmrepro.machine.files import is_there
from mmrepro.records import Moment
from mmrepro.run.key import gpu_models
from mmrepro.scenario import Scenario
from mmrepro.signature import Outcome
from mmrepro.text.redact import Redactor
from pydantic import ValidationError

DEFAULT_ROOT = "bisections"
NIGHT = "bisect"
VERDICTS = {
    Outcome.REPRODUCED: Verdict.BAD,
    Outcome.NOT_REPRODUCED: Verdict.GOOD,
    Outcome.DIFFERENT_FAILURE: Verdict.OTHER,
    Outcome.INCONCLUSIVE: Verdict.UNTESTABLE,
}
ONCE_MORE = (Lost.INFRASTRUCTURE, Lost.TIMEOUT)
"""Tried again, once; an unloadable wheel stays one."""


class Bisecting(Search[Bisection, Attempt]):
    """A bisection in progress. ``bisection`` is valid, if partial, at every moment.

    Both sides are searched at once where two places are free; on one they come one after the other.
    """

    kind = "bisection"

    def __init__(
        self,
        scenario: Scenario,
        options: BisectOptions,
        field: Field,
        *,
        write: Callable[[Bisection, Path], object],
    ) -> None:
        """``write`` writes the documents below the folder, each time that they have grown."""
        super().__init__()
        self.scenario, self.options, self.field = scenario, options, field
        self._write_documents = write
        self._before: dict[int, bool] = {}
        """Whether the environment of a point was there before."""
        self.folder = self._folder()
        self.bisection = self._blank()
        self._numbers = {self._cell(n).id: n for n in range(len(field.points))}
        self._asked: Counter[int] = Counter()
        self._ahead: Group | None = None
        self._bad: int | None = None
        self._notes: list[str] = []
        self._board = Board(
            self._oracle,
            [point.commit[:12] or point.name for point in field.points],
            [point.declared for point in field.points],
            SearchOptions(options.confidence, options.repeat, options.linear),
            upcoming=self._announce,
        )
        self._lines_left: list[Callable[[], None]] = [
            self._start,
            *(lambda d=d: self._side(d) for d in options.directions),
        ]

    @property
    def resume_command(self) -> str:
        return self.options.command(self.scenario.name, self.folder)

    def standing(self) -> str:
        return f"{self.bisection.runs} runs of {len(self.field.points)} points"

    # ------------------------------------------------------------------ the search

    def more(self) -> Callable[[], None] | None:
        """The start; once it has ended the sides."""
        begun = len(self.options.directions) + 1 - len(self._lines_left)
        if not self._lines_left or (begun and not self._started):
            return None
        return self._lines_left.pop(0)

    _started = False

    def _start(self) -> None:
        self._bad, self._notes = start(self._board, self.field.bad)
        point = "" if self._bad is None else self.field.points[self._bad].name
        self.bisection.known_bad = point
        self._started = True

    def _side(self, direction: Direction) -> None:
        first = direction == self.options.directions[0]
        # The runs are the board's; how many were made for this side is counted apart.
        board = replace(self._board, made=self._board.made if first else 0)
        found = None if self._bad is None else self._outward(board, self._bad, direction)
        side = side_of(self.bisection, direction, found, self._notes, board.made)
        side.notes += self._declared_failure(found)
        if direction == "introduced":
            self.bisection.introduced = side
        else:
            self.bisection.fixed = side
        self._write()
        text = f"{direction}: {side.explanation}"
        tone: Tone = "good" if side.verified else "unsure"
        self.campaign.emit(FoundEvent(at=Moment.now(), text=text, tone=tone))

    def _declared_failure(self, found: Found | None) -> list[str]:
        """What the scenario itself says of the other failure beyond the boundary."""
        if found is None or found.beyond is None or found.ends_in is not Verdict.OTHER:
            return []
        release = self.field.points[found.beyond].release
        mitigations = frozenset(self.options.run.mitigations)
        outcome, why = self.scenario.expected(release, mitigations)
        return [f"the scenario says of it: {why}"] if outcome is Outcome.DIFFERENT_FAILURE else []

    def _outward(self, board: Board, bad: int, direction: Direction) -> Found:
        """As far as the bound that was given, or beyond it where that one has the failure, too."""
        far = self.field.far(direction)
        found = search(board, bad, direction, far)
        outermost = 0 if direction == "introduced" else len(self.field.points) - 1
        if found.conclusion is not Conclusion.NO_BOUNDARY or far == outermost:
            return found
        name = self.field.points[far].name
        found = search(board, far, direction, outermost)
        found.notes.insert(0, f"{name} was said to be good, and has the failure: further out, then")
        return found

    def _oracle(self, number: int) -> Verdict:
        """One more run of a point; after lost infrastructure a second one, and no third."""
        attempt = self._attempt(number, "confirm" if self._asked[number] else "planned")
        if attempt.lost in ONCE_MORE:
            attempt = self._attempt(number, "retry")
        if attempt.lost is Lost.USAGE and len(self._board.runs) == 0:
            raise UsageError(attempt.error or "mmrepro run refuses the command line.")
        return Verdict.UNTESTABLE if attempt.outcome is None else VERDICTS[attempt.outcome]

    def _attempt(self, number: int, role: Role) -> Attempt:
        """A run that an earlier call made, else a new one."""
        point = self.field.points[number]
        self._asked[number] += 1
        what = point.commit[:12] or point.name
        want = Began(self._cell(number).id, self._asked[number], role, what)
        kept = (want.id, want.index) in self.done
        attempt = self.result(want)
        point.runs = sorted([*point.runs, attempt], key=lambda run: run.index)
        self._note(number, attempt)
        self._write()
        if kept:
            self.campaign.emit(run_ended(what, attempt, kept=True))
        return attempt

    def _cell(self, number: int) -> Cell:
        return cell_of(self.field.points[number], self.scenario, self.options, self.field.device)

    def _note(self, number: int, attempt: Attempt) -> None:
        """What the run says of its point."""
        point = self.field.points[number]
        point.verdict, point.why = verdict_of(point.runs)
        incident = incident_in(self.folder / attempt.incident) if attempt.incident else None
        if incident is None:
            return
        point.wheel = point.wheel or incident.engine.wheel
        point.release = point.release or incident.engine.release
        point.fidelity = attempt.fidelity or point.fidelity
        known = {stand_in.name for stand_in in self.bisection.stand_ins}
        self.bisection.stand_ins += [s for s in incident.stand_ins if s.name not in known]

    # ------------------------------------------------------------------ asked by the campaign

    def begin(self, campaign: Campaign[Bisection]) -> None:
        super().begin(campaign)
        self._ledger = Ledger(self.folder)
        before = self._ledger.history.find(NIGHT)
        if before is not None:
            self.done = {(a.cell, a.index): a for a in before.attempts}
        self._night = Night(
            id=NIGHT,
            created=before.night.created if before else Moment.now(),
            command=self.resume_command,
            mmrepro_version=mmrepro.__version__,
            host=host_facts(gpu_models(self.field.device)),
        )
        self._ledger.append(self._night)
        self._estimates = Estimates(self._ledger.history)
        # All points share its scenario and device: by these a cluster's machines are chosen.
        campaign.places.expect([self._group(self.field.bad)])

    def order_of(self, want: Began) -> Order:
        number = self._numbers[want.id]
        group = self._group(number)
        if want.id not in self._ledger.history.night(NIGHT).planned:
            self._ledger.append(group.cells[0])
        if number not in self._before:
            self._fetching(number, there=self._is_there(number))
        ahead, self._ahead = self._ahead, None
        return CellRun(NIGHT, group, want, ahead=ahead)

    def keep(self, line: Attempt) -> tuple[str, int]:
        self._ledger.append(line)
        if line.outcome is not None:
            self._estimates.note(self._cell(self._numbers[line.cell]), line.seconds)
        point = self.field.points[self._numbers[line.cell]]
        self.campaign.emit(run_ended(point.commit[:12] or point.name, line))
        return line.cell, line.index

    def lose(self, want: Began, why: str, place: str) -> Attempt:
        return lost(NIGHT, want, why, place)

    def affords(self, want: Began) -> bool:
        return self.campaign.fits(self._estimates.of(self._cell(self._numbers[want.id]))[0])

    def end(self, state: State, failure: str) -> Bisection:
        """What was fetched for this is gone again."""
        try:
            self._tidy()
            made = self.bisection
            out_of_time = state is State.OUT_OF_TIME
            made.state = "interrupted" if out_of_time else state.value  # type: ignore[assignment]
            if out_of_time:
                failure = f"its time is over; to resume, run: {self.resume_command}"
            made.failure, made.finished = failure, Moment.now()
            made.limits = limits(made)
            self._write()
            if state is not State.FAILED:
                marked = NightState.COMPLETE if state is State.COMPLETE else NightState.INTERRUPTED
                update = {"state": marked, "finished": Moment.now()}
                self._ledger.append(self._night.model_copy(update=update))
        finally:
            self._ledger.close()
        return made

    # ------------------------------------------------------------------ environments

    def _group(self, number: int) -> Group:
        cell = self._cell(number)
        planned = Planned(night=NIGHT, cell=cell)
        date = self.field.points[number].uploaded if cell.commit else ""
        return Group(cell.engine, cell.release, cell.device, cell.commit, (planned,), date)

    def _is_there(self, number: int) -> bool:
        """Whether the environment is on disk: then it is nobody's to drop."""
        try:
            return existing(self._spec(number)) is not None
        except MmreproError:
            return True

    def _spec(self, number: int) -> EnvironmentSpec:
        point, device = self.field.points[number], self.field.device
        if not point.commit:
            return spec_for(self.scenario.engine, point.release, device)
        return spec_for(self.scenario.engine, "", device, commit=point.commit, date=point.uploaded)

    def _announce(self, numbers: Sequence[int]) -> None:
        """One of these may be next: its environment is fetched while a run is in progress."""
        for number in numbers:
            if self._asked[number] or (self._cell(number).id, 1) in self.done:
                continue
            if not self._is_there(number):
                self._fetching(number, there=False)
                self._ahead = self._group(number)
                return

    def _fetching(self, number: int, *, there: bool) -> None:
        """Written down before it begins: whoever goes on after a kill drops it in the end."""
        self._before.setdefault(number, there)
        self.field.points[number].fetched |= not there
        self._write()

    def _tidy(self) -> None:
        for number, there in self._before.items():
            if there:
                continue
            try:
                environment = existing(self._spec(number))
            except MmreproError:  # no such wheel, so no such environment
                continue
            self.field.points[number].fetched = environment is not None
            if environment is not None and not self.options.keep_environments:
                prune(names=[environment.path.name])

    # ------------------------------------------------------------------ files

    def _write(self) -> None:
        self._write_documents(Redactor().redact_model(self.bisection), self.folder)

    def _folder(self) -> Path:
        if self.options.out is None:
            return prepared(new_folder(DEFAULT_ROOT, self.scenario.full_name, self.options.find))
        file = self.options.out / BISECTION_FILE
        if is_there(file) or is_there(self.options.out / LEDGER_FILE):
            if not self.options.resume:
                raise UnwritableOutput(
                    f"{self.options.out} already holds a bisection.",
                    hint="--resume goes on with it; or choose another --out",
                )
            self._same(file)
        return prepared(self.options.out)

    def _same(self, file: Path) -> None:
        """Takes over what was fetched. Raises UnwritableOutput: it is of something else."""
        if not is_there(file):
            return
        try:
            old = Bisection.model_validate_json(file.read_bytes())
        except (OSError, ValidationError):
            return
        mine = (self.scenario.name, self.scenario.variant, self.field.device, self.options.by)
        if (old.scenario.name, old.scenario.variant, old.device, old.by) != mine:
            raise UnwritableOutput(
                f"{self.options.out} holds a bisection of {old.scenario.name} by {old.by} on "
                f"{old.device}.",
                hint="choose another --out",
            )
        fetched = {point.name for point in old.points if point.fetched}
        for number, point in enumerate(self.field.points):
            if point.name in fetched and old.state != "complete":
                point.fetched, self._before[number] = True, False

    def _blank(self) -> Bisection:
        options = self.options
        return Bisection(
            mmrepro_version=mmrepro.__version__,
            id=uuid.uuid4().hex[:12],
            created=Moment.now(),
            state="interrupted",
            failure=f"the bisection has not ended; to resume, run: {self.resume_command}",
            command=options.command(self.scenario.name),
            resume=self.resume_command,
            scenario=self.scenario.facts,
            engine=self.scenario.engine,
            device=self.field.device,
            host=host_facts(gpu_models(self.field.device)),
            by=options.by,
            find=options.find,
            confidence=options.confidence,
            repeat=options.repeat,
            linear=options.linear,
            points=self.field.points,
        )
