"""Whether a request is to blame for an exception: only where something of it points to
one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mmrepro.failure.documents.diagnosis import Certainty
from mmrepro.live.diagnose.raised import Raised, frames_text
from mmrepro.probes.data import LogLine

TOLD = 200
"""Of a message; behind that engines print whole batches, with every field's name."""
INNERMOST = 4
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
class Counted:
    sentence: str
    inside: bool


@dataclass(frozen=True)
class Blamed:
    """``fields``: name of the request's field and what points to it."""

    fields: Mapping[str, str]
    sure: Certainty
    set_there: str = ""


def placeholders(text: str) -> Counted | None:
    """An engine's own words for N embeddings and M places for them."""
    for expression, (had, places, inside) in MISMATCHES.items():
        match = re.search(expression, text)
        if match is not None and match["embeddings"] != match["places"]:
            told = (
                f"The engine had {match['embeddings']} {had} for "
                f"{match['places']} {places}"
            )
            return Counted(told, inside)
    return None


def blamed(one: Raised, lines: Iterable[LogLine]) -> Blamed | None:
    """The request's fields that the log blames for ``one``, and how it does; None:
    none."""
    dumped = [line.text for line in lines if DUMPED in line.text]
    parameters = [pair for text in dumped for pair in _parameters(text)]
    names = [n for n, v in _parameters(dumped[0])] if dumped else []
    names = [
        n for n, v in parameters if n in names and v not in _UNSET and n not in _ALWAYS
    ]
    there = ""
    if names:
        there = "set in the requests that it began to work on: " + ", ".join(
            dict.fromkeys(names)
        )
    for number in dict.fromkeys(_NUMBER.findall(one.text.partition("\n")[0])):
        alone = re.compile(rf"(?<!\d){number}(?!\d)")
        hits = [n for n, v in parameters if n not in _ALWAYS and alone.search(v)]
        if hits:
            how = f"the request that ran had {number} in it, and so has the exception"
            return Blamed({hits[0]: how}, Certainty.CERTAIN, there)
    # What the engine calls its own arrays of a field is no word of a request.
    said = re.sub(r"\b\w+_(?:nums|ids_list|tensor|mask)\b", "", one.text[:TOLD])
    hits = [name for name, pattern in FIELDS.items() if re.search(pattern, said)]
    if hits:
        fields = dict.fromkeys(hits[:2], "the exception names it")
        return Blamed(fields, Certainty.CERTAIN, there)
    inner = frames_text(one, INNERMOST)
    hits = [name for name, pattern in FIELDS.items() if re.search(pattern, inner)]
    if hits:
        fields = dict.fromkeys(hits[:2], "the frames next to the exception are its")
        return Blamed(fields, Certainty.LIKELY, there)
    return None


def _parameters(dumped: str) -> list[tuple[str, str]]:
    """Name and value of the fields of vLLM's ``SamplingParams(…)``, as its dump prints
    them."""
    found: list[tuple[str, str]] = []
    for part in dumped.split("SamplingParams(")[1:]:
        found += _PARAMETER.findall(part.partition("),")[0])
    return found
