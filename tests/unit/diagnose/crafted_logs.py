"""Logs made of parts, each with what may be said of it: whose line is it, what is
survived, what only echoes, what a start is, which platform.

A case is a server's part (its engine's lines) and what somebody else, or it itself,
writes beside it. Nothing is said at ``certain`` or ``likely`` that is not in
``allowed``, and the state is one of ``states``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class CraftedLog:
    """A log, the first words that are right, and the classes that may be sure."""

    name: str
    text: str
    states: frozenset[str]
    allowed: frozenset[str] = frozenset()
    platform: str = ""


F = "(APIServer pid=31)"
E = "(EngineCore pid=44)"
W = "(Worker_TP1 pid=58)"
AT = "04-02 11:20:"
STATS = (
    "[loggers.py:259] Engine 000: Avg prompt throughput: 120.0 tokens/s, Avg generation "
    "throughput: 60.5 tokens/s, Running: 2 reqs, Waiting: 0 reqs, GPU KV cache usage: "
    "3.1%, Prefix cache hit rate: 0.0%"
)


def vllm(*between: str) -> str:
    """A vLLM server that works before and after ``between``."""
    lines = [
        f"{F} INFO {AT}00 [api_server.py:1977] vLLM API server version 0.24.0",
        f"{F} INFO:     Application startup complete.",
        f"{F} INFO {AT}10 {STATS}",
        *between,
    ]
    for minute in range(30, 34):
        lines.append(f"{F} INFO 04-02 11:{minute}:10 {STATS}")
    return "\n".join(lines) + "\n"


def sglang(*between: str) -> str:
    """An SGLang server that works before and after ``between``."""
    day = "2026-04-02 11"
    lines = [
        f"[{day}:20:00] server_args=ServerArgs(model_path='m', tp_size=2)",
        f"[{day}:20:09] The server is fired up and ready to roll!",
        f"[{day}:20:10 TP0] Decode batch, #running-req: 2, #token: 90, token usage: 0.01, "
        "gen throughput (token/s): 50.0, #queue-req: 0",
        *between,
    ]
    for minute in range(30, 34):
        lines.append(
            f"[{day}:{minute}:10 TP0] Decode batch, #running-req: 1, #token: 120, token "
            "usage: 0.01, gen throughput (token/s): 51.0, #queue-req: 0"
        )
    return "\n".join(lines) + "\n"


def lmdeploy(*between: str) -> str:
    """An LMDeploy server that works before and after ``between``."""
    lines = [
        "2026-04-02 11:20:00,120 - lmdeploy - INFO - api_server.py:1400 - server is up",
        "INFO:     Application startup complete.",
        'INFO:     10.4.0.9:40112 - "POST /v1/chat/completions HTTP/1.1" 200 OK',
        *between,
    ]
    for port in range(40113, 40120):
        lines.append(
            f'INFO:     10.4.0.9:{port} - "POST /v1/chat/completions HTTP/1.1" 200 OK'
        )
    return "\n".join(lines) + "\n"


SERVERS = {"vllm": vllm, "sglang": sglang, "lmdeploy": lmdeploy}
ALIVE = frozenset({"alive"})
LIVES = frozenset({"alive", "one-request-failed"})

OF_OTHERS = {
    "kernel kills a browser": "[8812.3] Out of memory: Killed process 9911 (chrome) "
    "total-vm:9123456kB, anon-rss:6123456kB",
    "kernel kills a database": "[8812.3] Memory cgroup out of memory: Killed process 77 "
    "(postgres) total-vm:123456kB",
    "segfault of a desktop": "[8812.3] gnome-shell[1412]: segfault at 18 ip "
    "00007f3a5c1e2b40 sp 00007ffd0a1 error 4 in libmutter.so[7f3a5000+1000]",
    "Xid of a renderer": "[8812.3] NVRM: Xid (PCI:0000:3b:00): 31, pid=4511, "
    "name=Xorg, Ch 00000008, intr 00000000. MMU Fault",
    "systemd ends another unit": "Apr 02 11:21:00 gpu7 systemd[1]: nginx.service: Main "
    "process exited, code=killed, status=9/KILL",
    "a trap of a backup": "[8812.3] traps: restic[1412] general protection fault "
    "ip:7f3a5c sp:7ffd0a error:0 in libc.so.6[7f3a50000000+1000]",
    "a unit is stopped": "Apr 02 11:21:00 gpu7 systemd[1]: cron.service: Failed with "
    "result 'signal'.",
}
"""Lines of the kernel and of supervisors about processes that are none of a server's."""

