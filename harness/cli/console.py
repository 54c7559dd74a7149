"""What commands print: tables and JSON documents; and what they ask."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from mmrepro.base.machine import terminal_width
from mmrepro.base.units import size

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from mmrepro.base.options import Command
    from mmrepro.base.records import DocumentHead
    from mmrepro.engines.environments import EnvironmentSpec
    from mmrepro.reports.blocks import Page
    from rich.console import Console, RenderableType
    from rich.table import Table

_WIDTH = 400
"""Columns of what is no terminal: wide enough for a cell of a table."""
_WORDS = 28
"""Columns of a last column that are worth a line."""
_CELL = 2000
ASK_BYTES = 1 << 30
"""A larger download is asked about, on a terminal."""


def table_console(*, stderr: bool = False, quiet: bool = False) -> Console:
    """A console as wide as the terminal; a file or a pipe is not cut to 80 columns."""
    from rich.console import Console

    console = Console(stderr=stderr, quiet=quiet, highlight=False)
    if not console.is_terminal:
        console.width = _WIDTH
    return console


def console_for(asked: Any) -> Console:
    """The console of a command with ``json`` and ``quiet``, perhaps ``events``: stdout,
    unless a document or events go there."""
    return table_console(
        stderr=asked.json or getattr(asked, "events", "") == "-", quiet=asked.quiet
    )


DOCUMENT_VARIABLE = "MMREPRO_DOCUMENT"
"""Names a file that gets the document besides: who starts a command for its screen and
for its data, starts it once."""


def wants_document(asked: Any) -> bool:
    """Whether a command's JSON document is asked for, printed or in a file."""
    return bool(asked.json or os.environ.get(DOCUMENT_VARIABLE))


def emit(
    document: Any, head: DocumentHead, kind: str = "", *, printed: bool = True
) -> None:
    """Print a record, or what JSON can hold, as one JSON document below its head.

    Args:
        kind: what the document is, where it does not name its kind itself.
        printed: False: it goes into the file alone that the variable names.
    """
    import json

    facts = document
    if hasattr(document, "model_dump_json"):
        facts = json.loads(document.model_dump_json())
    whole = json.loads(head.model_dump_json())
    if kind:
        whole |= {"$id": f"urn:mmrepro:{kind}:1", "schema_version": 1}
    # The head goes first, and before a field of the same name.
    for name, value in facts.items():
        whole.setdefault(name, value)
    text = json.dumps(whole, indent=1)
    # Commands that this one starts have documents of their own.
    file = os.environ.pop(DOCUMENT_VARIABLE, "")
    if file:
        Path(file).write_text(text, encoding="utf-8")
    if printed:
        typer.echo(text)


def head_of_page(
    page: Page, status: str, exit_code: int, place: str = ""
) -> DocumentHead:
    """The head of the document that ``page`` shows; ``place``: of its HTML."""
    from mmrepro.base.records import DocumentHead

    note = f" ({page.badge.note})" if page.badge.note else ""
    return DocumentHead(
        status=status,
        exit_code=exit_code,
        summary=f"{page.badge.label}{note}: {page.subject}",
        next=[command for _, command in page.commands],
        page=place,
    )


def planned_head(asked: Command, seconds: float) -> DocumentHead:
    """The head of what --dry-run prints: nothing has run yet."""
    from mmrepro.base.records import DocumentHead
    from mmrepro.base.units import duration

    return DocumentHead(
        status="planned",
        exit_code=0,
        summary=f"Nothing ran. The runs of this plan take about {duration(seconds)}.",
        next=[asked.command_line()],
    )


