"""A GPU for the time of a run, and for no other run of mmrepro meanwhile.

An engine is seen on its GPU only once it has come up: until then the lease is what tells.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from filelock import FileLock, Timeout
from mmrepro.machine.cache import cache_root
from mmrepro.machine.gpu import Choice, short_uuid, take


@contextlib.contextmanager
def leased() -> Iterator[Choice]:
    """The device for a run that starts now. What MMREPRO_GPU asks for is taken, whoever has it.

    Raises:
        GpuUnavailable: none is there, or others use all of them.
    """
    others: set[str] = set()
    while True:
        choice = take(others)
        with contextlib.ExitStack() as held:
            refused = {d.uuid for d in choice.devices if not _held(d.uuid, held)}
            if refused <= others:
                yield choice
                return
        others |= refused


def _held(uuid: str, held: contextlib.ExitStack) -> bool:
    """Whether the device is this run's now, until ``held`` is closed; the kernel takes it back if
    this process dies."""
    path = cache_root() / "gpus" / f"{short_uuid(uuid)}.lock"
    lock = FileLock(path, thread_local=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        return False
    except OSError:
        return True  # a cache that cannot be written keeps no run from its GPU
    held.callback(lock.release)
    return True
