"""What a report shows: an incident in each format and on a terminal; a page's blocks
and rows."""

import io
from collections.abc import Iterator, Sequence
from functools import partial

from mmrepro.failure.documents import Incident
from mmrepro.reports import documents
from mmrepro.reports.blocks import Block, Details, Page, Picture, Row, Table, words
from mmrepro.reports.incident import KIND, compose
from mmrepro.reports.terminal import print_page
from rich.console import Console

markdown = partial(documents.render, KIND, format="md")
html = partial(documents.render, KIND, format="html")
junit = partial(documents.render, KIND, format="junit")
json = partial(documents.render, KIND, format="json")


def terminal(
    incident: Incident,
    place: str = "",
    *,
    full: bool = False,
    quiet: bool = False,
    **options: object,
) -> str:
    out = io.StringIO()
    console = Console(file=out, **options)  # type: ignore[arg-type]
    print_page(compose(incident), console, place, full=full, quiet=quiet)
    return out.getvalue()


def blocks(given: Sequence[Block]) -> Iterator[Block]:
    """All of them, also those that are folded or stand in place of a picture."""
    for block in given:
        yield block
        if isinstance(block, Details):
            yield from blocks(block.blocks)
        elif isinstance(block, Picture):
            yield from blocks(block.instead)


def section(page: Page, title: str) -> list[Block]:
    return [
        one for part in page.shown if part.title == title for one in blocks(part.blocks)
    ]


def table_rows(given: Sequence[Block]) -> list[Row]:
    return [row for block in given if isinstance(block, Table) for row in block.rows]


def rows(page: Page, title: str) -> list[list[str]]:
    """The texts of all rows of a section's tables."""
    return [
        [words(cell) for cell in row.cells] for row in table_rows(section(page, title))
    ]


def printed(
    page: Page, *, full: bool = False, terminal: bool = True, place: str = "r.html"
) -> str:
    """As a terminal of 100 columns shows it."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, color_system=None, width=100)
    print_page(page, console, place, full=full)
    return out.getvalue()


def unwrapped(lines: Sequence[str]) -> list[str]:
    """The texts of a screen: rows that continue one are indented by four."""
    texts: list[str] = []
    for line in lines:
        if texts and line.startswith("    ") and line.strip():
            texts[-1] += " " + line.strip()
        else:
            texts.append(line)
    return texts
