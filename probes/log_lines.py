"""Log lines: their forms, the patterns that they are searched for, and blocks of many of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

import numpy as np
from mmrepro.probes.data import LogLine, LogPattern
from numpy.typing import NDArray

MAX_TEXT_CHARS = 2000
MAX_LINE_BYTES = 64 << 10
"""No more of a line than this is looked at: a base64 image can be a line of many megabytes."""

ANSI = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)|[@-Z\\^_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")

_LEVEL = r"(?P<level>DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL)"
_TIME = r"(?P<time>(?:\d{4}-)?\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?)"
_PROCESS = re.compile(r"\((?P<process>[^()\s]+ pid=\d+)\) ?")

_FORMS = (
    # vLLM: ERROR 11-21 02:44:01 [v1/engine/core.py:1195] text
    re.compile(rf"{_LEVEL} {_TIME} \[(?P<source>[^\]\n]{{1,200}})\] ?"),
    # SGLang: [2025-11-21 02:44:01 TP0] text, or with a level and a colon before the text
    re.compile(rf"\[{_TIME}(?P<source>)(?: [A-Z]+\d+)*\] (?:{_LEVEL}: )?"),
    # LMDeploy: 2025-11-21 02:44:01,123 - lmdeploy - ERROR - engine.py:123 - text
    re.compile(rf"{_TIME} - [\w.]+ - {_LEVEL} - (?:(?P<source>[\w./]+:\d+) - )?"),
    # uvicorn: INFO:     127.0.0.1:1 - "GET /health HTTP/1.1" 200 OK
    re.compile(rf"{_LEVEL}:(?P<time>)(?P<source>)\s+"),
    # logging.basicConfig: ERROR:module:text
    re.compile(rf"{_LEVEL}:(?P<time>)(?P<source>[\w.]+):"),
)
TRACEBACK = "Traceback (most recent call last)"


def clean(raw: bytes) -> str:
    """``raw`` decoded, without ANSI codes and control characters, tabs as they are."""
    raw = raw[:MAX_LINE_BYTES]
    if b"\x1b" in raw:
        raw = ANSI.sub(b"", raw)
    return _CONTROL.sub("", raw.decode("utf-8", "replace")).rstrip()


def parse_line(number: int, line: str) -> LogLine:
    """``line`` (cleaned) split into its prefix and its text; never raises."""
    process, rest = "", line
    if match := _PROCESS.match(line):
        process, rest = match["process"], line[match.end() :]
    for form in _FORMS:
        if match := form.match(rest):
            return LogLine(
                number=number,
                process=process,
                level=match["level"] or "",
                time=match["time"] or "",
                source=match["source"] or "",
                text=rest[match.end() :][:MAX_TEXT_CHARS],
            )
    return LogLine(number=number, process=process, text=rest[:MAX_TEXT_CHARS])


def is_error(line: LogLine) -> bool:
    return line.level in ("ERROR", "CRITICAL") or TRACEBACK in line.text


# ------------------------------------------------------------------ patterns and their texts

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
    """The texts that ``pattern`` declares, else those that stand in it outside of any group.

    For each alternative (``a|b``) it is the longest run of plain characters.
    """
    if isinstance(pattern, LogPattern) and pattern.texts:
        return _searchable(pattern.texts, plain=False)
    compiled = re.compile(pattern)
    if compiled.flags & (re.IGNORECASE | re.VERBOSE):
        return Texts()
    alternatives, depth, plain = [[""]], 0, True
    for part in _TOKEN.findall(compiled.pattern):
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
        elif escaped or (len(part) == 1 and part.isprintable() and part not in ".^$*+?[]()"):
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

PREFIX = re.compile(
    rb"\n\([^()\s]{1,120} pid=\d+\)|\n\x1b\[1;36m\([^()\s]{1,120} pid=\d+\)\x1b\[0;0m "
)
"""What begins a process's lines; vLLM colours it, up to 0.12 in files as well."""
_OPENING, _NEWLINE, _ESCAPE = b"(\n\x1b"
_WORD = 8


