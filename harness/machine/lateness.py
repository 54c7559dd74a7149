"""Whether this machine is short of processors, as a thread sees it that does nothing but sleep.

An observer who waits for a processor takes his own lateness for a server's, and where he waits the
server may wait as well.
"""

from __future__ import annotations

import threading
import time
from typing import Self

STEP_S = 0.05
SHORT = 0.25
"""Part of the time beyond which nothing can be told of who is silent."""


class Lateness:
    """Measures while it is entered: how much later it woke than it had asked to."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._late_s = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lateness", daemon=True)

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    @property
    def share(self) -> float:
        """Of the time since it was entered, 0 to 1."""
        return min(1.0, self._late_s / max(STEP_S, time.monotonic() - self._began))

    def _run(self) -> None:
        began = time.monotonic()
        while not self._over.wait(STEP_S):
            now = time.monotonic()
            self._late_s += now - began - STEP_S
            began = now
