"""Sentences on what a recording's requests lost or changed on the way into a case."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from mmrepro.capture.heard import Tally
from mmrepro.capture.messages import UNSEEN_SIZE, Bodies
from mmrepro.capture.vllm_log import UNLOGGED

_CHANGED: Final = {
    "image-by-address": "pictures were given by address, and nothing is fetched: noise of "
    f"{UNSEEN_SIZE[0]} x {UNSEEN_SIZE[1]} pixels stands for each, the same for the same address",
    "part-by-address": "other parts of messages were nothing but an address, and are left away",
    "image-raw": "pictures are not in the usual Base64, and are sent exactly as they were",
    "content-null": "messages had null as their content, and are sent with an empty text",
    "surrogates": "texts had halves of characters, which are replaced by U+FFFD",
}


def notes(tally: Tally, bodies: Bodies) -> Iterator[str]:
    for name, said in _CHANGED.items():
        if count := bodies.changed[name]:
            yield f"{count} {said}."
    named = len(bodies.models - {""})
    if named > 1:
        yield f"The requests named {named} models; all go to the one that is started."
    if tally.format == "vllm-log" and (count := tally.left_out[UNLOGGED]):
        yield (
            f"{count} requests were refused, and vLLM logs a prompt only once it is accepted: "
            "what a refused request leaves behind is not in this case."
        )
    if tally.format.endswith("-log"):
        yield "Of a log, prompts stand after the chat template, unless it has whole bodies."
