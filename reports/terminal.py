"""A page on a terminal: the first screen, or all of it. Plain lines where it is no
terminal.

The end screen has at most ``LINES`` lines at 100 columns, and the verdict is the last
of them. Names and commands are never cut; prose is. Evidence is made safe here, and
never read as markup."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, assert_never

from mmrepro.base.text import clip, one_line, plain
from mmrepro.reports import blocks as b
from mmrepro.reports.markdown import numbered

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

LINES: Final = 20
_STYLES: Final = {
    "": "",
    "good": "green",
    "bad": "red",
    "unsure": "yellow",
    "soft": "dim",
}
TONES: Final = {
    "good": "bold green",
    "bad": "bold red",
    "unsure": "bold yellow",
    "soft": "dim",
}
_PROSE: Final = 8
"""Characters that a column of prose has at least."""
_PIPED: Final = 400
"""Characters of a text where there is no terminal."""


def print_page(
    page: b.Page,
    console: Console,
    place: str = "",
    *,
    full: bool = False,
    quiet: bool = False,
) -> None:
    """Print the end screen, with all sections before it if ``full``.

    Args:
        place: of the HTML page, as a person types it.
        quiet: print only the page's place and the verdict.
    """
    out = _Lines(console)
    if full:
        for section in page.shown:
            out.add([], [b.Span(section.title, "strong")])
            for block in section.blocks:
                out.block(block)

        out.add([])

    # What stands last is made first: the card gets the rows that it leaves.
    tail = _Lines(console)
    if place:
        tail.add([b.Span("page: ", tone="soft"), _place(place)])
    if not quiet:
        for why, command in page.commands:
            tail.add([b.Span(f"{why}: ", tone="soft"), b.Span(command, "code")])

    badge = page.badge
    note = f" ({badge.note})" if badge.note else ""
    verdict = b.Span(badge.label.upper(), "strong", badge.tone)
    tail.add([verdict, f"{note}: {page.subject}"])
    if not quiet:
        most = None if full else max(3, LINES - tail.height)
        out.take(_card(page, console), most)

    out.take(tail, None)
    out.print()


def _card(page: b.Page, console: Console) -> _Lines:
    """The answer, after a warning where there is one."""
    card = _Lines(console)
    if page.warning:
        card.add([b.Span(page.warning.text, tone="unsure")])
        for line in page.warning.lines[-4:]:
            card.add(["  ", b.Span(line, tone="soft")], cut=True)

    for block in page.card:
        card.block(block, short=True)

    if page.counts:
        card.add([", ".join(page.counts)])
    return card


def print_blocks(blocks: Sequence[b.Block], console: Console) -> None:
    """Print the blocks alone, such as a table that a command answers with."""
    out = _Lines(console)
    for block in blocks:
        out.block(block)

    out.print()


def _place(place: str) -> b.Span:
    # A leading ~/ stays outside the quotes, or a shell would not expand it.
    home = "~/" if place.startswith("~/") else ""
    quoted = shlex.quote(place.removeprefix(home))
    return b.Span(home + quoted, "code")


class _Lines:
    """Lines of styled text, each made safe and laid out for the console's width."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._wide = console.width if console.is_terminal else 0
        self._lines: list[Text] = []

    @property
    def height(self) -> int:
        """Rows that the lines take on this console."""
        return sum(self._rows(line) for line in self._lines)

    def _rows(self, line: Text) -> int:
        if not self._wide:
            return 1
        return max(1, math.ceil(line.cell_len / self._wide))

    def add(
        self, *lines: Iterable[str | b.Span], cut: bool = False, verbatim: bool = False
    ) -> None:
        """Append lines. ``cut``: each stays on one row of the terminal. ``verbatim``:
        blanks in it stay."""
        from rich.text import Text

        for line in lines:
            pieces = [_piece(span, verbatim) for span in b.spans(tuple(line))]
            text = Text.assemble(*pieces)
            if cut and self._wide:
                text.truncate(self._wide, overflow="ellipsis")
            self._lines.append(text)

    def take(self, other: _Lines, rows: int | None) -> None:
        """Append the lines of ``other``, as many as fit into so many rows; a cut is
        reported."""
        if rows is None or other.height <= rows:
            self._lines += other._lines
            return

        kept = []
        # The report of the cut takes one row itself.
        used = 1
        for line in other._lines:
            used += other._rows(line)
            if used > rows:
                break
            kept.append(line)

        self._lines += kept
        left = len(other._lines) - len(kept)
        self.add([b.Span(f"… {left} more lines: --full", tone="soft")])

    def print(self) -> None:
        for line in self._lines:
            self._console.print(
                line, soft_wrap=True, highlight=False, markup=False, emoji=False
            )

    def block(self, block: b.Block, *, short: bool = False) -> None:
        """Append a block. ``short``: as a first screen shows it."""
        most = 190 if short else 4000
        match block:
            case b.Heading(text):
                self.add(b.spans(text))
            case b.Paragraph(text, tone):
                self.add(_toned(text, tone, most))
            case b.Bullets(items, tone):
                for item in items:
                    self.add(["  ", *_toned(item, tone, most)])
            case b.Table():
                self._table(block.trimmed)
            case b.Facts(rows):
                self._facts(rows)
            case b.Fence():
                for line in numbered(block).split("\n"):
                    self.add(["  ", line], verbatim=True)
            case b.Stack():
                self._stack(block, b.FRAMES if short else 60)
            case b.Picture() | b.Sides():
                for inner in block.instead:
                    self.block(inner, short=short)
            case b.Details(title, blocks):
                self.add([b.Span(title, tone="soft")])
                for inner in blocks:
                    self.block(inner)
            case _:
                assert_never(block)

    def _facts(self, rows: Sequence[tuple[str, b.Inline]]) -> None:
        kept = [(label, value) for label, value in rows if b.words(value)]
        wide = max((len(label) for label, _ in kept), default=0)
        for label, value in kept:
            self.add([b.Span(label.ljust(wide + 2), tone="soft"), *b.spans(value)])

    def _stack(self, stack: b.Stack, most: int) -> None:
        self.add([b.Span(stack.title, tone="soft")])
        for number, frame in enumerate(stack.frames[:most]):
            where = f" ({frame.file}:{frame.line})" if frame.file else ""
            name = b.Span(frame.function, "" if number else "strong")
            self.add(["  ", name, b.Span(where, tone="soft")])

        more = len(stack.frames) - most
        if more > 0:
            self.add([b.Span(f"  … {more} more frames", tone="soft")])

    def _table(self, table: b.Table) -> None:
        """One line a row. Columns of prose share what names and numbers leave of the
        width."""
        heads = [column.name for column in table.columns]
        texts = []
        for row in table.rows:
            texts.append([one_line(b.words(cell), _PIPED) for cell in row.cells])

        widths = [max(map(len, column)) for column in zip(heads, *texts, strict=False)]
        if self._wide:
            _narrow(widths, table, self._wide)

        if any(heads):
            self._lines.append(_line(heads, heads, widths, table, "soft"))
        for row, cells in zip(table.rows, texts, strict=True):
            self._lines.append(_line(row.cells, cells, widths, table, row.tone))


