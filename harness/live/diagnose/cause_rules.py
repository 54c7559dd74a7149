"""What the words of engines, libraries and the kernel mean: one table. Where each is
from stands beside it.

A rule is tried on exceptions and, where ``alone``, on any line's own words; the first
that fits decides. Echoes are what others say of a failure that was printed before."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mmrepro.failure.documents.cause import CauseClass as C, StartCause
from mmrepro.failure.documents.diagnosis import Certainty
from mmrepro.live.diagnose.raised import Raised
from mmrepro.probes.data import LogLine

CERTAIN, LIKELY, POSSIBLE = Certainty.CERTAIN, Certainty.LIKELY, Certainty.POSSIBLE

StartRule = Callable[[Sequence[LogLine], Raised | None, str], StartCause | None]
"""Lines of one server, the first exception, the engine's name: what is below
``failed-start``."""


def _start(
    lines: Sequence[LogLine], one: Raised | None, engine: str
) -> StartCause | None:
    # What it needs is half of the harness.
    from mmrepro.live.diagnose.starts import (
        below,
    )

    return below(lines, one, engine)


START_RULES: list[StartRule] = [_start]
"""Tried in order; the first that answers is taken."""


@dataclass(frozen=True)
class Rule:
    """What a text means.

    Attributes:
        name: the class.
        expression: searched in an exception's type and message, or in a line's own
            words.
        sure: at most so sure; a class that is often the effect of another is never
            certain.
        alone: a line without an exception says it too.
        effect: it follows from what happened elsewhere, as a rule: what says more goes
            before it.
    """

    name: C
    expression: re.Pattern[str]
    sure: Certainty = CERTAIN
    alone: bool = True
    effect: bool = False


def _rule(
    name: C,
    expression: str,
    sure: Certainty = CERTAIN,
    *,
    alone: bool = True,
    effect: bool = False,
) -> Rule:
    return Rule(name, re.compile(expression), sure, alone, effect)


CUDA_SETUP = re.compile(
    r"no kernel image|invalid device ordinal|initialization error|driver version|"
    r"invalid device function|not supported|PTX|unsupported|no CUDA-capable device"
    r"|error 80[1-4]"
)
"""Errors of CUDA that a set-up brings about, and no kernel's."""
XIDS: Mapping[int, str] = {
    13: "a kernel on the GPU made an illegal access or instruction",
    31: "a kernel on the GPU accessed memory that is not mapped",
    32: "the GPU got a broken command stream",
    38: "the GPU's firmware failed",
    43: "the GPU stopped processing for one program",
    45: "the driver ended what was left of a program, after another fault",
    48: "the GPU's memory has a double-bit error",
    61: "the GPU's microcontroller stopped",
    62: "the GPU's microcontroller halted",
    63: "a row of the GPU's memory is to be remapped",
    64: "a row of the GPU's memory could not be remapped",
    68: "the GPU's video decoder failed",
    69: "a kernel on the GPU met a class error",
    74: "an NVLink failed",
    79: "the GPU has fallen off the bus",
    92: "the GPU's memory has many single-bit errors",
    94: "the GPU's memory has an error that is contained in one program",
    95: "the GPU's memory has an error that is not contained",
    109: "a context switch on the GPU did not end in time",
    119: "the GPU's system processor does not answer",
    120: "the GPU's system processor failed",
    140: "the GPU's memory has an error that is not corrected",
    143: "the GPU could not be set up",
    145: "an NVLink failed",
    149: "an NVLink failed",
}
"""NVIDIA, "Xid Errors"."""
XID = re.compile(r"Xid \((?P<bus>[^)]*)\): (?P<code>\d+)(?:, (?P<rest>.*))?")
_GPU = r"(?:CUDA|HIP|ROCm|cuda|hip|Triton Error \[(?:CUDA|HIP)\])"

