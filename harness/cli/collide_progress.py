"""The bar of a running search: how likely it is to be over by now. Nothing off a terminal."""

from __future__ import annotations

from mmrepro.collide.search import Seen
from mmrepro.text.sanitize import one_line
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


class SearchBar(Progress):
    """Draws stages and the running probability of success on ``console``."""

    def __init__(self, console: Console) -> None:
        super().__init__(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=28),
            TextColumn("{task.fields[words]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._search = self.add_task("starting", total=1.0, words="")

    def stage(self, text: str) -> None:
        self.update(self._search, description=one_line(text, 60))

    def __call__(self, seen: Seen) -> None:
        words = ""
        if seen.images:
            rate = seen.images / seen.seconds if seen.seconds else 0.0
            words = f"{seen.probability:.1%} sure by now, {seen.images:,} images, {rate:,.0f}/s"
        self.update(
            self._search,
            description=one_line(seen.stage, 60),
            completed=seen.probability,
            words=words,
        )
