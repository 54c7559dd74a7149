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
from mmrepro.base.records import Fidelity, Moment
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
from mmrepro.campaign.events import Established, Tone
from mmrepro.campaign.search import CellSearch
from mmrepro.campaign.work import Order, StartedRun
from mmrepro.engines import spec_for
from mmrepro.engines.environments.build import existing
from mmrepro.engines.environments.source import resolve
from mmrepro.engines.environments.spec import EnvironmentSpec
from mmrepro.engines.environments.store import prune
from mmrepro.failure.documents.ledger import Attempt, Lost, Role
from mmrepro.failure.documents.searches import (
    BISECTION_FILE,
    Bisection,
    Chance,
    Point,
    PointVerdict,
    Side,
    SideConclusion,
)
from mmrepro.failure.signature import Outcome
from mmrepro.scenario import Scenario

_LOST_WORDS = {
    Lost.INFRASTRUCTURE: "infrastructure",
    Lost.UNLOADABLE: "it cannot be loaded here",
    Lost.TIMEOUT: "it did not end in time",
    Lost.USAGE: "it cannot be run",
}


def verdict_of(runs: Sequence[Attempt]) -> tuple[PointVerdict | None, str]:
    if not runs:
        return None, ""
    seen = [a for a in runs if a.outcome in _VERDICTS]
    if not seen:
        last = runs[-1]
        if last.lost is not None:
            return PointVerdict.UNTESTABLE, f"{_LOST_WORDS[last.lost]}: {last.error}"
        return PointVerdict.UNTESTABLE, f"inconclusive: {last.explanation}"
    counts = Counter(_VERDICTS[a.outcome] for a in seen if a.outcome is not None)
    if counts[PointVerdict.BAD] and len(counts) > 1:
        told = ", ".join(
            f"{number} × {verdict}" for verdict, number in counts.most_common()
        )
        return PointVerdict.BOTH, f"{told}, of {len(runs)}"
    other = next((a for a in seen if a.outcome is Outcome.DIFFERENT_FAILURE), None)
    chosen = other or seen[-1]
    assert chosen.outcome is not None
    return _VERDICTS[chosen.outcome], chosen.explanation


def _side_of(
    bisection: Bisection,
    direction: Direction,
    found: SideFinding | None,
    notes: Sequence[str],
    made: int,
) -> Side:
    """What is written of one side.

    Args:
        found: None: no point with the failure was found to start from.
        notes: on the start.
        made: runs that were made for this side; those for the start belong to the first
            one.
    """
    if found is None:
        return Side(
            conclusion=SideConclusion.NO_FAILURE,
            runs=made,
            explanation=(
                "the failure was seen nowhere, so there is nothing to search for"
            ),
            notes=list(notes),
        )
    names = [point.name for point in bisection.points]
    side = Side(
        conclusion=found.conclusion,
        verified=found.verified,
        runs=made,
        one_of=[names[p] for p in found.one_of],
        notes=[*notes, *found.notes],
        returned=[names[p] for p in found.returned],
        rate=found.rate,
    )
    if found.bad is not None and found.beyond is not None:
        side.between = [names[p] for p in sorted((found.bad, found.beyond))]
        exact = found.conclusion is SideConclusion.FOUND
        if direction == "introduced":
            side.first_bad = names[found.bad] if exact else None
            side.before = str(found.ends_in)
        else:
            side.first_good = names[found.beyond] if exact and _good(found) else None
            side.after = str(found.ends_in)
    if found.posterior is not None:
        ordered = sorted(found.posterior.items(), key=lambda item: -item[1])
        side.posterior = [
            Chance(last_bad=names[p], probability=round(c, 4)) for p, c in ordered
        ]
    if found.other_since is not None:
        side.other_between = [names[p] for p in sorted(found.other_since)]
    side.explanation = _explain(bisection, direction, found, side)
    return side


def _good(found: SideFinding) -> bool:
    return found.ends_in is PointVerdict.GOOD


