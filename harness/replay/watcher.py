"""Who is told how a replay goes."""

from __future__ import annotations

from typing import Protocol

from mmrepro.evidence import Event
from mmrepro.incident.replay import Finding, PlayFacts, Replay


class Watcher(Protocol):
    """Is told how a replay goes; the live display is one. Called from one thread at a time."""

    def event(self, event: Event) -> None:
        """Of an environment that is built, or of the play in progress."""

    def began(self, replay: Replay, what: str, requests: int) -> None:
        """A play begins."""

    def ended(self, replay: Replay, play: PlayFacts, *, kept: bool) -> None:
        """A play has ended; ``kept``: it was made before the replay was gone on with."""

    def grew(self, replay: Replay, finding: Finding) -> None:
        """A finding is new, or has a further step, or is confirmed or shrunk."""
