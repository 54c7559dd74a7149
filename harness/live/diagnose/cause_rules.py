"""What the words of engines, libraries and the kernel mean.

The rules are the rows of ``engines/rules/ends.toml``, each with its source and its
examples; what a long log is searched for follows from them. A rule is tried on
exceptions and, where ``alone``, on any line's own words; the first that fits decides.
Echoes are what others say of a failure that was printed before."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from mmrepro.engines.log_rules import (
    BoundedExpression,
    LogRule,
    read_rules,
    shipped_rules,
    shipped_signs,
)
from mmrepro.failure.documents import CAUSE_WORDS, Cause, CauseClass as C, Certainty
from mmrepro.probes import LogLine, words_of
from mmrepro.probes.log_words import public_line

SHOWN = 240
CERTAIN, LIKELY, POSSIBLE = Certainty.CERTAIN, Certainty.LIKELY, Certainty.POSSIBLE


@dataclass(frozen=True)
class CauseRule:
    """What a text means.

    Attributes: name: the class. expression: searched in an exception's type and
        message, or in a line's own words. sure: at most so sure; a class that is often
        the effect of another is never certain. alone: a line without an exception says
        it too. effect: it follows from what happened elsewhere, as a rule: what says
        more goes before it. sentence, advice: beside the class's own. bounded: in place
        of the expression, where somebody else wrote it.
    """

    name: C
    expression: re.Pattern[str]
    sure: Certainty = CERTAIN
    alone: bool = True
    effect: bool = False
    sentence: str = ""
    advice: tuple[str, ...] = ()
    bounded: BoundedExpression | None = None

    def matches(self, text: str) -> bool:
        """Whether its words stand in ``text``."""
        if self.bounded is not None:
            return self.bounded.matches(text)
        return self.expression.search(text) is not None


def made_of(rule: LogRule) -> CauseRule:
    """The rule as it is tried, of a row that comes with the package."""
    return CauseRule(
        name=C(rule.name),
        expression=re.compile(rule.expression),
        sure=Certainty(rule.certainty),
        alone=rule.alone,
        effect=rule.effect,
        sentence=rule.sentence,
        advice=rule.advice,
    )


CUDA_SETUP = re.compile(
    r"no kernel image|invalid device ordinal|initialization error|driver version|"
    r"invalid device function|not supported(?! on global)|PTX|unsupported|no CUDA-capable device"
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

ENDS = "ends.toml"
RULES: tuple[CauseRule, ...] = tuple(map(made_of, shipped_rules(ENDS)))
"""First fit first."""
SIGNS = shipped_signs(ENDS)

START_TEXT = re.compile(
    r"^(?:\w+\.)*(?:ModuleNotFoundError|ImportError)\b|undefined symbol"
    r"|not supported for now|"
    r"trust_remote_code|Cannot re-initialize CUDA in forked|No CUDA GPUs are available|"
    r"Address already in use|No available memory for the cache blocks|"
    r"error from cudaGetDeviceCount\(\)|Found no NVIDIA driver|"
    r"NVIDIA driver on your system is too old"
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

ANNOUNCES = re.compile(
    r"failed\.?$|encountered a fatal error|hit an exception|terminating server|"
    r"is already dead|Traceback \(most recent|[Ee]xception in|[Ee]rror in"
)
"""What a logger says before an exception, of which the lines of an echo are."""
BELOW_GPU_ERRORS = re.compile(
    r"^(?:CUDA|HIP) kernel errors might be asynchronously reported|"
    r"^For debugging consider passing (?:CUDA_LAUNCH_BLOCKING|AMD_SERIALIZE_KERNEL)|"
    r"^Compile with `?TORCH_USE_(?:CUDA|HIP)_DSA"
)
DEATHS = re.compile(SIGNS["deaths"].expression)
"""That a process of the server is gone, or ends now."""
STARTS_FAILED = re.compile(SIGNS["starts-failed"].expression)
AFTER_START = re.compile(r"(?<!\w)EngineCore encountered a fatal error")
"""vLLM's of an engine that was ready: of a start it says another one."""
WHOSE = re.compile(r"(?P<name>[A-Z]\w+) hit an exception")
READY = re.compile(
    r"Application startup complete|The server is fired up and ready to roll|"
    r"Uvicorn running on |HINT:\s+Please open|"
    # vllm-rs of 0.23.0 and of 0.33.0
    r"starting OpenAI server bind_address=|OpenAI server is ready to accept requests"
)
STARTING = re.compile(
    r"vLLM (?:API )?server version|non-default args: |Initializing a(?: V\d"
    r"|n) LLM engine|"
    r"server_args=ServerArgs\(|Loading (?:model|weights|safetensors)|Load weight begin|"
    r"Init torch distributed begin|Capture cuda graph begin|Starting to load model|"
    r"Graph capturing|Capturing (?:CUDA|cuda) graph|Started server process|"
    r"Automatically detected platform|Resolved architecture|rank \d+ in world size \d|"
    r"world_size=\d+ rank=\d|KV Cache is allocated|Load weight end"
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
    r"|_step_forward)(?: |$)|\.(?:event_loop_\w+|run_busy_loop)\(",
    re.MULTILINE,
)
TAKES_IN_FRAMES = re.compile(
    r"process_input_sockets|preprocess_add_request|_handle_client_request|\badd_request\b"
    r"|handle_generate_request|/sampling_params\.py"
)
"""Functions of an engine that take a request in."""
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

