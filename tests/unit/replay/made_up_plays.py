"""Plays that nobody played: a case and what came of it, as small as a test needs
them."""

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from mmrepro.base.records import Moment
from mmrepro.traffic.case.model import (
    Case,
    Message,
    Operation,
    Part,
    ServerWanted,
    Solid,
)
from mmrepro.traffic.case.sending import Played, PlayState, Reading
from mmrepro.traffic.evidence import ChoiceSeen, Evidence, ImageSent, RequestRecord

START = datetime(2026, 1, 1, tzinfo=UTC)
OVERHEAD = 20
"""Tokens that the made-up template puts around a text."""


def moment(seconds: float) -> Moment:
    return Moment(wall=START, mono=seconds)


def picture(name: str, size: tuple[int, int] = (56, 56), looks: str = "") -> ImageSent:
    """``looks``: what its pixels are; default: as it is called."""
    return ImageSent(
        sha256=hashlib.sha256(name.encode()).hexdigest(),
        width=size[0],
        height=size[1],
        bytes=10,
        name=name,
        pixels=hashlib.sha256((looks or name).encode()).hexdigest(),
        coarse=hashlib.sha384((looks or name).encode()).hexdigest(),
    )


def operation(
    id: str, text: str = "hi", pictures: Sequence[ImageSent] = (), **parameters: Any
) -> Operation:
    """A greedy chat with its pictures before its text; ``stream`` is a parameter
    here."""
    stream = bool(parameters.pop("stream", False))
    parts = [*(Part(image=one.name) for one in pictures), Part(text=text)]
    return Operation(
        id=id,
        messages=[Message(role="user", content=parts)],
        parameters={"max_tokens": 4, "temperature": 0, **parameters},
        stream=stream,
    )


def answer(op: Operation, at: float = 1.0, **fields: Any) -> RequestRecord:
    """A sound answer to it, one second later; ``fields`` of the record as they are
    wanted."""
    pictures = fields.get("images", [])
    texts = [p.text or "" for m in op.messages or [] for p in m.parts()]
    tokens = sum(one.width * one.height // 784 for one in pictures)
    prompt = OVERHEAD + tokens + sum(len(text.encode()) for text in texts)
    completion = op.parameters.get("max_tokens", 4)
    count = op.parameters.get("n", 1)
    pieces = completion if op.stream else 0
    choices = [
        ChoiceSeen(
            index=index,
            text="abcd",
            finish_reason="length",
            pieces=pieces,
            finishes=1,
        )
        for index in range(count)
    ]
    made: dict[str, Any] = {
        "id": 1,
        "phase": "trigger",
        "label": op.id,
        "path": op.path,
        "sent": moment(at),
        "prompt_chars": sum(map(len, texts)),
        "prompt_head": "\n".join(texts)[:200],
        "max_tokens": completion,
        "stream": op.stream,
        "status": 200,
        "latency_s": 1.0,
        "deadline_s": 10.0,
        "text": "abcd",
        "finish_reason": "length",
        "prompt_tokens": prompt,
        "completion_tokens": completion * count,
        "total_tokens": prompt + completion * count,
        "choices": choices,
        "pieces": pieces * count,
        "done": True if op.stream else None,
        "usages": 1,
    }
    return RequestRecord(**(made | fields))


def refused(
    op: Operation, status: int = 400, message: str = "too long", **fields: Any
) -> Any:
    """The record of an answer that is an error."""
    error = (
        f'{{"error": {{"message": "{message}", "type": "SomeError", "code": '
        f"{status}}}}}"
    )
    empty = dict.fromkeys(("prompt_tokens", "completion_tokens", "total_tokens"))
    made: dict[str, Any] = {
        "status": status,
        "error": error,
        "text": "",
        "finish_reason": None,
    }
    return answer(
        op, **(empty | made | {"choices": [], "pieces": 0, "usages": 0} | fields)
    )


def canary(label: str, at: float, text: str = "abcd", **fields: Any) -> RequestRecord:
    return answer(
        operation("canary", "hello"), at, **({"label": label, "text": text} | fields)
    )


def case_of(
    operations: Sequence[Operation],
    engine: str = "vllm",
    args: Sequence[str] = (),
    **server: Any,
) -> Case:
    names = {name for op in operations for name in op.images}
    return Case(
        server=ServerWanted(engine=engine, release="1.0", args=list(args), **server),
        images={name: Solid(colour=(0, 0, 0), size=(56, 56)) for name in sorted(names)},
        operations=list(operations),
    )


def played(
    records: Sequence[RequestRecord], state: PlayState = PlayState.ENDED, **fields: Any
) -> Played:
    return Played(state=state, evidence=Evidence(requests=list(records)), **fields)


def reading(
    at: float, metrics: dict[str, float] | None = None, **fields: Any
) -> Reading:
    return Reading(mono=at, metrics=metrics or {}, **fields)
