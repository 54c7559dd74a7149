"""One pass over a block of log lines that finds everything worth a look (Hyperscan).

A block begins with a newline, and so does each of its lines; there is none at its end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import hyperscan
from mmrepro.probes._log_lines import MAX_LINE_BYTES

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PREFIX = re.compile(
    rb"\n\([^()\s]{1,120} pid=\d+\)|\n\x1b\[1;36m\([^()\s]{1,120} pid=\d+\)\x1b\[0;0m "
)
"""What begins a process's lines; vLLM colours it, up to 0.12 in files as well."""

FEW = 8
"""So many lines of a block are numbered by counting; for more, all its newlines are listed."""

_UNMARKED = rb"\n[^\(\n\x1b]"


class Hits:
    """What one pass found in a block.

    Attributes:
        texts: offsets of the last byte of each occurrence, by the text's index.
        known: prefixes (as in ``PREFIX``) that occur.
    """

    def __init__(self, texts: int) -> None:
        self.texts: list[list[int]] = [[] for _ in range(texts)]
        self.known: list[bytes] = []


class BlockScan:
    """Finds ``texts``, and process prefixes; learns prefixes with ``know``."""

    def __init__(self, texts: Sequence[bytes]) -> None:
        self._texts = list(texts)
        self._known: list[bytes] = []
        self._unmarked = _Database([(_UNMARKED, hyperscan.HS_FLAG_SINGLEMATCH)])
        self.know([])

    def know(self, prefixes: Sequence[bytes]) -> None:
        """These prefixes are no longer strangers."""
        self._known += [p for p in prefixes if p not in self._known]
        once = hyperscan.HS_FLAG_SINGLEMATCH
        rows = [(_quoted(text), 0) for text in self._texts]
        self._database = _Database([*rows, *((_quoted(prefix), once) for prefix in self._known)])
        # Python's own expressions are three times as fast here: every line is a candidate.
        self._strangers = [_stranger(head, self._known) for head in (b"\n(", b"\n\x1b")]

    def scan(self, block: bytes) -> Hits:
        count = len(self._texts)
        hits = Hits(count)
        for number, end in self._database.scan(block):
            if number < count:
                hits.texts[number].append(end - 1)
            else:
                hits.known.append(self._known[number - count])
        return hits

    def strangers(self, block: bytes, *, stripped: bool = False) -> list[int] | None:
        """Where lines begin that open a parenthesis and are of no known process.

        None: there are escapes beside those that vLLM puts around its prefixes. In the middle of
        a text they would hide the text: the block must be stripped of them first. What is left
        of them then (``stripped``) begins no escape sequence.
        """
        plain, coloured = self._strangers
        starts = [match.start() for match in plain.finditer(block)]
        if stripped or b"\x1b" not in block:
            return starts
        # Two escapes for each line that begins with one, and it begins as it should: no others.
        if block.count(b"\x1b") != 2 * block.count(b"\n\x1b"):
            return None
        more = [match.start() for match in coloured.finditer(block)]
        if not all(PREFIX.match(block, start) for start in more):
            return None
        return starts + more

    def has_unmarked(self, block: bytes) -> bool:
        """Whether some line has anything but a parenthesis or a colour at its head."""
        return bool(self._unmarked.scan(block))


@lru_cache(maxsize=32)
def _compiled(rows: tuple[tuple[bytes, int], ...]) -> hyperscan.Database:
    database = hyperscan.Database()
    database.compile(
        expressions=[expression for expression, _ in rows],
        ids=list(range(len(rows))),
        elements=len(rows),
        flags=[flag for _, flag in rows],
    )
    return database


class _Database:
    def __init__(self, rows: Sequence[tuple[bytes, int]]) -> None:
        self._database = _compiled(tuple(rows)) if rows else None
        if self._database is not None:  # the database may be shared by threads, this may not
            self._scratch = hyperscan.Scratch(self._database)

    def scan(self, block: bytes) -> list[tuple[int, int]]:
        """(row, offset after the match) of each match."""
        matches: list[tuple[int, int]] = []

        def note(row: int, _start: int, end: int, _flags: int, _context: object) -> None:
            matches.append((row, end))

        if self._database is not None:
            self._database.scan(block, match_event_handler=note, scratch=self._scratch)
        return matches


def _quoted(text: bytes) -> bytes:
    return b"".join(b"\\x%02x" % byte for byte in text)


def _stranger(head: bytes, known: Sequence[bytes]) -> re.Pattern[bytes]:
    tails = [re.escape(prefix[len(head) :]) for prefix in known if prefix.startswith(head)]
    unlike = b"(?!" + b"|".join(tails) + b")" if tails else b""
    return re.compile(re.escape(head) + unlike)


