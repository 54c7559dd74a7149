"""SGLang: its own server from PyPI, on a GPU, or on a CPU behind a stand-in for its
kernels."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from math import prod
from typing import TYPE_CHECKING, ClassVar

from mmrepro.base.errors import UsageError
from mmrepro.base.records import Fidelity, Setting, StandIn
from mmrepro.engines.base import (
    SERVED_MODEL,
    UVICORN_STARTS,
    Engine,
    LaunchRequest,
    Patch,
    StackRole,
    has_option,
    loopback,
    ranks_of,
    two_threads,
)
from packaging.version import Version

if TYPE_CHECKING:
    from mmrepro.engines.environments.spec import EnvironmentSpec

_SERVER_MODULE = "sglang.launch_server"
_OLDEST = Version("0.5.3")

_VLLM_NAMES_UNTIL = Version("0.5.10")
"""From here on SGLang imports nothing from vLLM on a CPU (layers/layernorm.py,
activation.py)."""

KERNELS = Patch(
    folder="sgl_kernel_stub",
    stand_in=StandIn(
        name="sgl_kernel_stub",
        replaces="the package sgl_kernel (CUDA kernels), by names that can be imported "
        "and that raise when they are called: SGLang takes the plain torch form of "
        "each layer",
        why="its wheels hold code for GPUs only",
    ),
    fidelity=Fidelity.CPU_STAND_IN,
)
VLLM_NAMES = Patch(
    folder="vllm_names",
    stand_in=StandIn(
        name="vllm_names",
        replaces="four layers that SGLang imports from vLLM where there is neither "
        "CUDA nor AMX, by SGLang's own classes of the same names; vLLM's "
        "rotary_embedding raises when called",
        why="vLLM is not installed, and SGLang's own layers are what is looked at",
    ),
    fidelity=Fidelity.CPU_STAND_IN,
)
_PLAIN_MEMORY = Patch(
    folder="plain_memory",
    stand_in=StandIn(
        name="plain_memory",
        replaces="page-locked memory by plain memory, in torch's own functions",
        why="adapters' weights and their batches are kept in page-locked memory on "
        "every device (srt/lora/layers.py of 0.5.23), and that takes a CUDA driver",
    ),
    fidelity=Fidelity.CPU_STAND_IN,
)

_FEATURE_TRANSPORT_SINCE = Version("0.5.17")
"""From here on a GPU's server sets 1 GiB aside for pictures unless it is told otherwise
(server_args.py:7609 of 0.5.17; 0.5.16 has the option, and does not)."""

CPU_OPTIONS = (
    ("--device", "cpu", "there is no GPU"),
    ("--attention-backend", "torch_native", "attention in plain torch"),
    ("--mm-attention-backend", "sdpa", "attention of the vision tower in plain torch"),
    ("--disable-overlap-schedule", "", "there is no device to overlap with"),
)
OPTIONS = (
    (
        "--disable-fast-image-processor",
        "",
        "one set of pixel values on every machine: the fast one runs on the GPU and "
        "rounds in another way (multimodal/processors/base_processor.py:264 of 0.5.6 "
        "asks for cuda)",
    ),
    (
        "--sampling-backend",
        "pytorch",
        "sampling in plain torch: FlashInfer's kernels are compiled at their first use",
    ),
    ("--disable-cuda-graph", "", "no graph capture: a faster start"),
    ("--skip-server-warmup", "", "the gate's requests warm up; a faster start"),
    ("--grammar-backend", "none", "xgrammar refuses the tiny model's tokenizer"),
    ("--enable-metrics", "", "the counters are evidence"),
    (
        "--enable-cache-report",
        "",
        "each answer says how many prompt tokens came from the cache",
    ),
    (
        "--max-total-tokens",
        "16384",
        "room for tokens in the KV cache, enough for a tiny model",
    ),
    ("--max-running-requests", "8", "a tiny model"),
    ("--mem-fraction-static", "0.2", "a tiny model"),
)


class SglangEngine(Engine):
    name: ClassVar[str] = "sglang"
    module: ClassVar[str] = _SERVER_MODULE
    preload: ClassVar[tuple[str, ...]] = (
        "sglang.srt.entrypoints.http_server",
        "sglang.srt.managers.scheduler",
        "sglang.srt.managers.detokenizer_manager",
        "sglang.srt.model_executor.model_runner",
    )
    model_package: ClassVar[str] = "sglang.srt.models"
    # _launch_scheduler_processes in srt/entrypoints/engine.py.
    starts_in_order: ClassVar[Mapping[str, str]] = {"scheduler": "<0.5.24"}
    # Entry points of 0.5.6 to 0.5.23.
    stack_roles: ClassVar[tuple[StackRole, ...]] = (
        StackRole(
            role="scheduler",
            file=r"sglang/srt/managers/scheduler\.py$",
            functions="run_scheduler.*|event_.*",
        ),
        StackRole(
            role="detokenizer",
            file=r"sglang/srt/managers/detokenizer_manager\.py$",
            functions="run_.*|event_loop",
        ),
        StackRole(
            role="tokenizer_manager",
            file=r"sglang/srt/entrypoints/|sglang/launch_server\.py$",
            functions=".*",
        ),
    )
    dumps_requests: ClassVar[bool] = True
    owned_options: ClassVar[tuple[str, ...]] = (
        "--host",
        "--port",
        "--model-path",
        "--model",
        "--served-model-name",
        "--context-length",
        "--device",
    )
    # /health answers before the tokenizer manager reads answers, and then /flush_cache
    # never returns (0.5.6); this one generates a token, so that all three processes
    # have worked.
    ready_path: ClassVar[str] = "/health_generate"
    endpoints: ClassVar[tuple[str, ...]] = ("/health", "/health_generate", "/v1/models")
    start_marks: ClassVar[Mapping[str, str]] = {
        "imports": r"server_args=",
        "spawn scheduler": r"Init (?:torch distributed|parallel) begin",
        "model load": r"Load weight end",
        "cache and warm-up": r"max_total_num_tokens=",
    }
    # uvicorn's own line comes before the warm-up request, which can still fail.
    ready_mark: ClassVar[str] = r"The server is fired up and ready to roll"
    core_role: ClassVar[str] = "scheduler"
    metrics: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "running": ("sglang:num_running_reqs",),
        "waiting": ("sglang:num_queue_reqs",),
        "finished": ("sglang:num_requests_total",),
        "prompt_tokens": ("sglang:prompt_tokens_total",),
        "generation_tokens": ("sglang:generation_tokens_total",),
        # The two above move when a request ends, token_usage by whole percents: beside
        # a long decode they stand still for minutes. This one moves with each step
        # (0.5.17, 0.5.23), and the next with each --decode-log-interval (0.5.6).
        "computed_tokens": ("sglang:realtime_tokens_total",),
        "kv_tokens": ("sglang:num_used_tokens",),
        "kv_usage": ("sglang:token_usage",),
        "cached_tokens": ("sglang:cached_tokens_total",),
        "prefix_queries": ("sglang:prompt_tokens_total",),
        "prefix_hits": ("sglang:cached_tokens_total",),
        "preemptions": ("sglang:num_retracted_requests_total",),
        "accept_length": ("sglang:spec_accept_length",),
        # Of a pair: KV caches on their way to or from the other server
        # (srt/observability/ metrics_collector.py of 0.5.23).
        "transfers": (
            "sglang:num_prefill_inflight_queue_reqs",
            "sglang:num_decode_transfer_queue_reqs",
        ),
    }
    log_patterns: ClassVar[Mapping[str, str]] = {
        "sgl_kernel_stub-loaded": r"mmrepro stand-in sgl_kernel_stub: loaded",
        "sgl_kernel_stub-called": r"mmrepro stand-in sgl_kernel_stub: called",
        "plain_memory-loaded": r"mmrepro stand-in plain_memory: loaded",
        "vllm_names-loaded": r"mmrepro stand-in vllm_names: loaded",
        "vllm_names-called": r"mmrepro stand-in vllm_names: called",
        "prefill": r"Prefill batch",
        "core-fatal": r"Scheduler hit an exception: ",
        # srt/entrypoints/engine.py and managers/data_parallel_controller.py, 0.5.23.
        "engine-died": r"Scheduler or DataParallelController \d+ terminated with ",
        "cache-flushed": r"Cache flushed successfully",
    }
    log_mark: ClassVar[str] = r"server_args=(?:ServerArgs\(|\{'model_path')"
    ends_itself: ClassVar[str] = r"^(?:kill_process_tree called: |SIGQUIT received\.)"
    start_lines: ClassVar[tuple[str, ...]] = (
        r"(?:^|\] )server_args=(?:ServerArgs\(|\{'model_path')",
        UVICORN_STARTS,
    )
    idle_loops: ClassVar[tuple[str, ...]] = ("event_loop_normal", "event_loop_overlap")
    step_functions: ClassVar[tuple[str, ...]] = ("run_batch", "process_batch_result")
    version_paths: ClassVar[tuple[str, ...]] = ("/get_server_info", "/server_info")
    progress_pattern: ClassVar[str] = "Prefill batch|Decode batch"

    def role_of(self, name: str, cmdline: str) -> str:
        """The HTTP server and the tokenizer manager share the first process, which does
        not rename itself; ``sglang::scheduler`` and ``sglang::detokenizer`` do."""
        return (
            "tokenizer_manager"
            if _SERVER_MODULE in cmdline
            else super().role_of(name, cmdline)
        )

    def environment_spec(self, release: str, device: str) -> EnvironmentSpec:
        spec = super().environment_spec(release, device)
        if Version(spec.release) < _OLDEST:
            raise UsageError(
                f"SGLang {spec.release} is older than the oldest release that mmrepro "
                f"can start, {_OLDEST}.",
                hint="mmrepro run … --release 0.5.6",
            )
        return spec

    def own_patches(self, request: LaunchRequest) -> tuple[Patch, ...]:
        if request.environment.spec.device != "cpu":
            return ()
        old = Version(request.environment.spec.release) < _VLLM_NAMES_UNTIL
        pinned = has_option(request.all_server_args, "--enable-lora")
        return (KERNELS, *[VLLM_NAMES] * old, *[_PLAIN_MEMORY] * pinned)

    def command(self, request: LaunchRequest) -> list[str]:
        return [
            "--model-path",
            str(request.model),
            "--served-model-name",
            SERVED_MODEL,
            "--host",
            "127.0.0.1",
            "--port",
            str(request.port),
            "--context-length",
            str(request.max_model_len),
        ]

    def settings(self, request: LaunchRequest) -> Iterator[Setting]:
        cpu = request.environment.spec.device == "cpu"
        if sizes := ranks_of(request.all_server_args):
            yield from loopback()
            if cpu:
                cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
                yield Setting(
                    name="SGLANG_CPU_OMP_THREADS_BIND",
                    value="|".join([cores] * prod(sizes.values())),
                    why="each rank may use every core: by itself SGLang wants a NUMA "
                    "node for each (srt/utils/numa_utils.py:463 of 0.5.23)",
                )
                yield Setting(
                    name="SGLANG_NCCL_SO_PATH",
                    value="none",
                    why="no NCCL, as where none is installed: ranks on a CPU use gloo",
                )
        yield Setting(
            name="HF_HUB_OFFLINE", value="1", why="the model is a local folder"
        )
        yield Setting(
            name="TORCHDYNAMO_DISABLE",
            value="1",
            why="no compilation in the first request: 28 s less on a CPU",
        )
        if cpu:
            yield Setting(
                name="SGLANG_USE_CPU_ENGINE",
                value="1",
                why="SGLang's switch for its CPU code",
            )
            yield two_threads()
        else:
            yield from self._gpu_settings(request)
        for name, value, why in (*(CPU_OPTIONS if cpu else ()), *OPTIONS):
            yield Setting(name=name, value=value, why=why)

    def _gpu_settings(self, request: LaunchRequest) -> Iterator[Setting]:
        yield Setting(
            name="TVM_FFI_CACHE_DIR",
            value=str(request.environment.state_dir / "tvm-ffi"),
            why="kernels that SGLang compiles at their first use, with nvcc, are kept "
            "for the next start",
        )
        if Version(request.environment.spec.release) >= _FEATURE_TRANSPORT_SINCE:
            yield Setting(
                name="--mm-feature-transport",
                value="cpu",
                why="pictures are prepared on the CPU, where their hash is made as "
                "well; no 1 GiB of the GPU's memory is set aside for them",
            )
