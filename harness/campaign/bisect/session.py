"""The policy of a bisection: its points, the runs of each, and its document at every
step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from mmrepro.base.errors import MmreproError, UnwritableOutput, UsageError
from mmrepro.base.records import Moment
from mmrepro.base.units import count
from mmrepro.campaign.bisect.options import BisectCommand
from mmrepro.campaign.bisect.plan import Field, cell_at
from mmrepro.campaign.bisect.search import (
    Board,
    Direction,
    SearchOptions,
    SideFinding,
    search,
    start,
)
from mmrepro.campaign.bisect.sides import VERDICTS, limits, side_of, verdict_of
from mmrepro.campaign.events import Established, Tone
from mmrepro.campaign.search import CellSearch
from mmrepro.campaign.work import Order, StartedRun
from mmrepro.engines import spec_for
from mmrepro.engines.environments import (
    EnvironmentSpec,
    ensure,
    existing,
    prune_environments,
    resolve_source,
)
from mmrepro.failure.documents import Attempt, Lost, Role
from mmrepro.failure.documents.searches import (
    BISECTION_FILE,
    Bisection,
    PointVerdict,
    Side,
    SideConclusion,
)
from mmrepro.failure.signature import Outcome
from mmrepro.scenario import Scenario

_NOT_BUILT = (
    "compiled code is not built: the Python of each commit runs over the compiled "
    "files of a release, so that a change of compiled code alone is not seen"
)
"""Limits of a search over the commits of a clone."""
ONCE_MORE = (Lost.INFRASTRUCTURE, Lost.TIMEOUT)
"""Tried again, once; an unloadable wheel stays one."""


class Bisecting(CellSearch[Bisection]):
    """A bisection in progress.

    Both sides are searched at once where two places are free; on one they come one
    after the other."""

    kind, night = "bisection", "bisect"
    root, file, model = "bisections", BISECTION_FILE, Bisection
    going_on: ClassVar[Mapping[str, Any]] = {"resume": True}

    def __init__(
        self,
        scenario: Scenario,
        options: BisectCommand,
        field: Field,
        *,
        write: Callable[[Bisection, Path], object],
    ) -> None:
        """``write`` writes the documents below the folder, each time that they have
        grown."""
        self.options, self.field = options, field
        self._before: dict[int, bool] = {}
        """Whether the environment of a point was there before."""
        super().__init__(scenario, options, field.device, write, options.find)
        points = field.points
        self.dates = {p.commit: p.uploaded for p in points if p.commit}
        self._cells = [cell_at(p, scenario, options, field.device) for p in points]
        self.cells = {cell.id: cell for cell in self._cells}
        self._numbers = {cell.id: number for number, cell in enumerate(self._cells)}
        self._unreadable: dict[int, str] = {}
        # Which cell a clone's commit is, only reading its tree says.
        self._read(field.bad)
        self.start = self._cells[field.bad]
        self._asked: Counter[int] = Counter()
        self._bad: int | None = None
        self._notes: list[str] = []
        self._started = False
        self._board = Board(
            self._oracle,
            [point.commit[:12] or point.name for point in points],
            [point.declared for point in points],
            self.search_options(),
            upcoming=self._announce,
        )
        sides = [partial(self._side, direction) for direction in options.directions]
        self.works = [self._start, *sides]

    def search_options(self) -> SearchOptions:
        options = self.options
        return SearchOptions(options.confidence, options.repeat, options.linear)

    def adjust(self, side: Side, finding: SideFinding | None) -> None:
        """Say more of a side, or say it otherwise."""

    def standing(self) -> str:
        return f"{count(self.document.runs, 'run')} of {count(len(self.field.points), 'point')}"

    # ------------------------------------------------------------------ the search

    def more(self) -> Callable[[], object] | None:
        """The start; once it has ended the sides."""
        starting = len(self.works) == len(self.options.directions) and not self._started
        return None if starting else super().more()

    def _start(self) -> None:
        self._bad, self._notes = start(self._board, self.field.bad)
        point = "" if self._bad is None else self.field.points[self._bad].name
        self.document.known_bad = point
        self._started = True

    def _side(self, direction: Direction) -> None:
        """Search one side, and write down what came of it."""
        is_first = direction == self.options.directions[0]
        # The runs are the board's; how many were made for this side is counted apart.
        board = replace(self._board, made=self._board.made if is_first else 0)
        finding = None
        if self._bad is not None:
            finding = self._outward(board, self._bad, direction)
        side = side_of(self.document, direction, finding, self._notes, board.made)
        side.notes += [*self._declared_failure(finding), *self._merged(finding)]
        self.adjust(side, finding)

        if direction == "introduced":
            self.document.introduced = side
        else:
            self.document.fixed = side
        self.write()
        text = f"{direction}: {side.explanation}"
        tone: Tone = "good" if side.verified else "unsure"
        self.campaign.emit(Established(text=text, tone=tone))

    def _declared_failure(self, finding: SideFinding | None) -> list[str]:
        """What the scenario itself says of the other failure beyond the boundary."""
        if finding is None or finding.beyond is None:
            return []
        if finding.ends_in is not PointVerdict.OTHER:
            return []
        release = self.field.points[finding.beyond].release
        mitigations = frozenset(self.options.run.mitigations)
        outcome, why = self.scenario.expected(release, mitigations)
        if outcome is not Outcome.DIFFERENT_FAILURE:
            return []
        return [f"the scenario says of it: {why}"]

    def _merged(self, finding: SideFinding | None) -> list[str]:
        """How to search what a merge brought, where the boundary is one."""
        if finding is None or finding.conclusion is not SideConclusion.FOUND:
            return []
        is_fix = finding.direction == "fixed"
        number = finding.beyond if is_fix else finding.bad
        if number is None:
            return []
        commit = self.field.points[number].commit
        count = self.field.merges.get(commit)
        if not count:
            return []
        ends = {"good": f"{commit}^1", "bad": f"{commit}^2"}
        if is_fix:
            ends = {"bad": f"{commit}^1", "good": f"{commit}^2"}
        command = self.command(find=finding.direction, **ends)
        return [
            f"{commit[:12]} is a merge of {count} commits; to search them: {command}"
        ]

    def _outward(self, board: Board, bad: int, direction: Direction) -> SideFinding:
        """As far as the bound that was given, or beyond it where that one has the
        failure, too."""
        far = self.field.far(direction)
        finding = search(board, bad, direction, far)
        outermost = 0 if direction == "introduced" else len(self.field.points) - 1
        if finding.conclusion is not SideConclusion.NO_BOUNDARY or far == outermost:
            return finding
        name = self.field.points[far].name
        finding = search(board, far, direction, outermost)
        finding.notes.insert(
            0, f"{name} was given as good, and has the failure: further out, then"
        )
        return finding

    def _oracle(self, number: int) -> PointVerdict:
        """One more run of a point; after lost infrastructure a second one, and no
        third."""
        attempt = self._attempt(number, "confirm" if self._asked[number] else "planned")
        if attempt.lost in ONCE_MORE:
            attempt = self._attempt(number, "retry")
        if attempt.lost is Lost.USAGE and len(self._board.runs) == 0:
            raise UsageError(attempt.error or "mmrepro run refuses the command line.")
        outcome = attempt.outcome or Outcome.INCONCLUSIVE
        return VERDICTS.get(outcome, PointVerdict.UNTESTABLE)

    def _attempt(self, number: int, role: Role) -> Attempt:
        point = self.field.points[number]
        self._asked[number] += 1
        what = point.commit[:12] or point.name
        unreadable = self._read(number)
        if unreadable:
            attempt = self._unread(number, role, unreadable)
        else:
            cell, index = self._cells[number].id, self._asked[number]
            attempt = self.attempt(StartedRun(cell, index, role, what))
        point.runs = sorted([*point.runs, attempt], key=lambda run: run.index)
        self._note(number, attempt)
        self.write()
        return attempt

    def _read(self, number: int) -> str:
        """Read the tree of a clone's commit, once: by its content it is a release. Why
        it cannot be run; "": it can."""
        point, clone = self.field.points[number], self.options.clone
        if clone is not None and not point.release and number not in self._unreadable:
            try:
                point.release = resolve_source(
                    f"{clone}@{point.commit}",
                    kernels=self.options.over,
                    device=self.field.device,
                    engine=self.scenario.engine,
                    lender=ensure,
                ).release
            except MmreproError as error:
                self._unreadable[number] = error.message
            cell = cell_at(point, self.scenario, self.options, self.field.device)
            self._cells[number] = self.cells[cell.id] = cell
            self._numbers[cell.id] = number
        return self._unreadable.get(number, "")

    def _unread(self, number: int, role: Role, why: str) -> Attempt:
        """A run that was none: its tree cannot be read."""
        return Attempt(
            night=self.night,
            cell=self._cells[number].id,
            index=self._asked[number],
            role=role,
            created=Moment.now(),
            seconds=0.0,
            lost=Lost.UNLOADABLE,
            error=why,
        )

    def _note(self, number: int, attempt: Attempt) -> None:
        point = self.field.points[number]
        point.verdict, point.why = verdict_of(point.runs)
        incident = self.incident(attempt)
        if incident is None:
            return
        point.wheel = point.wheel or incident.engine.wheel
        point.release = point.release or incident.engine.release
        point.fidelity = attempt.fidelity or point.fidelity
        known = {stand_in.name for stand_in in self.document.stand_ins}
        self.document.stand_ins += [
            s for s in incident.stand_ins if s.name not in known
        ]

    # ------------------------------------------------------------ asked by the campaign

    def order_of(self, want: StartedRun) -> Order:
        number = self._numbers[want.id]
        if number not in self._before:
            self._fetching(number, there=self._is_there(number))
        return super().order_of(want)

    def closing(self) -> None:
        """Drop what was fetched for this."""
        self._tidy()
        self.document.limits = limits(self.document)
        if self.options.clone is not None:
            self.document.limits += [*self.field.notes, _NOT_BUILT]

    # ------------------------------------------------------------------ environments

    def _is_there(self, number: int) -> bool:
        """Whether the environment is on disk: then it is nobody's to drop."""
        try:
            return existing(self._spec(number)) is not None
        except MmreproError:
            return True

    def _spec(self, number: int) -> EnvironmentSpec:
        point, device = self.field.points[number], self.field.device
        if not point.commit or self.options.clone is not None:
            return spec_for(self.scenario.engine, point.release, device)
        return spec_for(
            self.scenario.engine, "", device, commit=point.commit, date=point.uploaded
        )

    def _announce(self, numbers: Sequence[int]) -> None:
        """One of these may be next: its environment is fetched while a run is in
        progress."""
        for number in numbers:
            if self._read(number):
                continue
            if self._asked[number] or (self._cells[number].id, 1) in self.done:
                continue
            if not self._is_there(number):
                self._fetching(number, there=False)
                self.ahead = self.group(self._cells[number])
                return

    def _fetching(self, number: int, *, there: bool) -> None:
        """Written down before it begins: whoever goes on after a kill drops it in the
        end."""
        self._before.setdefault(number, there)
        self.field.points[number].fetched |= not there
        self.write()

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
                prune_environments(names=[environment.path.name])

    # ------------------------------------------------------------------ files

    def check(self, folder: Path, old: Bisection | None) -> None:
        """Takes over what was fetched."""
        if not self.options.resume:
            raise UnwritableOutput(
                f"{folder} already holds a bisection.",
                hint="--resume goes on with it; or choose another --out",
            )
        if old is None:
            return
        scenario, options = self.scenario, self.options
        mine = (scenario.name, scenario.variant, self.field.device, options.by)
        if (old.scenario.name, old.scenario.variant, old.device, old.by) != mine:
            raise UnwritableOutput(
                (
                    f"{folder} holds a bisection of {old.scenario.name} by {old.by} "
                    f"on {old.device}."
                ),
                hint="choose another --out",
            )
        fetched = {point.name for point in old.points if point.fetched}
        for number, point in enumerate(self.field.points):
            if point.name in fetched and old.state != "complete":
                point.fetched, self._before[number] = True, False

    def blank(self, **facts: Any) -> Bisection:
        options = self.options
        return Bisection(
            **facts,
            resume=self.resume_command,
            by=options.by,
            find=options.find,
            confidence=options.confidence,
            repeat=options.repeat,
            linear=options.linear,
            points=self.field.points,
        )
