"""What a server's log carries, before anything is concluded from it: state, platform,
topology, command, the first failure as it was written, and what came after. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import PurePath

from mmrepro.engines.folders import published
from mmrepro.engines.log_rules import shipped_rules
from mmrepro.failure.documents import FirstFailure
from mmrepro.live.diagnose.log_events import LogEvent
from mmrepro.probes import LogLine, RaisedException, TracebackFrame
from mmrepro.probes.log_words import own_line

_MOST_LINES, _MOST_CHARS = 12, 400
"""Of a first failure that is shown."""
_MOST_AFTER = 3
_MOST_COMMAND = 12
"""Options of a command that are shown."""
_INNERMOST = 6
"""Frames next to a failure: further out every request passes."""

# ------------------------------------------------------------------ the first failure


def failure_of(event: LogEvent, file: str, number: int) -> FirstFailure:
    """The failure with which an end began, as it was written."""
    if event.raised is not None:
        return failure_of_exception(event.raised, file, number, event.process)
    shown = own_line(event.line).strip()
    # A bar of progress before the words has no end of line: its rule cut it off.
    if "%|" in shown:
        shown = event.text
    return FirstFailure(
        lines=[shown[:_MOST_CHARS]],
        process=event.process,
        time=event.time,
        line=number,
        file=file,
    )


def failure_of_line(line: LogLine, number: int) -> FirstFailure:
    """A line that stands for a failure, where no rule knows it."""
    return FirstFailure(
        lines=[own_line(line).strip()[:_MOST_CHARS]],
        process=line.process,
        time=line.time,
        line=number,
        file=line.file,
    )


def failure_of_exception(
    raised: RaisedException, file: str, number: int, process: str = ""
) -> FirstFailure:
    """An exception with all its lines, and the innermost frame in the engine."""
    frame = engine_frame(raised.frames)
    return FirstFailure(
        lines=[*_printed(raised)],
        process=process or raised.process,
        time=raised.time,
        line=number,
        file=file,
        place=_place(frame) if frame else "",
        code=_first_line(frame.source) if frame else "",
    )


def _printed(raised: RaisedException) -> Iterator[str]:
    shown = [line for line in raised.own.split("\n") if line.strip()]
    for line in shown[:_MOST_LINES]:
        yield line.rstrip()[:_MOST_CHARS]


def engine_frame(frames: Sequence[TracebackFrame]) -> TracebackFrame | None:
    """The innermost frame in an engine's code, or in a plugin's of it; else the
    innermost of all; None: there are no frames."""
    known = [frame for frame in frames if frame.file]
    for frame in reversed(known):
        if _in_engine(frame.file):
            return frame
    return known[-1] if known else None


@cache
def _engine_path() -> re.Pattern[str]:
    names = "|".join(published())
    # vllm_ascend, vllm_gaudi, sglang_router: plugins are named after their engine.
    return re.compile(rf"(?:^|/)(?:{names})(?:_\w+)?/")


def _in_engine(file: str) -> bool:
    return _engine_path().search(file) is not None


def _place(frame: TracebackFrame) -> str:
    """``vllm/v1/engine/core.py:318 in run_busy_loop``."""
    file = frame.file
    starts = [match.start() for match in _engine_path().finditer(file)]
    if starts:
        file = file[starts[-1] :].lstrip("/")
    elif "/site-packages/" in file:
        file = file.rpartition("/site-packages/")[2]
    else:
        file = "/".join(PurePath(file).parts[-3:])
    name = f" in {frame.name}" if frame.name else ""
    return f"{file}:{frame.line}{name}"


def _first_line(code: str) -> str:
    return code.partition("\n")[0].strip()[:_MOST_CHARS]


def what_came_after(
    first: LogEvent | None, fatal: Sequence[LogEvent], deaths: Sequence[LogLine]
) -> list[str]:
    """The first three things that tell of the failure after it, each once."""
    after: dict[str, int] = {}
    begin = first.number if first is not None else 0
    for event in fatal:
        if event is not first and event.number > begin:
            after.setdefault(f"{_who(event.line)}{event.shown}", event.number)
    for death in deaths:
        if death.number > begin:
            told = f"{_who(death)}{own_line(death, 240).strip()}"
            after.setdefault(told, death.number)
    ordered = sorted(after, key=after.__getitem__)
    return ordered[:_MOST_AFTER]


def _who(line: LogLine) -> str:
    process = line.process or line.rank
    return f"{process}: " if process else ""


# ------------------------------------------------------------------ command, topology

_ARGUMENTS = r"(?: +[^\s|;&]+){1,80}"
_PAIR = re.compile(
    r"""['"]?(?P<name>[a-z]\w{2,60})['"]?\s*[=:]\s*"""
    r"""(?P<value>'[^']*'|"[^"]*"|\{[^{}]*\}|\[[^\[\]]*\]|[\w.+/-]+)"""
)
_UNSET = frozenset({"None", "False", "[]", "{}", "''", '""', "-1", "auto", "'auto'"})
_LISTED = re.compile(
    r"^(?:model(?:_path)?|(?:tp|dp|pp|ep)_size|\w+_parallel_size|enable_\w+|disable_\w+"
    r"|\w*backend|quantization|kv_cache_dtype|kv_transfer_config|speculative_\w+"
    r"|disaggregation_\w+|enforce_eager|max_model_len|context_length|mem_fraction_static"
    r"|gpu_memory_utilization|lora_\w+|dtype|load_format|nnodes|node_rank)$"
)
"""Settings that are shown of a server that logs all of them, defaults as well."""


