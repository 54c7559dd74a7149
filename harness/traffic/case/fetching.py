"""What in a request would make a server talk to another machine, or read a file.

A server in a box can do neither. One without a box does what a request asks for, so
that such requests of a stranger's case are not sent to it."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import parse_qsl

from mmrepro.base.text import goes_out, is_local
from mmrepro.traffic.case.model import Operation

_NAMES_AN_ADDRESS: Final = re.compile(
    r".*url.*|(?:image|audio|video)_data", re.IGNORECASE
)
HOSTS: Final = re.compile(r"(?:.*_)?(?:hosts?|ip|addr)", re.IGNORECASE)
"""Fields that name a machine: where a server sends its KV cache, say."""
_FILE: Final = re.compile(r"\s*file:", re.IGNORECASE)
_HOLE: Final = "${"
"""What an earlier answer fills in, which may be an address."""
_FIELD_OF_ADDRESS: Final = re.compile(
    (
        r'"(?:[^"\\]|\\.){0,40}url(?:[^"\\]|\\.){0,10}"\s*+:\s*+"(?P<value>(?:[^"\\]'
        r"|\\.){0,2000})"
    ),
    re.IGNORECASE,
)


def asks_elsewhere(operation: Operation) -> bool:
    """Whether a server that answers ``operation`` may fetch something from another
    machine, or read a file that the request names."""
    try:
        return any(_fetched(name, text) for name, text in _fields(operation))
    except RecursionError:  # no engine reads JSON of such a depth either
        return True


def fetches(text: str) -> bool:
    """Whether a body that is no JSON, or that cannot be taken apart, gives a server an
    address of another machine to fetch, as a field whose name has ``url`` in it."""
    return any(goes_out(address) for address in _addresses(text))


def _addresses(text: str) -> Iterator[str]:
    for found in _FIELD_OF_ADDRESS.finditer(text):
        try:
            yield json.loads(f'"{found["value"]}"', strict=False)
        except ValueError:
            yield found["value"]


def _fetched(name: str, text: str) -> bool:
    if HOSTS.fullmatch(name):
        return not is_local(text)
    if not _NAMES_AN_ADDRESS.fullmatch(name):
        return False
    return goes_out(text) or _FILE.match(text) is not None or _HOLE in text


def _fields(operation: Operation) -> Iterator[tuple[str, str]]:
    """Each text in a request that has a name, with it: that of its field."""
    yield from parse_qsl(operation.query)
    for part in operation.form or ():
        yield part.name, part.text or ""
    yield from _named(operation.parameters)
    for message in operation.messages or ():
        yield from _named(message.more)
        for content in message.parts():
            yield from _named(content.raw)
    if operation.body is not None:
        yield from _written(operation.body.encode("utf-8", "surrogatepass"))
    if operation.data is not None:
        yield from _written(base64.b64decode(operation.data))


def _written(body: bytes) -> Iterator[tuple[str, str]]:
    """The fields of a body as it is sent. As a server reads JSON, its encoding is told
    by its first bytes."""
    try:
        yield from _named(json.loads(body))
    except ValueError:
        text = body.decode("latin-1")
        yield from (("url", address) for address in _addresses(text))


def _named(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _named(inner, key)
    elif isinstance(value, list):
        for inner in value:
            yield from _named(inner, name)
    elif isinstance(value, str):
        yield name, value
