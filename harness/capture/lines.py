"""Lines of a file that may have very long ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

MAX_LINE = 48 << 20


@dataclass(frozen=True)
class Line:
    """``number`` from 1; ``cut``: longer than ``MAX_LINE``, and only its beginning is here."""

    number: int
    text: str
    cut: bool = False


def lines(file: BinaryIO, progress: Callable[[int], None] | None = None) -> Iterator[Line]:
    number = position = 0
    while data := file.readline(MAX_LINE):
        number += 1
        position += len(data)
        whole = data.endswith(b"\n") or len(data) < MAX_LINE
        while not whole:
            rest = file.readline(MAX_LINE)
            position += len(rest)
            whole = rest.endswith(b"\n") or len(rest) < MAX_LINE
            data = data[:1000]
        if progress is not None and number % 256 == 0:
            progress(position)
        cut = len(data) == 1000 and not data.endswith(b"\n")
        yield Line(number, data.decode("utf-8", "replace").removeprefix("\ufeff"), cut)
