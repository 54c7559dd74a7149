"""The runs of a bisection, whichever way they lead, and where the search starts from."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

START_TRIES = 6
"""Other points that are tried where the one said to be bad is not."""


class Verdict(StrEnum):
    BAD = "bad"
    GOOD = "good"
    OTHER = "different-failure"
    UNTESTABLE = "untestable"


@dataclass(frozen=True)
class SearchOptions:
    """How to search. ``repeat``: runs of each point; None: as many as it needs."""

    confidence: float = 0.95
    repeat: int | None = None
    linear: bool = False
    budget: int = 64
    """Runs on one side, at most, once they contradict each other."""

    @property
    def settle(self) -> int:
        """Runs that agree, after which not even a failure of every second run is luck."""
        return max(2, math.ceil(math.log(1 - self.confidence) / math.log(0.5)))


@dataclass
class Board:
    """All runs of a bisection: both sides share it."""

    oracle: Callable[[int], Verdict]
    names: Sequence[str]
    affected: Sequence[bool]
    """What the scenario declares of each point."""
    options: SearchOptions = field(default_factory=SearchOptions)
    runs: dict[int, list[Verdict]] = field(default_factory=dict)
    made: int = 0
    upcoming: Callable[[Sequence[int]], None] | None = None
    """Is told which points may be next, so that what they need can be fetched."""

    def run(self, point: int) -> Verdict:
        verdict = self.oracle(point)
        self.runs.setdefault(point, []).append(verdict)
        self.made += 1
        return verdict

    def counts(self, point: int) -> Counter[Verdict]:
        """Of the runs that could be judged."""
        return Counter(v for v in self.runs.get(point, ()) if v is not Verdict.UNTESTABLE)

    def settled(self, point: int) -> Verdict | None:
        """The point's verdict; None: it was not run. Raises Contradiction: it has two."""
        counts = self.counts(point)
        if not counts:
            return Verdict.UNTESTABLE if self.runs.get(point) else None
        if counts[Verdict.BAD] and len(counts) > 1:
            raise Contradiction(point)
        return max(counts, key=lambda verdict: (verdict is Verdict.OTHER, verdict))


class Contradiction(Exception):
    """``point`` was seen with the failure and without it."""

    def __init__(self, point: int) -> None:
        super().__init__(point)
        self.point = point


def start(board: Board, wanted: int) -> tuple[int | None, list[str]]:
    """A point that has the failure, ``wanted`` first, and what is to be said of it.

    Where ``wanted`` shows no failure it is run again, as a failure that comes and goes would need
    it; where it really has none, its neighbours are tried, those declared affected first.
    """
    notes: list[str] = []
    first = board.run(wanted)
    again = board.options.settle - 1 if first is Verdict.GOOD else 1
    while again and board.counts(wanted)[Verdict.BAD] == 0:
        if first is Verdict.UNTESTABLE:
            break
        again -= 1
        board.run(wanted)
    if board.counts(wanted)[Verdict.BAD]:
        return wanted, notes
    seen = board.settled(wanted)
    notes.append(f"{board.names[wanted]} was to have the failure, and is {words(seen)}")
    others = sorted(
        (point for point in range(len(board.names)) if point != wanted),
        key=lambda point: (not board.affected[point], abs(point - wanted), point),
    )
    for point in others[:START_TRIES]:
        if board.run(point) is Verdict.BAD:
            notes.append(f"the search starts from {board.names[point]} instead")
            return point, notes
    tried = ", ".join(board.names[p] for p in sorted(board.runs))
    notes.append(f"the failure was seen in none of those that were run: {tried}")
    return None, notes


def words(verdict: Verdict | None) -> str:
    return {
        Verdict.BAD: "reproduced",
        Verdict.GOOD: "not reproduced",
        Verdict.OTHER: "a different failure",
        Verdict.UNTESTABLE: "untestable",
        None: "not run",
    }[verdict]
