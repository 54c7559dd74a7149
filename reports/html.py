"""A page as one self-contained HTML file: nothing is fetched, all text is escaped.

The style sheet and the one script are inline; the page's policy lets in these two
alone, each by its hash. Without the script everything can still be read: it filters,
searches and copies."""

import base64
import hashlib
from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import replace
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Final, assert_never

from markupsafe import Markup, escape
from mmrepro.base.machine import is_file
from mmrepro.base.text import clip, one_line, plain
from mmrepro.reports import blocks as b
from mmrepro.reports.markdown import render_markdown
from mmrepro.reports.svg import join, tag

_MAX_ROWS: Final = 2000
_KINDS: Final = {"number": "number tight", "name": "tight", "prose": ""}
"""Classes of a column's cells."""
_POLICY: Final = (
    "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'; base-uri "
    "'none'; "
    "form-action 'none'"
)
_PAGE: Final = Markup(
    '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    '<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
    '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    '<meta name="referrer" content="no-referrer">\n<title>{title}</title>\n'
    "<style>{style}</style>\n</head>\n<body>\n"
    '<a class="skip" href="#content">To the report</a>\n<div class="page{wide}">\n'
    "{contents}\n"
    '<main id="content">\n{header}\n{sections}\n{footer}\n</main>\n</div>\n'
    "<script>{script}</script>\n</body>\n</html>\n"
)


_FOLDER: Final[ContextVar[Path | None]] = ContextVar("folder", default=None)
"""Where the page that is rendered lies."""


def render_html(page: b.Page, folder: Path | None = None) -> str:
    """The whole page; long parts are folded.

    Args:
        folder: that the page lies in: a link to a file that is not there is plain text.
            None:
            whatever is linked will be there.
    """
    before = _FOLDER.set(folder)
    try:
        return _whole(page)
    finally:
        _FOLDER.reset(before)


def _whole(page: b.Page) -> str:
    style = _asset("style.css")
    script = _asset("script.js")
    policy = _POLICY.format(_digest(style), _digest(script))
    links = []
    for section in page.shown:
        title = one_line(section.title, 80)
        links.append(tag("li", tag("a", title, href=f"#{section.anchor}")))

    return _PAGE.format(
        policy=Markup(policy),  # noqa: S704 - digests
        title=f"{page.badge.label}: {one_line(page.title, 200)}",
        style=style,
        wide=" wide" if page.wide else "",
        contents=tag("nav", tag("ol", *links), aria_label="Contents"),
        header=_header(page),
        sections=join(map(_section, page.shown)),
        footer=tag("footer", _inline(page.footer)) if page.footer else "",
        script=script,
    )


@lru_cache(maxsize=2)
def _asset(name: str) -> Markup:
    """A file that is inlined, exactly as it stands between its tags."""
    file = resources.files("mmrepro.reports").joinpath("assets", name)
    return Markup(file.read_text("utf-8").strip())  # noqa: S704 - a file of this package


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return base64.b64encode(digest).decode()


def _header(page: b.Page) -> Markup:
    badge = page.badge
    facts = " · ".join(filter(None, [badge.note, page.subject, *page.counts]))
    label = tag("span", badge.label, cls=f"badge {badge.tone or 'unsure'}")
    facts_line = tag("span", one_line(facts, 1000), cls="facts")
    head = tag("p", label, " ", facts_line, cls="head")
    warning = _warning(page.warning) if page.warning else ""
    title = tag("h1", one_line(page.title, 300))
    return tag("header", head, title, warning, _actions(page), _card(page))


def _actions(page: b.Page) -> Markup:
    """The box of what to do, beside the verdict."""
    if not page.actions:
        return Markup("")
    rows = []
    for when, what in page.actions:
        rows.append(tag("dt", when))
        rows.append(tag("dd", _inline(what)))
    box = tag("dl", *rows, cls="actions")
    copies = {"data_chat": _chat(page), "data_issue": render_markdown(_short(page))}
    return box + tag("div", cls="copies", **copies)


def _chat(page: b.Page) -> str:
    """The verdict and what to do, as a chat message."""
    lines = [f"{page.badge.label}: {page.subject}"]
    for when, what in page.actions:
        lines.append(f"{when}: {b.words(what)}")
    return "\n".join(one_line(line, 1000) for line in lines)


def _short(page: b.Page) -> b.Page:
    """The first screen alone, for an issue."""
    return replace(page, sections=[], footer="")


