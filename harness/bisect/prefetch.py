"""Makes the environment that is needed next while a run is in progress."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence

from mmrepro.machine.child_env import die_with_parent

NICENESS = 15
GRACE_S = 10.0


class Prefetch:
    """One child at a time, ended with :meth:`stop` and with the thread that began it."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None

    def begin(self, arguments: Sequence[str]) -> bool:
        """Start ``mmrepro env create ARGUMENTS``, unless one is still under way."""
        if self._child is not None and self._child.poll() is None:
            return False
        self._child = subprocess.Popen(
            [sys.executable, "-m", "mmrepro", "env", "create", *arguments],
            env={**os.environ, "NO_COLOR": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=_humble,
        )
        return True

    def stop(self) -> None:
        """End it; what it had begun is removed by the next build."""
        child = self._child
        if child is None or child.poll() is not None:
            return
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _humble() -> None:
    die_with_parent()
    os.nice(NICENESS)
