"""A traced process runs on: undoing what a tracer that died left behind."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from mmrepro.base import processes


def wait_until(condition: Callable[[], bool], seconds: float, step_s: float = 0.01) -> bool:
    """Poll ``condition`` for at most ``seconds``; whether it came true."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= until:
            return False
        time.sleep(step_s)
    return True


def resume_after_trace(pid: int, state_before: str) -> bool:
    """Undo a stop that a tracer of ours left behind; whether there was one.

    A tracer that dies between attaching and its first wait can leave its target stopped. One that
    was stopped before we came is left so.
    """
    wait_until(lambda: processes.tracer(pid) == 0, 2.0)
    stat = processes.stat(pid)
    if stat is None or stat.state != "T" or state_before == "T":
        return False
    try:
        os.kill(pid, signal.SIGCONT)
    except OSError:
        return False
    return True