class Block:
    """Whole lines, each after a newline of its own, and none at the end.

    Attributes:
        before: how many lines of the log come before it.
        starts: offsets of the newlines with which lines begin.
    """

    def __init__(self, data: bytes, before: int) -> None:
        self.data = data
        self.before = before
        self._bytes: NDArray[np.uint8] = np.frombuffer(data, np.uint8)
        self.starts: NDArray[np.int64] = np.flatnonzero(self._bytes == _NEWLINE)

    def __len__(self) -> int:
        return len(self.starts)

    @cached_property
    def has_long(self) -> bool:
        """Whether a line is longer than what is looked at of it."""
        longest = np.diff(self.starts, append=len(self.data)).max(initial=0)
        return bool(longest > MAX_LINE_BYTES)

    @cached_property
    def _first(self) -> NDArray[np.uint8]:
        """The first byte of each line, a newline for an empty one."""
        return self._bytes[np.minimum(self.starts + 1, len(self._bytes) - 1)]

    def has_other_colours(self, others: Sequence[int]) -> bool:
        """Whether there are escapes beside the two that vLLM puts around the prefix of a line.

        Args:
            others: where lines begin whose prefix is not known yet.
        """
        escapes = np.count_nonzero(self._bytes == _ESCAPE)
        if escapes != 2 * np.count_nonzero(self._first == _ESCAPE):
            return True
        coloured = (start for start in others if self.data[start + 1] == _ESCAPE)
        return not all(PREFIX.match(self.data, start) for start in coloured)

    def content(self, start: int) -> bytes:
        """The line that begins with the newline at ``start``, cut at MAX_LINE_BYTES."""
        end = self.data.find(b"\n", start + 1)
        end = len(self.data) if end < 0 else end
        return self.data[start + 1 : min(end, start + 1 + MAX_LINE_BYTES)]

    def at(self, start: int) -> tuple[int, bytes]:
        """Number in the log, and content, of the line that begins at ``start``."""
        return self.before + int(self.starts.searchsorted(start)) + 1, self.content(start)

    def line_starts(self, offsets: Sequence[int] | None) -> list[int]:
        """Where the lines that hold these offsets begin, in order, each once; None: every line.

        A newline belongs to the line after it.
        """
        if not offsets:
            return self.starts.tolist() if offsets is None else []
        lines = np.searchsorted(self.starts, np.asarray(offsets), side="right") - 1
        starts: list[int] = self.starts[np.unique(lines)].tolist()
        return starts

    def holding(self, offsets: Sequence[int] | None) -> Iterator[tuple[int, bytes]]:
        """Number and content of these lines."""
        return map(self.at, self.line_starts(offsets))

    def heads(self, known: Sequence[bytes]) -> tuple[dict[bytes, int], int, list[int]]:
        """Who wrote the lines, found eight bytes of a prefix at a time in all lines at once.

        Returns:
            Where the last line of each of the ``known`` prefixes begins, where the last line
            without any mark does (-1: none), and where lines of other marks do.
        """
        first = self._first
        marked = (first == _OPENING) | (first == _ESCAPE)
        bare = self.starts[~marked & (first != _NEWLINE)]
        left = self.starts[marked]
        # Every offset as a word of its own: the strides overlap.
        shape = (max(len(self.data) - _WORD + 1, 0),)
        words: NDArray[np.uint64] = np.ndarray(shape, np.uint64, self.data, strides=(1,))
        last = {}
        for prefix in known:
            if not len(left):
                break
            fits = int(np.searchsorted(left, len(self.data) - len(prefix), side="right"))
            near, same = left[:fits], np.ones(fits, bool)
            for at in (*range(0, len(prefix) - _WORD, _WORD), len(prefix) - _WORD):
                same &= words[near + at] == np.frombuffer(prefix, np.uint64, 1, at)[0]
            if same.any():
                last[prefix] = int(near[same][-1])
                left = np.concatenate((near[~same], left[fits:]))
        return last, int(bare[-1]) if len(bare) else -1, left.tolist()


# ------------------------------------------------------------------ lives of a server

NEAR = 50
"""Lines from either end of a block, as long as a traceback may be: where none of them has a time,
the block's are not read."""
HEAD_BYTES = 512
"""Part of a line in which its time is looked for."""


class Life:
    """Where the present life of a server begins in a log to which every start appends.

    What an earlier process of that name wrote there, a crash of yesterday, says nothing of this
    one. A life begins with a start's first line, or, where no such line is there, with the first
    line that is not older than the process. Blocks are given to ``begins`` in their order.

    Args:
        starts: expressions of lines that each start logs, in the order in which it does.
        since: when the process began, in the log's own zone.
    """

    def __init__(self, starts: Sequence[Pattern] = (), since: datetime | None = None) -> None:
        self._starts = [(re.compile(start), texts_of(start).texts or []) for start in starts]
        self._since = since
        self._stage = -1
        self._older = since is not None
        self.texts = [text for _, texts in self._starts for text in texts]
        """For a search that finds them with everything else."""

    def begins(self, block: Block, found: Mapping[bytes, Sequence[int]]) -> int:
        """Offset in the block at which a life begins: all before it is of an earlier one; -1: none
        begins here.

        Args:
            found: offsets of each of ``texts`` in the block.
        """
        begin = -1
        stages = [
            (start, stage)
            for stage, (pattern, texts) in enumerate(self._starts)
            for start in block.line_starts([offset for text in texts for offset in found[text]])
            if pattern.search(clean(block.content(start)))
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
        begin, starts = len(block.data), block.starts.tolist()
        if not any(self._age(block, start) for start in (*starts[:NEAR], *starts[-NEAR:])):
            return -1
        for start in reversed(starts):
            age = self._age(block, start)
            if age == "older":
                return begin
            if age:
                begin, self._older = start, False
        return -1

    def _age(self, block: Block, start: int) -> str:
        """Whether the line is "older" than the process or "newer"; "" for a line without a time."""
        assert self._since is not None
        at = written(timed(block, start).time, self._since)
        return "" if at is None else "older" if at < self._since else "newer"


def timed(block: Block, start: int) -> LogLine:
    """The head of the line that begins there, for its time."""
    return parse_line(0, clean(block.content(start)[:HEAD_BYTES]))


def written(time: str, near: datetime) -> datetime | None:
    """What a log's time means; without a year, the one that brings it closest to ``near``."""
    text = time.replace(",", ".").replace("T", " ").partition(".")[0]
    if not text:
        return None
    candidates = []
    bare = text.count("-") == 1
    for year in (near.year - 1, near.year, near.year + 1) if bare else (0,):
        try:
            candidates.append(datetime.fromisoformat(f"{year}-{text}" if bare else text))
        except ValueError:
            continue
    return min(candidates, key=lambda one: abs(one - near), default=None)
