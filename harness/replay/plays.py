"""The plays of one replay: each on a fresh server, each once, and counted."""

from __future__ import annotations

import math
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Protocol

from mmrepro.case.barriers import Time
from mmrepro.case.files import case_digest
from mmrepro.case.model import Case
from mmrepro.case.played import Played
from mmrepro.errors import InfrastructureError
from mmrepro.incident.replay import PlayFacts
from mmrepro.oracle.judged import Judged
from mmrepro.play.options import Look, PlayOptions
from mmrepro.replay.seen import Seen, seen_of
from mmrepro.replay.shrink import Spent
from mmrepro.replay.store import How, Key, Store
from mmrepro.run.deadline import Deadlines

PLAYS_DIR, PLAYED_FILE = "plays", "played.json"
BLOCKS = 6
"""Of a case that is played in blocks: an idle server is read after each, for what grows."""
LAST, USUAL_S = 5, 5.0
"""Plays by which it is told how many more there is time for; seconds, before there are any."""
ATTEMPTS = 2
"""Of a play that told nothing of the engine."""


class PlayerLike(Protocol):
    """What is asked of :class:`mmrepro.play.player.Player`."""

    def calibrate(self) -> Deadlines: ...

    def play(
        self,
        case: Case,
        contents: Path | None,
        options: PlayOptions,
        folder: Path,
        *,
        on_look: Look | None = None,
    ) -> Played: ...

    def cancel(self) -> None: ...


class Wanted(NamedTuple):
    """One play that is asked for."""

    case: Case
    how: How
    nth: int
    what: str


class Looker(Protocol):
    """Looks at a server that is about to be stopped, and names what it sees."""

    def on_look(self, url: str, pid: int, log: Path) -> None: ...

    def name(self, seen: Seen, case: Case, played: Played, folder: Path) -> Seen: ...


@dataclass
class Told:
    """Who hears of plays as they begin and end."""

    began: Callable[[str, int], None] = lambda _what, _requests: None
    ended: Callable[[PlayFacts, bool], None] = lambda _facts, _kept: None


