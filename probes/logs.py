"""Log files of any size: errors, last words of each process, last progress, chosen patterns.

Alone::

    from mmrepro.probes.base import run_probe
    from mmrepro.probes.logs import LogsProbe
    result = run_probe(LogsProbe(path, {"ghost": r"Expected a cached item"}), Path("evidence"), 30)
    print(result.data.match_counts, result.data.last_by_process)
"""

from __future__ import annotations

import codecs
import os
import re
import stat
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO, Self

from mmrepro.probes import _log_lines
from mmrepro.probes._literals import exact_texts, required_texts
from mmrepro.probes._log_blocks import (
    PREFIX,
    BlockScan,
    Lines,
    merged,
    safe_text,
)
from mmrepro.probes._log_lines import MAX_LINE_BYTES, clean, is_error, parse_line
from mmrepro.probes.base import Probe, RawSink, Subject, TimedOut, Unavailable
from mmrepro.probes.data import LogLine, LogsData
from mmrepro.probes.log_life import Life

CHUNK_BYTES = 1 << 20
MAX_ERRORS = 50
MAX_STUCK = 50
MAX_PROCESSES = 256

Pattern = re.Pattern[str] | str

_ANSI = re.compile(_log_lines.ANSI)
_ERROR_TEXTS = (b"ERROR", b"CRITICAL", b"raceback (most recent call last)")


class LogsProbe(Probe[LogsData]):
    """Reads the file at ``path`` once, from its start, in bounded memory.

    ``patterns``: name -> expression searched in each whole line (without colours and control
    characters). ``progress``: an expression whose last match is the last sign of work done.
    ``first`` and ``last``: how many matching lines of each pattern are kept from either end.
    ``max_bytes``: of a larger file only that much of its end is read (``skipped_bytes``).
    ``added``: lines that tell of a new request; those after the last progress are kept.
    ``life``: what an earlier start of the server wrote is passed over.
    """

    name = "logs"
    needs = "log"

    @classmethod
    def on(cls, subject: Subject) -> Self:
        return cls(subject.log or "")

    def __init__(
        self,
        path: Path | str,
        patterns: Mapping[str, Pattern] | None = None,
        progress: Pattern | None = None,
        *,
        first: int = 20,
        last: int = 5,
        max_bytes: int | None = None,
        added: Pattern | None = None,
        life: Life | None = None,
    ) -> None:
        self.path = Path(path)
        self.added = added
        self.life = life
        self.patterns = dict(patterns or {})
        self.progress = progress
        self.first = first
        self.last = last
        self.max_bytes = max_bytes
        self._skipped = 0
        self._scanner: Scanner | None = None

    def collect(self, sink: RawSink, deadline: float) -> LogsData:
        """Raises Unavailable for what is no readable file; TimedOut keeps what was read so far."""
        self._scanner = scanner = Scanner(
            self.patterns,
            self.progress,
            file=str(self.path),
            first=self.first,
            last=self.last,
            added=self.added,
            life=self.life,
        )
        try:
            # A FIFO or a device would block or never end.
            status = os.stat(self.path)  # noqa: PTH116
            if not stat.S_ISREG(status.st_mode):
                raise Unavailable(f"{self.path} is not a file")
            if self.max_bytes is not None:
                self._skipped = max(0, status.st_size - self.max_bytes)
            with self.path.open("rb", buffering=0) as stream:
                stream.seek(self._skipped)
                return self._told(scanner.scan(stream, deadline))
        except OSError as error:
            raise Unavailable(f"{self.path} cannot be read: {error.strerror}") from error

    def partial(self) -> LogsData | None:
        return self._told(self._scanner.result()) if self._scanner else None

    def _told(self, data: LogsData) -> LogsData:
        return data.model_copy(update={"skipped_bytes": self._skipped})


