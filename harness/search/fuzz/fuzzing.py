"""The policy of fuzzing: episodes as long as there is time, each a line of work."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from mmrepro.failure.documents.replay import Fuzz
from mmrepro.search.fuzz import minimisations
from mmrepro.search.fuzz.knowledge import EpisodeEnded
from mmrepro.search.fuzz.options import FuzzCommand
from mmrepro.search.fuzz.session import FuzzSession
from mmrepro.search.replay.attempts import CaseSearch
from mmrepro.search.replay.store import WriteReplay


class Fuzzing(FuzzSession):
    """A session whose lines of work are episodes.

    On one place episodes come one after the other, each pursued before the next one
    begins; on several others go on while one is pursued.
    """

    def more(self) -> Callable[[], None] | None:
        if self._opened is None:
            self._opened = False
            return self._take_up
        if not self._opened or self._over():
            return None
        unfinished = minimisations.unfinished(self)
        if unfinished is not None:
            return lambda: minimisations.finish(self, unfinished)
        return self._episode

    def _take_up(self) -> None:
        """Go on with what earlier calls left; the budget begins when a server has
        answered."""
        ended = self.files.kept(EpisodeEnded)
        self.deadlines = ended[-1].deadlines if ended else self.measured()
        self._began = time.monotonic() - self.fuzz.elapsed_s
        self._opened = True
        for line in ended:
            minimisations.pursue(self, line)

    def _episode(self) -> None:
        """Play an episode, and pursue what it showed."""
        taken = self.known.ended.keys() | self._playing
        # Several lines of work play at once, and a killed call leaves gaps: the first
        # number that is free.
        number = 0
        while number in taken:
            number += 1
        self._playing.add(number)
        try:
            line = minimisations.play_episode(self, self.known.episodes.next(number))
        finally:
            self._playing.discard(number)

        minimisations.pursue(self, line)


def session_of(
    options: FuzzCommand,
    *,
    write: Callable[[Fuzz, Path], object],
    write_replay: WriteReplay,
) -> CaseSearch[Fuzz]:
    """The session that is asked for: of one server, or of two that get the same
    requests."""
    if options.other is None:
        return Fuzzing(options, write=write, write_replay=write_replay)
    from mmrepro.search.fuzz.against import Comparing

    return Comparing(options, write=write)
