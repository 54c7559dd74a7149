"""What measurements tell a bisection: whether a metric has moved at a point as far as
at the bad end.

Each run of a point is a comparison with the good end, under the same traffic and in
turn, so that what drifts on a machine falls on both. Changes are logarithms of new over
old, turned so that more is worse."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import mul

from mmrepro.failure.documents import Attempt
from mmrepro.runs import Metric, quantile

_FLOOR = 0.002
"""Nothing is measured more exactly than this: two servers of one release differ by as
much."""
CERTAIN = 20.0
"""Odds, as a logarithm, of what needs no measurement: that the good end is like
itself."""


@dataclass(frozen=True)
class MeanChange:
    """A change: its mean, the standard error of that, and degrees of freedom of the
    error."""

    mean: float
    error: float
    freedom: int

    @property
    def interval(self) -> tuple[float, float]:
        """The ends between which the change lies with 95 %."""
        reach = quantile(0.025, self.freedom) * self.error
        return self.mean - reach, self.mean + reach

    def words(self, metric: Metric) -> str:
        """``4.9 % slower (4.1 to 5.7)``, ``unchanged (-0.4 to +0.6 %)``."""
        unit = "points" if metric.points else "%"
        low, high = (100 * metric.relative(end) for end in self.interval)
        if low <= 0 <= high:
            return f"unchanged ({low:+.1f} to {high:+.1f} {unit})"

        value = 100 * abs(metric.relative(self.mean))
        worse, better = metric.verbs
        verb = better if self.mean < 0 else worse
        least, most = sorted((abs(low), abs(high)))
        return f"{value:.1f} {unit} {verb} ({least:.1f} to {most:.1f})"

    def odds(self, moved: MeanChange) -> float:
        """Logarithm of the odds that the metric moved as far as ``moved``, and not at
        all. The tails are Student's, so that few blocks never make it certain."""
        spread = math.hypot(self.error, moved.error)
        there = ((self.mean - moved.mean) / spread) ** 2
        gone = (self.mean / spread) ** 2
        freedom = self.freedom
        difference = math.log1p(gone / freedom) - math.log1p(there / freedom)
        return (freedom + 1) / 2 * difference


def reading(runs: Sequence[Attempt]) -> MeanChange | None:
    """All runs of a point that measured something, as one. Where they differ by more
    than each by itself explains, the error is as large as that asks for. None: there is
    none."""
    measured = []
    for run in runs:
        # One block has no error of its own.
        if run.measured is not None and run.measured.blocks > 1:
            measured.append(run.measured)

    if not measured:
        return None
    changes = [run.change for run in measured]
    weights = [1 / max(run.error, _FLOOR) ** 2 for run in measured]
    total = sum(weights)
    mean = sum(map(mul, weights, changes)) / total
    freedom = sum(run.blocks - 1 for run in measured)
    error = 1 / math.sqrt(total)
    if len(measured) > 1:
        squares = [(change - mean) ** 2 for change in changes]
        apart = sum(map(mul, weights, squares))
        error *= math.sqrt(max(1.0, apart / (len(measured) - 1)))

    return MeanChange(mean, error, freedom)


def differ(ends: MeanChange, worse: float) -> bool | None:
    """Whether the ends differ, and by as much as the change ``worse``; None: it is left
    open."""
    low, high = ends.interval
    if high < worse:
        return False
    return True if low > 0 and ends.mean > worse / 2 else None


def is_step(whole: MeanChange, before: MeanChange, after: MeanChange) -> bool:
    """Whether the change of the ends came at this boundary, all but a quarter, as far
    as can be told; else it creeps, or came in several steps."""
    error = math.hypot(after.error, before.error)
    reach = quantile(0.025, min(after.freedom, before.freedom)) * error
    return after.mean - before.mean + reach >= 0.75 * whole.mean


NOTHING = MeanChange(0.0, _FLOOR, 30)
"""The comparison of the good end with itself."""
