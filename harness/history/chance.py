"""How much of what was counted may be chance."""

from __future__ import annotations

import math

Z_95 = 1.959963984540054
UNLIKELY = 0.05
"""Below it, chance is not taken for the reason."""


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a proportion; (0, 1) without any trial."""
    if not trials:
        return 0.0, 1.0
    share, z2 = successes / trials, Z_95**2
    middle = share + z2 / (2 * trials)
    half = Z_95 * math.sqrt(share * (1 - share) / trials + z2 / (4 * trials**2))
    scale = 1 + z2 / trials
    low, high = (middle - half) / scale, (middle + half) / scale
    # At the ends the exact value is an end, and rounding would leave it out.
    return (low if successes else 0.0), (high if successes < trials else 1.0)


def fisher(first: tuple[int, int], second: tuple[int, int]) -> float:
    """Two-sided p of Fisher's exact test that two samples of two kinds are of one source.

    Counted in whole numbers, so that tables that are equally likely are seen to be.
    """
    kinds = first[0] + second[0]
    size, total = sum(first), sum(first) + sum(second)

    def ways(x: int) -> int:
        return math.comb(kinds, x) * math.comb(total - kinds, size - x)

    observed = ways(first[0])
    possible = range(max(0, size + kinds - total), min(size, kinds) + 1)
    return sum(w for x in possible if (w := ways(x)) <= observed) / math.comb(total, size)
