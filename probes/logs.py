"""Log files of any size: errors, last words of each process, last progress, chosen patterns.

Alone::

    from mmrepro.probes.base import run_probe
    from mmrepro.probes.logs import LogsProbe
    result = run_probe(LogsProbe(path, {"ghost": r"Expected a cached item"}), Path("evidence"), 30)
    print(result.data.match_counts, result.data.last_by_process)
"""

from __future__ import annotations

import codecs
import re
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Self

import hyperscan
from mmrepro.probes.base import Probe, RawSink, Subject, TimedOut, Unavailable
from mmrepro.probes.data import LogLine, LogsData
from mmrepro.probes.log_files import BROKEN, PACKED, open_log, with_rotated
from mmrepro.probes.log_lines import (
    ANSI,
    MAX_LINE_BYTES,
    NEAR,
    PREFIX,
    Block,
    Life,
    Pattern,
    clean,
    is_error,
    parse_line,
    texts_of,
    timed,
)

CHUNK_BYTES = 256 << 10
"""A block and what numpy makes of it stay in a core's own cache: 1 MiB takes 15 % longer."""
PACKED_CHUNK_BYTES = 64 << 10
MAX_ERRORS = 50
MAX_STUCK = 50
MAX_PROCESSES = 256
_ERROR_TEXTS = (b"ERROR", b"CRITICAL", b"raceback (most recent call last)")


class LogsProbe(Probe[LogsData]):
    """Reads ``paths``, in that order, as one log, each once and in bounded memory.

    What cannot be read is named in ``unread`` and does not end the reading.

    Args:
        paths: one file or several, compressed or not.
        patterns: name -> expression searched in each whole line (without colours and control
            characters); see :class:`mmrepro.probes.data.LogPattern`.
        progress: an expression whose last match is the last sign of work done.
        first, last: how many matching lines of each pattern are kept from either end.
        max_bytes: of a larger file only that much of its end is read (``skipped_bytes``).
        added: lines of a new request; with ``progress`` they give those never scheduled.
        life: what an earlier start of the server wrote is passed over.
        rotated: each file's rotated predecessors are read before it.
    """

    name = "logs"
    needs = "log"

    @classmethod
    def on(cls, subject: Subject) -> Self:
        return cls(subject.log or "")

    def __init__(
        self,
        paths: Path | str | Sequence[Path],
        patterns: Mapping[str, Pattern] | None = None,
        progress: Pattern | None = None,
        *,
        first: int = 20,
        last: int = 5,
        max_bytes: int | None = None,
        added: Pattern | None = None,
        life: Life | None = None,
        rotated: bool = False,
    ) -> None:
        self.paths = [Path(p) for p in ([paths] if isinstance(paths, Path | str) else paths)]
        self.patterns = dict(patterns or {})
        self.progress = progress
        self.first = first
        self.last = last
        self.max_bytes = max_bytes
        self.added = added
        self.life = life
        self.rotated = rotated
        self._scanner: Scanner | None = None
        self._skipped = 0
        self._unread: dict[str, str] = {}

    def collect(self, sink: RawSink, deadline: float) -> LogsData:
        """Raises Unavailable if nothing could be read; TimedOut keeps what was read so far."""
        self._skipped, self._unread = 0, {}
        self._scanner = scanner = Scanner(
            self.patterns,
            self.progress,
            file=", ".join(map(str, self.paths)),
            first=self.first,
            last=self.last,
            added=self.added,
            life=self.life,
        )
        read = 0
        files = [f for path in self.paths for f in (with_rotated(path) if self.rotated else [path])]
        for path in dict.fromkeys(files):
            try:
                with open_log(path) as stream:
                    if self.max_bytes is not None and not isinstance(stream, PACKED):
                        skipped = max(0, path.stat().st_size - self.max_bytes)
                        self._skipped += stream.seek(skipped)
                    scanner.begin(str(path))
                    scanner.scan(stream, deadline)
                read += 1
            except BROKEN as error:
                why = getattr(error, "strerror", None) or str(error) or type(error).__name__
                self._unread[str(path)] = f"it cannot be read: {why}"[:200]
            except Unavailable as error:
                self._unread[str(path)] = str(error)
        if not read and not scanner.result().bytes_read:
            unread = self._unread.items()
            reasons = [why if file in why else f"{file}: {why}" for file, why in unread]
            raise Unavailable("; ".join(reasons) or "no log file was given")
        return self._found(scanner)

    def partial(self) -> LogsData | None:
        return self._found(self._scanner) if self._scanner else None

    def _found(self, scanner: Scanner) -> LogsData:
        changes = {"skipped_bytes": self._skipped, "unread": dict(self._unread)}
        return scanner.result().model_copy(update=changes)


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


