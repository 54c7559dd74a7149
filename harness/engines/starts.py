"""Why a server did not start: a table of causes over the lines of its log. Pure
functions.

The last line of a failed start is an echo ("See root cause above", "Received sigquit
from a child process"). The table is tried on each exception, in the order of the log:
the first one that it knows is the cause. What an engine logs as a warning and survives
is no cause by itself.

A pattern stands for the engine's own words. It is matched from the beginning of an
exception's message, so that a path or a model's name that imitates it proves nothing.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from mmrepro.base.errors import did_you_mean
from mmrepro.base.units import MIB, size
from mmrepro.engines.environments.loading import SYSTEM_PACKAGES
from mmrepro.probes import (
    MAX_MESSAGE_LINES,
    QUOTED_CHAR,
    LineReader,
    LogLine,
    RaisedException,
    TracebackFrame,
    Tracebacks,
    Unavailable,
    exceptions_in,
)
from mmrepro.probes.log_files import BROKEN, open_log
from mmrepro.probes.log_words import public_line

if TYPE_CHECKING:
    from mmrepro.engines.base import Engine
    from mmrepro.engines.log_rules import LogRule

# ------------------------------------------------------------------ what a cause is


class StartFault(StrEnum):
    """What stands below the class ``failed-start``; the words are stable."""

    DRIVER_TOO_OLD = "driver-too-old"
    DRIVER_MISMATCH = "driver-mismatch"
    GPU_NOT_READY = "gpu-not-ready"
    NO_GPU = "no-gpu"
    LIBRARY_MISSING = "library-missing"
    NO_KERNEL_IMAGE = "no-kernel-image"
    ABI_MISMATCH = "abi-mismatch"
    COMPILER_MISSING = "compiler-missing"
    MISSING_MODULE = "missing-module"
    UNKNOWN_ARCHITECTURE = "unknown-architecture"
    TRANSFORMERS_VERSION = "transformers-version"
    PACKAGE_VERSION = "package-version"
    MODEL_NOT_FOUND = "model-not-found"
    MODEL_GATED = "model-gated"
    WEIGHTS_MISSING = "weights-missing"
    WEIGHTS_UNREADABLE = "weights-unreadable"
    WEIGHTS_MISMATCH = "weights-mismatch"
    TOKENIZER = "tokenizer"
    TRUST_REMOTE_CODE = "trust-remote-code"
    OUT_OF_GPU_MEMORY = "out-of-gpu-memory"
    OUT_OF_HOST_MEMORY = "out-of-host-memory"
    KV_CACHE_TOO_SMALL = "kv-cache-too-small"
    MAX_MODEL_LEN = "max-model-len-too-large"
    BATCHED_TOKENS = "batched-tokens-too-small"
    QUANTISATION = "quantisation-unsupported"
    DTYPE = "dtype-unsupported"
    PORT_TAKEN = "port-taken"
    SHARED_MEMORY = "shared-memory"
    MACHINE_LIMIT = "machine-limit"
    DISK_FULL = "disk-full"
    PERMISSION = "permission"
    NCCL = "nccl"
    INTERFACE = "network-interface"
    TOO_FEW_DEVICES = "too-few-devices"
    NOT_DIVISIBLE = "heads-not-divisible"
    BAD_ARGUMENT = "bad-argument"
    CHAT_TEMPLATE = "chat-template"
    NATIVE_CRASH = "native-crash"
    KILLED = "killed-while-loading"
    HANG = "hang-at-start"
    START_RACE = "start-race"


@dataclass(frozen=True)
class FailedStart:
    """Why a start failed.

    Attributes:
        certain: the log states it; else it is the likeliest reading.
        exception: the exception or line that states it, at most 300 characters.
        line: where that stands; None: no line does.
        numbers: what the line counts, as printed: sizes in GiB, tokens, ports.
        why: observations, in the order of the log.
        advice: what helps, best first, by the engine's own option names.
    """

    fault: StartFault
    sentence: str
    certain: bool = True
    exception: str = ""
    line: LogLine | None = None
    numbers: Mapping[str, str] = field(default_factory=dict)
    why: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()


# ------------------------------------------------------------------ option names

OPTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "vllm": {
        "model": "--model",
        "port": "--port",
        "length": "--max-model-len",
        "dtype": "--dtype",
        "memory": "--gpu-memory-utilization",
        "tp": "--tensor-parallel-size",
        "trust": "--trust-remote-code",
        "sequences": "--max-num-seqs",
        "eager": "--enforce-eager",
        "quantization": "--quantization",
        "step": "--max-num-batched-tokens",
        "template": "--chat-template",
        "load": "--load-format",
    },
    "sglang": {
        "model": "--model-path",
        "port": "--port",
        "length": "--context-length",
        "dtype": "--dtype",
        "memory": "--mem-fraction-static",
        "tp": "--tp-size",
        "trust": "--trust-remote-code",
        "sequences": "--max-running-requests",
        "eager": "--disable-cuda-graph",
        "quantization": "--quantization",
        "step": "--chunked-prefill-size",
        "template": "--chat-template",
        "load": "--load-format",
    },
    "lmdeploy": {
        "model": "MODEL_PATH",
        "port": "--server-port",
        "length": "--session-len",
        "dtype": "--dtype",
        "memory": "--cache-max-entry-count",
        "tp": "--tp",
        "trust": "--trust-remote-code",
        "sequences": "--max-batch-size",
        "eager": "--eager-mode",
        "quantization": "--model-format",
        "step": "--max-prefill-token-num",
        "template": "--chat-template",
        "load": "",
    },
    "minivllm": {
        "model": "--model",
        "port": "--port",
        "length": "--max-model-len",
        "dtype": "--dtype",
        "memory": "--num-blocks",
        "tp": "",
        "trust": "",
        "sequences": "--max-num-seqs",
        "eager": "",
        "quantization": "",
        "step": "--max-batched-tokens",
        "template": "",
        "load": "",
    },
}
"""What the engines call the options that an advice names; "": it has none, and the
advice is left out (vLLM 0.32, SGLang 0.5.23, LMDeploy 0.18.0: their parsers)."""

GONE: Final[Mapping[str, Mapping[str, str]]] = {
    "vllm": {
        "--disable-log-requests": (
            "it is gone; requests are logged only with --enable-log-requests"
        ),
        "--guided-decoding-backend": "it is --structured-outputs-config.backend now",
        "--swap-space": "it is gone: a request that is preempted is computed again",
        "--cuda-graph-sizes": "it is --cudagraph-capture-sizes now",
        "--task": "it is --runner and --convert now",
    },
}
"""Options that earlier releases had. vLLM: arg_utils.py of 0.11.0 beside that of
0.32.0."""

_ANY: Final = {
    kind: " or ".join(
        dict.fromkeys(
            filter(None, (OPTIONS[one][kind] for one in ("vllm", "sglang", "lmdeploy")))
        )
    )
    for kind in OPTIONS["vllm"]
}


# ------------------------------------------------------------------ exceptions of a log

_USAGE: Final = re.compile(
    r"^(?:[\w./-]+(?: [\w-]+){0,3}: error: |"
    # clap, of Rust programs, does not name the program.
    r"error: (?=invalid value |unexpected argument |unrecognized subcommand |"
    r"the argument |a value is required |the following required arguments ))"
    r"(?P<message>.*)"
)
_NATIVE: Final = re.compile(
    r"^(?:  what\(\): +|Fatal Python error: |(?:ptxas|nvcc) (?:fatal|error) *: |"
    r"(?=/bin/sh: \d+: \S+: not found)|"
    r"(?:\S+: line \d+: +)?(?:\d+ )?"
    # A shell's words: alone, before "(core dumped)" or far before the command. "Aborted
    # request" is a server's.
    r"(?=(?:Segmentation fault|Bus error|Aborted|Killed|Illegal instruction)"
    r"(?:\s*$|\s*\(|\s*:|\s{2,}))|"
    r"\[TM\]\[(?:FATAL|ERROR)\](?:\[[^\]]*\])* ?|!{3,}.*? (?=Segfault))(?P<message>.*)"
)
_KERNEL: Final = re.compile(
    r"(?P<message>Out of memory: Killed process .*|.*oom-kill:.*)"
)
_HINT: Final = re.compile(
    r"^(?:Failed to import from (?=\S+?:? (?:with |)\w+\()"
    r"|(?=Error while creating shared memory "
    r"segment|Bootstrap : no socket interface))(?P<message>.*)"
)
"""Warnings that explain what fails after them: vLLM's of its compiled code, NCCL's
own."""
_ERROR_LEVELS: Final = frozenset({"ERROR", "CRITICAL", "FATAL"})
_QUIET_LEVELS: Final = frozenset({"WARNING", "WARN", "INFO", "DEBUG", "TRACE"})
_LOOK_AHEAD: Final = 80
_SHOWN: Final = 300


@dataclass(frozen=True)
class LoggedException:
    """An exception in a log, or what stands for one.

    Attributes:
        kind: the class; ``usage``, ``native``, ``kernel``, ``hint`` (a warning
            that something was not imported), or ``error`` (an error line of no class).
        text: the whole message, of several lines.
        words: ``text`` without a client's words, of the same length.
        frames: of its traceback, outermost first.
    """

    kind: str
    text: str
    words: str
    line: LogLine
    frames: tuple[TracebackFrame, ...] = ()

    @property
    def short(self) -> str:
        """The class without its modules."""
        return self.kind.rpartition(".")[2]

    @property
    def shown(self) -> str:
        own = self.kind not in ("usage", "native", "kernel", "hint", "error")
        head = f"{self.kind}: " if own and self.text else self.kind if own else ""
        first, _, rest = self.text.partition("\n")
        if first.rstrip()[-1:] in (":", ""):
            first = f"{first} {rest.partition(chr(10))[0]}"
        return re.sub(r"\s+", " ", head + first).strip()[:_SHOWN]


def raised(lines: Sequence[LogLine]) -> Iterator[LoggedException]:
    """The exceptions of a log in its order, each with the lines that its message goes
    on for.

    What stands at the level of a warning or below is a ``hint`` or nothing. Before the
    HTTP server is up no client has said anything: what a line quotes there is the
    engine's own."""
    up = _first_up(lines)

    def words(line: LogLine) -> str:
        return line.text if line.number <= up else line.own_words

    found = exceptions_in(lines, words)
    exceptions = {
        id(exception.line): exception
        for exception in found.raised
        if not exception.within
    }
    for place, line in enumerate(lines):
        if line.level in _QUIET_LEVELS:
            hint = _hint_in(line, words(line))
            if hint is not None:
                yield _with_rest(hint, place, lines, found, words)
        elif id(line) in exceptions:
            yield _inner(_of_traceback(exceptions[id(line)]))
        elif (other := _besides(line, words(line))) is not None:
            yield _inner(_with_rest(other, place, lines, found, words))
        elif _is_error(line, words(line)) and place not in found.stack:
            error = _of_error_line(line, words(line))
            yield _inner(_with_rest(error, place, lines, found, words))


