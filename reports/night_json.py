"""A nightly run, or each job's history, for machines; docs/nightly/README.md has the fields."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from mmrepro.base.records import Document
from mmrepro.failure.documents.ledger import Cell, Event, Night
from mmrepro.history.concerns import Concern, concerns
from mmrepro.history.events import ALARMS
from mmrepro.history.ledger import History
from mmrepro.history.states import State
from mmrepro.reports.grid import EVENTS, Square, Standing
from mmrepro.reports.nightly import NightView, strips_of
from mmrepro.reports.words import sane
from pydantic import Field

Facts = dict[str, Any]
PLACE: Final = ("id", "line", "row", *Cell.model_fields)
CAME: Final = (
    *("state", "standing", "expected", "as_expected", "reproduced", "conclusive", "lost"),
    *("fidelity", "seconds"),
)
JOB: Final = (*PLACE, *CAME, "title", "words", "expectation", "why", "low", "high")
RUN: Final = ("index", "role", "outcome", "lost", "key", "incident", "command")
VERDICT: Final = ("state", "why", "expected", "reproduced", "conclusive", "low", "high")
CONCERN: Final = (
    *("identity", "what", "text", "before", "changed", "since", "state", "over", "night"),
)


class NightDocument(Document):
    """One nightly run; ``cells`` are its jobs."""

    document: Annotated[Literal["urn:mmrepro:nightly:1"], Field(alias="$id")] = (
        "urn:mmrepro:nightly:1"
    )
    schema_version: Literal[1] = 1
    night: Night
    before: str | None
    headline: Facts
    counts: Facts
    shifts: list[str]
    notes: list[str]
    events: list[Facts]
    cells: list[Facts]
    warning: str
    concerns: list[Facts]
    nights: list[Facts]


class NightsDocument(Document):
    """Each job over the nightly runs, oldest first; one that did not plan it is left out."""

    document: Annotated[Literal["urn:mmrepro:nightly-history:1"], Field(alias="$id")] = (
        "urn:mmrepro:nightly-history:1"
    )
    schema_version: Literal[1] = 1
    nights: list[str]
    cells: list[Facts]


class DiffDocument(Document):
    """What changed from one nightly run to another."""

    document: Annotated[Literal["urn:mmrepro:nightly-diff:1"], Field(alias="$id")] = (
        "urn:mmrepro:nightly-diff:1"
    )
    schema_version: Literal[1] = 1
    before: str
    now: str
    events: list[Event]


def night_document(night: NightView) -> NightDocument:
    runs = night.runs.attempts
    past = (one.night for one in night.history.nights if one.attempts)
    return NightDocument(
        night=night.runs.night,
        before=night.before or None,
        headline={"tone": night.badge.tone, "label": night.badge.label, "text": night.changes},
        counts={
            "cells": len(night.squares),
            "states": {state: night.states[state] for state in State},
            "standings": {standing: night.standings[standing] for standing in Standing},
            "runs": len(runs),
            "seconds": round(sum(run.seconds for run in runs if sane(run.seconds)), 2),
        },
        shifts=night.shifts,
        notes=night.notes,
        events=[_event(event) for event in night.events],
        cells=[_job(square) for square in night.squares],
        warning=night.warning,
        concerns=[_concern(night, concern) for concern in concerns(night.history).values()],
        nights=[
            {**_of(("id", "state", "every_h"), one), "began": one.created.wall.isoformat()}
            for one in past
        ],
    )


def history_document(history: History, scenario: str = "") -> NightsDocument:
    names = [runs.night.id for runs in history.nights]
    lines = []
    for _, _, strip in strips_of(history, scenario, jobs=True):
        known = [(name, group[0]) for name, group in zip(names, strip, strict=True) if group]
        nights = [{"night": name, **_of(CAME, s, s.settled)} for name, s in known]
        planned = known[-1][1].planned
        place = {**_of(PLACE, planned.cell), "affected": planned.affected}
        lines.append({**place, "nights": nights})
    return NightsDocument(nights=names, cells=lines)


def _of(names: tuple[str, ...], *sources: object) -> Facts:
    """Each attribute of the first source that has it; numbers are rounded."""
    found = {n: next(getattr(s, n) for s in sources if hasattr(s, n)) for n in names}
    return {n: round(value, 4) if isinstance(value, float) else value for n, value in found.items()}


def _job(square: Square) -> Facts:
    entry, deciding = square.quarantine, square.deciding
    return {
        **_of(JOB, square, square.settled, square.cell),
        "affected": square.planned.affected,
        "quarantine": _of(("reason", "issue", "owner", "expires"), entry) if entry else None,
        "deciding": deciding.index if deciding else None,
        "runs": [
            {**_of(RUN, run), "seconds": run.seconds if sane(run.seconds) else None}
            for run in square.attempts
        ],
    }


def _event(event: Event) -> Facts:
    words, tone = EVENTS[event.what]
    alarm = event.what in ALARMS
    return {**event.model_dump(exclude={"kind"}), "words": words, "tone": tone, "alarm": alarm}


def _concern(night: NightView, concern: Concern) -> Facts:
    """What an issue needs: its subject, its last verdict, and what this nightly run shows."""
    runs, when = concern.runs, night.runs.night.created.wall
    tonight, verdict = concern.tonight, concern.settled
    return {
        **_of(CONCERN, concern, concern.event),
        "cell": _of(PLACE, concern.cell),
        "quarantined": night.excused.entry_for(concern.cell, when) is not None,
        "verdict_of": concern.seen,
        "verdict": _of(VERDICT, verdict) if verdict else None,
        "tonight": _of(VERDICT, tonight) if tonight else None,
        "says": (runs[-1].explanation or runs[-1].error) if runs else "",
        "command": next((run.command for run in reversed(runs) if run.command), ""),
    }
