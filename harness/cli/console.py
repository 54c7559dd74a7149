"""What commands print: tables and JSON documents; and what they ask."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import typer
from mmrepro.base.units import size

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from mmrepro.engines.environments import EnvironmentSpec
    from rich.console import Console, RenderableType
    from rich.table import Table

_WIDTH = 180
_WORDS = 28
"""Characters of a last column that are worth a line."""
ASK_BYTES = 1 << 30
"""A larger download is asked about, on a terminal."""


def table_console(*, stderr: bool = False, quiet: bool = False) -> Console:
    """A console as wide as the terminal; a file or a pipe is not cut to 80 columns."""
    from rich.console import Console

    console = Console(stderr=stderr, quiet=quiet)
    return (
        console
        if console.is_terminal
        else Console(stderr=stderr, quiet=quiet, width=_WIDTH)
    )


def console_for(asked: Any) -> Console:
    """The console of a command with ``json`` and ``quiet``, perhaps ``events``: stdout,
    unless a document or events go there."""
    return table_console(
        stderr=asked.json or getattr(asked, "events", "") == "-", quiet=asked.quiet
    )


def emit(document: Any, kind: str = "") -> None:
    """Print a record, or what JSON can hold, as one JSON document; a text is one
    already.

    ``kind``: what the document is, where it does not say so itself.
    """
    import json

    if kind:
        facts = (
            document.model_dump(mode="json")
            if hasattr(document, "model_dump")
            else document
        )
        document = {"$id": f"urn:mmrepro:{kind}:1", "schema_version": 1, **facts}
    elif hasattr(document, "model_dump_json"):
        document = document.model_dump_json(indent=1)
    typer.echo(
        document if isinstance(document, str) else json.dumps(document, indent=1)
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


def print_rows(rows: Sequence[Sequence[str]], *, spare: Sequence[int] = ()) -> None:
    """Print a row a line, the first one as headings. Importing rich takes too long
    here.

    On a terminal the last column is cut; where it is too narrow for a few words of
    that, the columns ``spare`` go, one after another."""
    import shutil

    from mmrepro.base.text import clip, one_line

    cells_of: list[list[str]] = []
    for row in rows:
        cells_of.append([one_line(cell, 400) for cell in row])
    widths = [max(map(len, column)) + 2 for column in zip(*cells_of, strict=True)]
    least_last = min(_WORDS, widths.pop())
    # What is no terminal has no width: nothing is left out there.
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 400

    kept = list(range(len(widths)))
    taken = sum(widths)
    for number in spare:
        if taken + least_last <= width:
            break
        kept.remove(number)
        taken -= widths[number]
    for index, cells in enumerate(cells_of):
        shown = [f"{cells[number]:{widths[number]}}" for number in kept]
        shown.append(clip(cells[-1], max(least_last, width - taken)))
        # Of the headings all are bold, of a row its name.
        bold = len(shown) if index == 0 else 1
        for number in range(bold):
            shown[number] = typer.style(shown[number], bold=True)
        typer.echo("".join(shown).rstrip())


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
