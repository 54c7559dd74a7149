"""The folder of an engine: what is known of it, in code and in tables.

    vllm/engine.toml     its facts: name as written, order in lists, repository
    vllm/adapter.py      its adapter, which the folder's __init__ gives as ENGINE
    vllm/allowed.toml    options and variables that others may set   (allowed.py)
    vllm/features.toml   what a server does besides                  (features.py)
    vllm/waits.toml      where its processes wait                    (waits.py)

An engine is there when its folder has an ``engine.toml``. All other tables may be
missing. Reading one imports no adapter."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

FACTS: Final = "engine.toml"


@dataclass(frozen=True)
class _EngineFolder:
    """What is said of an engine without its adapter.

    Attributes:
        title: its name as its makers write it.
        order: its place where engines are listed.
        repository: ``owner/name`` of its source, as public issues have it.
    """

    title: str
    order: int
    repository: str


def _engine_folders() -> Iterator[Path]:
    """Yield the folder of each engine, in no order.

    The package's ``__path__`` is asked, so that a further folder of engines can be put
    beside ours."""
    import mmrepro.engines

    for place in mmrepro.engines.__path__:
        for facts in Path(place).glob(f"*/{FACTS}"):
            yield facts.parent


@cache
def folders() -> dict[str, Path]:
    """Folders by the engine's name, in the order in which engines are listed."""
    placed = []
    for folder in _engine_folders():
        order = _EngineFolder(**_table(folder / FACTS)).order
        placed.append((order, folder.name, folder))
    return {name: folder for _, name, folder in sorted(placed)}


@cache
def facts(engine: str) -> _EngineFolder:
    """Read the facts of ``engine``. Raises KeyError: there is no such engine."""
    return _EngineFolder(**_table(folders()[engine] / FACTS))


@cache
def table(engine: str, file: str) -> dict[str, Any]:
    """Read a table of ``engine``, e.g. ``features.toml``; {}: it has none, or there is
    no such engine."""
    folder = folders().get(engine)
    if folder is None or not (folder / file).is_file():
        return {}
    return _table(folder / file)


def _table(file: Path) -> dict[str, Any]:
    with file.open("rb") as opened:
        return tomllib.load(opened)
