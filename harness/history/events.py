"""What changed from the nights before to this one. Pure.

A released wheel with dated dependencies does not change. So a bug is fixed, or comes
back, only in a release or commit that no former night had; another verdict on the same
one is flakiness, or a drift of something else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from mmrepro.base.text import one_line
from mmrepro.failure.documents import (
    Attempt,
    Cell,
    Event,
    EventKind,
    NightState,
    Planned,
)
from mmrepro.failure.signature import Outcome
from mmrepro.history.ledger import History, NightRuns
from mmrepro.history.states import (
    VERDICTS,
    CellTrack,
    JobState,
    Settled,
    VerdictChange,
    changed_parts,
    describe,
)
from packaging.version import InvalidVersion, Version

LATE = 1.5
"""Times ``every_h``: a gap of more is a night that did not run."""
_OF_A_RELEASE = frozenset(
    (
        "engine",
        "environment",
        "python",
        "command",
        "variables",
        "model",
        "max_model_len",
    )
)
"""Parts of a key that differ between two releases as such."""
ALARMS = frozenset(
    {
        EventKind.BUG_RETURNED,
        EventKind.DIFFERENT_FAILURE,
        EventKind.DRIFT,
        EventKind.FLAKY,
    }
)
"""Events that make a night not as expected, unless their cell is in quarantine. A new
release that the scenario expects to be affected is told, and is as expected."""
_SEQUENCE = list(EventKind)


def events(history: History, night: NightRuns) -> list[Event]:
    """What is new in ``night``, against all nights of ``history`` that began before
    it."""
    past = history.before(night.night)
    new = _NightComparison(past, night).events()
    gap = _late(past[-1], night.night.created.wall) if past else None
    if gap is not None:
        new.append(gap.model_copy(update={"night": night.night.id}))
    return _in_sequence(new)


def diff(before: NightRuns, after: NightRuns) -> list[Event]:
    """What ``after`` has that ``before`` had not; any two nights, of any ledgers."""
    return _in_sequence(_NightComparison([before], after).events())


def _in_sequence(events: Sequence[Event]) -> list[Event]:
    """Sort events by their kinds; those of a kind stay as they were found."""
    return sorted(events, key=lambda event: _SEQUENCE.index(event.what))


def _late(last: NightRuns, now: datetime, every_h: float | None = None) -> Event | None:
    """No night from the one given until ``now``, though one is due every so many hours.

    Args:
        every_h: instead of what that night says.
    """
    every = every_h or last.night.every_h
    if not every:
        return None
    gap = (now - last.night.created.wall) / timedelta(hours=1)
    if gap <= LATE * every:
        return None
    return Event(
        night=last.night.id,
        what=EventKind.NIGHT_MISSING,
        identity=f"{EventKind.NIGHT_MISSING}:{last.night.id}",
        text=f"{gap:.0f} h after {last.night.id} began no other night had, and one is "
        f"due every {every:g} h.",
    )


@dataclass(frozen=True)
class _Tonight:
    cell: Cell
    settled: Settled
    changes: list[VerdictChange]
    before: Settled | None
    """When it last had a verdict."""
    was_covered: bool
    expected: Outcome | None

    @property
    def state(self) -> JobState:
        return self.settled.state


class _NightComparison:
    """Former nights in the order in which they ran, and the one that is looked at."""

    def __init__(self, past: Sequence[NightRuns], night: NightRuns) -> None:
        self.night = night
        self.tracks: dict[str, CellTrack] = {}
        self.releases: set[tuple[str, str, str]] = set()
        self.awaited: set[str] = set()
        """Cells of the first night of their release, which was new then."""
        for former in past:
            self._take_former(former)

        self.known_lines: set[str] = set()
        for track in self.tracks.values():
            if track.settled:
                self.known_lines.add(_sequence(track.cell))

        self.tonight = self._follow(night)
        self.lines = _lines(self.tracks.values())

    def _take_former(self, former: NightRuns) -> None:
        # First the cells, then the releases: within one night all are new.
        for name, cell in former.cells.items():
            if self._is_new(cell):
                self.awaited.add(name)

        self._follow(former)
        self.releases.update(map(_release, former.cells.values()))

    def events(self) -> list[Event]:
        new = self._new_releases()
        for job in self.tonight:
            new += [self._flip(job, change) for change in job.changes]
            # Lost on its release's first night, a cell is told of on the first one with
            # a verdict.
            late = job.before is None and job.cell.id in self.awaited
            if self._is_new(job.cell) or late:
                new += self._in_a_new_release(job)
            new += self._different(job)
            new += self._lost(job)

        return new

    def _follow(self, night: NightRuns) -> list[_Tonight]:
        """Take a night in; what it shows of each cell that it plans, or does not plan
        any more."""
        running = night.night.state is NightState.RUNNING
        jobs = []
        for name, planned in night.planned.items():
            attempts = night.attempts_of(name)
            # A job of a night that still runs may yet be run.
            waits = running and not attempts
            track = self.tracks.setdefault(name, CellTrack(planned.cell))
            if not waits:
                jobs.append(_taken(track, night.night.id, planned, attempts))

        # What a shard or a night that still runs does not plan may be in another one.
        if night.night.shard or running:
            return jobs
        for name, track in self.tracks.items():
            if name in night.planned or not track.covered:
                continue

            track.covered = False
            # A commit is run once; it is not in every night's plan.
            if not track.cell.commit:
                jobs.append(_no_longer_planned(track))

        return jobs

    def _is_new(self, cell: Cell) -> bool:
        """Whether its release is one that no former night had, of an engine that one
        had."""
        engines = {engine for engine, _, _ in self.releases}
        return cell.engine in engines and _release(cell) not in self.releases

    def _new_releases(self) -> list[Event]:
        new: dict[tuple[str, str, str], Cell] = {}
        for job in self.tonight:
            if self._is_new(job.cell):
                new[_release(job.cell)] = job.cell

        events = []
        for cell in new.values():
            event = Event(
                night=self.night.night.id,
                what=EventKind.NEW_RELEASE,
                identity=f"{EventKind.NEW_RELEASE}:{cell.engine}:{_name(cell)}",
                engine=cell.engine,
                release=_name(cell),
                text=f"{cell.engine} {_name(cell)} is run here for the first time.",
            )
            events.append(event)

        return events

    def _flip(self, job: _Tonight, change: VerdictChange) -> Event:
        subject = _subject(job.cell)
        now = job.state
        if change.kind is EventKind.FLAKY:
            text = f"{subject} is flaky: {change.why}."
        elif job.before is not None and job.before.state is not now:
            text = f"{subject} was {job.before.state} and is {now}; {change.why}."
        else:
            text = f"{subject} is {now}; {change.why}."

        return self._event(change.kind, job, text, changed=list(change.parts))

    def _in_a_new_release(self, job: _Tonight) -> list[Event]:
        """Fixed in it, returned in it, or affected by it."""
        state = job.state
        if state not in _HAS_OR_HAS_NOT:
            return []
        line = self.lines[_sequence(job.cell)]
        earlier = self._earlier(job, line)
        if state is JobState.NOT_REPRODUCED:
            return self._fixed(job, earlier, line)
        return [self._returned(job, earlier, line) or self._affected(job, earlier)]

    def _fixed(
        self, job: _Tonight, earlier: Sequence[CellTrack], line: Sequence[CellTrack]
    ) -> list[Event]:
        """It is fixed where the nearest earlier release has it."""
        if not earlier or not _is(earlier[-1], JobState.REPRODUCED):
            return []
        last = earlier[-1]
        state = job.state
        text = f"{_subject(job.cell)} is {state}, and {_name(last.cell)} still has it"
        return [self._boundary(EventKind.FIXED_IN, job, text, last, line)]

    def _returned(
        self, job: _Tonight, earlier: Sequence[CellTrack], line: Sequence[CellTrack]
    ) -> Event | None:
        """It has returned where a release that leads here had it no more, and one
        before that had it."""
        well = _newest_without(earlier, job.cell)
        if well is None:
            return None
        before = earlier[: earlier.index(well)]
        had = [track for track in before if _is(track, JobState.REPRODUCED)]
        if not had:
            return None

        text = (
            f"{_subject(job.cell)} is {job.state} again: "
            f"{_name(had[-1].cell)} had it, {_name(well.cell)} had it no more"
        )
        return self._boundary(EventKind.BUG_RETURNED, job, text, well, line)

    def _affected(self, job: _Tonight, earlier: Sequence[CellTrack]) -> Event:
        text = (
            f"{_subject(job.cell)}, a new release, is {job.state}; "
            f"{_expectation(job.expected)}"
        )
        last = earlier[-1] if earlier else None
        well = _newest_without(earlier, job.cell)
        if last and last is not well and _is(last, JobState.NOT_REPRODUCED):
            text += f"; {_name(last.cell)}, of another branch, has it no more"

        return self._event(EventKind.NEW_RELEASE_AFFECTED, job, f"{text}.")

    def _earlier(self, job: _Tonight, line: Sequence[CellTrack]) -> list[CellTrack]:
        """The earlier releases that have the bug or have it not, oldest first.

        None where the line was unknown before, or where one of it was ever flaky: then a
        difference between two releases shows nothing."""
        if _sequence(job.cell) not in self.known_lines:
            return []
        if any(track.ever_flaky for track in line):
            return []
        earlier = []
        for track in line:
            if track.cell.id == job.cell.id:
                break
            if track.settled and track.settled.state in _HAS_OR_HAS_NOT:
                earlier.append(track)

        return earlier

    def _boundary(
        self,
        kind: EventKind,
        job: _Tonight,
        text: str,
        last: CellTrack,
        line: Sequence[CellTrack],
    ) -> Event:
        """An event of a new release against the nearest earlier one, and how sure that
        is."""
        between = _between(line, last.cell, job.cell)
        if between:
            text += f"; between them lies {', '.join(between)}"
        if last.night != self.night.night.id:
            text += f"; {_name(last.cell)} was run last in {last.night}"

        mine = self.tracks[job.cell.id].attempts
        changed = changed_parts(last.attempts, mine)
        parts = [part for part in changed if part not in _OF_A_RELEASE]
        if parts:
            changes = [describe(part, last.attempts, mine) for part in parts]
            text += f"; beside the release also changed: {', '.join(changes)}"

        event = self._event(kind, job, text + ".", changed=parts)
        before = last.settled.state.value if last.settled else ""
        return event.model_copy(update={"before": f"{before} in {_name(last.cell)}"})

    def _different(self, job: _Tonight) -> list[Event]:
        if job.state is not JobState.DIFFERENT_FAILURE:
            return []
        if any(change.kind is EventKind.FLAKY for change in job.changes):
            return []
        before = job.before
        if before is None:
            if job.expected is Outcome.DIFFERENT_FAILURE:
                return []
            than = f"expected was {job.expected or 'nothing in particular'}"
        elif before.count[Outcome.DIFFERENT_FAILURE]:
            return []
        else:
            than = f"it was {before.state}"

        text = f"{_subject(job.cell)} fails in another way; {than}"
        explanations = [attempt.explanation for attempt in self._runs(job)]
        why = one_line(_first(explanations), 300)
        if why:
            text += f": {why}"
        return [self._event(EventKind.DIFFERENT_FAILURE, job, f"{text}.")]

    def _lost(self, job: _Tonight) -> list[Event]:
        if not job.was_covered or job.state in _TOLD:
            return []
        why = job.settled.why
        if job.state is JobState.MISSING and job.cell.id in self.night.planned:
            why = f"the night is {self.night.night.state} and did not run it"

        was = f" (last: {job.before.state})" if job.before is not None else ""
        text = f"{_subject(job.cell)}: no result tonight{was}: {why}"
        error = _first([attempt.error for attempt in self._runs(job)])
        if error:
            text += f" ({one_line(error, 200)})"
        return [self._event(EventKind.COVERAGE_LOST, job, f"{text}.")]

    def _runs(self, job: _Tonight) -> list[Attempt]:
        return self.night.attempts_of(job.cell.id)

    def _event(
        self, kind: EventKind, job: _Tonight, text: str, changed: Sequence[str] = ()
    ) -> Event:
        return Event(
            night=self.night.night.id,
            what=kind,
            identity=f"{kind}:{job.cell.line}:{_name(job.cell)}",
            cell=job.cell.id,
            engine=job.cell.engine,
            release=_name(job.cell),
            text=text,
            before=job.before.state.value if job.before is not None else "",
            now=job.state.value,
            changed=list(changed),
        )


def _taken(
    track: CellTrack, night: str, planned: Planned, attempts: Sequence[Attempt]
) -> _Tonight:
    """What a night's attempts show of a cell, and what it was before them."""
    before = track.settled
    was_covered = track.covered
    settled, changes = track.add(night, attempts)
    return _Tonight(
        cell=planned.cell,
        settled=settled,
        changes=changes,
        before=before,
        was_covered=was_covered,
        expected=planned.expected or settled.expected,
    )


