"""How a case is played, what a block of plays measures, and how the servers are
started."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from mmrepro.runs.judge import Deadlines
from mmrepro.runs.options import StartMode
from mmrepro.traffic.case import Case, ServerWanted, Time

Look = Callable[[str, int, Path], None]
"""The server's address, its first process and its log."""


@dataclass(frozen=True)
class PlayOptions:
    """How a case is played.

    Attributes:
        deadlines: None: those of the player's ``calibrate()``, which is called if need
            be.
        time: ``real``: a request also waits for its time in the recording; ``order``:
            one after another; ``fast``: barriers alone.
        look: what is looked at beside the requests: ``quick``: the idle server before
            and after, and the log; ``full``: every probe of a run as well, at the end.
        early: judge a hang before its deadline, by what stands still.
        blocks: that many equal blocks of operations, an idle server and a reading after
            each.
        canary: the same small request before and after.
        bodies: keep each answer as it came.
        needs_fit: code that a source tree asks in vain of the release that lends it
            compiled files is an error; else its server is one that did not start.
    """

    deadlines: Deadlines | None = None
    time: Time = "fast"
    look: Literal["none", "quick", "full"] = "quick"
    early: bool = True
    blocks: int = 0
    canary: bool = True
    bodies: bool = False
    needs_fit: bool = True


@dataclass(frozen=True)
class Measuring:
    """What a block measures.

    Attributes:
        old, new: the servers.
        case: the traffic; its own server does not count.
        contents: folder of its images.
        index: of the block, from 1. With ``seed`` it decides which parts of the traffic
            are sent, and which side is first.
        together: both servers live at once, and parts of the traffic are sent to them
            in turn; else one server follows the other.
        part_s: a part of the traffic is as long, where the recording was never idle.
        seconds: of traffic on each side, half of it at the recorded times, half at
            saturation.
        at_once: requests that are under way at saturation.
        only: the metric that is wanted: all of the time goes to where it is measured;
            "": all are.
    """

    old: ServerWanted
    new: ServerWanted
    case: Case
    contents: Path | None = None
    index: int = 1
    seed: int = 0
    together: bool = True
    part_s: float = 2.0
    seconds: float = 2.0
    at_once: int = 8
    only: str = ""


class Servers(NamedTuple):
    """How the fresh servers of a campaign are started.

    Attributes:
        wanted: the one on which deadlines are measured; a case brings its own.
        timeout_s: that one may take to become ready.
        device: auto, cpu or cuda.
        boxed: whether they run in a box: a stranger chose their options or requests.
    """

    wanted: ServerWanted
    start_mode: StartMode = StartMode.AUTO
    timeout_s: float = 600.0
    device: str = "auto"
    boxed: bool = False