def _explain(
    bisection: Bisection, direction: Direction, found: SideFinding, side: Side
) -> str:
    names = [_label(point) for point in bisection.points]
    kind = bisection.by
    if found.bad is None or found.beyond is None:
        return "; ".join(found.notes) or "nothing could be told"
    first = found.bad if direction == "introduced" else found.beyond
    if subject := bisection.points[first].subject:
        names[first] += f" ({subject})"
    bad, beyond = names[found.bad], names[found.beyond]
    if side.one_of:
        what = "bad" if direction == "introduced" else "good"
        shown = " and ".join(names[p] for p in found.gap)
        one_of = ", ".join(names[p] for p in found.one_of)
        told = f"the first {what} {kind} is one of {one_of}: {shown} cannot be tested"
        if not _good(found):
            told += f"; {beyond} ends in another failure"
        return told
    if direction == "introduced":
        told = f"{bad} is the first bad {kind}"
        if _good(found):
            return f"{told}: {beyond}, before it, does not have the failure"
        return (
            f"{told}; before {bad} the same trigger ends in another failure: "
            f"{_other(bisection.points[found.beyond])}"
        )
    if _good(found):
        return f"{beyond} is the first good {kind}: {bad}, before it, has the failure"
    return (
        f"{bad} is the last {kind} with the failure: from {beyond} on the same trigger "
        "ends in another failure, so that this is no fix: "
        f"{_other(bisection.points[found.beyond])}"
    )


def _other(point: Point) -> str:
    return point.why.removeprefix("another failure: ") or "see its incident"


def _label(point: Point) -> str:
    return point.commit[:12] or point.name


def limits(bisection: Bisection) -> list[str]:
    """What the result does not establish, whatever it shows."""
    found = [
        "every statement is about this scenario's traffic and options, on this device "
        f"({bisection.device}), with each {bisection.by}'s requirements as of its own "
        "day"
    ]
    if bisection.by == "release":
        found.append("which change between the two releases is the cause is not said")
    origins = dict.fromkeys(
        p.wheel.origin for p in bisection.points if p.wheel and p.wheel.origin
    )
    found += [
        f"the wheels are a {origin}" for origin in origins if "third-party" in origin
    ]
    if bisection.repeat is None and not any(
        side and side.posterior for side in (bisection.introduced, bisection.fixed)
    ):
        found.append(
            "points away from the boundary were run once: a failure that comes and "
            "goes may have been missed there (--repeat N)"
        )
    kinds = {p.fidelity for p in bisection.points if p.fidelity}
    if kinds and not kinds & {Fidelity.GPU, Fidelity.LIVE}:
        told = ", ".join(sorted(str(kind) for kind in kinds))
        found.append(f"no run was as in production: fidelity {told}")
    skipped = [p.name for p in bisection.points if p.verdict is PointVerdict.UNTESTABLE]
    if skipped:
        found.append(f"could not be tested and counts as nothing: {', '.join(skipped)}")
    return found


