"""How many tokens models have, and how many the requests of a report name."""

from __future__ import annotations

import re
from typing import Final

MOST_TOKENS: Final = 300_000
"""No model has as many (Gemma 3: 262,208): a token id beyond is in no vocabulary."""
_FEWEST_TOKENS: Final = 32_000
"""Of the models that users serve: Llama 2's."""
_VOCABULARIES: Final = (
    (r"llama-?3|llama-?guard-?3|hermes-3|nemotron-nano-8b", 128_256),
    (r"llama-?2|tinyllama|vicuna|codellama|yi-1?\.?5?-?(?:6|9|34)b", 64_000),
    (r"qwen-?3\.[5-9]", 250_000),
    (r"qwen(?:1\.5|2|2\.5|3)|qwq", 152_064),
    (r"mi[sx]tral|ministral|pixtral|magistral|devstral", 131_072),
    (r"gemma-?[23]", 262_208),
    (r"phi-?3", 100_352),
    (r"phi-?4", 200_064),
    (r"deepseek", 129_280),
    (r"gpt-oss", 201_088),
    (r"glm-?4", 151_552),
    (r"internlm", 128_512),
    (r"\bopt-", 50_272),
    (r"gpt-?2", 50_257),
    (r"pythia|gpt-?neo", 50_304),
)
"""Tokens of a family's largest vocabulary: ``vocab_size`` of their configurations."""

TOKEN_IDS: Final = re.compile(
    r"token_ids|input_ids|logit_bias|input_embeds|prompt[\"']?\s*[:=]\s*\[+\s*\d",
    re.IGNORECASE,
)
"""Token ids, and embeddings, in a client's words."""
_WRITTEN: Final = re.compile(
    r"(?:(?:token_ids|input_ids|logit_bias)[\"']?\s*[:=]\s*|prompt[\"']?\s*[:=]\s*(?=\[))"
    r"[\[{\s]*([^\[\]{}()]{0,4000})",
    re.IGNORECASE,
)
_ID: Final = re.compile(r"(?<![\w.-])\d{2,6}(?![\w.])")
_COUNT: Final = re.compile(r"\brange\(\s*(?:\d{1,7}\s*,\s*)?(\d{1,7})\s*[,)]")
_LIST_OF_IDS: Final = re.compile(r"\[(?:\s*\d{1,6}\s*,){6,2000}\s*\d{0,6}\s*\]")
"""What is written out after a field of ids; ids in that; ids that a script counts."""


def vocabulary_of(model: str) -> int:
    """How many tokens a model has at most, by its name; of an unknown one
    ``MOST_TOKENS``."""
    for form, size in _VOCABULARIES:
        if re.search(form, model, re.IGNORECASE):
            return size
    return MOST_TOKENS


def tokens_named(traffic: str, model: str) -> int:
    """How many tokens a vocabulary needs in which the ids that ``traffic`` names exist;
    0: it names none.

    An id beyond the real model's vocabulary may be what the report is about, so it
    counts for nothing."""
    if not TOKEN_IDS.search(traffic):
        return 0
    size = vocabulary_of(model)
    if size == MOST_TOKENS:
        size = _FEWEST_TOKENS  # of an unknown model no more is sure

    most = 0
    for written in (*_WRITTEN.findall(traffic), *_LIST_OF_IDS.findall(traffic)):
        for id in _ID.findall(written):
            if int(id) < size:
                most = max(most, int(id) + 1)
    for count in _COUNT.findall(traffic):
        if int(count) <= size:
            most = max(most, int(count))
    return most
