"""How what stands around a log's lines is found and taken off.

Which wrappings a log has is found in a sample of its lines: one fits where most of them
have it, and where without it no fewer lines have a form of a program's. Known forms
(:mod:`mmrepro.probes.log_collectors`) go first, as they know whose a line is; what
nobody knows by name is found from the text's structure
(:mod:`mmrepro.probes.log_structure`). Wrappings nest, so this is repeated until none
fits. Lines that they do not fit stay as they are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import overload

from mmrepro.probes.log_collectors import TIME, WRAPPINGS, Bare, Wrapping
from mmrepro.probes.log_forms import has_form
from mmrepro.probes.log_structure import structure_of

SAMPLE_LINES = 120
MAX_DEPTH = 8
MAX_STREAMS = 64
ANSI = re.compile(
    rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]_][^\x07\x1b\n]*(?:\x07|\x1b\\)|[@-Z\\^_])"
)
TEXT_ANSI = re.compile(
    rb"(?:\^\[|\\x1[bB]|\\0?33|\\e|#0?33|\\u001[bB]|\xe2\x90\x9b|\xef\xbf\xbd)?"
    rb"\[(?:\d{1,3}(?:;\d{1,3})*)m"
)
"""Colours whose escape character became text, or was lost."""
TEXT_ANSI_SIGNS = (b"[0m", b"[0;0m")


_ONLY_TIME = re.compile(rb"\s*" + TIME.replace(rb"[T ]", rb"T") + rb"\s*\Z")


MAX_SHAPES = 32


@lru_cache(256)
def _shape(prefix: bytes, stream: str) -> re.Pattern[bytes]:
    """Lines with this prefix: a digit stands for any, but in what ``stream`` is named
    after."""
    exact = bytearray(len(prefix))
    for name in re.split(r"[/ ]", stream):
        if name and (at := prefix.find(name.encode())) >= 0:
            exact[at : at + len(name.encode())] = b"1" * len(name.encode())
    parts = [
        rb"\d" if one.isdigit() and not exact[at] else re.escape(one)
        for at, one in enumerate(prefix[n : n + 1] for n in range(len(prefix)))
    ]
    return re.compile(b"".join(parts))


@dataclass
class Stripped:
    """A block's lines without their prefixes, and each one's stream.

    Attributes:
        lines: as they were.
        widths: of each line's prefix.
        whose: index into ``streams`` of each line; -1: it is empty.
    """

    peeler: Peeler
    lines: list[bytes]
    widths: list[int]
    whose: list[int]
    streams: list[str]

    @property
    def data(self) -> bytes:
        return self._joined(range(len(self.lines)))

    def of(self, stream: str) -> tuple[bytes, list[int]]:
        """The lines of one stream, and their indices."""
        number = self.streams.index(stream)
        mine = [index for index, whose in enumerate(self.whose) if whose == number]
        return self._joined(mine), mine

    def _joined(self, indices: Iterable[int]) -> bytes:
        lines, widths = self.lines, self.widths
        return b"\n" + b"\n".join([lines[index][widths[index] :] for index in indices])


class Lazy(Sequence[Bare]):
    """Lines as their collector's wrappings were taken off, each when it is asked
    for."""

    def __init__(self, block: Stripped, indices: Sequence[int]) -> None:
        self._block, self._indices = block, indices

    def __len__(self) -> int:
        return len(self._indices)

    @overload
    def __getitem__(self, index: int) -> Bare: ...
    @overload
    def __getitem__(self, index: slice) -> Lazy: ...
    def __getitem__(self, index: int | slice) -> Bare | Lazy:
        if isinstance(index, slice):
            return Lazy(self._block, self._indices[index])
        found = self._block.peeler.peel(self._block.lines[self._indices[index]])
        return found[0] if found else Bare(b"")


@dataclass
class Peeler:
    """Takes a log's wrappings off. Blocks are given in their order.

    Attributes:
        chain: what was found, the outermost first.
        events: CloudWatch's: a line with a time, then the message.
        indent: what all lines begin with, where they are indented.
        most_cut: bytes of a line that the collector cut into several.
    """

    chain: list[Wrapping] = field(default_factory=list)
    events: bool = False
    coloured: bool = False
    indent: bytes = b""
    most_cut: int = 1 << 20
    _cut: dict[str, bytes] = field(default_factory=dict)
    _event: str = ""
    _shapes: int = 0

    @property
    def plain(self) -> bool:
        return not (self.chain or self.events or self.coloured)

    def learn(self, sample: Sequence[bytes]) -> None:
        """Find the wrappings in some of the lines."""
        sample = [ANSI.sub(b"", line) for line in sample]
        self.coloured = any(sign in line for line in sample for sign in TEXT_ANSI_SIGNS)
        lines = [Bare(self._clean(line)) for line in sample if line.strip()]
        self.chain, self.events = [], False
        times = sum(_ONLY_TIME.match(line.text) is not None for line in lines)
        if times >= 1 and 0.3 <= times / max(len(lines), 1) <= 0.6:
            self.events = True
            lines = [line for line in lines if not _ONLY_TIME.match(line.text)]
        while len(self.chain) < MAX_DEPTH:
            fit = _known_fit(lines) or _fit_by_structure(lines)
            if fit is None:
                break
            wrapping, inner = fit
            if wrapping.name == "indented":
                self.indent = _common(lines)
                inner = _unindented(lines, self.indent)
            self.chain.append(wrapping)
            lines = inner
        for wrapping in self.chain:
            if wrapping.forget is not None:
                wrapping.forget()  # a record of the sample

    def still_fits(self, line: bytes) -> bool:
        """Whether another line is wrapped like those by which this was learned."""
        if not self.chain:
            return False
        if self.chain[0].forget is not None:
            return True  # the line may be the middle of a record
        return self.chain[0].take(Bare(self._clean(line))) is not None

    def strip(self, data: bytes) -> Stripped | None:
        """Take prefixes off whole lines, each after its newline, at once; None: line by
        line.

        A prefix that was found in one line is looked for in all: digits stand for any
        digit, but in names. Most logs have one or a few."""
        if (
            self.events
            or self.coloured
            or not all(wrapping.prefix for wrapping in self.chain)
        ):
            return None
        if b"\x1b" in data:
            data = ANSI.sub(b"", data)
        lines = data.split(b"\n")[1:]
        widths, whose = [0] * len(lines), [-1] * len(lines)
        streams: list[str] = []
        left = [index for index, line in enumerate(lines) if line]
        while left:
            line = lines[left[0]].rstrip(b"\r")
            found = self.peel(line)
            if len(found) != 1 or self._cut or not line.endswith(found[0].text):
                self._cut.clear()
                return None
            if found[0].stream not in streams:
                streams.append(found[0].stream)
            width = len(line) - len(found[0].text)
            fits = _shape(line[:width], found[0].stream).match
            # A line without a prefix is alone with it.
            alone = not width or self._each_alone(line[:width])
            mine = left[:1] if alone else [one for one in left if fits(lines[one])]
            number = streams.index(found[0].stream)
            for one in mine:
                widths[one], whose[one] = width, number
            left = [one for one in left if whose[one] < 0]
            if len(streams) > MAX_STREAMS or len(left) * 50 < len(lines):
                continue
            self._shapes += 1
            if self._shapes > MAX_SHAPES:
                return None
        self._shapes = 0
        return Stripped(self, lines, widths, whose, streams)

    def _each_alone(self, prefix: bytes) -> bool:
        """Whether lines with this prefix may be wrapped or not."""
        tests = [wrapping.each for wrapping in self.chain if wrapping.each is not None]
        return any(test(prefix) for test in tests)

    def _clean(self, line: bytes) -> bytes:
        line = line.rstrip(b"\r")
        if b"\x1b" in line:
            line = ANSI.sub(b"", line)
        return TEXT_ANSI.sub(b"", line) if self.coloured else line

    def peel(self, line: bytes) -> list[Bare]:
        """The lines inside a line; none: it says nothing by itself."""
        text = self._clean(line)
        if self.events and (match := _ONLY_TIME.match(text)):
            self._event = match["time"].decode()
            return []
        found = [Bare(text, time=self._event)]
        for wrapping in self.chain:
            if wrapping.name == "indented":
                found = _unindented(found, self.indent)
                continue
            if len(found) == 1:
                inner = wrapping.take(found[0])
                found = found if inner is None else inner
            else:
                found = [inner for one in found for inner in _taken(wrapping, one)]
        return self._joined(found)

    def _joined(self, lines: list[Bare]) -> list[Bare]:
        """Put together what the collector cut."""
        out = []
        for line in lines:
            if self._cut:
                line.text = self._cut.pop(line.stream, b"") + line.text
            if line.partial and len(line.text) < self.most_cut:
                self._cut[line.stream] = line.text
            else:
                out.append(line)
        return out


_Fit = tuple[Wrapping, list[Bare]]
"""A wrapping of the lines, and the lines inside."""


def _known_fit(lines: list[Bare]) -> _Fit | None:
    """Of the known forms that fit, the one that leaves the most lines with a form; else
    the first."""
    best: _Fit | None = None
    most = -1
    for wrapping in WRAPPINGS:
        inner = _fits(wrapping, lines)
        if inner is not None and _formed(inner) > most:
            best, most = (wrapping, inner), _formed(inner)
    return best


def _fit_by_structure(lines: list[Bare]) -> _Fit | None:
    wrapping = structure_of(lines)
    if wrapping is None:
        return None
    inner: list[Bare] = []
    for line in lines:
        inner += _taken(wrapping, line)
    return wrapping, inner


def _taken(wrapping: Wrapping, line: Bare) -> list[Bare]:
    inner = wrapping.take(line)
    return [line] if inner is None else inner


def _fits(wrapping: Wrapping, lines: list[Bare]) -> list[Bare] | None:
    """The lines inside, if most are wrapped like that."""
    if wrapping.sign and not any(wrapping.sign in line.text for line in lines):
        return None
    out: list[Bare] = []
    taken = 0
    for line in lines:
        inner = wrapping.take(line)
        taken += inner is not None
        out += inner if inner is not None else [line]
    if not taken or taken < wrapping.most * len(lines):
        return None
    if wrapping.name == "indented" and not _common(lines):
        return None
    before, after = _formed(lines), _formed(out)
    if after < before or (wrapping.weak and after <= before):
        return None
    return out


def _formed(lines: Iterable[Bare]) -> int:
    return sum(
        has_form(line.text.decode("utf-8", "replace")) or line.logged for line in lines
    )


def _common(lines: Iterable[Bare]) -> bytes:
    """The white space that each line begins with."""
    texts = [line.text for line in lines if line.text.strip()]
    shortest = min((len(t) - len(t.lstrip(b" \t")) for t in texts), default=0)
    return texts[0][:shortest] if shortest else b""


def _unindented(lines: Iterable[Bare], indent: bytes) -> list[Bare]:
    found = []
    for line in lines:
        line.text = line.text.removeprefix(indent)
        found.append(line)
    return found
