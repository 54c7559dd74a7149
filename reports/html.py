"""A page as one self-contained HTML file: nothing is fetched, all text is escaped.

The style sheet and the one script are inline; the page's policy lets in these two alone, each by
its hash. Without the script everything can still be read: it filters, searches and copies.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from functools import lru_cache
from importlib import resources
from typing import Final, assert_never

from markupsafe import Markup, escape
from mmrepro.reports.blocks import (
    Block,
    Bullets,
    Details,
    Facts,
    Fence,
    Heading,
    Inline,
    Page,
    Paragraph,
    Picture,
    Row,
    Section,
    Sides,
    Span,
    Stack,
    Table,
    safe_href,
    spans,
    words,
)
from mmrepro.text.sanitize import clip, one_line, plain

MAX_ROWS: Final = 2000
_H: Final = Markup
_KINDS: Final = {"number": "number tight", "name": "tight", "prose": ""}
"""Classes of a column's cells."""


def render_html(page: Page) -> str:
    """The whole page; long parts are folded."""
    style, script = _asset("style.css"), _asset("script.js")
    sections = page.shown
    head = _H(
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'sha256-{}'; script-src 'sha256-{}'; base-uri 'none'; form-action 'none'\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n<title>{}: {}</title>\n'
        "<style>{}</style>\n</head>\n"
    ).format(_digest(style), _digest(script), page.badge.label, _line(page.title, 200), _H(style))
    body = _H(
        '<body>\n<a class="skip" href="#content">To the report</a>\n<div class="page{}">\n{}\n'
        '<main id="content">\n{}\n{}\n{}\n</main>\n</div>\n<script>{}</script>\n</body>\n</html>\n'
    ).format(
        " wide" if page.wide else "",
        _contents(sections),
        _header(page),
        _join(map(_section, sections)),
        _H("<footer>{}</footer>").format(_inline(page.footer)) if page.footer else "",
        _H(script),
    )
    return str(head + body)


@lru_cache(maxsize=2)
def _asset(name: str) -> str:
    """A file that is inlined, exactly as it stands between its tags."""
    return resources.files("mmrepro.reports").joinpath("assets", name).read_text("utf-8").strip()


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _header(page: Page) -> Markup:
    badge = page.badge
    facts = " · ".join(filter(None, [badge.note, page.subject, *page.counts]))
    warning: Markup | str = ""
    if page.warning:
        lines = "\n".join(page.warning.lines[-40:])
        warning = _H('<div class="note" role="note"><strong>Partial.</strong> {}{}</div>').format(
            _line(page.warning.text, 2000),
            _H("<pre>{}</pre>").format(clip(plain(lines), 8000)) if lines else "",
        )
    commands = [
        _H('<p class="do"><span>{}</span></p>{}').format(_line(why, 200), _pre(command, "sh"))
        for why, command in page.commands
    ]
    # Tables on the whole width; below, text to the left and stacks beside it: the picture that
    # follows stays on the first screen.
    tables = [block for block in page.card if isinstance(block, Table)]
    texts = [block for block in page.card if isinstance(block, Paragraph | Bullets)]
    beside = [block for block in page.card if block not in (*tables, *texts)]
    return _H(
        '<header>\n<p class="head"><span class="badge {}">{}</span> <span class="facts">{}</span>'
        "</p>\n<h1>{}</h1>\n{}\n"
        '<div class="card">{}<div class="answer">{}</div><div class="next">{}</div></div>\n'
        "</header>"
    ).format(
        badge.tone or "unsure",
        badge.label,
        _line(facts, 1000),
        _line(page.title, 300),
        warning,
        _H('<div class="whole">{}</div>').format(_blocks(tables)) if tables else "",
        _blocks(texts),
        _blocks(beside) + _join(commands),
    )


def _contents(sections: Sequence[Section]) -> Markup:
    items = [
        _H('<li><a href="#{}">{}</a></li>').format(section.anchor, _line(section.title, 80))
        for section in sections
    ]
    return _H('<nav aria-label="Contents"><ol>{}</ol></nav>').format(_join(items))