RULES: tuple[Rule, ...] = (
    # ------------------------------------------------------------- the kernel
    _rule(
        C.OUT_OF_HOST_MEMORY,
        r"(?:Out of memory|[Mm]emory cgroup out of memory"
        r"|oom-kill).{0,80}?[Kk]ill(?:ed)? process "
        r"\d+|oom-kill:constraint=|invoked oom-killer|OOMKilled",
        CERTAIN,
    ),
    _rule(
        C.GPU_FAULT,
        r"NVRM: .*(?:has fallen off the bus|GPU is lost)|NVRM: Xid \(|GPU is lost",
        CERTAIN,
    ),
    _rule(
        C.NATIVE_CRASH,
        r"(?:segfault at [0-9a-f]+ ip|trap invalid opcode|general protection "
        r"fault) ?.* (?:in|error:?\d)",
        CERTAIN,
    ),
    # ------------------------------------------------------------- memory of a GPU
    _rule(
        C.OUT_OF_GPU_MEMORY,
        # torch; TurboMind (src/turbomind/utils); cuBLAS; NCCL; Triton; cumem of vLLM
        rf"(?:torch\.)?(?:cuda\.)?OutOfMemoryError: (?:{_GPU}|XPU|NPU) out of memory"
        rf"|{_GPU} out of memory|{_GPU}[\w ]{{0,30}}[:]? ?\[?out of memory"
        r"|CUDA (?:runtime |driver )?error: out of memory"
        r"|CUDA[_ ]ERROR[_ ]OUT[_ ]OF[_ ]MEMORY"
        r"|CUBLAS_STATUS_ALLOC_FAILED|cudaErrorMemoryAllocation|Cuda failure 2\b|"
        r"Cuda failure 'out of memory'|hipErrorOutOfMemory|HIPBLAS_STATUS_ALLOC_FAILED|"
        r"CUDNN_STATUS_ALLOC_FAILED|NPU out of memory|torch\.OutOfMemoryError|"
        r"torch\.cuda\.OutOfMemoryError",
        CERTAIN,
    ),
    # --------------------------------------------------------- a GPU, or a kernel on it
    _rule(
        C.GPU_FAULT,
        # cudaGetErrorString (CUDA 12 and 13), as torch, Triton, TurboMind, NCCL print
        # it
        r"an illegal memory access was encountered|illegal instruction was encountered|"
        r"misaligned address|device-side assert triggered|unspecified launch failure|"
        r"invalid program counter|hardware stack error"
        r"|operation not supported on global/shared|"
        r"uncorrectable (?:ECC|NVLink) error|the launch timed out and was terminated|"
        r"cudaErrorIllegalAddress|cudaErrorLaunchFailure|cudaErrorAssert"
        r"|CUDA_ERROR_ILLEGAL_|"
        r"CUDA_ERROR_LAUNCH_FAILED|CUDA_ERROR_ASSERT|CUDA_ERROR_HARDWARE_STACK|"
        r"Memory access fault by GPU|HSA_STATUS_ERROR_"
        r"|Error: Failed to initialize the TMA|"
        r"C(?:UBLAS|UDNN|UTLASS|USOLVER)_STATUS_(?:EXECUTION_FAILED|INTERNAL_ERROR)|"
        r"cuBLAS.{0,40}execution failed|Unable to determine the device handle for GPU|"
        r"CUDA error: unknown error|CUDA error: (?:CUDA-capable device\(s\) is/are busy"
        r"|device "
        r"kernel image is invalid)|[Ee]ncountered uncorrectable|hipErrorIllegalAddress|"
        r"hipErrorLaunchFailure|Cuda failure (?:700|710|715|716|719|'an illegal"
        r"|'unspecified)",
        CERTAIN,
    ),
    _rule(
        C.GPU_FAULT,
        r": block: \[\d+,\d+,\d+\], thread: \[\d+,\d+,\d+\] Assertion ",
        CERTAIN,
    ),
    _rule(
        C.GPU_FAULT,
        r"(?:CUDA|HIP) (?:runtime "
        r"|driver )?error:? ?(?:\d+ )?\(?.{0,60}(?:invalid argument|"
        r"invalid configuration argument|invalid resource handle"
        r"|too many resources requested|"
        r"initialization error|invalid device function|operation not permitted|"
        r"peer access|context is destroyed|driver shutting down)|CUDA error: "
        r"|HIP error: |"
        r"CUDA runtime error|CUDA driver error|Triton Error \[|cuda runtime error|"
        r"CU(?:BLAS|DNN)_STATUS_(?!NOT_SUPPORTED|ALLOC)|\[TM\]\[ERROR\].*CUDA|"
        r"failed with error(?: code)?:? (?:invalid|an illegal|unspecified|misaligned"
        r"|too many)",
        LIKELY,
    ),
    # ------------------------------------------------------------ memory of the machine
    _rule(
        C.OUT_OF_HOST_MEMORY,
        r"^(?:\w+\.)*MemoryError\b|std::bad_alloc|DefaultCPUAllocator: |"
        r"Cannot allocate memory|not enough memory: you tried to allocate|"
        r"running low on memory|ray\.exceptions\.OutOfMemoryError|"
        r"task was killed due to the node running low|Out of memory: ",
        LIKELY,
    ),
    # ------------------------------------------------------------- the KV cache
    _rule(
        C.OUT_OF_KV_CACHE,
        # sglang/srt/mem_cache/common.py; vllm/v1/core/block_pool.py;
        # vllm/core/block_manager*; lmdeploy/pytorch/paging, turbomind's SequenceManager
        r"(?:Prefill|Decode) out of memory\. Try to lower"
        r"|alloc_req_slots runs out of memory|"
        r"out of memory\. Please set a smaller number for `--max-running-requests`|"
        r"token_to_kv_pool.{0,40}out of memory|Cannot get \d+ free blocks from the pool"
        r"|"
        r"[Oo]ut of (?:free )?(?:KV|kv|cache) ?(?:cache )?blocks"
        r"|No free blocks available|"
        r"No enough free (?:gpu |cpu )?blocks|NoFreeBlocksError|"
        r"cache out of memory, no request can be admitted|"
        r"(?:KV|kv) cache (?:is )?(?:full|exhausted)(?!\. Retract)",
        LIKELY,
        alone=False,
    ),
    # ------------------------------------------------------------- placeholders
    _rule(
        C.PLACEHOLDER_COUNTS,
        # vllm/model_executor/models/utils.py and v1/worker/utils.py, 0.11.0 to 0.32.0;
        # sglang/srt/managers/mm_utils.py; transformers' models;
        # lmdeploy/vl/model/base.py
        r"Attempted to assign .{0,400}?(?:multimodal|image) tokens to \d+ placeholders|"
        r"Expected number of multimodal embeddings to match number of input items|"
        r"multimodal embedding does not match those in the input text|"
        r"[Ff]eatures and (?:image|video|audio) tokens do not match|"
        r"the number of image token id \d+ is not equal to input images",
        LIKELY,
        alone=False,
    ),
    # ------------------------------------------------------------ limits of the machine
    _rule(
        C.MACHINE_LIMIT,
        r"Too many open files|Errno 24\b|can't start new thread|pthread_create failed|"
        r"Resource temporarily unavailable|No space left on device|Errno 28\b|"
        r"insufficient shared memory|unable to (?:allocate|open) shared memory|"
        r"shared memory \(?shm\)? (?:size )?(?:is )?(?:too small|limit)|unable to mmap|"
        r"Disk quota exceeded|Errno 122\b|Too many open files in system|"
        r"std::system_error.{0,40}Resource|thread: Resource|inotify watch limit|"
        r"Error while creating shared memory segment|failed to extend /dev/shm|"
        r"Cannot allocate memory.{0,60}(?:memlock|ibv_|reg_mr|pthread|fork)|MAP_FAILED",
        CERTAIN,
    ),
    # ------------------------------------------------------------- collectives
    _rule(
        C.COLLECTIVE_TIMEOUT,
        # torch/csrc/distributed/c10d: ProcessGroupNCCL.cpp, ProcessGroupGloo.cpp,
        # TCPStore.cpp
        r"Watchdog caught collective operation timeout|collective operation timeout: |"
        r"Some NCCL operations have failed or timed out|"
        r"NCCL watchdog thread terminated with exception: .{0,40}(?:timeout|Watchdog)|"
        r"wait timeout after \d+ms|Timed out waiting \d+ms for (?:recv|send) operation|"
        r"[Hh]eartbeat monitor timed out"
        r"|Timed out after \d+ seconds waiting for clients|"
        r"Application timeout caused pair closure|ProcessGroup\w+'s watchdog got stuck|"
        r"NCCL(?:'s)? [Tt]imeout|DistStoreError: |torch\.distributed\.DistStoreError|"
        r"wait\(\) timed out|Barrier .{0,40}timed out|monitoredBarrier"
        r"|HCCL.{0,60}timeout|"
        r"Timeout waiting for (?:key|the key)|failed to (?:receive"
        r"|recv).{0,40}ncclUniqueId",
        LIKELY,
        effect=True,
    ),
    # -------------------------------------------------------- standstills that are told
    _rule(
        C.HANG,
        # sglang/srt/managers/scheduler.py, utils/watchdog.py; vllm/v1/engine watchdog,
        # 0.33.0; vllm/engine/async_llm_engine.py of V0
        r"[Ww]atchdog timeout(?: \(self\.| for| after|$|!)|Watchdog\w* (?:timed out"
        r"|timeout)|"
        r"Engine iteration timed out\. This should never happen|"
        r"Health check failed\. (?:Server )?[Cc]ouldn't get a response from detokenizer"
        r"|"
        r"Engine is stuck|engine step .{0,30}stuck|\[Watchdog\].{0,120}(?:no progress"
        r"|stuck|hang)|"
        # vllm/utils/watch_dog.py, in its pull request vllm#55700
        r"\[Watchdog\]Dumped stack to .{0,300} due to feed timeout",
        LIKELY,
        effect=True,
    ),
    # ------------------------------------------------------- workers that do not answer
    _rule(
        C.WORKER_UNRESPONSIVE,
        # vllm/v1/executor/multiproc_executor.py; vllm/engine/multiprocessing/client.py
        # of V0
        r"RPC call to \w+ timed out|Timed out (?:in|waiting for) (?:RPC|the engine"
        r"|worker)|"
        r"[Hh]eartbeats? timed out|Engine (?:core )?(?:did not|didn't) (?:respond"
        r"|reply)|"
        r"did not receive (?:a )?(?:response|heartbeat) from"
        r"|Timed out getting .{0,40}from worker|"
        r"[Cc]ollective RPC .{0,40}timed out|GetTimeoutError|"
        r"worker .{0,30}(?:not responding|unresponsive|did not respond)"
        r"|No heartbeat received|"
        r"ChannelTimeoutError|Timed out waiting for object available",
        LIKELY,
        effect=True,
    ),
    # ------------------------------------------------------------- the network
    _rule(
        C.NETWORK,
        r"Connection reset by peer|Connection closed by (?:remote )?peer|Broken pipe|"
        r"NET/IB ?: ?.{0,80}(?:error|completion)"
        r"|Got completion from peer .{0,80}(?:error|status)|"
        r"ncclRemoteError|ncclSystemError|ncclInternalError.{0,80}(?:socket|net)|"
        r"socketPollConnect|socketProgress|Socket recv failed|No route to host|"
        r"Connection refused|Network is unreachable|Connection timed out|ETIMEDOUT|"
        r"ConnectionResetError|ConnectionRefusedError|BrokenPipeError|"
        r"[Tt]he client socket has (?:timed out|failed to connect)|IBV_WC_"
        r"|ibv_\w+ failed|"
        r"Failed to connect to (?:store|remote|bootstrap|peer)|KVTransferError|"
        r"Unable to find address for|gai_error|Name or service not known|"
        r"Temporary failure in name resolution|recvValue failed"
        r"|Failed to recv, got 0 bytes|"
        r"sendBytes failed|DistNetworkError|Transfer Engine Return Error|"
        r"Failed to (?:send|transfer) (?:kv|KV)|NIXL_ERR|nixlBackendError"
        r"|nixlRemoteDisconnect",
        POSSIBLE,
        alone=False,
        effect=True,
    ),
    _rule(
        C.NETWORK,
        r"NCCL WARN .{0,60}(?:NET/|[Ss]ocket|peer).{0,120}(?:error|failed|closed"
        r"|refused|reset)|"
        r"\[c10d\] .{0,80}(?:failed to connect|client socket has)|"
        r"recvValue failed on SocketImpl|Connection closed by remote peer|"
        r"Failed to check the \"should dump\" flag on TCPStore|"
        r"(?:Decode|Prefill) transfer failed for request|KVTransferError",
        POSSIBLE,
        effect=True,
    ),
    # ------------------------------------------------------------- native code
    _rule(
        C.NATIVE_CRASH,
        # CPython's faulthandler; glibc; glog; vLLM's and SGLang's words for exit codes
        r"Fatal Python error: (?:Segmentation fault|Bus error|Illegal instruction|"
        r"Floating[- ]point)|!!!!!!! Segfault encountered|\*\*\* SIG(?:SEGV|BUS|ILL"
        r"|FPE) |"
        r"Segmentation fault|segmentation fault|Caught signal (?:11|7|4|8) |"
        r"Bus error|[Ii]llegal instruction(?! was)|"
        r"[Ee]xit ?code[:= ]+-(?:11|7|4|8)\b|terminated with -(?:11|7|4|8)\b|"
        r"unexpectedly failed with exit ?code[:= ]+(?:11|7)\b|"
        r"exit code[:= ]+(?:139|135|132|136)\b|died (?:of|from|with) signal (?:11|7|4"
        r"|8)\b|"
        r"Signal(?:s\.| )SIG(?:SEGV|BUS|ILL|FPE)|SIG(?:SEGV|BUS|ILL|FPE)\b",
        LIKELY,
    ),
    _rule(
        C.NATIVE_CRASH,
        r"Fatal Python error: |terminate called |double free or corruption|free\(\): |"
        r"malloc\(\): |malloc_consolidate\(\)|corrupted size vs|munmap_chunk\(\)"
        r"|realloc\(\): |"
        r"stack smashing detected|pure virtual method called|Aborted \(core dumped\)|"
        r"\*\*\* SIGABRT |[Ee]xit ?code[:= ]+-6\b|terminated with -6\b"
        r"|exit code[:= ]+134\b|"
        r"Signal(?:s\.| )SIGABRT|Caught signal 6 |core dumped|\[TM\]\[FATAL\]|"
        r"Check failed: .{0,200}|Assertion [`'].{0,200}' failed|LLVM ERROR",
        LIKELY,
        effect=True,
    ),
    # ------------------------------------------------------------- signals
    _rule(
        C.KILLED_BY_SIGNAL,
        r"[Ee]xit ?code[:= ]+-(?:9|15|2|1)\b|terminated with -(?:9|15|2|1)\b|"
        r"unexpectedly failed with exit ?code[:= ]+9\b|"
        r"exit code[:= ]+(?:137|143)\b|(?:^|\s)Killed\s*$|(?:^"
        r"|: )(?:line \d+: *)?\d+ Killed\b|"
        r"Signal(?:s\.| )SIGKILL|(?:killed|died|ended) (?:by|of|from|with) (?:signal "
        r"|SIG)|"
        r"SIGKILL\b|signal: killed",
        LIKELY,
        effect=True,
    ),
    _rule(
        C.KILLED_BY_SIGNAL,
        r"[Rr]eceived (?:signal )?(?:SIGTERM|SIGINT|15|2\b)|SIGTERM (?:received"
        r"|triggered)|"
        r"[Cc]aught (?:signal )?(?:SIGTERM|SIGINT|15\b)|KeyboardInterrupt|"
        r"Gracefully exiting|got signal (?:SIGTERM|15|2)|Get signal\[|"
        r"SIGTERM\. Draining|signal: terminated|Received SIGTERM",
        LIKELY,
        effect=True,
    ),
    # ------------------------------------------------------------- leaks
    _rule(
        C.ENGINE_DEFECT,
        r"memory leak detected!|pool (?:is )?leak|(?:KV|kv) ?cache leak|"
        r"memory pool (?:is )?leak",
        LIKELY,
        alone=False,
    ),
)
"""First fit first."""

