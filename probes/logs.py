"""Log files of any size: errors, last words of each process, last progress, chosen
patterns.

Alone::

    from mmrepro.probes.base import run_probe
    from mmrepro.probes.logs import LogsProbe
    result = run_probe(LogsProbe(path, {"ghost": r"Expected a cached item"}), Path("evidence"), 30)
    print(result.data.match_counts, result.data.last_by_process)
"""

from __future__ import annotations

import codecs
import contextlib
import copy
import io
import re
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Self

from mmrepro.probes.base import Probe, RawSink, Subject, TimedOut, Unavailable
from mmrepro.probes.data import LogLine, LogPattern, LogsData
from mmrepro.probes.log_anchors import Finder, anchors_of
from mmrepro.probes.log_excerpt import Excerpt
from mmrepro.probes.log_files import (
    BROKEN,
    BothEnds,
    Packed,
    logs_below,
    open_log,
    with_rotated,
)
from mmrepro.probes.log_forms import UNKNOWN, is_error, written
from mmrepro.probes.log_lines import (
    GLUED,
    MAX_LINE_BYTES,
    NEAR,
    PREFIX,
    Block,
    Life,
    Line,
    Pattern,
    texts_of,
    timed,
)
from mmrepro.probes.log_reader import Unwrapper
from mmrepro.probes.log_wraps import ANSI, MAX_STREAMS, SAMPLE_LINES

CHUNK_BYTES = 256 << 10
"""A block stays in a core's own cache while it is gone over: 1 MiB takes 15 %
longer."""
MAX_ERRORS = 50
MAX_STUCK = 50
MAX_PROCESSES = 256
MAX_FORMS = 100
"""So many lines of an engine's form say whose log it is."""
_ERROR_TEXTS = (
    b"ERROR",
    b"CRITICAL",
    b"FATAL",
    b"raceback (most recent call last)",
    b"\nE0",
    b"\nE1",
    b"]:[E",
    b"\n[E ",  # c10's and glog's
)


