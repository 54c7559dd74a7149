"""What commands print as JSON that lies in no file: their schemas.

A list of facts is described by its name alone: what is in it follows the command."""

from __future__ import annotations

from typing import Annotated, Any

from mmrepro.base.records import Document
from pydantic import Field

_Facts = dict[str, Any]


class FindDocument(Document, kind="find"):
    """What ``mmrepro find`` knows of a text, a log or an issue."""

    asked: str
    found: Annotated[list[_Facts], Field(description="the best match first")]
    later_fixes: Annotated[
        list[_Facts],
        Field(description="fixes that touched the functions of a traceback since"),
    ] = []


class EnvironmentsDocument(Document, kind="environments"):
    """The cached environments of engines."""

    environments: list[_Facts]


class ParsersDocument(Document, kind="parsers"):
    """Which parsers of a release start with a scripted model."""

    parsers: list[_Facts]


class WheelhouseDocument(Document, kind="wheelhouse"):
    """A wheelhouse that was made; of an engine, its packages."""

    engine: str = ""
    release: str = ""
    device: str = ""
    resolved_until: str = ""
    packages: list[_Facts] = []
    harness: Annotated[list[_Facts], Field(description="packages of mmrepro itself")]
    new_parts: list[str]
    wheelhouse: _Facts | None


class NewDocument(Document, kind="new"):
    """A scenario that was written; ``next`` runs it."""

    scenario: str
    engine: str
    release: str
    files: list[str]


class WarmDocument(Document, kind="warm"):
    """An engine that is kept imported."""

    key: str
    label: str
    idle_s: Annotated[float, Field(description="unused for so long, it ends")]
    last_used: float
    pid: int
    imports_s: float
    memory_bytes: int
    served: int


class KeptWarmDocument(Document, kind="kept-warm"):
    """All engines that are kept imported."""

    kept: list[_Facts]


class KvBudgetDocument(Document, kind="kv-budget"):
    """Memory and a setting, blocks and the longest prompt: bytes and tokens, settings
    as text."""

    engine: str
    release: str
    formula_since: str
    setting_name: str
    block_bytes: int | str
    block_size: int
    groups: list[Any]
    replicas: int
    budget: _Facts | None
    smallest: _Facts | None
    need: _Facts | None
    other_releases: list[_Facts]
    sources: list[_Facts]
    curve: Annotated[list[list[Any]], Field(description="setting and tokens")]
