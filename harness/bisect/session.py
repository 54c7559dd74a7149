"""A bisection from start to end: its points, runs and ledger, and its files at every step."""

from __future__ import annotations

import contextlib
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import mmrepro
from mmrepro.bisect.board import Board, SearchOptions, Verdict, start
from mmrepro.bisect.options import BisectCommand
from mmrepro.bisect.points import Field, cell_of
from mmrepro.bisect.prefetch import Prefetch
from mmrepro.bisect.search import Conclusion, Direction, Found, search
from mmrepro.bisect.telling import limits, side_of, verdict_of
from mmrepro.engines import spec_for
from mmrepro.environments.build import existing
from mmrepro.environments.spec import EnvironmentSpec
from mmrepro.environments.store import prune
from mmrepro.errors import MmreproError, UnwritableOutput, UsageError
from mmrepro.history.ledger import Ledger
from mmrepro.incident.bisection import BISECTION_FILE, Bisection, Point
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
from mmrepro.matrix.trial import TrialOptions, Trials, incident_in
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

RunTrial = Callable[[Cell, Path, Path, int, Role], Attempt]


class Watcher(Protocol):
    """Is told how a bisection goes."""

    def began(self, bisection: Bisection, point: Point, role: Role) -> None: ...

    def ended(self, bisection: Bisection, point: Point, attempt: Attempt, *, kept: bool) -> None:
        """``kept``: the run was made by an earlier call."""


