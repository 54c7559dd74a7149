"""Stand-in: an in-order asynchronous device stream under vLLM's CPU model runner.

On a GPU the host launches work and goes on; the work runs later, in order. vLLM's CPU backend does
everything at once, so that what the host does too early goes unseen. This stand-in queues the work
on device memory instead, and runs it as late as the engine's own waiting allows (``queue.py``). No
line of the engine changes; only the order in which device work runs relative to the host.
"""

from types import ModuleType
from typing import Any

from mmrepro_boot import after_import


def install(module: ModuleType) -> None:
    from mmrepro_stream import vllm_cpu

    vllm_cpu.install(module)


def wait_lazily(module: ModuleType) -> None:
    """The executor makes its thread before it imports the model runner."""
    from mmrepro_stream.queue import LazyExecutor

    module.ThreadPoolExecutor = LazyExecutor  # type: ignore[attr-defined]


def keep_scheduling(module: ModuleType) -> None:
    """0.14.0 turns asynchronous scheduling off on a CPU, where nothing is there to overlap with."""
    platform: Any = module.CpuPlatform
    original = platform.check_and_update_config

    def check(cls: object, vllm_config: Any) -> None:
        asked = vllm_config.scheduler_config.async_scheduling
        original(vllm_config)
        vllm_config.scheduler_config.async_scheduling = asked

    platform.check_and_update_config = classmethod(check)


after_import("vllm.platforms.cpu", keep_scheduling)
after_import("vllm.v1.executor.uniproc_executor", wait_lazily)
after_import("vllm.v1.worker.cpu_model_runner", install)