def done_head(status: str, summary: str, following: Sequence[str] = ()) -> DocumentHead:
    """The head of a document without a verdict."""
    from mmrepro.base.records import DocumentHead

    return DocumentHead(
        status=status, exit_code=0, summary=summary, next=list(following)
    )


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[RenderableType]] = (),
    *,
    right: Sequence[str] = (),
) -> Table:
    """A table without lines; the columns named in ``right`` are flush right."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, show_header=any(head))
    for name in head:
        made.add_column(
            name, justify="right" if name in right else "left", overflow="fold"
        )
    for row in rows:
        made.add_row(*row)
    return made


def print_rows(rows: Sequence[Sequence[str]]) -> None:
    """Print a row a line, the first one as headings. Importing rich takes too long
    here.

    On a terminal the last column is broken between words. Where it would be too narrow
    for that, a row is an entry: its last column goes below the others."""
    from mmrepro.base.text import one_line, wrapped

    cells_of = [[one_line(cell, _CELL) for cell in row] for row in rows]
    *columns, last_column = zip(*cells_of, strict=True)
    widths = [max(map(len, column)) + 2 for column in columns]
    least_last = min(_WORDS, max(map(len, last_column)))
    width = terminal_width()
    taken = sum(widths)
    is_entry = bool(width) and taken + least_last > width
    for index, (*cells, last) in enumerate(cells_of):
        shown = [f"{cell:{wide}}" for cell, wide in zip(cells, widths, strict=True)]
        # Of the headings all are bold, of a row its name.
        bold = len(shown) if index == 0 else 1
        for number in range(bold):
            shown[number] = typer.style(shown[number], bold=True)
        line = "".join(shown)
        if is_entry:
            if index:
                _entry(cells, last, width)
            continue
        if index == 0:
            last = typer.style(last, bold=True)
        room = width - taken if width else 0
        text = wrapped(last, room).replace("\n", "\n" + " " * taken)
        typer.echo((line + text).rstrip())


def _entry(cells: Sequence[str], last: str, width: int) -> None:
    """Print a row that does not fit a line: its name, the others, its last cell."""
    from mmrepro.base.text import wrapped

    name, *others = cells
    head = "  ".join([cell for cell in others if cell])
    typer.echo(typer.style(name, bold=True))
    for text in (head, last):
        if text:
            typer.echo("  " + wrapped(text, width - 2, hang=4))


def say(text: str = "", *, hang: int = 2, stderr: bool = False) -> None:
    """Print a text: a terminal's lines are broken between words."""
    from mmrepro.base.text import wrapped

    lines = []
    for line in text.split("\n"):
        lines.append(wrapped(line, terminal_width(stderr=stderr), hang))
    typer.echo("\n".join(lines), err=stderr)


def at_terminal() -> bool:
    """Whether somebody reads stderr and can answer."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def announce(*specs: EnvironmentSpec, yes: bool, new: Path | None = None) -> None:
    """Print what their environments may download, before they are built; ask if it is
    much.

    Args:
        new: a folder that was made for this and is removed where it does not go on.

    Raises:
        UnknownRelease: the index has not all of these releases.
        InfrastructureError: the answer is no.
    """
    import shutil

    from mmrepro.engines.environments import doubt_of_release, existing

    try:
        for spec in specs:
            doubt_of_release(spec)
        for spec in dict.fromkeys(specs):
            if existing(spec) is None:
                _announce(spec, yes=yes)
    except BaseException:
        if new is not None:
            shutil.rmtree(new, ignore_errors=True)
        raise


def _announce(spec: EnvironmentSpec, *, yes: bool) -> None:
    from mmrepro.base.errors import InfrastructureError
    from mmrepro.engines.environments import folder_of, needed_bytes

    name = f"{spec.engine} {spec.release or spec.commit[:12]} ({spec.device})"
    needed = needed_bytes(spec)
    typer.echo(
        f"{name} is not here yet. Up to {size(needed)} are downloaded and unpacked "
        f"into {folder_of(spec).parent}, less what uv's cache holds.",
        err=True,
    )
    asking = needed > ASK_BYTES and not yes and at_terminal()
    if asking and not typer.confirm("Download it?", default=True, err=True):
        raise InfrastructureError(
            f"{name} was not downloaded: the answer was no.",
            hint="--yes downloads without asking",
        )


def while_reading() -> AbstractContextManager[object]:
    """Says on a terminal that something is read, until the block ends; nothing
    elsewhere."""
    from rich.console import Console

    return Console(stderr=True).status("reading; Ctrl-C ends it")
