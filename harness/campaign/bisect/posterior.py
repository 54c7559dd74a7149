"""Where a boundary lies, when runs contradict each other: a posterior over its
positions.

Positions lead away from a point that has the failure. Up to the boundary a run shows
the failure with an unknown rate, beyond it (almost) never. The rate is integrated out:
a fifth of its prior is a failure that shows (almost) every time, the rest is uniform.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_ALWAYS = 0.99
"""Rate of a failure that shows every time; the rest is for what nobody foresees."""
_ALWAYS_WEIGHT = 0.2
RATES = np.array([*np.linspace(0.05, 0.95, 19), _ALWAYS])
WEIGHTS = np.array([(1 - _ALWAYS_WEIGHT) / 19] * 19 + [_ALWAYS_WEIGHT])
_FALSE_ALARM = 0.002
"""A run shows the failure, signature and all, where it is not."""
_MASKED = 0.01
"""Of the runs that do not show a failure that is there: those that end in another
one."""
_SLIP = 1e-4
"""A measurement is of something else than it says."""
SURE: Any = (np.array([1 - _SLIP]), np.array([1.0]))
"""Rates and their prior where a point always shows what it has: a metric."""
_DECLARED_WEIGHT = 0.3
"""Prior of the declared boundary, where there is one; the rest is uniform."""

_Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class RunCounts:
    """Runs of a position. ``odds``: logarithm of the odds that it has what is looked
    for, by what all of its runs measured; None: nothing was measured."""

    bad: int = 0
    good: int = 0
    other: int = 0
    odds: float | None = None


class Posterior:
    """Over hypotheses 0 … n-1 for n positions: number k means that 0 … k have the
    failure, and the positions beyond have it not.

    Args:
        counts: of the runs at each position.
        declared: the hypothesis that the scenario declares.
        rates: how often a failure may show where it is, and the prior of each.
    """

    def __init__(
        self,
        counts: Sequence[RunCounts],
        declared: int | None = None,
        rates: tuple[_Floats, _Floats] = (RATES, WEIGHTS),
    ) -> None:
        self._rates, weights = rates
        size = len(counts)
        prior = np.full(size, 1 / size)
        if declared is not None:
            prior = prior * (1 - _DECLARED_WEIGHT)
            prior[declared] += _DECLARED_WEIGHT

        # Position by rate: what the runs there say, if the failure is there.
        there = np.array([_there(runs, self._rates) for runs in counts])
        gone = np.array([_gone(runs) for runs in counts])
        # Hypothesis k: it is there up to position k, and gone beyond.
        up_to = np.cumsum(there, axis=0)
        beyond = gone.sum() - np.cumsum(gone)

        logs = np.log(prior)[:, None] + np.log(weights)
        logs = logs + up_to + beyond[:, None]
        # The largest becomes 1: no product of many runs vanishes.
        joint = np.exp(logs - logs.max())
        self._joint: _Floats = joint / joint.sum()

    @property
    def of_boundary(self) -> list[float]:
        return [float(p) for p in self._joint.sum(axis=1)]

    @property
    def rate(self) -> float:
        """How often the failure shows where it is: the mean."""
        return float((self._joint.sum(axis=0) * self._rates).sum())

    def most_informative(self, allowed: Sequence[int]) -> int:
        """The position, one of ``allowed``, whose next run is expected to tell most."""

        def order(position: int) -> tuple[float, int]:
            # Rounded: of positions that tell as much the first is taken.
            return round(self._expected(position), 12), position

        return min(allowed, key=order)

    def _expected(self, position: int) -> float:
        """Entropy of the boundary after one more run there."""
        shows = np.full_like(self._joint, _FALSE_ALARM)
        shows[position:] = self._rates
        return _weighed(self._joint * shows) + _weighed(self._joint * (1 - shows))


def _weighed(joint: _Floats) -> float:
    """Entropy times the probability of what led to it."""
    total = float(joint.sum())
    p = joint.sum(axis=1) / total
    p = p[p > 0]
    return total * float(-(p * np.log(p)).sum())


def _there(runs: RunCounts, rates: _Floats) -> _Floats:
    """Logarithm of the likelihood, by rate, of the runs at a position that has the
    failure."""
    if runs.odds is not None:
        return np.log(_measured(rates, runs.odds))
    hidden = np.log(1 - rates)
    likelihood: _Floats = runs.bad * np.log(rates) + (runs.good + runs.other) * hidden
    likelihood += runs.other * np.log(_MASKED)
    return likelihood


def _gone(runs: RunCounts) -> float:
    """The likelihood as :func:`_there` has it, at a position that has it not."""
    if runs.odds is not None:
        return float(np.log(_measured(np.array([_SLIP]), runs.odds))[0])
    without = runs.good + runs.other
    alarms = runs.bad * np.log(_FALSE_ALARM)
    return float(alarms + without * np.log(1 - _FALSE_ALARM))


def _measured(rates: _Floats, odds: float) -> _Floats:
    """Likelihood of what was measured, where a run would show it at ``rates``."""
    # Beyond that the exponential overflows, and nothing is more certain.
    bounded = max(-50.0, min(50.0, odds))
    chance = 1 / (1 + math.exp(-bounded))
    likelihood: _Floats = rates * chance + (1 - rates) * (1 - chance)
    return likelihood
