"""Stands between ``mmrepro bisect-run`` and the process that runs a scenario's file.

A program of its own, ``python -I -S between.py FD COMMAND…``, which imports nothing of
mmrepro. The file's code may end its parent, or its parent's process group: that is this
program, and never ``bisect-run``, whose exit code ``git bisect`` reads. What is left of
the file's own process group is ended here, once the command has ended."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


def _die_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def main() -> None:
    answers, command = int(sys.argv[1]), sys.argv[2:]
    child = subprocess.Popen(
        command,
        pass_fds=(answers,),
        start_new_session=True,
        preexec_fn=_die_with_parent,
    )
    signal.signal(signal.SIGTERM, lambda *_: child.send_signal(signal.SIGTERM))
    os.close(answers)
    # It is not reaped yet: its number is still its own when its group is ended.
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    with contextlib.suppress(OSError):
        os.killpg(child.pid, signal.SIGKILL)

    child.wait()


if __name__ == "__main__":
    main()
