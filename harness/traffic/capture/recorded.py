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
class RequestSpan:
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
        texts = [f"{names[place]}.end" for place in self.ends]
        if self.sent is not None:
            texts.append(f"{names[self.sent]}.sent")
        return texts


def waits(spans: Sequence[RequestSpan], slack: float = SLACK_S) -> list[Waits]:
    """Return what each of ``spans`` waits for, which stand in the order of sending: it
    is sent behind the one before it, and when all those have ended that had ended in
    the recording. What follows from other waits is left out: the one waited for had
    itself waited for it.
    """
    found: list[Waits] = []
    running: list[tuple[float, int]] = []
    """A heap of ends, with the places of their spans."""
    ended: list[int] = []
    latest = -1
    """Of those that have ended, the one that was sent last."""
    for place, span in enumerate(spans):
        while running and running[0][0] <= span.begin + slack:
            _, done = heapq.heappop(running)
            ended.append(done)
            latest = max(latest, done)
        ended = [other for other in ended if not _implied(spans, other, latest, slack)]
        before = place - 1 if place and place - 1 not in ended else None
        found.append(Waits(tuple(sorted(ended)), before))
        if span.end is not None:
            # Clocks of a recording may put an end before its begin.
            heapq.heappush(running, (max(span.end, span.begin), place))
    return found


def _implied(spans: Sequence[RequestSpan], place: int, by: int, slack: float) -> bool:
    """Whether ``by`` was sent after ``place`` had ended, so that it waits for that
    itself."""
    span = spans[place]
    if place >= by or span.end is None:
        return False
    return max(span.end, span.begin) <= spans[by].begin + slack


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
        """Change what a later line says of it; nothing, if it is no longer kept."""
        request = self._kept.get(number)
        if request is not None:
            self._kept[number] = replace(request, **changes)

    def change_all(self, changed: Callable[[RecordedRequest], RecordedRequest]) -> None:
        for number, request in self._kept.items():
            self._kept[number] = changed(request)

    def __iter__(self) -> Iterator[RecordedRequest]:
        return iter(self._kept.values())

    def __len__(self) -> int:
        return len(self._kept)


def case_of(
    recorded: Iterable[RecordedRequest],
    server: ServerWanted,
    bodies: Bodies,
    *,
    concurrency: int | None = None,
    slack: float = SLACK_S,
) -> tuple[Case, list[str]]:
    """Return the case, and sentences on how its order came about. ``concurrency``: so
    many at once, whatever the recording says of that; None: as it says."""
    requests = list(recorded)
    notes: list[str] = []
    if concurrency is None and _has_times(requests):
        requests, unknown = _in_time(requests)
        names = [f"r{number}" for number in range(1, len(requests) + 1)]
        spans = [RequestSpan(request.begin or 0.0, request.end) for request in requests]
        after = [wait.barriers(names) for wait in waits(spans, slack)]
        if unknown:
            notes.append(
                f"{unknown} requests have no time that can be believed: each is sent "
                "behind the one before it."
            )
    else:
        after = []
        for place, request in enumerate(requests):
            after.append(_behind(place, request, concurrency))
        notes.append(_order_note(requests, concurrency))
    operations = _named(requests, after)
    case = Case(server=server, images=bodies.images, operations=operations)
    return case.keeping({op.id for op in operations}), notes


def _has_times(requests: Sequence[RecordedRequest]) -> bool:
    """Whether a request has a begin, and one of these an end."""
    timed = [request for request in requests if request.begin is not None]
    return any(request.end is not None for request in timed)


def _order_note(requests: Sequence[RecordedRequest], concurrency: int | None) -> str:
    """Return a sentence on the order of a recording without times."""
    if concurrency is not None:
        return (
            f"The requests are sent in order, up to {concurrency} at once, as was "
            "asked for."
        )
    if any(request.running is not None for request in requests):
        return "The recording tells how many requests ran beside each, not which."
    return "The recording tells no times: each request waits for the one before it."


def _behind(place: int, request: RecordedRequest, concurrency: int | None) -> list[str]:
    """Return what a request of a recording without times waits for: the one before it,
    or that few enough others run."""
    if not place:
        return []
    running = request.running if concurrency is None else concurrency - 1
    if running is None or (concurrency is not None and running < 1):
        return [f"r{place}.end"]
    return [f"r{place}.sent", f"running<={running}"]


def _named(
    requests: Sequence[RecordedRequest], after: Sequence[list[str]]
) -> list[Operation]:
    """Return their operations, which are called r1, r2 and so on."""
    moments: list[float | None] = []
    for request in requests:
        moments.append(request.begin if request.at_s is None else request.at_s)
    first = min((moment for moment in moments if moment is not None), default=0.0)

    known: dict[str, str] = {}
    """Values of earlier answers, and where they stand."""
    operations: list[Operation] = []
    numbered = enumerate(zip(requests, moments, after, strict=True), 1)
    for number, (request, moment, texts) in numbered:
        linked = _linked(request.operation, known)
        for value, path in request.offers.items():
            known.setdefault(value, f"r{number}.{path}".rstrip("."))
        update = {
            "id": f"r{number}",
            "after": texts,
            "leave": request.leave,
            "recorded": request.recorded,
            "at_s": None if moment is None else round(moment - first, 4),
        }
        operations.append(linked.model_copy(update=update))
    return operations


_STRINGS = re.compile(r'"([A-Za-z0-9_:.-]{6,200})"')


def _linked(operation: Operation, known: Mapping[str, str]) -> Operation:
    """Take names that a server gave in earlier answers (``known``: where) from there
    anew."""
    text = operation.body
    if text is None:
        text = json.dumps(operation.parameters)
    segments = operation.path.split("/")
    values = {value for value in _STRINGS.findall(text) if value in known}
    values.update(segment for segment in segments if segment in known)
    if not values:
        return operation

    sources: dict[str, str] = {}
    for number, value in enumerate(sorted(values), 1):
        name = f"v{number}"
        sources[name] = known[value]
        hole = f"${{{name}}}"
        text = text.replace(f'"{value}"', f'"{hole}"')
        segments = [hole if segment == value else segment for segment in segments]
    update: dict[str, Any] = {"path": "/".join(segments), "values": sources}
    if operation.body is None:
        update["parameters"] = json.loads(text)
    else:
        update["body"] = text
    return operation.model_copy(update=update)


def _in_time(
    requests: Sequence[RecordedRequest],
) -> tuple[list[RecordedRequest], int]:
    """Return them in the order of sending, and how many have no time: those go where
    they stand."""
    last = min(request.begin for request in requests if request.begin is not None)
    unknown = 0
    timed: list[tuple[float, RecordedRequest]] = []
    for request in requests:
        if request.begin is None:
            unknown += 1
            request = replace(request, begin=last, end=None)
        else:
            last = request.begin
        timed.append((last, request))
    timed.sort(key=lambda entry: entry[0])
    return [request for _, request in timed], unknown
