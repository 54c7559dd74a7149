"""Sanitised lines on a terminal, or plain ones where it is none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mmrepro.signature import Truth
from mmrepro.text.sanitize import one_line

if TYPE_CHECKING:
    from rich.console import Console

TONES: Final = {"good": "bold green", "bad": "bold red", "unsure": "bold yellow", "soft": "dim"}
TRUTHS: Final = {Truth.MET: "green", Truth.NOT_MET: "red", Truth.UNKNOWN: "yellow"}


class Printer:
    """Lines of (text, style) pieces; evidence is sanitised here, once."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._width = console.width if console.is_terminal else 400

    def line(self, *pieces: str | tuple[str, str], cut: bool = True) -> None:
        from rich.text import Text

        clean = [
            _piece(piece) if isinstance(piece, str) else (_piece(piece[0]), piece[1])
            for piece in pieces
        ]
        text = Text.assemble(*clean)
        if cut and self._console.is_terminal:
            text.truncate(self._width, overflow="ellipsis")
        self._console.print(text, soft_wrap=True, highlight=False, markup=False, emoji=False)

    def heading(self, text: str) -> None:
        self.line()
        self.line((text, "bold"))


def _piece(text: str) -> str:
    """One sanitised line that keeps the spaces at its ends: they are the layout."""
    bare = text.strip(" ")
    lead = len(text) - len(text.lstrip(" "))
    tail = len(text) - len(text.rstrip(" ")) if bare else 0
    return " " * lead + one_line(bare, 2000) + " " * tail
