"""Lines for a terminal: broken between words, never within one.

A path, an address, a command or an identifier is one word here, however long it is. One
that is wider than the terminal stands on a line of its own, and runs over its edge: what
is copied from there is whole."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

_WORD: Final = re.compile(r"\S+")


def line_spans(
    text: str, width: int, hang: int = 0, whole: Sequence[tuple[int, int]] = ()
) -> list[tuple[int, int]]:
    """Return where each line of ``text`` begins and ends, to fit ``width`` columns.

    Args:
        width: 0: all of it is one line.
        hang: columns by which the second line and those after it are indented.
        whole: spans that are words, whatever blanks are in them: commands.
    """
    if not width or columns_of(text) <= width:
        return [(0, len(text))]
    spans: list[tuple[int, int]] = []
    begin = end = 0
    room = width
    for word_begin, word_end in _words(text, whole):
        is_first = end == begin
        if not is_first and columns_of(text[begin:word_end]) > room:
            spans.append((begin, end))
            begin = word_begin
            room = max(1, width - hang)
        end = word_end
    spans.append((begin, end))
    return spans


def wrapped(text: str, width: int, hang: int = 0) -> str:
    """Return ``text`` as lines of at most ``width`` columns, where words allow it."""
    lines = [text[begin:end] for begin, end in line_spans(text, width, hang)]
    return ("\n" + " " * hang).join(lines)


def columns_of(text: str) -> int:
    """Return how many columns of a terminal ``text`` takes."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    columns = 0
    for character in text:
        if not combining(character):
            columns += 2 if east_asian_width(character) in "WF" else 1
    return columns


def _words(text: str, whole: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the words, those joined that a span of ``whole`` connects."""
    begin = end = -1
    for match in _WORD.finditer(text):
        inside = any(first < match.start() < last for first, last in whole)
        if begin >= 0 and not inside:
            yield begin, end
            begin = -1
        if begin < 0:
            begin = match.start()
        end = match.end()
    if begin >= 0:
        yield begin, end
