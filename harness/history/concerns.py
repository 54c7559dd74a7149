"""What somebody should look at, from the run that found it until it is over; and the
quarantine.

An event belongs to the nightly run that finds it. A concern follows from one, and lasts
until a later run shows otherwise by a verdict; that a cell was not run ends nothing.
Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import date, datetime
from pathlib import Path
from typing import Annotated, Final

from mmrepro.base.errors import UsageError
from mmrepro.base.machine import read_toml
from mmrepro.base.records import Record, misfits
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
from mmrepro.history.events import ALARMS, events
from mmrepro.history.ledger import History, NightRuns
from mmrepro.history.states import CellTrack, JobState, Settled, settle
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version
from pydantic import Field, StringConstraints, ValidationError, field_validator

_UNKNOWN: Final = "unknown"
_OF_A_RELEASE: Final = frozenset(
    {EventKind.BUG_RETURNED, EventKind.NEW_RELEASE_AFFECTED}
)
"""A released wheel does not change: what it has ends with a release that has it no
more."""


@dataclass
class Concern:
    """One event and what became of it.

    Attributes:
        event: the newest one; its identity is the concern's.
        since: the nightly run that found it first.
        expected_then: whether what came out was what the scenario expected.
        state: of the cell when it last had a verdict; ``unknown``: it had none since.
        seen: the night of that verdict; empty: none since.
        settled: what the runs of that night came to.
        runs: those of the cell in ``seen``, or the newest there are.
        night: the newest that planned the cell; ``tonight``: what it shows of it.
        over: why it is over, one sentence; empty: it is not.
    """

    event: Event
    since: str
    cell: Cell
    expected_then: bool | None = None
    state: str = _UNKNOWN
    seen: str = ""
    settled: Settled | None = None
    runs: list[Attempt] = field(default_factory=list)
    night: str = ""
    tonight: Settled | None = None
    over: str = ""

    @property
    def identity(self) -> str:
        return self.event.identity


def concerns(history: History) -> dict[str, Concern]:
    """Every concern that the ledger ever had, by identity, those that are over too."""
    walk = _Walk()
    for runs in history.nights:
        walk.take(history, runs)

    return walk.concerns


class _Walk:
    """Nights in the order in which they began."""

    def __init__(self) -> None:
        self.concerns: dict[str, Concern] = {}
        self._tracks: dict[str, CellTrack] = {}

    def take(self, history: History, runs: NightRuns) -> None:
        running = runs.night.state is NightState.RUNNING
        settled: dict[str, Settled] = {}
        for name, planned in runs.planned.items():
            attempts = runs.attempts_of(name)
            # A job of a night that still runs may yet be run.
            if attempts or not running:
                track = self._tracks.setdefault(name, CellTrack(planned.cell))
                settled[name], _ = track.add(runs.night.id, attempts)

        # A night that was killed told nothing of what it found.
        new = events(history, runs) if running else runs.events
        for event in new:
            self._begin(event, runs)

        for concern in self.concerns.values():
            if not concern.over:
                self._follow(concern, runs, settled)

        # After all verdicts: a release that is fixed ends what earlier ones have.
        for event in new:
            if event.what is EventKind.FIXED_IN:
                self._fix(event, runs)

    def _begin(self, event: Event, runs: NightRuns) -> None:
        track = self._tracks.get(event.cell)
        if track is None or not _concerns(event, runs.planned.get(event.cell)):
            return
        known = self.concerns.get(event.identity)
        if known is not None and not known.over:
            known.event = event
            return

        self.concerns[event.identity] = Concern(
            event=event,
            since=runs.night.id,
            cell=track.cell,
            expected_then=_as_expected(runs, event.cell),
        )

    def _follow(
        self, concern: Concern, runs: NightRuns, settled: dict[str, Settled]
    ) -> None:
        name = concern.event.cell
        # What is not planned has no runs to follow it by.
        if name not in runs.planned:
            return
        tonight = settled.get(name, Settled(JobState.MISSING, why="no run"))
        concern.night = runs.night.id
        concern.tonight = tonight

        track = self._tracks[name]
        attempts = runs.attempts_of(name)
        # Until there is a verdict, the newest runs are all that can be shown.
        if not concern.seen:
            concern.runs = attempts or concern.runs or track.attempts
        if name not in settled or not track.covered:
            return

        concern.seen = runs.night.id
        concern.settled = tonight
        concern.runs = attempts
        if concern.event.what is not EventKind.COVERAGE_LOST:
            state = JobState.FLAKY if track.shaky else tonight.state
            concern.state = state.value
        concern.over = _over(concern, runs, tonight, shaky=track.shaky)

    def _fix(self, fix: Event, runs: NightRuns) -> None:
        planned = runs.planned.get(fix.cell)
        if planned is None:
            return
        fixed = planned.cell
        name = fixed.commit[:12] or fixed.release
        for concern in self.concerns.values():
            if concern.over or concern.event.what not in _OF_A_RELEASE:
                continue
            if _later_release(fixed, concern.cell):
                where = f"{fixed.engine} {name}"
                concern.over = f"It is fixed in {where}, in night {fix.night}."


def _concerns(event: Event, planned: Planned | None) -> bool:
    """Whether somebody should look at it. A cell that is planned no more is no concern:
    with ``newest`` each new release takes the place of a cell."""
    if event.what in ALARMS:
        return True
    if event.what is EventKind.NEW_RELEASE_AFFECTED:
        return planned is not None and planned.expected is not Outcome.REPRODUCED
    return event.what is EventKind.COVERAGE_LOST and planned is not None


def _over(concern: Concern, runs: NightRuns, now: Settled, *, shaky: bool) -> str:
    """Why a verdict of this night ends it; "": it does not."""
    night = runs.night.id
    verdict = f"In night {night} it is {now.state} ({now.why})"
    what = concern.event.what
    if what is EventKind.COVERAGE_LOST:
        return f"{verdict}: it has a verdict again."
    # A flaky cell shows either verdict: neither ends anything.
    if shaky:
        return ""

    as_expected = _as_expected(runs, concern.event.cell)
    drifted_before = _drifted_before(concern, night)
    if what is EventKind.FLAKY and as_expected is not False:
        return f"{verdict}: under its new key no run contradicts another."
    if as_expected and (concern.expected_then is False or drifted_before):
        return f"{verdict}, which is what the scenario expects."

    works = now.state is JobState.NOT_REPRODUCED
    if what in (EventKind.DRIFT, EventKind.FLAKY):
        # Nothing was expected of it: that nothing fails is the best that it can show.
        fine = works and as_expected is None
        return f"{verdict}, and nothing fails." if fine and drifted_before else ""
    if what is EventKind.DIFFERENT_FAILURE:
        same = now.state is JobState.DIFFERENT_FAILURE
        return "" if same else f"{verdict}, and fails so no more."
    return f"{verdict}." if works else ""


def _drifted_before(concern: Concern, night: str) -> bool:
    """A drift is told at least once, whatever it leads to."""
    return concern.event.what is EventKind.DRIFT and concern.since != night


def _as_expected(runs: NightRuns, name: str) -> bool | None:
    """Judge against what the runs say was expected, else against the plan."""
    settled = settle(runs.attempts_of(name))
    planned = runs.planned.get(name)
    if settled.as_expected is not None or planned is None or planned.expected is None:
        return settled.as_expected
    return settled.state.value == planned.expected.value


def _later_release(fixed: Cell, concerned: Cell) -> bool:
    """Whether ``fixed`` is a later release on the same line; of commits, any other
    one."""
    if fixed.line != concerned.line:
        return False
    if bool(fixed.commit) != bool(concerned.commit) or fixed.id == concerned.id:
        return False
    try:
        return bool(fixed.commit) or Version(fixed.release) > Version(concerned.release)
    except InvalidVersion:
        return False


_Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
_EXAMPLE = (
    'mmrepro help history; an entry begins with [[quarantine]] and scenario = "NAME"'
)


class QuarantineEntry(Record):
    """What is quarantined, and all that has to be known about it."""

    scenario: _Text
    variant: Annotated[str | None, Field(description="None: any")] = None
    engine: Annotated[str | None, Field(description="None: any")] = None
    releases: Annotated[str, Field(description="e.g. '>=0.14, <0.24'; empty: all")] = ""
    reason: _Text
    issue: Annotated[_Text, Field(description="where it is worked on")]
    owner: _Text
    expires: Annotated[date, Field(description="the last day on which it counts")]

    @field_validator("releases")
    @classmethod
    def _specifier(cls, text: str) -> str:
        try:
            SpecifierSet(text)
        except InvalidSpecifier:
            raise ValueError(
                f"{text!r} is no range of releases such as '>=0.14, <0.24'"
            ) from None
        return text

    def covers(self, cell: Cell) -> bool:
        if cell.scenario != self.scenario or self.engine not in (None, cell.engine):
            return False
        if self.variant not in (None, cell.variant):
            return False
        try:
            return SpecifierSet(self.releases).contains(cell.release, prereleases=True)
        except InvalidVersion:
            return not self.releases

    def expired(self, when: date | datetime) -> bool:
        day = when.date() if isinstance(when, datetime) else when
        return day > self.expires

    @property
    def what(self) -> str:
        text = self.scenario
        if self.variant:
            text += f" ({self.variant})"
        if self.engine:
            text += f" on {self.engine}"
        if self.releases:
            text += f" {self.releases}"
        return text

    @property
    def says(self) -> str:
        return (
            f"quarantined until {self.expires}: {self.reason} ({self.issue}, "
            f"{self.owner})"
        )


@dataclass(frozen=True)
class Quarantine:
    """The entries of one file, in its order: cells whose verdict is no news, for a
    reason, until a day. They still run and are still shown; only nobody is woken for
    them."""

    entries: tuple[QuarantineEntry, ...] = ()
    source: str = ""

    def entry_for(self, cell: Cell, when: date | datetime) -> QuarantineEntry | None:
        """The first entry that covers ``cell`` and has not expired."""
        for entry in self.entries:
            if entry.covers(cell) and not entry.expired(when):
                return entry

        return None

    def warnings(self, cells: Iterable[Cell], when: date | datetime) -> list[str]:
        """A sentence for each entry that has expired, and for each that covers no
        cell."""
        known = list(cells)
        warnings = []
        for entry in self.entries:
            if entry.expired(when):
                warnings.append(
                    f"The quarantine of {entry.what} expired on {entry.expires} and "
                    f"counts no more: {entry.owner} is to look at {entry.issue}."
                )
            elif not any(entry.covers(cell) for cell in known):
                warnings.append(
                    f"The quarantine of {entry.what} covers no cell of this plan."
                )

        return warnings


def load_quarantine(path: Path) -> Quarantine:
    """Read a TOML file of ``[[quarantine]]`` tables.

    Raises:
        UsageError: it cannot be read, or an entry lacks something; all that is wrong is
            told.
    """
    data = read_toml(path, _EXAMPLE)
    tables = data.pop("quarantine", [])
    wrong = [f"{name!r} means nothing here" for name in data]
    if not isinstance(tables, list):
        wrong.append("'quarantine' is to be written as [[quarantine]]")
        tables = []

    entries = []
    for number, table in enumerate(tables, start=1):
        try:
            entries.append(QuarantineEntry.model_validate(table))
        except ValidationError as error:
            place = f"entry {number}{_named(table)}"
            for fault in _faults(error, table):
                wrong.append(f"{place}: {fault}")

    if wrong:
        raise UsageError(f"{path}: {'; '.join(wrong)}.", hint=_EXAMPLE)
    return Quarantine(tuple(entries), str(path))


def _faults(error: ValidationError, table: object) -> list[str]:
    faults = []
    for place, kind, words in misfits(error, table):
        field = ".".join(map(str, place))
        known = {
            "missing": f"'{field}' is missing",
            "string_too_short": f"'{field}' is empty",
            "extra_forbidden": f"'{field}' means nothing here",
            "value_error": one_line(words, 200),
        }
        faults.append(known.get(kind, f"'{field}': {one_line(words, 200)}"))

    return faults


def _named(table: object) -> str:
    name = table.get("scenario") if isinstance(table, dict) else None
    return f" ({one_line(name, 60)})" if isinstance(name, str) else ""
