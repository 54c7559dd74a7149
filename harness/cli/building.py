"""Shows an environment that is being built: one line that changes on a terminal, few
off it."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mmrepro.engines.environments import DOWNLOADING, Notice
from rich.console import Console

EVERY_S = 10.0
"""Seconds between two lines about the same downloads, off a terminal."""


class Sparse:
    """Passes on each phase, but of a row of downloads one every :data:`EVERY_S`
    seconds."""

    def __init__(
        self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._write = write
        self._clock = clock
        self._next = float("-inf")

    def __call__(self, phase: str) -> None:
        if phase.startswith(DOWNLOADING):
            if (now := self._clock()) < self._next:
                return
            self._next = now + EVERY_S
        self._write(phase)


@contextmanager
def building(console: Console, title: str) -> Iterator[Callable[[str], None]]:
    """Yield what ``ensure`` takes as progress."""
    if not console.is_terminal:
        yield Sparse(lambda phase: print(phase, file=console.file, flush=True))
        return
    with console.status(title) as status:

        def show(phase: str) -> None:
            if isinstance(phase, Notice):
                console.print(phase, highlight=False, markup=False)
            status.update(f"{title}: {phase}")

        yield show
