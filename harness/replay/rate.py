"""How often a failure shows, and how many plays without it tell that it is gone. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Callable

from mmrepro.incident.replay import Rate

CONFIDENCE = 0.95
WRONG = 0.05
"""Chance that any of the steps of a shrinking takes a failing case for one that does not fail."""
_STEPS = 60
"""Halvings: as far as a float tells."""


def rate_of(failed: int, plays: int, confidence: float = CONFIDENCE) -> Rate:
    """With its exact (Clopper-Pearson) interval: each end leaves half of the doubt outside."""
    doubt = (1 - confidence) / 2
    low = 0.0 if not failed else _where(lambda p: _at_least(failed, plays, p) < doubt)
    high = 1.0 if failed == plays else _where(lambda p: _at_least(failed + 1, plays, p) < 1 - doubt)
    return Rate(failed=failed, plays=plays, low=low, high=high, confidence=confidence)


def repeats(rate: float, steps: int, most: int) -> int:
    """Plays without a failure after which a case counts as one that does not fail.

    So many that, at ``rate``, all ``steps`` together are wrong in at most one of twenty cases; no
    more than ``most``. A case that always failed is played once.
    """
    if rate >= 1:
        return 1
    if rate <= 0:
        return most
    needed = math.ceil(math.log(WRONG / max(1, steps)) / math.log(1 - rate))
    return max(1, min(most, needed))


def luck(rate: float, plays: int) -> float:
    """Chance that ``plays`` plays of a failing case all show nothing."""
    return max(0.0, 1 - rate) ** plays


def _at_least(failed: int, plays: int, p: float) -> float:
    """Chance of that many failures or more."""
    return math.fsum(
        math.comb(plays, k) * p**k * (1 - p) ** (plays - k) for k in range(failed, plays + 1)
    )


def _where(below: Callable[[float], bool]) -> float:
    """The chance up to which ``below`` holds."""
    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) else (low, middle)
    return (low + high) / 2