class LogsProbe(Probe[LogsData]):
    """Reads ``paths``, in that order, as one log, each once and in bounded memory.

    What cannot be read is named in ``unread`` and does not end the reading.

    Args:
        paths: one file or several, compressed or not.
        patterns: name -> expression searched in each line, from its program's own
            beginning of the line on, a client's words blanked; see
            :class:`mmrepro.probes.data.LogPattern`.
        progress: an expression whose last match is the last sign of work done.
        first, last: how many matching lines of each pattern are kept from either end.
        max_bytes: of a larger file only that much of its end is read
            (``skipped_bytes``).
        added: lines of a new request; with ``progress`` they give those never
            scheduled.
        life: what an earlier start of the server wrote is passed over.
        rotated: each file's rotated predecessors are read before it.
        marks: engine -> expression of a line that each of its starts logs; a group
            "release".
        around: by kind, a pattern; what stands around lines that match one is kept,
            and the log's beginning and end.
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
        marks: Mapping[str, Pattern] | None = None,
        around: Mapping[str, Pattern] | None = None,
    ) -> None:
        self.marks = marks
        self.around = around
        self.paths = [
            Path(p) for p in ([paths] if isinstance(paths, Path | str) else paths)
        ]
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
        """Raises Unavailable if nothing could be read; TimedOut keeps what was read so
        far."""
        self._skipped, self._unread = 0, {}
        self._scanner = scanner = Scanner(
            self.patterns,
            self.progress,
            file=", ".join(map(str, self.paths)),
            first=self.first,
            last=self.last,
            added=self.added,
            life=self.life,
            marks=self.marks,
            around=self.around,
        )
        read = 0
        for path in self._files():
            try:
                with open_log(path) as stream:
                    if self.max_bytes is not None and stream.seekable():
                        skipped = max(0, path.stat().st_size - self.max_bytes)
                        self._skipped += stream.seek(skipped)
                    scanner.begin(str(path))
                    scanner.scan(stream, deadline)
                    if left_out := getattr(stream, "left_out", ""):
                        self._unread[str(path)] = left_out
                read += 1
            except BROKEN as error:
                why = (
                    getattr(error, "strerror", None)
                    or str(error)
                    or type(error).__name__
                )
                self._unread[str(path)] = f"it cannot be read: {why}"[:200]
            except Unavailable as error:
                self._unread[str(path)] = str(error)
        if not read and not scanner.result().bytes_read:
            unread = self._unread.items()
            reasons = [why if file in why else f"{file}: {why}" for file, why in unread]
            raise Unavailable("; ".join(reasons) or "no log file was given")
        return self._found(scanner)

    def _files(self) -> list[Path]:
        """Each once; a folder's in the order of their last change, so without its
        rotated ones."""
        files: list[Path] = []
        for path in self.paths:
            if self.rotated and path.is_file():
                files += with_rotated(path)
                continue
            below = logs_below([path])
            files += below.files
            if below.left_out:
                self._unread[str(path)] = "; ".join(below.left_out)
        return list(dict.fromkeys(files))

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
    return Scanner(patterns, progress, file=file, first=first, last=last).scan(
        stream, deadline
    )


def identify(
    path: Path,
    marks: Mapping[str, Pattern],
    most_bytes: int | None = None,
    deadline_s: float | None = None,
) -> LogsData | None:
    """Whose log it is, by the form of its lines and by what its last start says; None:
    it cannot be read, or no line has an engine's form.

    Args:
        marks: engine -> expression of a line that each of its starts logs; a group
            "release".
        most_bytes: of its beginning, so much is read.
        deadline_s: seconds; what was read until then counts.
    """
    scanner = Scanner({}, None, file=str(path), marks=marks)
    deadline = None if deadline_s is None else time.monotonic() + deadline_s
    with contextlib.suppress(Unavailable, TimedOut, *BROKEN), open_log(path) as stream:
        part = stream if most_bytes is None else io.BytesIO(stream.read(most_bytes))
        scanner.scan(part, deadline)
    found = scanner.result()
    return found if found.engine else None


class _Search:
    """One expression, and the first and last lines that it matched."""

    def __init__(self, pattern: Pattern, first: int, last: int) -> None:
        self.regex = re.compile(pattern)
        self.anchors = anchors_of(pattern)
        self.clients = isinstance(pattern, LogPattern) and pattern.clients
        known = texts_of(pattern)
        # A line with one of the texts matches: nothing but counting is left to do.
        self.plain = tuple(known.texts or ()) if known.plain else ()
        self.keep = first
        self.count = 0
        self.first: list[Line] = []
        self.last: deque[Line] = deque(maxlen=last)

    def among(self, found: Mapping[bytes, list[int]]) -> list[int] | None:
        """Offsets of all its anchors, in order; None: every line has to be tried."""
        if self.anchors is None:
            return None
        return sorted(offset for anchor in self.anchors for offset in found[anchor])

    def matches(self, block: Block, start: int) -> bool:
        read = block.reading(start)
        return self.regex.search(read.line if self.clients else read.own) is not None

    def take(self, block: Block, offsets: list[int] | None, *, after: int = -1) -> None:
        """Keep the matches among the lines that hold ``offsets`` (None: among all
        lines) and begin after ``after``."""
        starts = [start for start in block.line_starts(offsets) if start > after]
        kept = self.last.maxlen or 0
        if (
            self.plain
            and not self.clients
            and self.count >= self.keep
            and len(starts) > kept
            and not block.has_long
        ):
            starts, passed = starts[len(starts) - kept :], starts[: len(starts) - kept]
            self.count += sum(
                block.plainly(start, self.plain) or self.matches(block, start)
                for start in passed
            )
        for start in starts:
            if self.matches(block, start):
                self.count += 1
                line = block.place(start)
                (self.first if len(self.first) < self.keep else self.last).append(line)

    def last_in(
        self, block: Block, offsets: Sequence[int] | None
    ) -> tuple[int, Line] | None:
        """Where the last line of the block that matches begins, and the line."""
        for start in reversed(block.line_starts(offsets)):
            if self.matches(block, start):
                return start, block.place(start)
        return None

    def lines(self, near: datetime) -> list[LogLine]:
        return [line.record(near) for line in (*self.first, *self.last)]

    def forget(self) -> None:
        self.count, self.first = 0, []
        self.last.clear()


class Scanner:
    """The state of one reading. Blocks of whole lines are gone over once for everything
    that is looked for; only lines with something in them are ever decoded."""

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
        marks: Mapping[str, Pattern] | None = None,
        around: Mapping[str, Pattern] | None = None,
    ) -> None:
        self.file = file
        self.stream = ""
        self._life = life
        self._earlier = self._bytes = self._lines = self._bad_lines = 0
        self._parts: list[tuple[int, str]] = []  # lines before it, file
        self._searches = {
            n: _Search(p, first, last) for n, p in (patterns or {}).items()
        }
        self._progress = None if progress is None else _Search(progress, 0, 0)
        # Those after the last line of progress: never scheduled, it seems.
        self._stuck = None if added is None else _Search(added, MAX_STUCK, 0)
        self._marks = {name: _Search(p, 1, 1) for name, p in (marks or {}).items()}
        ends = [_Search(pattern, 0, 0) for pattern in (around or {}).values()]
        self._excerpt = None if around is None else Excerpt(ends)
        self._last: dict[bytes, tuple[Block, int] | None] = {}  # by prefix
        self._inside: dict[str, tuple[Block, int]] = {}  # by process
        self._unwrapper = Unwrapper()
        self._streams: dict[str, Scanner] = {}
        self._unnamed = False  # there are lines of nobody's
        self._previous: Block | None = None
        self._near = UNKNOWN
        self._forget()
        wanted = [
            *self._searches.values(),
            *self._marks.values(),
            self._progress,
            self._stuck,
        ]
        wanted += ends
        anchors = [*_ERROR_TEXTS, *GLUED, *(life.texts if life else ())]
        for search in wanted:
            if search is not None:
                anchors += search.anchors or ()
        self._finder = Finder(anchors)

    def _forget(self) -> None:
        """Drop what was found so far: it is of an earlier life."""
        for search in (*self._searches.values(), *filter(None, [self._stuck])):
            search.forget()
        if self._excerpt:
            self._excerpt.forget()
        self._errors: list[Line] = []
        self._error_count = 0
        self._last_progress: Line | None = None
        self._first_timed: tuple[Block, int] | None = None
        self._last_timed: tuple[Block, int] | None = None
        self._last = dict.fromkeys(self._last)
        self._inside = {}
        self._forms: Counter[str] = Counter()

    def begin(self, file: str) -> None:
        """What is scanned from now on is ``file``'s, and its lines are counted from 1
        again."""
        self._parts.append((self._lines, file))
        self._unwrapper.begin()
        self._previous = None
        for one in self._streams.values():
            one.begin(file)

    def scan(self, stream: BinaryIO, deadline: float | None = None) -> LogsData:
        for block in self._blocks(stream, deadline):
            self._feed(block)
        return self.result()

    def result(self) -> LogsData:
        """What was found so far."""
        near = self._near
        last: dict[str, Line] = {}
        kept = [*filter(None, self._last.values()), *self._inside.values()]
        lines = [block.place(start) for block, start in kept]
        for line in sorted(lines, key=lambda one: one.number):
            last[line.reading.process] = (
                line  # plain and coloured prefixes may be mixed
            )
        progress = self._last_progress
        engine, release, because = self._engine()
        data = LogsData(
            file=self.file,
            stream=self.stream,
            engine=engine,
            release=release,
            engine_because=because,
            bytes_read=self._bytes,
            lines=self._lines,
            earlier_lines=self._earlier,
            bad_bytes=self._bad_lines,
            last_by_process={
                process: line.record(near) for process, line in last.items()
            },
            errors=[line.record(near) for line in self._errors],
            error_count=self._error_count,
            matches={
                name: s.lines(near) for name, s in self._searches.items() if s.count
            },
            match_counts={
                name: search.count for name, search in self._searches.items()
            },
            last_progress=progress.record(near) if progress else None,
            first_line=_record(self._first_timed, near),
            last_line=_record(self._last_timed, near),
            excerpt=[line.record(near) for line in self._excerpt.lines()]
            if self._excerpt
            else [],
            stuck_requests=self._stuck.lines(near) if self._stuck else [],
            stuck_count=self._stuck.count if self._stuck and progress else None,
        )
        data = data if len(self._parts) < 2 else self._placed(data)
        servers = [one.result() for one in self._streams.values()]
        return data.model_copy(update={"servers": servers}) if servers else data

    def _engine(self) -> tuple[str, str, str]:
        """The engine, its release, and what says so: its last start, else the form of
        its lines."""
        said = [
            (line.number, name, line.reading)
            for name, mark in self._marks.items()
            for line in (*mark.first, *mark.last)
        ]
        if said:
            _, name, read = max(said, key=lambda one: one[0])
            match = self._marks[name].regex.search(read.own)
            release = match.groupdict().get("release") if match else None
            return name, release or "", repr(match[0]) if match else ""
        for name, _ in self._forms.most_common(1):
            return name, "", f"its lines have the form of {name}'s"
        return "", "", ""

    def _placed(self, data: LogsData) -> LogsData:
        """Line numbers within each file, and the file's name with them."""
        starts = [before for before, _ in self._parts]

        def place(line: LogLine) -> LogLine:
            before, file = self._parts[bisect_left(starts, line.number) - 1]
            return line.model_copy(
                update={"number": line.number - before, "file": file}
            )

        lists = ("errors", "stuck_requests", "excerpt")
        single = ("last_progress", "first_line", "last_line")
        changes: dict[str, Any] = {
            name: [*map(place, getattr(data, name))] for name in lists
        }
        changes |= {
            name: place(v) for name in single if (v := getattr(data, name)) is not None
        }
        changes["last_by_process"] = {
            p: place(line) for p, line in data.last_by_process.items()
        }
        changes["matches"] = {
            name: [*map(place, lines)] for name, lines in data.matches.items()
        }
        changes["files"] = [file for _, file in self._parts]
        return data.model_copy(update=changes)

    def _blocks(self, stream: BinaryIO, deadline: float | None) -> Iterator[bytes]:
        """Blocks of whole lines, each line after a newline of its own and none at the
        end.

        They are read and not mapped: a log that is cut while it is mapped (logrotate's
        copytruncate) ends the process with SIGBUS.
        """
        carry, in_long_line = b"\n", False
        # In small steps: a damaged end takes no more than one of them with it.
        step = Packed.STEP if isinstance(stream, Packed | BothEnds) else CHUNK_BYTES
        while chunk := stream.read(step):
            if deadline is not None and time.monotonic() >= deadline:
                raise TimedOut(
                    f"{self.file or 'the log'}: {self._bytes} bytes read in time"
                )
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
                # Only ever this much of an endless line is held; the rest of it is
                # passed over.
                carry, in_long_line = carry[: MAX_LINE_BYTES + 1], True
        if carry != b"\n":
            yield carry

    # --------------------------------------------------------------- wrappings, streams

    def _feed(self, data: bytes) -> None:
        """Take a block of raw lines: without what collectors put on, and each stream's
        its own."""
        if not data.isascii():
            self._bad_lines += _bad_lines(data)
        unwrapped = self._unwrapper.unwrap(data)
        if unwrapped.plain:
            self._unnamed = True
        else:
            for one in self._split(unwrapped.streams):
                own = unwrapped.of(one.stream, one._previous)
                if own is not None:
                    one.take(own)
        block = unwrapped.whole(self._previous)
        self._lines = self._unwrapper.lines
        if block is not None:
            self.take(block)
        self._lines = self._unwrapper.lines

    def _split(self, names: list[str]) -> list[Scanner]:
        """The scanners of the streams, each of which has one where there are
        several."""
        if len({*names, *self._streams, self.stream} - {""}) < 2 and not (
            names and self._unnamed
        ):
            self.stream = self.stream or "".join(names)
            return []
        if not self._streams and self.stream:
            self._streams[self.stream] = self._twin()
        self.stream = ""
        for name in names:
            if name not in self._streams and len(self._streams) < MAX_STREAMS:
                one = self._streams[name] = self._twin()
                one.clear(name)
        return list(self._streams.values())

    def _twin(self) -> Scanner:
        shared = (self._finder, self._streams, self._unwrapper)
        memo: dict[int, Any] = {id(one): one for one in shared}
        memo[id(self._streams)] = {}
        return copy.deepcopy(self, memo)

    def clear(self, stream: str) -> None:
        """Nothing was read yet of ``stream``."""
        self.stream, self._last, self._previous = stream, {}, None
        self._forget()
        for mark in self._marks.values():
            mark.forget()
        self._bytes = self._earlier = self._bad_lines = 0

    def _date(self, block: Block) -> None:
        """Learn the year, and the day where lines have none."""
        if self._near != UNKNOWN:
            return
        times = [block.time(start) for start in islice(block.forward(), SAMPLE_LINES)]
        dated = next((time for time in times if re.match(r"\d{4}-", time)), "")
        first = written(dated or next(filter(None, times), ""))
        self._near = first or UNKNOWN

    # ------------------------------------------------------------------ what is found

    def take(self, block: Block) -> None:
        """What a block of lines says, which were not given before."""
        self._date(block)
        if block.numbers is not None and len(block.numbers):
            self._lines = block.numbers[-1]
        known = [*filter(None, self._last)]
        heads = block.heads(known)
        if block.bares is None and block.has_other_colours(heads[2]):
            # In the middle of a text they would hide it.
            block = Block(
                ANSI.sub(b"", block.data), block.before, previous=self._previous
            )
            heads = block.heads(known)
        found = self._finder.scan(block.data)
        after = -1
        if self._life and (after := self._life.begins(block, found)) >= 0:
            self._forget()
            at_end = after >= len(block.data)
            self._earlier = self._lines if at_end else block.number(after) - 1
            self._previous = None if at_end else self._previous
            if at_end:
                return
            block = block.since(after)
            found = self._finder.scan(block.data)
            heads = block.heads(known)
        self._last_words(block, found, *heads)
        levels = [o for text in _ERROR_TEXTS for o in found[text]]
        for start in block.line_starts(levels + block.logged_errors()):
            if is_error(block.reading(start)):
                self._error_count += 1
                if len(self._errors) < MAX_ERRORS:
                    self._errors.append(block.place(start))
        for search in (*self._searches.values(), *self._marks.values()):
            if (offsets := search.among(found)) != []:
                search.take(block, offsets)
        if self._excerpt:
            self._excerpt.take(block, found)
        if self._progress is not None:
            last = self._progress.last_in(block, self._progress.among(found))
            if last is not None:
                self._last_progress = last[1]
            if self._stuck is not None:
                if last is not None:
                    self._stuck.forget()
                after = -1 if last is None else last[0]
                self._stuck.take(block, self._stuck.among(found), after=after)
        self._times(block)
        self._previous = block

    def _last_words(
        self,
        block: Block,
        found: Mapping[bytes, Sequence[int]],
        last: dict[bytes, int],
        bare: int,
        others: list[int],
    ) -> None:
        for start in others:
            match = PREFIX.match(block.data, start)
            if match is None:
                bare = max(bare, start)
            elif match[0] in last or len(self._last.keys() | last) < MAX_PROCESSES:
                last[match[0]] = start
        self._last |= {prefix: (block, start) for prefix, start in last.items()}
        if bare >= 0:
            self._last[b""] = block, bare
        for process, start in block.inside(found).items():
            if process in self._inside or len(self._inside) < MAX_PROCESSES:
                self._inside[process] = block, start

    def _times(self, block: Block) -> None:
        """Keep the first and the last line that say when they were written."""

        def first_of(starts: Iterable[int]) -> tuple[Block, int] | None:
            found = (start for start in starts if timed(block, start).time)
            return next(((block, start) for start in found), None)

        if self._forms.total() < MAX_FORMS:
            for start in islice(block.forward(), 4):
                # A line that has no engine's form by itself has none by those before
                # it, which are many where all begin alike: access lines.
                if not block.by_itself(start).engine:
                    continue
                if engine := block.reading(start).engine:
                    self._forms[engine] += 1
        if self._first_timed is None:
            self._first_timed = first_of(islice(block.forward(), NEAR))
        self._last_timed = first_of(islice(block.backward(), NEAR)) or self._last_timed


def _record(at: tuple[Block, int] | None, near: datetime) -> LogLine | None:
    return None if at is None else at[0].place(at[1]).record(near)


def _bad_lines(block: bytes) -> int:
    """Lines that are not UTF-8: after each bad one, decoding goes on at the next
    line."""
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