class _Texts:
    """Finds many plain texts in one pass (Hyperscan).

    Measured on 2 GiB with eight texts: 0.7 s; one expression of Python's ``re`` over all of them
    takes 10 s, ``bytes.find`` for each 4.4 s. A diagnosis looks for a hundred texts and more.
    """

    def __init__(self, texts: Iterable[bytes]) -> None:
        self._texts = list(dict.fromkeys(texts))
        self._database = hyperscan.Database()
        self._database.compile(
            expressions=[b"".join(b"\\x%02x" % byte for byte in text) for text in self._texts],
            ids=list(range(len(self._texts))),
            elements=len(self._texts),
            flags=[0] * len(self._texts),
        )
        self._scratch = hyperscan.Scratch(self._database)

    def scan(self, data: bytes) -> dict[bytes, list[int]]:
        """For each text the offsets of the last byte of its occurrences."""
        found: list[list[int]] = [[] for _ in self._texts]

        def note(row: int, _start: int, end: int, _flags: int, _context: object) -> None:
            found[row].append(end - 1)

        self._database.scan(data, match_event_handler=note, scratch=self._scratch)
        return dict(zip(self._texts, found, strict=True))


class _Search:
    """One expression, and the first and last lines that it matched."""

    def __init__(self, pattern: Pattern, first: int, last: int) -> None:
        self.regex = re.compile(pattern)
        known = texts_of(pattern)
        self.texts = known.texts
        # A line with one of the texts matches: nothing but counting is left to do.
        self.plain = known.plain
        self.keep = first
        self.count = 0
        self.first: list[tuple[int, str]] = []
        self.last: deque[tuple[int, str]] = deque(maxlen=last)

    def among(self, found: Mapping[bytes, list[int]]) -> list[int] | None:
        """Offsets of all its texts, in order; None: every line has to be tried."""
        if self.texts is None:
            return None
        return sorted(offset for text in self.texts for offset in found[text])

    def take(self, block: Block, offsets: list[int] | None, *, after: int = -1) -> None:
        """Keep the matches among the lines that hold ``offsets`` (None: among all lines) and begin
        after ``after``."""
        starts = [start for start in block.line_starts(offsets) if start > after]
        room, kept = self.keep - len(self.first), self.last.maxlen or 0
        if self.plain and len(starts) > room + kept and not block.has_long:
            self.count += len(starts) - room - kept
            starts = starts[:room] + starts[len(starts) - kept :]
        for start in starts:
            if self.regex.search(text := clean(block.content(start))):
                self.count += 1
                line = block.at(start)[0], text
                (self.first if len(self.first) < self.keep else self.last).append(line)

    def last_in(self, block: Block, offsets: Sequence[int] | None) -> tuple[int, int, str] | None:
        """Where the last line of the block that matches begins, its number and its text."""
        for start in reversed(block.line_starts(offsets)):
            if self.regex.search(text := clean(block.content(start))):
                return start, block.at(start)[0], text
        return None

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
        self._earlier = self._bytes = self._lines = self._bad_lines = 0
        self._parts: list[tuple[int, str]] = []  # lines before it, file
        self._searches = {n: _Search(p, first, last) for n, p in (patterns or {}).items()}
        self._progress = None if progress is None else _Search(progress, 0, 0)
        # Those after the last line of progress: never scheduled, it seems.
        self._stuck = None if added is None else _Search(added, MAX_STUCK, 0)
        self._last: dict[bytes, tuple[int, bytes]] = {}  # prefix: line number, raw line
        self._forget()
        wanted = [*self._searches.values(), self._progress, self._stuck]
        texts = [text for search in wanted if search for text in search.texts or ()]
        self._texts = _Texts([*_ERROR_TEXTS, *texts, *(life.texts if life else ())])

    def _forget(self) -> None:
        """Drop what was found so far: it is of an earlier life."""
        for search in (*self._searches.values(), *filter(None, [self._stuck])):
            search.forget()
        self._errors: list[LogLine] = []
        self._error_count = 0
        self._last_progress: tuple[int, str] | None = None
        self._first_timed: LogLine | None = None
        self._last_timed: LogLine | None = None
        self._last = dict.fromkeys(self._last, (0, b""))

    def begin(self, file: str) -> None:
        """What is scanned from now on is ``file``'s, and its lines are counted from 1 again."""
        self._parts.append((self._lines, file))

    def scan(self, stream: BinaryIO, deadline: float | None = None) -> LogsData:
        for block in self._blocks(stream, deadline):
            self._take(block)
        return self.result()

    def result(self) -> LogsData:
        """What was found so far."""
        # By number: plain and coloured prefixes may be mixed.
        last = [parse_line(n, clean(raw)) for n, raw in sorted(self._last.values()) if n]
        data = LogsData(
            file=self.file,
            bytes_read=self._bytes,
            lines=self._lines,
            earlier_lines=self._earlier,
            bad_bytes=self._bad_lines,
            last_by_process={line.process: line for line in last},
            errors=list(self._errors),
            error_count=self._error_count,
            matches={name: s.lines() for name, s in self._searches.items() if s.count},
            match_counts={name: search.count for name, search in self._searches.items()},
            last_progress=None if self._last_progress is None else parse_line(*self._last_progress),
            first_line=self._first_timed,
            last_line=self._last_timed,
            stuck_requests=self._stuck.lines() if self._stuck else [],
            stuck_count=self._stuck.count if self._stuck and self._last_progress else None,
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
        """Blocks of whole lines, each line after a newline of its own and none at the end.

        They are read and not mapped: a log that is cut while it is mapped (logrotate's
        copytruncate) ends the process with SIGBUS.
        """
        carry, in_long_line = b"\n", False
        # In small steps: a damaged end takes no more than one of them with it.
        step = PACKED_CHUNK_BYTES if isinstance(stream, PACKED) else CHUNK_BYTES
        while chunk := stream.read(step):
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

    def _take(self, data: bytes, *, whole: bool = False) -> None:
        """``whole``: all of it is of the present life."""
        if not whole and not data.isascii():
            self._bad_lines += _bad_lines(data)
        block, known = Block(data, self._lines), [*filter(None, self._last)]
        heads = block.heads(known)
        if block.has_other_colours(heads[2]):
            # In the middle of a text they would hide it.
            block = Block(ANSI.sub(b"", data), self._lines)
            heads = block.heads(known)
        found = self._texts.scan(block.data)
        if self._life and not whole and (begin := self._life.begins(block, found)) >= 0:
            self._forget()
            self._lines += int(block.starts.searchsorted(begin))
            self._earlier = self._lines
            if begin < len(block.data):
                self._take(block.data[begin:], whole=True)
            return
        self._lines += len(block)
        self._last_words(block, *heads)
        errors = [offset for text in _ERROR_TEXTS for offset in found[text]]
        for number, raw in block.holding(errors):
            line = parse_line(number, clean(raw))
            if is_error(line):
                self._error_count += 1
                self._errors += [line] if len(self._errors) < MAX_ERRORS else []
        for search in self._searches.values():
            if (offsets := search.among(found)) != []:
                search.take(block, offsets)
        if self._progress is not None:
            last = self._progress.last_in(block, self._progress.among(found))
            if last is not None:
                self._last_progress = last[1:]
            if self._stuck is not None:
                if last is not None:
                    self._stuck.forget()
                after = -1 if last is None else last[0]
                self._stuck.take(block, self._stuck.among(found), after=after)
        self._times(block)

    def _last_words(
        self, block: Block, last: dict[bytes, int], bare: int, others: list[int]
    ) -> None:
        for start in others:
            match = PREFIX.match(block.data, start)
            if match is None:
                bare = max(bare, start)
            elif match[0] in last or len(self._last.keys() | last) < MAX_PROCESSES:
                last[match[0]] = start
        self._last |= {prefix: block.at(start) for prefix, start in last.items()}
        if bare >= 0:
            self._last[b""] = block.at(bare)

    def _times(self, block: Block) -> None:
        """Keep the first and the last line that say when they were written."""

        def first_of(starts: Iterable[int]) -> LogLine | None:
            for start in starts:
                if timed(block, start).time:
                    return parse_line(block.at(start)[0], clean(block.content(start)))
            return None

        if self._first_timed is None:
            self._first_timed = first_of(block.starts[:NEAR].tolist())
        self._last_timed = first_of(block.starts[::-1][:NEAR].tolist()) or self._last_timed


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
