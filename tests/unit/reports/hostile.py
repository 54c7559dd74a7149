"""Planting a text in every string field of a model."""

# ruff: noqa: E501 - rows of data read better whole

from __future__ import annotations

from enum import Enum
from typing import Any, Literal, get_origin

from pydantic import BaseModel

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)> <b>bold</b> </style></title></svg></pre>',
    "``` fence\n```\n# heading\n- item\n1. one\n> quote\n\n    code\n***\n~~~",
    "a | b | c \\| d \\\\| e `|` `` x ``",
    "\x1b[31mred\x1b[0m \x1b]0;title\x07 \x9b1m \x1bP+q\x1b\\ \x00\x07\x08 \x1b",
    "abc \u202edcba\u2066 \u200b \ufeff \ud800 \uffff \u2028 x \r y \r\n z",
    "{{ 7*7 }} {% raw %} [link](javascript:alert(1)) ![i](http://x/y) <http://x.org> &lt;b&gt; &#60;",
    "@everyone #12 $x$ **bold** __it__ _it_ ~~gone~~ [[a]] :smile: --- ]]> <!-- c -->",
    "</details><details open><summary>x</summary>",
    "1. one",
    "# heading",
    "\\",
    "`",
]  # fmt: skip


def plant(value: Any, text: str) -> Any:
    """``value`` with every free string replaced; enums, literals and numbers stay."""
    if isinstance(value, BaseModel):
        changes = {
            name: plant(getattr(value, name), text)
            for name, field in type(value).model_fields.items()
            if get_origin(field.annotation) is not Literal
        }
        return value.model_copy(update=changes)
    if isinstance(value, Enum):
        return value
    if isinstance(value, str):
        return text
    if isinstance(value, list):
        return [plant(v, text) for v in value]
    if isinstance(value, dict):
        return {
            (f"{text}{i}" if isinstance(k, str) else k): plant(v, text)
            for i, (k, v) in enumerate(value.items())
        }
    return value
