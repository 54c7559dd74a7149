"""Planting a text in every string field of a model, and what it must not do."""

import re
from enum import Enum
from typing import Any, Literal, get_origin

from markdown_it import MarkdownIt
from markdown_it.token import Token
from pydantic import BaseModel

# Anything in here that a browser or terminal would act on.
ACTIVE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u200b\ud800-\udfff]"
)

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)> <b>bold</b> </style></title></svg></pre>',
    "``` fence\n```\n# heading\n- item\n1. one\n> quote\n\n    code\n***\n~~~",
    "a | b | c \\| d \\\\| e `|` `` x ``",
    "\x1b[31mred\x1b[0m \x1b]0;title\x07 \x9b1m \x1bP+q\x1b\\ \x00\x07\x08 \x1b",
    "abc \u202edcba\u2066 \u200b \ufeff \ud800 \uffff \u2028 x \r y \r\n z",
    (
        "{{ 7*7 }} {% raw %} [link](javascript:alert(1)) ![i](http://x/y) "
        "<http://x.org> &lt;b&gt; &#60;"
    ),
    "@everyone #12 $x$ **bold** __it__ _it_ ~~gone~~ [[a]] :smile: --- ]]> <!-- c -->",
    "</details><details open><summary>x</summary>",
    "1. one",
    "# heading",
    "\\",
    "`",
]
SOME = HOSTILE[1:7]
"""Planted for each change; the rest every night. One of each sort: markup, blocks,
cells of a table, escapes, odd characters, links."""


def plant(value: Any, text: str, *, after: bool = False) -> Any:
    """``value`` with every free string replaced; enums, literals and numbers stay.

    ``after``: the text stands after each string, and keys stay.
    """
    if isinstance(value, BaseModel):
        changes = {
            name: plant(getattr(value, name), text, after=after)
            for name, field in type(value).model_fields.items()
            if get_origin(field.annotation) is not Literal and field.alias != "$id"
        }
        return value.model_copy(update=changes)
    if isinstance(value, str) and not isinstance(value, Enum):
        return f"{value} {text}" if after else text
    if isinstance(value, list):
        return [plant(v, text, after=after) for v in value]
    if isinstance(value, dict):
        return {
            (f"{text}{i}" if isinstance(k, str) and not after else k): plant(
                v, text, after=after
            )
            for i, (k, v) in enumerate(value.items())
        }
    return value


def markdown_tokens(text: str) -> list[Token]:
    return MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text)


def shape(tokens: list[Token]) -> list[str]:
    """Block structure; what stands in folded parts is bounded by raw tags, so these
    count too."""
    return [t.type if t.type != "html_block" else f"html:{t.content}" for t in tokens]
