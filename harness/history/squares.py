"""The jobs of a nightly run as squares of scenarios × releases: what each came to, and
what that means."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from itertools import groupby
from typing import Final, NamedTuple

from mmrepro.base.records import Fidelity
from mmrepro.base.text import one_line
from mmrepro.base.units import Tone, count, duration, sane, slug
from mmrepro.failure.documents import Attempt, Cell, Event, EventKind, Planned
from mmrepro.failure.signature import Outcome
from mmrepro.history.concerns import Quarantine, QuarantineEntry
from mmrepro.history.ledger import NightRuns
from mmrepro.history.states import VERDICTS, JobState, Settled, settle
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version


class SquareStanding(StrEnum):
    """What a square means to a reader: each has exactly one."""

    SURPRISE = "surprise"
    FLAKY = "flaky"
    UNTESTED = "untested"
    QUARANTINED = "quarantined"
    """Not as expected or flaky, and known: it runs, and turns nothing red."""
    EXPECTED = "expected"
    UNJUDGED = "unjudged"
    """It has a verdict, and none was expected."""

    @property
    def words(self) -> str:
        return "not as expected" if self is SquareStanding.SURPRISE else self.value


class SquareLook(NamedTuple):
    """How a state is shown: never by its colour alone."""

    word: str
    mark: str
    tone: Tone
    meaning: str


LOOKS: Final[dict[JobState, SquareLook]] = {
    JobState.REPRODUCED: SquareLook(
        word="reproduced",
        mark="✘",
        tone="bad",
        meaning="the release has this failure: symptom and cause were observed",
    ),
    JobState.NOT_REPRODUCED: SquareLook(
        word="not reproduced",
        mark="✔",
        tone="good",
        meaning="the trigger arrived, nothing failed, the engine still works",
    ),
    JobState.DIFFERENT_FAILURE: SquareLook(
        word="different failure",
        mark="◆",
        tone="bad",
        meaning="it fails, and not for the cause that the scenario names",
    ),
    JobState.INCONCLUSIVE: SquareLook(
        word="inconclusive",
        mark="?",
        tone="unsure",
        meaning="too little was observed to say",
    ),
    JobState.FLAKY: SquareLook(
        word="flaky",
        mark="≈",
        tone="unsure",
        meaning="both verdicts at an unchanged key; k of n runs reproduced it",
    ),
    JobState.LOST: SquareLook(
        word="lost",
        mark="∅",
        tone="unsure",
        meaning="no run reached a verdict: nothing was learnt",
    ),
    JobState.MISSING: SquareLook(
        word="did not run",
        mark="–",
        tone="unsure",
        meaning="planned, and never run",
    ),
}
EVENTS: Final[dict[EventKind, tuple[str, Tone]]] = {
    EventKind.BUG_RETURNED: ("bug returned", "bad"),
    EventKind.NEW_RELEASE_AFFECTED: ("new release affected", "bad"),
    EventKind.DIFFERENT_FAILURE: ("different failure", "bad"),
    EventKind.DRIFT: ("drift", "bad"),
    EventKind.FLAKY: ("flaky", "unsure"),
    EventKind.COVERAGE_LOST: ("coverage lost", "unsure"),
    EventKind.NIGHT_MISSING: ("nightly run missing", "unsure"),
    EventKind.FIXED_IN: ("fixed", "good"),
    EventKind.NEW_RELEASE: ("new release", "soft"),
}
"""Words and tone of each, in the order in which they are shown."""


class ReleaseColumn(NamedTuple):
    """A release of an engine, or a commit of it."""

    release: str
    commit: str = ""

    @property
    def label(self) -> str:
        return f"{self.release} {self.commit[:9]}".strip()

    @property
    def order(self) -> tuple[bool, Version, str, str]:
        """Sort by version; what is none comes last."""
        try:
            return (False, Version(self.release), self.release, self.commit)
        except InvalidVersion:
            return (True, Version("0"), self.release, self.commit)


@dataclass(frozen=True)
class Square:
    """A job of the plan, and all that this nightly run knows of it."""

    planned: Planned
    settled: Settled
    attempts: Sequence[Attempt]
    quarantine: QuarantineEntry | None = None
    events: Sequence[Event] = ()

    @property
    def cell(self) -> Cell:
        return self.planned.cell

    @property
    def column(self) -> ReleaseColumn:
        return ReleaseColumn(self.cell.release, self.cell.commit)

    @property
    def place(self) -> str:
        return f"{self.cell.engine} {self.column.label}"

    @property
    def anchor(self) -> str:
        return slug(f"c-{self.cell.id}")

    @property
    def state(self) -> JobState:
        return self.settled.state

    @cached_property
    def standing(self) -> SquareStanding:
        flaky = self.state is JobState.FLAKY
        if not flaky and self.state not in VERDICTS:
            return SquareStanding.UNTESTED
        if not flaky and not self.odd:
            judged = self.expected is not None
            return SquareStanding.EXPECTED if judged else SquareStanding.UNJUDGED
        if self.quarantine:
            return SquareStanding.QUARANTINED
        return SquareStanding.FLAKY if flaky else SquareStanding.SURPRISE

    @property
    def odd(self) -> bool:
        """Whether it has a verdict that was not expected, quarantined or not."""
        return self.state in VERDICTS and self.settled.as_expected is False

    @property
    def fidelity(self) -> Fidelity | None:
        """The newest run's that has one."""
        for attempt in reversed(self.attempts):
            if attempt.fidelity:
                return attempt.fidelity

        return None

    @property
    def seconds(self) -> float:
        return sum(run.seconds for run in self.attempts if sane(run.seconds))

    @property
    def mark(self) -> str:
        """Sign of the square: ``✘``, or ``≈2/3`` of a flaky one; ``!``: not as
        expected; ``q``: in quarantine."""
        sign = LOOKS[self.state].mark
        if self.state is JobState.FLAKY:
            sign += f"{self.settled.reproduced}/{self.settled.conclusive}"
        if self.quarantine is not None:
            return f"{sign} q"
        return f"{sign} !" if self.standing is SquareStanding.SURPRISE else sign

    @property
    def words(self) -> str:
        """Describe the state, e.g. ``flaky: 3 of 8 reproduced (14–69 %)``."""
        if self.state is not JobState.FLAKY:
            return LOOKS[self.state].word
        settled = self.settled
        interval = f"{100 * settled.low:.0f}–{100 * settled.high:.0f} %"
        share = f"{settled.reproduced} of {settled.conclusive}"
        return f"flaky: {share} reproduced ({interval})"

    @property
    def expected(self) -> Outcome | None:
        """Outcome that the runs expected, by which they are judged; without a run, that
        of the plan."""
        return self.settled.expected or self.planned.expected

    @property
    def expectation(self) -> str:
        """``as expected``, or what was expected instead."""
        if self.expected is None:
            return "nothing was expected"
        if self.settled.as_expected:
            return "as expected"
        return f"expected: {self.expected.words}"

    @property
    def why(self) -> str:
        """What the run that decides the state reports."""
        run = self.deciding
        return (run.explanation or run.error) if run else self.settled.why

    @property
    def deciding(self) -> Attempt | None:
        """The newest run that has the state of the square; the newest of all where none
        has."""
        for attempt in reversed(self.attempts):
            if attempt.outcome and attempt.outcome.value == self.state.value:
                return attempt

        return self.attempts[-1] if self.attempts else None

    @property
    def title(self) -> str:
        """All that matters of the square, in one line."""
        settled = self.settled
        parts = [f"{self.place}, {self.cell.row}", self.words, self.expectation]
        if settled.conclusive > 1 and self.state is not JobState.FLAKY:
            share = f"{settled.reproduced} of {settled.conclusive}"
            parts.append(f"{share} runs reproduced it")

        if settled.lost:
            parts.append(f"{count(settled.lost, 'run')} lost")
        if self.quarantine is not None:
            parts.append(self.quarantine.says)
        if self.fidelity is not None:
            parts.append(f"fidelity {self.fidelity}")
        if self.attempts:
            parts.append(duration(self.seconds))
        return "; ".join(parts)