GUESSES = re.compile(
    r"There are some potential root causes|a common cause is|[Cc]ommon causes|"
    r"This typically indicates|[Pp]ossible (?:causes|reasons)|could be triggered by|"
    r"[Tt]his (?:may|might|could) be (?:because|caused|due)"
)
"""What a program supposes, and does not know: all behind it is none of the failure."""


def without_guesses(text: str) -> str:
    """A text up to where it begins to suppose."""
    match = GUESSES.search(text)
    return text[: match.start()] if match else text


REQUEST_FAILED = re.compile(
    r"(?:Decode|Prefill) (?:transfer|bootstrap|handshake) failed for request|"
    r"(?:Decode|Prefill) failed for request"
)
"""A request of a pair of servers that one of them gave up; the servers go on."""

SERVER_ERROR = re.compile(r"\"(?:POST|GET) /[\w/.-]+ HTTP/1\.\d\" 5\d\d")

REQUESTED = re.compile(
    r"\"POST /|Received request|Added request|Dumping scheduler output|"
    r"SamplingParams\(|#new-seq|#running-req|Running: [1-9]"
)
"""That a request had come."""

LIVES = re.compile(
    r"\"(?:POST /[\w/.-]+|GET /(?:health\w*|v1/models)[\w/.-]*) HTTP/1\.\d\" 200"
)
"""Answers that a server without its engine does not give."""

PROCESS_FRAMES = re.compile(
    r"(?:^| )(?:run_engine_core|run_scheduler_process|run_mp_engine|worker_main"
    r"|make_worker_process|run_rpc_server)(?: |$)",
    re.MULTILINE,
)
"""The functions that a process of an engine consists of: what leaves them ends it."""

_STAMP = r"^(?:\[[\dT:Z.+-]{16,32}\] ?)?"
"""Buildkite's, where too few lines have it to be known from the text itself."""
TEST_JOB = re.compile(
    rf"{_STAMP}(?:=+ (?:short test summary info|FAILURES|ERRORS|test session starts) =+"
    r"|(?:FAILED|ERROR) \S+::\S+|_+ (?:ERROR at setup of )?test_\S+.* _+$"
    r"|collected \d+ items?|=+ .{0,120}\d+ (?:failed|errors?|passed)\b.* in [\d.]+s)"
)
"""What pytest prints of a run."""
FAILED_TEST = re.compile(
    rf"{_STAMP}(?:(?:FAILED|ERROR) \S+::\S+"
    r"|_+ (?:ERROR at setup of )?test_\S+.* _+$)"
)
INFRASTRUCTURE = re.compile(
    r"No space left on device|Error response from daemon|[Tt]oo ?[Mm]any ?[Rr]equests"
    r"|429 Client Error|(?:The|This) runner has received a shutdown signal"
    r"|lost communication with the server|The operation was canceled|[Aa]gent (?:was )?lost"
    r"|Could not resolve host|Temporary failure in name resolution|ReadTimeoutError"
    r"|HfHubHTTPError|50[234] (?:Server Error|Bad Gateway|Service Unavailable)"
    r"|docker: |Cannot connect to the Docker daemon|ECR|manifest unknown"
    r"|exit status -1\b|spot (?:instance )?interrupt",
)
"""What ends a job and is neither the test's nor the engine's."""

NATIVE_FRAMES = re.compile(r"\bframe #\d+: .{1,400} in \S+\.so")
"""torch's, below an exception of C++."""

