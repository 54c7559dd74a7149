"""What is around the lines of a large log that tell of an end: its context, in bounded
memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

from mmrepro.probes.log_lines import Block, Line

HEAD: Final = 200
"""Lines of its beginning."""
TAIL: Final = 400
"""Lines of its end."""
BEFORE: Final = 250
AFTER: Final = 150
FIRST: Final = 6
LAST: Final = 3
"""Places of one kind that are kept from either end."""
MOST_TRIED: Final = 5000
"""Candidates that are read one by one; later ones from the end of each block only."""


class Searching(Protocol):
    def among(self, found: Mapping[bytes, list[int]]) -> list[int] | None: ...
    def matches(self, block: Block, start: int) -> bool: ...


Range = tuple[Block, int, int]
"""Lines of a block, from one index to before another; read when they are asked for."""


class _Places:
    """Where lines of one kind stand, and the lines around them: the first and the
    last."""

    def __init__(self, search: Searching) -> None:
        self._search = search
        self.forget()

    def forget(self) -> None:
        self._first: list[Range] = []
        self._last: deque[Range] = deque(maxlen=2 * LAST)
        self._count = self._tried = self._left = 0
        self._left_first = False

    def ranges(self) -> list[Range]:
        return [*self._first, *self._last]

    def take(
        self, block: Block, previous: Block | None, found: Mapping[bytes, list[int]]
    ) -> None:
        size = len(block)
        done = 0
        if self._left:
            done = min(size, self._left)
            (self._first if self._left_first else self._last).append((block, 0, done))
            self._left -= done
        for index in self._matching(block, found):
            if index < done:
                continue
            first = self._count < FIRST
            kept = self._first if first else self._last
            self._count += 1
            if index < BEFORE and previous is not None:
                begin = max(0, len(previous) - BEFORE + index)
                kept.append((previous, begin, len(previous)))
            done = min(size, index + 1 + AFTER)
            kept.append((block, max(0, index - BEFORE), done))
            self._left, self._left_first = index + 1 + AFTER - done, first

    def _matching(
        self, block: Block, found: Mapping[bytes, list[int]]
    ) -> Sequence[int]:
        starts = block.line_starts(self._search.among(found) or [])
        if self._count < FIRST and self._tried < MOST_TRIED:
            self._tried += len(starts)
            return [block.index(s) for s in starts if self._search.matches(block, s)]
        for start in reversed(starts[-64:]):
            if self._search.matches(block, start):
                return [block.index(start)]
        return []


class Excerpt:
    """The beginning and the end of a log, and what stands around lines of several
    kinds.

    Each kind has places of its own: thousands of connections that are reset do not
    displace the one fault of a GPU."""

    def __init__(self, searches: Iterable[Searching]) -> None:
        self._kinds = [_Places(search) for search in searches]
        self.forget()

    def forget(self) -> None:
        """Drop what was found so far: it is of an earlier life."""
        self._head: list[Range] = []
        self._headed = 0
        self._blocks: deque[Block] = deque(maxlen=3)
        for kind in self._kinds:
            kind.forget()

    def take(self, block: Block, found: Mapping[bytes, list[int]]) -> None:
        size = len(block)
        if self._headed < HEAD:
            self._head.append((block, 0, min(size, HEAD - self._headed)))
            self._headed += size
        previous = self._blocks[-1] if self._blocks else None
        for kind in self._kinds:
            kind.take(block, previous, found)
        self._blocks.append(block)

    def lines(self) -> list[Line]:
        """All that was kept, in its order, each line once."""
        ranges = list(self._head)
        for kind in self._kinds:
            ranges += kind.ranges()
        left = TAIL
        for block in reversed(self._blocks):
            ranges.append((block, max(0, len(block) - left), len(block)))
            left -= len(block)
            if left <= 0:
                break
        wanted: dict[int, tuple[Block, set[int]]] = {}
        for block, begin, end in ranges:
            _, indices = wanted.setdefault(id(block), (block, set()))
            indices.update(range(begin, end))
        found: dict[tuple[int, int], Line] = {}
        for block, indices in wanted.values():
            for index in indices:
                start = block.starts[index]
                line = block.place(start)
                found.setdefault((line.number, start if block.bares else 0), line)
        return [found[key] for key in sorted(found)]