def _card(page: b.Page) -> Markup:
    """The answer and its tables on the whole width; below, text to the left and stacks
    beside it: the picture that follows stays on the first screen."""
    width = 0
    for number, block in enumerate(page.card, start=1):
        if isinstance(block, b.Table):
            width = number

    whole = page.card[:width]
    texts = []
    beside = []
    for block in page.card[width:]:
        if isinstance(block, b.Paragraph | b.Bullets):
            texts.append(block)
        else:
            beside.append(block)

    parts = []
    if whole:
        parts.append(tag("div", _blocks(whole), cls="whole"))
    if texts:
        parts.append(tag("div", _blocks(texts), cls="answer"))
    commands = []
    for why, command in page.commands:
        label = tag("p", tag("span", one_line(why, 200)), cls="do")
        commands.append(label + _pre(command, "sh"))

    parts.append(tag("div", _blocks(beside), *commands, cls="next"))
    return tag("div", *parts, cls="card")


def _warning(warning: b.Warning) -> Markup:
    lines = clip(plain("\n".join(warning.lines[-40:])), 8000)
    text = f" {one_line(warning.text, 2000)}"
    shown = tag("pre", lines) if lines else ""
    return tag(
        "div", tag("strong", warning.label), text, shown, cls="note", role="note"
    )


def _section(section: b.Section) -> Markup:
    title = tag("h2", one_line(section.title, 200))
    return tag("section", title, "\n", _blocks(section.blocks), "\n", id=section.anchor)


def _blocks(blocks: Iterable[b.Block]) -> Markup:
    return Markup("\n").join(map(_block, blocks))


def _block(block: b.Block) -> Markup:
    match block:
        case b.Heading(text):
            return tag("h3", _inline(text))
        case b.Paragraph(text, tone):
            return tag("p", _inline(text), cls=tone and f"{tone}-text")
        case b.Bullets(items, tone):
            rows = (tag("li", _inline(item)) for item in items[:_MAX_ROWS])
            return tag("ul", *rows, cls=tone and f"{tone}-text")
        case b.Table():
            return _table(block.trimmed)
        case b.Facts():
            return _facts(block)
        case b.Fence():
            if block.first is not None:
                return _source(block)
            return _pre(block.text, block.language)
        case b.Stack():
            return _stack(block)
        case b.Picture():
            return _figure(block)
        case b.Sides():
            sides = [_side(*side) for side in block.shown]
            return tag("div", *sides, cls="sides")
        case b.Details(title, inner, opened):
            summary = tag("summary", one_line(title, 300))
            return tag("details", summary, "\n", _blocks(inner), open=opened)
        case _:
            assert_never(block)


def _figure(picture: b.Picture) -> Markup:
    caption: Markup | str = ""
    if picture.caption:
        text = one_line(picture.caption, 400)
        caption = tag("figcaption", text, cls="soft")

    axis = None
    if picture.timeline:
        axis = "{:.3f} {:.3f} {:.5f} {:.5f}".format(*picture.timeline)
    return tag(
        "figure",
        picture.drawing,
        caption,
        cls="scroll",
        tabindex=0,
        data_timeline=axis,
    )


def _table(table: b.Table) -> Markup:
    rows = [_row(row, table) for row in table.rows[:_MAX_ROWS]]
    body = tag("tbody", *rows)
    drawn = tag(
        "table", _caption(table.caption), _table_head(table), body, cls="carded"
    )
    shown = tag("div", drawn, cls="scroll", tabindex=0, data_filter=_is_filtered(table))
    more = len(table.rows) - _MAX_ROWS
    if more <= 0:
        return shown
    return shown + tag("p", f"{more} more rows are in the JSON document.", cls="soft")


def _caption(text: str) -> Markup | str:
    """Describe a table for those who do not see it."""
    return tag("caption", one_line(text, 200), cls="unseen") if text else ""


def _table_head(table: b.Table) -> Markup | str:
    if not any(column.name for column in table.columns):
        return ""
    nameless = tag("span", "mark", cls="unseen")
    heads = []
    for column in table.columns:
        name = column.name or nameless
        heads.append(tag("th", name, scope="col", cls=_KINDS[column.kind]))

    return tag("thead", tag("tr", *heads))


