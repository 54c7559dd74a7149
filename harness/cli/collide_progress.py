"""The bar of a running search: how likely it is to be over by now. Nothing off a terminal."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from mmrepro.collide.search import Seen
from mmrepro.text.sanitize import one_line
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


class SearchBar:
    """Draws stages and the running probability of success on ``console``."""

    def __init__(self, console: Console) -> None:
        self._shown = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=28),
            TextColumn("{task.fields[words]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._shown.add_task("starting", total=1.0, words="")

    def stage(self, text: str) -> None:
        self._shown.update(self._task, description=one_line(text, 60))

    def __call__(self, seen: Seen) -> None:
        words = ""
        if seen.images:
            rate = seen.images / seen.seconds if seen.seconds else 0.0
            words = f"{seen.probability:.1%} sure by now, {seen.images:,} images, {rate:,.0f}/s"
        self._shown.update(
            self._task,
            description=one_line(seen.stage, 60),
            completed=seen.probability,
            words=words,
        )

    def __enter__(self) -> Self:
        self._shown.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._shown.stop()
