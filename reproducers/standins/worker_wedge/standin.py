"""Stand-in: one worker of several stops for good in the step of a marked request.

``MMREPRO_WEDGE``: ``python`` (sleeps in Python), ``c`` (sleeps in C with the GIL),
``stopped`` (SIGSTOP), ``killed`` (SIGKILL) or ``raises``. ``MMREPRO_WEDGE_RANK``: the
worker's rank, or
``dp1``: the workers of the replica with that index (data parallel). The request is
marked by its ``seed``. No line of the engine is changed: ``Worker.execute_model`` is
wrapped."""

import ctypes
import os
import signal
import time
from types import ModuleType
from typing import Any

from mmrepro_boot import after_import, say

NAME = "worker_wedge"
_SEED = 4_191_337
_KIND = os.environ.get("MMREPRO_WEDGE", "")
_RANK = os.environ.get("MMREPRO_WEDGE_RANK", "1")


def _wedged_in_python() -> None:
    while True:
        time.sleep(3600)


def _wedged_in_c() -> None:
    while True:
        ctypes.PyDLL(None).pause()


def wedge(rank: int) -> None:
    say(NAME, f"rank {rank} goes: {_KIND}")
    if _KIND == "python":
        _wedged_in_python()
    elif _KIND == "c":
        _wedged_in_c()
    elif _KIND == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif _KIND == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif _KIND == "raises":
        raise RuntimeError("the stand-in worker_wedge raises")


def names(worker: Any) -> tuple[str, str]:
    replica = getattr(worker.vllm_config.parallel_config, "data_parallel_index", 0)
    return str(worker.rank), f"dp{replica}"


def _is_marked(scheduled: Any) -> bool:
    new = getattr(scheduled, "scheduled_new_reqs", None) or []
    return any(getattr(one.sampling_params, "seed", None) == _SEED for one in new)


def patch(module: ModuleType) -> None:
    cls: Any = module.Worker
    real = cls.execute_model

    def execute_model(
        self: Any, scheduler_output: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if _RANK in names(self) and _is_marked(scheduler_output):
            wedge(self.rank)
        return real(self, scheduler_output, *args, **kwargs)

    cls.execute_model = execute_model


after_import("vllm.v1.worker.gpu_worker", patch)