def _is_filtered(table: b.Table) -> bool:
    """Whether the script puts a filter above it: it is long, or its rows differ in
    state or group."""
    if len(table.rows) > 12:
        return True
    states = {row.status for row in table.rows if row.status}
    groups = {row.group for row in table.rows if row.group}
    return len(states) > 1 or len(groups) > 1


def _row(row: b.Row, table: b.Table) -> Markup:
    texts = [_inline(cell) for cell in row.cells]
    if row.anchor:
        link = {"href": f"#{row.anchor}", "aria_label": "link to this line"}
        texts[-1] += Markup(" ") + tag("a", "#", cls="here", **link)

    cells = []
    for text, column in zip(texts, table.columns, strict=False):
        # On a narrow screen a row is a card, and each cell has its column's name.
        name = column.name if text else ""
        cells.append(tag("td", text, cls=_KINDS[column.kind], data_head=name))

    return tag(
        "tr",
        *cells,
        id=row.anchor,
        cls=row.tone,
        data_status=one_line(row.status, 60),
        data_group=one_line(row.group, 60),
        data_at=None if row.at is None else f"{row.at:.3f}",
    )


def _facts(facts: b.Facts) -> Markup:
    rows = []
    for label, value in facts.rows:
        if b.words(value):
            name = tag("th", one_line(label, 200), cls="tight", scope="row")
            rows.append(tag("tr", name, tag("td", _inline(value))))

    caption = tag("caption", one_line(facts.caption, 200), cls="unseen")
    table = tag("table", caption, tag("tbody", *rows), cls="labelled")
    return tag("div", table, cls="scroll", tabindex=0)


def _pre(text: str, language: str) -> Markup:
    copied = language in ("sh", "python")
    return tag("pre", clip(plain(text), 60_000), tabindex=0, data_copy=copied)


def _source(fence: b.Fence) -> Markup:
    lines = []
    for number, line in enumerate(fence.text.split("\n")[:200], fence.first or 1):
        hit = "hit" if number in fence.highlight else ""
        text = clip(plain(line), 400)
        lines.append(tag("span", tag("i", f"{number}"), text, cls=hit))

    return tag("pre", *lines, cls="source", tabindex=0)


def _stack(stack: b.Stack) -> Markup:
    frames = []
    for number, frame in enumerate(stack.frames[:100]):
        where = f"({frame.file}:{frame.line})" if frame.file else ""
        item = tag(
            "li",
            tag("span", one_line(frame.function, 300), cls="fn"),
            " ",
            tag("span", one_line(where, 320), cls="soft"),
            _terms(frame.locals),
            cls="first" if number == 0 else "",
        )
        frames.append(item)

    title = tag("div", one_line(stack.title, 300), cls="thread")
    return tag(
        "div",
        title,
        tag("ol", *frames),
        cls="stack mono",
        tabindex=0,
        role="group",
        aria_label="stack",
    )


def _side(drawing: Markup, caption: str, text: str, facts: dict[str, str]) -> Markup:
    title = tag("figcaption", tag("strong", one_line(caption, 200)))
    answer = tag("pre", clip(plain(text), 1000)) if text else ""
    return tag("figure", drawing, title, answer, _terms(facts))


def _terms(given: dict[str, str]) -> Markup:
    """Names and values, as a list of definitions; empty where there are none."""
    pairs = []
    for name, value in given.items():
        pairs.append(tag("dt", one_line(name, 80)))
        pairs.append(tag("dd", one_line(value, 400)))

    return tag("dl", *pairs) if pairs else Markup("")


def _inline(inline: b.Inline) -> Markup:
    return join(map(_span, b.spans(inline)))


def _span(span: b.Span) -> Markup:
    text: Markup = escape(one_line(span.text, 4000))
    if span.style:
        text = tag("code" if span.style == "code" else "strong", text)
    if span.tone:
        text = tag("span", text, cls=f"{span.tone}-text")
    href = b.safe_href(span.href)
    if href and _leads_somewhere(href):
        text = tag("a", text, href=href)
    # one_line strips; the blanks around a piece belong to the sentence.
    lead = " " if span.text.startswith(" ") else ""
    tail = " " if span.text.endswith(" ") else ""
    return join([lead, text, tail])


def _leads_somewhere(href: str) -> bool:
    """Whether it is within the page or on the web, or a file that is there."""
    folder = _FOLDER.get()
    if folder is None or href.startswith(("#", "https://", "http://")):
        return True
    return is_file(folder / href)
