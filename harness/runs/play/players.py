"""The players of one machine: made when a server is first wanted."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from mmrepro.runs.play.options import Servers
from mmrepro.traffic.evidence import Listener

if TYPE_CHECKING:
    from mmrepro.runs.play.player import Player


class Players:
    """Shared by the places of a machine, with the environments and fork servers of each
    player."""

    def __init__(
        self,
        listener: Listener | None = None,
        make: Callable[[Servers, Path], Player] | None = None,
    ) -> None:
        """``make``: another player than the real one."""
        self._listener = listener
        self._make = make
        self._made: dict[tuple[object, ...], Player] = {}
        self._lock = threading.Lock()
        self._stopped = False

    def of(self, servers: Servers, folder: Path) -> Player:
        """The player for such servers; ``folder`` is for what belongs to no case."""
        from mmrepro.runs.play.player import (
            Player,  # here, not above: it imports all that starts servers
        )

        with self._lock:
            if self._stopped:
                raise KeyboardInterrupt
            key = servers.wanted.model_dump_json(), *servers[1:]
            if key not in self._made:
                self._made[key] = (
                    self._make(servers, folder)
                    if self._make is not None
                    else Player(
                        servers.wanted,
                        start_mode=servers.start_mode,
                        folder=folder,
                        timeout_s=servers.timeout_s,
                        device=servers.device,
                        listener=self._listener,
                        boxed=servers.boxed,
                    )
                )

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
