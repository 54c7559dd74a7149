"""The console of the commands that print tables."""

from __future__ import annotations

from rich.console import Console

WIDTH = 180


def table_console(*, stderr: bool = False) -> Console:
    """As wide as the terminal; a file or a pipe is not cut to 80 columns."""
    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(stderr=stderr, width=WIDTH)