START_TEXT = re.compile(
    r"^(?:\w+\.)*(?:ModuleNotFoundError|ImportError)\b|undefined symbol"
    r"|not supported for now|"
    r"trust_remote_code|Cannot re-initialize CUDA in forked|No CUDA GPUs are available|"
    r"Address already in use|No available memory for the cache blocks"
    r"|max seq len .{0,80}larger"
)
"""Exceptions of a start, where no work is seen before them."""

GRAMMAR = re.compile(
    r"EBNF|[Gg]rammar|xgrammar|llguidance|outlines|[Ff]ailed to advance FSM"
    r"|json_schema_converter|"
    r"lmformatenforcer"
)

ECHO = re.compile(
    r"(?:^|\.)(?:EngineDeadError|AsyncEngineDeadError|MQEngineDeadError"
    r"|EngineGenerateError|"
    r"AsyncEngineError|BackgroundLoopError|EngineShutdownError)\b|"
    r"See root cause above|Engine core initialization failed"
    r"|Engine process failed to start|"
    r"EngineCore (?:encountered an issue|is dead)|[Ee]ngine loop (?:is dead|has died)|"
    r"[Bb]ackground loop (?:has errored|is not running|is stopped)|"
    r"Task finished unexpectedly|already dead|Executor failed\.|Engine is not running|"
    r"Failed core proc|WorkerProc initialization failed due to an exception|"
    r"see (?:the )?(?:error|stack trace|messages?) above|See stack trace|"
    r"Initialization failed\. Please see|scheduler is dead|^NoneType: None|"
    r"please check the stack trace above for the root cause|Worker failed with error|"
    r"(?:^|\.)(?:CancelledError|SystemExit|ClientDisconnect|EndOfStream|WouldBlock)\b|"
    r"Engine process \(pid \d+\) died|died unexpectedly|"
    r"Call to \w+ method failed|scheduler died|child(?: process)? failed|"
    r"(?:^|\.)(?:ChildFailedError|ProcessRaisedException|ProcessExitedException)\b|"
    r"^SystemExit|SIGQUIT|The actor died|ActorDiedError|WorkerCrashedError|"
    r"RayTaskError: |Application startup failed|^RuntimeError: cancelled|"
    r"cannot schedule new futures after"
)
"""Of a failure that was printed before, or elsewhere."""
QUOTES = re.compile(
    r"Worker failed with error '?\"?(?P<said>.+?)'?\"?(?:, please check|$)|"
    r"Call to \w+ method failed: (?P<call>.+)"
    r"|Task finished unexpectedly.*?: (?P<task>.+)$"
)
"""What an echo says of the failure itself."""

