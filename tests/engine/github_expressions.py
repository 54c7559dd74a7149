"""GitHub's expressions, as far as the workflows of this repository use them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_TOKEN = re.compile(
    r"\s*('(?:[^']|'')*'|[A-Za-z_][\w-]*(?:\.[A-Za-z_][\w-]*)*|==|!=|\|\||&&|[()!])"
)
_CONTEXTS = ("github", "inputs", "vars", "needs", "steps", "matrix")
_STRICT = ("github", "matrix")
"""Where a name that is not there is a mistake of this file or of the workflow; else it is ""."""


class Unknown(Exception):
    """Something that GitHub may well know, and this file does not."""


def evaluate(expression: str, contexts: Mapping[str, Any]) -> Any:
    """``a.b``, ``'text'``, ``==``, ``!=``, ``!``, ``&&``, ``||``, brackets, and ``contexts``'
    functions. Raises Unknown for all else."""
    tokens = _tokens(expression)
    value = _either(tokens, contexts)
    if tokens:
        raise Unknown(f"{tokens[0]!r} in {expression!r}")
    return value


def _tokens(expression: str) -> list[str]:
    found, at = [], 0
    text = expression.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise Unknown(f"{text[at:]!r} in {expression!r}")
        found.append(match[1])
        at = match.end()
    return found


def _either(tokens: list[str], contexts: Mapping[str, Any]) -> Any:
    value = _both(tokens, contexts)
    while tokens[:1] == ["||"]:
        tokens.pop(0)
        other = _both(tokens, contexts)
        value = value or other
    return value


def _both(tokens: list[str], contexts: Mapping[str, Any]) -> Any:
    value = _compared(tokens, contexts)
    while tokens[:1] == ["&&"]:
        tokens.pop(0)
        other = _compared(tokens, contexts)
        value = value and other
    return value


def _compared(tokens: list[str], contexts: Mapping[str, Any]) -> Any:
    value = _one(tokens, contexts)
    if tokens[:1] in (["=="], ["!="]):
        equal = tokens.pop(0) == "=="
        other = _one(tokens, contexts)
        if not (isinstance(value, str) and isinstance(other, str)):
            raise Unknown(f"{value!r} compared with {other!r}")  # GitHub makes numbers of them
        return (value.lower() == other.lower()) is equal
    return value


def _one(tokens: list[str], contexts: Mapping[str, Any]) -> Any:
    if not tokens:
        raise Unknown("an expression that ends too early")
    token = tokens.pop(0)
    if token == "!":
        return not _one(tokens, contexts)
    if token == "(":
        value = _either(tokens, contexts)
        _expect(tokens, ")")
        return value
    if token.startswith("'"):
        return token[1:-1].replace("''", "'")
    if tokens[:1] == ["("]:
        tokens.pop(0)
        arguments = [] if tokens[:1] == [")"] else [_either(tokens, contexts)]
        _expect(tokens, ")")
        function = contexts["functions"].get(token)
        if function is None:
            raise Unknown(f"the function {token}")
        return function(*arguments)
    return _looked_up(token, contexts)


def _expect(tokens: list[str], token: str) -> None:
    if tokens[:1] != [token]:
        raise Unknown(f"no {token} before {tokens}")
    tokens.pop(0)


def _looked_up(path: str, contexts: Mapping[str, Any]) -> Any:
    root, *names = path.split(".")
    if root not in _CONTEXTS or not names:
        raise Unknown(path)
    value = contexts[root]
    for name in names:
        if name not in value:
            if root in _STRICT or (root == "needs" and name == names[0]):
                raise Unknown(path)
            return ""
        value = value[name]
    return value


def interpolated(value: Any, contexts: Mapping[str, Any]) -> Any:
    """``value`` with each ``${{ … }}`` evaluated: what is only one keeps its type."""
    if isinstance(value, list):
        return [interpolated(one, contexts) for one in value]
    if not isinstance(value, str):
        return value
    alone = re.fullmatch(r"\s*\$\{\{((?:(?!\}\}).)*)\}\}\s*", value, re.DOTALL)
    if alone:
        return evaluate(alone[1], contexts)
    return re.sub(r"\$\{\{(.*?)\}\}", lambda m: text(evaluate(m[1], contexts)), value)


def text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)
