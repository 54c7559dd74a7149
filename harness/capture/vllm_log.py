"""vLLM's log of requests (``--enable-log-requests``).

Until 0.11 a line of INFO has prompt and parameters; later ones need VLLM_LOGGING_LEVEL=DEBUG for
the prompt. Prompts stand there after the chat template, and without their pictures. From 0.32 on
DEBUG also prints each request's whole body, pictures and all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from mmrepro.capture.heard import Heard, Latest, Tally
from mmrepro.capture.messages import Bodies, Unusable
from mmrepro.capture.parsing import TEXT, Line, arguments, moment, no_constant, not_default, text_of
from mmrepro.case.model import CHAT, COMPLETIONS

_RECEIVED = re.compile(
    rf"Received request (?P<id>\S+): (?:prompt: (?P<prompt>{TEXT}|None), )?"
    r"params: (?P<params>\w+\()"
)
_DETAILS = re.compile(
    rf"Request (?P<id>\S+) details: prompt: (?P<prompt>{TEXT}|None), "
    r"prompt_token_ids: (?P<ids>\[[\d, ]*\]|None)"
)
_BODY = re.compile(r"Request (?P<id>\S+) JSON body: (?P<body>\{.*)")
_ENDED = re.compile(r"Generated response (?P<id>\S+?)(?: \(streaming complete\))?: output:")
_ABORTED = re.compile(r"Request (?P<id>\S+) aborted\b")
_ANSWERED = re.compile(
    r'"POST /(?:\S*/)?v1/(?:chat/)?completions(?:\?\S*)? HTTP/[\d.]+" (?P<status>\d{3})'
)
_TIME = re.compile(r"\b(?:INFO|DEBUG) (?P<time>\d\d-\d\d \d\d:\d\d:\d\d) ")
MARK = re.compile(
    r"Received request \S+: (?:prompt|params): |Request \S+ (?:details: prompt|JSON body): "
)
_SHOWN = re.compile(
    r"<\|(?:image|img|video|vision|audio)\w*\|>|<(?:image|img|video|audio)>|<IMG_CONTEXT>"
    r"|<start_of_image>|<image_soft_token>|\[IMG\]|<\|placeholder\w*\|>"
)
_DEFAULTS: Final[dict[str, Any]] = {
    **{"n": 1, "presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0},
    **{"top_p": 1.0, "top_k": (0, -1), "min_p": 0.0, "seed": None, "stop": [], "logprobs": None},
    **{"stop_token_ids": [], "bad_words": [], "include_stop_str_in_output": False},
    **{"ignore_eos": False, "min_tokens": 0, "prompt_logprobs": None, "skip_special_tokens": True},
    **{"spaces_between_special_tokens": True, "truncate_prompt_tokens": None},
}
UNLOGGED = "refused before vLLM logs the prompt"


@dataclass
class _Known:
    """What earlier lines told of a request."""

    prompt: str | None = None
    ids: list[int] | None = None


class VllmLog:
    """Reads one log. The clock of its requests is the number of the line."""

    def __init__(self, bodies: Bodies, tally: Tally, found: Latest) -> None:
        self.bodies, self.tally, self.found = bodies, tally, found
        self._place: dict[str, int] = {}
        self._details: dict[str, _Known] = {}
        self._by_body: set[str] = set()
        self._running = 0

    def read(self, lines: Iterator[Line]) -> None:
        for line in lines:
            try:
                self._line(line)
            except Unusable as why:
                self.tally.left_out[str(why)] += 1
            except ValueError:
                self.tally.left_out["a line that cannot be read"] += 1
        ends = any(h.end is not None for h in self.found)  # --enable-log-outputs
        self.found.change_all(
            lambda h: replace(h, running=None) if ends else replace(h, begin=None)
        )

    def _line(self, line: Line) -> None:
        """Raises Unusable, ValueError."""
        text = line.text
        if found := _BODY.search(text):
            self._whole(line, found["id"], found["body"])
        elif found := _DETAILS.search(text):
            ids = None if found["ids"] == "None" else json.loads(found["ids"])
            self._details[found["id"]] = _Known(text_of(found["prompt"]), ids)
        elif found := _RECEIVED.search(text):
            self._received(line, found)
        elif found := _ENDED.search(text):
            self._ends(found["id"], end=line.number)
        elif found := _ABORTED.search(text):
            self._ends(found["id"], left=True)
            self._running = max(0, self._running - 1)
        elif found := _ANSWERED.search(text):
            self._running = max(0, self._running - 1)
            if found["status"][0] == "4" and not self._by_body:
                self.tally.read += 1
                raise Unusable(UNLOGGED)

    def _whole(self, line: Line, name: str, body: str) -> None:
        self.tally.read += 1
        self._by_body.add(name)
        try:
            fields = json.loads(body, parse_constant=no_constant)
        except (ValueError, RecursionError) as error:
            raise Unusable("a body that the log has cut (--max-log-len)") from error
        path = CHAT if isinstance(fields, dict) and "messages" in fields else COMPLETIONS
        self._add(line, name, path, fields)

    def _received(self, line: Line, found: re.Match[str]) -> None:
        name = found["id"]
        bare = re.sub(r"^(?:chatcmpl|cmpl)-|-\d+$", "", name)
        if bare in self._by_body or name in self._by_body:
            return
        self.tally.read += 1
        known = self._details.pop(name, None) or _Known(text_of(found["prompt"] or "None"))
        if not found["params"].startswith("SamplingParams"):
            raise Unusable("a request that is no completion")
        if known.prompt is None and known.ids is None:
            raise Unusable("a prompt that the log does not carry")
        if _SHOWN.search(known.prompt or ""):
            raise Unusable("pictures, which the log does not carry")
        fields = _parameters(line.text[found.start("params") :])
        fields["prompt"] = known.ids if known.prompt is None else known.prompt
        if name.startswith("chatcmpl-"):  # the template put them there
            fields["add_special_tokens"] = False
        self._add(line, name, COMPLETIONS, fields)

    def _add(self, line: Line, name: str, path: str, fields: object) -> None:
        operation = self.bodies.operation(path, fields)
        self._place[name] = self.found.add(
            Heard(
                operation,
                begin=line.number,
                at_s=moment(_TIME.search(line.text), "2000-"),
                running=self._running,
            )
        )
        self._running += 1

    def _ends(self, name: str, *, end: int | None = None, left: bool = False) -> None:
        bare = re.sub(r"^(?:chatcmpl|cmpl)-|-\d+$", "", name)
        place = self._place.get(name, self._place.get(bare))
        if place is not None:
            self.found.change(place, end=end, left=left)


def _parameters(text: str) -> dict[str, Any]:
    """Of ``SamplingParams(…)``, at which ``text`` begins; those that are not at their defaults.
    Raises ValueError."""
    for end in (", prompt_token_ids: ", ", lora_request: "):
        if (cut := text.rfind(end)) > 0:
            told = arguments(text[:cut])
            break
    else:
        raise ValueError("it ends early")
    kept = not_default(told, _DEFAULTS)
    for name in ("structured_outputs", "guided_decoding"):
        if isinstance(told.get(name), dict):
            kept["structured_outputs"] = {k: v for k, v in told[name].items() if v is not None}
    return kept
