"""How a session goes: the episode in progress, and findings; off a terminal a line for each."""

from __future__ import annotations

import time

from mmrepro.base.units import duration
from mmrepro.cli.building import Sparse
from mmrepro.cli.progress import LiveView
from mmrepro.evidence import Event
from mmrepro.evidence.model import BUILD, BUILD_NOTICE
from mmrepro.incident.fuzz import Episode, Found, Fuzz
from mmrepro.incident.replay import Finding, PlayFacts, Replay
from mmrepro.replay.pursue import LOUD
from mmrepro.replay.watcher import Watcher
from mmrepro.reports.fuzz_terminal import finding_table
from mmrepro.reports.lines import TONES
from mmrepro.reports.replay_view import count, shown
from mmrepro.text.sanitize import one_line
from rich.console import Console, Group, RenderableType
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

LAST = 6
"""Lines that stay in sight."""


class FuzzProgress(LiveView):
    """Draws episodes and findings on ``console`` while the session lasts."""

    def __init__(self, console: Console) -> None:
        super().__init__(console, per_second=4, transient=True)
        self._fuzz: Fuzz | None = None
        self._current: tuple[str, float] | None = None
        self._latest = ""
        self._told: list[Text] = []
        self._build = Sparse(self._print)

    def event(self, event: Event) -> None:
        if event.source in (BUILD, BUILD_NOTICE) and not self.console.is_terminal:
            self._build(one_line(event.text, 200))
        with self._lock:
            self._latest = one_line(event.text, 200)

    def began(self, fuzz: Fuzz, episode: Episode) -> None:
        with self._lock:
            self._fuzz = fuzz
            self._current = _name(episode), time.monotonic()

    def ended(self, fuzz: Fuzz, episode: Episode) -> None:
        said, tone = "nothing is wrong", "soft"
        if episode.buckets:
            said, tone = shown(episode.buckets), "bad"
        elif episode.state != "ended":
            said = episode.state
        left = max(0.0, fuzz.budget_s - fuzz.elapsed_s)
        self._say(
            Text.assemble(
                f"{_name(episode)}: ",
                (one_line(said, 160), TONES[tone]),
                f", {episode.new} new, in {duration(episode.seconds)}; {duration(left)} left",
            )
        )
        with self._lock:
            self._current, self._latest = None, ""

    def pursues(self, fuzz: Fuzz, episode: Episode, buckets: list[str]) -> Watcher | None:
        with self._lock:
            self._current = f"pursuing {one_line(shown(buckets), 120)}", time.monotonic()
        return _Pursuit(self)

    def found(self, fuzz: Fuzz, found: Found) -> None:
        finding = found.finding
        known = f", known: {finding.known}" if finding.known else ""
        confirmed = "" if finding.confirmed else ", not confirmed"
        said = one_line(finding.said, 160)
        text = f"{found.id}: {finding.finding_class}{known}{confirmed}, "
        text += f"{count(finding.requests, 'request')}: {said}"
        loud = finding.finding_class in LOUD
        self._say(Text(text, style=TONES["bad" if loud else "unsure"]))

    def step(self, text: str) -> None:
        """Of a pursuit, for a terminal."""
        with self._lock:
            self._latest = text

    def _say(self, line: Text) -> None:
        with self._lock:
            self._told.append(line)
        if not self.console.is_terminal:
            self.console.print(line, soft_wrap=True, highlight=False)

    def _print(self, text: str) -> None:
        self.console.print(Text(one_line(text, 300)), soft_wrap=True, highlight=False)

    def _draw(self) -> RenderableType:
        with self._lock:
            parts: list[RenderableType] = list(self._told[-LAST:])
            if self._fuzz is not None and self._fuzz.found:
                parts.append(finding_table(self._fuzz))
            if self._current is not None:
                name, since = self._current
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


class _Pursuit:
    """A replay's plays, as one line of the session's display."""

    def __init__(self, above: FuzzProgress) -> None:
        self._above = above

    def event(self, event: Event) -> None:
        return

    def began(self, replay: Replay, what: str, requests: int) -> None:
        self._above.step(f"{what}, {count(requests, 'request')}")

    def ended(self, replay: Replay, play: PlayFacts, *, kept: bool) -> None:
        return

    def grew(self, replay: Replay, finding: Finding) -> None:
        return


def _name(episode: Episode) -> str:
    return f"episode {episode.number} ({episode.kind}, {count(episode.requests, 'request')})"
