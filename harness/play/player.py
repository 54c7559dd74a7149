"""Plays a case on a fresh server, and tells what came of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from mmrepro.case.model import Case, ServerWanted
from mmrepro.case.played import Played
from mmrepro.evidence.recorder import Listener
from mmrepro.incident import Fidelity, HostFacts, StandIn
from mmrepro.run.deadline import Deadlines
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
        look: what is looked at, at the end and when it hangs.
        early: judge a hang before its deadline, by what stands still.
        blocks: that many equal blocks of operations, an idle server and a reading after each.
    """

    deadlines: Deadlines | None = None
    time: Literal["fast", "real", "order"] = "fast"
    look: Literal["none", "quick", "full"] = "quick"
    early: bool = True
    blocks: int = 0


class Player:
    """Fresh servers for the plays of one session.

    Attributes:
        deadlines: of ``calibrate()``; None before.
        start_mode, fidelity, stand_ins: of the last start.
    """

    def __init__(
        self,
        server: ServerWanted,
        *,
        start_mode: StartMode = StartMode.AUTO,
        folder: Path,
        timeout_s: float = 600.0,
        listener: Listener | None = None,
    ) -> None:
        self.server = server
        self.deadlines: Deadlines | None = None
        self.start_mode = ""
        self.fidelity = Fidelity.CPU
        self.stand_ins: list[StandIn] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return

    @property
    def host(self) -> HostFacts:
        raise NotImplementedError

    def prepare(self) -> None:
        """Environment and model of the server, made if need be. Raises as ``ensure``."""
        raise NotImplementedError

    def calibrate(self) -> Deadlines:
        """Deadlines from latencies measured on a server of its own, which is stopped again."""
        raise NotImplementedError

    def play(
        self,
        case: Case,
        contents: Path | None,
        options: PlayOptions,
        folder: Path,
        *,
        on_stuck: Look | None = None,
        on_look: Look | None = None,
    ) -> Played:
        """Play ``case``, whose pictures lie below ``contents``, with all that is kept in
        ``folder``. Two at a time may be played.

        Args:
            on_stuck: called while the server still hangs.
            on_look: called before a server is stopped that still lives, hung or not.

        Raises:
            InfrastructureError: nothing was learnt of the engine.
            UsageError: what the case asks for cannot be had.
        """
        raise NotImplementedError