def _narrow(widths: list[int], table: b.Table, wide: int) -> None:
    """Cut the widths of the columns of prose, so that a row fits a line if it can."""
    prose = []
    free = wide
    for number, column in enumerate(table.columns[: len(widths)]):
        # Two blanks stand after each column.
        free -= 2
        if column.kind == "prose":
            prose.append(number)
        else:
            free -= widths[number]

    # The narrowest first: what it does not need the others get.
    prose.sort(key=lambda number: widths[number])
    for done, number in enumerate(prose):
        share = free // (len(prose) - done)
        widths[number] = min(widths[number], max(_PROSE, share))
        free -= widths[number]


def _line(
    given: Sequence[b.Inline],
    cells: Sequence[str],
    widths: Sequence[int],
    table: b.Table,
    tone: str,
) -> Text:
    from rich.text import Text

    pieces: list[tuple[str, str]] = []
    for inline, cell, wide, column in zip(
        given, cells, widths, table.columns, strict=False
    ):
        text = _cut(cell, wide)
        text = text.rjust(wide) if column.kind == "number" else text.ljust(wide)
        own = [span.tone for span in b.spans(inline) if span.tone]
        style = _STYLES[own[0] if own else tone]
        pieces.append((text + "  ", style))

    line = Text.assemble(*pieces)
    line.rstrip()
    return line


def _cut(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    return text[: most - 1].rstrip() + "…"


def _piece(span: b.Span, verbatim: bool) -> tuple[str, str]:
    """One sanitised line that keeps the blanks at its ends: they are the layout."""
    weight = "bold " if span.style == "strong" else ""
    style = (weight + _STYLES[span.tone]).strip()
    if verbatim:
        lines = plain(span.text[:8000]).expandtabs(4).split("\n")
        return clip(" ".join(lines), 4000), style
    bare = span.text.strip(" ")
    if not bare:
        return span.text, style
    lead, _, tail = span.text.partition(bare)
    return lead + one_line(bare, 4000) + tail, style


def _toned(inline: b.Inline, tone: str, most: int) -> list[b.Span]:
    """Its pieces, cut, in the tone of the whole where they have none of their own."""
    return [_with(span, tone) for span in _clipped(inline, most)]


def _with(span: b.Span, tone: str) -> b.Span:
    if span.tone or not tone:
        return span
    return replace(span, tone=tone)  # type: ignore[arg-type]


def _clipped(inline: b.Inline, limit: int) -> list[b.Span]:
    """Its pieces, at most so many characters together."""
    kept = []
    for span in b.spans(inline):
        if limit <= 0:
            break
        kept.append(replace(span, text=_cut(span.text, limit)))
        limit -= len(span.text)

    return kept
