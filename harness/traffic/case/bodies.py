"""What of an operation goes over the wire, and an operation's body as JSON, whoever
wrote it."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from mmrepro.engines.models import named_in, with_folders
from mmrepro.traffic.case.model import (
    COMPLETIONS,
    FormPart,
    Layout,
    Message,
    Operation,
    Part,
)
from mmrepro.traffic.pictures import Picture

_BOUNDARY: Final = "mmrepro-7f3b1c0d9a5e4826"
JSON_TYPE: Final = "application/json"
_NAMES_A_MODEL: Final = re.compile(
    r"/v\d+/(?!.*lora_adapter|loads?$|encode$).+|/(?:score|rerank|pooling|classify"
    r"|tokenize|detokenize)"
)
"""Paths whose requests name a model; what others are asked (``/generate``) names
none."""
_MODEL = re.compile(r'"model"\s*:\s*"((?:[^"\\]|\\.)*)"')
_HOLE: Final = r"\$\{(?P<name>[A-Za-z][A-Za-z0-9_-]{0,63})\}"
BODIES: Final = (
    "body",
    "data",
    "form",
    "layout",
    "messages",
    "prompt",
    "parameters",
    "stream",
)
"""Fields of an operation that say what its body is."""


class NoValue(Exception):
    """An earlier answer does not have what an operation takes from it; the text says
    what."""


@dataclass(frozen=True)
class Wire:
    """A request as it is sent. ``target``: path and query."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


def wire(
    operation: Operation,
    pictures: Mapping[str, Picture],
    model: str,
    answers: Mapping[str, str] | None = None,
) -> Wire:
    """Return the request for a server that serves ``model``. ``answers``: by operation,
    whole texts of earlier answers. Raises NoValue."""
    values: dict[str, Any] = {}
    for name, source in operation.values.items():
        values[name] = _value(source, answers or {})
    target = operation.path
    if operation.query:
        target += f"?{operation.query}"
    headers = {name: _filled(text, values) for name, text in operation.headers.items()}
    sent = body(operation, pictures, model)
    if values:
        # A body may hold bytes that are no text; they come back as they were.
        text = sent.decode("utf-8", "surrogateescape")
        sent = _filled_json(text, values).encode("utf-8", "surrogateescape")
        quoted: dict[str, str] = {}
        for name, value in values.items():
            quoted[name] = quote(_plain(value), safe="")
        target = _filled(target, quoted)
    if sent and not any(name.lower() == "content-type" for name in headers):
        multipart = f"multipart/form-data; boundary={_BOUNDARY}"
        headers["Content-Type"] = JSON_TYPE if operation.form is None else multipart
    return Wire(operation.method, target, headers, sent)


def placed(operation: Operation, cache: Path | None) -> Operation:
    """Put the folder of each tiny model or adapter in place of ``{tiny:NAME}`` in its
    body; see :func:`with_folders`."""
    text = operation.model_dump_json()
    if not named_in([text]):
        return operation
    return Operation.model_validate_json(with_folders(text, cache))


def body(operation: Operation, pictures: Mapping[str, Picture], model: str) -> bytes:
    """Return the request's body for a server that serves ``model``; the same bytes each
    time.

    Without a layout a stream asks for its usage, unless the operation's own parameters
    say otherwise. What the operation says itself goes before parameters of the same
    name."""
    if operation.data is not None:
        return base64.b64decode(operation.data)
    if operation.model is not None:
        model = operation.model
    if operation.body is not None:
        return _renamed(operation.body, model).encode()
    if operation.form is not None:
        return b"".join(_field(part, model) for part in operation.form) + _END
    fields = _fields(operation, pictures, model)
    if not fields and operation.layout is None:
        return b""

    layout = operation.layout or Layout(keys=[])
    ordered = {name: fields[name] for name in layout.keys if name in fields} | fields
    separators = (",", ":") if layout.compact else None
    text = json.dumps(ordered, separators=separators, ensure_ascii=layout.ascii)
    return text.encode()