def affects(specifier: str, release: str) -> bool:
    """Whether the declared range has that release; nothing declared or no version:
    no."""
    if not specifier.strip():
        return False
    try:
        known = SpecifierSet(specifier)
        return known.contains(Version(release), prereleases=True)
    except (InvalidSpecifier, InvalidVersion):
        return False


def state_words(squares: Iterable[Square]) -> list[str]:
    """``14 reproduced``, for each state that there is."""
    counts = Counter(square.state for square in squares)
    words = []
    for state in JobState:
        if counts[state]:
            words.append(f"{counts[state]} {LOOKS[state].word}")

    return words


class TrendPoint:
    """One nightly run of a trend."""

    def __init__(self, night: str, squares: Sequence[Square]) -> None:
        self.night = night
        self.counts = Counter(square.state for square in squares)
        self.total = len(squares)
        self.surprises = sum(square.odd for square in squares)
        self.seconds = sum(square.seconds for square in squares)

        states = ", ".join(state_words(squares)) or "no jobs"
        odd = f", {self.surprises} not as expected" if self.surprises else ""
        self.text = f"{states}{odd}; {duration(self.seconds)}"


@dataclass
class ScenarioRow:
    """A scenario with all that is set for it, over the releases."""

    planned: Planned
    squares: dict[ReleaseColumn, Square] = field(default_factory=dict)
    trend: list[TrendPoint] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.planned.cell.row

    @property
    def fidelity(self) -> Fidelity | None:
        """The one that most of its squares have."""
        counts: Counter[Fidelity] = Counter()
        for square in self.squares.values():
            if square.fidelity:
                counts[square.fidelity] += 1

        for fidelity, _ in counts.most_common(1):
            return fidelity
        return None

    @property
    def ranges(self) -> str:
        """Neighbours that came out alike, together: ``✘ 0.14.0–0.23.0 (4), ✔
        0.24.0``."""
        parts = []
        for mark, group in groupby(self.squares.items(), key=lambda item: item[1].mark):
            names = [one_line(column.label, 40) for column, _ in group]
            several = f"–{names[-1]} ({len(names)})" if len(names) > 1 else ""
            parts.append(f"{mark} {names[0]}{several}")

        return ", ".join(parts) or "–"


