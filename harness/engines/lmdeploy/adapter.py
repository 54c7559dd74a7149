"""LMDeploy: its ``api_server`` from PyPI with the PyTorch engine, on a GPU or behind
stand-ins."""

from collections.abc import Iterator, Mapping
from typing import ClassVar

from mmrepro.base.records import Fidelity, Setting, StandIn
from mmrepro.engines.base import (
    SERVED_MODEL,
    Engine,
    LaunchRequest,
    Patch,
    StackRole,
    two_threads,
)
from mmrepro.probes import LogPattern
from packaging.version import Version

_UNI_EXECUTOR_SINCE = Version("0.11")
"""The first release with ``--distributed-executor-backend``; before it one device meant
``uni``."""

_MIB = 2**20
_DEFAULT_FREE_BYTES = 1024 * _MIB


def device_memory(free_bytes: int, total_bytes: int = 0) -> Patch:
    """The stand-in that answers for the device's memory; on a GPU as on a CPU.

    Args:
        free_bytes: what is free once the weights are loaded.
        total_bytes: of the device; default: four times as much.
    """
    total = total_bytes or 4 * free_bytes
    return Patch(
        folder="device_memory",
        stand_in=StandIn(
            name="device memory",
            replaces=f"the answer of torch.cuda.mem_get_info: {free_bytes} B free of "
            f"{total} B ({free_bytes / _MIB:.2f} MiB free)",
            why="the KV budget follows from it; so it is the same on every machine",
        ),
        env={
            "MMREPRO_DEVICE_FREE_BYTES": str(free_bytes),
            "MMREPRO_DEVICE_TOTAL_BYTES": str(total),
        },
        fidelity=Fidelity.GPU_STAND_IN,
    )


CPU = Patch(
    folder="lmdeploy_cpu",
    stand_in=StandIn(
        name="CUDA device and kernels",
        replaces="torch's device cuda with the CPU, streams and events with empty "
        "ones, LMDeploy's CUDA operators with its own default ones in torch, its paged "
        "attention with one in torch on the same blocks; the check that a Triton "
        "kernel runs is left out, and 0.15's Triton is told of a CPU",
        why="LMDeploy's PyTorch engine has no CPU backend. Scheduler, block manager, "
        "cache arithmetic, engine loop and HTTP server are its own",
    ),
    fidelity=Fidelity.CPU_STAND_IN,
)


class LmdeployEngine(Engine):
    name: ClassVar[str] = "lmdeploy"
    module: ClassVar[str] = "lmdeploy"
    preload: ClassVar[tuple[str, ...]] = (
        "lmdeploy.cli.entrypoint",
        "lmdeploy.cli.serve",
        "lmdeploy.serve.openai.api_server",
        "lmdeploy.serve.vl_async_engine",
        "lmdeploy.pytorch.engine",
    )
    model_package: ClassVar[str] = "lmdeploy.pytorch.models"
    # Entry points of 0.18.0.
    stack_roles: ClassVar[tuple[StackRole, ...]] = (
        StackRole(
            role="api_server", file=r"lmdeploy/serve/|lmdeploy/cli/", functions=".*"
        ),
    )
    owned_options: ClassVar[tuple[str, ...]] = (
        "--server-name",
        "--server-port",
        "--model-name",
        "--backend",
    )
    start_marks: ClassVar[Mapping[str, str]] = {
        "imports": r"Loading weights from",
        "model load": r"Warming up decoding",
        "cache and warm-up": r"HINT:.{0,20}Please open",
    }
    """Below 0.18 it says nothing before the last one."""
    core_role: ClassVar[str] = "api_server"
    code: ClassVar[tuple[str, ...]] = ("lmdeploy", "zmq", "PIL", "yaml")
    """One process does it all: HTTP, scheduling, the model (0.6.4 to 0.18.0 with one
    device)."""
    metrics: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """0.6.4 has none; later ones have them with ``--enable-metrics``."""
    log_patterns: ClassVar[Mapping[str, str]] = {
        "core-fatal": r"Engine (?:main )?loop failed|Task <MainLoop\w*> failed"
    }
    log_mark: ClassVar[str] = r"HINT:\s+Please open .{0,20}http"
    progress_pattern: ClassVar[str] = LogPattern(
        # a refusal or an error is no work; TurboMind counts its steps
        (
            r'"POST /v1/(?:chat/)?completions HTTP/1\.1" 2\d\d'
            r"|^\[TM\]\[INFO\] .*\bstep ?= ?\d"
        ),
        'completions HTTP/1.1" 2',
        "step = ",
        "step=",
        "step =",
        "step= ",
    )
    """At its default log level LMDeploy says nothing of requests; uvicorn does."""

    def role_of(self, name: str, cmdline: str) -> str:
        return (
            "api_server"
            if " api_server " in cmdline
            else super().role_of(name, cmdline)
        )

    def own_patches(self, request: LaunchRequest) -> tuple[Patch, ...]:
        if request.environment.spec.device != "cpu":
            return ()
        if any(p.folder == "device_memory" for p in request.all_patches):
            return (CPU,)
        return (CPU, device_memory(_DEFAULT_FREE_BYTES))

    def command(self, request: LaunchRequest) -> list[str]:
        return [
            "serve",
            "api_server",
            str(request.model),
            "--backend",
            "pytorch",
            "--model-name",
            SERVED_MODEL,
            "--server-name",
            "127.0.0.1",
            "--server-port",
            str(request.port),
        ]

    def settings(self, request: LaunchRequest) -> Iterator[Setting]:
        yield Setting(
            name="HF_HUB_OFFLINE", value="1", why="the model is a local folder"
        )
        yield Setting(
            name="TRANSFORMERS_OFFLINE", value="1", why="the model is a local folder"
        )
        yield Setting(name="DO_NOT_TRACK", value="1", why="nothing is sent anywhere")
        yield Setting(
            name="--eager-mode", value="", why="no graph capture: a faster start"
        )
        if Version(request.environment.spec.release) >= _UNI_EXECUTOR_SINCE:
            yield Setting(
                name="--distributed-executor-backend",
                value="uni",
                why="one device: the engine's worker stays in the engine's process",
            )
        if request.environment.spec.device == "cpu":
            yield two_threads()


WITNESS = Patch(
    folder="lmdeploy_witness",
    stand_in=StandIn(
        name="witness",
        replaces="nothing: it wraps the functions that size the KV cache, admit a "
        "request and encode images, and writes what they return to the server's log",
        why="at its default log level LMDeploy says none of it",
    ),
)
WITNESS_PATTERNS = {
    f"witness-{event}": f"mmrepro-witness-{event} "
    for event in ("budget", "limit", "request", "vision")
}
"""What it writes: how the KV cache was sized, requests, the vision encoder's work."""
