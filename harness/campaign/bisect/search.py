"""Which points to run, and what follows: a search away from a point that has the
failure.

Pure: points are numbers, oldest first, and an oracle runs one of them. A point that
cannot be tested is skipped and never counts as good; a different failure is neither bad
nor good. As long as runs agree it is a binary search that tries the declared boundary
first. With the first contradiction it is a Bayesian one."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from mmrepro.failure.documents.searches import (
    PointVerdict as Verdict,
    SideConclusion as Conclusion,
)

if TYPE_CHECKING:
    from mmrepro.campaign.bisect.posterior import Posterior


CLEAR = 3.0
"""Odds of 20 to 1, as a logarithm: what is measured less clearly is no verdict."""
_START_TRIES = 6
"""Other points that are tried where the one said to be bad is not."""


@dataclass(frozen=True)
class SearchOptions:
    """How to search. ``repeat``: runs of each point; None: as many as it needs."""

    confidence: float = 0.95
    repeat: int | None = None
    linear: bool = False
    budget: int = 64
    """Runs on one side, at most, once they contradict each other."""
    always: bool = False
    """A point that has it shows it in each run: one that does not is enough."""

    @property
    def settle(self) -> int:
        """Runs that agree, after which not even a failure of every second run is
        luck."""
        if self.always:
            return 2
        by_luck = math.log(1 - self.confidence) / math.log(0.5)
        return max(2, math.ceil(by_luck))


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
    odds: dict[int, float] = field(default_factory=dict)
    """By measured point, the logarithm of the odds that it has the change, by all its
    runs."""
    upcoming: Callable[[Sequence[int]], None] | None = None
    """Is told which points may be next, so that what they need can be fetched."""

    def run(self, point: int) -> Verdict:
        verdict = self.oracle(point)
        self.runs.setdefault(point, []).append(verdict)
        self.made += 1
        return verdict

    def counts(self, point: int) -> Counter[Verdict]:
        """Verdicts of the runs that could be judged, counted."""
        counts = Counter(self.runs.get(point, ()))
        del counts[Verdict.UNTESTABLE]
        return counts

    def settled(self, point: int) -> Verdict | None:
        """The point's verdict; None: it was not run. Raises Contradiction: it has
        two."""
        counts = self.counts(point)
        if not counts:
            return Verdict.UNTESTABLE if self.runs.get(point) else None

        odds = self.odds.get(point)
        if odds is not None:
            if abs(odds) < CLEAR:
                raise _Contradiction(point)
            return Verdict.BAD if odds > 0 else Verdict.GOOD

        if counts[Verdict.BAD] and len(counts) > 1:
            raise _Contradiction(point)
        # Of good runs and such with a different failure the latter count.
        return max(counts, key=lambda verdict: (verdict is Verdict.OTHER, verdict))


class _Contradiction(Exception):
    """``point`` was seen with the failure and without it."""

    def __init__(self, point: int) -> None:
        super().__init__(point)
        self.point = point


def start(board: Board, wanted: int) -> tuple[int | None, list[str]]:
    """A point that has the failure, ``wanted`` first, and what is to be said of it.

    Where ``wanted`` shows no failure it is run again, as a failure that comes and goes
    would need it; where it really has none, its neighbours are tried, those declared
    affected first."""
    _run_until_bad(board, wanted)
    if board.counts(wanted)[Verdict.BAD]:
        return wanted, []

    seen = board.settled(wanted)
    words = {
        None: "not run",
        Verdict.GOOD: "not reproduced",
        Verdict.OTHER: "a different failure",
    }
    state = words.get(seen, "untestable")
    notes = [f"{board.names[wanted]} was to have the failure, and is {state}"]
    for point in _neighbours(board, wanted)[:_START_TRIES]:
        if board.run(point) is Verdict.BAD:
            notes.append(f"the search starts from {board.names[point]} instead")
            return point, notes

    tried = ", ".join(board.names[point] for point in sorted(board.runs))
    notes.append(f"the failure was seen in none of those that were run: {tried}")
    return None, notes


def _run_until_bad(board: Board, point: int) -> None:
    """Run a point until it shows the failure, or as often as one that comes and goes
    would need."""
    first = board.run(point)
    if first is Verdict.UNTESTABLE:
        return
    again = board.options.settle - 1 if first is Verdict.GOOD else 1
    while again and not board.counts(point)[Verdict.BAD]:
        again -= 1
        board.run(point)


def _neighbours(board: Board, wanted: int) -> list[int]:
    """The other points: those declared affected first, then the nearest."""
    others = [point for point in range(len(board.names)) if point != wanted]

    def order(point: int) -> tuple[bool, int, int]:
        return not board.affected[point], abs(point - wanted), point

    return sorted(others, key=order)


Direction = Literal["introduced", "fixed"]
_END_TRIES = 3
"""Points that are tried for a testable far end: the last, then half as far, and half of
that."""


@dataclass
class SideFinding:
    """What became of one side. Points are numbers of the board's."""

    direction: Direction
    conclusion: Conclusion
    bad: int | None = None
    """The last point with the failure, going away from where it is known."""
    beyond: int | None = None
    """The first testable point after it: without the failure."""
    ends_in: Verdict | None = None
    """What ``beyond`` shows: good, or a different failure."""
    gap: list[int] = field(default_factory=list)
    """Points between the two: none of them can be tested."""
    verified: bool = False
    """Nothing lies between, and both sides were run again and showed the same."""
    runs: int = 0
    notes: list[str] = field(default_factory=list)
    other_since: tuple[int, int] | None = None
    """Where a different failure gives way to good: the last that has it, the first that
    is good."""
    returned: list[int] = field(default_factory=list)
    """Points beyond the boundary that have the failure again."""
    posterior: dict[int, float] | None = None
    """Of each position of the boundary, by its last bad point; only after a
    contradiction."""
    rate: float | None = None
    """How often the failure shows where it is, as estimated; only after a
    contradiction."""

    @property
    def one_of(self) -> list[int]:
        """The points of which one is the first bad (or the first good) one, oldest
        first."""
        if self.bad is None or self.beyond is None or not self.gap:
            return []
        last = self.bad if self.direction == "introduced" else self.beyond
        return sorted([*self.gap, last])


