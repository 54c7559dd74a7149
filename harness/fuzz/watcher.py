"""Who is told how a session goes."""

from __future__ import annotations

from typing import Protocol

from mmrepro.evidence import Event
from mmrepro.incident.fuzz import Episode, Found, Fuzz
from mmrepro.replay.watcher import Watcher


class FuzzWatcher(Protocol):
    """Is told how a session goes; the live display is one. Called from one thread at a time."""

    def event(self, event: Event) -> None:
        """Of an environment that is built, or of the play in progress."""

    def began(self, fuzz: Fuzz, episode: Episode) -> None:
        """An episode begins."""

    def ended(self, fuzz: Fuzz, episode: Episode) -> None:
        """It has ended, and is judged."""

    def pursues(self, fuzz: Fuzz, episode: Episode, buckets: list[str]) -> Watcher | None:
        """What an episode showed is pursued; who is told of that."""

    def found(self, fuzz: Fuzz, found: Found) -> None:
        """A finding is whole."""
