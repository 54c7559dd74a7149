"""Requests as a recording tells of them, gathered into a case."""

from __future__ import annotations

import heapq
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mmrepro.traffic.capture.messages import Bodies
from mmrepro.traffic.case.files import MAX_CASE_BYTES
from mmrepro.traffic.case.model import Case, Operation, Recorded, ServerWanted

SLACK_S = 0.001
"""Browsers write times in milliseconds: what ended so shortly after had ended
before."""


@dataclass(frozen=True)
class Span:
    """When a request was sent, and when its answer was complete, on any one clock.

    ``end`` is None where the recording does not tell: nothing waits for that end.
    """

    begin: float
    end: float | None


@dataclass(frozen=True)
class Waits:
    """What a request waits for: requests by their place in the order of sending."""

    ends: tuple[int, ...] = ()
    sent: int | None = None

    def barriers(self, names: Sequence[str]) -> list[str]:
        texts = [f"{names[i]}.end" for i in self.ends]
        return texts if self.sent is None else [*texts, f"{names[self.sent]}.sent"]


def waits(spans: Sequence[Span], slack: float = SLACK_S) -> list[Waits]:
    """For each of ``spans``, which stand in the order of sending: it is sent behind the
    one before it, and when all those have ended that had ended in the recording. What
    follows from other waits is left out: the one waited for had itself waited for it.
    """
    found: list[Waits] = []
    running: list[tuple[float, int]] = []
    ended: list[int] = []
    latest = -1
    """Of those that have ended, the one that was sent last."""
    for place, span in enumerate(spans):
        while running and running[0][0] <= span.begin + slack:
            _, done = heapq.heappop(running)
            ended.append(done)
            latest = max(latest, done)
        ended = [i for i in ended if not _implied(spans, i, latest, slack)]
        before = place - 1 if place and place - 1 not in ended else None
        found.append(Waits(tuple(sorted(ended)), before))
        if span.end is not None:
            heapq.heappush(running, (max(span.end, span.begin), place))
    return found


def _implied(spans: Sequence[Span], place: int, by: int, slack: float) -> bool:
    """``by`` was sent after ``place`` had ended, so it waits for that itself."""
    end = spans[place].end
    return (
        place < by
        and end is not None
        and max(end, spans[place].begin) <= spans[by].begin + slack
    )


# ------------------------------------------------------------------ requests

MAX_TEXT = MAX_CASE_BYTES // 2
"""Characters of all requests that are kept, without their pictures: a case must stay
readable."""


@dataclass
class Tally:
    """What came of the entries of a file."""

    file: str
    format: str
    read: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class RecordedRequest:
    """One request.

    ``begin`` and ``end`` are on one clock of the recording, of seconds or of lines;
    ``at_s`` is wall-clock time where the recording tells it. ``running`` is how many
    others ran when it was sent, where only that is known. ``pieces``: of its stream,
    before its client ``left``."""

    operation: Operation
    begin: float | None = None
    end: float | None = None
    at_s: float | None = None
    recorded: Recorded | None = None
    pieces: int = 0
    left: bool = False
    running: int | None = None
    offers: dict[str, str] = field(default_factory=dict)
    """Values of its answer that later requests may name: value, and where it stands."""

    @property
    def leave(self) -> str:
        if not self.left:
            return self.operation.leave
        begun = self.recorded is not None and self.recorded.status == 200
        if not (self.operation.stream and begun):
            return "sent"
        return f"tokens>={self.pieces}" if self.pieces else "first-token"


class Latest:
    """The last requests of a recording, as many as a case can hold."""

    def __init__(self, tally: Tally, limit: int) -> None:
        self.tally = tally
        self.limit = limit
        self._kept: dict[int, RecordedRequest] = {}
        self._sizes: dict[int, int] = {}
        self._number = self._size = 0

    def add(self, heard: RecordedRequest) -> int:
        """Returns its number, for ``change``."""
        self._number += 1
        size = len(heard.operation.model_dump_json(exclude_defaults=True))
        self._kept[self._number] = heard
        self._sizes[self._number] = size
        self._size += size
        while len(self._kept) > self.limit or self._size > MAX_TEXT:
            first = next(iter(self._kept))
            del self._kept[first]
            self._size -= self._sizes.pop(first)
            self.tally.left_out["before the last ones, which are kept"] += 1
        return self._number

    def change(self, number: int, **changes: Any) -> None:
        """What a later line tells of it; nothing, if it is no longer kept."""
        if (heard := self._kept.get(number)) is not None:
            self._kept[number] = replace(heard, **changes)

    def change_all(self, changed: Callable[[RecordedRequest], RecordedRequest]) -> None:
        self._kept = {number: changed(heard) for number, heard in self._kept.items()}

    def __iter__(self) -> Iterator[RecordedRequest]:
        return iter(self._kept.values())

    def __len__(self) -> int:
        return len(self._kept)


