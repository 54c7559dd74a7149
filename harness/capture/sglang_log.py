"""SGLang's log of requests (``--log-requests --log-requests-level 3``), as text or as JSON.

From 0.5.17 on it has the body of each request, pictures and all; before, the prompt after the chat
template, and the pictures beside it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from mmrepro.capture.heard import Heard, Latest, Tally
from mmrepro.capture.messages import Bodies, Unusable
from mmrepro.capture.parsing import Line, arguments, moment, no_constant, not_default
from mmrepro.case.model import CHAT, COMPLETIONS, Operation, Recorded

_PRINTED = re.compile(r"\b(?P<event>Receive OpenAI|Receive|Finish): (?P<told>obj=.*)", re.DOTALL)
_JSON = re.compile(r'\{"timestamp": "[^"]*", "event": "request\.(?:received|finished)')
_TIME = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)")
_REFUSED = re.compile(r'"POST /\S* HTTP/[\d.]+" (4\d\d)')
MARK = re.compile(rf"(?:{_JSON.pattern}|\b(?:Receive OpenAI|Receive|Finish): obj=)")
_EVENTS: Final = {
    "request.received.openai": "Receive OpenAI",
    "request.received": "Receive",
    "request.finished": "Finish",
}
_CUT = re.compile(r"""['"\]] \.\.\. ['"\[]""")
_TURN = re.compile(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>\n", re.DOTALL)
_PICTURE = "<|vision_start|><|image_pad|><|vision_end|>"
_NAMES: Final = {
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "sampling_seed": "seed",
}
_DEFAULTS: Final[dict[str, Any]] = {
    **{"n": 1, "presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0},
    **{"top_p": 1.0, "top_k": -1, "min_p": 0.0, "seed": None, "stop": None, "min_tokens": 0},
    **{"stop_token_ids": None, "stop_regex": None, "regex": None, "ebnf": None, "logit_bias": None},
    **{"ignore_eos": False, "no_stop_trim": False, "skip_special_tokens": True},
}
_OPENAI_DEFAULTS: Final[dict[str, Any]] = {
    **{"n": 1, "presence_penalty": 0.0, "frequency_penalty": 0.0, "logprobs": False, "echo": False},
    **{"tool_choice": "none", "parallel_tool_calls": True, "min_tokens": 0, "no_stop_trim": False},
    **{"ignore_eos": False, "continue_final_message": False, "skip_special_tokens": True},
    **{"separate_reasoning": True, "stream_reasoning": True, "use_audio_in_video": False},
    **{"routed_experts_start_len": 0, "return_flat_raw_top_logprobs_b64": True},
}


class SglangLog:
    """Reads one log. The clock of its requests is the number of the line."""

    def __init__(self, bodies: Bodies, tally: Tally, found: Latest) -> None:
        self.bodies, self.tally, self.found = bodies, tally, found
        self._unpaired: list[tuple[int | None, str]] = []
        """Bodies whose own line has not come: number in ``found``, and a text of theirs."""
        self._place: dict[str, int | None] = {}

    def read(self, lines: Iterator[Line]) -> None:
        for line in lines:
            try:
                self._line(line)
            except Unusable as why:
                self.tally.left_out[str(why)] += 1
        # Of a client that went away there is no line. What never ended at the log's end is no such.
        last = max((h.begin or 0.0 for h in self.found if h.end is not None), default=0.0)
        self.found.change_all(lambda h: replace(h, left=h.end is None and (h.begin or 0.0) < last))

    def _line(self, line: Line) -> None:
        """Raises Unusable."""
        if found := _JSON.search(line.text):
            told = _document(line.text[found.start() :])
            event = _EVENTS.get(str(told.get("event")), "")
        elif printed := _PRINTED.search(line.text):
            event = printed["event"]
            if event == "Finish":
                self._finished(line, _finish(line.text))
                return
            if event == "Receive" and self._pairs(_rid(line.text), line.text):
                return
            told = _printed(printed["told"].rstrip())
        else:
            if _REFUSED.search(line.text):
                self._refused(line)
            return
        if not isinstance(told.get("obj"), dict):
            raise Unusable("a line that cannot be read")
        headers = told.get("headers")
        self.tally.dropped["header"] += len(headers) if isinstance(headers, dict) else 0
        if event == "Finish":
            self._finished(line, told)
        elif event == "Receive OpenAI":
            self._asked(line, told["obj"])
        elif event == "Receive":
            self._received(line, told["obj"])

    # ------------------------------------------------------------------ events

    def _asked(self, line: Line, body: dict[str, Any]) -> None:
        """A request's body, before the template."""
        self.tally.read += 1
        hint = _last_text(body)
        place: int | None = None
        try:
            if _is_cut(body):
                raise Unusable(CUT_SHORT)
            if not ("messages" in body or "prompt" in body):
                raise Unusable("a request that is no completion")
            told = {
                name: value
                for name, value in body.items()
                if value != _OPENAI_DEFAULTS.get(name, False if name[:7] == "return_" else None)
            }
            path = CHAT if "messages" in body else COMPLETIONS
            place = self._add(line, self.bodies.operation(path, told))
        finally:
            self._unpaired.append((place, hint))

    def _received(self, line: Line, told: dict[str, Any]) -> None:
        rid = str(told.get("rid"))
        if rid.startswith("HEALTH_CHECK"):
            return
        if self._pairs(rid, str(told.get("text") or "")):
            return
        self.tally.read += 1
        self._place[rid] = None
        self._place[rid] = self._add(line, self._templated(told))

    def _pairs(self, rid: str, text: str) -> bool:
        """The line of a request whose body was logged before; by a text of the body."""
        if not self._unpaired or rid.startswith("HEALTH_CHECK"):
            return False
        hints = [hint for _, hint in self._unpaired]
        same = [n for n, h in enumerate(hints) if h and (h in text or repr(h)[1:-1] in text)]
        self._place[rid] = self._unpaired.pop(same[0] if same else 0)[0]
        return True

    def _templated(self, told: dict[str, Any]) -> Operation:
        """Raises Unusable."""
        if "text" not in told:
            raise Unusable("a prompt that the log does not carry (--log-requests-level 0 or 1)")
        if _is_cut(told):
            raise Unusable(CUT_SHORT)
        sampling = told.get("sampling_params")
        given: dict[str, Any] = sampling if isinstance(sampling, dict) else {}
        named = {_NAMES.get(name, name): value for name, value in given.items()}
        fields = not_default(named, _DEFAULTS)
        fields["stream"] = bool(told.get("stream"))
        images = _pictures(told.get("image_data"))
        prompt = told.get("input_ids") if told.get("text") is None else told["text"]
        if told.get("video_data") or told.get("audio_data"):
            raise Unusable("video or sound")
        if not images:
            return self.bodies.operation(COMPLETIONS, {**fields, "prompt": prompt})
        messages = _untemplated(prompt, images)
        return self.bodies.operation(CHAT, {**fields, "messages": messages})

    def _finished(self, line: Line, told: dict[str, Any]) -> None:
        place = self._place.pop(str(told.get("rid")), None)
        if place is None:
            return
        out = told.get("out")
        meta = out.get("meta_info") if isinstance(out, dict) else None
        recorded = _recorded(meta if isinstance(meta, dict) else {})
        self.found.change(place, end=line.number, recorded=recorded)

    def _refused(self, line: Line) -> None:
        """The last that was taken in ends with it: what is refused is refused at once."""
        for rid, place in reversed(self._place.items()):
            if place is not None:
                self.found.change(place, end=line.number, recorded=Recorded(status=400))
                del self._place[rid]
                return

    def _add(self, line: Line, operation: Operation) -> int:
        return self.found.add(
            Heard(operation, begin=line.number, at_s=moment(_TIME.search(line.text)))
        )


CUT_SHORT = "a request that the log has cut (--log-requests-level 3 does not)"


def _document(text: str) -> dict[str, Any]:
    """Raises Unusable."""
    try:
        told = json.loads(text, parse_constant=no_constant)
    except (ValueError, RecursionError) as error:
        raise Unusable("a line that cannot be read") from error
    return told if isinstance(told, dict) else {}


def _printed(told: str) -> dict[str, Any]:
    """Raises Unusable."""
    try:
        return arguments(f"f({told})")
    except ValueError as error:
        raise Unusable(CUT_SHORT if _CUT.search(told) else "a line that cannot be read") from error


def _finish(text: str) -> dict[str, Any]:
    """Of a line that may be cut: only what is needed of it."""
    meta = text[max(0, text.rfind("'meta_info': {")) :]
    counts = re.findall(r"'(prompt_tokens|completion_tokens)': (\d{1,12})\b", meta)
    kind = re.search(r"'finish_reason': \{'type': '(\w+)'", meta)
    found: dict[str, Any] = {name: int(count) for name, count in counts}
    if kind:
        found["finish_reason"] = {"type": kind[1]}
    return {"rid": _rid(text), "out": {"meta_info": found}}


def _rid(text: str) -> str:
    found = re.search(r"\brid='([^']*)'", text)
    return found[1] if found else ""


def _recorded(meta: dict[str, Any]) -> Recorded:
    def count(name: str) -> int | None:
        value = meta.get(name)
        return value if type(value) is int else None

    reason = meta.get("finish_reason")
    kind = reason.get("type") if isinstance(reason, dict) else None
    return Recorded(
        status=200,
        finish_reason=kind if isinstance(kind, str) else None,
        prompt_tokens=count("prompt_tokens"),
        completion_tokens=count("completion_tokens"),
    )


def _pictures(data: Any) -> list[str]:
    """Raises Unusable."""
    if data is None:
        return []
    found = []
    for one in data if isinstance(data, list) else [data]:
        url = one.get("url") if isinstance(one, dict) else one
        if not isinstance(url, str):
            raise Unusable("pictures in a form that is not known")
        found.append(url)
    return found


def _untemplated(prompt: Any, images: list[str]) -> list[dict[str, Any]]:
    """Messages of a prompt in ChatML, its pictures where their marks stand. Raises Unusable."""
    text = prompt if isinstance(prompt, str) else ""
    body, begun, _ = text.rpartition("<|im_start|>assistant\n")
    turns = _TURN.findall(body)
    again = "".join(f"<|im_start|>{role}\n{said}<|im_end|>\n" for role, said in turns)
    if not begun or again != body or text.count(_PICTURE) != len(images):
        raise Unusable("pictures in a prompt whose chat template is not known")
    left = iter(images)
    messages = []
    for role, said in turns:
        first, *rest = said.split(_PICTURE)
        parts: list[dict[str, Any]] = [{"type": "text", "text": first}] if first else []
        for piece in rest:
            parts.append({"type": "image_url", "image_url": {"url": next(left)}})
            parts += [{"type": "text", "text": piece}] if piece else []
        messages.append({"role": role, "content": parts if rest else said})
    return messages


def _last_text(body: dict[str, Any]) -> str:
    """A text of the request that its prompt must hold."""
    messages = body.get("messages")
    last = messages[-1] if isinstance(messages, list) and messages else None
    content = last.get("content") if isinstance(last, dict) else body.get("prompt")
    if isinstance(content, list):
        texts = [p.get("text") for p in content if isinstance(p, dict)]
        content = next((t for t in texts if isinstance(t, str) and t), "")
    return content if isinstance(content, str) else ""


def _is_cut(value: Any) -> bool:
    """The middle of a text or list is missing: level 2 keeps 2048 of each."""
    if isinstance(value, str):
        return len(value) == 2051 and value[1024:1027] == "..."
    if isinstance(value, list):
        return (len(value) == 2049 and value[1024] == "...") or any(map(_is_cut, value))
    return isinstance(value, dict) and any(map(_is_cut, value.values()))
