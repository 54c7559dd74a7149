"""Python objects as a log prints them (``SamplingParams(n=1, stop=['x'])``), read without running
anything."""

from __future__ import annotations

import ast
from typing import Any

TEXT = r"""(?:'(?:[^'\\]|\\.)*+'|"(?:[^"\\]|\\.)*+")"""
"""Pattern of a text as ``repr`` prints it."""


def arguments(printed: str) -> dict[str, Any]:
    """Names and values of ``Name(a=1, b=[…])``; an object within becomes such a dictionary too.

    Raises:
        ValueError: it is not printed like that, or was cut.
    """
    try:
        tree = ast.parse(printed, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError("not an object as Python prints it") from error
    if not isinstance(tree, ast.Call):
        raise ValueError("not an object as Python prints it")
    try:
        return _called(tree)
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def _called(tree: ast.Call) -> dict[str, Any]:
    return {word.arg: _value(word.value) for word in tree.keywords if word.arg is not None}


def _value(node: ast.expr) -> Any:
    """Raises ValueError: it is neither plain nor an object of plain things."""
    if isinstance(node, ast.Call):
        return _called(node)
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(item) for item in node.elts]
    if isinstance(node, ast.Dict):
        return {
            str(_value(key)): _value(value)
            for key, value in zip(node.keys, node.values, strict=True)
            if key is not None
        }
    try:
        return ast.literal_eval(node)
    except (TypeError, MemoryError) as error:
        raise ValueError("not plain") from error


def text_of(printed: str) -> str | None:
    """What ``repr`` printed; None for ``None``. Raises ValueError."""
    try:
        value = ast.literal_eval(printed)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError("not a text as Python prints it") from error
    if not isinstance(value, str | None):
        raise ValueError("not a text")
    return value
