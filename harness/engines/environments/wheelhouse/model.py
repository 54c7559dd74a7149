"""``wheelhouse.json``: what a wheelhouse holds and where in it, and the machine that it
is for."""

from __future__ import annotations

import platform as this_platform
import re
import tomllib
from datetime import datetime
from importlib.resources import files
from typing import Annotated, Literal
from urllib.parse import unquote

from mmrepro.base.errors import UsageError
from mmrepro.base.machine import Device
from mmrepro.base.records import Record, Setting, WheelFacts
from mmrepro.engines.environments.spec import EnvironmentSpec, holds
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename
from pydantic import Field

_COMMON_GLIBC = 35  # Ubuntu 22.04; a newer host runs such wheels as well
_PLATFORM = re.compile(r"(x86_64|aarch64)-manylinux_2_(\d+)")
_PYTHON = re.compile(r"3\.\d+")

Origin = Literal["wheel", "built", "host", "left-out"]


class Piece(Record):
    """A file of a part: a wheel, or a stretch of one."""

    part: str
    name: str
    bytes: int
    sha256: str


class WheelFile(Record):
    """One wheel: ``pieces``, put together in their order."""

    name: str
    bytes: int
    sha256: str
    pieces: list[Piece]


class Package(Record):
    """One package of a resolution."""

    name: str
    version: Annotated[
        str, Field(description="of the host: as it has it, local label and all")
    ]
    origin: Annotated[
        Origin,
        Field(description="built: from source here; host: the target must have it"),
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
    platform: Annotated[
        str, Field(description="as uv names it, e.g. x86_64-manylinux_2_35")
    ]
    have: Annotated[
        dict[str, str], Field(description="version by name of what it said that it has")
    ] = {}


class Wheelhouse(Record):
    """``parts`` never change; adding makes new ones, with a younger manifest in
    them."""

    schema_version: Literal[1] = 1
    made: datetime
    target: Target
    max_part: Annotated[int, Field(description="bytes")]
    parts: list[str]
    files: list[WheelFile]
    harness: HarnessSet
    engines: list[EngineSet]


# ------------------------------------------------------------------ the target


def make_target(python: str, platform: str = "", freeze: str = "") -> Target:
    """The machine that a wheelhouse is for.

    Args:
        python: its version, as 3.12.
        platform: as uv names it; empty: this machine's kind with an old glibc.
        freeze: text of ``pip freeze`` or ``pip list --format=freeze`` there.

    Raises:
        UsageError: one of them cannot be read.
    """
    platform = platform or f"{this_platform.machine()}-manylinux_2_{_COMMON_GLIBC}"
    if not _PYTHON.fullmatch(python):
        raise UsageError(
            f"{python!r} is no version of Python.", hint="e.g. --python 3.12"
        )
    if not _PLATFORM.fullmatch(platform):
        raise UsageError(
            f"{platform!r} is no platform that a wheelhouse can be made for.",
            hint=(
                "e.g. --platform x86_64-manylinux_2_39 (the glibc of `ldd "
                "--version` there)"
            ),
        )
    return Target(python=python, platform=platform, have=have_of(freeze))


def have_of(freeze: str) -> dict[str, str]:
    """Version by canonical name. Lines that name no version (``-e …``) are passed over.

    Raises:
        UsageError: there is text, and no line of it names a version.
    """
    have: dict[str, str] = {}
    for line in freeze.splitlines():
        try:
            one = Requirement(line.partition(" #")[0].strip())
            if one.url:
                version = str(
                    parse_wheel_filename(unquote(one.url.rpartition("/")[2]))[1]
                )
            else:
                (version,) = (
                    pin.version for pin in one.specifier if pin.operator == "=="
                )
        except ValueError:  # not a requirement, not a wheel, not one version
            continue
        have[canonicalize_name(one.name)] = version
    if freeze.strip() and not have:
        raise UsageError(
            "The list of what the target has names no package with its version.",
            hint="make it there with: python -m pip list --format=freeze",
        )
    return have


# ------------------------------------------------------------- what need not be carried


def unneeded(spec: EnvironmentSpec) -> dict[str, str]:
    """Why each package of ``unneeded.toml`` is not needed, by its name."""
    text = (
        files("mmrepro.engines.environments.wheelhouse")
        .joinpath("unneeded.toml")
        .read_text("utf-8")
    )
    return {
        name: entry["why"]
        for entry in tomllib.loads(text)["entry"]
        if (entry["engine"], entry["device"]) == (spec.engine, spec.device)
        and holds(entry["releases"], spec.release)
        for name in entry["packages"]
    }