@dataclass
class Grid:
    """The rows and releases of one engine, the oldest release first."""

    engine: str
    columns: list[ReleaseColumn]
    rows: list[ScenarioRow]

    @property
    def squares(self) -> list[Square]:
        squares: list[Square] = []
        for row in self.rows:
            squares += row.squares.values()

        return squares


def grids_of(squares: Iterable[Square]) -> list[Grid]:
    """A grid for each engine, by name."""
    engines: dict[str, dict[str, ScenarioRow]] = {}
    for square in squares:
        rows = engines.setdefault(square.cell.engine, {})
        row = rows.setdefault(square.cell.line, ScenarioRow(square.planned))
        row.squares[square.column] = square

    return [_grid(engine, rows) for engine, rows in sorted(engines.items())]


def _grid(engine: str, rows: dict[str, ScenarioRow]) -> Grid:
    """Make the grid of one engine. ``rows``: by their lines."""
    columns: set[ReleaseColumn] = set()
    for row in rows.values():
        columns.update(row.squares)

    ordered = sorted(columns, key=lambda column: column.order)
    for row in rows.values():
        known = [column for column in ordered if column in row.squares]
        row.squares = {column: row.squares[column] for column in known}

    def order(line: str) -> tuple[str, str, str]:
        row = rows[line]
        return row.name, row.planned.cell.device, line

    lines = sorted(rows, key=order)
    return Grid(engine, ordered, [rows[line] for line in lines])


def importance(event: Event) -> int:
    """Rank an event by its kind; the most important has the lowest number."""
    return [*EVENTS].index(event.what)


def squares_of(
    runs: NightRuns,
    quarantine: Quarantine | None = None,
    events: dict[str, list[Event]] | None = None,
) -> list[Square]:
    """A square for each job of the plan. ``events``: by job."""
    when = runs.night.created.wall
    squares = []
    for name, planned in runs.planned.items():
        attempts = runs.attempts_of(name)
        entry = quarantine.entry_for(planned.cell, when) if quarantine else None
        of_job = events.get(name, ()) if events else ()
        squares.append(Square(planned, settle(attempts), attempts, entry, of_job))

    return squares
