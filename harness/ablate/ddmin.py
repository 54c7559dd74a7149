"""Delta debugging: a set that still does it, and from which nothing can be left out.

The algorithm is ddmin of Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing
Input", IEEE TSE 28(2), 2002, turned round: what is made smaller here is the set of flips that
cures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def ddmin(items: Sequence[T], holds: Callable[[tuple[T, ...]], bool]) -> tuple[T, ...]:
    """A subset of ``items``, in their order, for which ``holds`` and that is 1-minimal.

    1-minimal: ``holds`` was asked of the result without each one of its items and denied it (but
    for a result of one item, whose remainder is empty and never asked). ``holds`` may be any
    function: where it is not monotone, the result is 1-minimal all the same, though a smaller set
    that does it may exist. At most ``bound(len(items))`` questions, repetitions included.

    Args:
        holds: must be true of ``items`` as a whole; that is not asked again.
    """
    current = tuple(items)
    parts = 2
    while len(current) >= 2:
        chunks = _split(current, parts)
        smaller = next((chunk for chunk in chunks if holds(chunk)), None)
        if smaller is not None:
            current, parts = smaller, 2
            continue
        # With two parts the complements are the parts themselves.
        complements = [_without(current, chunk) for chunk in chunks] if parts > 2 else []
        smaller = next((rest for rest in complements if holds(rest)), None)
        if smaller is not None:
            current, parts = smaller, max(parts - 1, 2)
        elif parts < len(current):
            parts = min(2 * parts, len(current))
        else:
            break
    return current


def bound(count: int) -> int:
    """Most questions that ddmin may ask about ``count`` items (proved in the paper)."""
    return 0 if count < 2 else count * count + 3 * count


def _split(items: tuple[T, ...], parts: int) -> list[tuple[T, ...]]:
    """``parts`` pieces of nearly equal length, none empty."""
    size, longer = divmod(len(items), parts)
    pieces, start = [], 0
    for number in range(parts):
        end = start + size + (number < longer)
        pieces.append(items[start:end])
        start = end
    return pieces


def _without(items: tuple[T, ...], removed: tuple[T, ...]) -> tuple[T, ...]:
    return tuple(item for item in items if item not in removed)
