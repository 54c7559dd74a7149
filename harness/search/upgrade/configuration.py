"""The configuration that a server runs with, as its own log prints it when it
starts."""

from __future__ import annotations

import ast
import io
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from mmrepro.base.machine import open_to_read

_MOST_LINES = 20_000
"""Of a log: settings are printed when a server starts."""
_LINES = (
    re.compile(r"server_args=(?:ServerArgs)?(?P<settings>[({].*)"),  # SGLang
    re.compile(
        r"Initializing an? (?:V\d )?LLM engine \(v\S+\) with config: (?P<settings>.*)"
    ),  # vLLM
)
_OPAQUE = re.compile(r"<[\w.]+(?:: (?:'[^']*'|[^<>]*?))?>|<[\w.]+ [^<>]*>")
"""How Python prints what it cannot print so that it can be read again: enumerations,
objects."""


def of_log(log: Path) -> dict[str, str]:
    """The settings that a server's log prints; {}: it cannot be read."""
    try:
        with io.TextIOWrapper(
            open_to_read(log), encoding="utf-8", errors="replace"
        ) as lines:
            return read(islice(lines, _MOST_LINES))
    except OSError:
        return {}


def read(lines: Iterable[str]) -> dict[str, str]:
    """Read settings by name, the fields of a setting as ``name.field``; {}: the log
    prints none."""
    settings: dict[str, str] = {}
    for line in lines:
        for form in _LINES:
            printed = form.search(line)
            if printed is None:
                continue
            for name, value in fields(printed["settings"]).items():
                settings.setdefault(name, value)

    return settings


def fields(text: str) -> dict[str, str]:
    """Read what ``Name(a=1, b=Other(c=2))``, ``{'a': 1}`` and ``a=1, b=2`` hold, by
    dotted names; {}: it is none of them."""
    # Objects that Python cannot print as code become strings, so that the rest is
    # parsed.
    plain = _OPAQUE.sub(lambda opaque: repr(opaque[0]), text.strip().rstrip(","))
    # A bare list of fields becomes the arguments of a call of ``_``.
    for attempt in (plain, f"_{plain}", f"_({plain})"):
        try:
            tree = ast.parse(attempt, mode="eval").body
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            continue
        by_name = dict(_flat(tree, ""))
        by_name.pop("", None)
        if by_name:
            return by_name

    return {}


def _flat(node: ast.expr, name: str) -> Iterator[tuple[str, str]]:
    dot = f"{name}." if name else ""
    if isinstance(node, ast.Call) and node.keywords and not node.args:
        for keyword in node.keywords:
            if keyword.arg is not None:
                yield from _flat(keyword.value, dot + keyword.arg)
    elif isinstance(node, ast.Dict) and _has_plain_keys(node):
        for key, value in zip(node.keys, node.values, strict=True):
            assert isinstance(key, ast.Constant)
            yield from _flat(value, dot + str(key.value))
        if not node.keys:
            yield name, "{}"
    else:
        yield name, ast.unparse(node)


def _has_plain_keys(node: ast.Dict) -> bool:
    return all(isinstance(key, ast.Constant) for key in node.keys)
