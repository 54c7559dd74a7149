"""What measurements tell a bisection: whether a metric has moved at a point as far as at the bad
end.

Each run of a point is a comparison with the good end, under the same traffic and in turn, so that
what drifts on a machine falls on both. Changes are logarithms of new over old, turned so that more
is worse.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mmrepro.failure.documents.ledger import Attempt

FLOOR = 0.002
"""Nothing is measured more exactly than this: two servers of one release differ by as much."""
CERTAIN = 20.0
"""Odds, as a logarithm, of what needs no measurement."""


@dataclass(frozen=True)
class Reading:
    """A change: its mean, the standard error of that, and degrees of freedom of the error."""

    mean: float
    error: float
    freedom: int

    @property
    def interval(self) -> tuple[float, float]:
        """That holds the change with 95 %."""
        reach = _quantile(self.freedom) * self.error
        return self.mean - reach, self.mean + reach

    @property
    def words(self) -> str:
        low, high = (math.expm1(end) for end in self.interval)
        return f"{math.expm1(self.mean):+.1%} ({low:+.1%} to {high:+.1%})"

    def odds(self, moved: Reading) -> float:
        """Logarithm of the odds that the metric moved as far as ``moved``, and not at all; tails
        are those of Student's distribution, so that few blocks never make it certain."""
        return self._likelihood(moved.mean, moved.error) - self._likelihood(0.0, 0.0)

    def _likelihood(self, change: float, error: float) -> float:
        spread = math.hypot(self.error, error)
        z = (self.mean - change) / spread
        return -(self.freedom + 1) / 2 * math.log1p(z * z / self.freedom) - math.log(spread)


def reading(runs: Sequence[Attempt]) -> Reading | None:
    """All runs of a point that measured something, as one. Where they differ by more than each by
    itself explains, the error is as large as that asks for. None: there is none."""
    found = [run.measured for run in runs if run.measured is not None and run.measured.blocks > 1]
    if not found:
        return None
    errors = [max(one.error, FLOOR) for one in found]
    weights = [1 / error**2 for error in errors]
    total = sum(weights)
    mean = sum(w * one.change for w, one in zip(weights, found, strict=True)) / total
    freedom = sum(one.blocks - 1 for one in found)
    error = 1 / math.sqrt(total)
    if len(found) > 1:
        apart = sum(w * (one.change - mean) ** 2 for w, one in zip(weights, found, strict=True))
        error *= math.sqrt(max(1.0, apart / (len(found) - 1)))
    return Reading(mean, error, freedom)


def differ(ends: Reading, worse: float) -> bool | None:
    """Whether the ends differ, and by as much as ``worse`` (0.05 is 5 %); None: it is left open."""
    low, high = ends.interval
    bound = math.log1p(worse)
    if high < bound:
        return False
    return True if low > 0 and ends.mean > bound / 2 else None


def course(
    points: Mapping[int, Reading], good: int, bad: int, last_good: int, first_bad: int
) -> str:
    """What is to be said of a change that is no single step; "": it is one.

    Args:
        points: what was measured, by number; not of the good end.
        last_good, first_bad: the two sides of the boundary.
    """
    nothing = Reading(0.0, FLOOR, 30)
    whole = points[bad]
    before = points.get(last_good, nothing) if last_good != good else nothing
    step = points[first_bad].mean - before.mean
    error = math.hypot(points[first_bad].error, before.error)
    reach = _quantile(min(points[first_bad].freedom, before.freedom)) * error
    if step + reach < 0.75 * whole.mean:
        return (
            f"it creeps, or comes in several steps: this one is {math.expm1(step):+.1%} of "
            f"{math.expm1(whole.mean):+.1%}, and the boundary is where half of that has come"
        )
    return ""


def _quantile(freedom: int) -> float:
    """Of Student's distribution, at 97.5 %: Cornish and Fisher's expansion, within 1 % from three
    degrees of freedom on (Abramowitz and Stegun, 26.7.5)."""
    exact = {1: 12.706, 2: 4.303}
    z, n = 1.959964, float(freedom)
    return exact.get(freedom) or (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
    )
