"""How a bisection goes: a live table; a line for each run where there is no terminal."""

from __future__ import annotations

import time

from mmrepro.base.units import duration
from mmrepro.cli.progress import LiveView
from mmrepro.incident.bisection import Bisection, Point
from mmrepro.incident.ledger import Attempt, Role
from mmrepro.reports.bisection_terminal import point_table
from mmrepro.reports.bisection_view import attempt_word, point_name
from rich.console import Console, Group, RenderableType
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text


class BisectionProgress(LiveView):
    """Draws the points on ``console`` while the bisection lasts."""

    def __init__(self, console: Console) -> None:
        super().__init__(console, per_second=4, transient=True)
        self._bisection: Bisection | None = None
        self._current = ""
        self._since = time.monotonic()

    def began(self, bisection: Bisection, point: Point, role: Role) -> None:
        with self._lock:
            self._bisection = bisection
            again = " again" if role != "planned" else ""
            self._current = f"running {point_name(point)}{again}"
            self._since = time.monotonic()

    def ended(self, bisection: Bisection, point: Point, attempt: Attempt, *, kept: bool) -> None:
        with self._lock:
            self._bisection, self._current = bisection, ""
        if not self.console.is_terminal:
            how = "kept from before" if kept else f"in {duration(attempt.seconds)}"
            self.console.print(
                Text(f"{point_name(point)}: {attempt_word(attempt)}, {how}"),
                soft_wrap=True,
                highlight=False,
            )

    def _draw(self) -> RenderableType:
        with self._lock:
            parts: list[RenderableType] = []
            if self._bisection is not None:
                parts.append(point_table(self._bisection))
            if self._current:
                row = Table.grid(padding=(0, 1))
                row.add_row(
                    Spinner("dots"),
                    Text(self._current, style="bold"),
                    Text(duration(int(time.monotonic() - self._since)), style="dim"),
                )
                parts.append(row)
            return Group(*parts)
