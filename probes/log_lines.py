"""Log lines: their forms, the patterns that they are searched for, and blocks of many
of them."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, lru_cache
from itertools import chain, islice

import stringzilla as sz
from mmrepro.probes.data import LogLine, LogPattern
from mmrepro.probes.log_collectors import Bare
from mmrepro.probes.log_forms import ERROR_LEVELS, Reading, read_line, seconds, written
from mmrepro.probes.log_wraps import ANSI

MAX_LINE_BYTES = 64 << 10
"""No more of a line than this is looked at: a base64 image can be a line of many
megabytes."""

_REDRAWN = re.compile(rb"(?:[^\r(]{0,400}(?:%\||it/s|s/it|\d%)[^\r]{0,400})?\r")
"""A bar that is drawn again and again on one line: the last time counts."""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def clean(raw: bytes) -> str:
    """``raw`` decoded, without ANSI codes and control characters, tabs as they are."""
    raw = raw[:MAX_LINE_BYTES].rstrip(b"\r")
    if b"\x1b" in raw:
        raw = ANSI.sub(b"", raw)
    if b"\r" in raw and _REDRAWN.match(raw):
        raw = raw[raw.rindex(b"\r") :]
    return _CONTROL.sub("", raw.decode("utf-8", "replace")).rstrip()


# ------------------------------------------------------------- patterns and their texts

MIN_CHARS = 3
_TOKEN = re.compile(
    r"\\(?:x..|u.{4}|U.{8}|N\{[^}]*\}|\d+|.)"  # an escape
    r"|\[\^?\]?(?:\\.|[^\]\\])*\]"  # a set
    r"|\{\d*,?\d*\}|.",  # a count, or one character
    re.DOTALL,
)


Pattern = re.Pattern[str] | str


@dataclass(frozen=True)
class Texts:
    """What a fast search looks for before the expression itself is tried on a line.

    Attributes:
        texts: each match holds one of them; None: every line has to be tried.
        plain: the expression means these texts and nothing else.
    """

    texts: list[bytes] | None = None
    plain: bool = False


def texts_of(pattern: Pattern) -> Texts:
    """The texts that ``pattern`` declares, else those that stand in it outside of any
    group.

    For each alternative (``a|b``) it is the longest run of plain characters.
    """
    if isinstance(pattern, LogPattern) and pattern.texts:
        return _searchable(pattern.texts, plain=False)
    compiled = re.compile(pattern)
    if compiled.flags & (re.IGNORECASE | re.VERBOSE):
        return Texts()
    return _texts_in(compiled.pattern)


@lru_cache(maxsize=4096)
def _texts_in(expression: str) -> Texts:
    alternatives, depth, plain = [[""]], 0, True
    for part in _TOKEN.findall(expression):
        runs = alternatives[-1]
        escaped = len(part) == 2 and part[0] == "\\" and not part[1].isalnum()
        if part == "(":
            depth += 1
        elif part == ")":
            depth -= 1
        elif depth:
            pass  # what a group holds may be optional, or be looked ahead for
        elif part == "|":
            alternatives.append([""])
            continue
        elif escaped or (
            len(part) == 1 and part.isprintable() and part not in ".^$*+?[]()"
        ):
            runs[-1] += part[-1]
            continue
        elif part[0] in "*?{":
            runs[-1] = runs[-1][:-1]  # the character before it may be missing
        plain = False
        runs.append("")
    return _searchable([max(runs, key=len) for runs in alternatives], plain=plain)


def _searchable(texts: Sequence[str], *, plain: bool) -> Texts:
    # Colours around a prefix would interrupt a text that spans its end.
    parts = [max(text.split(") "), key=len) for text in texts]
    if min(map(len, parts)) < MIN_CHARS or any(map(_has_surrogate, parts)):
        return Texts()
    plain = plain and list(texts) == parts and all(map(str.isascii, parts))
    return Texts([text.encode() for text in parts], plain)


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= char <= "\udfff" for char in text)


# ------------------------------------------------------------------ blocks

_MARKS = rb"(?:\([A-Za-z_][^()\n]{0,160} pid=\d+(?:, ip=[\d.a-fA-F:]+)?\) ?)+"
PREFIX = re.compile(
    rb"\n" + _MARKS + rb"|\n(?:\x1b\[(?:1|0);36m" + _MARKS + rb"\x1b\[0;0m ?)+"
)
"""What begins a process's lines; vLLM colours it, up to 0.12 in files as well."""
_INSIDE = re.compile(
    rb"(?:(?:^|\n|it/s\]|s/it\]|\r)\[(?:[\d :T.-]{8,29} )?|(?:it/s\]|s/it\]|\r)\()"
    rb"([A-Z_]+\d+(?: [A-Z_]+\d+){0,5}\] |"
    rb"[A-Za-z_][^()\n]{0,160} pid=\d+(?:, ip=[\d.a-fA-F:]+)?\)"
    rb"(?: ?\([^()\n]{0,160} pid=\d+\)){0,3})"
)
GLUED = tuple(bar + mark for bar in (b"it/s]", b"s/it]") for mark in (b"(", b"["))
"""A bar's end, and what begins a process's line."""
MAX_INSIDE = 256
_NOBODY = re.compile(
    rb"(?!Add|Abort|Finish|Free|Recei|Request|Generat|Conver|session|[Pp]rompt|[Tt]ext"
    rb"|[Mm]ess)"
    rb"[^'\"`{}=:\\]{0,300}\Z"
)
"""The beginning of a message with nothing of a client's in it."""
_SPEAKS = re.compile(
    rb"parser|serving|logger\.py|chat_|_router|protocol|/tool_|response|valid"
)
_LINE = re.compile(rb"\n")
_NOT_BARE = (b"(", b"\x1b", b"\n", b"")
FEW = 8
"""So often a line's place among the others is counted; then all lines are."""
MAX_BEFORE = 1000
"""So many lines before a line are asked whether it goes on with a client's words."""


