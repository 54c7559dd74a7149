"""The blocks that every report is made of.

Each kind of report composes one ``Page``; four renderers do the rest. Texts are plain:
each renderer makes them safe for its own format, so no composition escapes anything.
What may be hostile (a log line, a thread's name) needs no care here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from markupsafe import Markup
from mmrepro.base.units import Tone as Tone, count as count, slug as slug

Style = Literal["", "code", "strong"]
Kind = Literal["prose", "name", "number"]
"""Of a column. A name is never cut nor wrapped; a number stands to the right; prose may
be cut."""
FRAMES: Final = 5
"""Of a stack, on the first screen."""


@dataclass(frozen=True)
class Span:
    """A piece of text. ``href``: a web address, a path below the page's folder, or
    ``#anchor``."""

    text: str
    style: Style = ""
    tone: Tone = ""
    href: str = ""


Inline = str | Span | tuple[str | Span, ...]
"""What a paragraph or a cell holds."""


def code(text: str, href: str = "") -> Span:
    return Span(text, "code", href=href)


def strong(text: str, tone: Tone = "") -> Span:
    return Span(text, "strong", tone)


def toned(text: str, tone: Tone) -> Span:
    return Span(text, tone=tone)


def link(text: str, href: str) -> Span:
    return Span(text, href=href)


def codes(texts: Iterable[str]) -> tuple[str | Span, ...]:
    """Each as code, with commas between them."""
    pieces: list[str | Span] = []
    for text in texts:
        pieces += [", "] * bool(pieces) + [code(text)]
    return tuple(pieces)


def prose(text: str) -> tuple[str | Span, ...]:
    """``text`` whose names between single backticks are code; unpaired ones stay as
    they are."""
    pieces = text.split("`")
    if len(pieces) % 2 == 0 or not all(piece.strip() for piece in pieces[1::2]):
        return (text,)
    return tuple(
        code(piece) if n % 2 else piece for n, piece in enumerate(pieces) if piece
    )


def spans(*inlines: Inline) -> tuple[Span, ...]:
    """The pieces of each, one after another, each a span."""
    pieces = (
        one
        for inline in inlines
        for one in (inline if isinstance(inline, tuple) else (inline,))
    )
    return tuple(Span(piece) if isinstance(piece, str) else piece for piece in pieces)


def words(inline: Inline) -> str:
    """Its bare text."""
    return "".join(span.text for span in spans(inline))


def safe_href(href: str) -> str:
    """``href`` where it is a web address, an anchor, or plainly below the page; else
    empty."""
    if re.fullmatch(r"https?://[A-Za-z0-9._~:/?#@!$&'()*+,;=%-]{1,2000}", href):
        return href
    if re.fullmatch(r"#[a-z0-9-]{1,200}", href):
        return href
    plain = re.fullmatch(r"[A-Za-z0-9+._/-]{1,400}", href) and not href.startswith("/")
    return href if plain and ".." not in href.split("/") else ""


# ------------------------------------------------------------------------------- blocks


@dataclass(frozen=True)
class Heading:
    """Within a section."""

    text: Inline


@dataclass(frozen=True)
class Paragraph:
    text: Inline
    tone: Tone = ""


@dataclass(frozen=True)
class Bullets:
    items: Sequence[Inline]
    tone: Tone = ""


@dataclass(frozen=True)
class Column:
    name: str
    kind: Kind = "prose"


@dataclass(frozen=True)
class Row:
    """A line of a table.

    Attributes:
        tone: of the whole line.
        status: one word that a reader may filter by, such as ``met``.
        group: another one, such as the engine.
        anchor: a link to the line; unique in its page.
        at: seconds since the run began, where the line is one of a timeline.
    """

    cells: Sequence[Inline]
    tone: Tone = ""
    status: str = ""
    group: str = ""
    anchor: str = ""
    at: float | None = None


@dataclass(frozen=True)
class Table:
    """Rows below columns. ``caption`` says what they are, for those who do not see the
    page."""

    columns: Sequence[Column]
    rows: Sequence[Row]
    caption: str = ""

    @property
    def trimmed(self) -> Table:
        """Without the columns of which every cell is empty."""
        kept = [
            n
            for n in range(len(self.columns))
            if not self.rows or any(words(row.cells[n]) for row in self.rows)
        ]
        if len(kept) == len(self.columns):
            return self
        rows = [replace(row, cells=[row.cells[n] for n in kept]) for row in self.rows]
        return Table([self.columns[n] for n in kept], rows, self.caption)


@dataclass(frozen=True)
class Facts:
    """Labels and values: a set-up, an environment. Empty values are left out."""

    rows: Sequence[tuple[str, Inline]]
    caption: str = "set-up"


@dataclass(frozen=True)
class Fence:
    """Text as it is: a command, a log, code. ``highlight``: line numbers that matter.

    With a ``first`` line number, lines are numbered.
    """

    text: str
    language: str = "text"
    first: int | None = None
    highlight: Sequence[int] = ()


@dataclass(frozen=True)
class Frame:
    function: str
    file: str = ""
    line: int = 0
    locals: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Stack:
    """One thread's calls, innermost first. ``title``: process, state and thread."""

    title: str
    frames: Sequence[Frame]


