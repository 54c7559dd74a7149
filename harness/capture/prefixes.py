"""Which texts begin alike, and how long: the shape that prefix caches see."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True)
class Branch(Generic[T]):
    """One of some texts, in sorted order.

    Attributes:
        units: what the text is made of.
        shared: how many it has in common with the one before it.
    """

    units: Sequence[T]
    shared: int


def branches(texts: Sequence[Sequence[T]]) -> Iterator[Branch[T]]:
    """Of ``texts``, sorted and each once: what begins alike stands together."""
    before: Sequence[T] | None = None
    for units in texts:
        yield Branch(units, 0 if before is None else common(before, units))
        before = units


def common(one: Sequence[T], other: Sequence[T]) -> int:
    """Length of the longest common prefix."""
    low, high = 0, min(len(one), len(other))
    while low < high:  # comparing slices is much faster than unit by unit
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def places(texts: Sequence[Sequence[T]]) -> list[list[int]]:
    """For each of the sorted ``texts``: where others part from it, ascending."""
    shared = [branch.shared for branch in branches(texts)]
    found: list[set[int]] = [set() for _ in texts]
    for order in (range(len(texts)), range(len(texts) - 1, -1, -1)):
        stack: list[int] = []
        step = order.step
        for place in order:
            near = shared[place] if step > 0 else shared[place + 1] if place + 1 < len(texts) else 0
            while stack and stack[-1] >= near:
                stack.pop()
            if near:
                stack.append(near)
            found[place].update(stack)
    return [sorted(one) for one in found]