@dataclass(frozen=True)
class Line:
    """A line that is kept: its number in the log, what it says, and what its collector
    did."""

    number: int
    reading: Reading
    bare: Bare | None = None

    def record(self, near: datetime) -> LogLine:
        if self.bare is None:
            return self.reading.record(self.number, near)
        when = seconds(self.bare.time, near)
        return self.reading.record(self.number, near, self.bare.stream, when)


class Block:
    """Whole lines, each after a newline of its own, and none at the end.

    A line is named by the offset of the newline with which it begins. Bytes are counted
    and found with stringzilla, which takes a tenth of the time of ``bytes.count``.

    Attributes:
        before: how many lines of the log come before it.
        bares: the lines as their collector's wrappings were taken off; None: they had
            none.
        numbers: of each line where it is not counted on from ``before``.
    """

    def __init__(
        self,
        data: bytes,
        before: int,
        bares: Sequence[Bare] | None = None,
        numbers: Sequence[int] | None = None,
        previous: Block | None = None,
    ) -> None:
        if previous is not None:
            previous.previous = None  # no chain of them is kept
        self.previous: Block | None = previous
        self.data = data
        self.before = before
        self.bares = bares
        self.numbers = numbers
        self._readings: dict[int, Reading] = {}
        self._asked = 0
        self._size: int = sz.count(data, b"\n")

    def __len__(self) -> int:
        return self._size

    @cached_property
    def starts(self) -> list[int]:
        """Where each line begins; most blocks are never asked for all of them."""
        return [one.start() for one in _LINE.finditer(self.data)]

    def forward(self) -> Iterator[int]:
        """Where lines begin, from the first one on."""
        at = self.data.find(b"\n")
        while at >= 0:
            yield at
            at = self.data.find(b"\n", at + 1)

    def backward(self) -> Iterator[int]:
        """Where lines begin, from the last one on."""
        at = self.data.rfind(b"\n")
        while at >= 0:
            yield at
            at = self.data.rfind(b"\n", 0, at)

    @cached_property
    def has_long(self) -> bool:
        """Whether a line is longer than what is looked at of it."""
        at, end = 0, len(self.data)
        while end - at > MAX_LINE_BYTES:
            after = self.data.rfind(b"\n", at + 1, at + MAX_LINE_BYTES + 1)
            if after < 0:
                return True
            at = after
        return False

    @cached_property
    def _escaped(self) -> int:
        """How many lines begin with an escape."""
        return int(sz.count(self.data, b"\n\x1b"))

    def has_other_colours(self, others: Sequence[int]) -> bool:
        """Whether there are escapes beside the two that vLLM puts around the prefix of
        a line.

        Args:
            others: where lines begin whose prefix is not known yet.
        """
        if sz.count(self.data, b"\x1b") != 2 * self._escaped:
            return True
        coloured = (
            start for start in others if self.data[start + 1 : start + 2] == b"\x1b"
        )
        return not all(PREFIX.match(self.data, start) for start in coloured)

    def content(self, start: int) -> bytes:
        """The line that begins with the newline at ``start``, cut at MAX_LINE_BYTES."""
        end = self.data.find(b"\n", start + 1)
        end = len(self.data) if end < 0 else end
        return self.data[start + 1 : min(end, start + 1 + MAX_LINE_BYTES)]

    def index(self, start: int) -> int:
        if self._asked > FEW:
            return bisect_left(self.starts, start)
        self._asked += 1
        return int(sz.count(self.data, b"\n", 0, start))

    def number(self, start: int) -> int:
        """Number in the log of the line that begins at ``start``."""
        index = self.index(start)
        return self.before + index + 1 if self.numbers is None else self.numbers[index]

    def reading(self, start: int) -> Reading:
        """The line that begins there, by its form, and with what the lines before it
        say."""
        todo: list[tuple[int, Reading, bool]] = []
        before: Reading | None = None
        while (before := self._readings.get(start)) is None:
            if start < 0:
                before = self.previous.last() if self.previous else None
                break
            bare = self._bare(start)
            one = self._alone(start, bare)
            part = bare is not None and bare.part
            todo.append((start, one, part))
            # A line with a form of its own, and not the one before it's, goes on with
            # nothing.
            follows = one.bare or part or self._repeats(start, one)
            if len(todo) > MAX_BEFORE or not (follows or self._out_of_turn(start, one)):
                break
            start = self.data.rfind(b"\n", 0, start)
        for at, one, part in reversed(todo):
            if before:
                if before.open and one.time and not before.clock:
                    before.clock = self._clock(at)
                one.after(before, part=part)
            self._readings[at] = before = one
        assert before is not None
        return before

    def by_itself(self, start: int) -> Reading:
        """The line that begins there, without what the lines before it say of it."""
        return self._alone(start, self._bare(start))

    def last(self) -> Reading | None:
        """The last line, for what it says of the next block's first one."""
        return self.reading(self.data.rfind(b"\n")) if len(self) else None

    def _bare(self, start: int) -> Bare | None:
        """The line that begins there, as its collector's wrappings were taken off."""
        return None if self.bares is None else self.bares[self.index(start)]

    def _alone(self, start: int, bare: Bare | None) -> Reading:
        one = read_line(clean(self.content(start)))
        if bare is not None:
            if bare.logged and one.bare:
                one.logged(bare.level, bare.time, bare.source)
            one.process = one.process or bare.process
        return one

    def _repeats(self, start: int, one: Reading) -> bool:
        """Whether the line before it begins in the same way."""
        at = self.data.rfind(b"\n", 0, start)
        if at < 0:
            last = self.previous.last() if self.previous else None
            return last is not None and one.same_record(last)
        head = one.line[: one.head]
        before = self.content(at)
        if b"\x1b" not in before and not before.startswith(head.encode()):
            return False
        return clean(before[: 2 * len(head) + 64]).startswith(head)

    def _out_of_turn(self, start: int, one: Reading) -> bool:
        """Whether the line before it is not of the same minute, at a glance: it may be
        a text in which this one stands."""
        minute = one.time.rpartition(":")[0].encode()
        at = self.data.rfind(b"\n", 0, start)
        before = self.content(at) if at >= 0 else b""
        return bool(minute) and minute not in before[:HEAD_BYTES]

    def _clock(self, start: int) -> str:
        """The time of the last line before that one that has a time."""
        for _ in range(MAX_BEFORE):
            start = self.data.rfind(b"\n", 0, start)
            if start < 0:
                break
            known = self._readings.get(start)
            if time := (known or timed(self, start)).time:
                return time
        return ""

    def line_starts(self, offsets: Sequence[int] | None) -> list[int]:
        """Where the lines that hold these offsets begin, in order, each once; None:
        every line.

        A newline belongs to the line after it.
        """
        if offsets is None:
            return self.starts
        found: dict[int, None] = {}
        after = 0  # the newline that ends the line found last
        for offset in sorted(offsets):
            if offset >= after:
                found[self.data.rfind(b"\n", 0, offset + 1)] = None
                after = self.data.find(b"\n", offset + 1)
                if after < 0:
                    break
        return [*found]

    def place(self, start: int) -> Line:
        """The line that begins there, to be kept."""
        return Line(self.number(start), self.reading(start), self._bare(start))

    def place_alone(self, start: int) -> Line:
        """The same, without what the lines before it say of it."""
        return Line(self.number(start), self.by_itself(start), self._bare(start))

    def time(self, start: int) -> str:
        """The time of the line that begins there; its collector's where it prints
        none."""
        own = timed(self, start).time
        bare = None if own else self._bare(start)
        return bare.time if bare else own

    def logged_errors(self) -> list[int]:
        """Where lines begin of which a logger that writes JSON says that they are
        errors."""
        bares = self.bares if isinstance(self.bares, list) else ()
        return [
            self.starts[n] for n, bare in enumerate(bares) if bare.level in ERROR_LEVELS
        ]

    def since(self, start: int) -> Block:
        """From the line on that begins there."""
        index = self.index(start)
        data = self.data[start:]
        bares = None if self.bares is None else self.bares[index:]
        numbers = None if self.numbers is None else self.numbers[index:]
        return Block(data, self.before + index, bares, numbers)

    def plainly(self, start: int, texts: Sequence[bytes]) -> bool:
        """Whether one of ``texts`` stands in the line where nothing of a client's can
        be before it. It is not decoded; False: it has to be read."""
        line = self.content(start)
        end = line.find(b"] ") + 2
        if end < 2 or _SPEAKS.search(line, 0, end):
            return False
        at = min(
            (at for text in texts if (at := line.find(text, end)) >= 0), default=-1
        )
        return at >= 0 and _NOBODY.match(line, end, at) is not None

    def inside(self, found: Mapping[bytes, Sequence[int]]) -> dict[str, int]:
        """Where the last line of each process begins whose mark is not at its line's
        beginning: one of SGLang's ranks, or glued to a bar.

        Args:
            found: offsets of each of ``GLUED`` in the block.
        """
        glued = any(found[text] for text in GLUED) or b"\r" in self.data
        if not glued and sz.find(self.data, b"\n[") < 0:
            return {}
        last: dict[str, int] = {}
        for mark in [*{match[1] for match in _INSIDE.finditer(self.data)}][:MAX_INSIDE]:
            at = len(self.data)
            while (at := self.data.rfind(mark, 0, at)) >= 0:
                start = self.line_starts([at])[0]
                process = self.reading(start).process
                if process and process.encode() in mark:
                    last[process] = start
                    break
        return last

    def heads(self, known: Sequence[bytes]) -> tuple[dict[bytes, int], int, list[int]]:
        """Who wrote the lines, by counting; most blocks have only lines of known
        prefixes.

        Returns:
            Where the last line of each of the ``known`` prefixes begins, where the last
            line without any mark does (-1: none), and where lines of other marks do.
        """
        data = self.data
        last: dict[bytes, int] = {}
        marked = left = int(sz.count(data, b"\n(")) + self._escaped
        for prefix in known if marked else ():
            at = int(sz.rfind(data, prefix))
            if at >= 0 and not any(
                one != prefix and prefix.startswith(one) for one in known
            ):
                left -= sz.count(data, prefix)
            # A line of several marks is of the process that all of them name.
            longer = tuple(
                one for one in known if one != prefix and one.startswith(prefix)
            )
            while longer and at >= 0 and data.startswith(longer, at):
                at = data.rfind(prefix, 0, at)
            if at >= 0:
                last[prefix] = at
        bare = -1
        if len(self) > marked + sz.count(
            data, b"\n\n", allowoverlap=True
        ) + data.endswith(b"\n"):
            bare = next(
                at for at in self.backward() if data[at + 1 : at + 2] not in _NOT_BARE
            )
        others = (
            [one.start() for one in _others(tuple(known)).finditer(data)]
            if left
            else []
        )
        return last, bare, others