def _first_up(lines: Sequence[LogLine]) -> float:
    """The number of the line that says that the HTTP server is up."""
    for line in lines:
        if _UP.search(line.own_words):
            return line.number
    return math.inf


_UP: Final = re.compile(
    r"Application startup complete\.|Uvicorn running on |ready to roll|ready on port \d|"
    r"starting OpenAI server bind_address=|OpenAI server is ready to accept requests"
)


def _hint_in(line: LogLine, words: str) -> LoggedException | None:
    match = _HINT.match(words)
    if match is None:
        return None
    text = line.text[match.start("message") :]
    return LoggedException("hint", text, match["message"], line)


def _of_traceback(exception: RaisedException) -> LoggedException:
    return LoggedException(
        exception.kind,
        exception.message,
        exception.words,
        exception.line,
        tuple(exception.frames),
    )


def _besides(line: LogLine, words: str) -> LoggedException | None:
    """What a line says that is no exception of Python's."""
    for kind, pattern in (("usage", _USAGE), ("native", _NATIVE), ("kernel", _KERNEL)):
        match = pattern.match(words)
        if match is not None:
            start = match.start("message")
            return LoggedException(kind, line.text[start:], words[start:], line)
    return None


def _is_error(line: LogLine, words: str) -> bool:
    return line.level in _ERROR_LEVELS and words.strip() != ""