DEATHS = re.compile(
    r"EngineCore encountered a fatal error|EngineCore failed to start|died unexpectedly"
    r"|"
    r"EngineDeadError|Engine process \(pid \d+\) died|is already dead"
    r"|engine core exited unexpect|"
    r"terminating server process|Engine (?:background )?(?:task|loop) (?:failed|is dead"
    r"|has died)|"
    r"Engine background task failed|WorkerProc (?:failed|hit an exception)"
    r"|RayWorkerProc failed|"
    r"\w(?:Scheduler|Manager|Controller|Router|Client|Server)? hit an exception|"
    r"SIGQUIT received|[Rr]eceived (?:sigquit|SIGQUIT)|scheduler (?:is dead|died)|"
    r"(?:Scheduler or DataParallelController|[Ss]ubprocess|[Cc]hild process) .{0,60}"
    r"(?:terminated with|crashed|exited|unexpectedly failed|died)|"
    r"Engine (?:main )?loop failed|Task <\w*[Ll]oop\w*> failed|TP process \d+ failed|"
    r"Rank\[\d+\] failed|VllmWorkerProcess pid \d+ died|Worker .{0,60}(?:died|exited)|"
    r"Killing local vLLM worker|AsyncLLM output_handler failed|MQLLMEngine terminated|"
    r"Engine core initialization failed|Engine process failed to start|"
    r"ActorDiedError|actor died|WorkerCrashedError|backend is dead|"
    r"Scheduler hit|[Ee]ngine is dead|All workers? (?:have )?died|RayActorError|"
    r"DPEngineCore.{0,30}fatal|process died|Shutting down .{0,30}because .{0,40}died",
)
"""That a process of the server is gone, or ends now."""
STARTS_FAILED = re.compile(
    r"EngineCore failed to start|Engine core initialization failed|"
    r"Engine process failed to start|WorkerProc failed to start"
    r"|WorkerProc initialization failed|"
    r"died during initialization|Initialization failed\. Please"
    r"|Capture cuda graph failed|"
    r"Initialization failed\. (?:warmup )?error|Application startup failed|"
    r"engine failed to start|Error executing method '?(?:load_model|init_\w+"
    r"|determine_\w+|"
    r"initialize_\w+|compile_\w+)|while processing method (?:load_model|init_\w+|"
    r"determine_\w+|initialize_\w+)|"
    r"exception in background process"
)
AFTER_START = re.compile(r"(?<!\w)EngineCore encountered a fatal error")
"""vLLM's of an engine that was ready: of a start it says another one."""
WHOSE = re.compile(r"(?P<name>[A-Z]\w+) hit an exception")
READY = re.compile(
    r"Application startup complete|The server is fired up and ready to roll|"
    r"Uvicorn running on |HINT:\s+Please open"
)
STARTING = re.compile(
    r"vLLM (?:API )?server version|non-default args: |Initializing a(?: V\d"
    r"|n) LLM engine|"
    r"server_args=ServerArgs\(|Loading (?:model|weights|safetensors)|Load weight begin|"
    r"Init torch distributed begin|Capture cuda graph begin|Starting to load model|"
    r"Graph capturing|Capturing (?:CUDA|cuda) graph|Started server process|"
    r"Automatically detected platform|Resolved architecture"
)
START_FRAMES = re.compile(
    r"(?:^| )(?:load_model|init_device|determine_available_memory"
    r"|determine_num_available_blocks|"
    r"_initialize_kv_caches|initialize_kv_cache|initialize_cache|initialize_from_config"
    r"|"
    r"profile_run|compile_or_warm_up_model|capture_model|create_engine_config"
    r"|from_engine_args|"
    r"create_model_config|init_model_worker|init_memory_pool|init_torch_distributed|"
    r"init_distributed_environment|initialize_model_parallel|init_cuda_graphs?|"
    r"init_device_graphs|capture|wait_for_engine_startup|build_async_engine_client\w*|"
    r"__post_init__|init_worker|_init_executor|_init_workers_ray|init_app_state|"
    r"prepare_server_args|check_server_args|launch_server|_launch_subprocesses|"
    r"_load_weights|load_weights|build_model_context|run_mp_engine|run_rpc_server|"
    r"build_executor|from_pretrained|warmup\w*|kernel_warmup|import_module"
    r"|<module>)(?: |$)",
    re.MULTILINE,
)
LOOP_FRAMES = re.compile(
    r"(?:^| )(?:run_busy_loop|_process_engine_step|step_fn|execute_model"
    r"|step_with_batch_queue|"
    r"event_loop_\w+|run_batch|process_batch_result\w*|forward_thread_func_?"
    r"|run_engine_loop|"
    r"engine_step|step_async|process_input_requests|recv_requests|get_next_batch_to_run"
    r"|"
    r"_async_loop\w*|_forward_async|sample_tokens|worker_busy_loop|schedule|"
    r"_main_loop\w*|start_worker_execution_loop|_run_workers|async_step"
    r"|_step_forward)(?: |$)",
    re.MULTILINE,
)
ENTRY_FRAMES = re.compile(
    r"(?:^| )(?:run_engine_core|run_scheduler_process|run_mp_engine|run_engine|"
    r"make_worker_process|worker_main|__init__|run_server|from_vllm_config)(?: |$)",
    re.MULTILINE,
)
"""Where none of the loops is among them, it had not come so far."""
REQUEST_FRAMES = re.compile(
    r"fastapi/routing|starlette/(?:routing|middleware)|uvicorn/protocols|aiohttp/web_|"
    r"(?:^|/)(?:http/server|socketserver)\.py"
)
REQUEST_SOURCES = re.compile(
    r"(?:^|/)(?:serving\w*|api_router|protocol|chat_utils|serving_\w+|preprocess\w*"
    r"|renderer\w*|"
    r"utils/?async_utils|hf_renderers?|tool_parsers?/\w+|\w*tool_parser\w*|"
    r"\w*reasoning_parser\w*)\.py"
)
REQUEST_INTRO = re.compile(
    r"Error in preprocessing prompt|Exception in ASGI application"
    r"|Error in applying chat template|"
    r"Error in (?:chat|generate) (?:completion )?stream|Error in request|Error in beam|"
    r"Unexpected error pre-processing request|Error with model|Failed to parse|"
    r"Error processing request|Error in generating|Validation error"
    r"|Invocation of \w+ method|"
    r"Failed to load audio|Error in loading multi|Error trying to handle"
    r"|Error extracting|"
    r"Task exception was never retrieved|BadRequest|"
    r"Exception (?:occurred|happened) during processing of request from|"
    # SGLang's lines have no level: these are warnings, after which it goes on
    r"post-warmup freeze_gc failed|FPM publisher send failed"
    r"|NIXL L3 cleaner (?:tick )?failed"
)
"""What is answered with an error, or warned of, and ends nothing."""