def _fields(
    operation: Operation, pictures: Mapping[str, Picture], model: str
) -> dict[str, Any]:
    """Return the fields of its body."""
    fields: dict[str, Any] = dict(operation.parameters)
    fields.pop("stream", None)
    fields.pop("model", None)
    has_prompt = operation.messages is not None or operation.prompt is not None
    # Whoever recorded a body with a model's name asked an endpoint that takes one.
    recorded = operation.layout is not None and "model" in operation.layout.keys
    names_model = operation.model is not None or has_prompt or recorded
    if model and (names_model or _names_a_model(operation)):
        fields["model"] = model
    if operation.messages is not None:
        fields["messages"] = [
            _sent_message(message, pictures) for message in operation.messages
        ]
    if operation.prompt is not None:
        fields["prompt"] = operation.prompt

    if operation.stream:
        usage = {} if operation.layout else {"stream_options": {"include_usage": True}}
        fields = {**usage, **fields, "stream": True}
    elif operation.layout is not None and "stream" in operation.layout.keys:
        fields["stream"] = False
    return fields


def _names_a_model(operation: Operation) -> bool:
    """Whether a request of that kind names a model, if it has a body."""
    if operation.method in ("GET", "DELETE", "HEAD", "OPTIONS"):
        return False
    return _NAMES_A_MODEL.fullmatch(operation.path) is not None


def _sent_message(message: Message, pictures: Mapping[str, Picture]) -> dict[str, Any]:
    """Return a message as it is sent, with its further fields behind."""
    content: Any = message.content
    if isinstance(content, list):
        content = [_part(part, pictures) for part in content]
    sent = {"role": message.role, "content": content}
    for name, value in message.more.items():
        sent.setdefault(name, value)
    return sent


def _part(part: Part, pictures: Mapping[str, Picture]) -> dict[str, Any]:
    """Return a part of a message as it is sent."""
    if part.image is None:
        if part.raw is not None:
            return part.raw
        return {"type": "text", "text": part.text}
    shown = {"url": pictures[part.image].data_url}
    if part.detail is not None:
        shown["detail"] = part.detail
    sent: dict[str, Any] = {"type": "image_url", "image_url": shown}
    if part.uuid is not None:
        sent["uuid"] = part.uuid
    return sent


# ------------------------------------------------------------------ forms

_END: Final = f"--{_BOUNDARY}--\r\n".encode()


def _field(part: FormPart, model: str) -> bytes:
    """Return a field of a form as it is sent, with ``model`` as the model's name."""
    head = f'Content-Disposition: form-data; name="{part.name}"'
    if part.filename is not None:
        head += f'; filename="{part.filename}"'
    if part.media_type:
        head += f"\r\nContent-Type: {part.media_type}"
    text = model if part.name == "model" and model else part.text
    data = base64.b64decode(part.data or "") if text is None else text.encode()
    return f"--{_BOUNDARY}\r\n{head}\r\n\r\n".encode() + data + b"\r\n"


# ------------------------------------------------------------------ the model's name


def _renamed(text: str, model: str) -> str:
    """Return ``text`` with ``model`` as its own model's name; "": as it is.

    Of JSON the name stands at the top; of what is none, where it first seems to.
    """
    span = _model_at(text) if model else None
    if span is None:
        return text
    begin, end = span
    return text[:begin] + json.dumps(model)[1:-1] + text[end:]


def _model_at(text: str) -> tuple[int, int] | None:
    """Return where the text of a body names its model, between the quotes; None:
    nowhere."""
    span: tuple[int, int] | None = None
    try:
        for name, begin, end in members(text):
            if name == "model":
                span = begin, end  # of a name that comes twice the last one counts
    except (ValueError, RecursionError):
        first = _MODEL.search(text)
        return first.span(1) if first else None
    if span is None or text[span[0]] != '"':
        return None
    begin, end = span
    return begin + 1, end - 1


_SPACE = re.compile(r"[ \t\n\r]*")
_DECODER = json.JSONDecoder()


def members(text: str) -> Iterator[tuple[str, int, int]]:
    """Yield name, begin and end of each value of a JSON object, in order, also one that
    comes twice. Raises ValueError: it is none."""

    def after(at: int, sign: str) -> int:
        at = _space(text, at)
        if text[at : at + 1] != sign:
            raise ValueError(f"no {sign} at {at}")
        return _space(text, at + 1)

    at = after(0, "{")
    while text[at : at + 1] != "}":
        if text[at : at + 1] != '"':
            raise ValueError(f"no name at {at}")
        name, at = _DECODER.raw_decode(text, at)
        begin = after(at, ":")
        _, at = _DECODER.raw_decode(text, begin)
        yield name, begin, at
        end = _space(text, at)
        at = end if text[end : end + 1] == "}" else after(at, ",")