class Bisecting:
    """A bisection in progress. ``bisection`` is valid, if partial, at every moment."""

    def __init__(
        self,
        scenario: Scenario,
        options: BisectCommand,
        field: Field,
        watcher: Watcher | None = None,
        *,
        write: Callable[[Bisection, Path], object],
        run_trial: RunTrial | None = None,
        prefetch: bool = True,
    ) -> None:
        """
        Args:
            write: writes the documents below the folder, each time that they have grown.
            run_trial: makes one run; None: `mmrepro run` in a process of its own.
            prefetch: fetch the environments that may be needed next, while a run is in progress.
        """
        self.scenario, self.options, self.field = scenario, options, field
        self.watcher = watcher
        self._write_documents = write
        self._before: dict[int, bool] = {}
        """Whether the environment of a point was there before."""
        self.dir = self._folder()
        self.bisection = self._blank()
        self._prefetch = Prefetch() if prefetch else None
        self._trials = Trials(
            TrialOptions(
                timeout_s=options.run.timeout_s,
                start_mode=options.run.start_mode,
                commit_dates={p.commit: p.uploaded for p in field.points if p.commit},
            )
        )
        self._run_trial = run_trial or self._in_a_child
        self._kept: dict[str, list[Attempt]] = {}

    @property
    def resume_command(self) -> str:
        return self._command(out=self.dir, resume=True)

    def _command(self, **changed: Any) -> str:
        name = self.options.scenario or self.scenario.name
        return self.options.command_line(scenario=name, **changed)

    def execute(self) -> Bisection:
        """Search to the end. The files are on disk afterwards, whatever happened.

        Raises:
            MmreproError: usage, or a ledger or folder that cannot be written.
            KeyboardInterrupt: the partial bisection is on disk.
        """
        with Ledger(self.dir) as self._ledger:
            self._begin_night()
            try:
                with self._tidy():
                    self._search()
            except KeyboardInterrupt:
                self._end("interrupted", f"interrupted; to resume, run: {self.resume_command}")
                self._end_night(NightState.INTERRUPTED)
                raise
            except MmreproError as error:
                self._end("failed", error.message)
                raise
            except BaseException as error:
                self._end("failed", f"mmrepro itself failed: {type(error).__name__}: {error}")
                raise
            self._end("complete")
            self._end_night(NightState.COMPLETE)
        return self.bisection

    # ------------------------------------------------------------------ the search

    def _search(self) -> None:
        options, field = self.options, self.field
        self._board = board = Board(
            self._oracle,
            [point.commit[:12] or point.name for point in field.points],
            [point.declared for point in field.points],
            SearchOptions(options.confidence, options.repeat, options.linear),
            upcoming=self._fetch_ahead,
        )
        bad, notes = start(board, field.bad)
        self.bisection.known_bad = "" if bad is None else field.points[bad].name
        before = 0
        for direction in options.directions:
            found: Found | None = None
            if bad is not None:
                found = self._outward(bad, direction)
            made, before = self.bisection.runs - before, self.bisection.runs
            side = side_of(self.bisection, direction, found, notes, made)
            side.notes += self._declared_failure(found)
            if direction == "introduced":
                self.bisection.introduced = side
            else:
                self.bisection.fixed = side
            self._write()

    def _declared_failure(self, found: Found | None) -> list[str]:
        """What the scenario itself says of the other failure beyond the boundary."""
        if found is None or found.beyond is None or found.ends_in is not Verdict.OTHER:
            return []
        release = self.field.points[found.beyond].release
        mitigations = frozenset(self.options.run.mitigations)
        outcome, why = self.scenario.expected(release, mitigations)
        return [f"the scenario says of it: {why}"] if outcome is Outcome.DIFFERENT_FAILURE else []

    def _outward(self, bad: int, direction: Direction) -> Found:
        """As far as the bound that was given, or beyond it where that one has the failure, too."""
        far = self.field.far(direction)
        found = search(self._board, bad, direction, far)
        outermost = 0 if direction == "introduced" else len(self.field.points) - 1
        if found.conclusion is not Conclusion.NO_BOUNDARY or far == outermost:
            return found
        name = self.field.points[far].name
        found = search(self._board, far, direction, outermost)
        found.notes.insert(0, f"{name} was said to be good, and has the failure: further out, then")
        return found

    def _oracle(self, number: int) -> Verdict:
        """One more run of a point; after lost infrastructure a second one, and no third."""
        attempt = self._attempt(number, "confirm" if self.field.points[number].runs else "planned")
        if attempt.lost in ONCE_MORE:
            attempt = self._attempt(number, "retry")
        if attempt.lost is Lost.USAGE and len(self._board.runs) == 0:
            raise UsageError(attempt.error or "mmrepro run refuses the command line.")
        return Verdict.UNTESTABLE if attempt.outcome is None else VERDICTS[attempt.outcome]

    def _attempt(self, number: int, role: Role) -> Attempt:
        """A run that an earlier call made, else a new one."""
        point = self.field.points[number]
        cell = cell_of(point, self.scenario, self.options, self.field.device)
        index = len(point.runs) + 1
        kept = next((a for a in self._kept.get(cell.id, []) if a.index == index), None)
        if self.watcher is not None and kept is None:
            self.watcher.began(self.bisection, point, role)
        attempt = kept or self._new(number, cell, index, role)
        point.runs.append(attempt)
        self._note(number, attempt)
        self._write()
        if self.watcher is not None:
            self.watcher.ended(self.bisection, point, attempt, kept=kept is not None)
        return attempt

    def _new(self, number: int, cell: Cell, index: int, role: Role) -> Attempt:
        if cell.id not in self._ledger.history.night(NIGHT).planned:
            self._ledger.append(Planned(night=NIGHT, cell=cell))
        if number not in self._before:
            self._fetching(number, there=self._is_there(number))
        folder = self.dir / "incidents" / cell.id / f"run-{index}"
        shutil.rmtree(folder, ignore_errors=True)  # killed in the middle: no line tells of it
        attempt = self._run_trial(cell, folder, self.dir, index, role)
        self._ledger.append(attempt)
        return attempt

    def _in_a_child(self, cell: Cell, folder: Path, root: Path, index: int, role: Role) -> Attempt:
        # In a thread, so that Ctrl-C, which comes to this one, can end the run in good order.
        pool = ThreadPoolExecutor(1)
        try:
            return pool.submit(
                self._trials.run, cell, folder, root, night=NIGHT, index=index, role=role
            ).result()
        except KeyboardInterrupt:
            self._trials.stop()
            raise
        finally:
            pool.shutdown()

    def _note(self, number: int, attempt: Attempt) -> None:
        """What the run says of its point."""
        point = self.field.points[number]
        point.verdict, point.why = verdict_of(point.runs)
        incident = incident_in(self.dir / attempt.incident) if attempt.incident else None
        if incident is None:
            return
        point.wheel = point.wheel or incident.engine.wheel
        point.release = point.release or incident.engine.release
        point.fidelity = attempt.fidelity or point.fidelity
        known = {stand_in.name for stand_in in self.bisection.stand_ins}
        self.bisection.stand_ins += [s for s in incident.stand_ins if s.name not in known]

    # ------------------------------------------------------------------ environments

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

    def _fetch_ahead(self, numbers: Sequence[int]) -> None:
        if self._prefetch is None:
            return
        for number in numbers:
            point = self.field.points[number]
            if point.runs or self._kept_of(number) or self._is_there(number):
                continue
            self._fetching(number, there=False)
            what = ["--commit", point.commit] if point.commit else [point.release]
            if point.commit and point.uploaded:
                what += ["--commit-date", point.uploaded]
            self._prefetch.begin([self.scenario.engine, *what, "--device", self.field.device])
            return

    def _fetching(self, number: int, *, there: bool) -> None:
        """Written down before it begins: whoever goes on after a kill drops it in the end."""
        self._before.setdefault(number, there)
        self.field.points[number].fetched |= not there
        self._write()

    def _kept_of(self, number: int) -> bool:
        point = self.field.points[number]
        cell = cell_of(point, self.scenario, self.options, self.field.device)
        return bool(self._kept.get(cell.id))

    @contextlib.contextmanager
    def _tidy(self) -> Iterator[None]:
        """At the end no fetch is under way, and what was fetched for this is gone again."""
        try:
            yield
        finally:
            if self._prefetch is not None:
                self._prefetch.stop()
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

    def _begin_night(self) -> None:
        before = self._ledger.history.find(NIGHT)
        if before is not None:
            for attempt in before.attempts:
                self._kept.setdefault(attempt.cell, []).append(attempt)
        self._night = Night(
            id=NIGHT,
            created=before.night.created if before else Moment.now(),
            command=self.resume_command,
            mmrepro_version=mmrepro.__version__,
            host=host_facts(gpu_models(self.field.device)),
        )
        self._ledger.append(self._night)

    def _end_night(self, state: NightState) -> None:
        update = {"state": state, "finished": Moment.now()}
        self._ledger.append(self._night.model_copy(update=update))

    def _end(self, state: str, failure: str = "") -> None:
        self.bisection.state = state  # type: ignore[assignment]
        self.bisection.failure = failure
        self.bisection.finished = Moment.now()
        self.bisection.limits = limits(self.bisection)
        self._write()

    def _write(self) -> None:
        self._write_documents(Redactor().redact_model(self.bisection), self.dir)

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
            command=self._command(),
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
