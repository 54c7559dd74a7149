"""A page on a terminal: the first screen, or all of it. Plain lines where it is no
terminal.

The end screen has at most ``LINES`` lines at 100 columns, and the verdict is the last
of them. Lines break between words, with a hanging indent. Of a first screen long prose
is cut; names, times, addresses, commands and exceptions never are, and off a terminal
nothing is. Evidence is made safe here, and never read as markup."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, assert_never

from mmrepro.base.installed import as_typed
from mmrepro.base.text import clip, columns_of, line_spans, one_line, plain
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
_PROSE: Final = 16
"""Columns that a column of prose has at least: else a row becomes an entry."""
_CELL: Final = 4000
"""Characters of a cell of a table, and of a text, at most."""
_FIRST: Final = 190
"""Characters of a text on a first screen."""
_HANG: Final = 4
"""Columns by which the second line of a text is indented."""


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
            typed = b.Span(as_typed(command), "code")
            tail.add([b.Span(f"{why}: ", tone="soft"), typed])

    widest = max((len(when) for when, _ in page.actions), default=0) + 2
    for when, what in page.actions:
        head = b.Span(when.ljust(widest), "strong")
        tail.add([head, *b.spans(what)], hang=widest)

    badge = page.badge
    note = f" ({badge.note})" if badge.note else ""
    verdict = b.Span(badge.label.upper(), "strong", badge.tone)
    tail.add([verdict, f"{note}: {page.subject}"])
    if not quiet:
        is_first = console.is_terminal and not full
        most = max(3, LINES - tail.height) if is_first else None
        out.take(_card(page, console), most)

    out.take(tail, None)
    out.print()


def _card(page: b.Page, console: Console) -> _Lines:
    """The answer, after a warning where there is one."""
    card = _Lines(console)
    if page.warning:
        card.add([b.Span(page.warning.text, tone="unsure")])
        for line in page.warning.lines[-4:]:
            card.add(["  ", b.Span(line, tone="soft")])

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
        """A word that is wider than the console runs over its edge."""
        if not self._wide:
            return 1
        return max(1, -(-line.cell_len // self._wide))

    def add(
        self,
        *lines: Iterable[str | b.Span],
        hang: int = _HANG,
        verbatim: bool = False,
    ) -> None:
        """Append lines, each broken between words where it is wider than the console.

        Args:
            hang: indent of what follows the first row.
            verbatim: blanks in it stay, and it is not broken.
        """
        from rich.text import Text

        for line in lines:
            pieces = b.spans(tuple(line))
            shown = [_piece(span, verbatim) for span in pieces]
            text = Text.assemble(*shown)
            if verbatim:
                self._lines.append(text)
            else:
                self._break(text, _whole(pieces, shown), hang)

    def _break(self, text: Text, whole: Sequence[tuple[int, int]], hang: int) -> None:
        rows = line_spans(text.plain, self._wide, hang, whole)
        if len(rows) == 1:
            self._lines.append(text)
            return
        for number, (begin, end) in enumerate(rows):
            row = text[begin:end]
            if number:
                row.pad_left(hang)
            self._lines.append(row)

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
        most = _FIRST if short and self._wide else _CELL
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
            head = b.Span(label.ljust(wide + 2), tone="soft")
            self.add([head, *b.spans(value)], hang=wide + 2)

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
        """A row is one line, or several where columns of prose are broken into rows of
        words; where those would be too narrow, each row becomes an entry."""
        heads = [column.name for column in table.columns]
        texts = []
        for row in table.rows:
            texts.append([one_line(b.words(cell), _CELL) for cell in row.cells])

        cells_of = zip(heads, *texts, strict=False)
        widths = [max(map(columns_of, column)) for column in cells_of]
        if self._wide and not _narrow(widths, table, self._wide):
            for row, cells in zip(table.rows, texts, strict=True):
                self._entry(heads, cells, row.tone)
            return

        if any(heads):
            self._row(heads, heads, widths, table, "soft")
        for row, cells in zip(table.rows, texts, strict=True):
            self._row(row.cells, cells, widths, table, row.tone)

    def _row(
        self,
        given: Sequence[b.Inline],
        cells: Sequence[str],
        widths: Sequence[int],
        table: b.Table,
        tone: str,
    ) -> None:
        """Append one row of a table: as many lines as its tallest cell has."""
        from rich.text import Text

        columns: list[list[str]] = []
        for cell, wide in zip(cells, widths, strict=False):
            spans = line_spans(cell, wide if self._wide else 0)
            columns.append([cell[begin:end] for begin, end in spans])

        styles = []
        for inline in given:
            own = [span.tone for span in b.spans(inline) if span.tone]
            styles.append(_STYLES[own[0] if own else tone])
        for number in range(max(map(len, columns), default=0)):
            pieces: list[tuple[str, str]] = []
            for lines, wide, column, style in zip(
                columns, widths, table.columns, styles, strict=False
            ):
                text = lines[number] if number < len(lines) else ""
                blanks = " " * max(0, wide - columns_of(text))
                is_number = column.kind == "number"
                aligned = blanks + text if is_number else text + blanks
                pieces.append((aligned + "  ", style))
            line = Text.assemble(*pieces)
            line.rstrip()
            self._lines.append(line)

    def _entry(self, heads: Sequence[str], cells: Sequence[str], tone: b.Tone) -> None:
        """Append a row as an entry: its first cell, and the others below it."""
        # It is empty where a row goes on with what the row above it is of.
        if cells[0]:
            self.add([b.Span(cells[0], "strong", tone)])
        facts = []
        for head, cell in zip(heads[1:], cells[1:], strict=False):
            if cell:
                facts.append(f"{head}: {cell}" if head else cell)
        if facts:
            self.add(["  ", " · ".join(facts)])


def _narrow(widths: list[int], table: b.Table, wide: int) -> bool:
    """Narrow the columns of prose, so that a row fits a line; whether it does."""
    prose = []
    # Two blanks stand between columns.
    free = wide + 2
    for number, column in enumerate(table.columns[: len(widths)]):
        free -= 2
        if column.kind == "prose":
            prose.append(number)
        else:
            free -= widths[number]

    # The narrowest first: what it does not need the others get.
    prose.sort(key=lambda number: widths[number])
    for done, number in enumerate(prose):
        share = free // (len(prose) - done)
        if share < min(widths[number], _PROSE):
            return False
        widths[number] = min(widths[number], share)
        free -= widths[number]
    return free >= 0


def _whole(
    pieces: Sequence[b.Span], shown: Sequence[tuple[str, str]]
) -> list[tuple[int, int]]:
    """Where commands and other code stand in a line: they are not broken."""
    spans = []
    at = 0
    for piece, (text, _) in zip(pieces, shown, strict=True):
        if piece.style == "code":
            spans.append((at, at + len(text)))
        at += len(text)
    return spans


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
    """Its pieces, cut where they are longer together; a command stays whole."""
    pieces = b.spans(inline)
    most = _length(b.words(inline), limit)
    kept: list[b.Span] = []
    for span in pieces:
        if most <= 0:
            kept.append(b.Span(" …"))
            break
        is_cut = len(span.text) > most and span.style != "code"
        kept.append(replace(span, text=span.text[:most]) if is_cut else span)
        most -= len(span.text)
        if is_cut:
            kept.append(b.Span(" …"))
            break
    return kept


def _length(text: str, limit: int) -> int:
    """How much of ``text`` is shown: whole sentences, else whole words."""
    if len(text) <= limit:
        return len(text)
    sentence = text[:limit].rfind(". ") + 1
    if sentence > limit // 3:
        return sentence
    word = text[:limit].rfind(" ")
    return word if word > 0 else limit