REQUEST_TEXT = re.compile(
    r"Abort request |[Cc]lient disconnected|Request .{0,60}was aborted"
)
"""Of a request that its client gave up."""

HEARTBEAT = re.compile(
    r"No available shared memory broadcast block found in (\d+) ?seconds?"
)
"""vllm/distributed/device_communicators/shm_broadcast.py: a heartbeat, unless nothing
moves."""
STATS = re.compile(
    r"Avg prompt throughput: (?P<prompt>[\d.]+) tokens/s, Avg generation throughput: "
    r"(?P<generation>[\d.]+) tokens/s(?:.*?Running: (?P<running>\d+) reqs)?"
    r"(?:.*?(?:Waiting|Pending): (?P<waiting>\d+) reqs)?"
    r"(?:.*?KV cache usage: (?P<usage>[\d.]+)%)?"
)
"""vllm/v1/metrics/loggers.py and engine/metrics.py of V0."""
BATCH = re.compile(
    r"(?:Prefill|Decode) batch\b(?:.*?#running-req: (?P<running>\d+))?"
    r"(?:.*?#queue-req: (?P<queue>\d+))?"
)
"""sglang/srt/managers/scheduler_metrics_mixin.py."""
ANSWERED = re.compile(r"\"POST /[\w/.-]+ HTTP/1\.\d\" (?P<status>\d+)")
STANDS = re.compile(
    r"No available shared memory broadcast block|Preempt|preempted by|Retract "
    r"requests|out of memory happened|request queue is full|too long and exceeds"
    r"|advance FSM",
)
OVERLOAD = re.compile(
    r"(?:preempted by PreemptionMode|KV cache pool is full\. Retract requests|"
    r"The request queue is full|Retract requests\.|out of memory happened"
    r"|Too many requests|"
    r"queue (?:is )?full)"
)
NEVER_FITS = re.compile(
    # vllm/core/scheduler.py of V0
    r"Input prompt \(\d+ tokens\)"
    r"(?: \+ lookahead slots \(\d+\))? is too long and exceeds "
    r"(?:the capacity of block_manager|limit of)"
)
GRAMMAR_STUCK = re.compile(r"[Ff]ailed to advance FSM|GrammarMatcher.{0,80}terminated")

