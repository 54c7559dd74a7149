"""A night, or the nights of each cell, for machines. The fields are in docs/nightly/README.md."""

from __future__ import annotations

import json
from typing import Any, Final

from mmrepro.history.concerns import Concern, concerns
from mmrepro.history.events import ALARMS
from mmrepro.history.ledger import History
from mmrepro.history.states import Settled, State
from mmrepro.incident.ledger import Attempt, Event
from mmrepro.reports.night_square import Square
from mmrepro.reports.night_terminal import strips_of
from mmrepro.reports.night_view import NightView
from mmrepro.reports.night_words import EVENT_TONES, EVENT_WORDS, Standing
from mmrepro.reports.words import sane

NIGHT_VERSION: Final = 1


def night_json(night: NightView) -> str:
    """The night as one document that ends with a newline."""
    head = night.headline
    runs = night.runs.attempts
    return _text(
        {
            "schema_version": NIGHT_VERSION,
            "night": night.runs.night.model_dump(mode="json"),
            "before": night.before or None,
            "headline": {"tone": head.tone, "label": head.label, "text": head.text},
            "counts": {
                "cells": len(night.squares),
                "states": {s.value: night.states[s] for s in State},
                "standings": {s.value: night.standings[s] for s in Standing},
                "runs": len(runs),
                "seconds": round(sum(a.seconds for a in runs if sane(a.seconds)), 2),
            },
            "shifts": night.shifts,
            "notes": night.notes,
            "events": [_event(e) for e in night.events],
            "cells": [cell_json(s) for s in night.squares],
            "warning": night.warning,
            "concerns": [_concern(night, c) for c in concerns(night.history).values()],
            "nights": [
                {
                    "id": known.id,
                    "began": known.created.wall.isoformat(),
                    "state": known.state.value,
                    "every_h": known.every_h,
                }
                for known in (runs.night for runs in night.history.nights if runs.attempts)
            ],
        }
    )


def history_json(history: History, scenario: str = "") -> str:
    """Each cell over the nights, oldest first; a night without it is left out."""
    names = [runs.night.id for runs in history.nights]
    lines = []
    for _, _, strip in strips_of(history, scenario, cells=True):
        seen = [(name, group[0]) for name, group in zip(names, strip, strict=True) if group]
        told = [{"night": name, **_standing(square)} for name, square in seen]
        lines.append({**_place(seen[-1][1]), "nights": told})
    return _text({"schema_version": NIGHT_VERSION, "nights": names, "cells": lines})


def cell_json(square: Square) -> dict[str, Any]:
    """A square: where it is, what it came to, all its runs."""
    entry = square.quarantine
    quarantine = None
    if entry is not None:
        quarantine = {
            "reason": entry.reason,
            "issue": entry.issue,
            "owner": entry.owner,
            "expires": str(entry.expires),
        }
    return {
        **_place(square),
        **_standing(square),
        "title": square.title,
        "words": square.words,
        "expectation": square.expectation,
        "why": square.why,
        "low": round(square.settled.low, 4),
        "high": round(square.settled.high, 4),
        "quarantine": quarantine,
        "deciding": square.deciding.index if square.deciding else None,
        "runs": [_run(a) for a in square.attempts],
    }


def _event(event: Event) -> dict[str, Any]:
    return {
        **event.model_dump(mode="json", exclude={"kind"}),
        "words": EVENT_WORDS[event.what],
        "tone": EVENT_TONES[event.what],
        "alarm": event.what in ALARMS,
    }


def _concern(night: NightView, concern: Concern) -> dict[str, Any]:
    """What an issue needs: what it is of, its last verdict, and what this nightly run shows."""
    cell, event, runs = concern.cell, concern.event, concern.runs
    when = night.runs.night.created.wall
    return {
        "identity": concern.identity,
        "what": event.what.value,
        "text": event.text,
        "before": event.before,
        "changed": event.changed,
        "since": concern.since,
        "state": concern.state,
        "over": concern.over,
        "cell": {"id": cell.id, "row": cell.row, **cell.model_dump(mode="json")},
        "quarantined": night.excused.entry_for(cell, when) is not None,
        "verdict_of": concern.seen,
        "verdict": _settled(concern.settled),
        "night": concern.night,
        "tonight": _settled(concern.tonight),
        "says": (runs[-1].explanation or runs[-1].error) if runs else "",
        "command": next((a.command for a in reversed(runs) if a.command), ""),
    }


def _settled(settled: Settled | None) -> dict[str, Any] | None:
    if settled is None:
        return None
    return {
        "state": settled.state.value,
        "why": settled.why,
        "expected": settled.expected.value if settled.expected else None,
        "reproduced": settled.reproduced,
        "conclusive": settled.conclusive,
        "low": round(settled.low, 4),
        "high": round(settled.high, 4),
    }


def _place(square: Square) -> dict[str, Any]:
    cell = square.cell
    return {
        "id": cell.id,
        "line": cell.line,
        "row": cell.row,
        **cell.model_dump(mode="json"),
        "affected": square.planned.affected,
    }


def _standing(square: Square) -> dict[str, Any]:
    settled = square.settled
    return {
        "state": square.state.value,
        "standing": square.standing.value,
        "expected": square.expected.value if square.expected else None,
        "as_expected": settled.as_expected,
        "reproduced": settled.reproduced,
        "conclusive": settled.conclusive,
        "lost": settled.lost,
        "fidelity": square.fidelity.value if square.fidelity else None,
        "seconds": round(square.seconds, 2),
    }


def _run(attempt: Attempt) -> dict[str, Any]:
    return {
        "index": attempt.index,
        "role": attempt.role,
        "outcome": attempt.outcome.value if attempt.outcome else None,
        "lost": attempt.lost.value if attempt.lost else None,
        "key": attempt.key,
        "seconds": attempt.seconds if sane(attempt.seconds) else None,
        "incident": attempt.incident,
        "command": attempt.command,
    }


def _text(document: dict[str, Any]) -> str:
    text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    return text.encode("utf-8", "replace").decode()  # a lone surrogate is in no file