def scan(
    stream: BinaryIO,
    patterns: Mapping[str, Pattern] | None = None,
    progress: Pattern | None = None,
    *,
    file: str = "",
    deadline: float | None = None,
    first: int = 20,
    last: int = 5,
) -> LogsData:
    """The same for any binary stream, such as a ``gzip.open`` of a rotated log.

    Raises:
        TimedOut: ``deadline`` (a ``time.monotonic()`` instant) passed before the end.
    """
    return Scanner(patterns, progress, file=file, first=first, last=last).scan(stream, deadline)


class _Search:
    """One expression, and the first and last lines that it matched."""

    def __init__(self, pattern: Pattern, first: int, last: int) -> None:
        self.regex = re.compile(pattern) if isinstance(pattern, str) else pattern
        exact = exact_texts(self.regex)
        texts = exact or required_texts(self.regex)
        self.texts = None if texts is None else [safe_text(text) for text in texts]
        self.plain = exact is not None and self.texts == exact
        """A line with one of the texts matches: nothing but counting is left to do."""
        self.keep = first
        self.count = 0
        self.first: list[tuple[int, str]] = []
        self.last: deque[tuple[int, str]] = deque(maxlen=last)

    def take(self, lines: Lines, offsets: list[int] | None) -> None:
        """The matches among the lines that hold ``offsets``; None: among all lines."""
        if self.plain and offsets is not None and len(offsets) > self.keep:
            starts = lines.line_starts(offsets)
            room = self.keep - len(self.first)
            kept = self.last.maxlen or 0
            if len(starts) > room + kept and not lines.has_long:
                self.count += len(starts) - room - kept
                offsets = starts[:room] + starts[len(starts) - kept :]
        for number, raw in lines.holding(offsets):
            text = clean(raw)
            if self.regex.search(text):
                self.add(number, text)

    def add(self, number: int, line: str) -> None:
        self.count += 1
        if len(self.first) < self.keep:
            self.first.append((number, line))
        else:
            self.last.append((number, line))

    def lines(self) -> list[LogLine]:
        return [parse_line(number, line) for number, line in (*self.first, *self.last)]

    def forget(self) -> None:
        self.count, self.first = 0, []
        self.last.clear()