SAID = (
    "EngineCore encountered a fatal error",
    "CUDA error: an illegal memory access was encountered",
    "Killed process 44 (VLLM::EngineCor)",
    "torch.OutOfMemoryError: CUDA out of memory",
    "Segmentation fault (core dumped)",
    "Received sigquit from a child process",
    "Worker proc VllmWorker-1 died unexpectedly",
    "NCCL watchdog thread terminated with exception",
    "EngineCore failed to start",
    "FAILED tests/test_x.py::test_it - AssertionError",
)
"""What a client may write into a prompt."""

WARNED = (
    "Using default MoE config. Performance might be sub-optimal!",
    "Preemption may be needed if memory is used up: out of memory is handled",
    "Found ulimit of 1024 and failed to automatically increase; too many files may fail",
    "NCCL_DEBUG is set; timeouts are printed",
    "a common cause is that the process was killed by SIGKILL by the OOM killer",
    "No tuned configuration for sm_90 or gfx942: defaults are used",
    "There are some potential root causes. (1) SIGKILL by OOM killer (2) SIGSEGV",
    "FlashInfer is not installed; the native sampler is used",
)


def quoting(prompt: str) -> dict[str, str]:
    """How each engine's log quotes a prompt."""
    return {
        "vllm": f"{F} INFO {AT}20 [logger.py:42] Received request chatcmpl-7: prompt: "
        f"'{prompt}', params: SamplingParams(n=1, max_tokens=9), lora_request: None.",
        "sglang": "[2026-04-02 11:20:20] Receive: obj=GenerateReqInput(rid='7a', "
        f"text='{prompt}', sampling_params={{'max_new_tokens': 9}})",
        "lmdeploy": "2026-04-02 11:20:20,120 - lmdeploy - INFO - async_engine.py:640 - "
        f"session=7, adapter_name=None, input_tokens=9, prompt='{prompt}'",
    }


def warning(words: str) -> dict[str, str]:
    """How each engine logs a warning."""
    return {
        "vllm": f"{E} WARNING {AT}20 [config.py:88] {words}",
        "sglang": f"[2026-04-02 11:20:20 TP1] {words}",
        "lmdeploy": f"2026-04-02 11:20:20,120 - lmdeploy - WARNING - config.py:88 - {words}",
    }


def _beside_works() -> Iterator[CraftedLog]:
    """Servers that work, whatever else the file holds."""
    for engine, server in SERVERS.items():
        for what, line in OF_OTHERS.items():
            yield CraftedLog(f"{engine}: {what}", server(line), LIVES)
        for prompt in SAID:
            text = server(quoting(prompt)[engine])
            yield CraftedLog(f"{engine}: a client says {prompt}", text, LIVES)
        for words in WARNED:
            text = server(warning(words)[engine])
            yield CraftedLog(f"{engine}: warned {words}", text, LIVES)


REFUSED = (
    "ValueError: This model's maximum context length is 4096 tokens.",
    "BadRequestError: top_logprobs must be between 0 and 20",
    "ValidationError: 1 validation error for ChatCompletionRequest",
)


def _refusals() -> Iterator[CraftedLog]:
    """Requests that were answered with 400."""
    for engine, server in SERVERS.items():
        for said in REFUSED:
            answer = (
                'INFO:     10.4.0.9:40111 - "POST /v1/completions HTTP/1.1" 400 Bad'
            )
            lines = [
                f"{F} ERROR {AT}20 [serving_chat.py:240] Error in preprocessing prompt",
                f"{F} ERROR {AT}20 [serving_chat.py:240] Traceback (most recent call last):",
                f'{F} ERROR {AT}20 [serving_chat.py:240]   File "/v/fastapi/routing.py", '
                "line 3, in app",
                f"{F} ERROR {AT}20 [serving_chat.py:240] {said}",
            ]
            if engine != "vllm":
                lines = []
            text = server(*lines, f"{answer} Request")
            yield CraftedLog(f"{engine}: refuses {said}", text, LIVES)


def _echo(prefix: str) -> str:
    at = f"{prefix}{F} ERROR {AT}40 [async_llm.py:700]"
    return "\n".join(
        [
            f"{at} AsyncLLM output_handler failed.",
            f"{at} Traceback (most recent call last):",
            f'{at}   File "/v/vllm/v1/engine/core_client.py", line 990, in get_output_async',
            f"{at}     raise self._format_exception(outputs) from None",
            f"{at} vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an "
            "issue. See stack trace (above) for the root cause.",
            "",
        ]
    )


