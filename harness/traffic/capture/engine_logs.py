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

from mmrepro.probes import ANSI, SAMPLE_LINES, Peeler
from mmrepro.probes.log_forms import read_line, seconds
from mmrepro.traffic.capture.messages import Bodies, Unusable
from mmrepro.traffic.capture.parsing import (
    MAX_LINE,
    TEXT,
    TextLine,
    arguments,
    no_constant,
    not_default,
    text_of,
)
from mmrepro.traffic.capture.recorded import Latest, RecordedRequest, Tally
from mmrepro.traffic.case.model import CHAT, COMPLETIONS, Operation, Recorded

# -------------------------------------------------------------------------------- lines


def messages(lines: Iterator[TextLine]) -> Iterator[TextLine]:
    """The messages of a log's lines and their times, without what collectors put on.

    What is looked for stands at a message's beginning: further on it is what somebody
    wrote."""
    head = [*islice(lines, SAMPLE_LINES)]
    peeler = Peeler(most_cut=MAX_LINE)
    peeler.learn([_bytes_of(line) for line in head])
    for line in chain(head, lines):
        for text in _bare_texts(line, peeler):
            read = read_line(text, words=False)
            yield replace(line, text=read.text, time=read.time)


def _bytes_of(line: TextLine) -> bytes:
    return line.text.encode("utf-8", "replace").rstrip(b"\n")


def _bare_texts(line: TextLine, peeler: Peeler) -> list[str]:
    """Return what a line holds without a collector's wrapping and without colours."""
    if peeler.plain and "\x1b" not in line.text:
        return [line.text]
    texts: list[str] = []
    for bare in peeler.peel(_bytes_of(line)):
        texts.append(ANSI.sub(b"", bare.text).decode("utf-8", "replace"))
    return texts


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
    "n": 1,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "top_p": 1.0,
    "top_k": (0, -1),
    "min_p": 0.0,
    "seed": None,
    "stop": [],
    "logprobs": None,
    "stop_token_ids": [],
    "bad_words": [],
    "include_stop_str_in_output": False,
    "ignore_eos": False,
    "min_tokens": 0,
    "prompt_logprobs": None,
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "truncate_prompt_tokens": None,
}
_UNREADABLE = "a line that cannot be read"
UNLOGGED = "refused before vLLM logs the prompt"


@dataclass
class _Known:
    """What earlier lines told of a request."""

    prompt: str | None = None
    ids: list[int] | None = None


def _each(
    lines: Iterator[TextLine], take: Callable[[TextLine], None], tally: Tally
) -> None:
    """Give each line to ``take``, which raises Unusable or ValueError, and count what
    it cannot use."""
    for line in lines:
        try:
            take(line)
        except Unusable as why:
            tally.left_out[str(why)] += 1
        except ValueError:
            tally.left_out[_UNREADABLE] += 1