NO_LOGS: tuple[tuple[str, re.Pattern[str]], ...] = (
    (
        "a py-spy dump",
        re.compile(r"^Thread \d+ \((?:active|idle)|^Process \d+: .*\n.*Python v", re.M),
    ),
    (
        "text of metrics",
        re.compile(r"^# (?:HELP|TYPE) \w|^[a-z_:]+\{[^}\n]*\} [-+\d.eE]+$", re.M),
    ),
    ("a table of nvidia-smi", re.compile(r"NVIDIA-SMI \d")),
    ("a backtrace of gdb", re.compile(r"^#\d+ +(?:0x[0-9a-f]+ in )?\w.* \(", re.M)),
    (
        "a stack dump of Python",
        re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+ ", re.M),
    ),
    ("JSON", re.compile(r"\A\s*[\[{]\s*\n?\s*[\"\[{]")),
    ("a page of HTML", re.compile(r"<html|<!DOCTYPE html", re.I)),
    (
        "source code",
        re.compile(r"^(?:import \w|from \w+ import |def \w+\(|#!/|#include )", re.M),
    ),
)
"""What a file seems to be whose lines have no log's form."""


def meaning(text: str, *, exception: bool) -> Rule | None:
    """The first rule that fits an exception's or a line's words."""
    for rule in RULES:
        if (exception or rule.alone) and rule.expression.search(text):
            return rule
    return None


