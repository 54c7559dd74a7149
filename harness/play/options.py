"""What is asked of a play."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mmrepro.case.sending import Time
from mmrepro.run.judge import Deadlines

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