@lru_cache(16)
def _others(known: tuple[bytes, ...]) -> re.Pattern[bytes]:
    """Where a line begins with a mark that is none of these prefixes."""
    names = b"|".join(re.escape(prefix[1:]) for prefix in known)
    return re.compile(rb"\n(?!%s)[(\x1b]" % names if known else rb"\n[(\x1b]")


# ------------------------------------------------------------------ lives of a server

NEAR = 50
"""Lines from either end of a block, as long as a traceback may be: where none of them
has a time, the block's are not read."""
HEAD_BYTES = 512
"""Part of a line in which its time is looked for."""


class Life:
    """Where the present life of a server begins in a log to which every start appends.

    What an earlier process of that name wrote there, a crash of yesterday, says nothing
    of this one. A life begins with a start's first line, or, where no such line is
    there, with the first line that is not older than the process. Blocks are given to
    ``begins`` in their order.

    Args:
        starts: expressions of lines that each start logs, in the order in which it
            does.
        since: when the process began, in the log's own zone.
    """

    def __init__(
        self, starts: Sequence[Pattern] = (), since: datetime | None = None
    ) -> None:
        self._starts = [
            (re.compile(start), texts_of(start).texts or []) for start in starts
        ]
        self._since = since
        self._stage = -1
        self._older = since is not None
        self.texts = [text for _, texts in self._starts for text in texts]
        """For a search that finds them with everything else."""

    def begins(self, block: Block, found: Mapping[bytes, Sequence[int]]) -> int:
        """Offset in the block at which a life begins: all before it is of an earlier
        one; -1: none begins here.

        Args:
            found: offsets of each of ``texts`` in the block.
        """
        begin = -1
        stages = [
            (start, stage)
            for stage, (pattern, texts) in enumerate(self._starts)
            for start in block.line_starts(
                [offset for text in texts for offset in found[text]]
            )
            if pattern.search(block.reading(start).own)
        ]
        for start, stage in sorted(stages):
            # A later line of the same start begins nothing.
            if not 0 <= self._stage < stage:
                begin = start
            self._stage = stage
        if self._stage < 0 and self._older:
            return self._by_time(block)
        return begin

    def _by_time(self, block: Block) -> int:
        """From the end to the last line that is older than the process."""
        begin = len(block.data)
        near = chain(islice(block.forward(), NEAR), islice(block.backward(), NEAR))
        if not any(self._age(block, start) for start in near):
            return -1
        for start in block.backward():
            age = self._age(block, start)
            if age == "older":
                return begin
            if age:
                begin, self._older = start, False
        return -1

    def _age(self, block: Block, start: int) -> str:
        """Whether the line is "older" than the process or "newer"; "" for a line
        without a time."""
        assert self._since is not None
        at = written(timed(block, start).time, self._since)
        return "" if at is None else "older" if at < self._since else "newer"


def timed(block: Block, start: int) -> Reading:
    """The head of the line that begins there, for its time."""
    return read_line(clean(block.content(start)[:HEAD_BYTES]), words=False)