def _section(section: Section) -> Markup:
    return _H('<section id="{}"><h2>{}</h2>\n{}\n</section>\n').format(
        section.anchor, _line(section.title, 200), _blocks(section.blocks)
    )


def _blocks(blocks: Iterable[Block]) -> Markup:
    return _H("\n").join(map(_block, blocks))


def _block(block: Block) -> Markup:
    match block:
        case Heading(text):
            return _H("<h3>{}</h3>").format(_inline(text))
        case Paragraph(text, tone):
            return _H("<p{}>{}</p>").format(_class(tone), _inline(text))
        case Bullets(items, tone):
            rows = _join(_H("<li>{}</li>").format(_inline(item)) for item in items[:MAX_ROWS])
            return _H("<ul{}>{}</ul>").format(_class(tone), rows)
        case Table():
            return _table(block.trimmed)
        case Facts():
            return _facts(block)
        case Fence():
            return _pre(block.text, block.language) if block.first is None else _source(block)
        case Stack():
            return _stack(block)
        case Picture():
            return _picture(block)
        case Sides():
            return _sides(block)
        case Details():
            return _H("<details{}><summary>{}</summary>\n{}</details>").format(
                _H(" open") if block.open else "", _line(block.title, 300), _blocks(block.blocks)
            )
        case _:
            assert_never(block)


def _table(table: Table) -> Markup:
    facets = zip(*((row.status, row.group) for row in table.rows), strict=True)
    filtered = len(table.rows) > 12 or any(len({*found} - {""}) > 1 for found in facets)
    head = _join(
        _H('<th scope="col"{}>{}</th>').format(
            _H(' class="{}"').format(_KINDS[column.kind]) if column.kind != "prose" else "",
            column.name or _H('<span class="unseen">mark</span>'),
        )
        for column in table.columns
    )
    named = any(column.name for column in table.columns)
    body = _join(_row(row, table) for row in table.rows[:MAX_ROWS])
    more = len(table.rows) - MAX_ROWS
    caption = _H('<caption class="unseen">{}</caption>').format(_line(table.caption, 200))
    note = _H('<p class="soft">{} more rows are in the JSON document.</p>').format(more)
    return _H(
        '<div class="scroll" tabindex="0"{}><table>{}{}<tbody>{}</tbody></table></div>{}'
    ).format(
        _H(' data-filter=""') if filtered else "",
        caption if table.caption else "",
        _H("<thead><tr>{}</tr></thead>").format(head) if named else "",
        body,
        note if more > 0 else "",
    )


def _row(row: Row, table: Table) -> Markup:
    cells = []
    for cell, column in zip(row.cells, table.columns, strict=False):
        kinds = _KINDS[column.kind]
        cells.append(
            _H("<td{}>{}</td>").format(
                _H(' class="{}"').format(kinds) if kinds else "", _inline(cell)
            )
        )
    if row.anchor:
        cells[-1] = cells[-1][: -len("</td>")] + _H(
            ' <a class="here" href="#{0}" aria-label="link to this line">#</a></td>'
        ).format(row.anchor)
    return _H("<tr{}{}{}{}{}>{}</tr>\n").format(
        _H(' id="{}"').format(row.anchor) if row.anchor else "",
        _H(' class="{}"').format(row.tone) if row.tone else "",
        _H(' data-status="{}"').format(_line(row.status, 60)) if row.status else "",
        _H(' data-group="{}"').format(_line(row.group, 60)) if row.group else "",
        _H(' data-at="{:.3f}"').format(row.at) if row.at is not None else "",
        _join(cells),
    )


def _facts(facts: Facts) -> Markup:
    rows = _join(
        _H('<tr><th class="tight" scope="row">{}</th><td>{}</td></tr>\n').format(
            _line(label, 200), _inline(value)
        )
        for label, value in facts.rows
        if words(value)
    )
    return _H(
        '<div class="scroll" tabindex="0"><table class="labelled"><caption class="unseen">{}'
        "</caption><tbody>{}</tbody></table></div>"
    ).format(_line(facts.caption, 200), rows)


