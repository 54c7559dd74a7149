"""Ends of servers as logs have them, each with its right answer.

Words and forms are those of the engines' sources (vLLM 0.6 to 0.33, SGLang 0.4 to
0.5.23, LMDeploy 0.6 to 0.18), of torch, NCCL, CUDA, Ray, CPython, glibc and the kernel;
what they tell is made up. ``python tests/unit/diagnose/cause_shapes.py`` prints how
many are answered rightly."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass

from mmrepro.engines import log_marks
from mmrepro.failure.documents.cause import CauseClass as C, ServerInLog
from mmrepro.live.diagnose import cause_rules
from mmrepro.live.diagnose.cause import servers
from mmrepro.probes.logs import Scanner

# Classes of which none names what another one would be wrong about.
VAGUE = frozenset({C.UNKNOWN, C.ALIVE, C.NOT_A_LOG})


@dataclass(frozen=True)
class Shape:
    """``exception``, ``process``: what its answer holds."""

    name: str
    right: C
    text: str
    exception: str = ""
    process: str = ""
    engine: str = "vllm"
    start: bool = False


def read(text: str) -> list[ServerInLog]:
    scanner = Scanner(
        cause_rules.PATTERNS, None, marks=log_marks(), around=cause_rules.places()
    )
    return servers(scanner.scan(io.BytesIO(text.encode())))


# ---------------------------------------------------------------- vLLM, V1

FRONT, CORE = "(APIServer pid=71)", "(EngineCore pid=142)"
DAY = "03-09"


def worked(at: str = "08:40:10", running: int = 3) -> str:
    return (
        f"{FRONT} INFO {DAY} {at} [loggers.py:259] Engine 000: Avg prompt throughput: "
        f"310.4 tokens/s, Avg generation throughput: 88.1 tokens/s, Running: {running} "
        "reqs, Waiting: 0 reqs, GPU KV cache usage: 12.1%, Prefix cache hit rate: "
        "4.0%\n"
    )


BEGUN = (
    f"{FRONT} INFO {DAY} 08:31:02 [api_server.py:1977] vLLM API server version 0.24.0\n"
    f"{CORE} INFO {DAY} 08:31:20 [core.py:93] Initializing a V1 LLM engine (v0.24.0) "
    f"with config: "
    "model='/models/m', tensor_parallel_size=2\n"
)
READY = f"{FRONT} INFO:     Application startup complete.\n"


RUST = "\x1b[0;36m(RustFrontend pid=9940)\x1b[0m"
RUST_READY = (
    f"{RUST} \x1b[32mINFO\x1b[0m \x1b[90m{DAY} 08:31:30\x1b[0m "
    "\x1b[90m[server/src/lib.rs:156]\x1b[0m starting OpenAI server "
    "\x1b[3mbind_address\x1b[0m\x1b[2m=\x1b[0m127.0.0.1:8000 "
    "\x1b[3mmodel\x1b[0m\x1b[2m=\x1b[0mtiny\n"
)


def rust_stats(at: str, generation: str, running: int) -> str:
    return (
        f"{RUST} \x1b[32mINFO\x1b[0m \x1b[90m{DAY} {at}\x1b[0m "
        f"\x1b[90m[log_stats.rs:153]\x1b[0m Avg prompt tput: 0.0 toks/s, Avg "
        f"generation tput: {generation} toks/s, Reqs Running: {running}, Waiting: 0, "
        "GPU KV cache used: 0.5%, Prefix cache hit rate: 0.0%\n"
    )


def logged(
    who: str, source: str, *lines: str, at: str = "08:41:33", level: str = "ERROR"
) -> str:
    return "".join(f"{who} {level} {DAY} {at} [{source}] {line}\n" for line in lines)


def trace(exception: str, *frames: tuple[str, str, str]) -> list[str]:
    lines = ["Traceback (most recent call last):"]
    for file, name, source in frames:
        lines += [
            f'  File "/opt/venv/lib/{file}", line 318, in {name}',
            f"    {source}",
        ]
    return [*lines, *exception.split("\n")]


BUSY = ("vllm/v1/engine/core.py", "run_busy_loop", "self._process_engine_step()")
STEP = (
    "vllm/v1/worker/gpu_model_runner.py",
    "execute_model",
    "out = self.model(**kwargs)",
)
ECHO = logged(
    FRONT,
    "async_llm.py:704",
    "AsyncLLM output_handler failed.",
    "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See "
    "stack trace (above) for the root cause.",
    at="08:41:34",
)


def fatal(exception: str, *frames: tuple[str, str, str]) -> str:
    lines = ("EngineCore encountered a fatal error.", *trace(exception, BUSY, *frames))
    return BEGUN + READY + worked() + logged(CORE, "core.py:1233", *lines) + ECHO


def in_worker(exception: str, who: str = "(Worker_TP1 pid=233)") -> str:
    first = exception.partition(": ")[2].partition("\n")[0]
    lines = ("WorkerProc hit an exception.", *trace(exception, STEP))
    again = (
        "EngineCore encountered a fatal error.",
        *trace(
            f"RuntimeError: Worker failed with error '{first}', please check the stack "
            "trace above for the root cause",
            BUSY,
        ),
    )
    return (
        BEGUN
        + READY
        + worked()
        + logged(who, "multiproc_executor.py:1000", *lines)
        + logged(CORE, "core.py:1233", *again)
        + ECHO
    )


def failed_start(exception: str, *frames: tuple[str, str, str], who: str = CORE) -> str:
    lines = ("EngineCore failed to start.", *trace(exception, *frames))
    ends = trace(
        "RuntimeError: Engine core initialization failed. See root cause above. Failed "
        "core proc(s): {'EngineCore_DP0': 1}"
    )
    front = "".join(f"{FRONT} {line}\n" for line in ends)
    return BEGUN + logged(who, "core.py:1231", *lines) + front


LOAD = ("vllm/v1/worker/gpu_worker.py", "load_model", "self.model_runner.load_model()")
HINT = (
    "\nCUDA kernel errors might be asynchronously reported at some other API call, so "
    "the "
    "stacktrace below might be incorrect.\nFor debugging consider passing "
    "CUDA_LAUNCH_BLOCKING=1\n"
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
)
DUMP = logged(
    CORE,
    "dump_input.py:79",
    "Dumping scheduler output for model execution: "
    "SchedulerOutput(scheduled_new_reqs=[NewRequestData(req_id=chatcmpl-1,"
    "prompt_token_ids_len=9,mm_features=[],sampling_params=SamplingParams(n=1, "
    "temperature=0.0, stop_token_ids=[884213], min_tokens=2, max_tokens=64, "
    "logprobs=None),block_ids=([4],),num_computed_tokens=0)])",
)


def beats(count: int, first: int = 42) -> str:
    return "".join(
        logged(
            CORE,
            "shm_broadcast.py:466",
            "No available shared memory broadcast block found in 60 seconds. This "
            "typically happens when some processes are hanging or doing some "
            "time-consuming work (e.g. compilation, weight/kv cache quantization).",
            at=f"08:{first + n}:10",
            level="INFO",
        )
        for n in range(count)
    )


def stalled(count: int, running: int = 3, waiting: int = 0, usage: str = "12.1") -> str:
    return "".join(
        f"{FRONT} INFO {DAY} 08:41:{10 + 10 * n} [loggers.py:259] Engine 000: Avg "
        "prompt throughput: 0.0 tokens/s, Avg generation throughput: 0.0 tokens/s, "
        f"Running: {running} reqs, Waiting: {waiting} reqs, GPU KV cache usage: "
        f"{usage}%, Prefix cache hit rate: 4.0%\n"
        for n in range(count)
    )


# ---------------------------------------------------------------- vLLM, V0


def v0(
    *lines: str,
    level: str = "ERROR",
    at: str = "22:10:31",
    source: str = "engine.py:135",
) -> str:
    return "".join(f"{level} 12-04 {at} {source}] {line}\n" for line in lines)


V0_WORKED = v0(
    "Avg prompt throughput: 51.0 tokens/s, Avg generation throughput: 40.2 tokens/s, "
    "Running: 2 reqs, Swapped: 0 reqs, Pending: 0 reqs, GPU KV cache usage: 3.1%, CPU "
    "KV cache usage: 0.0%.",
    level="INFO",
    at="22:10:11",
    source="metrics.py:467",
)
V0_STEP = (
    "vllm/engine/multiprocessing/engine.py",
    "run_engine_loop",
    "self.engine_step()",
)
MQ_DEAD = v0(
    "MQLLMEngine is already dead, terminating server process",
    level="CRITICAL",
    at="22:10:35",
    source="launcher.py:99",
)

# ---------------------------------------------------------------- SGLang


def sgl(text: str, rank: str = "", at: str = "2026-04-18 13:05:21") -> str:
    return f"[{at}{' ' + rank if rank else ''}] {text}\n"


SGL_BEGUN = sgl(
    "server_args=ServerArgs(model_path='/m', watchdog_timeout=300, tp_size=4)",
    at="2026-04-18 12:50:00",
)
SGL_READY = sgl("The server is fired up and ready to roll!", at="2026-04-18 12:52:00")
SGL_WORKED = sgl(
    "Decode batch, #running-req: 12, #token: 40211, token usage: 0.31, cuda graph: "
    "True, gen throughput (token/s): 611.20, #queue-req: 0",
    "TP0",
    "2026-04-18 13:05:02",
)
QUIT = sgl(
    "SIGQUIT received. signum=None, frame=None. It usually means one child failed.",
    at="2026-04-18 13:05:26",
)
LOOP = (
    "sglang/srt/managers/scheduler.py",
    "event_loop_overlap",
    "self.run_batch(batch)",
)


def scheduler(
    exception: str,
    rank: str = "TP2",
    *frames: tuple[str, str, str],
    begun: str = "worked",
) -> str:
    lines = trace(exception, *(frames or (LOOP,)))
    head = {"worked": SGL_BEGUN + SGL_READY + SGL_WORKED, "start": SGL_BEGUN, "": ""}[
        begun
    ]
    return (
        head
        + sgl(f"Scheduler hit an exception: {lines[0]}", rank)
        + "\n".join([*lines[1:], "", ""])
        + QUIT
    )


SGL_LOAD = (
    "sglang/srt/model_executor/model_runner.py",
    "load_model",
    "self.loader.load()",
)

# ---------------------------------------------------------------- LMDeploy


def lmd(text: str, level: str = "ERROR", at: str = "2026-02-02 05:06:08,100") -> str:
    return f"{at} - lmdeploy - {level} - request.py:21 - {text}\n"


LMD_WORKED = (
    lmd("Using PyTorch engine", "INFO", "2026-02-02 05:00:00,001")
    + 'INFO:     10.1.1.9:51180 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
)
TM_WORKED = lmd("Using TurboMind engine", "INFO", "2026-02-02 05:00:00,001") + (
    "[TM][INFO] [Forward] [0, 4), dc=4, pf=0, sum_q=4, sum_k=410, step = 31\n"
)

KERNEL = "Apr 18 13:05:20 node7 kernel: "

SHAPES: tuple[Shape, ...] = (
    # ------------------------------------------------------------ faults of a GPU
    Shape(
        "misaligned address in a worker",
        C.GPU_FAULT,
        in_worker("torch.AcceleratorError: CUDA error: misaligned address" + HINT),
        "misaligned address",
        "Worker_TP1",
    ),
    Shape(
        "illegal instruction in the core",
        C.GPU_FAULT,
        fatal(
            "RuntimeError: CUDA error: an illegal instruction was encountered" + HINT,
            STEP,
        ),
        "illegal instruction",
        "EngineCore",
    ),
    Shape(
        "unspecified launch failure, SGLang",
        C.GPU_FAULT,
        scheduler("RuntimeError: CUDA error: unspecified launch failure" + HINT),
        "launch failure",
        "TP2",
        "sglang",
    ),
    Shape(
        "device-side assert",
        C.GPU_FAULT,
        BEGUN
        + READY
        + worked()
        + "/pytorch/aten/src/ATen/native/cuda/IndexKernel.cu:111: operator(): block: "
        "[7,0,0], thread: [31,0,0] Assertion `-sizes[i] <= index && index < sizes[i]` "
        "failed.\n"
        + fatal(
            "torch.AcceleratorError: CUDA error: device-side assert triggered" + HINT,
            STEP,
        ).partition(READY)[2],
        "Assertion",
    ),
    Shape(
        "uncorrectable ECC error",
        C.GPU_FAULT,
        in_worker(
            "RuntimeError: CUDA error: uncorrectable ECC error encountered" + HINT,
            "(VllmWorker rank=5 pid=880)",
        ),
        "ECC",
        "rank=5",
    ),
    Shape(
        "cuBLAS execution failed",
        C.GPU_FAULT,
        fatal(
            "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling "
            "`cublasGemmEx( handle, opa, opb)`",
            STEP,
        ),
        "CUBLAS_STATUS_EXECUTION_FAILED",
    ),
    Shape(
        "Triton's illegal access",
        C.GPU_FAULT,
        scheduler(
            (
                "RuntimeError: Triton Error [CUDA]: an illegal memory access was "
                "encountered"
            ),
            "DP1 TP3",
        ),
        "Triton Error",
        "DP1 TP3",
        "sglang",
    ),
    Shape(
        "TurboMind, misaligned",
        C.GPU_FAULT,
        TM_WORKED + "[TM][ERROR] CUDA runtime error: misaligned address "
        "/build/src/turbomind/core/allocator.cc:88\n",
        "misaligned",
        engine="lmdeploy",
    ),
    Shape(
        "HIP, illegal access",
        C.GPU_FAULT,
        fatal(
            "RuntimeError: HIP error: an illegal memory access was encountered", STEP
        ),
        "HIP",
    ),
    Shape(
        "ROCm's fault by address",
        C.GPU_FAULT,
        BEGUN
        + READY
        + worked()
        + "Memory access fault by GPU node-2 (Agent handle: 0x55) on "
        "address 0x7f0000000000. Reason: Unknown.\n",
        "Memory access fault",
    ),
    Shape(
        "Xid 31 then the exception",
        C.GPU_FAULT,
        KERNEL
        + "NVRM: Xid (PCI:0000:1a:00): 31, pid=142, name=VLLM::EngineCor, Ch 00000008\n"
        + fatal(
            "RuntimeError: CUDA error: an illegal memory access was encountered", STEP
        ),
        "Xid 31",
    ),
    Shape(
        "Xid 48 alone",
        C.GPU_FAULT,
        KERNEL
        + "NVRM: Xid (PCI:0000:89:00): 48, pid=9, An uncorrectable double bit error\n",
        "Xid 48",
        "0000:89:00",
        "",
    ),
    Shape(
        "Xid 119",
        C.GPU_FAULT,
        "[ 8123.220011] NVRM: Xid (PCI:0000:0f:00): 119, Timeout after 6s of waiting "
        "for RPC response from GPU7 GSP\n",
        "Xid 119",
        engine="",
    ),
    Shape(
        "NCCL's watchdog tells of a fault",
        C.GPU_FAULT,
        SGL_WORKED
        + "[rank2]:[E418 13:05:21.400117223 ProcessGroupNCCL.cpp:1896] [PG ID 2 PG "
        "GUID 3 Rank 2] Process group watchdog thread terminated with exception: CUDA "
        "error: an illegal memory access was encountered\n"
        "terminate called after throwing an instance of 'c10::DistBackendError'\n"
        "Fatal Python error: Aborted\n",
        "illegal memory",
        "2",
        "sglang",
    ),
    # ------------------------------------------------------------ memory of a GPU
    Shape(
        "out of memory in a step",
        C.OUT_OF_GPU_MEMORY,
        in_worker(
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.31 GiB. "
            "GPU 1 has a total capacity of 79.11 GiB of which 1.02 GiB is free."
        ),
        "Tried to allocate 2.31 GiB",
        "Worker_TP1",
    ),
    Shape(
        "out of memory, V0",
        C.OUT_OF_GPU_MEMORY,
        V0_WORKED
        + v0(
            "OutOfMemoryError('CUDA out of memory. Tried to allocate 512.00 MiB.')",
            *trace(
                (
                    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to "
                    "allocate 512.00 MiB."
                ),
                V0_STEP,
            ),
        )
        + MQ_DEAD,
        "512.00 MiB",
    ),
    Shape(
        "out of memory, SGLang",
        C.OUT_OF_GPU_MEMORY,
        scheduler(
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 6.00 GiB.",
            "TP0",
        ),
        "6.00 GiB",
        "TP0",
        "sglang",
    ),
    Shape(
        "out of memory, TurboMind",
        C.OUT_OF_GPU_MEMORY,
        TM_WORKED
        + "terminate called after throwing an instance of 'std::runtime_error'\n"
        "  what():  [TM][ERROR] CUDA runtime error: out of memory "
        "/build/src/turbomind/utils/memory_utils.cu:32\nAborted (core dumped)\n",
        "out of memory",
        engine="lmdeploy",
    ),
    Shape(
        "cuBLAS has no memory",
        C.OUT_OF_GPU_MEMORY,
        fatal(
            "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling "
            "`cublasCreate(handle)`",
            STEP,
        ),
        "ALLOC_FAILED",
    ),
    # ------------------------------------------------------------ memory of the machine
    Shape(
        "the kernel's OOM killer, cgroup",
        C.OUT_OF_HOST_MEMORY,
        SGL_WORKED + KERNEL + "Memory cgroup out of memory: Killed process 5120 "
        "(sglang::schedul) total-vm:1kB, anon-rss:2kB\n"
        + sgl("Scheduler or DataParallelController 5120 terminated with -9"),
        "Killed process 5120",
        "sglang::schedul",
        "sglang",
    ),
    Shape(
        "Kubernetes: OOMKilled",
        C.OUT_OF_HOST_MEMORY,
        worked() + "    Last State:     Terminated\n      Reason:       OOMKilled\n"
        "      Exit Code:    137\n",
        "OOMKilled",
    ),
    Shape(
        "Ray kills for memory",
        C.OUT_OF_HOST_MEMORY,
        BEGUN
        + READY
        + worked()
        + logged(
            CORE,
            "core.py:1233",
            "EngineCore encountered a fatal error.",
            *trace(
                "ray.exceptions.OutOfMemoryError: Task was "
                "killed due to the node running low on memory.",
                BUSY,
            ),
        )
        + ECHO,
        "low on memory",
    ),
    Shape(
        "the machine has none for a pinned buffer",
        C.OUT_OF_HOST_MEMORY,
        fatal(
            "RuntimeError: [enforce fail at alloc_cpu.cpp:118] . DefaultCPUAllocator: "
            "can't allocate memory: you tried to allocate 68719476736 bytes."
        ),
        "DefaultCPUAllocator",
    ),
    # ------------------------------------------------------------ the KV cache
    Shape(
        "decode finds no room, SGLang",
        C.OUT_OF_KV_CACHE,
        scheduler(
            "RuntimeError: Decode out of memory. Try to lower your batch size.\nTry to "
            "allocate 31 tokens."
        ),
        "Decode out of memory",
        "TP2",
        "sglang",
    ),
    Shape(
        "request slots, SGLang",
        C.OUT_OF_KV_CACHE,
        scheduler(
            "RuntimeError: alloc_req_slots runs out of memory. Please set a smaller "
            "number for `--max-running-requests`."
        ),
        "alloc_req_slots",
        "",
        "sglang",
    ),
    Shape(
        "no free blocks, vLLM",
        C.OUT_OF_KV_CACHE,
        fatal(
            "ValueError: Cannot get 3 free blocks from the pool",
            ("vllm/v1/core/block_pool.py", "get_new_blocks", "raise ValueError("),
        ),
        "Cannot get 3",
    ),
    Shape(
        "no free blocks, V0",
        C.OUT_OF_KV_CACHE,
        V0_WORKED
        + v0(
            "NoFreeBlocksError()",
            *trace(
                "vllm.core.block.interfaces.BlockAllocator.NoFreeBlocksError", V0_STEP
            ),
        )
        + MQ_DEAD,
        "NoFreeBlocksError",
    ),
    # ------------------------------------------------------------ collectives
    Shape(
        "NCCL times out, vLLM",
        C.COLLECTIVE_TIMEOUT,
        worked()
        + "[rank3]:[E309 08:51:10.118903881 ProcessGroupNCCL.cpp:685] [Rank 3] "
        "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4101, "
        "OpType=ALLGATHER, NumelIn=1, NumelOut=4, Timeout(ms)=600000) ran for 600012 "
        "milliseconds before timing out.\n"
        + logged(
            CORE,
            "core_client.py:605",
            "Engine core proc EngineCore_DP0 died unexpectedly, shutting down client.",
            at="08:51:14",
        ),
        "ALLGATHER",
        "3",
    ),
    Shape(
        "Gloo times out",
        C.COLLECTIVE_TIMEOUT,
        scheduler(
            "RuntimeError: "
            "[/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed "
            "out waiting 1800000ms for recv operation to complete",
            "TP1",
        ),
        "Timed out waiting",
        "TP1",
        "sglang",
    ),
    Shape(
        "the heartbeat monitor",
        C.COLLECTIVE_TIMEOUT,
        SGL_WORKED
        + "[rank0]:[F418 13:25:21.000551210 ProcessGroupNCCL.cpp:1557] [PG ID 0 PG "
        "GUID 0 Rank 0] [PG ID 0 PG GUID 0 Rank 0] Terminating the process after "
        "attempting to dump debug info, due to ProcessGroupNCCL watchdog hang. "
        "Heartbeat monitor timed out!\n",
        "Heartbeat monitor",
        "0",
        "sglang",
    ),
    # ------------------------------------------------------- workers that do not answer
    Shape(
        "execute_model timed out",
        C.WORKER_UNRESPONSIVE,
        fatal("TimeoutError: RPC call to execute_model timed out."),
        "execute_model",
    ),
    Shape(
        "a bare TimeoutError below it",
        C.WORKER_UNRESPONSIVE,
        BEGUN
        + READY
        + worked()
        + logged(
            CORE,
            "core.py:902",
            "EngineCore encountered a fatal error.",
            *trace(
                "TimeoutError",
                (
                    "vllm/distributed/device_communicators/shm_broadcast.py",
                    "acquire_read",
                    "raise TimeoutError",
                ),
            ),
            "",
            "The above exception was the direct cause of the following exception:",
            "",
            *trace("TimeoutError: RPC call to execute_model timed out.", BUSY),
        )
        + ECHO,
        "execute_model",
    ),
    Shape(
        "no heartbeat, V0",
        C.WORKER_UNRESPONSIVE,
        V0_WORKED
        + v0(
            "TimeoutError('No heartbeat received from MQLLMEngine')",
            "NoneType: None",
            source="client.py:244",
        )
        + MQ_DEAD,
        "No heartbeat",
    ),
    # ------------------------------------------------------------ standstills
    Shape(
        "steps stop while requests run", C.HANG, BEGUN + READY + worked() + stalled(4)
    ),
    Shape(
        "workers take no messages",
        C.HANG,
        BEGUN + READY + worked() + stalled(1) + beats(4),
    ),
    Shape(
        "the scheduler's watchdog, soft",
        C.HANG,
        SGL_WORKED
        + sgl(
            "Scheduler watchdog timeout (self.watchdog_timeout=600, self.soft=True)",
            "TP5",
            "2026-04-18 13:15:03",
        ),
        "watchdog timeout",
        "TP5",
        "sglang",
    ),
    Shape(
        "the detokenizer does not answer",
        C.HANG,
        SGL_WORKED
        + sgl(
            "Health check failed. Server couldn't get a response from detokenizer for "
            "last 20 seconds. tic start time: 13:06:00. last_heartbeat time: 13:05:02",
            at="2026-04-18 13:06:20",
        ),
        "Health check failed",
        "",
        "sglang",
    ),
    Shape(
        "an iteration takes too long, V0",
        C.HANG,
        V0_WORKED
        + v0(
            "Engine iteration timed out. This should never happen!",
            source="async_llm_engine.py:700",
        ),
        "iteration timed out",
    ),
    # ------------------------------------------------------------ native code
    Shape(
        "faulthandler's segfault",
        C.NATIVE_CRASH,
        BEGUN
        + READY
        + worked()
        + f"{CORE} Fatal Python error: Segmentation fault\n{CORE} \n"
        f"{CORE} Thread 0x00007f1 (most recent call first):\n{CORE}   File "
        f'"/opt/x.py", line 3 in '
        f"step\n",
        "Segmentation fault",
        "EngineCore",
    ),
    Shape(
        "a worker's exit code -11",
        C.NATIVE_CRASH,
        worked()
        + v0(
            "Worker VllmWorkerProcess pid 4711 died, exit code: -11",
            source="multiproc_worker_utils.py:117",
        ),
        "-11",
        "4711",
    ),
    Shape(
        "double free",
        C.NATIVE_CRASH,
        SGL_WORKED
        + "double free or corruption (!prev)\nFatal Python error: Aborted\n"
        + QUIT,
        "double free",
        "",
        "sglang",
    ),
    Shape(
        "a segfault that the kernel saw",
        C.NATIVE_CRASH,
        KERNEL
        + "VLLM::EngineCor[142]: segfault at 8 ip 00007f1122 sp 00007ffd error 4 in "
        "libcuda.so.580.65[7f11+6000]\n",
        "segfault at 8",
        engine="",
    ),
    Shape(
        "bus error by the shell",
        C.NATIVE_CRASH,
        SGL_WORKED
        + "/entry.sh: line 9:    77 Bus error               (core dumped) python3 -m "
        "sglang.launch_server\n",
        "Bus error",
        "",
        "sglang",
    ),
    Shape(
        "glog's SIGSEGV, Ray",
        C.NATIVE_CRASH,
        worked()
        + "(RayWorkerWrapper pid=911, ip=10.0.0.4) *** SIGSEGV received at time=1770 "
        "on cpu 12 ***\n",
        "SIGSEGV",
        "911",
    ),
    # ------------------------------------------------------ signals, and nothing at all
    Shape(
        "exit code -9",
        C.KILLED_BY_SIGNAL,
        SGL_WORKED
        + sgl("Subprocess scheduler_2 (pid=5120) crashed with exit code -9.")
        + QUIT,
        "-9",
        "",
        "sglang",
    ),
    Shape(
        "a rank's exit code, SGLang at start",
        C.KILLED_BY_SIGNAL,
        SGL_BEGUN
        + sgl("Load weight begin. avail mem=78.00 GB", "TP0")
        + sgl("Rank 1 scheduler is dead. Please check if there are relevant logs.")
        + sgl("Exit code: -9"),
        "-9",
        "",
        "sglang",
    ),
    Shape(
        "Killed, by the shell",
        C.KILLED_BY_SIGNAL,
        worked() + "start.sh: line 4:    71 Killed                  vllm serve /m\n",
        "Killed",
    ),
    Shape(
        "it was told to go",
        C.KILLED_BY_SIGNAL,
        BEGUN
        + READY
        + worked()
        + f"{FRONT} INFO:     Shutting down\n{FRONT} INFO:     Waiting for "
        f"application shutdown.\n{FRONT} INFO:     Finished server process [71]\n",
        "Shutting down",
    ),
    Shape(
        "a worker died unexpectedly",
        C.DIED_WITHOUT_A_WORD,
        BEGUN
        + READY
        + worked()
        + logged(
            CORE,
            "multiproc_executor.py:284",
            "Worker proc VllmWorker-3 died unexpectedly, shutting down executor.",
        )
        + ECHO,
        "",
        "VllmWorker-3",
    ),
    Shape(
        "the core died unexpectedly",
        C.DIED_WITHOUT_A_WORD,
        BEGUN
        + READY
        + worked()
        + logged(
            FRONT,
            "core_client.py:605",
            "Engine core proc EngineCore_DP0 died unexpectedly, shutting down client.",
        ),
        "",
        "EngineCore_DP0",
    ),
    Shape(
        "a request was refused, and long after the core died",
        C.DIED_WITHOUT_A_WORD,
        BEGUN
        + READY
        + f"{FRONT} ERROR:    Exception in ASGI application\n"
        + "".join(
            f"{FRONT} {line}\n"
            for line in trace(
                "RuntimeError: Unsupported type hello",
                (
                    "/venv/vllm/v1/structured_output/backend.py",
                    "validate",
                    "xgr.from_json_schema(schema)",
                ),
            )
        )
        + worked("08:41:10")
        + logged(
            FRONT,
            "core_client.py:605",
            "Engine core proc EngineCore_DP0 died unexpectedly, shutting down client.",
        ),
        "",
        "EngineCore_DP0",
    ),
    Shape(
        "the engine's process died, V0",
        C.DIED_WITHOUT_A_WORD,
        V0_WORKED
        + v0("RuntimeError('Engine process (pid 318) died.')", source="client.py:282")
        + MQ_DEAD,
        "",
        "318",
    ),
    # ------------------------------------------------------------ limits of the machine
    Shape(
        "too many open files",
        C.MACHINE_LIMIT,
        BEGUN
        + READY
        + worked()
        + logged(
            FRONT,
            "async_llm.py:704",
            "AsyncLLM output_handler failed.",
            *trace(
                "OSError: [Errno 24] Too many open files: '/dev/shm'",
                ("vllm/v1/engine/async_llm.py", "output_handler", "await get()"),
            ),
        ),
        "Too many open files",
    ),
    Shape(
        "no new thread",
        C.MACHINE_LIMIT,
        fatal("RuntimeError: can't start new thread"),
        "thread",
    ),
    Shape(
        "the disk is full",
        C.MACHINE_LIMIT,
        scheduler(
            "OSError: [Errno 28] No space left on device: '/home/app/.triton/cache/x'"
        ),
        "No space left",
        "TP2",
        "sglang",
    ),
    Shape(
        "shared memory is used up",
        C.MACHINE_LIMIT,
        scheduler(
            "torch.distributed.DistBackendError: NCCL error in: "
            "../torch/csrc/distributed/c10d/NCCLUtils.hpp:317, unhandled system error\n"
            "ncclSystemError: System call (e.g. socket, malloc) or external library "
            "call failed or device error.\n"
            "Last error:\n"
            "Error while creating shared memory segment /dev/shm/nccl-ab (size 9637888)"
        ),
        "DistBackendError",
        "TP2",
        "sglang",
    ),
    # ------------------------------------------------------------ the network
    Shape(
        "a peer closed its connection",
        C.NETWORK,
        scheduler(
            "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] "
            "Connection closed by peer [10.0.0.7]:61422",
            "TP9",
        ),
        "Connection closed",
        "TP9",
        "sglang",
    ),
    Shape(
        "NCCL's remote error",
        C.NETWORK,
        in_worker(
            "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:77, "
            "remote process exited or there was a network error\n"
            "ncclRemoteError: A call failed possibly due to a network error"
        ),
        "DistBackendError",
    ),
    Shape(
        "a transfer of the KV cache failed",
        C.NETWORK,
        SGL_WORKED
        + sgl(
            "Decode transfer failed for request rank=3 decode_req.req.bootstrap_room="
            "88 with exception KVTransferError(bootstrap_room=88): Aborted by Abort "
            "Req",
            "TP3",
        ),
        "transfer failed",
        "TP3",
        "sglang",
    ),
    # ------------------------------------------------------------ defects of the engine
    Shape(
        "a key that is not there",
        C.ENGINE_DEFECT,
        fatal(
            "KeyError: 'cmpl-77'",
            (
                "vllm/v1/core/sched/scheduler.py",
                "update_from_output",
                "request = self.requests[req_id]",
            ),
        ),
        "KeyError: 'cmpl-77'",
        "EngineCore",
    ),
    Shape(
        "an assertion without words",
        C.ENGINE_DEFECT,
        fatal(
            "AssertionError",
            (
                "vllm/v1/core/kv_cache_manager.py",
                "allocate_slots",
                "assert num_new_blocks >= 0",
            ),
        ),
        "assert num_new_blocks",
    ),
    Shape(
        "a leak check, SGLang",
        C.ENGINE_DEFECT,
        scheduler(
            "ValueError: token_to_kv_pool_allocator memory leak detected! "
            "available_size=91, protected_size=0",
            "DP0 TP1",
        ),
        "memory leak",
        "DP0 TP1",
        "sglang",
    ),
    Shape(
        "LMDeploy's loop",
        C.ENGINE_DEFECT,
        LMD_WORKED
        + lmd(
            "Engine loop failed with error: 'NoneType' object has no attribute "
            "'seq_length'"
        )
        + "\n".join(
            trace(
                "AttributeError: 'NoneType' object has no attribute 'seq_length'",
                (
                    "lmdeploy/pytorch/engine/engine.py",
                    "_async_loop_main",
                    "await self._async_step()",
                ),
            )
        )
        + "\n",
        "seq_length",
        engine="lmdeploy",
    ),
    Shape(
        "the root of a chain",
        C.ENGINE_DEFECT,
        V0_WORKED
        + v0(
            "Engine background task failed",
            *trace(
                "IndexError: pop from empty list",
                ("vllm/engine/async_llm_engine.py", "step_async", "self.queue.pop()"),
            ),
            "",
            "The above exception was the direct cause of the following exception:",
            "",
            *trace(
                "vllm.engine.async_llm_engine.AsyncEngineDeadError: Task finished "
                "unexpectedly. This should never happen! Please open an issue on "
                "Github. See stack trace above for the actual cause."
            ),
            source="async_llm_engine.py:64",
        ),
        "pop from empty list",
    ),
    Shape(
        "a wait below it is not the root",
        C.ENGINE_DEFECT,
        BEGUN
        + READY
        + worked()
        + logged(
            CORE,
            "core.py:710",
            "EngineCore encountered a fatal error.",
            *trace("_queue.Empty", BUSY),
            "",
            "During handling of the above exception, another exception occurred:",
            "",
            *trace("UnboundLocalError: cannot access local variable 'batch'", BUSY),
        )
        + ECHO,
        "UnboundLocalError",
    ),
    Shape(
        "a Ray worker's, with its wrapper",
        C.ENGINE_DEFECT,
        BEGUN
        + READY
        + worked()
        + logged(
            CORE,
            "core.py:1233",
            "EngineCore encountered a fatal error.",
            *trace(
                "ray.exceptions.RayTaskError(ZeroDivisionError): "
                "ray::RayWorkerWrapper.execute_model() (pid=77, ip=10.0.0.2)",
                BUSY,
            ),
            (
                '  File "/opt/venv/lib/vllm/v1/executor/ray_utils.py", line 9, in '
                "execute_model_ray"
            ),
            "    return self.worker.execute_model()",
            "ZeroDivisionError: division by zero",
        )
        + ECHO,
        "ZeroDivisionError: division",
    ),
    Shape(
        "PyTorch's prefix of ranks",
        C.ENGINE_DEFECT,
        SGL_WORKED + "[rank6]: Traceback (most recent call last):\n[rank6]:   File "
        '"/opt/venv/lib/sglang/srt/managers/scheduler.py", line 5, in '
        "event_loop_normal\n"
        "[rank6]:     self.step()\n[rank6]: TypeError: 'int' object is not iterable\n"
        + QUIT,
        "TypeError: 'int'",
        "6",
        "sglang",
    ),
    # ------------------------------------------------------------ requests
    Shape(
        "a stop token out of the vocabulary",
        C.KILLED_BY_INPUT,
        in_worker(
            "IndexError: index 884213 is out of bounds for dimension 1 with size 151936"
        ).replace(
            f"{CORE} ERROR {DAY} 08:41:33 [core.py:1233] EngineCore",
            DUMP + f"{CORE} ERROR {DAY} 08:41:33 [core.py:1233] EngineCore",
        ),
        "884213",
        "Worker_TP1",
    ),
    Shape(
        "a grammar that the backend refuses",
        C.KILLED_BY_INPUT,
        fatal(
            "RuntimeError: [08:41:33] /project/cpp/grammar_parser.cc:564: EBNF parser "
            "error at line 1, column 9",
            (
                "vllm/v1/structured_output/backend_xgrammar.py",
                "compile_grammar",
                "ctx = self.compiler.compile_regex(spec)",
            ),
        ),
        "EBNF",
    ),
    Shape(
        "top_logprobs, SGLang",
        C.KILLED_BY_INPUT,
        scheduler(
            "RuntimeError: selected index k out of range",
            "TP0",
            LOOP,
            (
                "sglang/srt/layers/logits_processor.py",
                "get_top_logprobs",
                "ret = logprobs.topk(max_k, dim=1)  # top_logprobs_nums",
            ),
        ),
        "selected index k",
        "TP0",
        "sglang",
    ),
    Shape(
        "placeholders, vLLM",
        C.PLACEHOLDER_COUNTS,
        in_worker(
            "ValueError: Attempted to assign 64 + 64 = 128 multimodal tokens to 130 "
            "placeholders"
        ),
        "128 multimodal tokens",
    ),
    Shape(
        "placeholders, transformers",
        C.PLACEHOLDER_COUNTS,
        scheduler(
            "ValueError: Image features and image tokens do not match: tokens: 256, "
            "features 255"
        ),
        "tokens: 256",
        "TP2",
        "sglang",
    ),
    Shape(
        "it waits for room that there is not",
        C.NEVER_FITS,
        BEGUN + READY + worked() + stalled(4, running=0, waiting=1, usage="0.0"),
    ),
    Shape(
        "a prompt that is too long for the blocks, V0",
        C.NEVER_FITS,
        v0(
            "Input prompt (90112 tokens) + lookahead slots (0) is too long and exceeds "
            "the capacity of block_manager",
            level="WARNING",
            source="scheduler.py:716",
        ),
        "90112 tokens",
    ),
    # ------------------------------------------------------------ starts
    Shape(
        "weights do not fit into memory",
        C.FAILED_START,
        failed_start(
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 896.00 MiB.",
            LOAD,
        ),
        "896.00 MiB",
        "EngineCore",
        start=True,
    ),
    Shape(
        "no room for the KV cache",
        C.FAILED_START,
        failed_start(
            "ValueError: To serve at least one request with the models's max seq len "
            "(131072), (16.0 GiB KV cache is needed, which is larger than the "
            "available KV cache memory (3.2 GiB).",
            (
                "vllm/v1/engine/core.py",
                "_initialize_kv_caches",
                "get_kv_cache_configs()",
            ),
        ),
        "131072",
        start=True,
    ),
    Shape(
        "an architecture it does not know",
        C.FAILED_START,
        (
            f"{FRONT} INFO {DAY} 08:31:02 [api_server.py:1977] vLLM API server version "
            "0.24.0\n"
        )
        + "".join(
            f"{FRONT} {line}\n"
            for line in trace(
                "pydantic_core._pydantic_core.ValidationError: 1 validation error for "
                "ModelConfig\n"
                "  Value error, Model architectures ['FooForCausalLM'] are not "
                "supported for now.",
                (
                    "vllm/engine/arg_utils.py",
                    "create_engine_config",
                    "ModelConfig(...)",
                ),
            )
        ),
        "1 validation error",
        "APIServer",
        start=True,
    ),
    Shape(
        "a worker's start fails",
        C.FAILED_START,
        BEGUN
        + logged(
            "(Worker_TP0 pid=233)",
            "multiproc_executor.py:898",
            "WorkerProc failed to start.",
            *trace(
                "RuntimeError: CUDA error: no kernel image is available for execution "
                "on the device" + HINT,
                LOAD,
            ),
        )
        + logged(
            CORE,
            "core.py:1231",
            "EngineCore failed to start.",
            *trace(
                "Exception: WorkerProc initialization failed due to an exception in a "
                "background process. See stack trace for root cause."
            ),
        ),
        "no kernel image",
        "Worker_TP0",
        start=True,
    ),
    Shape(
        "the port is taken",
        C.FAILED_START,
        (
            f"{FRONT} INFO {DAY} 08:31:02 [api_server.py:1977] vLLM API server version "
            "0.24.0\n"
        )
        + "".join(
            f"{FRONT} {line}\n"
            for line in trace(
                "OSError: [Errno 98] Address already in use",
                (
                    "vllm/entrypoints/openai/api_server.py",
                    "run_server",
                    "sock.bind(addr)",
                ),
            )
        ),
        "Address already in use",
        start=True,
    ),
    Shape(
        "SGLang cannot load the weights",
        C.FAILED_START,
        scheduler(
            "KeyError: 'model.layers.0.mlp.gate_up_proj.qweight'",
            "TP0",
            SGL_LOAD,
            begun="start",
        ),
        "gate_up_proj",
        "TP0",
        "sglang",
        start=True,
    ),
    Shape(
        "SGLang captures no graphs",
        C.FAILED_START,
        scheduler(
            "Exception: Capture cuda graph failed: CUDA out of memory. Tried to "
            "allocate 1.00 GiB.",
            "TP0",
            (
                "sglang/srt/model_executor/cuda_graph_runner.py",
                "__init__",
                "raise Exception(",
            ),
            begun="start",
        ),
        "Capture cuda graph failed",
        "TP0",
        "sglang",
        start=True,
    ),
    Shape(
        "a module is missing",
        C.FAILED_START,
        "\n".join(
            trace(
                "ModuleNotFoundError: No module named 'flash_attn'",
                ("vllm/entrypoints/cli/main.py", "<module>", "import flash_attn"),
            )
        )
        + "\n",
        "flash_attn",
        start=True,
    ),
    Shape(
        "nothing but the last words of a start",
        C.FAILED_START,
        "".join(
            f"{FRONT} {line}\n"
            for line in trace(
                "RuntimeError: Engine core initialization "
                "failed. See root cause above. Failed core proc(s): {}"
            )
        ),
        start=True,
    ),
    # ------------------------------------------------------------ nothing ended
    Shape(
        "refused requests",
        C.ALIVE,
        BEGUN
        + READY
        + worked()
        + logged(
            FRONT,
            "serving_chat.py:257",
            "Error in preprocessing prompt inputs",
            *trace("ValueError: This model's maximum context length is 4096 tokens."),
        )
        + worked("08:44:10"),
    ),
    Shape(
        "a heartbeat while it works",
        C.ALIVE,
        BEGUN + READY + worked() + beats(3) + worked("08:46:10"),
    ),
    Shape(
        "graceful, then started again",
        C.ALIVE,
        SGL_BEGUN
        + SGL_READY
        + SGL_WORKED
        + 'INFO:     1.1.1.1:2 - "GET /health HTTP/1.1" 200 OK\n',
        engine="sglang",
    ),
    Shape(
        "compilation takes minutes",
        C.UNKNOWN,
        BEGUN
        + beats(2)
        + "".join(
            logged(
                CORE,
                "backends.py:1",
                f"Compiling a graph takes {n} s",
                at=f"08:4{n}:30",
                level="INFO",
            )
            for n in range(8)
        ),
    ),
    Shape(
        "its queue only grows",
        C.OVERLOADED,
        BEGUN
        + READY
        + "".join(
            worked(f"08:4{n}:10").replace("Waiting: 0", f"Waiting: {60 + 9 * n}")
            for n in range(4)
        ),
    ),
    Shape(
        "requests are retracted all the time",
        C.OVERLOADED,
        SGL_WORKED
        + "".join(
            sgl(
                "KV cache pool is full. Retract requests. #retracted_reqs: 2, "
                "#new_token_ratio: 0.4 -> 0.9",
                "TP0",
                f"2026-04-18 13:05:0{n}",
            )
            for n in range(4, 8)
        ),
        engine="sglang",
    ),
    Shape(
        "vllm-rs that is ready",
        C.ALIVE,
        BEGUN + RUST_READY,
        process="RustFrontend",
    ),
    Shape(
        "vllm-rs that is told to go, while its engine goes on",
        C.KILLED_BY_SIGNAL,
        BEGUN
        + RUST_READY
        + rust_stats("08:40:00", "88.1", 2)
        + RUST_READY.partition("[server/src")[0].replace("08:31:30", "08:40:06")
        + "[cmd/src/main.rs:72]\x1b[0m received shutdown signal (SIGTERM), shutting "
        "down...\n",
        process="RustFrontend",
    ),
    Shape(
        "vllm-rs that is killed",
        C.KILLED_BY_SIGNAL,
        BEGUN
        + RUST_READY
        + f"ERROR {DAY} 08:40:07 [utils.py:552] Exception occurred while running API "
        "servers: Process RustFrontend (PID: 13238) died with exit code -9\n",
        process="RustFrontend pid=13238",
    ),
    Shape(
        "vllm-rs whose requests stand still",
        C.HANG,
        BEGUN
        + RUST_READY
        + rust_stats("08:40:00", "88.1", 2)
        + "".join(rust_stats(f"08:40:{n}0", "0.0", 2) for n in range(1, 6)),
        process="RustFrontend",
    ),
    Shape(
        "a request that vllm-rs lets through ends the thread that takes requests",
        C.KILLED_BY_INPUT,
        BEGUN
        + RUST_READY
        + "".join(
            f"{CORE} {line}\n"
            for line in (
                "Exception in thread Thread-1 (process_input_sockets):",
                *trace(
                    "vllm.exceptions.VLLMValidationError: temperature must be "
                    "non-negative, got -1.5. (parameter=temperature, value=-1.5)",
                    ("vllm/sampling_params.py", "__post_init__", "self._verify_args()"),
                ),
                "",
                "The above exception was the direct cause of the following exception:",
                "",
                *trace(
                    "msgspec.ValidationError: temperature must be non-negative, got "
                    "-1.5. (parameter=temperature, value=-1.5) - at `$[3]`",
                    (
                        "vllm/v1/engine/core.py",
                        "process_input_sockets",
                        "req: EngineCoreRequest = add_request_decoder.decode("
                        "data_frames)",
                    ),
                ),
            )
        ),
        exception="VLLMValidationError",
        process="EngineCore",
    ),
    Shape(
        "a py-spy dump",
        C.NOT_A_LOG,
        "Process 77: VLLM::Worker_TP0\nPython v3.12.9 (/usr/bin/python3.12)\n\nThread "
        "77 (idle): "
        '"MainThread"\n    wait (threading.py:331)\n',
        engine="",
    ),
    Shape(
        "text of metrics",
        C.NOT_A_LOG,
        '# HELP sglang:num_running_reqs n\nsglang:num_running_reqs{model="q"} 4.0\n',
        engine="",
    ),
)


def answers() -> Iterator[tuple[Shape, ServerInLog, bool]]:
    """Each shape, its answer, and whether it is right."""
    for shape in SHAPES:
        told = read(shape.text)[0]
        cause = told.cause
        right = (
            cause.name is shape.right
            and shape.exception in cause.exception
            and shape.process in cause.process
            and told.engine == shape.engine
        )
        yield shape, told, right


def figures() -> tuple[int, int, int]:
    """Shapes, right ones, and those of another class that claims something."""
    told = list(answers())
    false = sum(one.cause.name not in (shape.right, *VAGUE) for shape, one, _ in told)
    return len(told), sum(right for *_, right in told), false


if __name__ == "__main__":
    for shape, told, right in answers():
        if not right:
            one = told.cause
            print(
                f"{shape.name}: {shape.right.value}, answered {one.name.value} by "
                f"{one.exception[:80]!r}, {one.process!r}, {told.engine!r}"
            )
    print("{} shapes, {} right, {} of a false class".format(*figures()))
