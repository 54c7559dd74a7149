"""A request for a report that shows what its model said, names the parser, and sends
nothing: what the parser makes of those words is all that it is about."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from mmrepro.engines.models import calls_as, known_families, read_output, thinks_as
from mmrepro.search.repro.speech import Speech

_KINDS: Final = ("tool_parsers", "reasoning_parsers")
_TYPES: Final = {str: "string", bool: "boolean", int: "integer", float: "number"}


def parsers_named(words: str) -> tuple[str, str]:
    """The parsers of calls and of thoughts that a report names as such, in its options
    or its sentences; "": it names none."""
    tools, reasoning = (_named(kind, words) for kind in _KINDS)
    return tools, reasoning


def _named(kind: str, words: str) -> str:
    found = _form(kind).search(words)
    if found is None:
        return ""
    return str(next(filter(None, found.groups())))


@cache
def _form(kind: str) -> re.Pattern[str]:
    """How parsers of a kind are named: as an option's value, or before the word
    "parser". After backticks that word may come some words later."""
    names: dict[str, None] = {}
    for family in known_families().values():
        names.update(dict.fromkeys(getattr(family, kind)))
    longest_first = sorted(names, key=len, reverse=True)
    name = "|".join(map(re.escape, longest_first))
    is_tools = kind == "tool_parsers"
    option = r"--tool-call-parser[ =]+" if is_tools else r"--reasoning-parser[ =]+"
    what = r"tool(?:[ -]call)?" if is_tools else r"reasoning"
    other = r"reasoning" if is_tools else r"tool"
    return re.compile(
        rf"{option}[\"'`]?({name})(?![\w-])"
        rf"|`({name})`(?:[ \t]+(?!{other})[\w-]+){{0,3}}[ \t]+parser\b"
        rf"|(?<![\w-])({name})[ \t]+(?:{what}[ \t]+)parser\b"
    )


def made_body(speech: Speech, tools: str, reasoning: str) -> str:
    """The body of a request whose answer the model's words are, as a stream; "": none
    is known. ``tools``, ``reasoning``: names of parsers, "" for none."""
    if not (speech.raw and (tools or reasoning)):
        return ""
    body: dict[str, Any] = {
        "model": "m",
        "messages": [{"role": "user", "content": "Go on."}],
        "stream": True,
    }
    called = _tools(speech, tools, reasoning) if tools else []
    if called:
        body["tools"] = called
    elif not reasoning:
        return ""
    return json.dumps(body)


_ANY_TOOL: Final = re.compile(
    r"<function=([\w.-]{1,64})>|<invoke name=\"([\w.-]{1,64})\"|\"name\": ?\"([\w.-]{1,64})\""
)


def _tools(speech: Speech, tools: str, reasoning: str) -> list[dict[str, Any]]:
    """Tools that the words call, each with arguments of the kinds that they give."""
    known: dict[str, Mapping[str, Any]] = {}
    for tool in speech.tools:
        known[tool.name] = tool.arguments
    read = read_output(speech.raw, calls_as(tools), thinks_as(reasoning), None)
    for name, arguments in read.calls if read is not None else []:
        known.setdefault(name, arguments)
    for names in _ANY_TOOL.findall(speech.raw):
        known.setdefault("".join(names), {})
    return [_tool(name, arguments) for name, arguments in known.items()]


def _tool(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    for key, value in arguments.items():
        kind = "array" if isinstance(value, list) else "object"
        properties[key] = {"type": _TYPES.get(type(value), kind)}
    schema = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "parameters": schema}}
