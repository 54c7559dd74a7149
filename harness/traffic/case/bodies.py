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

from mmrepro.engines.models.tiny import named_in, with_folders
from mmrepro.traffic.case.model import (
    COMPLETIONS,
    FormPart,
    Layout,
    Message,
    Operation,
    Part,
)
from mmrepro.traffic.drive import Picture

BOUNDARY: Final = "mmrepro-7f3b1c0d9a5e4826"
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
    """The request for a server that serves ``model``. ``answers``: by operation, whole
    texts of earlier answers. Raises NoValue."""
    told = {
        name: _value(said, answers or {}) for name, said in operation.values.items()
    }
    target = operation.path + (f"?{operation.query}" if operation.query else "")
    headers = {name: _filled(value, told) for name, value in operation.headers.items()}
    sent = body(operation, pictures, model)
    if told:
        sent = _filled_json(sent.decode("utf-8", "surrogateescape"), told).encode(
            "utf-8", "surrogateescape"
        )
        plain = {name: quote(_plain(value), safe="") for name, value in told.items()}
        target = _filled(target, plain)
    if sent and not any(name.lower() == "content-type" for name in headers):
        multipart = f"multipart/form-data; boundary={BOUNDARY}"
        headers["Content-Type"] = JSON_TYPE if operation.form is None else multipart
    return Wire(operation.method, target, headers, sent)


def placed(operation: Operation, cache: Path | None) -> Operation:
    """With the folder of each tiny model or adapter that its body names as
    ``{tiny:NAME}``; see :func:`with_folders`."""
    text = operation.model_dump_json()
    if not named_in([text]):
        return operation
    return Operation.model_validate_json(with_folders(text, cache))


def body(operation: Operation, pictures: Mapping[str, Picture], model: str) -> bytes:
    """The request's body for a server that serves ``model``; the same bytes each time.

    Without a layout a stream asks for its usage, unless the operation's own parameters
    say otherwise. What the operation says itself goes before parameters of the same
    name."""
    if operation.data is not None:
        return base64.b64decode(operation.data)
    named = model if operation.model is None else operation.model
    if operation.body is not None:
        return _renamed(operation.body, named).encode()
    if operation.form is not None:
        return b"".join(_field(part, named) for part in operation.form) + _END
    fields = _fields(operation, pictures, named)
    if not fields and operation.layout is None:
        return b""
    layout = operation.layout or Layout(keys=[])
    ordered = {name: fields[name] for name in layout.keys if name in fields} | fields
    separators = (",", ":") if layout.compact else None
    return json.dumps(
        ordered, separators=separators, ensure_ascii=layout.ascii
    ).encode()


def _fields(
    operation: Operation, pictures: Mapping[str, Picture], model: str
) -> dict[str, Any]:
    fields: dict[str, Any] = dict(operation.parameters)
    fields.pop("stream", None)
    fields.pop("model", None)
    said = operation.messages is not None or operation.prompt is not None
    if model and (operation.model is not None or said or names_a_model(operation)):
        fields["model"] = model
    if operation.messages is not None:
        fields["messages"] = [
            {"role": m.role, "content": _content(m.content, pictures), **_beside(m)}
            for m in operation.messages
        ]
    if operation.prompt is not None:
        fields["prompt"] = operation.prompt
    if operation.stream:
        usage = {} if operation.layout else {"stream_options": {"include_usage": True}}
        fields = {**usage, **fields, "stream": True}
    elif operation.layout is not None and "stream" in operation.layout.keys:
        fields["stream"] = False
    return fields


def names_a_model(operation: Operation) -> bool:
    """Whether a request of that kind names a model, if it has a body."""
    return operation.method not in ("GET", "DELETE", "HEAD", "OPTIONS") and bool(
        _NAMES_A_MODEL.fullmatch(operation.path)
    )


def _beside(message: Message) -> dict[str, Any]:
    return {
        k: value for k, value in message.more.items() if k not in ("role", "content")
    }


def _content(content: str | list[Part] | None, pictures: Mapping[str, Picture]) -> Any:
    if content is None or isinstance(content, str):
        return content
    return [_part(part, pictures) for part in content]


def _part(part: Part, pictures: Mapping[str, Picture]) -> dict[str, Any]:
    if part.image is not None:
        named = {} if part.uuid is None else {"uuid": part.uuid}
        shown = {"url": pictures[part.image].data_url}
        shown |= {} if part.detail is None else {"detail": part.detail}
        return {"type": "image_url", "image_url": shown, **named}
    return {"type": "text", "text": part.text} if part.raw is None else part.raw


# ------------------------------------------------------------------ forms

_END: Final = f"--{BOUNDARY}--\r\n".encode()


def _field(part: FormPart, model: str) -> bytes:
    head = f'Content-Disposition: form-data; name="{part.name}"'
    head += "" if part.filename is None else f'; filename="{part.filename}"'
    head += f"\r\nContent-Type: {part.media_type}" if part.media_type else ""
    text = model if part.name == "model" and model else part.text
    data = base64.b64decode(part.data or "") if text is None else text.encode()
    return f"--{BOUNDARY}\r\n{head}\r\n\r\n".encode() + data + b"\r\n"


# ------------------------------------------------------------------ the model's name