def case_of(
    heard: Iterable[RecordedRequest],
    server: ServerWanted,
    bodies: Bodies,
    *,
    concurrency: int | None = None,
    slack: float = SLACK_S,
) -> tuple[Case, list[str]]:
    """The case, and sentences on how its order came about. ``concurrency``: so many at
    once, whatever the recording tells of that; None: as it tells."""
    found = list(heard)
    notes: list[str] = []
    timed = [h for h in found if h.begin is not None]
    if concurrency is None and timed and any(h.end is not None for h in timed):
        found, unknown = _in_time(found)
        names = [f"r{number}" for number in range(1, len(found) + 1)]
        spans = [Span(h.begin or 0.0, h.end) for h in found]
        after = [one.barriers(names) for one in waits(spans, slack)]
        if unknown:
            notes.append(
                f"{unknown} requests have no time that can be believed: each is sent "
                "behind the one before it."
            )
    else:
        after = [_behind(place, h, concurrency) for place, h in enumerate(found)]
        if concurrency is not None:
            notes.append(
                f"The requests are sent in order, up to {concurrency} at once, as was "
                "asked for."
            )
        elif any(h.running is not None for h in found):
            notes.append(
                "The recording tells how many requests ran beside each, not which."
            )
        else:
            notes.append(
                "The recording tells no times: each request waits for the one before "
                "it."
            )
    operations = _named(found, after)
    case = Case(server=server, images=bodies.images, operations=operations)
    return case.keeping({op.id for op in operations}), notes


def _behind(place: int, heard: RecordedRequest, concurrency: int | None) -> list[str]:
    """Of a recording without times: each after the one before, or beside so many
    others."""
    if not place:
        return []
    running = heard.running if concurrency is None else concurrency - 1
    if running is None or (concurrency is not None and running < 1):
        return [f"r{place}.end"]
    return [f"r{place}.sent", f"running<={running}"]


def _named(
    found: Sequence[RecordedRequest], after: Sequence[list[str]]
) -> list[Operation]:
    moments = [h.begin if h.at_s is None else h.at_s for h in found]
    first = min((m for m in moments if m is not None), default=0.0)
    known: dict[str, str] = {}
    linked = []
    for number, h in enumerate(found, 1):
        linked.append(_linked(h.operation, known))
        known |= {
            value: f"r{number}.{path}".rstrip(".")
            for value, path in h.offers.items()
            if value not in known
        }
    return [
        operation.model_copy(
            update={
                "id": f"r{number}",
                "after": texts,
                "leave": h.leave,
                "recorded": h.recorded,
                "at_s": None if moment is None else round(moment - first, 4),
            }
        )
        for number, (h, operation, moment, texts) in enumerate(
            zip(found, linked, moments, after, strict=True), 1
        )
    ]


_STRINGS = re.compile(r'"([A-Za-z0-9_:.-]{6,200})"')


def _linked(operation: Operation, known: Mapping[str, str]) -> Operation:
    """Names that a server gave in earlier answers (``known``: where) are taken from
    there anew."""
    told = (
        operation.body
        if operation.body is not None
        else json.dumps(operation.parameters)
    )
    segments = operation.path.split("/")
    found = {one for one in (*_STRINGS.findall(told), *segments) if one in known}
    if not found:
        return operation
    names = {value: f"v{number}" for number, value in enumerate(sorted(found), 1)}
    for value, name in names.items():
        told = told.replace(f'"{value}"', f'"${{{name}}}"')
        segments = [f"${{{name}}}" if one == value else one for one in segments]
    body = (
        {"parameters": json.loads(told)} if operation.body is None else {"body": told}
    )
    values = {name: known[value] for value, name in names.items()}
    return operation.model_copy(
        update={**body, "path": "/".join(segments), "values": values}
    )


def _in_time(found: Sequence[RecordedRequest]) -> tuple[list[RecordedRequest], int]:
    """In the order of sending, and how many tell no time: those go where they stand."""
    believed: list[RecordedRequest] = []
    last = min(h.begin for h in found if h.begin is not None)
    for h in found:
        last = last if h.begin is None else h.begin
        believed.append(h if h.begin is not None else replace(h, begin=last, end=None))
    unknown = sum(h.begin is None for h in found)
    return sorted(believed, key=lambda h: h.begin or 0.0), unknown
