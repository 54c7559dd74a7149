"""A page as GitHub-flavoured Markdown: made to be pasted into an issue or a step
summary."""

from collections.abc import Sequence
from typing import Final, assert_never

from mmrepro.base.text import one_line
from mmrepro.reports import blocks as b, gfm

_MAX_ROWS: Final = 120
_CUT: Final = "Everything is in the HTML page and in the JSON document."


def render_markdown(page: b.Page, limit: int = 60_000) -> str:
    """Render at most ``limit`` bytes. Sections that had to go are named at the end.

    The least important one goes first, and of two alike the longer one.
    """
    head = _head(page)
    sections = [(section, _section(section)) for section in page.shown]
    dropped: list[str] = []

    def order(rendered: tuple[b.Section, str]) -> tuple[int, int]:
        section, text = rendered
        return section.keep, -len(text)

    while True:
        parts = [head, *(text for _, text in sections)]
        if dropped:
            names = ", ".join(gfm.text(name) for name in dropped)
            parts.append(f"*Left out to stay within {limit:,} bytes: {names}. {_CUT}*")

        whole = "\n\n".join(parts) + "\n"
        if len(whole.encode()) <= limit or not sections:
            return whole
        victim = min(sections, key=order)
        sections.remove(victim)
        dropped.append(victim[0].title)


def _head(page: b.Page) -> str:
    parts = [f"# {gfm.text(page.title, 300)}"]
    if page.warning:
        parts.append(_warning(page.warning))
    parts.append(_badge_line(page))
    rows = [
        f"- **{gfm.text(when)}**: {_inline(what, 2000)}" for when, what in page.actions
    ]
    if rows:
        parts.append("\n".join(rows))
    parts += render_blocks(page.card)

    lines = []
    for why, command in page.commands:
        lines.append(f"# {one_line(why, 200)}")
        lines.append(one_line(command, 4000))

    if lines:
        parts.append(gfm.fence("\n".join(lines), "sh", 40, 4000))
    return "\n\n".join(parts)


def _warning(warning: b.Warning) -> str:
    """A quotation that GitHub shows as an alert, the last lines of the failure in
    it."""
    parts = [f"> [!WARNING]\n> {gfm.paragraph(warning.text, 600)}"]
    for line in warning.lines[-20:]:
        parts.append(f"> {gfm.paragraph(line, 300)}")

    return "\n>\n".join(parts)


def _badge_line(page: b.Page) -> str:
    parts = [f"**{gfm.text(page.badge.label.upper())}**"]
    for fact in (page.badge.note, *page.counts):
        if fact:
            parts.append(gfm.text(fact))

    return " · ".join(parts)


def _section(section: b.Section) -> str:
    title = f"## {gfm.text(section.title, 200)}"
    return "\n\n".join([title, *render_blocks(section.blocks)])


def render_blocks(blocks: Sequence[b.Block]) -> list[str]:
    """Each block's text; what is empty is left out."""
    return list(filter(None, map(_block, blocks)))


def _block(block: b.Block) -> str:
    match block:
        case b.Heading(text):
            return f"### {_inline(text, 300)}"
        case b.Paragraph(text):
            return _inline(text, 4000)
        case b.Bullets(items):
            return "\n".join(f"- {_inline(item, 1000)}" for item in items[:_MAX_ROWS])
        case b.Table():
            return _table(block.trimmed)
        case b.Facts(rows):
            return _facts(rows)
        case b.Fence():
            return gfm.fence(numbered(block), block.language, 90, 4000)
        case b.Stack():
            return gfm.fence("\n".join(_stack_lines(block)), "text", 90)
        case b.Picture() | b.Sides():
            return "\n\n".join(render_blocks(block.instead))
        case b.Details(title, inner):
            return gfm.details(gfm.text(title, 200), "\n\n".join(render_blocks(inner)))
        case _:
            assert_never(block)


def _facts(rows: Sequence[tuple[str, b.Inline]]) -> str:
    kept = []
    for label, value in rows:
        if b.words(value):
            kept.append([gfm.cell(label), _cell(value)])

    return gfm.table(["", ""], kept) if kept else ""


def _table(table: b.Table) -> str:
    head = [gfm.text(column.name) for column in table.columns]
    rows = []
    for row in table.rows[:_MAX_ROWS]:
        rows.append([_cell(cell) for cell in row.cells])

    text = gfm.table(head, rows)
    more = len(table.rows) - len(rows)
    if more:
        text += f"\n\n{more} more of {len(table.rows)} rows are not shown here. {_CUT}"
    return text


def _cell(inline: b.Inline) -> str:
    pieces = [_span(span, 400) for span in b.spans(inline)]
    return "".join(pieces).strip() or "–"


def _inline(inline: b.Inline, limit: int) -> str:
    """``inline`` on one line of its own, which begins no list, heading or quotation."""
    pieces = b.spans(inline)
    text = "".join(_span(span, limit) for span in pieces).strip()
    return text if pieces and pieces[0].style else gfm.escape_start(text)


def _span(span: b.Span, limit: int) -> str:
    text = _styled(span, limit)
    # Markdown is made to be pasted elsewhere: a path below the page's folder leads
    # nowhere there. Rows of a table have no anchors.
    href = b.safe_href(span.href) if span.href.startswith("http") else ""
    return f"[{text}](<{href}>)" if href and text else text


def _styled(span: b.Span, limit: int) -> str:
    if span.style == "code":
        return gfm.code(span.text, limit)
    bare = gfm.text(span.text, limit)
    if span.style == "strong" and bare:
        bare = f"**{bare}**"
    # gfm.text strips; the blanks around a piece belong to the sentence.
    lead = " " if span.text.startswith(" ") else ""
    tail = " " if span.text.endswith(" ") else ""
    return lead + bare + tail


def numbered(fence: b.Fence) -> str:
    """The text, each line with its number where there is one, and ``>`` before what
    matters."""
    if fence.first is None:
        return fence.text
    lines = []
    for number, line in enumerate(fence.text.split("\n"), fence.first):
        mark = ">" if number in fence.highlight else " "
        lines.append(f"{mark} {number:5d}  {line}")

    return "\n".join(lines)


def _stack_lines(stack: b.Stack) -> list[str]:
    """Write the stack as py-spy prints it: the innermost frame first, locals below
    their frame."""
    lines = [one_line(stack.title, 200)]
    for frame in stack.frames[:60]:
        function = one_line(frame.function, 200)
        where = f" ({one_line(frame.file, 200)}:{frame.line})" if frame.file else ""
        lines.append(f"    {function}{where}")
        for name, value in list(frame.locals.items())[:12]:
            lines.append(f"        {one_line(name, 60)}: {one_line(value, 160)}")

    return lines
