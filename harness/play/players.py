"""What is asked of a player, and the players of one machine: made when a server is first wanted."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from mmrepro.case.model import Case, ServerWanted
from mmrepro.case.played import Played
from mmrepro.case.sending import Time
from mmrepro.evidence.recorder import Listener
from mmrepro.run.judge import Deadlines
from mmrepro.run.options import StartMode

Look = Callable[[str, int, Path], None]
"""The server's address, its first process and its log."""


@dataclass(frozen=True)
class PlayOptions:
    """How a case is played.

    Attributes:
        deadlines: None: those of the player's ``calibrate()``, which is called if need be.
        time: ``real``: a request also waits for its time in the recording; ``order``: one after
            another; ``fast``: barriers alone.
        look: what is looked at beside the requests: ``quick``: the idle server before and after,
            and the log; ``full``: every probe of a run as well, at the end.
        early: judge a hang before its deadline, by what stands still.
        blocks: that many equal blocks of operations, an idle server and a reading after each.
        canary: the same small request before and after.
    """

    deadlines: Deadlines | None = None
    time: Time = "fast"
    look: Literal["none", "quick", "full"] = "quick"
    early: bool = True
    blocks: int = 0
    canary: bool = True


class Servers(NamedTuple):
    """How the fresh servers of a campaign are started.

    Attributes:
        wanted: the one on which deadlines are measured; a case brings its own.
        timeout_s: that one may take to become ready.
    """

    wanted: ServerWanted
    start_mode: StartMode = StartMode.AUTO
    timeout_s: float = 600.0


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

    def __exit__(self, *_: object) -> None: ...


class Players:
    """Shared by the places of a machine, with the environments and fork servers of each player."""

    def __init__(
        self,
        listener: Listener | None = None,
        make: Callable[[Servers, Path], PlayerLike] | None = None,
    ) -> None:
        """``make``: another player than the real one."""
        self._listener = listener
        self._make = make or self._player
        self._made: dict[tuple[str, StartMode, float], PlayerLike] = {}
        self._lock = threading.Lock()
        self._stopped = False

    def of(self, servers: Servers, folder: Path) -> PlayerLike:
        """The player for such servers; ``folder`` is for what belongs to no case."""
        with self._lock:
            if self._stopped:
                raise KeyboardInterrupt
            key = servers.wanted.model_dump_json(), servers.start_mode, servers.timeout_s
            if key not in self._made:
                self._made[key] = self._make(servers, folder)
            return self._made[key]

    def stop(self) -> None:
        """End what is in progress; nothing is begun any more."""
        with self._lock:
            self._stopped = True
            made = list(self._made.values())
        for player in made:
            player.cancel()

    def end(self) -> None:
        """No order follows: the fork servers end."""
        while self._made:
            self._made.popitem()[1].__exit__()

    def _player(self, servers: Servers, folder: Path) -> PlayerLike:
        from mmrepro.play.player import Player

        server, start_mode, timeout_s = servers
        return Player(
            server,
            start_mode=start_mode,
            folder=folder,
            timeout_s=timeout_s,
            listener=self._listener,
        )