def search(board: Board, bad: int, direction: Direction, far: int) -> SideFinding:
    """The boundary between ``bad``, which has the failure, and ``far``, the last on
    that side."""
    step = -1 if direction == "introduced" else 1
    return _Side(board, list(range(bad, far + step, step)), direction).search()


class _Side:
    """Positions: 0 is the known bad point, the last one the far end."""

    def __init__(self, board: Board, points: list[int], direction: Direction) -> None:
        self.board = board
        self.points = points
        self.direction = direction
        self.options = board.options
        self.before = board.made
        self.finding = SideFinding(direction, Conclusion.INCONCLUSIVE)
        self.end = len(points)
        """Positions from here on are left out."""
        self.declared = self._declared()

    def _declared(self) -> int | None:
        """Position of the last declared affected point, if one follows that is not."""
        flags = [self.board.affected[point] for point in self.points]
        if not flags[0] or all(flags):
            return None
        return flags.index(False) - 1

    # ------------------------------------------------------------------ one point

    def name(self, position: int) -> str:
        return self.board.names[self.points[position]]

    def settled(self, position: int) -> Verdict | None:
        return self.board.settled(self.points[position])

    def judged(self, position: int) -> int:
        """Runs of it that reached a verdict."""
        return self.board.counts(self.points[position]).total()

    def run(self, position: int) -> Verdict:
        return self.board.run(self.points[position])

    def ask(self, position: int) -> Verdict:
        """The point's verdict, after ``repeat`` runs. Raises Contradiction."""
        wanted = self.options.repeat or 1
        runs = self.board.runs.setdefault(self.points[position], [])
        while len(runs) < wanted and not (runs and runs[-1] is Verdict.UNTESTABLE):
            self.run(position)

        verdict = self.settled(position)
        assert verdict is not None
        return verdict

    def again(self, position: int, wanted: int = 2) -> bool:
        """Run it until ``wanted`` runs reached a verdict; False: they do not. Raises
        Contradiction."""
        # One run without a verdict is forgiven.
        spare = 1
        while self.judged(position) < wanted:
            if self.run(position) is Verdict.UNTESTABLE:
                spare -= 1
                if spare < 0:
                    return False
            self.settled(position)

        return True

    # ------------------------------------------------------------------ the whole

    def search(self) -> SideFinding:
        finding = self.finding
        try:
            self.settled(0)
            low, high = self._agreeing()
            self._conclude(low, high)
            if high is not None:
                self._verify(low, high)
        except _Contradiction as contradiction:
            name = self.board.names[contradiction.point]
            unclear = contradiction.point in self.board.odds
            what = "leave it open" if unclear else "contradict each other"
            finding.notes.append(
                f"runs of {name} {what}: from there on, what each run tells is weighed "
                "(Bayesian search)"
            )
            self._weigh()

        if finding.ends_in is Verdict.OTHER:
            self._other()
        finding.runs = self.board.made - self.before
        return finding

    def _agreeing(self) -> tuple[int, int | None]:
        """Last bad and first other position, by a search that takes each verdict as it
        is."""
        if self.options.linear:
            return self._one_after_another()
        far = self._far_end()
        # It is at both ends: only what is declared says where it may be gone between.
        if far is not None and self.settled(far) is Verdict.BAD:
            if self.declared is None or self.declared >= far:
                return self._between(far, None)
            for position in (self.declared, self.declared + 1):
                self.ask(position)

            high = self._first_not_bad()
            if high is None:
                return self._between(far, None)
            self._came_back(high, far)
            far = high

        return self._between(0, far)

    def _far_end(self) -> int | None:
        """A position far out that can be tested; None: none of those tried can."""
        # Not nearer than what is declared to be without it.
        inner = 0 if self.declared is None else self.declared + 1
        position = self.end - 1
        for _ in range(_END_TRIES):
            if position <= 0:
                break
            if self.ask(position) is not Verdict.UNTESTABLE:
                return position
            if position <= inner:
                break
            position = (position + inner) // 2

        return None

    def _first_not_bad(self) -> int | None:
        for position in range(self.end):
            if self.settled(position) in (Verdict.GOOD, Verdict.OTHER):
                return position

        return None

    def _between(self, low: int, high: int | None) -> tuple[int, int | None]:
        """Narrow down from a bad position and one that is not (None: none is known)."""
        while True:
            top = self.end if high is None else high
            # Points between may have been run by the other steps of the search.
            for position in range(low + 1, top):
                if self.settled(position) is Verdict.BAD:
                    low = position

            choices = [p for p in range(low + 1, top) if self.settled(p) is None]
            if not choices:
                return low, high
            position = self._next(choices, low, top)
            self._announce(choices, position, low, top)
            verdict = self.ask(position)
            if verdict is Verdict.BAD:
                low = position
            elif verdict is not Verdict.UNTESTABLE:
                high = position

    def _next(self, choices: Sequence[int], low: int, top: int) -> int:
        """The choice nearest to the declared boundary, or, where that is refuted, to
        the middle."""
        aim = (low + top) / 2
        if self.declared is not None and low < self.declared + 0.5 < top:
            aim = self.declared + 0.5
        return min(choices, key=lambda position: (abs(position - aim), position))

    def _announce(self, choices: Sequence[int], now: int, low: int, top: int) -> None:
        """Name the point that is next if the one now has, or has not, the failure."""
        if self.board.upcoming is None:
            return
        halves = [(now, top), (low, now)]
        # What is declared is to be expected, and no more is fetched.
        if self.declared is not None:
            halves = [halves[now > self.declared]]

        for bottom, ceiling in halves:
            rest = [position for position in choices if bottom < position < ceiling]
            if rest:
                position = self._next(rest, bottom, ceiling)
                self.board.upcoming([self.points[position]])
                return

    def _one_after_another(self) -> tuple[int, int | None]:
        low = 0
        for position in range(1, self.end):
            self._announce(list(range(position, self.end))[:2], position, low, self.end)
            verdict = self.ask(position)
            if verdict is Verdict.BAD:
                low = position
            elif verdict is not Verdict.UNTESTABLE:
                return low, position

        return low, None

    # ------------------------------------------------------------------ the end

    def _conclude(self, low: int, high: int | None) -> None:
        finding = self.finding
        finding.bad = self.points[low]
        if high is not None:
            finding.beyond = self.points[high]
            other = self.board.counts(finding.beyond)[Verdict.OTHER]
            finding.ends_in = Verdict.OTHER if other else Verdict.GOOD
            finding.gap = sorted(self.points[low + 1 : high])
            finding.conclusion = Conclusion.RANGE if finding.gap else Conclusion.FOUND
        elif low == self.end - 1:
            finding.conclusion = Conclusion.NO_BOUNDARY
            finding.notes.append(
                f"the failure is in {self.name(low)}, the last on that side"
            )
        else:
            finding.conclusion = Conclusion.INCONCLUSIVE
            finding.gap = sorted(self.points[low + 1 : self.end])
            finding.notes.append(
                f"beyond {self.name(low)} nothing could be tested: no good one is "
                "known there"
            )

    def _verify(self, low: int, high: int) -> None:
        """Both sides again; then as often as the confidence that is asked for needs
        it."""
        finding = self.finding
        sides = [self.again(position) for position in (high, low)]
        finding.verified = all(sides) and not finding.gap
        if not all(sides):
            finding.notes.append("a side of the boundary could not be run again")
            return

        chances = self._posterior().of_boundary
        if chances[self._alive().index(low)] < self.options.confidence:
            self._weigh()
            # Nothing contradicts it: no chances are to be shown.
            finding.posterior = None
            finding.rate = None

    def _came_back(self, high: int, far: int) -> None:
        """Run again what came back: ``far`` is bad, ``high`` before it is not. It is
        flaky, or it really came back. Raises Contradiction."""
        for wanted in range(2, self.options.settle + 1):
            for position in (high, far):
                if not self.again(position, wanted):
                    return

        finding = self.finding
        finding.returned = [self.points[far]]
        times = self.options.settle
        finding.notes.append(
            f"the failure is gone in {self.name(high)} ({times} of {times} runs) and "
            f"is there again in {self.name(far)} ({times} of {times}): it came back; "
            f"this is about the boundary next to {self.name(0)}"
        )
        self.end = high + 1

    def _other(self) -> None:
        """How far the different failure beyond the boundary goes."""
        finding = self.finding
        first = self.points.index(finding.beyond) if finding.beyond is not None else 0
        kinds = {p: self._kind(p) for p in range(first, len(self.points))}
        goods = [p for p, kind in kinds.items() if kind is Verdict.GOOD]
        if not goods:
            others = [p for p, kind in kinds.items() if kind is Verdict.OTHER]
            last = max(others)
            if last > first:
                name = self.name(last)
                finding.notes.append(f"so does {name}, the furthest that was run")

            finding.notes.append("no good one was seen on that side")
            return

        low = first
        high = min(goods)
        while True:
            position = self._middle_not_run(low, high)
            if position is None:
                break
            self.run(position)
            kind = self._kind(position)
            if kind is Verdict.OTHER:
                low = position
            elif kind is Verdict.GOOD:
                high = position
            elif kind is Verdict.BAD:
                finding.returned.append(self.points[position])
                return

        finding.other_since = (self.points[low], self.points[high])

    def _middle_not_run(self, low: int, high: int) -> int | None:
        """The position between the two, and not run yet, that is nearest to their
        middle."""
        choices = [p for p in range(low + 1, high) if self._kind(p) is None]
        middle = (low + high) / 2
        return min(choices, key=lambda p: (abs(p - middle), p), default=None)

    def _kind(self, position: int) -> Verdict | None:
        try:
            return self.settled(position)
        except _Contradiction:
            return Verdict.BAD

    # ------------------------------------------------------------------ Bayesian

    def _alive(self) -> list[int]:
        """Positions that can be tested, as far as is known."""
        alive = []
        for position in range(self.end):
            was_run = self.board.runs.get(self.points[position])
            if self.judged(position) or not was_run:
                alive.append(position)

        return alive

    def _posterior(self) -> Posterior:
        from mmrepro.campaign.bisect.posterior import (
            RATES,
            SURE,
            WEIGHTS,
            Posterior,
            RunCounts,
        )

        counts = []
        declared = None
        for number, position in enumerate(self._alive()):
            point = self.points[position]
            verdicts = self.board.counts(point)
            counts.append(
                RunCounts(
                    bad=verdicts[Verdict.BAD],
                    good=verdicts[Verdict.GOOD],
                    other=verdicts[Verdict.OTHER],
                    odds=self.board.odds.get(point),
                )
            )
            # Where the declared point cannot be tested, the nearest before it.
            if self.declared is not None and position <= self.declared:
                declared = number

        rates = SURE if self.options.always else (RATES, WEIGHTS)
        return Posterior(counts, declared, rates)

    def _weigh(self) -> None:
        """Run what tells most until the boundary is as sure as is asked for."""
        finding = self.finding
        spent = 0
        while True:
            alive = self._alive()
            posterior = self._posterior()
            chances = posterior.of_boundary
            best = max(range(len(alive)), key=chances.__getitem__)
            finding.rate = posterior.rate
            finding.posterior = {}
            for position, chance in zip(alive, chances, strict=True):
                finding.posterior[self.points[position]] = chance

            sure = chances[best] >= self.options.confidence
            # However sure it is, both sides of the boundary are run twice.
            due = [p for p in alive[best : best + 2] if self.judged(p) < 2]
            if (sure and not due) or spent >= self.options.budget:
                break
            self.run(due[0] if sure else _most_telling(posterior, alive))
            spent += 1

        low = alive[best]
        if sure:
            high = alive[best + 1] if best + 1 < len(alive) else None
            self._conclude(low, high)
            finding.verified = high is not None and not finding.gap
            return

        finding.conclusion = Conclusion.INCONCLUSIVE
        finding.bad = self.points[low]
        finding.beyond = None
        finding.ends_in = None
        finding.gap = []
        finding.verified = False
        finding.notes.append(
            f"{spent} runs leave it open: the likeliest boundary is next to "
            f"{self.name(low)}, at {chances[best]:.0%}, and "
            f"{self.options.confidence:.0%} were asked for"
        )


def _most_telling(posterior: Posterior, alive: Sequence[int]) -> int:
    """The position, one of ``alive``, whose next run is expected to tell most."""
    return alive[posterior.most_informative(range(len(alive)))]