def _of_error_line(line: LogLine, words: str) -> LoggedException:
    brackets = _BRACKETS.match(words)
    start = brackets.end() if brackets else 0
    return LoggedException("error", line.text[start:], words[start:], line)


def _with_rest(
    event: LoggedException,
    place: int,
    lines: Sequence[LogLine],
    found: Tracebacks,
    words: Callable[[LogLine], str],
) -> LoggedException:
    """With the lines after it that are still its message: those of its process that
    begin nothing of their own."""
    first = event.line
    text, own = [event.text], [event.words]
    for at in range(place + 1, min(place + 1 + _LOOK_AHEAD, len(lines))):
        line = lines[at]
        if line.process and line.process != first.process:
            continue  # another process writes between
        new = bool(line.level or line.time) and line.level != first.level
        if new or line.process != first.process or at in found.stack:
            break
        if (
            at in found.heads
            or _USAGE.match(line.text)
            or len(text) > MAX_MESSAGE_LINES
        ):
            break
        text.append(line.text)
        own.append(words(line))
    return replace(event, text="\n".join(text), words="\n".join(own))


_BRACKETS: Final = re.compile(
    r"(?:\[(?:\d{4}\.\d\d:|\w+\.(?:cc|cpp|cu|h):)[^\]\n]*\])* ?"
)
"""TurboMind's time and place: ``[0914.14:00:37.807188][cast.cu:264]``."""


_PYDANTIC: Final = re.compile(
    r"^\d+ validation errors? for [^\n]*\n(?:[^\n ][^\n]*\n)?  (\w+) error, "
)


_SPACED: Final = re.compile(r"([`'\"])(/[^`'\"\n]* [^`'\"\n]*)\1")
"""A path with spaces: it could say anything."""


_BEFORE: Final = re.compile(
    r"<\w+> check failed!\n|Exception in worker \w+ while processing method \w+: "
)
"""lmdeploy/pytorch/check_env/base.py; vllm/executor/multiproc_worker_utils.py, 0.5 to
0.8."""


def _inner(event: LoggedException) -> LoggedException:
    """pydantic wraps what a validator raised: ``1 validation error for X\\n Value
    error, …``."""
    words = _SPACED.sub(lambda m: m[1] + QUOTED_CHAR * len(m[2]) + m[1], event.words)
    event = replace(event, words=words)
    if event.kind == "error":
        match = _BEFORE.match(words)
    elif event.kind.endswith("ValidationError"):
        match = _PYDANTIC.match(words)
    else:
        match = None
    if match is None:
        return event
    kind = event.kind
    if match.lastindex:
        validators = {"Value": "ValueError", "Assertion": "AssertionError"}
        kind = validators.get(match[1], kind)
    inner = match.end()
    return replace(event, kind=kind, text=event.text[inner:], words=words[inner:])


