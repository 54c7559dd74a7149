"""Requests as a log tells of them, without their words: lengths and features."""

from __future__ import annotations

import re

from mmrepro.failure.documents.fall import RequestShape
from mmrepro.probes import LogLine, LogsData
from mmrepro.traffic.evidence import Evidence

_ID = re.compile(
    r"(?:[Rr]equest|rid|Rid)[ =:]+['\"]?(?P<id>[A-Za-z]+-[\w-]{4,80}|[0-9a-f-]{8,64})"
)
_MAX_TOKENS = re.compile(r"max_(?:new_)?tokens['\"]?\s*[=:]\s*(\d{1,9})")
_PROMPT_TOKENS = re.compile(
    r"(?:prompt|input)_?(?:tokens|len)['\"]?\s*[=:]\s*(\d{1,9})"
)
_IDS = re.compile(r"(?:prompt_token_ids|input_ids)['\"]?\s*[=:]\s*\[([\d, ]{1,400000})")
_FEATURES = {
    "pictures": re.compile(
        r"<\|?(?:vision_start|image(?:_pad)?|img)\|?>|image_data=\["
    ),
    "adapter": re.compile(r"lora_(?:request|path)['\"]?\s*[=:]\s*(?!None|null)\S"),
    "grammar": re.compile(
        r"(?:structured_outputs|guided_decoding|json_schema|regex|ebnf)['\"]?\s*[=:]"
        r"\s*(?!None|null)\S"
    ),
    "logprobs": re.compile(r"\blogprobs['\"]?\s*[=:]\s*[1-9]"),
    "several": re.compile(r"\bn['\"]?\s*[=:]\s*(?:[2-9]|\d\d)"),
}


def shape_of(line: LogLine) -> RequestShape:
    """The shape of the request that a log line tells of."""
    text = line.text
    found = _ID.search(text)
    features = [name for name, form in _FEATURES.items() if form.search(text)]
    ids = _IDS.search(text)
    prompt_tokens = _number(_PROMPT_TOKENS, text)
    if prompt_tokens is None and ids is not None:
        prompt_tokens = ids[1].count(",") + 1
    return RequestShape(
        id=found["id"] if found else "",
        time=line.time,
        line_chars=len(text),
        prompt_tokens=prompt_tokens,
        max_tokens=_number(_MAX_TOKENS, text),
        features=features,
    )


def open_requests(evidence: Evidence) -> list[RequestShape]:
    """Those that were added after the last sign of work, oldest first."""
    shapes: list[RequestShape] = []
    for _, data in evidence.results(LogsData, partial=True):
        shapes += [shape_of(line) for line in data.stuck_requests]
    return shapes


def _number(form: re.Pattern[str], text: str) -> int | None:
    found = form.search(text)
    return int(found[1]) if found else None
