"""A replay from start to end: played, judged, confirmed, shrunk, and its files at every step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mmrepro.incident.replay import Replay
from mmrepro.replay.options import ReplayOptions
from mmrepro.replay.watcher import Watcher

DEFAULT_ROOT = "replays"


class Replaying:
    """A replay in progress. ``replay`` is valid, if partial, at every moment."""

    def __init__(
        self,
        options: ReplayOptions,
        watcher: Watcher | None = None,
        *,
        write: Callable[[Replay, Path], object],
    ) -> None:
        """``write`` writes the replay's documents below its folder, each time that it has grown;
        the findings' folders with their ``case.json`` are there by then."""
        self.options, self.watcher = options, watcher
        self._write_documents = write
        self.dir: Path
        self.replay: Replay

    @property
    def resume_command(self) -> str:
        """Goes on in the same folder; no play that has ended is played again."""
        return self.options.command(self.dir)

    def execute(self) -> Replay:
        """Replay to the conclusion. The files are on disk afterwards, whatever happened.

        Raises:
            MmreproError: usage, or infrastructure that no play can do without.
            KeyboardInterrupt: the partial replay is on disk.
        """
        raise NotImplementedError