# ------------------------------------------------------------------ the table

Found = Mapping[str, str]


@dataclass(frozen=True)
class StartRule:
    """A cause, by the words that state it.

    The fields are explained in ``starts.toml``. ``kinds`` None: any class of
    exceptions."""

    fault: StartFault
    kinds: re.Pattern[str] | None
    pattern: re.Pattern[str]
    sentence: str
    advice: tuple[str, ...]
    source: str
    certain: bool = True
    echo: bool = False
    engine: str = ""
    values: Callable[[Found], Mapping[str, str]] | None = None


def _share(found: Found) -> Mapping[str, str]:
    """The largest share of the device that is free, rounded down to a hundredth."""
    free, total = float(found["free"]), float(found["total"])
    return (
        {"share": f"{int(free / total * 100) / 100:.2f}"}
        if total
        else {"share": "less"}
    )


def _missing(found: Found) -> Mapping[str, str]:
    lacking = float(found["needed"]) - float(found["available"])
    most = found.get("most") or ""
    fits = f"{{opt[length]}} {most} fits the cache as it is" if most else ""
    return {"lacking": f"{lacking:.2f}", "fits": fits or "lower {opt[length]}"}


def _asked_for(found: Found) -> Mapping[str, str]:
    count = found.get("bytes") or found.get("mapped")
    asked = size(int(count)) if count else found.get("asked")
    return {"asked_words": f": {asked} more were asked for" if asked else ""}


def _module(found: Found) -> Mapping[str, str]:
    name = (found.get("module") or "").partition(".")[0]
    return {"top": name, "package": _PACKAGES.get(name, "")}


def _of_the_same_name(names: str) -> dict[str, str]:
    return {name: name.replace("_", "-") for name in names.split()}


_PACKAGES: Final[Mapping[str, str]] = {
    "cv2": "opencv-python-headless",
    "PIL": "pillow",
    "yaml": "pyyaml",
    "zmq": "pyzmq",
    "sklearn": "scikit-learn",
    "google": "protobuf",
    "sgl_kernel": "sglang-kernel",
    "flash_attn": "flash-attn",
    "_turbomind": "lmdeploy",
    "pynvml": "nvidia-ml-py",
    "vllm_flash_attn": "vllm",
    "multipart": "python-multipart",
    "mistral_common": "mistral-common",
    "flashinfer": "flashinfer-python",
    "mooncake": "mooncake-transfer-engine",
    "compressed_tensors": "compressed-tensors",
    "pkg_resources": "setuptools",
    "distutils": "setuptools",
    "setuptools_scm": "setuptools-scm",
    "dotenv": "python-dotenv",
    "bs4": "beautifulsoup4",
    "fitz": "pymupdf",
    **_of_the_same_name(
        "vllm sglang lmdeploy torch torchvision torchaudio transformers tokenizers triton "
        "xformers accelerate bitsandbytes peft timm einops tiktoken sentencepiece "
        "safetensors datasets numpy pandas scipy matplotlib psutil requests aiohttp "
        "fastapi uvicorn uvloop pydantic openai ray xgrammar outlines lmcache nixl "
        "modelscope librosa soundfile decord av blobfile orjson msgspec packaging "
        "setuptools wheel ninja cmake tqdm jinja2 partial_json_parser six regex "
        "protobuf grpcio websockets httpx gguf autoawq auto_gptq optimum deepspeed "
        "terratorch opentelemetry runai_model_streamer tensorizer fastsafetensors "
        "diffusers cupy kernels tilelang hf_transfer"
    ),
}
"""A module's package. Of other names it is not known who owns them on an index: no
command is made of them."""

EXTRAS: Final[Mapping[str, Mapping[str, str]]] = {
    "vllm": {
        "librosa": "audio",
        "soundfile": "audio",
        "av": "audio",
        "opentelemetry": "otel",
        "runai_model_streamer": "runai",
        "tensorizer": "tensorizer",
        "fastsafetensors": "fastsafetensors",
    },
    "sglang": {
        "diffusers": "diffusion",
        "fastokens": "fastokens",
        "opentelemetry": "tracing",
        "runai_model_streamer": "runai",
    },
}
"""The extra of an engine's wheel that brings a module (Provides-Extra: vllm 0.11.0 and
0.32.0, sglang 0.5.23; what lmdeploy 0.18.0 needs has none)."""


def _cuda(found: Found) -> Mapping[str, str]:
    number = int(found["found"])
    return {"cuda": f"{number // 1000}.{number % 1000 // 10}"}


def _partner(found: Found) -> Mapping[str, str]:
    torch = re.search(r"torch|c10|at4|caffe", found["symbol"])
    return {"partner": "torch" if torch else "library"}


