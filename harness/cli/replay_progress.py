"""How a replay goes: the play in progress and what was found; a line a play off a terminal."""

from __future__ import annotations

import time

from mmrepro.base.units import duration
from mmrepro.cli.building import Sparse
from mmrepro.cli.progress import LiveView
from mmrepro.evidence import Event
from mmrepro.evidence.model import BUILD, BUILD_NOTICE
from mmrepro.incident.replay import Finding, PlayFacts, Replay
from mmrepro.reports.lines import TONES
from mmrepro.reports.replay_terminal import finding_table
from mmrepro.reports.replay_view import count, shown, standing
from mmrepro.text.sanitize import one_line
from rich.console import Console, Group, RenderableType
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

LAST = 6
"""Plays that stay in sight."""


class ReplayProgress(LiveView):
    """Draws plays and findings on ``console`` while the replay lasts."""

    def __init__(self, console: Console, budget: int) -> None:
        super().__init__(console, per_second=4, transient=True)
        self._budget = budget
        self._replay: Replay | None = None
        self._current: list[tuple[str, float]] = []
        self._latest = ""
        self._told: list[Text] = []
        self._steps: dict[str, int] = {}
        self._build = Sparse(self._print)

    # ------------------------------------------------------------------ told by the session

    def event(self, event: Event) -> None:
        if event.source in (BUILD, BUILD_NOTICE) and not self.console.is_terminal:
            self._build(one_line(event.text, 200))
        with self._lock:
            self._latest = one_line(event.text, 200)

    def began(self, replay: Replay, what: str, requests: int) -> None:
        with self._lock:
            self._replay = replay
            self._current.append((f"{what}, {count(requests, 'request')}", time.monotonic()))

    def ended(self, replay: Replay, play: PlayFacts, *, kept: bool) -> None:
        with self._lock:
            self._replay, self._latest = replay, ""
            name = f"{play.what}, {count(play.requests, 'request')}"
            left = [one for one in self._current if one[0] != name]
            self._current = left if len(left) < len(self._current) else self._current[1:]
            line = self._line(play, kept=kept)
            self._told.append(line)
        if not self.console.is_terminal:
            self.console.print(line, soft_wrap=True, highlight=False)

    def grew(self, replay: Replay, finding: Finding) -> None:
        with self._lock:
            self._replay = replay
            told = self._steps.get(finding.id)
            self._steps[finding.id] = len(finding.steps)
        if told is None and not self.console.is_terminal:
            self._print(f"{finding.id}: {finding.finding_class}: {finding.said}")

    # ------------------------------------------------------------------ drawing

    def _print(self, text: str) -> None:
        self.console.print(Text(one_line(text, 300)), soft_wrap=True, highlight=False)

    def _line(self, play: PlayFacts, *, kept: bool) -> Text:
        if play.error:
            said, tone = f"counts for nothing: {play.error}", "unsure"
        elif play.buckets:
            said, tone = shown(play.buckets), "bad"
        else:
            said, tone = "nothing is wrong" if play.state == "ended" else play.state, "soft"
        how = "kept from before" if kept else f"in {duration(play.seconds)}"
        return Text.assemble(
            f"play {play.number} of at most {self._budget} ({one_line(play.what, 80)}, "
            f"{count(play.requests, 'request')}): ",
            (one_line(said, 160), TONES[tone]),
            f", {how}",
        )

    def _draw(self) -> RenderableType:
        with self._lock:
            parts: list[RenderableType] = list(self._told[-LAST:])
            if self._replay is not None and self._replay.findings:
                parts.append(finding_table(self._replay))
                shrinking = [f for f in self._replay.findings if not f.shrunk][:1]
                for finding in shrinking:
                    words = (
                        f"{finding.id}: {standing(finding)}; {count(finding.requests, 'request')}"
                    )
                    parts.append(Text(words, style="bold"))
            for name, since in self._current:
                row = Table.grid(padding=(0, 1))
                row.add_row(
                    Spinner("dots"),
                    Text(one_line(name, 100), style="bold"),
                    Text(duration(int(time.monotonic() - since)), style="dim"),
                )
                parts.append(row)
            if self._latest:
                parts.append(Text(self._latest, style="dim", overflow="ellipsis", no_wrap=True))
            return Group(*parts)
