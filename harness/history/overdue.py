"""A dead man's switch: has the night that is due begun, and did the last one end? Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from mmrepro.history.events import LATE, late
from mmrepro.history.ledger import History, NightRuns
from mmrepro.incident.ledger import Event, EventKind, NightState

AHEAD = timedelta(hours=1)
"""By so much the clocks of two machines may differ."""


@dataclass(frozen=True)
class Watch:
    """What a ledger says of its nights at one moment.

    Attributes:
        last: the newest night with a run; one that planned and ran nothing is no sign of life.
        every_h: hours between two nights; None: nobody said.
        event: why a night is overdue; None: none is, or nobody said when one is due.
    """

    last: NightRuns | None
    every_h: float | None
    event: Event | None

    @property
    def due(self) -> datetime | None:
        """When the next night is to begin."""
        return self._after(1)

    @property
    def late_from(self) -> datetime | None:
        """From when on it is told as missing."""
        return self._after(LATE)

    def _after(self, times: float) -> datetime | None:
        if self.last is None or self.every_h is None:
            return None
        return self.last.night.created.wall + timedelta(hours=times * self.every_h)


def watch(
    history: History, now: datetime, every_h: float | None = None, *, absent: bool = False
) -> Watch:
    """Overdue is a ledger in which no night ever ran anything; whose last night began too long
    ago, or did not end until the next one was due, or begins in the future: a wrong clock would
    hide all that is missing.

    Args:
        every_h: instead of what the last night says.
        absent: a night was begun, and no machine delivered anything: it is missing at any hour.
    """
    alive = [n for n in history.nights if n.attempts]
    if not alive:
        return Watch(None, every_h, _missing("", "No night of this ledger ran anything."))
    last = alive[-1]
    every = every_h or last.night.every_h
    name, began = last.night.id, last.night.created.wall
    if began > now + AHEAD:
        text = f"{name} began at {_time(began)}, which is still to come: a clock is wrong."
        return Watch(last, every, _missing(name, text))
    event = late(last, now, every)
    running = last.night.state is NightState.RUNNING
    if event is None and running and every and now - began > timedelta(hours=every):
        hours = (now - began) / timedelta(hours=1)
        text = f"{name} began {hours:.0f} h ago and has not ended; one is due every {every:g} h."
        event = _missing(name, text)
    if event is None and absent:
        event = _missing(name, f"A night was to follow {name}, and no machine delivered anything.")
    return Watch(last, every, event)


def _missing(night: str, text: str) -> Event:
    what = EventKind.NIGHT_MISSING
    return Event(night=night, what=what, identity=f"{what}:{night}", text=text)


def _time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"