def _package(found: Found) -> Mapping[str, str]:
    return {
        "package": (found.get("where") or found.get("module") or "").partition(".")[0]
    }


def _free(found: Found) -> Mapping[str, str]:
    words = (
        f", {found['free']} of {found['total']} are free" if found.get("free") else ""
    )
    return {"free_words": words}


def _heads(found: Found) -> Mapping[str, str]:
    heads = found.get("heads") or found.get("number")
    return {"heads_word": f" ({heads})" if heads else ""}


def _path(found: Found) -> Mapping[str, str]:
    path = found["path"].strip(" :'\"()")
    return {"path": path.splitlines()[0][:160] if path else "see the line"}


_VALUES: Final[Mapping[str, Callable[[Found], Mapping[str, str]]]] = {
    "share": _share,
    "lacking": _missing,
    "module": _module,
    "asked": _asked_for,
    "cuda": _cuda,
    "partner": _partner,
    "package": _package,
    "free": _free,
    "heads": _heads,
    "path": _path,
}
"""What ``values`` of a row means: adds to what its groups found."""


MORE_KEYS: Final = frozenset({"kinds", "echo", "engine", "values"})
"""What a row has besides what rules for lines of logs have."""


@cache
def rules() -> tuple[StartRule, ...]:
    """The rows of ``starts.toml``, in its order."""
    # A run that ends well never asks why a start failed, and loads no rules.
    from mmrepro.engines.log_rules import shipped_rules

    return tuple(map(_rule_of, shipped_rules("starts.toml", more=MORE_KEYS)))


def _rule_of(row: LogRule) -> StartRule:
    kinds, values = row.more.get("kinds"), row.more.get("values")
    return StartRule(
        fault=StartFault(row.name),
        kinds=re.compile("".join(kinds)) if kinds else None,
        pattern=re.compile(row.expression),
        sentence=row.sentence,
        advice=row.advice,
        source=row.source,
        certain=row.certainty == "certain",
        echo=row.more.get("echo", False),
        engine=row.more.get("engine", ""),
        values=_VALUES[values] if values else None,
    )


_STAGES: Final[Mapping[str, str]] = {
    "imports": "as it imports its modules",
    "imports and model load": "as it imports its modules and loads the model",
    "spawn EngineCore": "before the engine's own process is up",
    "spawn worker": "before a worker is up",
    "spawn scheduler": "before the scheduler is up",
    "model load": "as the model is loaded",
    "cache and warm-up": "as the KV cache is sized and the model warmed up",
    "HTTP up": "as the HTTP server starts",
}
"""Stages of ``Engine.start_marks``, as a part of a sentence."""


def stage_of(lines: Sequence[LogLine], engine: Engine | None) -> str:
    """What the start was at when ``lines`` end, as a part of a sentence; "": not
    known."""
    if engine is None or not engine.start_marks:
        return ""
    stages = [*engine.start_marks, "HTTP up"]
    reached = 0
    for at, mark in enumerate(engine.start_marks.values(), 1):
        form = re.compile(mark)
        if any(form.search(line.own_words) for line in lines):
            reached = at
    if not reached:
        return ""
    return _STAGES.get(stages[reached], f"in the stage “{stages[reached]}”")


# ------------------------------------------------------------------ a log's file

MOST_BYTES: Final = 8 * MIB
"""Of a log's end: a start's own lines are some hundred kilobytes."""
_MOST_LINES: Final = 50_000