PREFIXES = {
    "bare": "",
    "kubectl": "[pod/q-0/engine] ",
    "compose": "engine-1  | ",
    "journal": "Apr 02 11:20:40 gpu7 llm[31]: ",
    "CRI": "2026-04-02T11:20:40.123456789Z stderr F ",
    "job": "2026-04-02T11:20:40.1234567Z ",
}


def _echoes() -> Iterator[CraftedLog]:
    """Only what others said of a failure."""
    dead = frozenset({"dead", "unknown"})
    for name, prefix in PREFIXES.items():
        whole = _echo(prefix).splitlines(keepends=True)
        for cut in (0, 2, 4):
            text = "".join(whole[cut:])
            yield CraftedLog(f"echo, {name}, from line {cut}", text, dead)


PLATFORMS = {
    "rocm": "RuntimeError: HIP out of memory. Tried to allocate 2.00 GiB",
    "npu": "RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB (NPU 0)",
    "xpu": "torch.OutOfMemoryError: XPU out of memory. Tried to allocate 2.00 GiB.",
    "tpu": "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: XLA:TPU compile permanent "
    "error. Ran out of memory in memory space hbm.",
    "cuda": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
}


def _of_platforms() -> Iterator[CraftedLog]:
    """The same failure on each platform, at a start and at work."""
    for platform, said in PLATFORMS.items():
        at = f"{E} ERROR {AT}20 [core.py:900]"
        frames = [
            f"{at} Traceback (most recent call last):",
            f'{at}   File "/v/vllm/v1/engine/core.py", line 9, in run_engine_core',
        ]
        start = [
            f"{F} INFO {AT}00 [api_server.py:1977] vLLM API server version 0.24.0",
            f"{at} EngineCore failed to start.",
            *frames,
            f'{at}   File "/v/vllm/v1/worker/worker.py", line 9, in load_model',
            f"{at} {said}",
        ]
        yield CraftedLog(
            f"{platform}: at a start",
            "\n".join(start) + "\n",
            frozenset({"never-ready"}),
            frozenset({"failed-start"}),
            platform,
        )
        work = [
            f"{F} INFO:     Application startup complete.",
            f"{F} INFO {AT}10 {STATS}",
            f"{at} EngineCore encountered a fatal error.",
            *frames,
            f'{at}   File "/v/vllm/v1/worker/worker.py", line 9, in execute_model',
            f"{at} {said}",
        ]
        yield CraftedLog(
            f"{platform}: at work",
            "\n".join(work) + "\n",
            frozenset({"dead"}),
            frozenset({"out-of-gpu-memory"}),
            platform,
        )


EXCEPTIONS = (
    "KeyError: 'layers.9.gate'",
    "TypeError: object of type 'NoneType' has no len()",
    "AssertionError",
    "IndexError: index 9 is out of bounds for dimension 0 with size 8",
    "AttributeError: 'NoneType' object has no attribute 'shape'",
    "RuntimeError: The size of tensor a (5) must match the size of tensor b (7)",
)


def _defects() -> Iterator[CraftedLog]:
    """Exceptions of the engine: at work it is dead, at a start never ready; no request
    is to blame."""
    for said in EXCEPTIONS:
        at = "[2026-04-02 11:20:20 TP1]"
        frames = [
            f"{at} Scheduler hit an exception: Traceback (most recent call last):",
            '  File "/s/sglang/srt/managers/scheduler.py", line 31, in '
            "run_scheduler_process",
        ]
        work = [
            "[2026-04-02 11:20:10 TP0] Decode batch, #running-req: 2, #token: 90, token "
            "usage: 0.01, gen throughput (token/s): 50.0, #queue-req: 0",
            *frames,
            "    scheduler.event_loop_overlap()",
            '  File "/s/sglang/srt/layers/moe.py", line 31, in forward',
            "    x = self.table[i]",
            said,
        ]
        yield CraftedLog(
            f"at work: {said}",
            "\n".join(work) + "\n",
            frozenset({"dead"}),
            frozenset({"engine-defect"}),
        )
        start = [
            "[2026-04-02 11:20:00] server_args=ServerArgs(model_path='m', enable_lora=True)",
            *frames,
            "    scheduler = Scheduler(",
            '  File "/s/sglang/srt/lora/mem_pool.py", line 31, in load_lora_weights',
            "    x = self.lora_modules[i]",
            said,
        ]
        yield CraftedLog(
            f"at a start: {said}",
            "\n".join(start) + "\n",
            frozenset({"never-ready"}),
            frozenset({"failed-start"}),
        )


TRANSFERS = ("mooncake", "nixl")


