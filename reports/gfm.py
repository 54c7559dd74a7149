"""GitHub-flavoured Markdown from hostile text: escaping, tables, fences, foldable
parts."""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from mmrepro.base.text import clip, one_line, plain

# Entities where a backslash is not enough: pipes split table cells before backslashes
# are read (renderers differ on `\\|`), an @ would notify people when pasted into an
# issue.
_TEXT: Final[dict[int, str]] = (
    {ord(c): f"\\{c}" for c in "`*[]~$"}
    | {ord(c): f"&#{ord(c)};" for c in "|@\\"}
    | {ord("&"): "&amp;", ord("<"): "&lt;", ord(">"): "&gt;"}
)
_CODE_ENTITIES: Final[dict[int, str]] = {
    ord(c): f"&#{ord(c)};" for c in "&<>|`\\*_[]~$@!#()"
}
_EMPHASIS: Final = re.compile(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_CELL: Final = 400


def text(value: str, limit: int = 2000) -> str:
    """Prose on one line: nothing in it is read as Markdown or HTML."""
    return _EMPHASIS.sub(r"\\_", one_line(value, limit).translate(_TEXT))


def paragraph(value: str, limit: int = 4000) -> str:
    """``text`` at the start of a line, where ``1.`` or ``#`` would begin a block."""
    return escape_start(text(value, limit))


def escape_start(escaped: str) -> str:
    """``escaped`` so that it begins no list, heading or underline."""
    number = re.match(r"\d+(?=[.)])", escaped)
    if number:
        return f"{number[0]}\\{escaped[number.end() :]}"
    return f"\\{escaped}" if escaped[:1] in ("-", "+", "=", "#") else escaped


def code(value: str, limit: int = _CELL) -> str:
    """An inline code span, also safe inside a table cell; empty stays empty."""
    line = one_line(value, limit)
    if not line:
        return ""
    if not set("`|\\") & set(line):
        return f"`{line}`"
    return f"<code>{line.translate(_CODE_ENTITIES)}</code>"


def cell(value: str) -> str:
    """Escape the text of a table cell; an empty one becomes a dash."""
    return text(value, _CELL) or "–"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that are escaped already."""
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)


def fence(
    value: str, language: str = "text", max_lines: int = 80, max_width: int = 240
) -> str:
    """A fenced block that its content cannot close; bounded, the cut marked."""
    # Four times the bound: what is cut off is never cleaned.
    lines = plain(value[: max_lines * max_width * 4]).split("\n")
    kept = [clip(line.expandtabs(4), max_width) for line in lines[:max_lines]]
    if len(lines) > max_lines:
        kept.append(f"… {len(lines) - max_lines} more lines")
    body = "\n".join(kept)

    # A fence ends at the first run of ticks that is as long as its own.
    runs = re.findall(r"`+", body)
    longest = max(map(len, runs), default=0)
    ticks = "`" * max(3, longest + 1)
    return f"{ticks}{language}\n{body}\n{ticks}"


def details(title: str, body: str) -> str:
    """A foldable part; ``title`` is escaped already."""
    return f"<details>\n<summary>{title}</summary>\n\n{body}\n\n</details>"
