"""What a run would inherit of a Ray worker, and is not to: it is to find what it finds anywhere.

A Ray worker has variables of Ray's own, an OMP_NUM_THREADS that Ray works out from ``num_cpus``, a
blocked SIGINT, and with Ray's subreaper on an ignored SIGCHLD: ``waitpid`` then knows no exit code,
and every child seems to have ended with 0. Children inherit all of that, over ``exec`` too.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Literal

import psutil
from mmrepro.machine.files import VISIBLE, hidden, nvidia_driver

RAYS_PREFIX = "RAY_"
RAYS_OWN = frozenset(
    {
        "SPT_NOENV",  # setproctitle, by which Ray names its processes
        "PYTHONUNBUFFERED",  # set for the raylet
        "PYTHONBREAKPOINT",
    }
)


def started_with(pid: int | None = None) -> dict[str, str] | None:
    """The variables with which a process was started: Ray sets its own ones later.

    None: they cannot be read.
    """
    try:
        return psutil.Process(pid).environ()
    except psutil.Error:
        return None


def variables(
    now: Mapping[str, str],
    started: Mapping[str, str] | None,
    device: Literal["cpu", "cuda"] | str,
    *,
    driver: bool | None = None,
) -> dict[str, str]:
    """Those that a shell on the machine would have, for runs on ``device``.

    Args:
        now: the worker's, where Ray has put the GPUs that it gives.
        started: those it was started with, by which the user's own OMP_NUM_THREADS is told from
            Ray's; None: not known, and there is none of the user's.
        driver: whether the machine has an NVIDIA driver; None: it is looked for.
    """
    base = {n: v for n, v in now.items() if n != "OMP_NUM_THREADS"} if started is None else started
    kept = {n: v for n, v in base.items() if not n.startswith(RAYS_PREFIX) and n not in RAYS_OWN}
    kept.pop(VISIBLE, None)
    if device == "cuda":
        if (given := now.get(VISIBLE)) is not None:
            kept[VISIBLE] = normalised(given)
    elif nvidia_driver() if driver is None else driver:
        kept[VISIBLE] = ""
    return kept


def normalised(mask: str) -> str:
    """CUDA_VISIBLE_DEVICES in one order, however Ray lists the GPUs that it gives."""
    if hidden(mask):
        return ""
    entries = {entry.strip() for entry in mask.split(",")} - {""}
    return ",".join(sorted(entries, key=lambda e: (not e.isdigit(), int(e) if e.isdigit() else e)))


def plain_signals() -> None:
    """Signals as a shell leaves them, for children that this thread starts. In the main thread."""
    # Said even where Python believes that it is so: Ray ignores SIGCHLD behind its back.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    plain_mask()


def plain_mask() -> None:
    """No signal is blocked, in this thread and in what it starts."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