def _renamed(text: str, model: str) -> str:
    """``text`` with ``model`` as its own model's name; "": as it is.

    Of JSON the name stands at the top; of what is none, where it first seems to.
    """
    found = _model_at(text) if model else None
    if found is None:
        return text
    return text[: found[0]] + json.dumps(model)[1:-1] + text[found[1] :]


def _model_at(text: str) -> tuple[int, int] | None:
    """Where the text of a body names its model, between the quotes; None: nowhere."""
    try:
        found = [span for key, *span in members(text) if key == "model"]
    except (ValueError, RecursionError):
        first = _MODEL.search(text)
        return first and first.span(1)
    if not found or text[found[-1][0]] != '"':
        return None
    return found[-1][0] + 1, found[-1][1] - 1


_SPACE = re.compile(r"[ \t\n\r]*")
_DECODER = json.JSONDecoder()


def members(text: str) -> Iterator[tuple[str, int, int]]:
    """Name, begin and end of each value of a JSON object, in order, also one that comes
    twice. Raises ValueError: it is none."""

    def after(at: int, signs: str) -> int:
        at = _space(text, at)
        if text[at : at + 1] not in tuple(signs):
            raise ValueError(f"no {signs} at {at}")
        return _space(text, at + 1)

    at = after(0, "{")
    while text[at : at + 1] != "}":
        if text[at : at + 1] != '"':
            raise ValueError(f"no name at {at}")
        key, at = _DECODER.raw_decode(text, at)
        begin = after(at, ":")
        _, at = _DECODER.raw_decode(text, begin)
        yield key, begin, at
        end = _space(text, at)
        at = end if text[end : end + 1] == "}" else after(at, ",")


def _space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


# ------------------------------------------------------------ values of earlier answers


def _value(said: str, answers: Mapping[str, str]) -> Any:
    """Raises NoValue."""
    source, _, path = said.partition(".")
    answer = answers.get(source, "")
    for document in documents(answer):
        found = document
        try:
            for name in path.split(".") if path else []:
                found = found[int(name)] if isinstance(found, list) else found[name]
        except (LookupError, ValueError, TypeError):
            continue
        return found
    raise NoValue(f"the answer to {source} has no {path or 'value'}")


def documents(answer: str) -> list[Any]:
    """The JSON that an answer is, or that the events of a stream are."""
    try:
        return [json.loads(answer)]
    except (ValueError, RecursionError):
        pass
    found = []
    for line in answer.splitlines():
        if line.startswith("data:"):
            try:
                found.append(json.loads(line[5:]))
            except (ValueError, RecursionError):
                continue
    return found


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _filled(text: str, told: Mapping[str, Any]) -> str:
    return re.sub(
        _HOLE,
        lambda hole: _plain(told[hole["name"]]) if hole["name"] in told else hole[0],
        text,
    )


def _filled_json(text: str, told: Mapping[str, Any]) -> str:
    """A text that is nothing but the name becomes the value, a number too; else its
    text."""

    def filled(hole: re.Match[str]) -> str:
        if (name := hole["name"] or hole["inner"]) not in told:
            return hole[0]
        value = told[name]
        return json.dumps(value) if hole["name"] else json.dumps(_plain(value))[1:-1]

    return re.sub(f'"{_HOLE}"|{_HOLE.replace("?P<name>", "?P<inner>")}', filled, text)


# ------------------------------------------------------------ as JSON, whoever wrote it


def opened(operation: Operation) -> Operation:
    """The operation with a body that was kept as it is taken apart, where that is an
    object of JSON; pictures stay in it as they are. What its bytes were is lost."""
    if operation.body is None:
        return operation
    try:
        fields = json.loads(operation.body)
    except (ValueError, RecursionError):
        return operation
    if not isinstance(fields, dict):
        return operation
    keys = list(fields)
    fields.pop("model", None)
    stream = fields.pop("stream", None)
    update: dict[str, Any] = {
        "body": None,
        "stream": stream is True,
        "layout": Layout(keys=keys),
    }
    if are_messages(fields.get("messages")):
        update["messages"] = [_message(one) for one in fields.pop("messages")]
    if operation.path == COMPLETIONS and is_prompt(fields.get("prompt")):
        update["prompt"] = fields.pop("prompt")
    return operation.model_copy(update={**update, "parameters": fields})


def _message(message: dict[str, Any]) -> Message:
    content = message.get("content")
    more = {
        name: value
        for name, value in message.items()
        if name not in ("role", "content")
    }
    if isinstance(content, list):
        content = [
            Part(text=part["text"])
            if part.keys() == {"type", "text"} and isinstance(part["text"], str)
            else Part.model_construct(raw=part)
            for part in content
        ]
    return Message.model_construct(role=message["role"], content=content, more=more)


def are_messages(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_message, value))


def _is_message(value: object) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        return False
    content = value.get("content")
    if isinstance(content, list):
        return all(isinstance(part, dict) for part in content)
    return isinstance(content, str | None)


def is_prompt(value: object) -> bool:
    """Text, or ids of tokens; several prompts in one request are kept as they are."""
    return isinstance(value, str) or (
        isinstance(value, list)
        and bool(value)
        and all(type(item) is int for item in value)
    )
