"""Whether a request is to blame for an exception: only where something of it points to
one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mmrepro.failure.documents import Certainty
from mmrepro.probes import LogLine, RaisedException, frames_text

TOLD = 200
"""Of a message; behind that engines print whole batches, with every field's name."""
_INNERMOST = 4
"""Frames next to an exception: further out every request passes."""
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

_TAKES_REQUESTS = re.compile(r"Exception in thread .{0,40}\(process_input_sockets\)")
"""threading's words for the end of a thread: vLLM's that reads what its front end sends
(v1/engine/core.py, 0.11 to 0.33). The Python front end validates before it sends, the
Rust one of 0.23.0 does not."""

_TOKENS = ("embeddings", "placeholders", True)
_ITEMS = ("embeddings", "items", True)
MISMATCHES: Mapping[str, tuple[str, str, bool]] = {
    # vllm/model_executor/models/utils.py, 0.11.0 to 0.32.0
    r"Attempted to assign .{0,400}?(?P<embeddings>\d+) (?:multimodal|image) tokens to "
    r"(?P<places>\d+) placeholders": _TOKENS,
    # vllm/v1/worker/utils.py, 0.11.0 to 0.32.0: whole items
    r"Expected number of multimodal embeddings to match number of input items: "
    r"(?P<places>\d+), but got (?:len\(mm_embeddings\)=)?(?P<embeddings>\d+)": _ITEMS,
    # sglang/srt/managers/mm_utils.py of 0.5.6 and 0.5.17, mm_schedule.py of 0.5.23
    r"multimodal embedding does not match those in the input text\. Got "
    r"(?P<places>\d+) tokens in "
    r"the text but (?P<embeddings>\d+) tokens from multimodal embeddings": _TOKENS,
    # transformers' models, which SGLang and LMDeploy take over
    r"[Ff]eatures and (?:image|video"
    r"|audio) tokens do not match: tokens: (?P<places>\d+), "
    r"features:? (?P<embeddings>\d+)": _TOKENS,
    # lmdeploy/vl/model/base.py of 0.18.0: pictures
    r"the number of image token id \d+ is not equal to input images, "
    r"(?P<places>\d+) vs "
    r"(?P<embeddings>\d+)": ("pictures", "placeholders", False),
}
"""Expression: what there was, for what, and whether the model was already at work on
it."""

DUMPED = "Dumping scheduler output for model execution: "
_NUMBER = re.compile(r"(?<![\w.])\d{3,}(?![\w.])")
_PARAMETER = re.compile(r"(\w+)=(\[[^\]]*\]|\{[^}]*\}|'[^']*'|[^,()]+)")
_UNSET = frozenset({"None", "[]", "{}", "False", "0", "0.0"})
_ALWAYS = frozenset(
    {
        "n",
        "max_tokens",
        "temperature",
        "top_p",
        "top_k",
        "seed",
        "repetition_penalty",
        "skip_special_tokens",
        "spaces_between_special_tokens",
    }
)
"""Fields that nearly every request has, or that are something by default."""


@dataclass(frozen=True)
class PlaceholderMismatch:
    sentence: str
    inside: bool


@dataclass(frozen=True)
class Blamed:
    """``fields``: name of the request's field and what points to it."""

    fields: Mapping[str, str]
    sure: Certainty
    set_there: str = ""


def placeholders(text: str) -> PlaceholderMismatch | None:
    """An engine's own words for N embeddings and M places for them."""
    for expression, (had, places, inside) in MISMATCHES.items():
        match = re.search(expression, text)
        if match is not None and match["embeddings"] != match["places"]:
            sentence = (
                f"The engine had {match['embeddings']} {had} for "
                f"{match['places']} {places}"
            )
            return PlaceholderMismatch(sentence, inside)
    return None


def blamed(raised: RaisedException, lines: Iterable[LogLine]) -> Blamed | None:
    """The request's fields that the log blames for ``raised``, and how it does; None:
    none."""
    dumped = [line.text for line in lines if DUMPED in line.text]
    parameters: list[tuple[str, str]] = []
    for text in dumped:
        parameters += _parameters(text)
    first = {name for name, _ in _parameters(dumped[0])} if dumped else set()
    settings: dict[str, None] = {}
    for name, value in parameters:
        if name in first and value not in _UNSET and name not in _ALWAYS:
            settings[name] = None
    there = ""
    if settings:
        names = ", ".join(settings)
        there = f"set in the requests that it began to work on: {names}"

    for number in _NUMBER.findall(raised.text.partition("\n")[0]):
        alone = re.compile(rf"(?<!\d){number}(?!\d)")
        for name, value in parameters:
            if name not in _ALWAYS and alone.search(value):
                how = (
                    f"the request that ran had {number} in it, and so has the exception"
                )
                return Blamed({name: how}, Certainty.CERTAIN, there)
    # What the engine calls its own arrays of a field is no word of a request.
    words = re.sub(r"\b\w+_(?:nums|ids_list|tensor|mask)\b", "", raised.text[:TOLD])
    if fields := _fields_in(words):
        blame = dict.fromkeys(fields, "the exception names it")
        return Blamed(blame, Certainty.CERTAIN, there)
    inner = frames_text(raised, _INNERMOST)
    if _TAKES_REQUESTS.search(raised.intro) and "sampling_params" in inner:
        how = "the thread that takes requests ended as it read them"
        return Blamed({"sampling_params": how}, Certainty.LIKELY, there)
    if fields := _fields_in(inner):
        blame = dict.fromkeys(fields, "the frames next to the exception are its")
        return Blamed(blame, Certainty.LIKELY, there)
    return None


def _fields_in(text: str) -> list[str]:
    """The first two of a request's fields that ``text`` names."""
    fields = [name for name, pattern in FIELDS.items() if re.search(pattern, text)]
    return fields[:2]


def _parameters(dumped: str) -> list[tuple[str, str]]:
    """Name and value of the fields of vLLM's ``SamplingParams(…)``, as its dump prints
    them."""
    found: list[tuple[str, str]] = []
    for part in dumped.split("SamplingParams(")[1:]:
        found += _PARAMETER.findall(part.partition("),")[0])
    return found
