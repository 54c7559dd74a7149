"""The birthday problem: how soon two of n random values of b bits are equal.

All functions are of the ideal case, values drawn independently and uniformly from 2^bits. SHA-256
cut to 30 bits is that as far as anybody can tell.
"""

from __future__ import annotations

import math

MAX_BITS = 256

_CERTAIN = 40.0
"""e^-40: the chance of no collision below which its complement is 1.0 in floating point."""


def collision_probability(images: int, bits: int) -> float:
    """Probability that among ``images`` values of ``bits`` bits at least two are equal.

    1 - (1 - 1/m)(1 - 2/m)…(1 - (images-1)/m) with m = 2^bits, to about 12 digits.

    Raises:
        ValueError: ``images`` is negative, or ``bits`` is not in 1..256.
    """
    space = _space(bits)
    if images < 0:
        raise ValueError("the number of images must not be negative")
    if images > space:
        return 1.0
    return -math.expm1(_log_no_collision(images, space))


def images_for(probability: float, bits: int) -> int:
    """The fewest images that give at least ``probability`` of a collision.

    For 0.5 and 30 bits that is 38 582; the usual sqrt(2 m ln 2) gives 38 581.4, and 38 581 images
    reach 0.499988.

    Raises:
        ValueError: ``probability`` is not between 0 and 1, or ``bits`` is not in 1..256.
    """
    space = _space(bits)
    if not 0.0 <= probability <= 1.0:
        raise ValueError("a probability is between 0 and 1")
    if probability == 1.0:
        return space + 1  # the pigeonhole: before that it is never certain
    wanted = math.log1p(-probability)
    low, high = 0, 1
    while _log_no_collision(high, space) > wanted:
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        if _log_no_collision(middle, space) > wanted:
            low = middle
        else:
            high = middle
    return high if wanted < 0 else 0


def cross_probability(first: int, second: int, bits: int) -> float:
    """Probability that some value of one pool equals some value of another pool.

    ``first`` and ``second`` are the pools' sizes; equal values within a pool do not count. Given
    that the first pool's values differ (at 2^30, of 100 000 all but about five do) it is
    1 - (1 - first/m)^second, which overstates the truth by less than first/m of itself.

    Raises:
        ValueError: a size is negative, or ``bits`` is not in 1..256.
    """
    space = _space(bits)
    if first < 0 or second < 0:
        raise ValueError("the number of images must not be negative")
    small, large = sorted((first, second))
    if small == 0:
        return 0.0
    if large >= space:
        return 1.0
    return -math.expm1(small * math.log1p(-large / space))


def _space(bits: int) -> int:
    if not 1 <= bits <= MAX_BITS:
        raise ValueError(f"bits must be between 1 and {MAX_BITS}")
    return 1 << bits


def _log_no_collision(images: int, space: int) -> float:
    """log of the product of (1 - i/space) for i < images; -inf where a factor is 0."""
    if images > space:
        return -math.inf
    # log1p(-x) = -(x + x²/2 + x³/3 + …), summed over i: the power sums are exact integers.
    last = max(images - 1, 0)
    first = last * (last + 1) // 2
    log = -first / space
    if images << 10 > space and log > -_CERTAIN:
        # Four terms are not enough for such large x; and there are at most some 80 000 of them.
        return math.fsum(math.log1p(-i / space) for i in range(1, images))
    second = last * (last + 1) * (2 * last + 1) // 6
    third = first * first
    fourth = last * (last + 1) * (2 * last + 1) * (3 * last * last + 3 * last - 1) // 30
    log -= second / (2 * space**2)
    log -= third / (3 * space**3)
    return log - fourth / (4 * space**4)
