"""What goes over the wire: the JSON of an operation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mmrepro.case.model import Operation, Part
from mmrepro.traffic.drive import Picture


def body(operation: Operation, pictures: Mapping[str, Picture], model: str) -> bytes:
    """The request's body for a server that serves ``model``; the same bytes each time.

    A stream asks for its usage, unless the operation's own parameters say otherwise. What the
    operation says itself goes before parameters of the same name.
    """
    fields: dict[str, Any] = dict(operation.parameters)
    fields["model"] = model
    if operation.messages is not None:
        fields["messages"] = [
            {**m.more, "role": m.role, "content": _content(m.content, pictures)}
            for m in operation.messages
        ]
    if operation.prompt is not None:
        fields["prompt"] = operation.prompt
    fields.pop("stream", None)
    if operation.stream:
        fields = {"stream_options": {"include_usage": True}, **fields, "stream": True}
    return json.dumps(fields).encode()


def _content(content: str | list[Part], pictures: Mapping[str, Picture]) -> Any:
    return content if isinstance(content, str) else [_part(part, pictures) for part in content]


def _part(part: Part, pictures: Mapping[str, Picture]) -> dict[str, Any]:
    if part.image is not None:
        named = {} if part.uuid is None else {"uuid": part.uuid}
        return {"type": "image_url", "image_url": {"url": pictures[part.image].data_url}, **named}
    return {"type": "text", "text": part.text} if part.raw is None else part.raw
