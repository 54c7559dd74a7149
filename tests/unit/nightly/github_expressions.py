"""GitHub's expressions, as far as the workflows of this repository use them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

_NAME = r"[A-Za-z_][\w-]*(?:\.[A-Za-z_][\w-]*)*"
_TERM = re.compile(
    rf"\s*(?:'(?P<text>[^']*)'|(?P<name>{_NAME})(?:\((?P<given>{_NAME})?\))?)\s*"
)
_CALL = re.compile(r"\(.*\)\s*$")
_CONTEXTS = ("github", "inputs", "vars", "needs", "steps", "matrix", "env", "runner")
_STRICT = ("github", "matrix", "env", "runner")
"""Where a name that is not there is a mistake of a test or of the workflow; else it is
"". So is a job in ``needs``."""


class Unknown(Exception):
    """Something that GitHub may well know, and this file does not."""


def evaluate(expression: str, contexts: Mapping[str, Any]) -> Any:
    """``a.b || 'text'``, ``a.b == 'text'``, and ``contexts["functions"]`` of nothing or of ``a.b``.

    Raises:
        Unknown: it is anything else.
    """
    for term in expression.split("||"):
        left, equal, right = term.partition("==")
        value = _term(left, contexts)
        if equal:  # GitHub's comparison does not see the case of letters
            value = text(value).casefold() == text(_term(right, contexts)).casefold()
        if value:
            break
    return value


def _term(term: str, contexts: Mapping[str, Any]) -> Any:
    match = _TERM.fullmatch(term)
    if match is None:
        raise Unknown(term)
    if match["name"] is None:
        return match["text"]
    if not _CALL.search(term):
        return _looked_up(match["name"], contexts)
    function: Callable[..., Any] | None = contexts["functions"].get(match["name"])
    if function is None:
        raise Unknown(f"the function {match['name']}")
    return function(*([_looked_up(match["given"], contexts)] if match["given"] else []))


def _looked_up(path: str, contexts: Mapping[str, Any]) -> Any:
    root, *names = path.split(".")
    if root not in _CONTEXTS or not names:
        raise Unknown(path)
    value = contexts[root]
    for depth, name in enumerate(names):
        if name not in value:
            if root in _STRICT or (root == "needs" and depth == 0):
                raise Unknown(path)
            return ""
        value = value[name]
    return value


def interpolated(value: Any, contexts: Mapping[str, Any]) -> Any:
    """``value`` with each ``${{ … }}`` evaluated: what is only one keeps its type."""
    if not isinstance(value, str):
        return value
    alone = re.fullmatch(r"\s*\$\{\{((?:(?!\}\}).)*)\}\}\s*", value)
    if alone:
        return evaluate(alone[1], contexts)
    return re.sub(r"\$\{\{(.*?)\}\}", lambda m: text(evaluate(m[1], contexts)), value)


def text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