@dataclass(frozen=True)
class ServerCommand:
    """How a server was started, as its log has it.

    Attributes:
        shown: for people; "": the log does not have it.
        options: what was set, by name with underscores.
    """

    shown: str
    options: dict[str, str]


@cache
def _typed_command() -> re.Pattern[str]:
    """``vllm serve M --port 8000``, ``python -m sglang.launch_server …``."""
    names = "|".join(published())
    program = rf"(?:(?:{names}) serve|python3? -m (?:{names})[\w.]*)"
    return re.compile(rf"(?:^|[\s;&+'\"])(?P<command>{program}{_ARGUMENTS})")


def command_of(texts: Sequence[str], settings: str) -> ServerCommand:
    """The command in one of ``texts``, or what the server logs of its own settings."""
    typed = ""
    for text in texts:
        match = _typed_command().search(text)
        if match is not None and len(match["command"]) > len(typed):
            typed = match["command"].strip()
    options = dict(_typed_options(typed))
    logged = dict(_logged_options(settings))
    if typed:
        return ServerCommand(typed[:_MOST_CHARS], {**logged, **options})
    shown = [_as_option(name, value) for name, value in logged.items()]
    if "server_args=" in settings:
        # SGLang logs every setting that it has.
        shown = [
            _as_option(name, value)
            for name, value in logged.items()
            if _LISTED.match(name)
        ]
    return ServerCommand(" ".join(shown[:_MOST_COMMAND])[:_MOST_CHARS], logged)


def _typed_options(command: str) -> Iterator[tuple[str, str]]:
    words = command.split()
    for place, word in enumerate(words):
        if not word.startswith("--"):
            continue
        name, _, value = word[2:].partition("=")
        following = words[place + 1] if place + 1 < len(words) else ""
        if not value and not following.startswith("-"):
            value = following
        yield name.replace("-", "_"), value or "True"


def _logged_options(settings: str) -> Iterator[tuple[str, str]]:
    for match in _PAIR.finditer(settings):
        if match["value"] not in _UNSET:
            yield match["name"], match["value"].strip("'\"")


def _as_option(name: str, value: str) -> str:
    option = f"--{name.replace('_', '-')}"
    return option if value == "True" else f"{option} {value}"


_SIZES = (
    ("TP", ("tensor_parallel_size", "tp_size", "tp")),
    ("PP", ("pipeline_parallel_size", "pp_size", "pp")),
    ("DP", ("data_parallel_size", "dp_size", "dp")),
    ("EP", ("expert_parallel_size", "ep_size", "ep")),
)
_WORLD = re.compile(r"\bworld_size=(\d+)")
_RANKS = re.compile(r"(?:TP|DP|PP|EP|rank=|_)(\d+)\b")
_ROLE = re.compile(
    r"disaggregation_mode['\"]?[=:] ?'(prefill|decode)'|"
    r"kv_role['\"]?[=:] ?'?\"?(kv_producer|kv_consumer|kv_both)"
)
_ROLE_WORDS = {
    "prefill": "the prefill side of a pair",
    "decode": "the decode side of a pair",
    "kv_producer": "the prefill side of a pair",
    "kv_consumer": "the decode side of a pair",
    "kv_both": "both sides of a pair",
}
_TRANSFER = re.compile(
    r"\b(mooncake|nixl|lmcache|p2p_?nccl|mori|flexkv)(?=_|\b|connector)", re.IGNORECASE
)
_TRANSFERS = re.compile(
    r"disaggregation|[Tt]ransfer|kv_connector|KVConnector|Connector"
)
_SIDE = re.compile(r"(?<!\w)(Decode|Prefill) transfer failed")


