"""What releases of an engine need besides their own metadata: one TOML file an engine."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from importlib.resources import files

from mmrepro.environments.spec import Device
from mmrepro.errors import UnknownRelease
from mmrepro.probes.base import Record
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version
from pydantic import TypeAdapter


class Entry(Record):
    """One entry of an engine's table."""

    releases: str
    why: str
    device: Device | None = None
    requirements: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    cutoff: str = ""
    python: str = ""


def table(engine: str) -> list[Entry]:
    """The entries of ``<engine>.toml`` beside this module."""
    text = files("mmrepro.environments").joinpath(f"{engine}.toml").read_text(encoding="utf-8")
    return TypeAdapter(list[Entry]).validate_python(tomllib.loads(text).get("entry", []))


def entries_for(entries: Sequence[Entry], version: Version, device: Device) -> list[Entry]:
    """Those that hold for a release on a kind of device, in the table's order."""
    return [
        entry
        for entry in entries
        if entry.device in (None, device)
        and SpecifierSet(entry.releases, prereleases=True).contains(version)
    ]


def parse_release(release: str, engine: str, example: str) -> Version:
    """Raises UnknownRelease: ``release`` is not a version number."""
    try:
        return Version(release)
    except InvalidVersion as error:
        raise UnknownRelease(
            f"{release!r} is not a release of {engine}.",
            hint=f"give a version number, e.g. {example}",
        ) from error