class Scanner:
    """The state of one reading. Blocks of whole lines are gone over once for everything that is
    looked for; only lines with something in them are ever decoded."""

    def __init__(
        self,
        patterns: Mapping[str, Pattern] | None,
        progress: Pattern | None,
        *,
        file: str = "",
        first: int = 20,
        last: int = 5,
        added: Pattern | None = None,
        life: Life | None = None,
    ) -> None:
        self.file = file
        self._life = life
        self._earlier = 0
        self._added = None if added is None else _Search(added, MAX_STUCK, 0)
        self._stuck = _Stuck()
        self._timed = _Timed()
        self._parts: list[tuple[int, str]] = []  # lines before it, file
        self._searches = {
            name: _Search(pattern, first, last) for name, pattern in (patterns or {}).items()
        }
        self._progress = None if progress is None else _Search(progress, 1, 1)
        self._last_progress: tuple[int, str] | None = None
        self._bytes = 0
        self._lines = 0
        self._bad_lines = 0
        self._errors: list[LogLine] = []
        self._error_count = 0
        self._last: dict[bytes, tuple[int, bytes]] = {}  # prefix: line number, raw line
        single = [s for s in (self._progress, self._added) if s is not None]
        wanted = [*self._searches.values(), *single]
        texts = [*_ERROR_TEXTS, *(text for s in wanted for text in s.texts or ())]
        texts += life.texts if life else []
        self._texts = list(dict.fromkeys(texts))
        self._scan = BlockScan(self._texts)

    def scan(self, stream: BinaryIO, deadline: float | None = None) -> LogsData:
        for block in self._blocks(stream, deadline):
            self._take(block)
        return self.result()

    def begin(self, file: str) -> None:
        """What is scanned from now on is ``file``'s, and its lines are counted from 1 again."""
        self._parts.append((self._lines, file))

    def result(self) -> LogsData:
        """What was found so far."""
        last = sorted(
            filter(itemgetter(0), self._last.values())
        )  # by number: plain and coloured prefixes may be mixed
        data = LogsData(
            file=self.file,
            bytes_read=self._bytes,
            lines=self._lines,
            earlier_lines=self._earlier,
            bad_bytes=self._bad_lines,
            last_by_process={
                line.process: line for line in (parse_line(n, clean(raw)) for n, raw in last)
            },
            errors=list(self._errors),
            error_count=self._error_count,
            matches={name: s.lines() for name, s in self._searches.items() if s.count},
            match_counts={name: search.count for name, search in self._searches.items()},
            last_progress=None if self._last_progress is None else parse_line(*self._last_progress),
            first_line=self._timed.first,
            last_line=self._timed.last,
            stuck_requests=[parse_line(*line) for line in self._stuck.lines],
            stuck_count=self._stuck.count if self._added and self._last_progress else None,
        )
        return data if len(self._parts) < 2 else self._placed(data)

    def _placed(self, data: LogsData) -> LogsData:
        """Line numbers within each file, and the file's name with them."""
        starts = [before for before, _ in self._parts]

        def place(line: LogLine) -> LogLine:
            before, file = self._parts[bisect_left(starts, line.number) - 1]
            return line.model_copy(update={"number": line.number - before, "file": file})

        lists = ("errors", "stuck_requests")
        single = ("last_progress", "first_line", "last_line")
        changes: dict[str, Any] = {name: [*map(place, getattr(data, name))] for name in lists}
        changes |= {name: place(v) for name in single if (v := getattr(data, name)) is not None}
        changes["last_by_process"] = {p: place(line) for p, line in data.last_by_process.items()}
        changes["matches"] = {name: [*map(place, lines)] for name, lines in data.matches.items()}
        changes["files"] = [file for _, file in self._parts]
        return data.model_copy(update=changes)

    def _blocks(self, stream: BinaryIO, deadline: float | None) -> Iterator[bytes]:
        """Blocks of whole lines, each line after a newline of its own and none at the end."""
        carry, in_long_line = b"\n", False
        while chunk := stream.read(CHUNK_BYTES):
            if deadline is not None and time.monotonic() >= deadline:
                raise TimedOut(f"{self.file or 'the log'}: {self._bytes} bytes read in time")
            self._bytes += len(chunk)
            if in_long_line:
                end = chunk.find(b"\n")
                if end < 0:
                    continue
                chunk, in_long_line = chunk[end:], False
            cut = chunk.rfind(b"\n")
            if cut < 0:
                carry += chunk
            else:
                if block := b"".join((carry, memoryview(chunk)[:cut])):
                    yield block
                carry = chunk[cut:]
            if len(carry) > MAX_LINE_BYTES:
                # Only ever this much of an endless line is held; the rest of it is passed over.
                carry, in_long_line = carry[: MAX_LINE_BYTES + 1], True
        if carry != b"\n":
            yield carry

    def _forget(self) -> None:
        """What was found so far is of an earlier life."""
        singles = [s for s in (self._progress, self._added) if s is not None]
        for search in (*self._searches.values(), *singles):
            search.forget()
        self._stuck, self._timed = _Stuck(), _Timed()
        self._last_progress, self._errors, self._error_count = None, [], 0
        self._last = dict.fromkeys(self._last, (0, b""))

    def _take(self, block: bytes, *, whole: bool = False) -> None:
        """``whole``: all of it is of the present life."""
        if not block.isascii():
            self._bad_lines += _bad_lines(block)
        strangers = self._scan.strangers(block)
        if strangers is None:
            block = _ANSI.sub(b"", block)
            strangers = self._scan.strangers(block, stripped=True) or []
        hits = self._scan.scan(block)
        lines = Lines(block, self._lines)
        by_text = dict(zip(self._texts, hits.texts, strict=True))
        if self._life and not whole and (begin := self._life.begins(lines, by_text)) >= 0:
            self._forget()
            self._lines += block.count(b"\n", 0, begin)
            self._earlier = self._lines
            if begin < len(block):
                self._take(block[begin:], whole=True)
            return
        self._lines += len(lines)
        self._last_words(lines, hits.known, strangers)
        self._find_errors(lines, merged(by_text, _ERROR_TEXTS))
        for search in self._searches.values():
            offsets = None if search.texts is None else merged(by_text, search.texts)
            if offsets != []:
                search.take(lines, offsets)
        if self._progress is not None:
            texts = self._progress.texts
            offsets = None if texts is None else sorted(merged(by_text, texts))
            at = self._find_progress(lines, self._progress, offsets)
            if self._added is not None:
                texts = self._added.texts
                added = None if texts is None else sorted(merged(by_text, texts))
                self._stuck.take(lines, self._added, added, at)
        self._timed.take(lines)

    def _last_words(self, lines: Lines, known: list[bytes], strangers: list[int]) -> None:
        block = lines.block
        unmarked = lines.last_unmarked(self._scan)
        new: list[bytes] = []
        for start in strangers:
            match = PREFIX.match(block, start)
            if match is None:
                unmarked = max(unmarked, start)
            elif match[0] not in self._last and len(self._last) < MAX_PROCESSES:
                self._last[match[0]] = (0, b"")
                new.append(match[0])
        for prefix in dict.fromkeys((*known, *new)):
            self._last[prefix] = lines.at(block.rfind(prefix))
        if new:
            self._scan.know(new)
        if unmarked >= 0:
            self._last[b""] = lines.at(unmarked)

    def _find_errors(self, lines: Lines, offsets: list[int]) -> None:
        for number, raw in lines.holding(offsets):
            line = parse_line(number, clean(raw))
            if is_error(line):
                self._error_count += 1
                if len(self._errors) < MAX_ERRORS:
                    self._errors.append(line)

    def _find_progress(self, lines: Lines, search: _Search, offsets: list[int] | None) -> int:
        """Keeps the block's last line of progress; returns where it is, -1 if there is none."""
        for offset in reversed(lines.starts.tolist() if offsets is None else offsets):
            number, raw = lines.at(offset)
            text = clean(raw)
            if search.regex.search(text):
                self._last_progress = (number, text)
                return offset
        return -1


