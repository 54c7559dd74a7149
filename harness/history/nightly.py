"""A nightly run with what the runs before it show, and as documents for machines.

docs/nightly/README.md has the fields.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

from mmrepro.base.records import Document
from mmrepro.base.units import Tone, count, duration, sane
from mmrepro.failure.documents import Attempt, Cell, Event, Night, NightState
from mmrepro.history.concerns import Concern, Quarantine, concerns
from mmrepro.history.events import ALARMS, events as find_events
from mmrepro.history.ledger import History, NightRuns
from mmrepro.history.squares import (
    EVENTS,
    LOOKS,
    ReleaseColumn,
    Square,
    SquareStanding,
    TrendPoint,
    grids_of,
    importance,
    squares_of,
)
from mmrepro.history.states import JobState, Settled, settle

_NIGHTS: Final = 14
"""In the trend: the newest ones."""
NIGHT_WORDS: Final[dict[NightState, str]] = {
    NightState.RUNNING: "still running, or killed",
    NightState.COMPLETE: "complete",
    NightState.INTERRUPTED: "interrupted",
    NightState.OUT_OF_TIME: "out of time",
}


class NightHeadline(NamedTuple):
    """What a nightly run came to, in a few words."""

    label: str
    tone: Tone
    note: str


class NightView:
    """A nightly run with what the runs before show. Every square has one state and one
    standing.

    Attributes:
        before: id of the nightly run before; empty: it is the first.
        history: the ledger until this nightly run, which is its newest.
        excused: the quarantine; its entries count by the day of the run.
        folder: where reports of its runs may lie; None: nothing is linked.
        shifts: what came out otherwise than in the run before and is no event.
        notes: what is wrong with the quarantine: expired entries, those of no job.
    """

    def __init__(
        self,
        history: History,
        runs: NightRuns,
        excused: Quarantine,
        folder: Path | None = None,
    ) -> None:
        self.runs = runs
        self.excused = excused
        self.folder = folder

        before = history.before(runs.night)
        last = before[-1] if before else None
        self.before = last.night.id if last else ""
        self.history = History([*before, runs])

        # A night that is over has its events; those of one that runs are found anew.
        events = runs.events or find_events(history, runs)
        self.events = sorted(events, key=importance)
        of_cell: dict[str, list[Event]] = {}
        for event in self.events:
            of_cell.setdefault(event.cell, []).append(event)

        self.grids = grids_of(squares_of(runs, excused, of_cell))
        self.squares: list[Square] = []
        for grid in self.grids:
            self.squares += grid.squares

        self.trend: list[TrendPoint] = []
        for past in before[-(_NIGHTS - 1) :]:
            self._add(past.night.id, squares_of(past))
        self._add(runs.night.id, self.squares)

        self.shifts = _shifts(last, runs, set(of_cell)) if last else []
        self.notes = excused.warnings(runs.cells.values(), runs.night.created.wall)
        self.states = Counter(square.state for square in self.squares)
        self.standings = Counter(square.standing for square in self.squares)
        self.by_id = {square.cell.id: square for square in self.squares}

    def _add(self, night: str, squares: Sequence[Square]) -> None:
        """Add a nightly run to the trends."""
        lines: dict[str, list[Square]] = {}
        for square in squares:
            lines.setdefault(square.cell.line, []).append(square)

        self.trend.append(TrendPoint(night, squares))
        for grid in self.grids:
            for row in grid.rows:
                of_row = lines.get(row.planned.cell.line, [])
                row.trend.append(TrendPoint(night, of_row))

    def standing(self, standing: SquareStanding) -> list[Square]:
        return [square for square in self.squares if square.standing is standing]

    @cached_property
    def badge(self) -> NightHeadline:
        counts = self.standings
        parts = []
        for standing in (
            SquareStanding.SURPRISE,
            SquareStanding.FLAKY,
            SquareStanding.UNTESTED,
        ):
            if counts[standing]:
                parts.append(f"{counts[standing]} {standing.words}")

        tone = self._tone(bool(parts))
        if parts:
            label = ", ".join(parts)
        elif not self.squares:
            label = "Nothing planned"
        elif tone == "good":
            label = "All as expected"
        else:
            label = "As expected, but changed"

        return NightHeadline(label, tone, NIGHT_WORDS[self.runs.night.state])

    def _tone(self, something_open: bool) -> Tone:
        tones = {EVENTS[event.what][1] for event in self.events}
        if self.standings[SquareStanding.SURPRISE] or "bad" in tones:
            return "bad"
        if something_open or "unsure" in tones or not self.squares:
            return "unsure"
        return "good"

    @property
    def changes(self) -> str:
        number = len(self.events)
        if not self.before:
            first = "the first nightly run of this ledger"
            return f"{count(number, 'event')} in {first}" if number else first
        if number:
            return f"{count(number, 'change')} since {self.before}"
        nothing = "no bug came or went" if self.shifts else "nothing changed"
        return f"{nothing} since {self.before}"

    @property
    def scale(self) -> str:
        """How much was run."""
        rows = sum(len(grid.rows) for grid in self.grids)
        columns = sum(len(grid.columns) for grid in self.grids)
        engines = ", ".join(grid.engine for grid in self.grids) or "nothing"
        number = count(len(self.runs.attempts), "run")
        return (
            f"{count(rows, 'scenario line')} on {count(columns, 'release')} of {engines}; "
            f"{number}, together {duration(_seconds(self.runs.attempts))}."
        )

    @property
    def warning(self) -> str:
        """Warn of a nightly run that is not whole; empty where it is."""
        state = self.runs.night.state
        if state is NightState.COMPLETE:
            return ""
        text = f"This nightly run is {NIGHT_WORDS[state]}"
        missing = self.states[JobState.MISSING]
        if missing:
            left = "have no run yet" if state is NightState.RUNNING else "did not run"
            text += f"; {missing} of {count(len(self.squares), 'job')} {left}"

        return f"{text}."


def _seconds(runs: Iterable[Attempt]) -> float:
    return sum(run.seconds for run in runs if sane(run.seconds))


def _shifts(before: NightRuns, now: NightRuns, events: set[str]) -> list[str]:
    """How jobs came out in the two nightly runs where they differ and no event says
    so."""
    shifts: Counter[str] = Counter()
    for name in now.planned.keys() - events:
        word = _state_word(now, name)
        then = "not planned then"
        if name in before.planned:
            then = _state_word(before, name)
        if then != word:
            shifts[f"{then} → {word}"] += 1

    gone = before.planned.keys() - now.planned.keys()
    if gone:
        shifts["not planned any more"] = len(gone)
    return [f"{number} × {words}" for words, number in sorted(shifts.items())]


def _state_word(runs: NightRuns, cell: str) -> str:
    return LOOKS[settle(runs.attempts_of(cell)).state].word


def strips_of(
    history: History, scenario: str = "", *, jobs: bool = False
) -> list[tuple[str, str, list[list[Square]]]]:
    """Engine, name and, one nightly run after the other, the squares of each row or
    job."""
    nights = history.nights
    cells: dict[str, Cell] = {}
    strips: dict[str, list[list[Square]]] = {}
    for number, runs in enumerate(nights):
        for square in squares_of(runs):
            if scenario not in ("", square.cell.scenario):
                continue

            group = square.cell.id if jobs else square.cell.line
            cells[group] = square.cell
            strip = strips.setdefault(group, [[] for _ in nights])
            strip[number].append(square)

    def order(group: str) -> tuple[object, ...]:
        cell = cells[group]
        # The jobs of a row stand by release; a row has releases of its own.
        release = _column(cell).order if jobs else ()
        return cell.engine, cell.row, release, group

    named = []
    for group in sorted(cells, key=order):
        cell = cells[group]
        name = f"{cell.row} on {_column(cell).label}" if jobs else cell.row
        named.append((cell.engine, name, strips[group]))

    return named


def _column(cell: Cell) -> ReleaseColumn:
    return ReleaseColumn(cell.release, cell.commit)


# ---------------------------------------------------------------------------- documents

_Facts = dict[str, Any]
_PLACE: Final = ("id", "line", "row", *Cell.model_fields)
_CAME: Final = (
    "state",
    "standing",
    "expected",
    "as_expected",
    "reproduced",
    "conclusive",
    "lost",
    "fidelity",
    "seconds",
)
_JOB: Final = (*_PLACE, *_CAME, "title", "words", "expectation", "why", "low", "high")
_RUN: Final = ("index", "role", "outcome", "lost", "key", "incident", "command")
_VERDICT: Final = (
    "state",
    "why",
    "expected",
    "reproduced",
    "conclusive",
    "low",
    "high",
)
_CONCERN: Final = (
    "identity",
    "what",
    "text",
    "before",
    "changed",
    "since",
    "state",
    "over",
    "night",
)


class NightDocument(Document, kind="nightly"):
    """One nightly run; ``cells`` are its jobs."""

    night: Night
    before: str | None
    headline: _Facts
    counts: _Facts
    shifts: list[str]
    notes: list[str]
    events: list[_Facts]
    cells: list[_Facts]
    warning: str
    concerns: list[_Facts]
    nights: list[_Facts]


class NightsDocument(Document, kind="nightly-history"):
    """Each job over the nightly runs, oldest first; one that did not plan it is left
    out."""

    nights: list[str]
    cells: list[_Facts]


class DiffDocument(Document, kind="nightly-diff"):
    """What changed from one nightly run to another."""

    before: str
    now: str
    events: list[Event]


def night_document(night: NightView) -> NightDocument:
    """The nightly run as ``--json`` prints it."""
    runs = night.runs.attempts
    counts = {
        "cells": len(night.squares),
        "states": {state: night.states[state] for state in JobState},
        "standings": {
            standing: night.standings[standing] for standing in SquareStanding
        },
        "runs": len(runs),
        "seconds": round(_seconds(runs), 2),
    }
    nights = []
    for past in night.history.nights:
        if past.attempts:
            began = past.night.created.wall.isoformat()
            facts = _of(("id", "state", "every_h"), past.night)
            nights.append({**facts, "began": began})

    headline = {
        "tone": night.badge.tone,
        "label": night.badge.label,
        "text": night.changes,
    }
    known = concerns(night.history).values()
    return NightDocument(
        night=night.runs.night,
        before=night.before or None,
        headline=headline,
        counts=counts,
        shifts=night.shifts,
        notes=night.notes,
        events=[_event(event) for event in night.events],
        cells=[_job(square) for square in night.squares],
        warning=night.warning,
        concerns=[_concern(night, concern) for concern in known],
        nights=nights,
    )


def history_document(history: History, scenario: str = "") -> NightsDocument:
    """Each job over the nightly runs as ``--json`` prints it."""
    names = [runs.night.id for runs in history.nights]
    lines = []
    for _, _, strip in strips_of(history, scenario, jobs=True):
        nights = []
        planned = []
        for name, group in zip(names, strip, strict=True):
            # A nightly run that does not plan the job is left out.
            if not group:
                continue
            square = group[0]
            came = _of(_CAME, square, square.settled)
            nights.append({"night": name, **came})
            planned.append(square)

        newest = planned[-1]
        place = _of(_PLACE, newest.cell)
        lines.append({**place, "affected": newest.planned.affected, "nights": nights})

    return NightsDocument(nights=names, cells=lines)


def _of(names: tuple[str, ...], *sources: object) -> _Facts:
    """Each attribute of the first source that has it; numbers are rounded."""
    facts = {}
    for name in names:
        owner = next(source for source in sources if hasattr(source, name))
        value = getattr(owner, name)
        facts[name] = round(value, 4) if isinstance(value, float) else value

    return facts


def _job(square: Square) -> _Facts:
    quarantine = None
    if square.quarantine:
        fields = ("reason", "issue", "owner", "expires")
        quarantine = _of(fields, square.quarantine)

    runs = []
    for run in square.attempts:
        seconds = run.seconds if sane(run.seconds) else None
        runs.append({**_of(_RUN, run), "seconds": seconds})

    deciding = square.deciding
    return {
        **_of(_JOB, square, square.settled, square.cell),
        "affected": square.planned.affected,
        "quarantine": quarantine,
        "deciding": deciding.index if deciding else None,
        "runs": runs,
    }


def _event(event: Event) -> _Facts:
    words, tone = EVENTS[event.what]
    alarm = event.what in ALARMS
    return {
        **event.model_dump(exclude={"kind"}),
        "words": words,
        "tone": tone,
        "alarm": alarm,
    }


def _concern(night: NightView, concern: Concern) -> _Facts:
    """What an issue needs: its subject, its last verdict, and what this nightly run
    shows."""
    when = night.runs.night.created.wall
    entry = night.excused.entry_for(concern.cell, when)
    says = ""
    command = ""
    for run in concern.runs:
        says = run.explanation or run.error
        command = run.command or command

    return {
        **_of(_CONCERN, concern, concern.event),
        "cell": _of(_PLACE, concern.cell),
        "quarantined": entry is not None,
        "verdict_of": concern.seen,
        "verdict": _verdict(concern.settled),
        "tonight": _verdict(concern.tonight),
        "says": says,
        "command": command,
    }


def _verdict(settled: Settled | None) -> _Facts | None:
    return _of(_VERDICT, settled) if settled else None
