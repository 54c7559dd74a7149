"""Classes of failure: what is known of each, and those that a log alone shows. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mmrepro.engines import ENGINES
from mmrepro.failure.documents.diagnosis import Certainty, LiveClass, NamedClass
from mmrepro.failure.signature import crash
from mmrepro.failure.signature.live_server import CORE_ALIVE
from mmrepro.failure.signature.views import log_count, log_lines
from mmrepro.live.diagnose.readings import View
from mmrepro.probes.data import LogLine, LogPattern

# --------------------------------------------------------------- what is known of each


HERE = "docs/diagnose.md#classes"
_VLLM = "https://github.com/vllm-project/vllm/issues"
_SGLANG = "https://github.com/sgl-project/sglang/issues"


def _vllm(*numbers: int) -> tuple[str, ...]:
    return tuple(f"vllm#{n} {_VLLM}/{n}" for n in numbers)


def _sglang(*numbers: int) -> tuple[str, ...]:
    return tuple(f"sglang#{n} {_SGLANG}/{n}" for n in numbers)


@dataclass(frozen=True)
class ClassFacts:
    advice: tuple[str, ...]
    references: tuple[str, ...]


def _facts(references: tuple[str, ...], *advice: str) -> ClassFacts:
    return ClassFacts(advice, (*references, HERE))


CLASS_FACTS: Mapping[LiveClass, ClassFacts] = {
    LiveClass.STEPS_STOPPED: _facts(
        _vllm(43941, 21148),
        "restart it after its evidence is kept (mmrepro diagnose URL --out DIR): it does not "
        "recover by itself",
        "what was sent last matters: mmrepro replay shrinks recorded traffic to it",
    ),
    LiveClass.KILLED_BY_INPUT: _facts(
        _vllm(54195, 43920) + _sglang(27398),
        "refuse or rewrite the field at the gateway: a restart meets the same request again",
        "try the request on a newer release: most of these are answered with 400 there",
    ),
    LiveClass.NEVER_FITS: _facts(
        (*_vllm(35541, 39734), "docs/kv-budget.md"),
        "everything behind it in the queue waits as well: end the client that sent it",
        "lower --max-model-len below the KV cache's size, or make that larger; see "
        "mmrepro kv-budget",
    ),
    LiveClass.WORK_WITHOUT_CLIENTS: _facts(
        _vllm(54947, 10806),
        "requests in the background (/v1/responses with background) and clients of another "
        "port or of a UNIX socket look the same: are there any?",
        "a proxy between that keeps no connection, or an abort that is lost: compare with the "
        "log's lines of aborted requests",
    ),
    LiveClass.GAUGES_LIE: _facts(
        _vllm(29928, 22545),
        "do not route, scale or alert by these gauges alone; counters of tokens and a small "
        "request tell the truth (mmrepro watch)",
    ),
    LiveClass.MEMORY_GROWS: _facts(
        _vllm(15294, 50860),
        "rule out caches that still fill: --mm-processor-cache-gb 0, no prefix caching",
        "until it is found: restart before the limit, at a moment of your choice",
    ),
    LiveClass.PLACEHOLDER_COUNTS: _facts(
        (*_vllm(15764), *_sglang(40797), "docs/lab/chunked-mm-prefill.md"),
        "answers to such requests are wrong or missing: look for placeholder tokens in the "
        "prompt's text, and for another version of transformers than the release was made for",
        "try it with chunked prefill and the multimodal cache off",
    ),
    LiveClass.GRAMMAR_LOOP: _facts(
        _vllm(14151, 49210, 43920),
        "find the request with the grammar or schema (response_format, structured_outputs) and "
        "bound its size at the gateway",
        "another backend of grammars, or a newer one, may take it",
    ),
}


def named(name: LiveClass, certainty: Certainty, sentence: str, why: Iterable[str]) -> NamedClass:
    """A class with what is known of it; empty observations are left out."""
    facts = CLASS_FACTS[name]
    return NamedClass(
        name=name,
        certainty=certainty,
        sentence=sentence,
        why=[text for text in why if text],
        advice=list(facts.advice),
        references=list(facts.references),
    )


# --------------------------------------------------------------- patterns


NEAR_LINES = 1000
"""Before the line with which the engine ends: workers' tracebacks, of each of them two."""
INNERMOST_LINES = 8
"""Of a traceback, before its exception: further out every request passes."""
SHOWN = 240