def _pre(text: str, language: str) -> Markup:
    copied = _H(' data-copy=""') if language in ("sh", "python") else ""
    return _H('<pre tabindex="0"{}>{}</pre>').format(copied, clip(plain(text), 60_000))


def _source(fence: Fence) -> Markup:
    lines = enumerate(fence.text.split("\n")[:200], fence.first or 1)
    return _H('<pre class="source" tabindex="0">{}</pre>').format(
        _join(
            _H("<span{}><i>{}</i>{}</span>").format(
                _H(' class="hit"') if number in fence.highlight else "",
                number,
                clip(plain(line), 400),
            )
            for number, line in lines
        )
    )


def _stack(stack: Stack) -> Markup:
    frames = []
    for number, frame in enumerate(stack.frames[:100]):
        where = f"({frame.file}:{frame.line})" if frame.file else ""
        known = _join(
            _H("<dt>{}</dt><dd>{}</dd>").format(_line(name, 80), _line(value, 400))
            for name, value in frame.locals.items()
        )
        frames.append(
            _H('<li{}><span class="fn">{}</span> <span class="soft">{}</span>{}</li>\n').format(
                _H(' class="first"') if number == 0 else "",
                _line(frame.function, 300),
                _line(where, 320),
                _H("<dl>{}</dl>").format(known) if known else "",
            )
        )
    return _H(
        '<div class="stack mono" tabindex="0" role="region" aria-label="stack">'
        '<div class="thread">{}</div><ol>{}</ol></div>'
    ).format(_line(stack.title, 300), _join(frames))


def _picture(picture: Picture) -> Markup:
    span = picture.timeline
    data: Markup | str = ""
    if span:
        data = _H(' data-timeline="{:.3f} {:.3f} {:.5f} {:.5f}"').format(*span)
    caption = _H('<figcaption class="soft">{}</figcaption>').format(_line(picture.caption, 400))
    return _H('<figure class="scroll" tabindex="0"{}>{}{}</figure>').format(
        data, picture.drawing, caption if picture.caption else ""
    )


def _sides(sides: Sides) -> Markup:
    figures = []
    for drawing, caption, text, facts in sides.shown:
        known = _join(
            _H("<dt>{}</dt><dd>{}</dd>").format(_line(name, 80), _line(value, 200))
            for name, value in facts.items()
        )
        figures.append(
            _H("<figure>{}<figcaption><strong>{}</strong></figcaption>{}{}</figure>").format(
                drawing,
                _line(caption, 200),
                _H("<pre>{}</pre>").format(clip(plain(text), 1000)) if text else "",
                _H("<dl>{}</dl>").format(known) if known else "",
            )
        )
    return _H('<div class="sides">{}</div>').format(_join(figures))


def _inline(inline: Inline) -> Markup:
    return _join(map(_span, spans(inline)))


def _span(span: Span) -> Markup:
    # one_line strips; the blanks around a piece belong to the sentence.
    lead, tail = " " * span.text.startswith(" "), " " * span.text.endswith(" ")
    text: Markup = escape(_line(span.text, 4000))
    if span.style == "code":
        text = _H("<code>{}</code>").format(text)
    elif span.style == "strong":
        text = _H("<strong>{}</strong>").format(text)
    if span.tone:
        text = _H('<span class="{}-text">{}</span>').format(span.tone, text)
    if href := safe_href(span.href):
        text = _H('<a href="{}">{}</a>').format(href, text)
    return _H(lead) + text + _H(tail)


def _line(text: str, limit: int) -> str:
    return one_line(text, limit)


def _class(tone: str) -> Markup | str:
    return _H(' class="{}-text"').format(tone) if tone else ""


def _join(parts: Iterable[Markup]) -> Markup:
    return _H("").join(parts)
