"""Request logs of vLLM (``--enable-log-requests``) and SGLang (``--log-requests``).

vLLM: until 0.11 a line of INFO has prompt and parameters; later ones need
VLLM_LOGGING_LEVEL=DEBUG for the prompt. Prompts stand there after the chat template,
and without their pictures. From 0.32 on DEBUG also prints each request's whole body,
pictures and all.

SGLang, at ``--log-requests-level 3``, as text or as JSON: from 0.5.17 on it has the
body of each request, pictures and all; before, the prompt after the chat template, and
the pictures beside it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any, Final

from mmrepro.probes.log_forms import read_line, seconds
from mmrepro.probes.log_wraps import ANSI, SAMPLE_LINES, Peeler
from mmrepro.traffic.capture.messages import Bodies, Unusable
from mmrepro.traffic.capture.parsing import (
    MAX_LINE,
    TEXT,
    Line,
    arguments,
    no_constant,
    not_default,
    text_of,
)
from mmrepro.traffic.capture.recorded import Latest, RecordedRequest, Tally
from mmrepro.traffic.case.model import CHAT, COMPLETIONS, Operation, Recorded

# -------------------------------------------------------------------------------- lines


def messages(lines: Iterator[Line]) -> Iterator[Line]:
    """The messages of a log's lines and their times, without what collectors put on.

    What is looked for stands at a message's beginning: further on it is what somebody
    wrote."""
    head = [*islice(lines, SAMPLE_LINES)]
    peeler = Peeler(most_cut=MAX_LINE)
    peeler.learn([line.text.encode("utf-8", "replace").rstrip(b"\n") for line in head])
    for line in chain(head, lines):
        if peeler.plain and "\x1b" not in line.text:
            texts = [line.text]
        else:
            found = peeler.peel(line.text.encode("utf-8", "replace").rstrip(b"\n"))
            texts = [
                ANSI.sub(b"", bare.text).decode("utf-8", "replace") for bare in found
            ]
        for text in texts:
            read = read_line(text, words=False)
            yield replace(line, text=read.text, time=read.time)


# ------------------------------------------------------------------------------- vLLM's

_RECEIVED = re.compile(
    rf"Received request (?P<id>\S+): (?:prompt: (?P<prompt>{TEXT}|None), )?"
    r"params: (?P<params>\w+\()"
)
_DETAILS = re.compile(
    rf"Request (?P<id>\S+) details: prompt: (?P<prompt>{TEXT}|None), "
    r"prompt_token_ids: (?P<ids>\[[\d, ]*\]|None)"
)
_BODY = re.compile(r"Request (?P<id>\S+) JSON body: (?P<body>\{.*)")
_ENDED = re.compile(
    r"Generated response (?P<id>\S+?)(?: \(streaming complete\))?: output:"
)
_ABORTED = re.compile(r"Request (?P<id>\S+) aborted\b")
_ANSWERED = re.compile(
    r'\S+ - "POST /(?:\S*/)?v1/(?:chat/)?completions(?:\?\S*)? HTTP/[\d.]+" '
    r"(?P<status>\d{3})"
)
VLLM = re.compile(
    r"Received request \S+: (?:prompt|params): |Request \S+ (?:details: prompt"
    r"|JSON body): "
)
_SHOWN = re.compile(
    r"<\|(?:image|img|video|vision|audio)\w*\|>|<(?:image|img|video|audio)>"
    r"|<IMG_CONTEXT>"
    r"|<start_of_image>|<image_soft_token>|\[IMG\]|<\|placeholder\w*\|>"
)
_VLLM_DEFAULTS: Final[dict[str, Any]] = {
    **{
        "n": 1,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
    },
    **{
        "top_p": 1.0,
        "top_k": (0, -1),
        "min_p": 0.0,
        "seed": None,
        "stop": [],
        "logprobs": None,
    },
    **{"stop_token_ids": [], "bad_words": [], "include_stop_str_in_output": False},
    **{
        "ignore_eos": False,
        "min_tokens": 0,
        "prompt_logprobs": None,
        "skip_special_tokens": True,
    },
    **{"spaces_between_special_tokens": True, "truncate_prompt_tokens": None},
}
UNREADABLE = "a line that cannot be read"
UNLOGGED = "refused before vLLM logs the prompt"


@dataclass
class _Known:
    """What earlier lines told of a request."""

    prompt: str | None = None
    ids: list[int] | None = None


def _each(lines: Iterator[Line], take: Callable[[Line], None], tally: Tally) -> None:
    """``take`` raises Unusable, ValueError."""
    for line in lines:
        try:
            take(line)
        except Unusable as why:
            tally.left_out[str(why)] += 1
        except ValueError:
            tally.left_out[UNREADABLE] += 1


class VllmLog:
    """Reads one log of vLLM. The clock of its requests is the number of the line."""

    def __init__(self, bodies: Bodies, tally: Tally, found: Latest) -> None:
        self.bodies, self.tally, self.found = bodies, tally, found
        self._place: dict[str, int] = {}
        self._details: dict[str, _Known] = {}
        self._by_body: set[str] = set()
        self._running = 0

    def read(self, lines: Iterator[Line]) -> None:
        _each(lines, self._line, self.tally)
        ends = any(h.end is not None for h in self.found)  # --enable-log-outputs
        self.found.change_all(
            lambda h: replace(h, running=None) if ends else replace(h, begin=None)
        )

    def _line(self, line: Line) -> None:
        """Raises Unusable, ValueError."""
        text = line.text
        if found := _BODY.match(text):
            self._whole(line, found["id"], found["body"])
        elif found := _DETAILS.match(text):
            ids = None if found["ids"] == "None" else json.loads(found["ids"])
            self._details[found["id"]] = _Known(text_of(found["prompt"]), ids)
        elif found := _RECEIVED.match(text):
            self._received(line, found)
        elif found := _ENDED.match(text):
            self._ends(found["id"], end=line.number)
        elif found := _ABORTED.match(text):
            self._ends(found["id"], left=True)
            self._running = max(0, self._running - 1)
        elif found := _ANSWERED.match(text):
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
        path = (
            CHAT if isinstance(fields, dict) and "messages" in fields else COMPLETIONS
        )
        self._add(line, name, path, fields)

    def _received(self, line: Line, found: re.Match[str]) -> None:
        name = found["id"]
        bare = re.sub(r"^(?:chatcmpl|cmpl)-|-\d+$", "", name)
        if bare in self._by_body or name in self._by_body:
            return
        self.tally.read += 1
        known = self._details.pop(name, None) or _Known(
            text_of(found["prompt"] or "None")
        )
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
        operation = self.bodies.printed(path, fields)
        self._place[name] = self.found.add(
            RecordedRequest(
                operation,
                begin=line.number,
                at_s=seconds(line.time),
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
    """Of ``SamplingParams(…)``, at which ``text`` begins; those that are not at their
    defaults. Raises ValueError."""
    for end in (", prompt_token_ids: ", ", lora_request: "):
        if (cut := text.rfind(end)) > 0:
            told = arguments(text[:cut])
            break
    else:
        raise ValueError("it ends early")
    kept = not_default(told, _VLLM_DEFAULTS)
    for name in ("structured_outputs", "guided_decoding"):
        if isinstance(told.get(name), dict):
            kept["structured_outputs"] = {
                k: v for k, v in told[name].items() if v is not None
            }
    return kept


# ----------------------------------------------------------------------------- SGLang's

_PRINTED = re.compile(
    r"(?P<event>Receive OpenAI|Receive|Finish): (?P<told>obj=.*)", re.DOTALL
)
_JSON = re.compile(r'\{"timestamp": "[^"]*", "event": "request\.(?:received|finished)')
_REFUSED = re.compile(r'\S+ - "POST /\S* HTTP/[\d.]+" (4\d\d)')
SGLANG = re.compile(rf"(?:{_JSON.pattern}|(?:Receive OpenAI|Receive|Finish): obj=)")
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
_SGLANG_DEFAULTS: Final[dict[str, Any]] = {
    **{
        "n": 1,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
    },
    **{
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "seed": None,
        "stop": None,
        "min_tokens": 0,
    },
    **{
        "stop_token_ids": None,
        "stop_regex": None,
        "regex": None,
        "ebnf": None,
        "logit_bias": None,
    },
    **{"ignore_eos": False, "no_stop_trim": False, "skip_special_tokens": True},
}
_OPENAI_DEFAULTS: Final[dict[str, Any]] = {
    **{
        "n": 1,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "logprobs": False,
        "echo": False,
    },
    **{
        "tool_choice": "none",
        "parallel_tool_calls": True,
        "min_tokens": 0,
        "no_stop_trim": False,
    },
    **{
        "ignore_eos": False,
        "continue_final_message": False,
        "skip_special_tokens": True,
    },
    **{
        "separate_reasoning": True,
        "stream_reasoning": True,
        "use_audio_in_video": False,
    },
    **{"routed_experts_start_len": 0, "return_flat_raw_top_logprobs_b64": True},
}


MOST_UNPAIRED: Final = 1000
"""Bodies that wait for their own line; no server has as many requests at a time."""


class SglangLog:
    """Reads one log of SGLang. The clock of its requests is the number of the line."""

    def __init__(self, bodies: Bodies, tally: Tally, found: Latest) -> None:
        self.bodies, self.tally, self.found = bodies, tally, found
        self._unpaired: list[tuple[int | None, str]] = []
        """Bodies whose own line has not come: number in ``found``, and a text of
        theirs."""
        self._place: dict[str, int | None] = {}

    def read(self, lines: Iterator[Line]) -> None:
        _each(lines, self._line, self.tally)
        # Of a client that went away there is no line. What never ended at the log's end
        # is no such.
        last = max(
            (h.begin or 0.0 for h in self.found if h.end is not None), default=0.0
        )
        self.found.change_all(
            lambda h: replace(h, left=h.end is None and (h.begin or 0.0) < last)
        )

    def _line(self, line: Line) -> None:
        """Raises Unusable."""
        if found := _JSON.match(line.text):
            told = _document(line.text[found.start() :])
            event = _EVENTS.get(str(told.get("event")), "")
        elif printed := _PRINTED.match(line.text):
            event = printed["event"]
            if event == "Finish":
                self._finished(line, _finish(line.text))
                return
            if event == "Receive" and self._pairs(_rid(line.text), line.text):
                return
            told = _printed(printed["told"].rstrip())
        else:
            if _REFUSED.match(line.text):
                self._refused(line)
            return
        if not isinstance(told.get("obj"), dict):
            raise Unusable(UNREADABLE)
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
                if value
                != _OPENAI_DEFAULTS.get(name, False if name[:7] == "return_" else None)
            }
            path = CHAT if "messages" in body else COMPLETIONS
            place = self._add(line, self.bodies.printed(path, _without_detail(told)))
        finally:
            self._unpaired.append((place, hint))
            # Each line is compared with all of them.
            del self._unpaired[:-MOST_UNPAIRED]

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
        same = [
            n for n, h in enumerate(hints) if h and (h in text or repr(h)[1:-1] in text)
        ]
        self._place[rid] = self._unpaired.pop(same[0] if same else 0)[0]
        return True

    def _templated(self, told: dict[str, Any]) -> Operation:
        """Raises Unusable."""
        if "text" not in told:
            raise Unusable(
                "a prompt that the log does not carry (--log-requests-level 0 or 1)"
            )
        if _is_cut(told):
            raise Unusable(CUT_SHORT)
        sampling = told.get("sampling_params")
        given: dict[str, Any] = sampling if isinstance(sampling, dict) else {}
        named = {_NAMES.get(name, name): value for name, value in given.items()}
        fields = not_default(named, _SGLANG_DEFAULTS)
        fields["stream"] = bool(told.get("stream"))
        images = _pictures(told.get("image_data"))
        prompt = told.get("input_ids") if told.get("text") is None else told["text"]
        if told.get("video_data") or told.get("audio_data"):
            raise Unusable("video or sound")
        if not images:
            return self.bodies.printed(COMPLETIONS, {**fields, "prompt": prompt})
        messages = _untemplated(prompt, images)
        return self.bodies.printed(CHAT, {**fields, "messages": messages})

    def _finished(self, line: Line, told: dict[str, Any]) -> None:
        place = self._place.pop(str(told.get("rid")), None)
        if place is None:
            return
        out = told.get("out")
        meta = out.get("meta_info") if isinstance(out, dict) else None
        recorded = _recorded(meta if isinstance(meta, dict) else {})
        self.found.change(place, end=line.number, recorded=recorded)

    def _refused(self, line: Line) -> None:
        """The last that was taken in ends with it: what is refused is refused at
        once."""
        for rid, place in reversed(self._place.items()):
            if place is not None:
                self.found.change(place, end=line.number, recorded=Recorded(status=400))
                del self._place[rid]
                return

    def _add(self, line: Line, operation: Operation) -> int:
        at_s = seconds(line.time)
        return self.found.add(RecordedRequest(operation, begin=line.number, at_s=at_s))


CUT_SHORT = "a request that the log has cut (--log-requests-level 3 does not)"


def _document(text: str) -> dict[str, Any]:
    """Raises Unusable."""
    try:
        told = json.loads(text, parse_constant=no_constant)
    except (ValueError, RecursionError) as error:
        raise Unusable(UNREADABLE) from error
    return told if isinstance(told, dict) else {}


def _printed(told: str) -> dict[str, Any]:
    """Raises Unusable."""
    try:
        return arguments(f"f({told})")
    except ValueError as error:
        raise Unusable(CUT_SHORT if _CUT.search(told) else UNREADABLE) from error


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
    """Messages of a prompt in ChatML, its pictures where their marks stand. Raises
    Unusable."""
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


def _without_detail(body: dict[str, Any]) -> dict[str, Any]:
    """Without the detail of pictures that SGLang itself put there, its default."""
    for message in body.get("messages") or []:
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else []:
            shown = part.get("image_url") if isinstance(part, dict) else None
            if isinstance(shown, dict) and shown.get("detail") == "auto":
                del shown["detail"]
    return body


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