ANCHORS = re.compile(
    r"encountered a fatal error|failed to start|died unexpectedly|EngineDeadError"
    r"|already dead|"
    r"hit an exception|SIGQUIT received|sigquit from a child|scheduler is dead"
    r"|loop failed|"
    r"background task failed|output_handler failed|initialization failed"
    r"|Watchdog caught|"
    r"atchdog timeout|\[Watchdog\]Dumped|watchdog thread terminated|Fatal Python error|"
    r"terminate called|"
    r"Segmentation fault|SIGSEGV|SIGBUS|SIGABRT|Segfault encountered|core dumped|Killed"
    r"|"
    r"Out of memory: |oom-kill|NVRM: |CUDA error|HIP error|CUDA runtime error"
    r"|out of memory|"
    r"OutOfMemoryError|illegal memory access|Too many open files"
    r"|No space left on device|"
    r"RPC call to|No heartbeat received|heartbeats timed out|exit code: -|exitcode|"
    r"terminated with -|memory leak detected|start new thread|bad_alloc|NCCL error|"
    r"DistBackendError|Connection closed by peer|Received SIGTERM|KeyboardInterrupt|"
    r"process \(pid \d+\) died|\[TM\]\[FATAL\]|\[TM\]\[ERROR\]"
    r"|Engine iteration timed out"
)
"""What of a large log is kept with what stands around it."""

PATTERNS: Mapping[str, str] = {
    "cause-stands": STANDS.pattern,
    "cause-placeholders": next(
        rule.expression.pattern for rule in RULES if rule.name is C.PLACEHOLDER_COUNTS
    ),
}
"""What a log is searched for besides: it stands far from the lines that tell an end."""