class Plays:
    """Plays cases, or says what the plays of an earlier call said.

    Attributes:
        blocks: into so many blocks a case is cut, with a reading of the idle server after each.
        hurried: a hang is judged early in plays that confirm a case before it is shrunk; what is
            left is confirmed with the whole deadline.
        silent: candidates are judged by what the idle server looks like, too.
        facts: of all plays, in the order in which they were asked for.
        smallest: of each bucket the smallest case that showed it, and that play.
    """

    def __init__(
        self,
        player: PlayerLike,
        store: Store,
        folder: Path,
        contents: Path | None,
        judge: Callable[[Case, Played], Judged],
        *,
        budget: int,
        pace: Time,
        until: float = math.inf,
        end: float = -math.inf,
        told: Told | None = None,
    ) -> None:
        """``until``, ``end``: monotonic seconds after which no play begins; after the second, none
        that confirms."""
        self.player, self.store, self.folder, self.contents = player, store, folder, contents
        self.judge, self.budget = judge, budget
        self.until, self._end = until, end
        self._time = pace
        self._told = told or Told()
        self._lock = threading.Lock()
        self.deadlines: Deadlines | None = None
        self.silent, self.hurried, self.blocks = False, False, 0
        self.facts: list[PlayFacts] = []
        self.smallest: dict[str, tuple[Case, Seen]] = {}
        self._asked: dict[Key, Seen] = {}

    @property
    def left(self) -> int:
        """Starts of servers that may still be made: of the budget, and before ``until``
        (monotonic), if each takes as long as the slowest of the last ones."""
        left = self.budget - len(self.facts)
        if math.isinf(self.until):
            return left
        took = [facts.seconds for facts in self.facts if facts.seconds][-LAST:]
        usual = max(took, default=USUAL_S)
        return max(0, min(left, int((self.until - time.monotonic()) / usual)))

    @contextmanager
    def confirming(self) -> Iterator[None]:
        """How often it shows is worth a few plays more: up to ``end``."""
        until, self.until = self.until, max(self.until, self._end)
        try:
            yield
        finally:
            self.until = until

    def calibrate(self, case: Case) -> Deadlines:
        """On a server of its own; it counts as a start."""
        key = Key("", "calibration", 1)
        kept = self.store.ended.get(key)
        facts = PlayFacts(number=1, what="deadlines", requests=0, state="ended")
        self._began(facts)
        if kept is None or kept.deadlines is None:
            self.store.began(1, key, facts.what, 0)
            began = time.monotonic()
            deadlines = self.player.calibrate()
            facts.seconds = round(time.monotonic() - began, 2)
            kept_now = self.store.end(1, key, Seen(play=facts), deadlines)
            self.deadlines = kept_now.deadlines
        else:
            self.deadlines = kept.deadlines
            facts.seconds = kept.seen.play.seconds
        assert self.deadlines is not None
        self._ended(facts, kept=kept is not None)
        return self.deadlines

    def play(self, wanted: Wanted, look: Looker | None = None) -> Seen:
        """One play; what was asked for before costs no start. Raises Spent, and as the player
        does."""
        known = self._asked.get(self._key(wanted))
        return known or self._finish(self._claim(wanted), wanted, look)

    def several(self, wanted: Sequence[Wanted], jobs: int) -> list[Seen]:
        """At most ``jobs`` at a time; raises as :meth:`play`."""
        if jobs < 2 or len(wanted) < 2:
            return [self.play(one) for one in wanted]
        claimed = [self._claim(one) for one in wanted]
        pool = ThreadPoolExecutor(jobs)
        try:
            made = [
                pool.submit(self._finish, n, one, None)
                for n, one in zip(claimed, wanted, strict=True)
            ]
            return [future.result() for future in made]
        except KeyboardInterrupt:
            self.player.cancel()
            raise
        finally:
            pool.shutdown(cancel_futures=True)

    def whole(self, seen: Seen) -> Played:
        """All that a play recorded; it was kept beside its log."""
        return Played.model_validate_json((self.folder / seen.folder / PLAYED_FILE).read_bytes())

    # ------------------------------------------------------------------ one play

    def _key(self, wanted: Wanted) -> Key:
        cut = f"/{self.blocks}" if self.blocks else ""
        return Key(case_digest(wanted.case) + cut, wanted.how, wanted.nth)

    def _claim(self, wanted: Wanted) -> PlayFacts:
        """Its number, and a start of the budget. Raises Spent."""
        if self.left < 1:
            raise Spent
        requests = len(wanted.case.operations)
        facts = PlayFacts(number=len(self.facts) + 1, what=wanted.what, requests=requests, state="")
        self._began(facts)
        return facts

    def _finish(self, facts: PlayFacts, wanted: Wanted, look: Looker | None) -> Seen:
        key = self._key(wanted)
        kept = self.store.ended.get(key)
        seen = kept.seen if kept else self._new(facts, key, wanted, look)
        for name in ("state", "buckets", "start_s", "seconds", "early"):
            setattr(facts, name, getattr(seen.play, name))
        with self._lock:
            self._asked[key] = seen
            for bucket in facts.buckets:
                best = self.smallest.get(bucket)
                if best is None or len(wanted.case.operations) < len(best[0].operations):
                    self.smallest[bucket] = wanted.case, seen
        self._ended(facts, kept=kept is not None)
        return seen

    def _new(self, facts: PlayFacts, key: Key, wanted: Wanted, look: Looker | None) -> Seen:
        place = Path(PLAYS_DIR) / f"{facts.number:04d}"
        folder = self.folder / place
        with self._lock:
            self.store.began(facts.number, key, wanted.what, facts.requests)
        played = attempted(
            self.player,
            wanted.case,
            self.contents,
            self._options(wanted.how),
            folder,
            look.on_look if look else None,
            failed=lambda error: setattr(facts, "error", error.message),
        )
        seen = seen_of(wanted.case, played, self.judge(wanted.case, played), facts.model_copy())
        seen.folder = place.as_posix()
        if look is not None:
            seen = look.name(seen, wanted.case, played, folder)
        if wanted.how != "shrink":
            (folder / PLAYED_FILE).write_text(played.model_dump_json(), encoding="utf-8")
        with self._lock:
            return self.store.end(facts.number, key, seen).seen

    def _options(self, how: How) -> PlayOptions:
        common = PlayOptions(self.deadlines, time=self._time, blocks=self.blocks)
        if how == "shrink":
            return replace(common, look="quick" if self.silent else "none", early=True)
        return replace(common, look="quick", early=how == "confirm" and self.hurried)

    # ------------------------------------------------------------------ telling

    def _began(self, facts: PlayFacts) -> None:
        with self._lock:
            self.facts.append(facts)
            self._told.began(facts.what, facts.requests)

    def _ended(self, facts: PlayFacts, *, kept: bool) -> None:
        with self._lock:
            self._told.ended(facts, kept)


def attempted(
    player: PlayerLike,
    case: Case,
    contents: Path | None,
    options: PlayOptions,
    folder: Path,
    look: Look | None = None,
    *,
    failed: Callable[[InfrastructureError], object] = lambda _error: None,
) -> Played:
    """A play in ``folder``, which is emptied before; what told nothing of the engine is played
    again, and ``failed`` told of it. Raises as the player does."""
    for attempt in range(1, ATTEMPTS + 1):
        shutil.rmtree(folder, ignore_errors=True)  # killed in the middle, or failed
        try:
            return player.play(case, contents, options, folder, on_look=look)
        except InfrastructureError as error:
            failed(error)
            if attempt == ATTEMPTS:
                raise
    raise AssertionError("unreachable")
