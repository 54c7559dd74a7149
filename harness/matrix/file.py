"""``FILE.toml``: what a matrix runs and how, with the names that the options have."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from mmrepro.base import units
from mmrepro.errors import MmreproError, UsageError
from mmrepro.machine.files import read_toml
from mmrepro.matrix import selectors
from mmrepro.run.options import StartMode
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError


def _several(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _releases(value: Any) -> Any:
    texts = [str(v) for v in value] if isinstance(value, list) else [value]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("a text, or a list of texts")
    return _said(lambda: list(selectors.parse(",".join(texts))))


def _seconds(value: Any) -> Any:
    return _said(lambda: units.parse_duration(str(value)))


def _size(value: Any) -> Any:
    return _said(lambda: units.parse_size(str(value)))


def _said(read: Any) -> Any:
    try:
        return read()
    except MmreproError as error:
        raise ValueError(f"{error.message.rstrip('.')} ({error.hint})") from None


Texts = Annotated[list[str], BeforeValidator(_several)]
Releases = Annotated[list[str], BeforeValidator(_releases)]
Seconds = Annotated[float, BeforeValidator(_seconds)]
Bytes = Annotated[int, BeforeValidator(_size)]
Device = Literal["auto", "cpu", "cuda"]


class _Table(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        populate_by_name=True,
        alias_generator=lambda name: name.replace("_", "-"),
    )


class Rows(_Table):
    """Rows of the matrix that share their releases, device, mitigations and options.

    What is None is taken from ``[matrix]``, and if that has none either, the default.
    """

    scenario: Texts = []
    engine: str | None = None
    releases: Releases | None = None
    mitigation: Texts | None = None
    device: Device | None = None
    server_arg: Texts = []
    option: Texts = []


class Settings(_Table):
    """``[matrix]``: defaults of the rows, and how the night is run. None: not said."""

    engine: str | None = None
    releases: Releases | None = None
    mitigation: Texts | None = None
    device: Device | None = None
    repeat: Annotated[int, Field(ge=1, le=1000)] | None = None
    confirm: Annotated[int, Field(ge=0, le=100)] | None = None
    jobs: Annotated[int, Field(ge=1, le=64)] | None = None
    max_time: Seconds | None = None
    every: Seconds | None = None
    timeout: Seconds | None = None
    disk: Bytes | None = None
    start_mode: StartMode | None = None
    machine: str | None = None
    ray: str | None = None
    quarantine: str | None = None
    out: str | None = None

    def over(self, other: Settings) -> Settings:
        """These, and where they do not say, ``other``'s."""
        own = {n: v for n, v in self.model_dump().items() if v is not None}
        return Settings.model_validate(other.model_dump() | own)


class Cluster(_Table):
    """``[cluster]``: what Ray is asked for, for the cells that a machine works on."""

    cpus: Annotated[float, Field(ge=0)] = 1.0
    gpus: Annotated[float, Field(gt=0)] = 1.0
    memory: Bytes = 0


class MatrixFile(_Table):
    matrix: Settings = Settings()
    cluster: Cluster = Cluster()
    cell: list[Rows] = []


def load(path: Path) -> MatrixFile:
    """The file; paths in it are relative to its folder, and come back relative to the current one.

    Raises:
        UsageError: it cannot be read; the table and the key are named.
    """
    try:
        made = MatrixFile.model_validate(read_toml(path))
    except ValidationError as error:
        raise UsageError(
            f"{path}: {_first(error)}.", hint="docs/matrix.md lists the tables and their keys"
        ) from error
    for number, rows in enumerate(made.cell, 1):
        if not rows.scenario:
            raise UsageError(
                f"{path}: [[cell]] number {number} names no scenario.",
                hint='scenario = "ghost-key-eviction"',
            )
        rows.scenario = [_placed(s, path) if ".py" in s else s for s in rows.scenario]
    for name in ("quarantine", "out"):
        if value := getattr(made.matrix, name):
            setattr(made.matrix, name, _placed(value, path))
    return made


def _placed(value: str, path: Path) -> str:
    return os.path.relpath(path.parent / value)


def _first(error: ValidationError) -> str:
    """``[[cell]] number 2, key 'releases': …``."""
    first = error.errors(include_url=False, include_input=False)[0]
    place = list(first["loc"])
    words = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        words = "there is no such key" if len(place) > 1 else "there is no such table"
    if place[0] == "cell" and len(place) > 1:
        table = f"[[cell]] number {int(place[1]) + 1}"
        key = place[2:]
    else:
        table, key = f"[{place[0]}]", place[1:]
    return f"{table}, key {str(key[0])!r}: {words}" if key else f"{table}: {words}"