_VERDICTS = {
    Outcome.REPRODUCED: PointVerdict.BAD,
    Outcome.NOT_REPRODUCED: PointVerdict.GOOD,
    Outcome.DIFFERENT_FAILURE: PointVerdict.OTHER,
}
"""What a run says of its point; others say nothing."""
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
        self.dates = {
            point.commit: point.uploaded for point in field.points if point.commit
        }
        found = [
            cell_at(point, scenario, options, field.device) for point in field.points
        ]
        self._cells = found
        self.cells = {cell.id: cell for cell in found}
        self._numbers = {cell.id: number for number, cell in enumerate(found)}
        self._unreadable: dict[int, str] = {}
        self._read(field.bad)
        self.start = found[field.bad]
        self._asked: Counter[int] = Counter()
        self._bad: int | None = None
        self._notes: list[str] = []
        self._board = Board(
            self._oracle,
            [point.commit[:12] or point.name for point in field.points],
            [point.declared for point in field.points],
            self.search_options(),
            upcoming=self._announce,
        )
        self.works = [
            self._start,
            *(partial(self._side, d) for d in options.directions),
        ]

    def search_options(self) -> SearchOptions:
        options = self.options
        return SearchOptions(options.confidence, options.repeat, options.linear)

    def adjust(self, side: Side, found: SideFinding | None) -> None:
        """Say more of a side, or say it otherwise."""

    def standing(self) -> str:
        return f"{self.document.runs} runs of {len(self.field.points)} points"

    # ------------------------------------------------------------------ the search

    def more(self) -> Callable[[], object] | None:
        """The start; once it has ended the sides."""
        starting = len(self.works) == len(self.options.directions) and not self._started
        return None if starting else super().more()

    _started = False

    def _start(self) -> None:
        self._bad, self._notes = start(self._board, self.field.bad)
        point = "" if self._bad is None else self.field.points[self._bad].name
        self.document.known_bad = point
        self._started = True

    def _side(self, direction: Direction) -> None:
        first = direction == self.options.directions[0]
        # The runs are the board's; how many were made for this side is counted apart.
        board = replace(self._board, made=self._board.made if first else 0)
        found = (
            None if self._bad is None else self._outward(board, self._bad, direction)
        )
        side = _side_of(self.document, direction, found, self._notes, board.made)
        side.notes += [*self._declared_failure(found), *self._merged(found)]
        self.adjust(side, found)
        if direction == "introduced":
            self.document.introduced = side
        else:
            self.document.fixed = side
        self.write()
        text = f"{direction}: {side.explanation}"
        tone: Tone = "good" if side.verified else "unsure"
        self.campaign.emit(Established(text=text, tone=tone))

    def _declared_failure(self, found: SideFinding | None) -> list[str]:
        """What the scenario itself says of the other failure beyond the boundary."""
        if (
            found is None
            or found.beyond is None
            or found.ends_in is not PointVerdict.OTHER
        ):
            return []
        release = self.field.points[found.beyond].release
        mitigations = frozenset(self.options.run.mitigations)
        outcome, why = self.scenario.expected(release, mitigations)
        return (
            [f"the scenario says of it: {why}"]
            if outcome is Outcome.DIFFERENT_FAILURE
            else []
        )

    def _merged(self, found: SideFinding | None) -> list[str]:
        """How to search what a merge brought, where the boundary is one."""
        if found is None or found.conclusion is not SideConclusion.FOUND:
            return []
        fixed = found.direction == "fixed"
        number = found.beyond if fixed else found.bad
        commit = self.field.points[number].commit if number is not None else ""
        if not (count := self.field.merges.get(commit)):
            return []
        ends = {"bad": f"{commit}^1", "good": f"{commit}^2"}
        if not fixed:
            ends = {"good": f"{commit}^1", "bad": f"{commit}^2"}
        command = self.command(find=found.direction, **ends)
        return [
            f"{commit[:12]} is a merge of {count} commits; to search them: {command}"
        ]

    def _outward(self, board: Board, bad: int, direction: Direction) -> SideFinding:
        """As far as the bound that was given, or beyond it where that one has the
        failure, too."""
        far = self.field.far(direction)
        found = search(board, bad, direction, far)
        outermost = 0 if direction == "introduced" else len(self.field.points) - 1
        if found.conclusion is not SideConclusion.NO_BOUNDARY or far == outermost:
            return found
        name = self.field.points[far].name
        found = search(board, far, direction, outermost)
        found.notes.insert(
            0, f"{name} was said to be good, and has the failure: further out, then"
        )
        return found

    def _oracle(self, number: int) -> PointVerdict:
        """One more run of a point; after lost infrastructure a second one, and no
        third."""
        attempt = self._attempt(number, "confirm" if self._asked[number] else "planned")
        if attempt.lost in ONCE_MORE:
            attempt = self._attempt(number, "retry")
        if attempt.lost is Lost.USAGE and len(self._board.runs) == 0:
            raise UsageError(attempt.error or "mmrepro run refuses the command line.")
        outcome = attempt.outcome or Outcome.INCONCLUSIVE
        return _VERDICTS.get(outcome, PointVerdict.UNTESTABLE)

    def _attempt(self, number: int, role: Role) -> Attempt:
        point = self.field.points[number]
        self._asked[number] += 1
        what = point.commit[:12] or point.name
        if why := self._read(number):
            attempt = self._unread(number, role, why)
        else:
            attempt = self.attempt(
                StartedRun(self._cells[number].id, self._asked[number], role, what)
            )
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
                point.release = resolve(
                    f"{clone}@{point.commit}",
                    kernels=self.options.over,
                    device=self.field.device,
                    engine=self.scenario.engine,
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
        if (incident := self.incident(attempt)) is None:
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
                prune(names=[environment.path.name])

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
        mine = (
            self.scenario.name,
            self.scenario.variant,
            self.field.device,
            self.options.by,
        )
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