def _space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


# ------------------------------------------------------------ values of earlier answers


def _value(source: str, answers: Mapping[str, str]) -> Any:
    """Return the value at ``OPERATION.PATH`` of an earlier answer: of the first document
    that has it. Raises NoValue."""
    id, _, path = source.partition(".")
    names = path.split(".") if path else []
    for document in documents(answers.get(id, "")):
        value = document
        try:
            for name in names:
                value = value[int(name)] if isinstance(value, list) else value[name]
        except (LookupError, ValueError, TypeError):
            continue
        return value
    raise NoValue(f"the answer to {id} has no {path or 'value'}")


def documents(answer: str) -> list[Any]:
    """Return the JSON that an answer is, or that the events of a stream are."""
    try:
        return [json.loads(answer)]
    except (ValueError, RecursionError):
        pass
    events: list[Any] = []
    for line in answer.splitlines():
        if not line.startswith("data:"):
            continue
        try:
            events.append(json.loads(line[5:]))
        except (ValueError, RecursionError):
            continue  # [DONE], and what a server cut
    return events


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _filled(text: str, values: Mapping[str, Any]) -> str:
    """Put values of earlier answers in the holes of a text; those of others stay."""

    def filled(hole: re.Match[str]) -> str:
        if hole["name"] not in values:
            return hole[0]
        return _plain(values[hole["name"]])

    return re.sub(_HOLE, filled, text)


def _filled_json(text: str, values: Mapping[str, Any]) -> str:
    """Put values in the holes of JSON. A text that is nothing but a hole becomes the
    value, a number too; within a longer one it is text."""

    def filled(hole: re.Match[str]) -> str:
        name = hole["name"] or hole["inner"]
        if name not in values:
            return hole[0]
        value = values[name]
        if hole["name"]:
            return json.dumps(value)
        return json.dumps(_plain(value))[1:-1]

    inner = _HOLE.replace("?P<name>", "?P<inner>")
    return re.sub(f'"{_HOLE}"|{inner}', filled, text)


# ------------------------------------------------------------ as JSON, whoever wrote it


def opened(operation: Operation) -> Operation:
    """Take a body apart that was kept as it is, where that is an object of JSON;
    pictures stay in it as they are. What its bytes were is lost."""
    if operation.body is None:
        return operation
    try:
        fields = json.loads(operation.body)
    except (ValueError, RecursionError):
        return operation
    if not isinstance(fields, dict):
        return operation
    layout = Layout(keys=list(fields))
    fields.pop("model", None)
    stream = fields.pop("stream", None)
    update: dict[str, Any] = {
        "body": None,
        "stream": stream is True,
        "layout": layout,
        "parameters": fields,
    }
    if are_messages(fields.get("messages")):
        update["messages"] = [_message(message) for message in fields.pop("messages")]
    if operation.path == COMPLETIONS and is_prompt(fields.get("prompt")):
        update["prompt"] = fields.pop("prompt")
    return operation.model_copy(update=update)


def _message(message: dict[str, Any]) -> Message:
    content = message.get("content")
    if isinstance(content, list):
        content = [_opened_part(part) for part in content]
    more = dict(message)
    more.pop("role", None)
    more.pop("content", None)
    # Not checked: whatever somebody sent must come out again.
    return Message.model_construct(role=message["role"], content=content, more=more)


def _opened_part(part: dict[str, Any]) -> Part:
    if part.keys() == {"type", "text"} and isinstance(part["text"], str):
        return Part(text=part["text"])
    return Part.model_construct(raw=part)


def are_messages(value: object) -> bool:
    return isinstance(value, list) and all(_is_message(message) for message in value)


def _is_message(value: object) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        return False
    content = value.get("content")
    if isinstance(content, list):
        return all(isinstance(part, dict) for part in content)
    return isinstance(content, str | None)


def is_prompt(value: object) -> bool:
    """Whether it is text, or ids of tokens; several prompts in one request are kept as
    they are."""
    if isinstance(value, list):
        return bool(value) and all(type(item) is int for item in value)
    return isinstance(value, str)
