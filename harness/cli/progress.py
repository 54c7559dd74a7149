"""Live progress: one line a stage with its time, the latest event below. Nothing off a terminal."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Self

from mmrepro.evidence import Event
from mmrepro.sanitize import one_line
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text


class Progress:
    """Listens to a run's events and draws them on ``console`` while the run lasts."""

    def __init__(self, console: Console, title: str) -> None:
        self.console = console
        self.title = title
        self._lock = threading.Lock()
        self._stages: list[tuple[str, float]] = []
        self._ended = 0.0
        self._latest = ""
        self._live = Live(
            console=console,
            get_renderable=self._draw,
            refresh_per_second=8,
            transient=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def __call__(self, event: Event) -> None:
        with self._lock:
            if event.source == "stage":
                self._stages.append((event.text, time.monotonic()))
                self._latest = ""
            else:
                self._latest = one_line(event.text, 200)

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._lock:
            self._ended = time.monotonic()
            self._latest = ""
        if self._live.is_started:
            self._live.stop()

    def _draw(self) -> RenderableType:
        with self._lock:
            table = Table.grid(padding=(0, 2))
            for index, (name, began) in enumerate(self._stages):
                last = index + 1 == len(self._stages)
                until = self._stages[index + 1][1] if not last else self._ended or time.monotonic()
                running = last and not self._ended
                mark: RenderableType = Spinner("dots") if running else Text("✓", style="green")
                table.add_row(mark, name, Text(f"{until - began:6.1f} s", style="dim"))
            parts: list[RenderableType] = [Text(self.title, style="bold"), table]
            if self._latest:
                parts.append(Text(self._latest, style="dim", overflow="ellipsis", no_wrap=True))
            return Group(*parts)