FIELDS: Mapping[str, str] = {
    "top_logprobs": r"top_logprobs",
    "prompt_embeds": r"prompt_embeds|requires prompt_token_ids",
    "structured_outputs": r"compile_grammar|compile_json_schema|compile_regex|EBNF|"
    r"structured_output/|structural_tag|/constrained/|guided_",
    "stop_token_ids": r"stop_token",
    "min_tokens": r"min_tokens",
    "logit_bias": r"logit_bias",
    "bad_words": r"bad_words",
    "prompt_logprobs": r"prompt_logprobs",
    "mm_hashes": r"mm_hash",
    "lora": r"lora_",
}
"""A request's field: what names it in an exception, or in the frames next to it."""

GROUPS = (
    ("structured_outputs",),
    ("top_logprobs", "prompt_logprobs", "prompt_embeds", "logit_bias", "bad_words", "mm_hashes",
     "lora"),
    ("stop_token_ids", "min_tokens"),
)  # fmt: skip
"""Each is one pattern: of all its matches the first 20 and last 5 lines are kept."""

GRAMMAR_ERROR = (
    r"EBNF|[Gg]rammar|xgrammar|llguidance|outlines|[Ff]ailed to advance FSM|json_schema_converter|"
    r"lmformatenforcer"
)
_TOKENS = ("embeddings", "placeholders", True)
_ITEMS = ("embeddings", "items", True)
MISMATCHES: Mapping[str, tuple[str, str, bool]] = {
    # vllm/model_executor/models/utils.py, 0.11.0 to 0.32.0
    r"Attempted to assign .{0,400}?(?P<embeddings>\d+) multimodal tokens to "
    r"(?P<places>\d+) placeholders": _TOKENS,
    # vllm/v1/worker/utils.py, 0.11.0 to 0.32.0: whole items
    r"Expected number of multimodal embeddings to match number of input items: "
    r"(?P<places>\d+), but got (?:len\(mm_embeddings\)=)?(?P<embeddings>\d+)": _ITEMS,
    # sglang/srt/managers/mm_utils.py of 0.5.6 and 0.5.17, mm_schedule.py of 0.5.23
    r"multimodal embedding does not match those in the input text\. Got (?P<places>\d+) tokens in "
    r"the text but (?P<embeddings>\d+) tokens from multimodal embeddings": _TOKENS,
    # transformers' models, which SGLang and LMDeploy take over
    r"[Ff]eatures and (?:image|video|audio) tokens do not match: tokens: (?P<places>\d+), "
    r"features:? (?P<embeddings>\d+)": _TOKENS,
    # lmdeploy/vl/model/base.py of 0.18.0: pictures
    r"the number of image token id \d+ is not equal to input images, (?P<places>\d+) vs "
    r"(?P<embeddings>\d+)": ("pictures", "placeholders", False),
}
"""Expression: what there was, for what, and whether the model was already at work on it."""

ENVIRONMENT = re.compile(
    r"OutOfMemory|out of memory|NCCL|Gloo|ECC|No space left|BrokenPipe|ConnectionReset|"
    r"KeyboardInterrupt|SystemExit|uncorrectable|CUDA driver"
)
"""Exceptions that a machine brings about more often than a request does."""


def _frames_of(names: Sequence[str]) -> LogPattern:
    """A line of a traceback that names one of these fields."""
    fields = "|".join(FIELDS[name] for name in names)
    return LogPattern(rf"(?:^|[\])])\s{{2,}}\S.*(?:{fields})", *fields.split("|"))


