"""The folder of an engine: what is known of it, in code and in tables.

    vllm/engine.toml     its facts: name as written, order in lists, repository
    vllm/adapter.py      its adapter, which the folder's __init__ gives as ENGINE
    vllm/allowed.toml    options and variables that others may set   (allowed.py)
    vllm/features.toml   what a server does besides                  (features.py)
    vllm/waits.toml      where its processes wait                    (waits.py)
    vllm/held.toml       how it shows that it is well and answers nobody (held.py)
    vllm/serving.toml    how people start its server                 (serving.py)
    vllm/promises.toml   what its API promises                       (promises.py)
    vllm/dialect.toml    how requests are written for it             (dialects.py)
    vllm/parsers.toml    where a release lists its parsers           (parsers.py)
    vllm/plain.toml      what makes its server a plain one           (plain.py)
    vllm/issue_form.toml the form of its bug reports     (reports/issue_form.py)
    vllm/advice.toml     what to do about a cause   (diagnose/cause_advice.py)

An engine is there when its folder has an ``engine.toml``. All other tables may be
missing. Reading one imports no adapter."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar

FACTS: Final = "engine.toml"

Row = TypeVar("Row")


@dataclass(frozen=True)
class EngineFolder:
    """What is said of an engine without its adapter.

    Attributes:
        title: its name as its makers write it.
        order: its place where engines are listed.
        repository: ``owner/name`` of its source, as public issues have it.
        teaching: it comes with mmrepro, and has others' faults: it has no releases on a
            package index, and nobody reports a failure of it.
        log_form: the engine in whose form it writes its log; "": it has its own, or
            none.
        log_processes: expression of how the names of processes begin that only its
            lines have; "": there are none.
    """

    title: str
    order: int
    repository: str
    teaching: bool = False
    log_form: str = ""
    log_processes: str = ""


def _engine_folders() -> Iterator[Path]:
    """Yield the folder of each engine, in no order.

    The package's ``__path__`` is asked, so that a further folder of engines can be put
    beside ours."""
    # No import: reports read tables, and must not depend on what the package gives.
    package = sys.modules[__name__.rpartition(".")[0]]
    for place in package.__path__:
        for facts in Path(place).glob(f"*/{FACTS}"):
            yield facts.parent


@cache
def folders() -> dict[str, Path]:
    """Folders by the engine's name, in the order in which engines are listed."""
    placed = [(_facts_in(folder).order, folder) for folder in _engine_folders()]
    return {folder.name: folder for _, folder in sorted(placed)}


@cache
def facts(engine: str) -> EngineFolder:
    """Read the facts of ``engine``. Raises KeyError: there is no such engine."""
    return _facts_in(folders()[engine])


def title(engine: str) -> str:
    """Return the engine's name as its makers write it; an unknown one stays as it
    is."""
    return facts(engine).title if engine in folders() else engine


@cache
def _facts_in(folder: Path) -> EngineFolder:
    return EngineFolder(**_table(folder / FACTS))


def published() -> tuple[str, ...]:
    """Names of the engines that people serve with, without those for teaching."""
    return tuple(name for name in folders() if not facts(name).teaching)


@cache
def table(engine: str, file: str) -> dict[str, Any]:
    """Read a table of ``engine``, e.g. ``features.toml``; {}: it has none, or there is
    no such engine."""
    folder = folders().get(engine)
    if folder is None or not (folder / file).is_file():
        return {}
    return _table(folder / file)


def made_of(kind: Callable[..., Row], row: Mapping[str, Any]) -> Row:
    """Make a ``kind`` of a table's row; lists become tuples. Raises TypeError: a key
    that it does not have."""
    values = {}
    for name, value in row.items():
        values[name] = tuple(value) if isinstance(value, list) else value
    return kind(**values)


def _table(file: Path) -> dict[str, Any]:
    with file.open("rb") as opened:
        return tomllib.load(opened)