def _no_longer_planned(track: CellTrack) -> _Tonight:
    return _Tonight(
        cell=track.cell,
        settled=Settled(JobState.MISSING, why="it is no longer planned"),
        changes=[],
        before=track.settled,
        was_covered=True,
        expected=None,
    )


def _between(line: Sequence[CellTrack], last: Cell, now: Cell) -> list[str]:
    """The releases that lie between two of a line, each with its state."""
    ids = [track.cell.id for track in line]
    between = []
    for track in line[ids.index(last.id) + 1 : ids.index(now.id)]:
        state = track.settled.state if track.settled else "no verdict"
        between.append(f"{_name(track.cell)} ({state})")

    return between


_HAS_OR_HAS_NOT = (JobState.REPRODUCED, JobState.NOT_REPRODUCED)
_TOLD = (*VERDICTS, JobState.FLAKY)


def _release(cell: Cell) -> tuple[str, str, str]:
    return cell.engine, cell.release, cell.commit


def _is(track: CellTrack, state: JobState) -> bool:
    return track.settled is not None and track.settled.state is state


def _lines(tracks: Iterable[CellTrack]) -> dict[str, list[CellTrack]]:
    """The tracks of each sequence, releases by version and commits as they were
    run."""
    lines: dict[str, list[CellTrack]] = {}
    for track in tracks:
        lines.setdefault(_sequence(track.cell), []).append(track)

    for line in lines.values():
        versions = [_version(track.cell) for track in line]
        if line[0].cell.commit or None in versions:
            continue
        line.sort(key=lambda track: _version(track.cell) or Version("0"))

    return lines


