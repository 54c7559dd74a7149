"""The live table of an ablation; a line for each finished cell where there is no terminal."""

from __future__ import annotations

import time

from mmrepro.ablate.search import Flips
from mmrepro.base.units import duration
from mmrepro.cli.progress import LiveView
from mmrepro.evidence import Event
from mmrepro.incident.ablation import Ablation, Cell, Role
from mmrepro.reports.ablation_terminal import factor_table
from mmrepro.reports.ablation_view import STATE_WORDS, flips_words
from mmrepro.text.sanitize import one_line
from rich.console import Console, Group, RenderableType
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text


class AblationProgress(LiveView):
    """Draws the table on ``console`` while the ablation lasts.

    Args:
        seconds_each: estimate for one run, seconds.
        runs: that are expected to be made; more may follow.
    """

    def __init__(self, console: Console, seconds_each: float, runs: int) -> None:
        super().__init__(console, per_second=6, transient=True)
        self.ablation: Ablation | None = None
        self._each = seconds_each
        self._runs = runs
        self._made = 0
        self._current = ""
        self._stage = ""
        self._latest = ""
        self._since = time.monotonic()

    # ------------------------------------------------------------------ told by the session

    def event(self, event: Event) -> None:
        with self._lock:
            if event.source == "stage":
                self._stage, self._latest = event.text, ""
            else:
                self._latest = one_line(event.text, 200)

    def began(self, flips: Flips, role: Role, index: int) -> None:
        with self._lock:
            self._current = f"{' + '.join(flips) or 'baseline'}, run {index}"
            self._stage = self._latest = ""
            self._since = time.monotonic()

    def ended(self, cell: Cell) -> None:
        with self._lock:
            self._made += len(cell.runs) - cell.reused
            self._current = ""
        if not self.console.is_terminal:
            took = duration(sum(run.seconds for run in cell.runs[cell.reused :]))
            how = "reused" if cell.reused == len(cell.runs) else f"in {took}"
            self.console.print(
                Text(f"{flips_words(cell)}: {STATE_WORDS[cell.state]} ({cell.why}), {how}"),
                soft_wrap=True,
                highlight=False,
            )

    # ------------------------------------------------------------------ drawing

    def _draw(self) -> RenderableType:
        with self._lock:
            parts: list[RenderableType] = []
            if self.ablation is not None:
                parts.append(factor_table(self.ablation))
            if self._current:
                spent = time.monotonic() - self._since
                left = max(0.0, (self._runs - self._made) * self._each - spent)
                row = Table.grid(padding=(0, 1))
                row.add_row(
                    Spinner("dots"),
                    Text(self._current, style="bold"),
                    Text(self._stage),
                    Text(duration(int(spent)), style="dim"),
                    Text(f"about {duration(left)} left" if left else "", style="dim"),
                )
                parts.append(row)
                parts.append(Text(self._latest, style="dim", overflow="ellipsis", no_wrap=True))
            return Group(*parts)