class VllmLog:
    """Reads one log of vLLM. The clock of its requests is the number of the line."""

    def __init__(self, bodies: Bodies, tally: Tally, latest: Latest) -> None:
        self.bodies = bodies
        self.tally = tally
        self.latest = latest
        self._place: dict[str, int] = {}
        self._details: dict[str, _Known] = {}
        self._by_body: set[str] = set()
        self._running = 0

    def read(self, lines: Iterator[TextLine]) -> None:
        _each(lines, self._line, self.tally)

        # Only with --enable-log-outputs the log has the ends of requests. Without them the
        # lines' order says little, and how many ran beside each one is used in its place.
        has_ends = any(request.end is not None for request in self.latest)

        def ordered(request: RecordedRequest) -> RecordedRequest:
            if has_ends:
                return replace(request, running=None)
            return replace(request, begin=None)

        self.latest.change_all(ordered)

    def _line(self, line: TextLine) -> None:
        """Raises Unusable, ValueError."""
        text = line.text
        if match := _BODY.match(text):
            self._whole(line, match["id"], match["body"])
        elif match := _DETAILS.match(text):
            ids = None if match["ids"] == "None" else json.loads(match["ids"])
            self._details[match["id"]] = _Known(text_of(match["prompt"]), ids)
        elif match := _RECEIVED.match(text):
            self._received(line, match)
        elif match := _ENDED.match(text):
            self._ends(match["id"], end=line.number)
        elif match := _ABORTED.match(text):
            self._ends(match["id"], left=True)
            self._running = max(0, self._running - 1)
        elif match := _ANSWERED.match(text):
            self._running = max(0, self._running - 1)
            # Where bodies are logged, that of a refused request is too.
            if match["status"][0] == "4" and not self._by_body:
                self.tally.read += 1
                raise Unusable(UNLOGGED)

    def _whole(self, line: TextLine, name: str, body: str) -> None:
        """Add a request whose whole body is logged. Raises Unusable."""
        self.tally.read += 1
        self._by_body.add(name)
        try:
            fields = json.loads(body, parse_constant=no_constant)
        except (ValueError, RecursionError) as error:
            raise Unusable("a body that the log has cut (--max-log-len)") from error
        is_chat = isinstance(fields, dict) and "messages" in fields
        self._add(line, name, CHAT if is_chat else COMPLETIONS, fields)

    def _received(self, line: TextLine, received: re.Match[str]) -> None:
        """Add a request of which prompt and parameters are logged. Raises Unusable,
        ValueError."""
        name = received["id"]
        if _bare(name) in self._by_body or name in self._by_body:
            return
        self.tally.read += 1
        known = self._details.pop(name, None)
        if known is None:
            known = _Known(text_of(received["prompt"] or "None"))
        if not received["params"].startswith("SamplingParams"):
            raise Unusable("a request that is no completion")
        if known.prompt is None and known.ids is None:
            raise Unusable("a prompt that the log does not carry")
        if _SHOWN.search(known.prompt or ""):
            raise Unusable("pictures, which the log does not carry")
        fields = _parameters(line.text[received.start("params") :])
        fields["prompt"] = known.ids if known.prompt is None else known.prompt
        if name.startswith("chatcmpl-"):
            # The chat template has put them into the prompt already.
            fields["add_special_tokens"] = False
        self._add(line, name, COMPLETIONS, fields)

    def _add(self, line: TextLine, name: str, path: str, fields: object) -> None:
        """Add a request. Raises Unusable."""
        request = RecordedRequest(
            self.bodies.printed(path, fields),
            begin=line.number,
            at_s=seconds(line.time),
            running=self._running,
        )
        self._place[name] = self.latest.add(request)
        self._running += 1

    def _ends(self, name: str, *, end: int | None = None, left: bool = False) -> None:
        place = self._place.get(name, self._place.get(_bare(name)))
        if place is not None:
            self.latest.change(place, end=end, left=left)


def _bare(name: str) -> str:
    """Return a request's id without what vLLM puts around it: the kind of the request
    in front, and the number of a prompt among several behind."""
    return re.sub(r"^(?:chatcmpl|cmpl)-|-\d+$", "", name)


def _parameters(text: str) -> dict[str, Any]:
    """Return the parameters of ``SamplingParams(…)``, at which ``text`` begins, that
    are not at their defaults. Raises ValueError."""
    for end in (", prompt_token_ids: ", ", lora_request: "):
        cut = text.rfind(end)
        if cut > 0:
            break
    else:
        raise ValueError("it ends early")
    parameters = arguments(text[:cut])
    kept = not_default(parameters, _VLLM_DEFAULTS)
    for name in ("structured_outputs", "guided_decoding"):
        outputs = parameters.get(name)
        if isinstance(outputs, dict):
            given = {key: value for key, value in outputs.items() if value is not None}
            kept["structured_outputs"] = given
    return kept


# ----------------------------------------------------------------------------- SGLang's