LOG_PATTERNS: Mapping[str, str] = {
    "exception": crash.LOG_PATTERNS["exception"],
    "core-exception": r"^\((?!APIServer)\w[^()]* pid=\d+\) ERROR .*\] (?:[A-Za-z_]\w*\.)*[A-Z]\w*"
    r"(?:Error|Exception): ",
    "dumped-request": r"Dumping scheduler output for model execution: ",
    **{f"traceback-{n}": _frames_of(names) for n, names in enumerate(GROUPS)},
    "kv-size": r"GPU KV cache size: |Maximum concurrency for |max_total_num_tokens=",
    **{expression: expression for expression in MISMATCHES},
}
"""Searched in every live server's log."""

_NUMBER = re.compile(r"(?<![\w.])\d{3,}(?![\w.])")
_PARAMETER = re.compile(r"(\w+)=(\[[^\]]*\]|\{[^}]*\}|'[^']*'|[^,()]+)")
_UNSET = frozenset({"None", "[]", "{}", "False", "0", "0.0"})
_ALWAYS = frozenset({
    "n", "max_tokens", "temperature", "top_p", "top_k", "seed", "repetition_penalty",
    "skip_special_tokens", "spaces_between_special_tokens",
})  # fmt: skip
"""Fields that nearly every request has, or that are something by default."""


# ---------------------------------------------------------------- killed by input


def killed_by_input(view: View) -> NamedClass | None:
    """An exception ended the engine's loop after it had been ready.

    A signal, or the OOM killer, leaves no exception. A server that answers is not dead, whatever
    its log holds.
    """
    ending = _ending(view)
    if ending is None:
        return None
    before = _exceptions(view, ending)
    if not before:
        return None
    first, last = before[0], before[-1]
    fields = _fields(view, first, last)
    dumped = [line for line in _lines(view, "dumped-request") if _near(line, ending)]
    certainty = Certainty.CERTAIN if fields else Certainty.LIKELY
    if ENVIRONMENT.search(first.text) and not fields:
        certainty = Certainty.POSSIBLE
    what = _plain(first)
    field = f", by its field {' or '.join(fields)}" if fields else ""
    return named(
        LiveClass.KILLED_BY_INPUT,
        certainty,
        f"A request ended the engine{field}: {what[:SHOWN]}",
        [
            f"first exception ({_where(first)}): {what[:SHOWN]}",
            f"last exception ({_where(last)}): {_plain(last)[:SHOWN]}" if last != first else "",
            f"its log says ({_where(ending)}): {ending.text[:SHOWN]}",
            *(f"{name}: {how}" for name, how in fields.items()),
            _set_fields(dumped),
        ],
    )


def _ending(view: View) -> LogLine | None:
    """The line with which the engine's loop ended, after it had been at work; None where it works,
    or its process lives and nothing fails: then it is an earlier one's."""
    fatal = _lines(view, "core-fatal")
    lives = view.evidence.facts.get(CORE_ALIVE) is True and view.answer != "failed"
    if not fatal or lives or view.answer == "answered":
        return None
    engine = ENGINES.get(view.facts.engine)
    if engine is not None and not engine.fatal_after_start:
        # It says the same of a start that failed.
        worked = view.last_progress
        if worked is None or worked.number > fatal[0].number:
            return None
    return fatal[0]


def _exceptions(view: View, ending: LogLine) -> list[LogLine]:
    """The engine's own, near its end, oldest first; the front's are echoes, or of requests that it
    refused."""
    lines = _lines(view, "core-exception")
    if not lines:  # no marks of processes: only what follows is surely the same one's
        lines = [
            line
            for line in _lines(view, "exception")
            if line.number > ending.number and "APIServer" not in line.process
        ]
    unique = {line.number: line for line in lines if _near(line, ending)}
    return [unique[number] for number in sorted(unique)]


def _near(line: LogLine, ending: LogLine) -> bool:
    return line.file == ending.file and abs(line.number - ending.number) <= NEAR_LINES


