"""What changed from the nights before to this one. Pure.

A released wheel with dated dependencies does not change. So a bug is fixed, or comes
back, only in a release or commit that no former night had; another verdict on the same
one is flakiness, or a drift of something else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from mmrepro.base.text.sanitize import one_line
from mmrepro.failure.documents.ledger import Attempt, Cell, Event, EventKind, NightState
from mmrepro.failure.signature import Outcome
from mmrepro.history.ledger import History, NightRuns
from mmrepro.history.states import (
    VERDICTS,
    Change,
    Settled,
    State,
    Track,
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
    found = _Comparison(past, night).events()
    if past and (gap := _late(past[-1], night.night.created.wall)) is not None:
        found.append(gap.model_copy(update={"night": night.night.id}))
    return sorted(found, key=lambda e: _SEQUENCE.index(e.what))


def diff(before: NightRuns, after: NightRuns) -> list[Event]:
    """What ``after`` has that ``before`` had not; any two nights, of any ledgers."""
    found = _Comparison([before], after).events()
    return sorted(found, key=lambda e: _SEQUENCE.index(e.what))


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
    changes: list[Change]
    before: Settled | None
    """When it last had a verdict."""
    was_covered: bool
    expected: Outcome | None


class _Comparison:
    """Former nights in the order in which they ran, and the one that is looked at."""

    def __init__(self, past: Sequence[NightRuns], night: NightRuns) -> None:
        self.night = night
        self.tracks: dict[str, Track] = {}
        self.releases: set[tuple[str, str, str]] = set()
        self.awaited: set[str] = set()
        """Cells of the first night of their release, which was new then."""
        for former in past:
            self.awaited |= {
                name for name, c in former.cells.items() if self._is_new(c)
            }
            self._follow(former)
            self.releases |= {_release(c) for c in former.cells.values()}
        self.known_lines = {
            _sequence(t.cell) for t in self.tracks.values() if t.settled
        }
        self.tonight = self._follow(night)
        self.lines: dict[str, list[Track]] = {}
        for track in self.tracks.values():
            self.lines.setdefault(_sequence(track.cell), []).append(track)
        for line in self.lines.values():
            if not line[0].cell.commit and all(_version(t.cell) for t in line):
                line.sort(key=lambda t: _version(t.cell) or Version("0"))

    def events(self) -> list[Event]:
        found = self._new_releases()
        for one in self.tonight:
            found += [self._flip(one, change) for change in one.changes]
            # Lost on its release's first night, a cell is told of on the first one with
            # a verdict.
            late = one.before is None and one.cell.id in self.awaited
            if self._is_new(one.cell) or late:
                found += self._in_a_new_release(one)
            found += self._different(one)
            found += self._lost(one)
        return found

    def _follow(self, night: NightRuns) -> list[_Tonight]:
        """Take a night in; what it shows of each cell that it plans, or does not plan
        any more."""
        seen = []
        for name, planned in night.planned.items():
            track = self.tracks.setdefault(name, Track(planned.cell))
            before, covered = track.settled, track.covered
            attempts = night.attempts_of(name)
            if not attempts and night.night.state is NightState.RUNNING:
                continue
            settled, changes = track.add(night.night.id, attempts)
            expected = planned.expected or settled.expected
            seen.append(
                _Tonight(planned.cell, settled, changes, before, covered, expected)
            )
        if night.night.shard or night.night.state is NightState.RUNNING:
            return seen
        for name, track in self.tracks.items():
            if name not in night.planned and track.covered:
                track.covered = False
                # A commit is run once; it is not in every night's plan.
                if not track.cell.commit:
                    gone = Settled(State.MISSING, why="it is no longer planned")
                    seen.append(
                        _Tonight(track.cell, gone, [], track.settled, True, None)
                    )
        return seen

    def _is_new(self, cell: Cell) -> bool:
        """Of a release that no former night had, of an engine that one had."""
        engines = {engine for engine, _, _ in self.releases}
        return cell.engine in engines and _release(cell) not in self.releases

    def _new_releases(self) -> list[Event]:
        new = {_release(t.cell): t.cell for t in self.tonight if self._is_new(t.cell)}
        return [
            Event(
                night=self.night.night.id,
                what=EventKind.NEW_RELEASE,
                identity=f"{EventKind.NEW_RELEASE}:{cell.engine}:{_name(cell)}",
                engine=cell.engine,
                release=_name(cell),
                text=f"{cell.engine} {_name(cell)} is run here for the first time.",
            )
            for cell in new.values()
        ]

    def _flip(self, one: _Tonight, change: Change) -> Event:
        if change.kind is EventKind.FLAKY:
            text = f"{_subject(one.cell)} is flaky: {change.why}."
        elif one.before is not None and one.before.state is not one.settled.state:
            text = (
                f"{_subject(one.cell)} was {one.before.state} and is "
                f"{one.settled.state}; "
            )
            text += f"{change.why}."
        else:
            text = f"{_subject(one.cell)} is {one.settled.state}; {change.why}."
        return self._event(change.kind, one, text, changed=list(change.parts))

    def _in_a_new_release(self, one: _Tonight) -> list[Event]:
        """Fixed in it, returned in it, or affected by it."""
        state = one.settled.state
        if state not in (State.REPRODUCED, State.NOT_REPRODUCED):
            return []
        line = self.lines[_sequence(one.cell)]
        place = next(i for i, t in enumerate(line) if t.cell.id == one.cell.id)
        told = [
            t for t in line[:place] if t.settled and t.settled.state in _HAS_OR_HAS_NOT
        ]
        steady = _sequence(one.cell) in self.known_lines and not any(
            t.ever_flaky for t in line
        )
        last = told[-1] if told and steady else None
        was = (
            last.settled.state
            if last is not None and last.settled is not None
            else None
        )
        if last is not None and (was, state) == (
            State.REPRODUCED,
            State.NOT_REPRODUCED,
        ):
            text = (
                f"{_subject(one.cell)} is {state}, and {_name(last.cell)} still has it"
            )
            return [self._boundary(EventKind.FIXED_IN, one, text, last, line)]
        known = [t for t in told if steady and _leads_to(t.cell, one.cell)]
        well = known[-1] if known and _is(known[-1], State.NOT_REPRODUCED) else None
        before = told[: told.index(well)] if well is not None else []
        had = [t for t in before if _is(t, State.REPRODUCED)]
        if well is not None and state is State.REPRODUCED and had:
            text = (
                f"{_subject(one.cell)} is {state} again: {_name(had[-1].cell)} had it, "
                f"{_name(well.cell)} had it no more"
            )
            return [self._boundary(EventKind.BUG_RETURNED, one, text, well, line)]
        if state is not State.REPRODUCED:
            return []
        if one.expected is None:
            range_ = "the scenario says nothing of this release"
        else:
            as_said = one.expected is Outcome.REPRODUCED
            range_ = f"the scenario expects {'just that' if as_said else one.expected}"
        text = f"{_subject(one.cell)}, a new release, is {state}; {range_}"
        if last is not None and was is State.NOT_REPRODUCED and last is not well:
            text += f"; {_name(last.cell)}, of another branch, has it no more"
        text += "."
        return [self._event(EventKind.NEW_RELEASE_AFFECTED, one, text)]

    def _boundary(
        self,
        kind: EventKind,
        one: _Tonight,
        text: str,
        last: Track,
        line: Sequence[Track],
    ) -> Event:
        """An event of a new release against the nearest earlier one, and how sure that
        is."""
        ids = [t.cell.id for t in line]
        between = line[ids.index(last.cell.id) + 1 : ids.index(one.cell.id)]
        if between:
            others = ", ".join(
                f"{_name(t.cell)} ({t.settled.state if t.settled else 'no verdict'})"
                for t in between
            )
            text += f"; between them lies {others}"
        mine = self.tracks[one.cell.id].attempts
        parts = [
            p for p in changed_parts(last.attempts, mine) if p not in _OF_A_RELEASE
        ]
        if last.night != self.night.night.id:
            text += f"; {_name(last.cell)} was run last in {last.night}"
        if parts:
            told = ", ".join(describe(p, last.attempts, mine) for p in parts)
            text += f"; beside the release also changed: {told}"
        event = self._event(kind, one, text + ".", changed=parts)
        before = last.settled.state.value if last.settled else ""
        return event.model_copy(update={"before": f"{before} in {_name(last.cell)}"})

    def _different(self, one: _Tonight) -> list[Event]:
        if one.settled.state is not State.DIFFERENT_FAILURE:
            return []
        if any(c.kind is EventKind.FLAKY for c in one.changes):
            return []
        before = one.before
        if before is None:
            if one.expected is Outcome.DIFFERENT_FAILURE:
                return []
            than = f"expected was {one.expected or 'nothing in particular'}"
        elif before.count[Outcome.DIFFERENT_FAILURE]:
            return []
        else:
            than = f"it was {before.state}"
        why = one_line(
            next((a.explanation for a in self._runs(one) if a.explanation), ""),
            300,
        )
        text = f"{_subject(one.cell)} fails in another way; {than}"
        return [
            self._event(
                EventKind.DIFFERENT_FAILURE,
                one,
                f"{text}: {why}." if why else f"{text}.",
            )
        ]

    def _lost(self, one: _Tonight) -> list[Event]:
        if not one.was_covered or one.settled.state in _TOLD:
            return []
        was = one.before.state if one.before is not None else "told"
        why = one.settled.why
        if one.settled.state is State.MISSING and one.cell.id in self.night.planned:
            why = f"the night is {self.night.night.state} and did not run it"
        error = next((a.error for a in self._runs(one) if a.error), "")
        text = f"{_subject(one.cell)} was {was} and is not known now: {why}"
        text += f" ({one_line(error, 200)})" if error else ""
        return [self._event(EventKind.COVERAGE_LOST, one, f"{text}.")]

    def _runs(self, one: _Tonight) -> list[Attempt]:
        return self.night.attempts_of(one.cell.id)

    def _event(
        self, kind: EventKind, one: _Tonight, text: str, changed: Sequence[str] = ()
    ) -> Event:
        return Event(
            night=self.night.night.id,
            what=kind,
            identity=f"{kind}:{one.cell.line}:{_name(one.cell)}",
            cell=one.cell.id,
            engine=one.cell.engine,
            release=_name(one.cell),
            text=text,
            before=one.before.state.value if one.before is not None else "",
            now=one.settled.state.value,
            changed=list(changed),
        )


_HAS_OR_HAS_NOT = (State.REPRODUCED, State.NOT_REPRODUCED)
_TOLD = (*VERDICTS, State.FLAKY)


def _release(cell: Cell) -> tuple[str, str, str]:
    return cell.engine, cell.release, cell.commit


def _is(track: Track, state: State) -> bool:
    return track.settled is not None and track.settled.state is state


def _leads_to(earlier: Cell, later: Cell) -> bool:
    """Whether all that the earlier release has came into the later one, too: they are
    of one branch (0.5.18 and 0.5.19), or the earlier one is its branch's first (0.22.0
    and 0.24.1). What a later release of another branch has (0.22.1) may be a back-port.
    Commits are as they were run."""
    one, other = _version(earlier), _version(later)
    if (
        earlier.commit
        or one is None
        or other is None
        or one.base_version == other.base_version
    ):
        return True
    return one.post is None and (
        one.release[:2] == other.release[:2] or not any(one.release[2:])
    )


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
