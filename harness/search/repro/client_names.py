"""Names that a pasted client uses and nowhere sets: modules, an address, a key, the
model. Reporters leave them out, since everybody has their own."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

_PORT: Final = "http://localhost:8000"
_MODULES: Final[Mapping[str, str]] = {
    **{
        name: f"import {name}"
        for name in (
            "aiohttp",
            "anthropic",
            "asyncio",
            "base64",
            "httpx",
            "json",
            "openai",
            "os",
            "re",
            "requests",
            "sys",
            "time",
            "uuid",
        )
    },
    "OpenAI": "from openai import OpenAI",
    "AsyncOpenAI": "from openai import AsyncOpenAI",
    "BaseModel": "from pydantic import BaseModel",
}
_ADDRESS: Final = re.compile(
    r"(?:openai_|vllm_|server_)?(?:api_?)?(?:base_?)?(?:url|api_base|endpoint)|api_base",
    re.IGNORECASE,
)
_KEY: Final = re.compile(r"(?:openai_)?(?:api_?key|token)", re.IGNORECASE)
_MODEL: Final = re.compile(r"model(?:_?(?:name|id|path))?", re.IGNORECASE)
_HEADERS: Final = re.compile(r"headers?", re.IGNORECASE)
_ADDRESS_SET: Final = re.compile(
    r"(?P<name>\b\w{0,20}(?:url|api_base|endpoint))(?P<is>\s*=\s*)"
    r"(?P<quote>[\"'])(?P<text>[^\"'\n]{1,80})(?P=quote)",
    re.IGNORECASE,
)
_PLACEHOLDER: Final = re.compile(
    r"(?!.*://|data:).*(?:[<>\s]|your|xxx|placeholder|replace)", re.IGNORECASE
)
"""A text that its reader is to put an address in the place of."""
_FUTURE: Final = re.compile(r"^from __future__ import [^\n]*\n", re.MULTILINE)


@dataclass
class FilledNames:
    """What stands before a script so that its names are set.

    Attributes:
        lines: of Python.
        values: what the reporter would have set, by name; modules are no such thing.
        left: names of which nothing is known.
    """

    lines: list[str] = field(default_factory=list)
    values: dict[str, str] = field(default_factory=dict)
    left: set[str] = field(default_factory=set)

    def before(self, script: str) -> str:
        """The script with the lines, after its own ``from __future__``."""
        script = _ADDRESS_SET.sub(partial(_with_address, script=script), script)
        if not self.lines:
            return script
        at = max((found.end() for found in _FUTURE.finditer(script)), default=0)
        return script[:at] + "\n".join(self.lines) + "\n" + script[at:]


def _with_address(found: re.Match[str], script: str) -> str:
    """An assignment of what is no address (``<url>``, ``your base_url``), with one."""
    if not _PLACEHOLDER.match(found["text"]):
        return found[0]
    value = _value_of(found["name"], script, "") or f"{_PORT}/v1"
    return f"{found['name']}{found['is']}{value!r}"


def filled_names(script: str, model: str = "") -> FilledNames:
    """What a script lacks. ``model``: the name of the report's model."""
    names = FilledNames()
    unset = unset_names(script)
    for name in sorted(unset):
        value = _value_of(name, script, model or "MODEL")
        if name in _MODULES:
            names.lines.insert(0, _MODULES[name])
        elif value is not None:
            names.values[name] = value
            names.lines.append(f"{name} = {value!r}")
        elif _HEADERS.fullmatch(name):
            names.lines.append(f"{name} = {{'Content-Type': 'application/json'}}")
        elif name == "client":
            asynchronous = re.search(r"\bawait\s+client\.", script) is not None
            kind = "AsyncOpenAI" if asynchronous else "OpenAI"
            made = f"client = {kind}(base_url='{_PORT}/v1', api_key='EMPTY')"
            names.lines += [_MODULES[kind], made]
        else:
            names.left.add(name)
    return names


def unset_names(script: str) -> set[str]:
    """Names that a script reads and sets in no scope; of one that is no Python, or
    imports all names of a module, none."""
    try:
        tree = ast.parse(script)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
    read: set[str] = set()
    known = set(dir(builtins)) | {"__file__", "__name__"}
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                read.add(name)
            case ast.Name(id=name) | ast.arg(arg=name):
                known.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                known.add(name)
            case ast.ClassDef(name=name) | ast.ExceptHandler(name=str(name)):
                known.add(name)
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                known.add(name)
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                bound = {alias.asname or alias.name for alias in aliases}
                if "*" in bound:
                    return set()
                known |= {name.partition(".")[0] for name in bound}
    return read - known


def _value_of(name: str, script: str, model: str) -> str | None:
    """What a reporter would have set; None: that is not known."""
    if _ADDRESS.fullmatch(name):
        # Where the script adds the path, the address has none.
        if re.search(rf"\{{{name}\}}/?v1|\b{name}\s*\+\s*f?[\"']/?v1", script):
            return _PORT
        if re.search(rf"\.(?:post|request|stream)\([^)]{{0,40}}\b{name}\s*,", script):
            chat = re.search(r"[\"']messages[\"']", script) is not None
            return f"{_PORT}/v1/{'chat/' if chat else ''}completions"
        return f"{_PORT}/v1"
    if _KEY.fullmatch(name):
        return "EMPTY"
    if _MODEL.fullmatch(name):
        return model
    return None
