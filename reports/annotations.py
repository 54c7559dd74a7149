"""A night as annotations of a GitHub workflow run: the worst first, few, and nothing but these.

GitHub's runner takes each line of a step's output that begins with ``::``, or has ``##[``
anywhere, for a command of its own (``add-mask``, ``stop-commands``, …). What engines and people
wrote is therefore put on one line, and escaped as the runner unescapes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from mmrepro.history.events import ALARMS
from mmrepro.incident.ledger import Event, EventKind
from mmrepro.reports.night_square import Square
from mmrepro.reports.night_view import NightView
from mmrepro.reports.night_words import EVENT_TONES, EVENT_WORDS, STANDING_WORDS, Standing
from mmrepro.text.sanitize import one_line

Level = Literal["error", "warning", "notice"]
MOST: Final = 10
"""GitHub shows ten of a kind and step; more are dropped without a word."""
MAX_TITLE: Final = 120
MAX_TEXT: Final = 1000
_LEVELS: Final[tuple[Level, ...]] = ("error", "warning", "notice")


@dataclass(frozen=True)
class Annotation:
    level: Level
    title: str
    text: str

    @property
    def line(self) -> str:
        """As the runner reads it."""
        # In a line that is not of the new form the old one counts anywhere: in another log, say.
        title, text = (
            one_line(words, limit).replace("##[", "## [")
            for words, limit in ((self.title, MAX_TITLE), (self.text, MAX_TEXT))
        )
        return f"::{self.level} title={escaped(title, ':,')}::{escaped(text)}"


def annotations_of(night: NightView, most: int = MOST) -> list[Annotation]:
    """At most ``most``; where there are more, the last one says how many."""
    found = sorted(_all(night), key=lambda a: _LEVELS.index(a.level))
    if len(found) <= most:
        return found
    left = found[most - 1 :]
    counts = [(level, sum(a.level == level for a in left)) for level in _LEVELS]
    told = ", ".join(f"{n} {level}s" if n > 1 else f"1 {level}" for level, n in counts if n)
    text = f"{len(left)} more were not shown ({told}): see this run's summary."
    return [*found[: most - 1], Annotation(left[0].level, f"{night.title}: and more", text)]


def _all(night: NightView) -> Iterator[Annotation]:
    if night.warning:
        yield Annotation("warning", night.title, night.warning)
    told = set()
    for event in sorted(night.events, key=lambda e: list(EVENT_TONES).index(e.what)):
        square = night.by_id.get(event.cell)
        if square is not None and square.quarantine is not None:
            continue
        told.add(event.cell)
        yield Annotation(_level(event), EVENT_WORDS[event.what], event.text + _again(square))
    yield from _squares(night.standing(Standing.SURPRISE), "error", told)
    yield from _squares(night.standing(Standing.FLAKY), "error", told)
    yield from _squares(night.standing(Standing.UNTESTED), "warning", told)
    for note in night.notes:
        yield Annotation("warning", "quarantine", note)
    yield from _squares(night.standing(Standing.QUARANTINED), "notice", told)


def _squares(squares: Sequence[Square], level: Level, told: set[str]) -> Iterator[Annotation]:
    for square in squares:
        if square.cell.id not in told:
            text = f"{square.title}. {square.why}"
            yield Annotation(level, STANDING_WORDS[square.standing], text + _again(square))


def _level(event: Event) -> Level:
    if event.what in ALARMS:
        return "error"
    return "notice" if event.what in (EventKind.FIXED_IN, EventKind.NEW_RELEASE) else "warning"


def _again(square: Square | None) -> str:
    run = square.deciding if square is not None else None
    return f" Repeat it: {run.command}" if run is not None and run.command else ""


def escaped(text: str, more: str = "") -> str:
    """``text`` as the runner unescapes it; ``more``: further signs that end a property."""
    for sign in f"%\r\n{more}":
        text = text.replace(sign, f"%{ord(sign):02X}")
    return text
