"""Fenced blocks of Markdown, found line by line: in time that grows as the text
does."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_OPENS: Final = re.compile(
    r"(?P<indent>[ \t>]*+)(?P<mark>`{3,}+|~{3,}+)[ \t]*+(?P<kind>[\w+-]*)"
)
_CLOSES: Final = re.compile(r"[ \t>]*+(?P<marks>[`~]{3,}+)[ \t]*+")


@dataclass(frozen=True)
class _Fence:
    """A fenced block, from ``begin`` to ``end`` of the text.

    Attributes:
        kind: the language that is named.
        text: what is inside, as it stands.
        above: the last line before it that is not blank.
    """

    begin: int
    end: int
    indent: str
    kind: str
    text: str
    above: str


def fences(text: str) -> Iterator[_Fence]:
    """The blocks of ``text``, in order. One that is not closed goes to the end."""
    at, above = 0, ""
    opened: tuple[int, re.Match[str], str] | None = None
    inside = 0
    for line in text.split("\n"):
        after = at + len(line) + 1
        if opened is None:
            opens = _OPENS.match(line)
            if opens is not None and after <= len(text):  # the last line opens nothing
                opened, inside = (at, opens, above), after
            elif line.strip():
                above = line
        elif _closes(line, opened[1]["mark"]):
            yield _fence(opened, text[inside:at], at + len(line))
            above, opened = line, None

        at = after

    if opened is not None:
        yield _fence(opened, text[inside:], len(text))


def _closes(line: str, mark: str) -> bool:
    closes = _CLOSES.fullmatch(line)
    return closes is not None and closes["marks"].startswith(mark)


def _fence(opened: tuple[int, re.Match[str], str], inside: str, end: int) -> _Fence:
    begin, opens, above = opened
    return _Fence(begin, end, opens["indent"], opens["kind"], inside, above)


def with_fences(text: str) -> str:
    """Write HTML's ``<pre>`` as fenced blocks, which GitHub shows alike."""
    written, at = [], 0
    for fence in fences(text):
        written += [_fenced(text[at : fence.begin]), text[fence.begin : fence.end]]
        at = fence.end
    return "".join([*written, _fenced(text[at:])])


_PRE_OPENS: Final = re.compile(
    r"<pre(?:\s[^<>]{0,200})?>[ \t]*(?:<code(?:\s[^<>]{0,200})?>)?", re.IGNORECASE
)
_PRE_CLOSES: Final = re.compile(r"(?:</code>\s{0,10})?</pre>", re.IGNORECASE)


def _fenced(text: str) -> str:
    written, at = [], 0
    while True:
        opens = _PRE_OPENS.search(text, at)
        closes = _PRE_CLOSES.search(text, opens.end()) if opens is not None else None
        if opens is None or closes is None:
            break
        inside = html.unescape(text[opens.end() : closes.start()]).strip("\n")
        written += [text[at : opens.start()], f"\n```\n{inside}\n```\n"]
        at = closes.end()
    return "".join([*written, text[at:]])


def without_fences(text: str, instead: str) -> str:
    """``text`` with ``instead`` in place of each block."""
    kept, at = [], 0
    for fence in fences(text):
        kept += [text[at : fence.begin], instead]
        at = fence.end
    return "".join([*kept, text[at:]])
