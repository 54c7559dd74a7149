"""From the times of a recording to barriers: what had ended before what was sent."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from mmrepro.case.model import Operation

SLACK_S = 0.001
"""Browsers write times in milliseconds: what ended so shortly after had ended before."""


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


def in_order(spans: Sequence[Span]) -> list[int]:
    """Places in ``spans``, in the order in which the requests were sent."""
    return sorted(range(len(spans)), key=lambda i: spans[i].begin)


def waits(spans: Sequence[Span], slack: float = SLACK_S) -> list[Waits]:
    """For each of ``spans``, which stand in the order of sending: it is sent behind the one before
    it, and when all those have ended that had ended in the recording. What follows from other
    waits is left out: the one waited for had itself waited for it.
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
        place < by and end is not None and max(end, spans[place].begin) <= spans[by].begin + slack
    )


def barriers(waiting: Waits, names: Sequence[str]) -> list[str]:
    texts = [f"{names[i]}.end" for i in waiting.ends]
    return texts if waiting.sent is None else [*texts, f"{names[waiting.sent]}.sent"]


def one_by_one(operations: Sequence[Operation], concurrency: int | None) -> list[list[str]]:
    """Of a recording without times: each after the one before, or so many at once."""
    texts: list[list[str]] = []
    for place in range(len(operations)):
        before = f"{operations[place - 1].id}" if place else ""
        if not before:
            texts.append([])
        elif concurrency is None or concurrency <= 1:
            texts.append([f"{before}.end"])
        else:
            texts.append([f"{before}.sent", f"running<={concurrency - 1}"])
    return texts