def topology_of(lines: Sequence[LogLine], texts: Sequence[str]) -> list[str]:
    """Ranks, the role in a pair, the transfer backend, as far as lines print them."""
    whole = "\n".join(texts)
    sizes = dict(_logged_options(whole))
    facts = []
    for title, names in _SIZES:
        for name in names:
            value = sizes.get(name, "")
            if value.isdecimal() and int(value) > 1:
                facts.append(f"{title} {value}")
                break
    worlds = [int(size) for size in _WORLD.findall(whole)]
    if not facts and worlds and max(worlds) > 1:
        facts.append(f"{max(worlds)} ranks")
    if not facts:
        facts += _ranks_seen(lines)
    role = _ROLE.search(whole)
    side = _SIDE.search(whole)
    if role is not None:
        facts.append(_ROLE_WORDS[role[1] or role[2]])
    elif side is not None:
        facts.append(_ROLE_WORDS[side[1].lower()])
    for text in texts:
        transfer = _TRANSFER.search(text)
        if transfer is not None and _TRANSFERS.search(text):
            facts.append(f"transfers by {transfer[1].lower()}")
            break
    return facts


def _ranks_seen(lines: Sequence[LogLine]) -> list[str]:
    ranks = set()
    for line in lines:
        match = _RANKS.search(line.rank or line.process)
        if match is not None:
            ranks.add(match[0])
    return [f"{len(ranks)} ranks have lines"] if len(ranks) > 1 else []


# ------------------------------------------------------------------ ties

_COMMON_WORDS = """
    enable disable model models auto cache size backend path true false none
    config engine server attention worker workers runner mode type name tensor
    parallel max min num default args layers layer kernel kernels python site
    packages local data utils init core base common load format dtype method
    algorithm process prefix memory group device hash token tokens batch host
    port chunked metrics radix
"""
_COMMON = frozenset(_COMMON_WORDS.split())
_ALIASES = {
    "speculative": ("spec_decode", "speculative", "eagle", "mtp"),
    "expert": ("fused_moe", "deepep", "eplb", "ep_moe"),
    "eplb": ("eplb",),
    "hierarchical": ("hicache", "hiradix"),
    "disaggregation": ("disaggregation",),
    "kv_transfer": ("kv_transfer", "kv_connector"),
    "compile": ("_inductor", "_dynamo", "torch_compile"),
}
"""Words of an option, and what the files of its code are called."""
_WORDS = re.compile(r"[a-z]+\d*")


def ties_of(frames: Sequence[TracebackFrame], options: dict[str, str]) -> list[str]:
    """Options whose code the innermost frames are in."""
    near = [frame for frame in frames[-_INNERMOST:] if frame.file]
    ties = []
    for name, value in options.items():
        if value in ("0", "1", ""):
            continue
        for frame in reversed(near):
            if _is_of(frame, name, value):
                short = "/".join(PurePath(frame.file).parts[-2:])
                ties.append(f"{_as_option(name, value)} is set; the frame is {short}")
                break
    return ties[:2]


def _is_of(frame: TracebackFrame, name: str, value: str) -> bool:
    begin = _engine_path().search(frame.file)
    path = frame.file[begin.end() if begin else 0 :].lower()
    if begin is None:
        path = path.rpartition("site-packages/")[2]
    words = set(_WORDS.findall(path))
    for word, files in _ALIASES.items():
        if word in name and any(file in path for file in files):
            return True
    # A path or a model's name is no option's word; a backend's is its value.
    asked = set()
    if value == "True":
        asked = set(_WORDS.findall(name))
    elif "path" not in name and "/" not in value and len(value) < 40:
        asked = set(_WORDS.findall(value.lower()))
    return any(len(word) > 3 and word in words for word in asked - _COMMON)


# ------------------------------------------------------------------ what is missing


@cache
def _fetch_rules() -> tuple[tuple[re.Pattern[str], str], ...]:
    rules = shipped_rules("fetch.toml")
    return tuple((re.compile(rule.expression, re.M), rule.sentence) for rule in rules)


FROM_BEFORE = "grep -n -m1 -A60 -E 'Traceback|ERROR' SERVER.log"


def fetch_command(given: str) -> str:
    """The command that gets what came before a log that begins with an echo.

    Args:
        given: the log's text, with what its collector put around the lines.
    """
    for pattern, command in _fetch_rules():
        match = pattern.search(given)
        if match is not None:
            return command.format_map(match.groupdict())
    return FROM_BEFORE
