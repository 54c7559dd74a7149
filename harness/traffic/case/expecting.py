"""Expectations as somebody types them, put into a case."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from mmrepro.base.errors import UsageError
from mmrepro.base.machine import read_file
from mmrepro.base.records import plain_refusal
from mmrepro.traffic.case.bodies import opened
from mmrepro.traffic.case.model import (
    CHAT,
    COMPLETIONS,
    Case,
    Expect,
    Operation,
    ServerWanted,
)
from pydantic import ValidationError

_TYPED = re.compile(
    r"(?:(?P<op>[A-Za-z][\w-]*):)?(?P<name>[a-z][a-z_-]*)=(?P<value>.*)", re.DOTALL
)
_ID = re.compile(r"[A-Za-z][\w-]*")
_NAMES: Final = tuple(Expect.model_fields)
_WHOLE: Final = "non-streamed"
_MAX_SCHEMA: Final = 1 << 20


def expecting(case: Case, texts: list[str] | tuple[str, ...]) -> Case:
    """Return the case with what ``texts`` expect: ``status=4xx`` of every request,
    ``r2:text=REGEX`` of one. ``same-as=non-streamed`` puts a request that does not
    stream behind each that does.

    Raises:
        UsageError: one of them is none, or there is no such request.
    """
    for text in texts:
        case = _with(case, text)
    return case


def checked(texts: list[str] | tuple[str, ...]) -> None:
    """Check expectations of requests that are not known yet. Raises UsageError: one of
    them is none."""
    for text in texts:
        _with(_made_up_case(text), text)


def _made_up_case(text: str) -> Case:
    """Return a case with a request for each id that the expectation may name."""
    typed = _TYPED.fullmatch(text)
    ids = ["r1"]
    if typed is not None:
        values = typed["value"].split(",")
        others = [value for value in values if _ID.fullmatch(value)]
        ids = [typed["op"] or "r1", *others]
    operations: list[Operation] = []
    for id in dict.fromkeys(ids):
        operation = Operation(id=id, prompt="x", path=COMPLETIONS, stream=True)
        operations.append(operation)
    server = ServerWanted(engine="vllm", release="0")
    return Case(server=server, operations=operations)


def _with(case: Case, text: str) -> Case:
    """Return the case with one expectation. Raises UsageError."""
    typed = _TYPED.fullmatch(text)
    name = typed["name"].replace("-", "_") if typed is not None else ""
    if typed is None or name not in _NAMES:
        known = ", ".join(_NAMES).replace("_", "-")
        raise UsageError(
            (
                f"--expect {text}: an expectation is [REQUEST:]NAME=VALUE, and NAME "
                f"one of {known}."
            ),
            hint="--expect status=200",
        )
    ids = [op.id for op in case.operations]
    id = typed["op"]
    if id and id not in ids:
        raise UsageError(
            f"--expect {text}: there is no request {id}.",
            hint=f"they are {', '.join(ids)}",
        )

    value = _value(name, typed["value"], text)
    operations: list[Operation] = []
    for operation in case.operations:
        if id not in (None, operation.id):
            operations.append(operation)
        elif value == _WHOLE:
            operations += _twins(operation, ids)
        else:
            operations.append(_expects(operation, name, value, text))
    if value == _WHOLE and len(operations) == len(case.operations):
        raise UsageError(
            f"--expect {text}: no such request streams to its end.",
            hint="--expect same-as=r1, with the id of another request",
        )
    expected = case.model_copy(update={"operations": operations})
    try:
        return Case.model_validate(expected.model_dump())
    except ValidationError as error:
        raise _refusal(text, error) from error


def _refusal(text: str, error: ValidationError) -> UsageError:
    problem = plain_refusal(error.errors()[0]["msg"])
    return UsageError(f"--expect {text}: {problem}.")


def _expects(op: Operation, name: str, value: Any, text: str) -> Operation:
    """Return the operation with one expectation more. Raises UsageError."""
    fields = {} if op.expect is None else op.expect.model_dump(exclude_none=True)
    fields[name] = value
    try:
        expect = Expect.model_validate(fields)
    except ValidationError as error:
        raise _refusal(text, error) from error
    return op.model_copy(update={"expect": expect})


def _value(name: str, text: str, given: str) -> Any:
    """Return what an expectation's text means. Raises UsageError."""
    if name in ("only", "never") or (name == "tokens" and "," in text):
        parts = [part.strip() for part in text.split(",")]
        return [int(part) if part.isdigit() else part for part in parts]
    if name == "ends_after":
        return text.split(",")
    if name == "json_schema":
        return _schema(text, given)
    if name == "same_as" and text in (_WHOLE, "streamed"):
        return _WHOLE
    return text


def _schema(text: str, given: str) -> Any:
    """Return the JSON that the text is, or that ``@FILE`` holds. Raises UsageError."""
    raw = text.encode()
    try:
        if text.startswith("@"):
            raw = read_file(Path(text[1:]), _MAX_SCHEMA)
        return json.loads(raw)
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(
            f"--expect {given}: the schema cannot be read: {error}."
        ) from error


def beside_whole(case: Case, *, alike: bool) -> Case:
    """Put behind each request that streams to its end the same one that does not.

    Args:
        alike: whether the case expects that both have one answer.
    """
    ids = [op.id for op in case.operations]
    operations: list[Operation] = []
    twins: dict[str, str] = {}
    for recorded in case.operations:
        operation = _behind_twins(recorded, twins)
        pair = [operation]
        if operation.path in (CHAT, COMPLETIONS):
            pair = _twins(operation, ids)
        for twin in pair[1:]:
            twins[f"{operation.id}.end"] = f"{twin.id}.end"
        operations += pair if alike else [operation, *pair[1:]]
    return case.model_copy(update={"operations": operations})


def _behind_twins(op: Operation, twins: Mapping[str, str]) -> Operation:
    """A request that waited for another one's end waits for that one's twin as well:
    what was sent in order stays so."""
    after = list(op.after)
    for barrier in op.after:
        if barrier in twins:
            after.append(twins[barrier])
    return op.model_copy(update={"after": after})


def _twins(op: Operation, ids: list[str]) -> list[Operation]:
    """Return a request that streams, and the same behind it that does not; another one
    alone."""
    plain = opened(op)
    id = f"{op.id}-whole"
    if not plain.stream or op.leave or id in ids:
        return [op]
    parameters = dict(plain.parameters)
    parameters.pop("stream_options", None)  # an error without a stream
    update = {
        "id": id,
        "after": [f"{op.id}.end"],
        "stream": False,
        "expect": None,
        "parameters": parameters,
    }
    whole = plain.model_copy(update=update)
    expect = (op.expect or Expect()).model_copy(update={"same_as": id})
    return [op.model_copy(update={"expect": expect}), whole]
