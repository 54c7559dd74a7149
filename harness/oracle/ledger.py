"""The server's counters against what its client saw.

Each request adds to each counter something between a least and a most. The growth from the reading
before the traffic to the one after it must lie between the sums. What an answer tells by its usage
is exact: least and most are one. What it does not tell (a client that left, a refusal, several
answers to one request, a failure) leaves room, up to all that was asked for; where no most is
known, only the least is asked. A counter that an engine does not have is not judged.

What ended right before the reading after it is possibly not counted yet: an engine may count when
it has sent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from mmrepro.case.model import Case
from mmrepro.case.played import Played, PlayState, Reading
from mmrepro.engines import Engine
from mmrepro.evidence import RequestRecord
from mmrepro.incident.replay import FindingClass, Sighting
from mmrepro.oracle.judged import GENERATES, Judged, Sent, sent_of, sighting

SETTLES_S = 0.05
NAMES = {
    "finished": "requests that ended",
    "prompt_tokens": "prompt tokens",
    "generation_tokens": "generated tokens",
}
"""Short names of an engine's counters (``Engine.metrics``), and for people."""


@dataclass(frozen=True)
class Span:
    """From the least to the most."""

    least: float
    most: float

    @classmethod
    def total(cls, spans: Iterable[Span]) -> Span:
        both = list(spans)
        return cls(sum(s.least for s in both), sum(s.most for s in both))


def ledger(case: Case, played: Played, engine: Engine) -> Judged:
    """Whether any counter contradicts the sum over all requests between the two readings."""
    if played.state is not PlayState.ENDED:
        return Judged(unseen=["The play did not end: the server's counters were not judged."])
    before, after = played.before, played.after
    if before is None or after is None or not after.metrics:
        return Judged(unseen=["The server's counters were not read before and after the traffic."])
    entries = list(_entries(case, played, before, after))
    sightings, unseen = [], []
    for name, people in NAMES.items():
        grown = _growth(engine.metrics.get(name, ()), before, after)
        if grown is None:
            unseen.append(f"The server does not count {people}.")
            continue
        span = Span.total(_COUNTS[name](entry, case) for entry in entries)
        if not span.least <= grown <= span.most:
            sightings.append(_sighting(name, people, grown, span))
    return Judged(sightings=sightings, unseen=unseen)


def _growth(names: Iterable[str], before: Reading, after: Reading) -> float | None:
    """Of the first of ``names`` that the server has. A counter without a value has none yet."""
    for name in names:
        if name in after.metrics:
            return after.metrics[name] - before.metrics.get(name, 0.0)
    return None


def _sighting(name: str, people: str, grown: float, span: Span) -> Sighting:
    most = "" if span.most == span.least else f" to {span.most:g}" if span.most < math.inf else "…"
    which = "too-few" if grown < span.least else "too-many"
    return sighting(
        FindingClass.METRICS,
        f"{name}-{which}",
        f"The server counts {grown:g} {people}; its client counts {span.least:g}{most}.",
        "The counters grow by what was served.",
    )


# ---------------------------------------------------------------------- what a request adds


@dataclass(frozen=True)
class _Entry:
    """A request between the readings.

    Attributes:
        n: answers asked for.
        limit: most tokens of each, if told.
        late: it may not be counted yet, or was before.
    """

    record: RequestRecord
    n: int = 1
    limit: int | None = None
    late: bool = False

    @property
    def told(self) -> bool:
        """It was served whole, and says how many tokens that took."""
        return self.record.answered and self.n == 1 and not self.record.cut_short

    def span(self, exact: float | None, most: float) -> Span:
        """``exact`` where the answer tells it."""
        if exact is None:
            return Span(0.0, most)
        return Span(0.0 if self.late else exact, exact)


def _entries(case: Case, played: Played, before: Reading, after: Reading) -> Iterator[_Entry]:
    """The requests between the readings, the harness's own as well."""
    ours: dict[str, Sent] = {one.op.id: one for one in sent_of(case, played)}
    for record in played.evidence.requests:
        end = record.sent.mono + record.latency_s
        if end <= before.mono or record.sent.mono >= after.mono:
            continue
        if record.method != "POST" or record.path not in GENERATES:
            continue
        sent = ours.get(record.label)
        late = end > after.mono - SETTLES_S or record.sent.mono < before.mono
        if sent is None:
            yield _Entry(record, limit=record.max_tokens, late=late)
        else:
            yield _Entry(record, sent.n, sent.limit, late)


def _finished(entry: _Entry, case: Case) -> Span:
    # An answer is counted once, or once for each choice, and a prompt that several share once more.
    if entry.told:
        return entry.span(1.0, 1.0)
    whole = entry.record.answered and not entry.record.cut_short
    least = 1.0 if whole and not entry.late else 0.0
    return Span(least, entry.n + 1.0)


def _prompt_tokens(entry: _Entry, case: Case) -> Span:
    told = entry.record.prompt_tokens
    if entry.told and told is not None:
        return entry.span(told, told)
    most = (entry.n + 1.0) * (told if told is not None else case.server.max_model_len)
    if entry.record.status is not None and 400 <= entry.record.status < 500:
        most = math.inf  # refused for its length, maybe
    return Span(0.0, most)


def _generated(entry: _Entry, case: Case) -> Span:
    told = entry.record.completion_tokens
    if entry.told and told is not None:
        return entry.span(told, told)
    limit = entry.limit if entry.limit is not None else case.server.max_model_len
    return Span(0.0, (entry.n + 1.0) * limit)


_COUNTS: dict[str, Callable[[_Entry, Case], Span]] = {
    "finished": _finished,
    "prompt_tokens": _prompt_tokens,
    "generation_tokens": _generated,
}
