"""Expectations as somebody types them, put into a case."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

from mmrepro.base.errors import UsageError
from mmrepro.base.machine.files import read_file
from mmrepro.traffic.case.bodies import opened
from mmrepro.traffic.case.model import (
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
NAMES: Final = tuple(Expect.model_fields)
WHOLE: Final = "non-streamed"
MAX_SCHEMA: Final = 1 << 20


def expecting(case: Case, texts: list[str] | tuple[str, ...]) -> Case:
    """The case with what ``texts`` expect: ``status=4xx`` of every request,
    ``r2:text=REGEX`` of one. ``same-as=non-streamed`` puts a request that does not
    stream behind each that does.

    Raises:
        UsageError: one of them is none, or there is no such request.
    """
    for text in texts:
        case = _with(case, text)
    return case


def checked(texts: list[str] | tuple[str, ...]) -> None:
    """Expectations of requests that are not known yet. Raises UsageError: one of them
    is none."""
    for text in texts:
        found = _TYPED.fullmatch(text)
        id = (found and found["op"]) or "r1"
        value = found["value"] if found is not None else ""
        others = [
            one for one in value.split(",") if re.fullmatch(r"[A-Za-z][\w-]*", one)
        ]
        ids = dict.fromkeys([id, *others])
        server = ServerWanted(engine="vllm", release="0")
        made = [
            Operation(id=one, prompt="x", path=COMPLETIONS, stream=True) for one in ids
        ]
        _with(Case(server=server, operations=made), text)


def _with(case: Case, text: str) -> Case:
    found = _TYPED.fullmatch(text)
    name = found["name"].replace("-", "_") if found is not None else ""
    if found is None or name not in NAMES:
        known = ", ".join(one.replace("_", "-") for one in NAMES)
        raise UsageError(
            (
                f"--expect {text}: an expectation is [REQUEST:]NAME=VALUE, and NAME "
                f"one of {known}."
            ),
            hint="--expect status=200",
        )
    ids = [op.id for op in case.operations]
    if found["op"] and found["op"] not in ids:
        raise UsageError(
            f"--expect {text}: there is no request {found['op']}.",
            hint=f"they are {', '.join(ids)}",
        )
    value = _value(name, found["value"], text)
    operations: list[Operation] = []
    for op in case.operations:
        operations.append(op)
        if found["op"] in (None, op.id):
            if value == WHOLE:
                operations[-1:] = _twins(op, ids)
            else:
                operations[-1] = _expects(op, name, value, text)
    if value == WHOLE and len(operations) == len(case.operations):
        raise UsageError(
            f"--expect {text}: no such request streams to its end.",
            hint="--expect same-as=r1, with the id of another request",
        )
    made = case.model_copy(update={"operations": operations})
    try:
        return Case.model_validate(made.model_dump())
    except ValidationError as error:
        said = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise UsageError(f"--expect {text}: {said}.") from error


def _expects(op: Operation, name: str, value: Any, text: str) -> Operation:
    before = {} if op.expect is None else op.expect.model_dump(exclude_none=True)
    try:
        return op.model_copy(
            update={"expect": Expect.model_validate({**before, name: value})}
        )
    except ValidationError as error:
        said = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise UsageError(f"--expect {text}: {said}.") from error


def _value(name: str, text: str, given: str) -> Any:
    """Raises UsageError."""
    if name in ("only", "never") or (name == "tokens" and "," in text):
        parts = [part.strip() for part in text.split(",")]
        return [int(part) if part.isdigit() else part for part in parts]
    if name == "ends_after":
        return text.split(",")
    if name == "json_schema":
        try:
            raw = (
                read_file(Path(text[1:]), MAX_SCHEMA)
                if text.startswith("@")
                else text.encode()
            )
            return json.loads(raw)
        except (OSError, ValueError, RecursionError) as error:
            raise UsageError(
                f"--expect {given}: the schema cannot be read: {error}."
            ) from error
    return WHOLE if name == "same_as" and text in (WHOLE, "streamed") else text


def _twins(op: Operation, ids: list[str]) -> list[Operation]:
    """A request that streams, and the same behind it that does not; another one
    alone."""
    plain = opened(op)
    id = f"{op.id}-whole"
    if not plain.stream or op.leave or id in ids:
        return [op]
    layout = plain.layout
    parameters = {k: v for k, v in plain.parameters.items() if k != "stream_options"}
    update = {"id": id, "after": [f"{op.id}.end"], "stream": False, "expect": None}
    whole = plain.model_copy(
        update={**update, "parameters": parameters, "layout": layout}
    )
    expect = (op.expect or Expect()).model_copy(update={"same_as": id})
    return [op.model_copy(update={"expect": expect}), whole]
