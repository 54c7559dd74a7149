"""Scripts that have an engine in their own process: what of it is replaced there, as
its ``offline.toml`` has it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from mmrepro.engines.folders import table

SETTINGS_FILE: Final = "mmrepro-offline.json"
RUNNER: Final = "offline_run.py"
"""Our file (``reproducers/``) that runs such a script."""


def runs_offline(engine: str) -> bool:
    """Whether scripts that have ``engine`` in their own process can be run."""
    return bool(table(engine, "offline.toml"))


def offline_settings(
    engine: str, model: Path, argv: Sequence[str], script: str
) -> dict[str, Any]:
    """What the runner of a script reads.

    Args:
        model: the folder of the stand-in.
        argv: the command that starts the engine's server with it: its options.
        script: the script's name.
    """
    facts = table(engine, "offline.toml")
    entries = []
    for entry in facts["entry"]:
        options = {**_options(argv), entry["model"]: str(model)}
        entries.append({**entry, "options": options})
    return {"script": script, "entries": entries, "calls": facts["call"]}


def _options(argv: Sequence[str]) -> dict[str, Any]:
    """Options of a command by the names that their fields have."""
    options: dict[str, Any] = {}
    at = 0
    while at < len(argv):
        word = argv[at]
        at += 1
        if not word.startswith("--"):
            continue
        values: list[str] = []
        name, equals, value = word.partition("=")
        if equals:
            values = [value]
        while not equals and at < len(argv) and not argv[at].startswith("--"):
            values.append(argv[at])
            at += 1
        if not values and name.startswith("--no-"):
            options[_field(name[5:])] = False
        else:
            options[_field(name[2:])] = _value(values)
    return options


def _field(name: str) -> str:
    return name.replace("-", "_")


def _value(words: Sequence[str]) -> Any:
    if not words:
        return True
    made = [_plain(word) for word in words]
    return made[0] if len(made) == 1 else made


def _plain(word: str) -> Any:
    """A number or an object; else the word."""
    try:
        return json.loads(word)
    except (ValueError, RecursionError):
        return word