def _newest_without(earlier: Sequence[CellTrack], cell: Cell) -> CellTrack | None:
    """The newest of the releases that lead to that of ``cell``, if it has the bug no
    more."""
    for track in reversed(earlier):
        if _leads_to(track.cell, cell):
            return track if _is(track, JobState.NOT_REPRODUCED) else None

    return None


def _expectation(expected: Outcome | None) -> str:
    if expected is None:
        return "the scenario says nothing of this release"
    if expected is Outcome.REPRODUCED:
        return "the scenario expects just that"
    return f"the scenario expects {expected}"


def _first(texts: Iterable[str]) -> str:
    """The first that is not empty."""
    for text in texts:
        if text:
            return text

    return ""


def _leads_to(earlier: Cell, later: Cell) -> bool:
    """Whether all that the earlier release has came into the later one, too: they are
    of one branch (0.5.18 and 0.5.19), or the earlier one is its branch's first (0.22.0
    and 0.24.1). What a later release of another branch has (0.22.1) may be a back-port.
    Commits are as they were run."""
    old, new = _version(earlier), _version(later)
    if earlier.commit or old is None or new is None:
        return True
    if old.base_version == new.base_version:
        return True
    if old.post is not None:
        return False
    is_branchs_first = not any(old.release[2:])
    return is_branchs_first or old.release[:2] == new.release[:2]


def _name(cell: Cell) -> str:
    return cell.commit[:12] or cell.release


def _subject(cell: Cell) -> str:
    return f"{cell.row} on {cell.engine} {_name(cell)}"


def _sequence(cell: Cell) -> str:
    """Cells with one of these stand in one order: releases by version, commits as they
    were run."""
    return f"{cell.line} {'commits' if cell.commit else 'releases'}"


def _version(cell: Cell) -> Version | None:
    try:
        return Version(cell.release)
    except InvalidVersion:
        return None