class Lines:
    """The lines of a block, found when they are asked for."""

    def __init__(self, block: bytes, before: int) -> None:
        self.block = block
        self.before = before
        self._count = block.count(b"\n")
        self._starts: NDArray[np.int64] | None = None
        self._asked = 0

    def __len__(self) -> int:
        return self._count

    @property
    def has_long(self) -> bool:
        """Whether a line is longer than what is looked at of it."""
        start = 0
        while len(self.block) - start > MAX_LINE_BYTES:
            last = self.block.rfind(b"\n", start + 1, start + MAX_LINE_BYTES + 1)
            if last < 0:
                return True
            start = last
        return False

    @cached_property
    def _bytes(self) -> NDArray[np.uint8]:
        import numpy as np

        return np.frombuffer(self.block, np.uint8)

    @property
    def starts(self) -> NDArray[np.int64]:
        """Offsets of the newlines that lines begin with."""
        if self._starts is None:
            import numpy as np

            self._starts = np.flatnonzero(self._bytes == ord("\n"))
        return self._starts

    def at(self, offset: int) -> tuple[int, bytes]:
        """Number in the file, and content (cut at MAX_LINE_BYTES), of the line that holds the
        byte at ``offset``; a newline belongs to the line after it."""
        start = self.start_at(offset)
        return self.before + self._index(start) + 1, self.content(start)

    def start_at(self, offset: int) -> int:
        return self.block.rfind(b"\n", 0, offset + 1)

    def content(self, start: int) -> bytes:
        end = self.block.find(b"\n", start + 1)
        end = len(self.block) if end < 0 else end
        return self.block[start + 1 : min(end, start + 1 + MAX_LINE_BYTES)]

    def _index(self, start: int) -> int:
        """Of the line that begins with the newline at ``start``."""
        self._asked += 1
        if self._starts is None and self._asked <= FEW:
            if start < len(self.block) // 2:
                return self.block.count(b"\n", 0, start)
            return self._count - self.block.count(b"\n", start)
        return int(self.starts.searchsorted(start))

    def holding(self, offsets: Sequence[int] | None) -> Iterator[tuple[int, bytes]]:
        """The lines that hold these offsets, in order, each once; None: every line."""
        starts = self.starts.tolist() if offsets is None else self.line_starts(offsets)
        for start in starts:
            yield self.before + self._index(start) + 1, self.content(start)

    def line_starts(self, offsets: Sequence[int]) -> list[int]:
        """Where the lines that hold these offsets begin, in order, each once."""
        if len(offsets) <= FEW:
            return sorted({self.start_at(offset) for offset in offsets})
        import numpy as np

        lines = np.searchsorted(self.starts, np.asarray(offsets), side="right") - 1
        starts: list[int] = self.starts[np.unique(lines)].tolist()
        return starts

    def first_starts(self, count: int) -> Iterator[int]:
        """Where the first ``count`` lines begin."""
        start = self.block.find(b"\n")
        while start >= 0 and count > 0:
            yield start
            start, count = self.block.find(b"\n", start + 1), count - 1

    def last_starts(self, count: int) -> Iterator[int]:
        """Where the last ``count`` lines begin, last first."""
        start = self.block.rfind(b"\n")
        while start >= 0 and count > 0:
            yield start
            start, count = self.block.rfind(b"\n", 0, start), count - 1

    def last_unmarked(self, scan: BlockScan) -> int:
        """Where the last line begins that neither is empty nor opens a parenthesis; -1: none."""
        end = len(self.block)
        for _ in range(64):
            if (start := self.block.rfind(b"\n", 0, end)) < 0:
                return -1
            if self._is_unmarked(start):
                return start
            end = start
        if not scan.has_unmarked(self.block):
            return -1
        import numpy as np

        heads = self._bytes[np.minimum(self.starts + 1, len(self._bytes) - 1)]
        marked = (heads == ord("(")) | (heads == ord("\n")) | (heads == 0x1B)
        unmarked = np.flatnonzero(~marked)
        return int(self.starts[unmarked[-1]]) if len(unmarked) else -1

    def _is_unmarked(self, start: int) -> bool:
        return self.block[start + 1 : start + 2] not in (b"(", b"\n", b"", b"\x1b")


def safe_text(text: bytes) -> bytes:
    """The longest part of ``text`` that the colours around a prefix cannot interrupt."""
    return max(text.split(b") "), key=len)


def merged(offsets: Mapping[bytes, Sequence[int]], texts: Sequence[bytes]) -> list[int]:
    """All occurrences of ``texts``."""
    return [offset for text in texts for offset in offsets[text]]