class _Stuck:
    """Requests that were added after the last sign of progress: never scheduled, it seems."""

    def __init__(self) -> None:
        self.count = 0
        self.lines: list[tuple[int, str]] = []

    def take(self, lines: Lines, search: _Search, offsets: list[int] | None, progress: int) -> None:
        """``progress``: offset of the block's last line of progress, or -1."""
        if progress >= 0:
            self.count, self.lines = 0, []
        after = lines.starts.tolist() if offsets is None else offsets
        for number, raw in lines.holding([offset for offset in after if offset > progress]):
            text = clean(raw)
            if search.regex.search(text):
                self.count += 1
                if len(self.lines) < MAX_STUCK:
                    self.lines.append((number, text))


class _Timed:
    """The first and the last line that say when they were written."""

    NEAR = 50
    """So many lines from either end of a block are looked at; a traceback may be as long."""

    def __init__(self) -> None:
        self.first: LogLine | None = None
        self.last: LogLine | None = None

    def take(self, lines: Lines) -> None:
        if self.first is None:
            self.first = self._timed(lines, lines.first_starts(self.NEAR))
        last = self._timed(lines, lines.last_starts(self.NEAR))
        self.last = last or self.last

    @staticmethod
    def _timed(lines: Lines, starts: Iterator[int]) -> LogLine | None:
        for start in starts:
            line = parse_line(0, clean(lines.content(start)[:512]))
            if line.time:
                return parse_line(*_decoded(lines.at(start)))
        return None


def _decoded(line: tuple[int, bytes]) -> tuple[int, str]:
    return line[0], clean(line[1])


def _bad_lines(block: bytes) -> int:
    """Lines that are not UTF-8: after each bad one, decoding goes on at the next line."""
    view, bad, start = memoryview(block), 0, 0
    while start >= 0:
        try:
            codecs.utf_8_decode(view[start:], "strict", True)
        except UnicodeDecodeError as error:
            bad += 1
            start = block.find(b"\n", start + error.start)
        else:
            return bad
    return bad