CHILD_FAILED = re.compile(r"[Rr]eceived sigquit from a child|kill_process_tree called")
"""SGLang's, before it kills all that is left of itself: what failed was logged
before."""
OWN_KILL = re.compile(r"^(?:\S+: line \d+: +)?(?:\d+ )?Killed\b")
OF_KERNEL = re.compile(r"\[drm\]|\bamdgpu\b|\bNVRM: ")
"""The kernel's lines of a device: they name it, and not always who used it."""

SILENT_ENDS = re.compile(
    r"worker process has died|(?<![Aa]ctor )died unexpectedly|Engine process \(pid \d+\) died|"
    r"exit ?code|terminated with -|\bpid \d+ died"
)
"""That a process is gone without an exception of its own."""

HEARTBEAT = re.compile(
    r"No available shared memory broadcast block found in (\d+) ?seconds?"
)
"""vllm/distributed/device_communicators/shm_broadcast.py: a heartbeat, unless nothing
moves."""
STATS = re.compile(
    r"Avg prompt t(?:hrough)?put: (?P<prompt>[\d.]+) tok(?:en)?s/s, "
    r"Avg generation t(?:hrough)?put: (?P<generation>[\d.]+) tok(?:en)?s/s"
    r"(?:.*?Running: (?P<running>\d+)(?: reqs)?)?"
    r"(?:.*?(?:Waiting|Pending): (?P<waiting>\d+)(?: reqs)?)?"
    r"(?:.*?KV cache us(?:age|ed): (?P<usage>[\d.]+)%)?"
)
"""vllm/v1/metrics/loggers.py and engine/metrics.py of V0; "tput" and "toks/s" are the
Rust front end's (log_stats.rs)."""
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
_GRAMMAR_STUCK = re.compile(r"[Ff]ailed to advance FSM|GrammarMatcher.{0,80}terminated")

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


def _all_rules() -> tuple[CauseRule, ...]:
    """An operator's own rules, and those that come with the package."""
    return (*_own, *RULES)


_own: tuple[CauseRule, ...] = ()


@contextmanager
def with_rules(file: Path | None) -> Iterator[None]:
    """Try the rules of an operator's file before all others, in this process.

    Raises:
        UsageError: they do not load.
    """
    global _own
    before = _own
    if file is not None:
        _own = tuple(map(_bounded, read_rules(file, [name.value for name in C])))
    try:
        yield
    finally:
        _own = before


def own_cause(lines: Sequence[LogLine]) -> Cause | None:
    """What the first line means that one of an operator's rules fits; None: no rule
    does, or there are none."""
    if not _own:
        return None
    for line in lines:
        for rule in _own:
            if rule.matches(line.own_words):
                return _cause_by(rule, line)
    return None


def _cause_by(rule: CauseRule, line: LogLine) -> Cause:
    said = public_line(line, SHOWN).strip()
    words = rule.sentence.rstrip(".") or CAUSE_WORDS[rule.name].capitalize()
    return Cause(
        name=rule.name,
        certainty=rule.sure,
        sentence=f"{words}: {said}",
        exception=said,
        process=line.process,
        time=line.time,
        line=line.number,
        file=line.file,
        why=[f"line {line.number}: {said}"],
        advice=list(rule.advice),
    )


def _bounded(rule: LogRule) -> CauseRule:
    """A rule of somebody else's: its expression takes no more time than its line is
    long."""
    return replace(made_of(rule), bounded=BoundedExpression(rule.expression))


def meaning(text: str, *, exception: bool) -> CauseRule | None:
    """The first rule that fits an exception's or a line's words."""
    text = without_guesses(text)
    for rule in _all_rules():
        if (exception or rule.alone) and rule.matches(text):
            return rule
    return None


def places() -> Mapping[str, str]:
    """What of a large log is kept with what stands around it: by class, the patterns of
    its rules, and the signs of an end."""
    kinds: dict[str, list[str]] = {}
    for rule in RULES:
        kinds.setdefault(rule.name.value, []).append(rule.expression.pattern)
    for name, sign in SIGNS.items():
        kinds[name] = [sign.expression]
    for number, rule in enumerate(_own):
        # Its words alone: they are plain texts, so that no backtracking is possible.
        kinds[f"own-{number}"] = [*map(re.escape, words_of(rule.expression))]
    return {kind: "|".join(patterns) for kind, patterns in kinds.items()}


PATTERNS: Mapping[str, str] = {
    "cause-stands": STANDS.pattern,
    "cause-placeholders": next(
        rule.expression.pattern for rule in RULES if rule.name is C.PLACEHOLDER_COUNTS
    ),
}
"""What a log is searched for besides: it stands far from the lines that tell an end."""