def lines_of(path: Path, notes: list[str]) -> list[LogLine]:
    """The lines of the log's end, at most ``MOST_BYTES``; ``notes`` gets what was left
    out.

    Raises:
        OSError, Unavailable, or another of BROKEN: it cannot be read.
    """
    found: list[LogLine] = []
    with open_log(path) as stream:
        end, left_out = _end_of(stream, path)
        if left_out:
            notes.append(
                f"only the last {MOST_BYTES // MIB} MiB of {path.name} were read"
            )
        with contextlib.suppress(*BROKEN):
            reader = LineReader()
            for block in end:
                found += reader.take(block)
                if len(found) > _MOST_LINES:
                    del found[: _MOST_LINES // 2]
        return [*found, *reader.take(b"", last=True)]


def _end_of(stream: BinaryIO, path: Path) -> tuple[Iterable[bytes], bool]:
    """The last ``MOST_BYTES`` of a stream in blocks, and whether there is more before
    them."""
    if stream.seekable():
        length = path.stat().st_size
        stream.seek(max(0, length - MOST_BYTES))
        return iter(partial(stream.read, MIB), b""), length > MOST_BYTES
    kept: deque[bytes] = deque()
    held, left_out = 0, False
    with contextlib.suppress(*BROKEN):  # what came before the damage counts
        while block := stream.read(MIB):
            kept.append(block)
            held += len(block)
            while held - len(kept[0]) > MOST_BYTES:
                held -= len(kept.popleft())
                left_out = True
    return kept, left_out


# -------------------------------------------------------------- from a log to its cause


@dataclass(frozen=True)
class Asked:
    """What is known beside the log.

    Attributes:
        stage: what the start was at, e.g. "as the model is loaded"; "": not known.
        ranges: of a package, what the release's wheel metadata asks for, e.g.
            "<5.20,>=5.16.1".
        exit_code: of the first process; negative: the signal that ended it; None: not
            known.
    """

    engine: str = ""
    release: str = ""
    stage: str = ""
    ranges: Mapping[str, str] = field(default_factory=dict)
    exit_code: int | None = None


def start_cause(lines: Sequence[LogLine], asked: Asked = Asked()) -> FailedStart | None:
    """Why the start whose log ``lines`` are failed; None: nothing in it is known.

    ``lines`` are one start's, of one server, in their order.
    """
    events = list(raised(lines))
    echo: FailedStart | None = None
    unexplained = False
    for event in events:
        if event.kind == "hint":
            continue
        rule, match = matching(event, asked.engine)
        if rule is None or match is None:
            own = bool(event.frames) and event.short not in _EFFECTS
            unexplained = unexplained or own
            continue
        # An engine that an exception ended kills what is left of it.
        if event.kind == "native" and rule.fault is StartFault.KILLED and unexplained:
            continue
        cause = _cause(rule, match, event, lines, asked)
        if not rule.echo:
            hinted = (
                _hinted(events, lines, asked)
                if cause.fault is StartFault.NCCL
                else None
            )
            return hinted or _with_first(cause, events)
        echo = cause if echo is None or cause.fault is StartFault.KILLED else echo
    if echo is None or echo.fault is not StartFault.KILLED:
        hinted = _hinted(events, lines, asked)
        if hinted is not None:
            return replace(hinted, certain=echo is not None)
    if echo is None and (wordless := _wordless(events, asked)) is not None:
        return wordless
    # SGLang ends itself by SIGKILL once a child failed: a signal explains a silent end
    # alone.
    silent = all(event.kind == "hint" for event in events)
    return echo or (_by_signal(asked) if silent else None)


def _hinted(
    events: Sequence[LoggedException], lines: Sequence[LogLine], asked: Asked
) -> FailedStart | None:
    """What a warning says of the failure after it."""
    for event in events:
        rule, match = (
            matching(event, asked.engine) if event.kind == "hint" else (None, None)
        )
        if rule is not None and match is not None:
            return _cause(rule, match, event, lines, asked)
    return None


_ECHO: Final = re.compile(r"Engine core initialization failed\.")
_EFFECTS: Final = frozenset(
    {
        "BrokenPipeError",
        "EOFError",
        "ConnectionResetError",
        "ConnectionRefusedError",
    }
)
"""What the others raise once a process is gone."""


def _wordless(events: Sequence[LoggedException], asked: Asked) -> FailedStart | None:
    """vLLM's engine process is gone, and no process raised anything that could be why:
    its front knows no exit code where it is read before the process is collected."""
    own = [event for event in events if event.kind not in ("hint", "error")]
    echo = next((event for event in own if _ECHO.match(event.text)), None)
    if echo is None or any(
        not _ECHO.match(event.text) and event.short not in _EFFECTS for event in own
    ):
        return None
    found = _signalled(-9, echo, asked)
    words = (
        f"A process of the server ended without a word {asked.stage or 'at the start'}"
    )
    return replace(
        found, sentence=f"{words}: it was killed, it seems.", certain=False, numbers={}
    )


def _with_first(cause: FailedStart, events: Sequence[LoggedException]) -> FailedStart:
    """With the exception that comes before the one that the table knows, if there is
    one."""
    first = next((e for e in events if e.kind not in ("hint", "error")), None)
    if first is None or cause.line is None or first.line.number >= cause.line.number:
        return cause
    why = (f"first exception (line {first.line.number}): {first.shown}", *cause.why)
    return replace(cause, why=why)


def matching(
    event: LoggedException, engine: str
) -> tuple[StartRule | None, re.Match[str] | None]:
    """The first rule that fits the exception, and what it matched."""
    for rule in rules():
        if rule.kinds is not None and not rule.kinds.fullmatch(event.short):
            continue
        if rule.kinds is None and event.kind in ("hint", "usage"):
            continue
        if rule.engine not in ("", engine):
            continue
        if match := rule.pattern.match(event.words):
            return rule, match
    return None, None


class _Blank(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return ""


def _cause(
    rule: StartRule,
    match: re.Match[str],
    event: LoggedException,
    lines: Sequence[LogLine],
    asked: Asked,
) -> FailedStart:
    numbers = {
        name: event.text[match.start(name) : match.end(name)]
        for name, value in match.groupdict().items()
        if value
    }
    if rule.fault is StartFault.KILLED and rule.kinds is None:
        code = next((int(v) for n, v in numbers.items() if n.startswith("code")), 0)
        return _signalled(code, event, asked)
    found = dict(numbers)
    if rule.values:
        found |= rule.values(found)
    fill = _fill(found, rule, event, lines, asked)
    names = OPTIONS.get(asked.engine, _ANY)
    told = [a for a in rule.advice if all(names[kind] for kind in _OPTION.findall(a))]
    advice = [text for one in told if (text := _format(one, fill))]
    sentence = _format(rule.sentence, fill)
    where = f"line {event.line.number}" + (
        f", {event.line.process}" if event.line.process else ""
    )
    return FailedStart(
        fault=rule.fault,
        sentence=sentence if sentence.endswith((".", "?")) else f"{sentence}.",
        certain=rule.certain,
        exception=event.shown,
        line=event.line,
        numbers=numbers,
        why=(f"{where}: {event.shown}",),
        advice=tuple(dict.fromkeys(advice)),
    )


_OPTION: Final = re.compile(r"\{opt\[(\w+)\]\}")


def _format(template: str, fill: Mapping[str, object]) -> str:
    for _ in range(2):  # a value may name an option
        template = template.format_map(fill)
    return re.sub(r" +([.,](?=\s|$))", r"\1", re.sub(r"  +", " ", template)).strip()


def _fill(
    found: Found,
    rule: StartRule,
    event: LoggedException,
    lines: Sequence[LogLine],
    asked: Asked,
) -> Mapping[str, object]:
    engine, release = asked.engine or "the engine", asked.release
    opt = _Blank(OPTIONS.get(asked.engine, _ANY))
    fill: dict[str, object] = {
        n: str(v).replace("{", "(").replace("}", ")")
        for n, v in found.items()
        if n not in ("fits",)
    }
    fill |= {n: v for n, v in found.items() if n == "fits"}
    wanted = asked.ranges.get(str(found.get("package") or "transformers"), "")
    fill |= {
        "opt": opt,
        "engine": engine,
        "release": release or "RELEASE",
        "range": f": {found.get('package') or 'transformers'}{wanted}"
        if wanted
        else "",
        "torch": f"torch{asked.ranges['torch']}"
        if "torch" in asked.ranges
        else "see its metadata",
        "stage": asked.stage or "at the start",
        "cache": {"vllm": "VLLM_CACHE_ROOT"}.get(asked.engine, "XDG_CACHE_HOME"),
        "budget": f"mmrepro kv-budget --engine {engine} computes what fits"
        if asked.engine in ("vllm", "sglang", "lmdeploy")
        else "",
        "oom": _oom(asked),
        "meant": "",
        "instead": "",
        "install": "",
        "lfs": "",
        "illegal": "",
        "cuda_word": "",
        "library_advice": "install the package that brings it",
    }
    if rule.fault is StartFault.BAD_ARGUMENT and "option" in found:
        fill |= _option_words(str(found["option"]), lines, asked)
    if rule.fault is StartFault.MISSING_MODULE and "top" in found:
        extra = EXTRAS.get(asked.engine, {}).get(str(found["top"]), "")
        own = f"{engine}[{extra}]" + (f"=={release}" if release else "")
        package = own if extra else str(found["package"])
        # Whose a name on an index is is not known: only a table's names are commands.
        fill["install"] = "install the package that brings this module"
        if package:
            fill["install"] = f"pip install '{package}'"
    if rule.fault is StartFault.LIBRARY_MISSING:
        fill |= _library_words(str(found["library"]))
    if (
        "invalid header" in event.words.lower()
        or "header too large" in event.words.lower()
    ):
        fill["lfs"] = " A Git LFS pointer in its place reads so."
    if "Illegal instruction" in event.words:
        fill["illegal"] = (
            " The processor lacks instructions that the wheel was built with."
        )
    return fill


def _oom(asked: Asked) -> str:
    if "load" in asked.stage:
        return (
            "the weights do not fit: more GPUs ({opt[tp]}), a quantised model, or end "
            "what else "
            "uses the GPU (nvidia-smi)"
        )
    lower = "{opt[memory]} lower, {opt[sequences]} lower"
    return (
        f"{lower}, or {{opt[eager]}}, which keeps no graphs; end what else uses the GPU"
    )


def _option_words(
    option: str, lines: Sequence[LogLine], asked: Asked
) -> Mapping[str, object]:
    """What may have been meant: an option that the log's usage, or that the engine is
    known for, has."""
    name = option.partition("=")[0]
    gone = GONE.get(asked.engine, {}).get(name)
    if gone:
        return {"meant": "", "instead": f"{name}: {gone}"}
    known = set(OPTIONS.get(asked.engine, {}).values()) | set(
        GONE.get(asked.engine, {})
    )
    for line in lines:
        if re.match(r"usage: |\s+\[?-", line.text):
            known |= set(re.findall(r"--[a-z][\w-]+", line.text))
    meant = did_you_mean(name, sorted(one for one in known if one.startswith("--")))
    return {
        "meant": meant,
        "instead": "compare the command with --help of this release",
    }


def _library_words(library: str) -> Mapping[str, object]:
    cuda = re.match(
        r"lib(?:cudart|cublas\w*|cudnn\w*|nvrtc\w*|nccl|cufft|curand|cusparse\w*|"
        r"cusolver|nvJitLink|nvToolsExt|cupti)[-\w]*\.so\.(\d+)",
        library,
    )
    if cuda:
        word = (
            f" It belongs to CUDA {cuda[1]}: the wheel was built for that CUDA."
            if (library.startswith(("libcudart", "libcublas", "libnvrtc")))
            else ""
        )
        advice = (
            "torch and the engine's wheel must be built for the same CUDA: "
            "reinstall both"
        )
        return {"cuda_word": word, "library_advice": advice}
    if library.startswith("libcuda.so"):
        return {
            "cuda_word": " It is the NVIDIA driver's: no driver is here.",
            "library_advice": "start the container with its GPUs (--gpus all), or "
            "install the driver",
        }
    package = SYSTEM_PACKAGES.get(library)
    return {"library_advice": f"apt install {package}"} if package else {}


_SIGNALS: Final[Mapping[int, tuple[StartFault, str]]] = {
    9: (StartFault.KILLED, "was killed from outside (SIGKILL)"),
    15: (StartFault.KILLED, "was ended from outside (SIGTERM)"),
    11: (StartFault.NATIVE_CRASH, "crashed in compiled code (SIGSEGV)"),
    6: (StartFault.NATIVE_CRASH, "aborted in compiled code (SIGABRT)"),
    4: (
        StartFault.NATIVE_CRASH,
        "met an instruction that this processor does not have (SIGILL)",
    ),
    8: (StartFault.NATIVE_CRASH, "crashed in compiled code (SIGFPE)"),
    7: (
        StartFault.SHARED_MEMORY,
        "lost memory that it had mapped (SIGBUS): /dev/shm is too small, "
        "or a file was cut",
    ),
}


def _signalled(code: int, event: LoggedException | None, asked: Asked) -> FailedStart:
    number = -code
    fault, words = _SIGNALS.get(
        number, (StartFault.KILLED, f"was ended by signal {number}")
    )
    advice = {
        StartFault.KILLED: (
            "dmesg -T | grep -i oom: the kernel kills what takes too much memory",
            "raise the container's memory limit; who else may have sent the signal?",
        ),
        StartFault.NATIVE_CRASH: (
            "PYTHONFAULTHANDLER=1 prints where",
            "mmrepro check --for "
            f"'{asked.engine or 'ENGINE'}=={asked.release or 'RELEASE'}' compares this "
            "machine with the release",
        ),
        StartFault.SHARED_MEMORY: ("in a container: --shm-size=16g or --ipc=host",),
    }[fault]
    stage = f" {asked.stage}" if asked.stage else " at the start"
    return FailedStart(
        fault=fault,
        sentence=f"A process of the server {words}{stage}.",
        certain=number in _SIGNALS and fault is not StartFault.SHARED_MEMORY,
        exception=event.shown if event else "",
        line=event.line if event else None,
        numbers={"signal": str(number)},
        why=(
            f"line {event.line.number}: {event.shown}"
            if event
            else f"the first process ended with {code}",
        ),
        advice=advice,
    )


def _by_signal(asked: Asked) -> FailedStart | None:
    if asked.exit_code is None or (asked.exit_code >= 0 and asked.exit_code < 128):
        return None
    code = asked.exit_code if asked.exit_code < 0 else 128 - asked.exit_code
    return _signalled(code, None, asked)


# ------------------------------------------------------------------ a start of our own


@dataclass(frozen=True)
class _Explained:
    """Why a start of mmrepro's own failed.

    Attributes:
        lines: the exceptions of its log, each once; the log's last lines where it has
            none.
        race: why the same start is worth repeating; "": it is not.
    """

    cause: FailedStart | None
    lines: tuple[str, ...]
    race: str

    @property
    def sentence(self) -> str:
        """For people; "": the log is empty."""
        said = self.cause.exception if self.cause else ""
        said = said or (self.lines[0] if self.lines else "")
        parts = [
            self.cause.sentence if self.cause else "",
            f"The log says: {said}" if said else "",
        ]
        return " ".join(filter(None, parts))


_SHOWN_LINES: Final = 6


def explain(
    log: Path, engine: Engine, release: str, exit_code: int | None
) -> _Explained:
    """Why the start whose log is ``log`` failed. Never raises for a missing or broken
    file.

    ``exit_code``: of its first process; None: it did not end.
    """
    try:
        lines = lines_of(log, [])
    except (*BROKEN, Unavailable):
        lines = []
    stage = stage_of(lines, engine)
    cause = start_cause(lines, Asked(engine.name, release, stage, exit_code=exit_code))
    events = [event for event in raised(lines) if event.kind not in ("hint", "error")]
    shown = list(dict.fromkeys(event.shown for event in events))
    last = [public_line(line, _SHOWN) for line in lines if line.text.strip()][
        -_SHOWN_LINES:
    ]
    races = {
        StartFault.PORT_TAKEN: "the port was taken meanwhile",
        StartFault.START_RACE: cause.sentence if cause else "",
    }
    race = races.get(cause.fault, "") if cause else ""
    return _Explained(cause, tuple(shown[:_SHOWN_LINES] or last), race)
