"""Live progress: one line a stage with its time, the latest event below. Little off a
terminal."""

import sys
import threading
import time
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from mmrepro.base.text import one_line
from mmrepro.cli.building import Sparse
from mmrepro.traffic.evidence import BUILD, BUILD_NOTICE, Event
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text


class LiveView(ABC):
    """Redraws itself on a terminal from ``with`` until its end; nothing off a terminal.

    What ``_draw`` reads is written under ``_lock``: events arrive in threads of their
    own."""

    def __init__(self, console: Console, *, per_second: int, transient: bool) -> None:
        self.console = console
        self._lock = threading.Lock()
        self._per_second, self._transient = per_second, transient
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._live = Live(
                console=self.console,
                get_renderable=self._draw,
                refresh_per_second=self._per_second,
                transient=self._transient,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()
        if self._live is not None:
            self._live.stop()

    def _end(self) -> None:
        """Before the last drawing, which stays if the view is not transient."""
        return

    @abstractmethod
    def _draw(self) -> RenderableType: ...


_STAGES = {"gate": "warm-up check"}
"""Stages that people know by another name."""


class Progress(LiveView):
    """Listens to a run's events and draws them on ``console`` while the run lasts.

    Off a terminal each stage, and the building of an environment, is a line on
    stderr: both take minutes."""

    def __init__(self, console: Console, title: str, *, verbose: bool = False) -> None:
        super().__init__(console, per_second=8, transient=False)
        self._build = Sparse(self._on_stderr)
        self.title, self._verbose = title, verbose
        self._stages: list[tuple[str, float]] = []
        self._began = time.monotonic()
        self._ended = 0.0
        self._latest = ""

    def __call__(self, event: Event) -> None:
        if event.source in (BUILD, BUILD_NOTICE):
            if not self.console.is_terminal:
                self._build(one_line(event.text, 200))
            elif event.source == BUILD_NOTICE:
                self.console.print(
                    one_line(event.text, 200), highlight=False, markup=False
                )
        elif self._verbose:
            self._on_stderr(f"{event.source}: {event.text}")
        if event.source == "stage":
            self.show(event.text)
            if self._live is None and not self._verbose:
                # A job whose output is a file looks hung without it.
                passed = time.monotonic() - self._began
                stage = _STAGES.get(event.text, event.text)
                self._on_stderr(f"[{passed:.0f} s] {stage}")
        else:
            with self._lock:
                self._latest = one_line(event.text, 200)

    def show(self, stage: str, latest: str = "") -> None:
        """Show the stage, a new one in a line of its own, and how far it is."""
        stage = _STAGES.get(stage, stage)
        with self._lock:
            if not latest or not self._stages or self._stages[-1][0] != stage:
                self._stages.append((stage, time.monotonic()))
            self._latest = one_line(latest, 200)

    def _on_stderr(self, text: str) -> None:
        """Off a terminal the console may be a file, or hold a document."""
        if self._live is not None:
            self.console.print(one_line(text, 200), highlight=False, markup=False)
        elif not self.console.quiet:
            print(one_line(text, 200), file=sys.stderr, flush=True)

    def _end(self) -> None:
        with self._lock:
            self._ended = time.monotonic()
            self._latest = ""

    def _draw(self) -> RenderableType:
        with self._lock:
            table = Table.grid(padding=(0, 2))
            # A stage ends where the next one begins; the last one, with the work.
            begins = [began for _, began in self._stages]
            ends = [*begins[1:], self._ended or time.monotonic()]
            for index, (name, began) in enumerate(self._stages):
                running = index + 1 == len(self._stages) and not self._ended
                mark: RenderableType = Text("✓", style="green")
                if running:
                    mark = Spinner("dots")
                spent = f"{ends[index] - began:6.1f} s"
                table.add_row(mark, name, Text(spent, style="dim"))

            parts: list[RenderableType] = [Text(self.title, style="bold"), table]
            if self._latest:
                latest = Text(
                    self._latest, style="dim", overflow="ellipsis", no_wrap=True
                )
                parts.append(latest)
            return Group(*parts)