_PRINTED = re.compile(
    r"(?P<event>Receive OpenAI|Receive|Finish): (?P<entry>obj=.*)", re.DOTALL
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
"""How Qwen's chat template marks a picture."""
_NAMES: Final = {
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "sampling_seed": "seed",
}
_SGLANG_DEFAULTS: Final[dict[str, Any]] = {
    "n": 1,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "seed": None,
    "stop": None,
    "min_tokens": 0,
    "stop_token_ids": None,
    "stop_regex": None,
    "regex": None,
    "ebnf": None,
    "logit_bias": None,
    "ignore_eos": False,
    "no_stop_trim": False,
    "skip_special_tokens": True,
}
_OPENAI_DEFAULTS: Final[dict[str, Any]] = {
    "n": 1,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "logprobs": False,
    "echo": False,
    "tool_choice": "none",
    "parallel_tool_calls": True,
    "min_tokens": 0,
    "no_stop_trim": False,
    "ignore_eos": False,
    "continue_final_message": False,
    "skip_special_tokens": True,
    "separate_reasoning": True,
    "stream_reasoning": True,
    "use_audio_in_video": False,
    "routed_experts_start_len": 0,
    "return_flat_raw_top_logprobs_b64": True,
}


_MOST_UNPAIRED: Final = 1000
"""Bodies that wait for their own line; no server has as many requests at a time."""


class SglangLog:
    """Reads one log of SGLang. The clock of its requests is the number of the line."""

    def __init__(self, bodies: Bodies, tally: Tally, latest: Latest) -> None:
        self.bodies = bodies
        self.tally = tally
        self.latest = latest
        self._unpaired: list[tuple[int | None, str]] = []
        """Bodies whose own line has not come: number in ``latest``, and a text of
        theirs."""
        self._place: dict[str, int | None] = {}

    def read(self, lines: Iterator[TextLine]) -> None:
        _each(lines, self._line, self.tally)

        # Of a client that went away there is no line. A request that began behind the last
        # one that ended may just have been running when the log ended.
        last = 0.0
        for request in self.latest:
            if request.end is not None:
                last = max(last, request.begin or 0.0)

        def with_left(request: RecordedRequest) -> RecordedRequest:
            left = request.end is None and (request.begin or 0.0) < last
            return replace(request, left=left)

        self.latest.change_all(with_left)

    def _line(self, line: TextLine) -> None:
        """Raises Unusable."""
        document = _JSON.match(line.text)
        printed = _PRINTED.match(line.text)
        if document:
            entry = _document(line.text[document.start() :])
            event = _EVENTS.get(str(entry.get("event")), "")
        elif printed:
            event = printed["event"]
            if event == "Finish":
                self._finished(line, _finish(line.text))
                return
            if event == "Receive" and self._pairs(_rid(line.text), line.text):
                return
            entry = _printed(printed["entry"].rstrip())
        else:
            if _REFUSED.match(line.text):
                self._refused(line)
            return

        request = entry.get("obj")
        if not isinstance(request, dict):
            raise Unusable(_UNREADABLE)
        headers = entry.get("headers")
        self.tally.dropped["header"] += len(headers) if isinstance(headers, dict) else 0
        if event == "Finish":
            self._finished(line, entry)
        elif event == "Receive OpenAI":
            self._asked(line, request)
        elif event == "Receive":
            self._received(line, request)

    # ------------------------------------------------------------------ events

    def _asked(self, line: TextLine, body: dict[str, Any]) -> None:
        """Add a request by its body, before the template. Raises Unusable."""
        self.tally.read += 1
        hint = _last_text(body)
        place: int | None = None
        try:
            if _is_cut(body):
                raise Unusable(_CUT_SHORT)
            if not ("messages" in body or "prompt" in body):
                raise Unusable("a request that is no completion")
            path = CHAT if "messages" in body else COMPLETIONS
            fields = _without_detail(_not_openai_default(body))
            place = self._add(line, self.bodies.printed(path, fields))
        finally:
            # Its own line comes also where the body is of no use. Each such line is
            # compared with all that wait, so they must stay few.
            self._unpaired.append((place, hint))
            del self._unpaired[:-_MOST_UNPAIRED]

    def _received(self, line: TextLine, request: dict[str, Any]) -> None:
        """Add a request by its own line, unless its body was logged. Raises Unusable."""
        rid = str(request.get("rid"))
        if rid.startswith("HEALTH_CHECK"):
            return
        if self._pairs(rid, str(request.get("text") or "")):
            return
        self.tally.read += 1
        # Its end must not be taken for that of an earlier request of the same id.
        self._place[rid] = None
        self._place[rid] = self._add(line, self._templated(request))

    def _pairs(self, rid: str, text: str) -> bool:
        """Whether it is the line of a request whose body was logged before, by a text of
        the body."""
        if not self._unpaired or rid.startswith("HEALTH_CHECK"):
            return False
        # Where no text fits, requests are taken in the order in which they came.
        pair = 0
        for number, (_, hint) in enumerate(self._unpaired):
            if hint and (hint in text or repr(hint)[1:-1] in text):
                pair = number
                break
        self._place[rid], _ = self._unpaired.pop(pair)
        return True

    def _templated(self, request: dict[str, Any]) -> Operation:
        """Return the operation of a request whose prompt went through the template. Raises
        Unusable."""
        if "text" not in request:
            raise Unusable(
                "a prompt that the log does not carry (--log-requests-level 0 or 1)"
            )
        if _is_cut(request):
            raise Unusable(_CUT_SHORT)
        sampling = request.get("sampling_params")
        given: dict[str, Any] = sampling if isinstance(sampling, dict) else {}
        named = {_NAMES.get(name, name): value for name, value in given.items()}
        fields = not_default(named, _SGLANG_DEFAULTS)
        fields["stream"] = bool(request.get("stream"))
        images = _pictures(request.get("image_data"))
        prompt = request["text"]
        if prompt is None:
            prompt = request.get("input_ids")
        if request.get("video_data") or request.get("audio_data"):
            raise Unusable("video or sound")
        if not images:
            return self.bodies.printed(COMPLETIONS, {**fields, "prompt": prompt})
        messages = _untemplated(prompt, images)
        return self.bodies.printed(CHAT, {**fields, "messages": messages})

    def _finished(self, line: TextLine, entry: dict[str, Any]) -> None:
        place = self._place.pop(str(entry.get("rid")), None)
        if place is None:
            return
        out = entry.get("out")
        meta = out.get("meta_info") if isinstance(out, dict) else None
        recorded = _recorded(meta if isinstance(meta, dict) else {})
        self.latest.change(place, end=line.number, recorded=recorded)

    def _refused(self, line: TextLine) -> None:
        """End the last request that was taken in: what is refused is refused at once."""
        for rid, place in reversed(self._place.items()):
            if place is not None:
                refused = Recorded(status=400)
                self.latest.change(place, end=line.number, recorded=refused)
                del self._place[rid]
                return

    def _add(self, line: TextLine, operation: Operation) -> int:
        at_s = seconds(line.time)
        request = RecordedRequest(operation, begin=line.number, at_s=at_s)
        return self.latest.add(request)


_CUT_SHORT = "a request that the log has cut (--log-requests-level 3 does not)"


def _not_openai_default(body: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a body that are not at their defaults: the log has all."""
    kept: dict[str, Any] = {}
    for name, value in body.items():
        usual = False if name.startswith("return_") else None
        if value != _OPENAI_DEFAULTS.get(name, usual):
            kept[name] = value
    return kept


def _document(text: str) -> dict[str, Any]:
    """Raises Unusable: it cannot be read."""
    try:
        entry = json.loads(text, parse_constant=no_constant)
    except (ValueError, RecursionError) as error:
        raise Unusable(_UNREADABLE) from error
    return entry if isinstance(entry, dict) else {}


def _printed(text: str) -> dict[str, Any]:
    """Raises Unusable: it cannot be read."""
    try:
        return arguments(f"f({text})")
    except ValueError as error:
        raise Unusable(_CUT_SHORT if _CUT.search(text) else _UNREADABLE) from error


def _finish(text: str) -> dict[str, Any]:
    """Return what is needed of an end's line; the rest of it may be cut."""
    meta = text[max(0, text.rfind("'meta_info': {")) :]
    counts = re.findall(r"'(prompt_tokens|completion_tokens)': (\d{1,12})\b", meta)
    info: dict[str, Any] = {name: int(count) for name, count in counts}
    kind = re.search(r"'finish_reason': \{'type': '(\w+)'", meta)
    if kind:
        info["finish_reason"] = {"type": kind[1]}
    return {"rid": _rid(text), "out": {"meta_info": info}}


def _rid(text: str) -> str:
    match = re.search(r"\brid='([^']*)'", text)
    return match[1] if match else ""


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
    """Return the addresses of pictures. Raises Unusable."""
    if data is None:
        return []
    urls: list[str] = []
    for picture in data if isinstance(data, list) else [data]:
        url = picture.get("url") if isinstance(picture, dict) else picture
        if not isinstance(url, str):
            raise Unusable("pictures in a form that is not known")
        urls.append(url)
    return urls


def _untemplated(prompt: Any, images: list[str]) -> list[dict[str, Any]]:
    """Return messages of a prompt in ChatML, its pictures where their marks stand.
    Raises Unusable."""
    text = prompt if isinstance(prompt, str) else ""
    body, begun, _ = text.rpartition("<|im_start|>assistant\n")
    turns = _TURN.findall(body)

    # Only what gives the same prompt again is believed: a turn may hold such marks.
    again = ""
    for role, content in turns:
        again += f"<|im_start|>{role}\n{content}<|im_end|>\n"
    if not begun or again != body or text.count(_PICTURE) != len(images):
        raise Unusable("pictures in a prompt whose chat template is not known")

    left = iter(images)
    messages: list[dict[str, Any]] = []
    for role, content in turns:
        if _PICTURE in content:
            parts = _parts(content, left)
            messages.append({"role": role, "content": parts})
        else:
            messages.append({"role": role, "content": content})
    return messages


def _parts(content: str, images: Iterator[str]) -> list[dict[str, Any]]:
    """Return texts and pictures of a message, in order; empty texts are left out."""
    first, *rest = content.split(_PICTURE)
    parts: list[dict[str, Any]] = []
    if first:
        parts.append({"type": "text", "text": first})
    for piece in rest:
        parts.append({"type": "image_url", "image_url": {"url": next(images)}})
        if piece:
            parts.append({"type": "text", "text": piece})
    return parts


def _without_detail(body: dict[str, Any]) -> dict[str, Any]:
    """Drop the detail of pictures that SGLang itself put there, its default."""
    for message in body.get("messages") or []:
        content = message.get("content") if isinstance(message, dict) else None
        if not isinstance(content, list):
            continue
        for part in content:
            shown = part.get("image_url") if isinstance(part, dict) else None
            if isinstance(shown, dict) and shown.get("detail") == "auto":
                del shown["detail"]
    return body


def _last_text(body: dict[str, Any]) -> str:
    """Return a text of the request that its prompt must hold; "": there is none."""
    messages = body.get("messages")
    last = messages[-1] if isinstance(messages, list) and messages else None
    content = last.get("content") if isinstance(last, dict) else body.get("prompt")
    if isinstance(content, str):
        return content
    for part in content if isinstance(content, list) else []:
        text = part.get("text") if isinstance(part, dict) else None
        if isinstance(text, str) and text:
            return text
    return ""


def _is_cut(value: Any) -> bool:
    """Whether the middle of a text or list is missing: level 2 keeps 2048 of each."""
    if isinstance(value, str):
        return len(value) == 2051 and value[1024:1027] == "..."
    if isinstance(value, dict):
        return any(_is_cut(item) for item in value.values())
    if not isinstance(value, list):
        return False
    if len(value) == 2049 and value[1024] == "...":
        return True
    return any(_is_cut(item) for item in value)
