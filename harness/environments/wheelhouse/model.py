"""``wheelhouse.json``: what a wheelhouse holds, for whom, and where in it."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from mmrepro.machine.files import Device
from mmrepro.records import Record, Setting, WheelFacts
from pydantic import Field

Origin = Literal["wheel", "built", "host", "left-out"]


class Piece(Record):
    """A file of a part: a wheel, or a stretch of one."""

    part: str
    name: str
    bytes: int
    sha256: str


class WheelFile(Record):
    """One wheel. ``pieces`` put together in their order are the file."""

    name: str
    bytes: int
    sha256: str
    pieces: list[Piece]


class Package(Record):
    """One package of a resolution."""

    name: str
    version: Annotated[str, Field(description="of the host: as it has it, local label and all")]
    origin: Annotated[
        Origin, Field(description="built: from source here; host: the target must have it")
    ]
    file: Annotated[str, Field(description="its wheel; empty: it is not carried")] = ""
    why: Annotated[str, Field(description="why it is not carried")] = ""


class EngineSet(Record):
    """An engine at one release: all that its environment is made of on the target."""

    engine: str
    release: str
    device: Device
    key: Annotated[str, Field(description="the environment's folder there")]
    wheel: WheelFacts
    cutoff: Annotated[str, Field(description="cutoff of the resolution, RFC 3339")]
    packages: list[Package]
    notes: list[Setting] = []


class HarnessSet(Record):
    """mmrepro itself, and what it needs."""

    version: str
    packages: list[Package]


class Target(Record):
    """The machine that it is for."""

    python: Annotated[str, Field(description="e.g. 3.12")]
    platform: Annotated[str, Field(description="as uv names it, e.g. x86_64-manylinux_2_35")]
    have: Annotated[
        dict[str, str], Field(description="version by name of what it said that it has")
    ] = {}


class Wheelhouse(Record):
    """``parts`` never change; adding makes new ones, with a younger manifest in them."""

    schema_version: Literal[1] = 1
    made: datetime
    target: Target
    max_part: Annotated[int, Field(description="bytes")]
    parts: list[str]
    files: list[WheelFile]
    harness: HarnessSet
    engines: list[EngineSet]
