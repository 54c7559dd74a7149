"""Stand-in: an in-order asynchronous device stream under vLLM's CPU model runner.

On a GPU the host launches work and goes on; the work runs later, in order. vLLM's CPU
backend does everything at once, so that what the host does too early goes unseen. This
stand-in queues the work on device memory instead, and runs it as late as the engine's
own waiting allows (``queue.py``). No line of the engine changes; only the order in
which device work runs relative to the host."""

from types import ModuleType
from typing import Any

from mmrepro_boot import after_import


def install(module: ModuleType) -> None:
    from mmrepro_stream import vllm_cpu

    vllm_cpu.install(module)


def _wait_lazily(module: ModuleType) -> None:
    """The executor makes its thread before it imports the model runner."""
    from mmrepro_stream.queue import LazyExecutor

    module.ThreadPoolExecutor = LazyExecutor  # type: ignore[attr-defined]


def _keep_scheduling(module: ModuleType) -> None:
    """From 0.14.0 on a CPU has no asynchronous scheduling, for nothing is there to
    overlap with.

    By 0.22.0 its worker is a process of its own as well: a thread of it fetches what a
    step gives as soon as it can, where the engine's own process fetches it when it is
    needed."""
    platform: Any = module.CpuPlatform
    original = platform.check_and_update_config

    def check(cls: object, vllm_config: Any) -> None:
        scheduler, parallel = vllm_config.scheduler_config, vllm_config.parallel_config
        asked, executor = (
            scheduler.async_scheduling,
            parallel.distributed_executor_backend,
        )
        original(vllm_config)
        scheduler.async_scheduling = asked
        if executor == "uni":
            parallel.distributed_executor_backend = executor

    platform.check_and_update_config = classmethod(check)


after_import("vllm.platforms.cpu", _keep_scheduling)
after_import("vllm.v1.executor.uniproc_executor", _wait_lazily)
after_import("vllm.v1.worker.cpu_model_runner", install)
