"""Commands of mmrepro's own in processes of their own, and the end of them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import IO

from mmrepro.base.options import ONLY_ARGUMENTS
from mmrepro.machine.host import die_with_parent

GRACE_S = 30.0
"""Between SIGTERM, on which a run writes what it has and ends its engine, and SIGKILL."""


def spawn(
    arguments: Sequence[str],
    variables: Mapping[str, str],
    *,
    nice: int = 0,
    stdout: int | IO[bytes] = subprocess.DEVNULL,
    stderr: int | IO[bytes] = subprocess.DEVNULL,
) -> subprocess.Popen[bytes]:
    """Start ``mmrepro ARGUMENTS``; as :func:`spawn_program`. What a file or a variable says of
    options is in the arguments already, where it holds."""
    command = [sys.executable, "-m", "mmrepro", *arguments]
    return spawn_program(
        command, {**variables, **ONLY_ARGUMENTS}, nice=nice, stdout=stdout, stderr=stderr
    )


def spawn_program(
    command: Sequence[str],
    variables: Mapping[str, str],
    *,
    nice: int = 0,
    stdout: int | IO[bytes] = subprocess.DEVNULL,
    stderr: int | IO[bytes] = subprocess.DEVNULL,
) -> subprocess.Popen[bytes]:
    """Start ``command``. It is killed with the thread that calls this.

    In a session of its own: a Ctrl-C on the terminal is the caller's to pass on.
    """

    def prepared() -> None:
        die_with_parent()
        os.nice(nice)

    return subprocess.Popen(
        command,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
        preexec_fn=prepared,
    )


def end(children: Collection[subprocess.Popen[bytes]], grace_s: float) -> None:
    """End them: SIGTERM, and SIGKILL for those that are left after ``grace_s`` seconds."""
    for child in children:
        # Not SIGINT, which a shell's background job and its children ignore.
        child.terminate()
    deadline = time.monotonic() + grace_s
    for child in children:
        try:
            child.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


class Children:
    """Those in progress. Any thread may start one, and any may end them all."""

    def __init__(self, grace_s: float = GRACE_S) -> None:
        self.stopped = False
        self._grace_s = grace_s
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def running(
        self, start: Callable[[], subprocess.Popen[bytes]]
    ) -> Iterator[subprocess.Popen[bytes]]:
        """A child that ``start`` starts; it has ended when the block is left.

        Raises:
            KeyboardInterrupt: :meth:`stop` was called before.
        """
        with self._lock:
            if self.stopped:
                raise KeyboardInterrupt
            child = start()
            self._running.add(child)
        try:
            yield child
        finally:
            if child.poll() is None:
                end([child], self._grace_s)
            with self._lock:
                self._running.discard(child)

    def stop(self) -> None:
        """End them, and start none any more."""
        with self._lock:
            self.stopped = True
            running = list(self._running)
        end(running, self._grace_s)
