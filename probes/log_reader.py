"""Reads a log in blocks: whole lines, without what collectors put around them.

Both readings of a log use it: the one that keeps each line of a start, and the one that
goes over gigabytes (:mod:`mmrepro.probes.logs`) and decodes only what it looks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mmrepro.probes.data import LogLine
from mmrepro.probes.log_collectors import Bare
from mmrepro.probes.log_forms import UNKNOWN, has_form
from mmrepro.probes.log_lines import MAX_LINE_BYTES, Block
from mmrepro.probes.log_wraps import (
    ANSI,
    SAMPLE_LINES,
    TEXT_ANSI_SIGNS,
    Lazy,
    Peeler,
    Stripped,
)

SAMPLE_BYTES = 32 << 10
_AGAIN_BYTES = 4096
_AGAIN_LINES = 8
"""Of each block so much is asked whether its lines are still wrapped as before."""


@dataclass
class UnwrappedBlock:
    """Lines of a log, which are read in one piece.

    Attributes:
        before: lines of the log before it.
        count: lines of the log in it.
        plain: they are wrapped in nothing.
        streams: whose lines they are, as the collector names them.
    """

    data: bytes
    before: int
    count: int
    plain: bool = False
    streams: list[str] = field(default_factory=list)
    stripped: Stripped | None = None
    bares: list[Bare] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)

    def whole(self, previous: Block | None) -> Block | None:
        """All lines; None: no line says anything by itself."""
        if self.plain:
            return Block(self.data, self.before, previous=previous)
        if self.stripped is not None:
            lazy = Lazy(self.stripped, range(len(self.stripped.lines)))
            return Block(self.stripped.data, self.before, lazy, previous=previous)
        return _block_of(self.bares, self.numbers, previous)

    def of(self, stream: str, previous: Block | None) -> Block | None:
        """The lines of one stream; None: none is its."""
        if stream not in self.streams:
            return None
        if self.stripped is not None:
            data, indices = self.stripped.of(stream)
            numbers = [self.before + 1 + index for index in indices]
            return Block(data, 0, Lazy(self.stripped, indices), numbers, previous)
        own = [n for n, bare in enumerate(self.bares) if bare.stream == stream]
        bares = [self.bares[n] for n in own]
        return _block_of(bares, [self.numbers[n] for n in own], previous)


def _block_of(
    bares: Sequence[Bare], numbers: Sequence[int], previous: Block | None
) -> Block | None:
    if not bares:
        return None
    data = b"".join(b"\n" + bare.text.replace(b"\n", b" ") for bare in bares)
    return Block(data, 0, bares, numbers, previous)


class Unwrapper:
    """Takes what collectors put on off a log's blocks, which are given in their order.

    Args:
        again: whether the wrappings are looked for again where a block's first lines
            have others: a file of several parts.
    """

    def __init__(self, *, again: bool = True) -> None:
        self.lines = 0
        self._again = again
        self._peeler: Peeler | None = None

    def begin(self) -> None:
        """Another file begins."""
        self._peeler = None

    def unwrap(self, data: bytes) -> UnwrappedBlock:
        """Take a block of whole lines, each after a newline of its own."""
        peeler = self._peeler
        if peeler is None or (self._again and not _still(peeler, data)):
            peeler = self._peeler = Peeler()
            peeler.learn(_sample(data))
        before = self.lines
        if peeler.plain:
            self.lines += data.count(b"\n")
            return UnwrappedBlock(data, before, self.lines - before, plain=True)
        stripped = peeler.strip(data)
        if stripped is not None:
            self.lines += len(stripped.lines)
            names = [name for name in stripped.streams if name]
            return UnwrappedBlock(
                data, before, len(stripped.lines), streams=names, stripped=stripped
            )
        bares: list[Bare] = []
        numbers: list[int] = []
        for line in data.split(b"\n")[1:]:
            self.lines += 1
            for place, bare in enumerate(peeler.peel(line[:MAX_LINE_BYTES])):
                # Lines that were glued to one count each; those of one message do not.
                self.lines += place > 0 and not bare.part
                bares.append(bare)
                numbers.append(self.lines)
        streams = dict.fromkeys(bare.stream for bare in bares if bare.stream)
        return UnwrappedBlock(
            data,
            before,
            self.lines - before,
            streams=list(streams),
            bares=bares,
            numbers=numbers,
        )


def _still(peeler: Peeler, data: bytes) -> bool:
    """Whether the first lines of a block are still wrapped like those before."""
    if not peeler.plain:
        first = data[1:].split(b"\n", 1)[0]
        return peeler.still_fits(first)
    head = ANSI.sub(b"", data[1 : 1 + _AGAIN_BYTES])
    if any(sign in head for sign in TEXT_ANSI_SIGNS):
        return False
    lines = head.split(b"\n")[:_AGAIN_LINES]
    if any(has_form(line.decode("utf-8", "replace")) for line in lines[:3]):
        return True
    again = Peeler()
    again.learn(lines)
    return again.plain


def _sample(data: bytes) -> list[bytes]:
    """Lines of a block's beginning."""
    head = data[1 : 1 + SAMPLE_BYTES].split(b"\n")
    return [line[:MAX_LINE_BYTES] for line in head[:SAMPLE_LINES]]


class LineReader:
    """The lines of a log that comes in pieces of any size, as it is written.

    Args:
        alone: each line is read without those before it: a text of several lines that a
            client wrote is not known as one.
    """

    def __init__(self, *, alone: bool = False) -> None:
        self._alone = alone
        self._rest = b""
        # What is learned of the first lines stays: the next piece may be half a line's.
        self._unwrapper = Unwrapper(again=False)
        self._previous: Block | None = None

    def take(self, piece: bytes, *, last: bool = False) -> list[LogLine]:
        """The lines that ``piece`` ends; ``last``: its end ends one as well."""
        whole, newline, self._rest = (self._rest + piece).rpartition(b"\n")
        if last and self._rest:
            whole, newline, self._rest = whole + newline + self._rest, b"\n", b""
        if len(self._rest) > MAX_LINE_BYTES:  # no newline will come
            self._rest = self._rest[:MAX_LINE_BYTES]
        if not newline:
            return []
        block = self._unwrapper.unwrap(b"\n" + whole).whole(self._previous)
        if block is None:
            return []
        self._previous = block
        place = block.place_alone if self._alone else block.place
        return [place(start).record(UNKNOWN) for start in block.forward()]
