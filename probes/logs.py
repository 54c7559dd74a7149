"""Log files of any size: errors, last words of each process, last progress, chosen patterns.

Alone::

    from mmrepro.probes import LogsProbe, run_probe
    result = run_probe(LogsProbe(path, {"ghost": r"Expected a cached item"}), Path("evidence"), 30)
    print(result.data.match_counts, result.data.last_by_process)
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from mmrepro.probes import _log_lines
from mmrepro.probes._literals import required_texts
from mmrepro.probes._log_lines import MAX_LINE_BYTES, clean, is_error, parse_line
from mmrepro.probes.base import Probe, RawSink, TimedOut, Unavailable
from mmrepro.probes.data import LogLine, LogsData

CHUNK_BYTES = 1 << 20
MAX_ERRORS = 50
MAX_PROCESSES = 256

Pattern = re.Pattern[str] | str

# What vLLM wraps its process prefix in: two plain replacements spare most logs the expression.
_VLLM_COLOURS = (b"\x1b[1;36m", b"\x1b[0;0m")
_ANSI = re.compile(_log_lines.ANSI)
_PREFIX = re.compile(rb"\n\(([^()\s]{1,120} pid=\d+)\)")
_ERROR_TEXTS = (b"ERROR", b"CRITICAL", b"FATAL", b"Traceback (most")


class LogsProbe(Probe[LogsData]):
    """Reads the file at ``path`` once, from its start, in bounded memory.

    ``patterns``: name -> expression searched in each whole line (without colours and control
    characters). ``progress``: an expression whose last match is the last sign of work done.
    ``first`` and ``last``: how many matching lines of each pattern are kept from either end.
    """

    name = "logs"

    def __init__(
        self,
        path: Path | str,
        patterns: Mapping[str, Pattern] | None = None,
        progress: Pattern | None = None,
        *,
        first: int = 20,
        last: int = 5,
    ) -> None:
        self.path = Path(path)
        self.scanner = Scanner(patterns, progress, file=str(path), first=first, last=last)

    def collect(self, sink: RawSink, deadline: float) -> LogsData:
        """Raises Unavailable for what is no readable file; TimedOut keeps what was read so far."""
        try:
            # A FIFO or a device would block or never end.
            if not stat.S_ISREG(os.stat(self.path).st_mode):  # noqa: PTH116
                raise Unavailable(f"{self.path} is not a file")
            with self.path.open("rb", buffering=0) as stream:
                return self.scanner.scan(stream, deadline)
        except OSError as error:
            raise Unavailable(f"{self.path} cannot be read: {error.strerror}") from error

    def partial(self) -> LogsData | None:
        return self.scanner.result()


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
        self.texts = required_texts(self.regex)
        self.keep = first
        self.count = 0
        self.first: list[tuple[int, str]] = []
        self.last: deque[tuple[int, str]] = deque(maxlen=last)

    def add(self, number: int, line: str) -> None:
        self.count += 1
        if len(self.first) < self.keep:
            self.first.append((number, line))
        else:
            self.last.append((number, line))

    def lines(self) -> list[LogLine]:
        return [parse_line(number, line) for number, line in (*self.first, *self.last)]


class Scanner:
    """The state of one reading. Blocks of whole lines go through a few passes of ``bytes.find``;
    only lines with something in them are ever decoded."""

    def __init__(
        self,
        patterns: Mapping[str, Pattern] | None,
        progress: Pattern | None,
        *,
        file: str = "",
        first: int = 20,
        last: int = 5,
    ) -> None:
        self.file = file
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
        self._unknown = _unknown_prefix([])

    def scan(self, stream: BinaryIO, deadline: float | None = None) -> LogsData:
        for block in self._blocks(stream, deadline):
            self._take(block)
        return self.result()

    def result(self) -> LogsData:
        """What was found so far."""
        return LogsData(
            file=self.file,
            bytes_read=self._bytes,
            lines=self._lines,
            bad_bytes=self._bad_lines,
            last_by_process={
                line.process: line
                for line in (parse_line(n, clean(raw)) for n, raw in list(self._last.values()))
            },
            errors=list(self._errors),
            error_count=self._error_count,
            matches={name: s.lines() for name, s in self._searches.items() if s.count},
            match_counts={name: search.count for name, search in self._searches.items()},
            last_progress=None if self._last_progress is None else parse_line(*self._last_progress),
        )

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
            carry += chunk
            cut = carry.rfind(b"\n")
            if cut > 0:
                yield carry[:cut]
                carry = carry[cut:]
            if len(carry) > MAX_LINE_BYTES:
                # Only ever this much of an endless line is held; the rest of it is passed over.
                carry, in_long_line = carry[: MAX_LINE_BYTES + 1], True
        if carry != b"\n":
            yield carry

    def _take(self, block: bytes) -> None:
        if not block.isascii():
            self._bad_lines += _bad_lines(block)
        if b"\x1b" in block:
            for colour in _VLLM_COLOURS:
                block = block.replace(colour, b"")
            if b"\x1b" in block:
                block = _ANSI.sub(b"", block)
        before = self._lines
        self._lines += block.count(b"\n")
        self._last_words(block)
        self._find_errors(block, before)
        for search in self._searches.values():
            for number, line in _lines_with(block, search.texts, before):
                text = clean(line)
                if search.regex.search(text):
                    search.add(number, text)
        if self._progress is not None:
            self._find_progress(block, self._progress)

    def _last_words(self, block: bytes) -> None:
        marked = block.count(b"\n(")
        for match in self._unknown.finditer(block):
            found = _PREFIX.match(block, match.start())
            if found is None:
                marked -= 1
            elif found[0] not in self._last and len(self._last) < MAX_PROCESSES:
                self._last[found[0]] = (0, b"")
                self._unknown = _unknown_prefix(self._last)
        for prefix in self._last:
            if prefix and (at := block.rfind(prefix)) >= 0:
                self._last[prefix] = self._line_from_end(block, at)
        if marked < block.count(b"\n"):
            self._last_unmarked(block)

    def _last_unmarked(self, block: bytes) -> None:
        end = len(block)
        while (start := block.rfind(b"\n", 0, end)) >= 0:
            if end - start > 1 and not _PREFIX.match(block, start, end):
                self._last[b""] = self._line_from_end(block, start)
                return
            end = start

    def _find_errors(self, block: bytes, before: int) -> None:
        for number, raw in _lines_with(block, _ERROR_TEXTS, before):
            line = parse_line(number, clean(raw))
            if is_error(line):
                self._error_count += 1
                if len(self._errors) < MAX_ERRORS:
                    self._errors.append(line)

    def _find_progress(self, block: bytes, search: _Search) -> None:
        end = len(block)
        while end > 0:
            if search.texts is None:
                at = block.rfind(b"\n", 0, end)
            else:
                at = max(block.rfind(text, 0, end) for text in search.texts)
            start = block.rfind(b"\n", 0, at + 1) if at >= 0 else -1
            if start < 0:
                return
            number, raw = self._line_from_end(block, start)
            text = clean(raw)
            if search.regex.search(text):
                self._last_progress = (number, text)
                return
            end = start

    def _line_from_end(self, block: bytes, start: int) -> tuple[int, bytes]:
        """Number and content of the line whose newline is at ``start``, counted from the end."""
        number = self._lines - block.count(b"\n", start + 1)
        return number, _line_at(block, start)


def _line_at(block: bytes, start: int) -> bytes:
    end = block.find(b"\n", start + 1, start + 1 + MAX_LINE_BYTES)
    return block[start + 1 : end if end >= 0 else start + 1 + MAX_LINE_BYTES]


def _lines_with(
    block: bytes, texts: tuple[bytes, ...] | list[bytes] | None, before: int
) -> Iterator[tuple[int, bytes]]:
    """Number and content of each line of ``block`` that holds one of ``texts``; None: of all."""
    if texts is None:
        for index, line in enumerate(block.split(b"\n")[1:], start=before + 1):
            yield index, line[:MAX_LINE_BYTES]
        return
    starts: set[int] = set()
    for text in texts:
        at = block.find(text)
        while at >= 0:
            starts.add(block.rfind(b"\n", 0, at))
            end = block.find(b"\n", at)
            at = block.find(text, end) if end >= 0 else -1
    number, counted = before, 0
    for start in sorted(starts):
        number += block.count(b"\n", counted, start + 1)
        counted = start + 1
        yield number, _line_at(block, start)


def _bad_lines(block: bytes) -> int:
    try:
        block.decode("utf-8")
    except UnicodeDecodeError:
        return sum(1 for line in block.split(b"\n") if not line.isascii() and not _is_utf8(line))
    return 0


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _unknown_prefix(known: Mapping[bytes, object] | list[bytes]) -> re.Pattern[bytes]:
    """Lines that open a parenthesis and are none of the processes known by now."""
    seen = b"|".join(re.escape(prefix[2:]) for prefix in known if prefix)
    return re.compile(rb"\n\((?!" + seen + rb")" if seen else rb"\n\(")