@dataclass(frozen=True)
class Picture:
    """A drawing, which HTML shows; the others show ``instead``.

    Attributes:
        drawing: an SVG or a table, safe as it is.
        timeline: first and last second of its time axis, with the two x of them as
            shares of the width: a reader may select a span there, and the rows of that
            time are shown.
    """

    drawing: Markup
    instead: Sequence[Block] = ()
    caption: str = ""
    timeline: tuple[float, float, float, float] | None = None


@dataclass(frozen=True)
class Sides:
    """Pictures side by side: each a drawing, its caption, a text and facts."""

    shown: Sequence[tuple[Markup, str, str, dict[str, str]]]
    instead: Sequence[Block] = ()


@dataclass(frozen=True)
class Details:
    """A part that is folded unless ``open``. ``title`` says what is in it, and how
    much."""

    title: str
    blocks: Sequence[Block]
    open: bool = False


Block = (
    Heading
    | Paragraph
    | Bullets
    | Table
    | Facts
    | Fence
    | Stack
    | Picture
    | Sides
    | Details
)


# ----------------------------------------------------------------------------- the page


@dataclass(frozen=True)
class Section:
    """A part with a title. ``keep``: the lower, the earlier it goes where a page is too
    long."""

    title: str
    blocks: Sequence[Block]
    keep: int = 50

    @property
    def anchor(self) -> str:
        return slug(self.title)


@dataclass(frozen=True)
class Badge:
    """The verdict in two or three words; ``note`` stands beside it, such as ``as
    expected``."""

    label: str
    tone: Tone
    note: str = ""


@dataclass(frozen=True)
class Warning:
    """What is not whole about the page, and the last lines of what went wrong."""

    text: str
    lines: Sequence[str] = ()
    label: str = "Partial."


def broken_off(why: str, *, began: bool) -> Warning | None:
    """The warning of a campaign that ended early; None: it did not (``why`` is empty).
    Nothing of it is partial where no run ``began``."""
    return (
        Warning(why, label="Partial." if began else "Nothing was run.") if why else None
    )


@dataclass(frozen=True)
class Page:
    """A report: the first screen, then the sections.

    Attributes:
        subject: what it is of, in one line: ``ghost-key-eviction on vllm 0.23.0,
            fidelity cpu``.
        card: the answer, in at most some twelve lines: cause, frames, what to do.
        counts: what was found in numbers, one fact each.
        commands: what to type next: why, and the command.
        actions: what to do: when, and what. They stand beside the verdict.
        footer: where it comes from.
        wide: the HTML uses the whole width of the screen.
    """

    title: str
    badge: Badge
    subject: str
    sections: Sequence[Section]
    card: Sequence[Block] = ()
    counts: Sequence[str] = ()
    commands: Sequence[tuple[str, str]] = ()
    actions: Sequence[tuple[str, Inline]] = ()
    warning: Warning | None = None
    footer: Inline = ""
    wide: bool = False

    @property
    def shown(self) -> list[Section]:
        """Sections that hold anything."""
        return [section for section in self.sections if section.blocks]


def columns(names: str | Sequence[str]) -> tuple[Column, ...]:
    """Columns, each ``name`` or ``name:kind``: ``columns("took:number | why")``."""
    made = []
    for name in names.split(" | ") if isinstance(names, str) else names:
        text, _, kind = name.partition(":")
        made.append(Column(text, kind if kind in ("name", "number") else "prose"))  # type: ignore[arg-type]
    return tuple(made)


def p(*pieces: Inline, tone: Tone = "") -> Paragraph:
    """A paragraph of these pieces, one after another."""
    return Paragraph(pieces[0] if len(pieces) == 1 else spans(*pieces), tone)


def row(
    *cells: Inline,
    tone: Tone = "",
    status: str = "",
    group: str = "",
    anchor: str = "",
    at: float | None = None,
) -> Row:
    """A row of these cells; what the rest means stands at ``Row``."""
    return Row(cells, tone, status, group, anchor, at)


def table(
    names: str | Sequence[str],
    rows: Iterable[Row | Sequence[Inline]],
    caption: str = "",
) -> list[Block]:
    """A table in a list, which is empty where there are no rows."""
    made = [one if isinstance(one, Row) else Row(tuple(one)) for one in rows]
    return [Table(columns(names), made, caption)] if made else []


def counted(
    word: str,
    names: str | Sequence[str],
    rows: Sequence[Row | Sequence[Inline]],
    most: int = 12,
) -> list[Block]:
    """A table of so many of ``word``, folded where there are more than ``most``."""
    title = count(len(rows), word)
    return folded(title, table(names, rows, f"{word}s"), open=len(rows) <= most)


def bullets(items: Sequence[Inline], tone: Tone = "") -> list[Block]:
    """The items in a list of blocks, which is empty where there are none."""
    return [Bullets(items, tone)] if items else []


def folded(title: str, blocks: Sequence[Block], *, open: bool = False) -> list[Block]:
    """The blocks, folded; nothing where there are none."""
    return [Details(title, blocks, open)] if blocks else []
