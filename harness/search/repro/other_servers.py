"""Servers that no command of a report starts: what answers a file of requests, the
options that a log prints, and the engine in a script's own process, as the command of a
server with the same options."""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from mmrepro.engines.folders import published
from mmrepro.engines.offline import runs_offline
from mmrepro.engines.serving import serving
from mmrepro.search.repro.server_command import CONTINUED, split_words


@dataclass(frozen=True)
class BatchRun:
    """A file of requests that an engine answers without a server.

    Attributes:
        command: the server that would answer them.
        input: name of the file, without folders.
    """

    command: str
    input: str = ""


def batch_of(line: str) -> BatchRun | None:
    """Read a line that has a file of requests answered; None: it is no such line."""
    for engine in published():
        server = serving(engine)
        begun = re.search(server.batch, line) if server.batch else None
        if begun is None:
            continue
        words = [*server.program]
        read, at = "", 0
        given = split_words(CONTINUED.sub(" ", line[begun.end() :]))
        while at < len(given):
            name, equals, value = given[at].partition("=")
            is_input, is_output = (
                name in server.batch_input,
                name in server.batch_output,
            )
            if not (is_input or is_output):
                words.append(given[at])
                at += 1
                continue
            if not equals and at + 1 < len(given):
                value = given[at + 1]
                at += 1
            read = value.rpartition("/")[2] if is_input else read
            at += 1
        return BatchRun(shlex.join(words), read)
    return None


_HOLDS_ENGINE: Final = frozenset(
    {"LLM", "Engine", "EngineArgs", "AsyncEngineArgs", "ServerArgs", "pipeline"}
)
"""Names of what is called with an engine's arguments."""


def offline_command(script: str) -> str:
    """The server that has the options of the engine in a script's own process; "": the
    script has none that is known."""
    try:
        tree = ast.parse(script)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    imported = _imported(tree)
    known_engines = {engine for engine in published() if runs_offline(engine)}
    if known_engines.isdisjoint(imported.values()):
        return ""
    known: dict[str, ast.expr] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            known[node.targets[0].id] = node.value
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        package, called = _called(node.func)
        # A script may import two engines, and compare them.
        engine = imported.get(package, "")
        if called not in _HOLDS_ENGINE or engine not in known_engines:
            continue
        options = _given_options(node, known)
        if options:
            return shlex.join([*serving(engine).program, *_words_of(options)])
    return ""


def _imported(tree: ast.Module) -> dict[str, str]:
    """The packages of the names that a script imports."""
    packages: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                package = alias.name.partition(".")[0]
                packages[alias.asname or package] = package
        elif isinstance(node, ast.ImportFrom):
            package = (node.module or "").partition(".")[0]
            for alias in node.names:
                packages[alias.asname or alias.name] = package
    return packages


def _called(node: ast.expr) -> tuple[str, str]:
    """What is called: the first of its names, which an import may have brought, and the
    last."""
    last = ""
    while isinstance(node, ast.Attribute):
        last = last or node.attr
        node = node.value
    first = node.id if isinstance(node, ast.Name) else ""
    return first, last or first


def _given_options(call: ast.Call, known: Mapping[str, ast.expr]) -> dict[str, Any]:
    """Arguments of a call that are written out, the model first."""
    options: dict[str, Any] = {}
    if call.args:
        model = _written(call.args[0], known)
        if isinstance(model, str):
            options["model"] = model
    for keyword in call.keywords:
        value = _written(keyword.value, known)
        if keyword.arg and value is not None:
            name = "model" if keyword.arg == "model_path" else keyword.arg
            options[name] = value
    return options if "model" in options else {}


def _written(node: ast.expr, known: Mapping[str, ast.expr]) -> Any:
    """A value that a script writes out, or names; None: it is no such one."""
    if isinstance(node, ast.Name):
        node = known.get(node.id, node)
    try:
        value = ast.literal_eval(node)
        json.dumps(value)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
    return value


_LONGEST_LOGGED: Final = 20_000
_LOGGED_PAIR: Final = re.compile(
    r"'(\w{1,60})': (?:(True|False)|(-?\d+(?:\.\d+)?)|'([^'\n]{0,400})')(?=[,}])"
)


def of_logged_options(text: str) -> str:
    """The command whose options an engine's log prints; "": it prints none."""
    for engine in published():
        server = serving(engine)
        marker = server.logged_options
        at = text.find(marker) if marker else -1
        if at < 0:
            continue
        line = text[at + len(marker) :][:_LONGEST_LOGGED].partition("\n")[0]
        options = _logged(line)
        if options:
            return shlex.join([*server.program, *_words_of(options)])
    return ""


def _logged(line: str) -> dict[str, Any]:
    """A mapping as Python prints it; of one with further objects in it what is plain."""
    end = line.rfind("}") + 1
    try:
        made = ast.literal_eval(line[:end].strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        made = None
    if isinstance(made, dict):
        return {str(name): value for name, value in made.items()}

    pairs: dict[str, Any] = {}
    for name, switch, number, word in _LOGGED_PAIR.findall(line):
        pairs[name] = switch == "True" if switch else number or word
    return pairs


def _words_of(options: Mapping[str, Any]) -> list[str]:
    """Options of a mapping as a command has them, the model first."""
    words: list[str] = []
    model = options.get("model_tag") or options.get("model")
    if isinstance(model, str):
        words.append(model)
    for name, value in options.items():
        option = "--" + name.replace("_", "-")
        if name in ("model", "model_tag") or value is None:
            continue
        if value is True:
            words.append(option)
        elif value is False:
            words.append(option.replace("--", "--no-", 1))
        elif isinstance(value, list | tuple):
            words += [option, *map(str, value)]
        else:
            plain = json.dumps(value) if isinstance(value, dict) else str(value)
            words += [option, plain]
    return words