def _fields(view: View, first: LogLine, last: LogLine) -> dict[str, str]:
    """The request's fields that the log blames, and how it does."""
    dumps = "".join(line.text for line in _lines(view, "dumped-request"))
    for number in dict.fromkeys(_NUMBER.findall(first.text)):
        alone = re.compile(rf"(?<!\d){number}(?!\d)")
        set_there = [(name, v) for name, v in _parameters(dumps) if name not in _ALWAYS]
        hits = [name for name, value in set_there if alone.search(value)]
        if hits:
            return {hits[0]: f"the request that ran had {number} in it, and so has the exception"}
    for line in (first, last):
        hits = [name for name, pattern in FIELDS.items() if re.search(pattern, line.text)]
        if hits:
            return dict.fromkeys(hits[:2], "the exception names it")
    inner = [
        line
        for n in range(len(GROUPS))
        for line in _lines(view, f"traceback-{n}")
        if first.number - INNERMOST_LINES <= line.number < first.number
        and line.process == first.process
    ]
    text = "\n".join(line.text for line in inner)
    hits = [name for name, pattern in FIELDS.items() if re.search(pattern, text)]
    return dict.fromkeys(hits[:2], "the frames next to the exception are its")


def _parameters(dumped: str) -> list[tuple[str, str]]:
    """Name and value of the fields of vLLM's ``SamplingParams(…)``, as its dump prints them."""
    found: list[tuple[str, str]] = []
    for part in dumped.split("SamplingParams(")[1:]:
        found += _PARAMETER.findall(part.partition("),")[0])
    return found


def _set_fields(dumped: Sequence[LogLine]) -> str:
    """Names, never values: they are the user's."""
    parameters = [one for line in dumped[:1] for one in _parameters(line.text)]
    names = [n for n, v in parameters if v not in _UNSET and n not in _ALWAYS]
    if not names:
        return ""
    return f"set in the requests that it began to work on: {', '.join(dict.fromkeys(names))}"


# ---------------------------------------------------------------- placeholders, grammars, sizes


def placeholder_counts(view: View) -> NamedClass | None:
    """The log holds an engine's own words for N embeddings and M places for them."""
    for expression, (had, places, inside) in MISMATCHES.items():
        count = log_count(view.evidence, expression)
        if not count:
            continue
        line = _lines(view, expression)[0]
        match = re.search(expression, line.text)
        if match is None or match["embeddings"] == match["places"]:
            continue
        return named(
            LiveClass.PLACEHOLDER_COUNTS,
            Certainty.CERTAIN if inside else Certainty.LIKELY,
            f"The engine had {match['embeddings']} {had} for {match['places']} {places}.",
            [f"{count} lines in its log, first ({_where(line)}): {line.text[:SHOWN]}"],
        )
    return None


def grammar_exception(view: View) -> NamedClass | None:
    """The exception that ended the engine is a grammar's."""
    ending = _ending(view)
    if ending is None:
        return None
    wanted = re.compile(GRAMMAR_ERROR)
    line = next((one for one in _exceptions(view, ending) if wanted.search(one.text)), None)
    if line is None:
        return None
    return named(
        LiveClass.GRAMMAR_LOOP,
        Certainty.CERTAIN,
        f"A grammar ended the engine: {_plain(line)[:SHOWN]}",
        [f"its log ({_where(line)}): {line.text[:SHOWN]}"],
    )


def capacity(view: View) -> str:
    """What the log says of the KV cache's size; "" when it says nothing."""
    lines = _lines(view, "kv-size")
    return f"its log says: {'; '.join(line.text[:120] for line in lines[:2])}" if lines else ""


def _lines(view: View, pattern: str) -> list[LogLine]:
    return sorted(log_lines(view.evidence, pattern), key=lambda line: line.number)


def _where(line: LogLine) -> str:
    process = f"{line.process}, " if line.process else ""
    return f"{process}{line.time or f'line {line.number}'}"


def _plain(line: LogLine) -> str:
    """From the exception's name on."""
    match = re.search(r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception): .*", line.text)
    return match[0] if match else line.text