def _transfers() -> Iterator[CraftedLog]:
    """A pair of servers gives a request up, and goes on."""
    for side in ("Decode", "Prefill"):
        for kind in ("transfer", "bootstrap", "handshake"):
            line = (
                f"[2026-04-02 11:20:20 TP0] {side} {kind} failed for request rank=0 "
                "req.rid='7a' req.bootstrap_room=5 with exception "
                "KVTransferError(bootstrap_room=5): the other side is gone"
            )
            yield CraftedLog(f"{side} {kind}", sglang(line), LIVES)


def _tests() -> Iterator[CraftedLog]:
    """Jobs in which a test, or the job's machine, failed."""
    failed = frozenset({"test-failed"})
    for n, said in enumerate(
        (
            "assert 53 >= 66",
            "AssertionError: outputs differ",
            "HfHubHTTPError: 429 Client Error: Too Many Requests",
            "OSError: [Errno 28] No space left on device",
        )
    ):
        for stamp in ("", "[2026-04-02T11:20:20Z] ", "2026-04-02T11:20:20.1234567Z "):
            lines = [
                f"{stamp}============ test session starts ============",
                f"{stamp}collected 9 items",
                f"{stamp}=================== FAILURES ===================",
                f"{stamp}_________________ test_it[{n}] _________________",
                f"{stamp}E       {said}",
                f"{stamp}=========== short test summary info ===========",
                f"{stamp}FAILED tests/test_x.py::test_it[{n}] - {said}",
                f"{stamp}=========== 1 failed, 8 passed in 9.21s ===========",
            ]
            text = "\n".join(lines) + "\n"
            yield CraftedLog(f"test {n}, stamp {stamp!r}", text, failed)


CODES = {-9: "SIGKILL", -11: "SIGSEGV", 136: "SIGFPE", 139: "SIGSEGV", 134: "SIGABRT"}


def _exit_codes() -> Iterator[CraftedLog]:
    """A process that ended by a signal, as its exit code has it."""
    for code in CODES:
        text = (
            f"{F} INFO {AT}10 {STATS}\nERROR {AT}20 [launcher.py:9] worker 1 is gone, "
            f"exit code {code}\n"
        )
        allowed = frozenset({"native-crash", "killed-by-signal"})
        yield CraftedLog(f"exit code {code}", text, frozenset({"dead"}), allowed)


def _two_servers() -> Iterator[CraftedLog]:
    """One of two replicas ends; the first word is its own."""
    for prefix in ("engine-{}  | ", "[pod/q-{}/engine] "):
        one, two = prefix.format(1), prefix.format(2)
        lines = [f"{one}{F} INFO {AT}10 {STATS}", f"{two}{F} INFO {AT}10 {STATS}"]
        at = f"{one}{E} ERROR {AT}20 [core.py:900]"
        lines += [
            f"{at} EngineCore encountered a fatal error.",
            f"{at} Traceback (most recent call last):",
            f'{at}   File "/v/vllm/v1/engine/core.py", line 9, in run_engine_core',
            f"{at} KeyError: 'layer'",
            f"{two}{F} INFO 04-02 11:30:10 {STATS}",
            f"{two}{F} INFO 04-02 11:31:10 {STATS}",
        ]
        allowed = frozenset({"engine-defect"})
        text = "\n".join(lines) + "\n"
        yield CraftedLog(f"two: {prefix}", text, frozenset({"dead"}), allowed)


def _only_started() -> Iterator[CraftedLog]:
    """Starts that nothing ended, cut after each line."""
    lines = [
        f"{F} INFO {AT}00 [api_server.py:1977] vLLM API server version 0.24.0",
        f"{F} INFO {AT}01 [cli_args.py:325] non-default args: {{'model': 'm'}}",
        f"{E} INFO {AT}02 [core.py:93] Initializing a V1 LLM engine (v0.24.0) with config: "
        "model='m', device_config=cuda",
        f"{E} INFO {AT}09 [gpu_model_runner.py:88] Starting to load model m...",
        f"{E} INFO {AT}30 [default_loader.py:30] Loading weights took 20.10 seconds",
    ]
    states = frozenset({"never-ready", "unknown"})
    for end in range(1, len(lines) + 1):
        text = "\n".join(lines[:end]) + "\n"
        yield CraftedLog(f"start, {end} lines", text, states)


def crafted() -> list[CraftedLog]:
    """All of them."""
    return [
        *_beside_works(),
        *_refusals(),
        *_echoes(),
        *_of_platforms(),
        *_defects(),
        *_transfers(),
        *_tests(),
        *_exit_codes(),
        *_two_servers(),
        *_only_started(),
    ]
