"""A night as every format tells it: its rows, columns, squares, trend and counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from mmrepro.base.units import duration
from mmrepro.history.events import events as find_events
from mmrepro.history.ledger import History, NightRuns
from mmrepro.history.quarantine import Quarantine
from mmrepro.history.states import State, settle
from mmrepro.incident.ledger import Event, NightState
from mmrepro.records import Fidelity
from mmrepro.reports.night_square import Column, Square
from mmrepro.reports.night_words import (
    EVENT_TONES,
    NIGHT_WORDS,
    STANDING_WORDS,
    STATE_WORDS,
    Standing,
    and_list,
    plural,
)
from mmrepro.reports.words import sane
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

NIGHTS: Final = 14
"""Of the trend: the newest ones."""


@dataclass(frozen=True)
class Point:
    """One night of a trend."""

    night: str
    counts: Counter[State]
    surprises: int
    seconds: float

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    @property
    def told(self) -> str:
        told = ", ".join(f"{self.counts[s]} {STATE_WORDS[s]}" for s in State if self.counts[s])
        odd = f", {self.surprises} not as expected" if self.surprises else ""
        return f"{told or 'no cells'}{odd}; {duration(self.seconds)}"

    @property
    def words(self) -> str:
        return f"{self.night}: {self.told}"


@dataclass
class Row:
    """A scenario with all that is set for it, over the releases."""

    line: str
    name: str
    device: str
    title: str
    affected: str
    mitigated: bool
    squares: dict[Column, Square] = field(default_factory=dict)
    trend: list[Point] = field(default_factory=list)

    @property
    def fidelity(self) -> Fidelity | None:
        """The one that most of its squares have."""
        seen = Counter(s.fidelity for s in self.squares.values() if s.fidelity)
        return seen.most_common(1)[0][0] if seen else None


@dataclass
class Grid:
    """The picture of one engine."""

    engine: str
    columns: list[Column]
    rows: list[Row]

    @property
    def squares(self) -> list[Square]:
        return [s for row in self.rows for s in row.squares.values()]

    def band(self, row: Row) -> dict[Column, str]:
        """Which releases the scenario declares as affected, each with its place in the range."""
        inside = [affects(row.affected, c.release) for c in self.columns]
        words = {}
        for n, column in enumerate(self.columns):
            if inside[n]:
                first = n == 0 or not inside[n - 1]
                last = n + 1 == len(inside) or not inside[n + 1]
                words[column] = "band" + " first" * first + " last" * last
        return words


@dataclass(frozen=True)
class Headline:
    label: str
    tone: str
    text: str


@dataclass
class NightView:
    """A night as a reader wants it. Every square has one state and one standing."""

    runs: NightRuns
    before: str
    """Id of the night before; empty: it is the first."""
    events: list[Event]
    grids: list[Grid]
    trend: list[Point]
    shifts: list[str] = field(default_factory=list)
    """What came out otherwise than in the night before and is no event: ``2 × lost → …``."""
    notes: list[str] = field(default_factory=list)
    """What is wrong with the quarantine: expired entries, those of no cell."""
    history: History = field(default_factory=History)
    """The ledger until this nightly run, which is its newest."""
    excused: Quarantine = field(default_factory=Quarantine)

    @cached_property
    def squares(self) -> list[Square]:
        return [s for grid in self.grids for s in grid.squares]

    @cached_property
    def states(self) -> Counter[State]:
        return Counter(s.state for s in self.squares)

    @cached_property
    def standings(self) -> Counter[Standing]:
        return Counter(s.standing for s in self.squares)

    def standing(self, standing: Standing) -> list[Square]:
        return [s for s in self.squares if s.standing is standing]

    @cached_property
    def quarantined(self) -> list[Square]:
        """All that have an entry, whatever came out."""
        return [s for s in self.squares if s.quarantine is not None]

    @cached_property
    def by_id(self) -> dict[str, Square]:
        return {s.cell.id: s for s in self.squares}

    @property
    def title(self) -> str:
        return f"Night {self.runs.night.id}"

    @cached_property
    def headline(self) -> Headline:
        counts = self.standings
        parts = [
            f"{counts[s]} {STANDING_WORDS[s]}"
            for s in (Standing.SURPRISE, Standing.FLAKY, Standing.UNTESTED)
            if counts[s]
        ]
        tones = {e.what: EVENT_TONES[e.what] for e in self.events}.values()
        bad = counts[Standing.SURPRISE] or "bad" in tones
        tone = "bad" if bad else "unsure" if parts or "unsure" in tones else "good"
        if not self.squares:
            return Headline("Nothing planned", "unsure", "this night plans no cell")
        if not parts:
            return Headline("All as expected" if tone == "good" else "As expected, but changed",
                            tone, self.changes)  # fmt: skip
        return Headline(", ".join(parts), tone, self.changes)

    @property
    def changes(self) -> str:
        if not self.before:
            return "the first night of this ledger" if not self.events else (
                f"{len(self.events)} {plural(len(self.events), 'event')}, "
                "in the first night of this ledger"
            )  # fmt: skip
        count = len(self.events)
        told = f"{count} {plural(count, 'change')}" if count else "no bug came or went"
        if not count and not self.shifts:
            told = "nothing changed"
        return f"{told} since night {self.before}"

    @property
    def unchanged(self) -> str:
        """Instead of events, where there are none."""
        if not self.before:
            return "This is the first night of this ledger: there is nothing to compare it with."
        if self.shifts:
            return "No bug came or went."
        return f"Nothing: every cell came out as in night {self.before}."

    @property
    def shifted(self) -> str:
        """A sentence; "" where nothing but the events is different."""
        if not self.shifts:
            return ""
        return f"Otherwise than in night {self.before}, and no event: {', '.join(self.shifts)}."

    @property
    def counts(self) -> str:
        """``32 cells: 14 reproduced, …``; the counts are those of the squares."""
        total = len(self.squares)
        told = ", ".join(f"{self.states[s]} {STATE_WORDS[s]}" for s in State if self.states[s])
        return f"{total} {plural(total, 'cell')}: {told or 'none'}"

    @property
    def scale(self) -> str:
        """How much was run."""
        lines = sum(len(g.rows) for g in self.grids)
        releases = sum(len(g.columns) for g in self.grids)
        runs = self.runs.attempts
        seconds = sum(a.seconds for a in runs if sane(a.seconds))
        return (
            f"{lines} {plural(lines, 'scenario line')} on {releases} "
            f"{plural(releases, 'release')} of {and_list(g.engine for g in self.grids)}; "
            f"{len(runs)} {plural(len(runs), 'run')}, together {duration(seconds)}."
        )

    @property
    def warning(self) -> str:
        """Said at the very top where the night is not whole."""
        state = self.runs.night.state
        if state is NightState.COMPLETE:
            return ""
        missing = self.states[State.MISSING]
        left = "have no run yet" if state is NightState.RUNNING else "did not run"
        rest = f"; {missing} of {len(self.squares)} cells {left}" if missing else ""
        return f"This night is {NIGHT_WORDS[state]}{rest}."

    @property
    def setup(self) -> list[tuple[str, str]]:
        """How it was run."""
        night = self.runs.night
        machines = sorted({a.machine for a in self.runs.attempts if a.machine} | {night.machine})
        gpus = sorted({g for a in self.runs.attempts for g in a.gpus})
        took = ""
        if night.finished is not None:
            took = duration((night.finished.wall - night.created.wall).total_seconds())
        modes = Counter(a.start_mode for a in self.runs.attempts if a.start_mode)
        host = f"{night.host.cpu}, {night.host.cores} cores, {night.host.os}"
        facts = [
            ("state", NIGHT_WORDS[night.state]),
            ("began", night.created.wall.strftime("%Y-%m-%d %H:%M:%S UTC")),
            ("took", took),
            ("shard", night.shard),
            ("runs of each cell", f"{night.repeat}; a surprise is run {night.confirm} times more"),
            ("starts", ", ".join(f"{n} {mode}" for mode, n in modes.most_common())),
            ("machines", ", ".join(filter(None, machines))),
            ("GPUs", ", ".join(gpus) or "none"),
            ("host", host),
            ("made by", f"mmrepro {night.mmrepro_version}"),
        ]
        return [(name, value) for name, value in facts if value]

    @property
    def next_commands(self) -> list[tuple[str, str]]:
        """What to type next, and what for."""
        told = [
            (
                "run it again (on its day: go on with this night; later: the next one)",
                self.runs.night.command,
            )
        ]
        for square in [*self.standing(Standing.SURPRISE), *self.standing(Standing.FLAKY)][:5]:
            run = square.deciding
            if run is not None and run.command:
                column = f"{square.cell.engine} {square.column.label}"
                told.append((f"repeat {square.cell.row} on {column}", run.command))
        return told


def night_view(history: History, runs: NightRuns, quarantine: Quarantine) -> NightView:
    """The night, with what the nights before say of its rows and who was excused on its day."""
    when = runs.night.created.wall
    before = history.before(runs.night)
    told = runs.events or find_events(history, runs)
    order = list(EVENT_TONES)
    told = sorted(told, key=lambda e: order.index(e.what))
    of_cell: dict[str, list[Event]] = {}
    for event in told:
        of_cell.setdefault(event.cell, []).append(event)
    grids = _grids(
        Square(
            planned,
            settle(runs.attempts_of(name)),
            runs.attempts_of(name),
            quarantine.entry_for(planned.cell, when),
            of_cell.get(name, ()),
        )
        for name, planned in runs.planned.items()
    )
    rows = {row.line: row for grid in grids for row in grid.rows}
    trend = []
    for past in before[-(NIGHTS - 1) :]:
        lines = _lines(past)
        trend.append(_point(past.night.id, [s for line in lines.values() for s in line]))
        for line, row in rows.items():
            row.trend.append(_point(past.night.id, lines.get(line, ())))
    for row in rows.values():
        row.trend.append(_point(runs.night.id, [*row.squares.values()]))
    trend.append(_point(runs.night.id, [s for grid in grids for s in grid.squares]))
    notes = quarantine.warnings(runs.cells.values(), when)
    shifts = _shifts(before[-1], runs, set(of_cell)) if before else []
    last = before[-1].night.id if before else ""
    known = History([*before, runs])
    return NightView(runs, last, told, grids, trend, shifts, notes, known, quarantine)


def _shifts(before: NightRuns, now: NightRuns, told: set[str]) -> list[str]:
    """How cells came out in the two nights where they differ and no event tells it."""
    found: Counter[str] = Counter()
    for name in now.planned.keys() - told:
        state = STATE_WORDS[settle(now.attempts_of(name)).state]
        if name not in before.planned:
            found[f"not planned then → {state}"] += 1
            continue
        then = STATE_WORDS[settle(before.attempts_of(name)).state]
        if then != state:
            found[f"{then} → {state}"] += 1
    gone = len(before.planned.keys() - now.planned.keys())
    if gone:
        found["not planned any more"] = gone
    return [f"{count} × {words}" for words, count in sorted(found.items())]


def _lines(runs: NightRuns) -> dict[str, list[Square]]:
    """The squares of a former night, by line."""
    found: dict[str, list[Square]] = {}
    for name, planned in runs.planned.items():
        attempts = runs.attempts_of(name)
        square = Square(planned, settle(attempts), attempts)
        found.setdefault(planned.cell.line, []).append(square)
    return found


def _point(night: str, squares: Sequence[Square]) -> Point:
    return Point(
        night,
        Counter(s.state for s in squares),
        sum(s.odd for s in squares),
        sum(s.seconds for s in squares),
    )


def _grids(squares: Iterable[Square]) -> list[Grid]:
    engines: dict[str, dict[str, Row]] = {}
    for square in squares:
        cell = square.cell
        rows = engines.setdefault(cell.engine, {})
        row = rows.setdefault(
            cell.line,
            Row(
                cell.line,
                cell.row,
                cell.device,
                square.planned.title,
                square.planned.affected,
                bool(cell.mitigations),
            ),
        )
        row.squares[square.column] = square
    grids = []
    for engine, rows in sorted(engines.items()):
        columns = sorted({c for r in rows.values() for c in r.squares}, key=lambda c: c.order)
        named = sorted(rows.values(), key=lambda r: (r.name, r.device, r.line))
        for row in named:
            row.squares = dict(sorted(row.squares.items(), key=lambda item: item[0].order))
        grids.append(Grid(engine, columns, named))
    return grids


def affects(specifier: str, release: str) -> bool:
    """Whether the declared range has that release; nothing declared or no version: no."""
    try:
        return bool(specifier.strip()) and SpecifierSet(specifier).contains(
            Version(release), prereleases=True
        )
    except (InvalidSpecifier, InvalidVersion):
        return False
