"""What is around the lines of a large log that tell of an end: its context, in bounded
memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from mmrepro.probes.log_lines import Block, Line

HEAD: Final = 200
"""Lines of its beginning."""
TAIL: Final = 400
"""Lines of its end."""
BEFORE: Final = 250
AFTER: Final = 150
FIRST: Final = 10
LAST: Final = 4
"""Places that are kept from either end."""
MOST_TRIED: Final = 5000
"""Candidates that are read one by one; later ones from the end of each block only."""


class Searching(Protocol):
    def among(self, found: Mapping[bytes, list[int]]) -> list[int] | None: ...
    def matches(self, block: Block, start: int) -> bool: ...


@dataclass
class Excerpt:
    """Lines are kept as ranges of blocks, and read only when they are asked for."""

    search: Searching
    _head: list[tuple[Block, int, int]] = field(default_factory=list)
    _first: list[tuple[Block, int, int]] = field(default_factory=list)
    _last: deque[tuple[Block, int, int]] = field(
        default_factory=lambda: deque(maxlen=2 * LAST)
    )
    _blocks: deque[Block] = field(default_factory=lambda: deque(maxlen=3))
    _places: int = 0
    _tried: int = 0
    _left: int = 0
    _left_first: bool = False
    _headed: int = 0

    def forget(self) -> None:
        """Drop what was found so far: it is of an earlier life."""
        for kept in (self._head, self._first, self._last, self._blocks):
            kept.clear()
        self._places = self._tried = self._left = self._headed = 0

    def take(self, block: Block, found: Mapping[bytes, list[int]]) -> None:
        size = len(block)
        if self._headed < HEAD:
            self._head.append((block, 0, min(size, HEAD - self._headed)))
            self._headed += size
        done = 0
        if self._left:
            done = min(size, self._left)
            (self._first if self._left_first else self._last).append((block, 0, done))
            self._left -= done
        for index in self._anchors(block, found, done):
            if index < done:
                continue
            first = self._places < FIRST
            kept = self._first if first else self._last
            self._places += 1
            if index < BEFORE and self._blocks:
                before = self._blocks[-1]
                kept.append((before, max(0, len(before) - BEFORE + index), len(before)))
            done = min(size, index + 1 + AFTER)
            kept.append((block, max(0, index - BEFORE), done))
            self._left, self._left_first = index + 1 + AFTER - done, first
        self._blocks.append(block)

    def _anchors(
        self, block: Block, found: Mapping[bytes, list[int]], done: int
    ) -> Sequence[int]:
        starts = block.line_starts(self.search.among(found) or [])
        if self._places < FIRST and self._tried < MOST_TRIED:
            self._tried += len(starts)
            return [block.index(s) for s in starts if self.search.matches(block, s)]
        for start in reversed(starts[-64:]):
            if self.search.matches(block, start):
                return [block.index(start)]
        return []

    def lines(self) -> list[Line]:
        """All that was kept, in its order, each line once."""
        ranges = [*self._head, *self._first, *self._last]
        left = TAIL
        for block in reversed(self._blocks):
            ranges.append((block, max(0, len(block) - left), len(block)))
            left -= len(block)
            if left <= 0:
                break
        found: dict[tuple[int, int], Line] = {}
        for block, begin, end in ranges:
            for start in block.starts[begin:end]:
                line = block.place(start)
                found.setdefault((line.number, start if block.bares else 0), line)
        return [found[key] for key in sorted(found)]
