"""What releases of an engine need besides their own metadata: one TOML file an engine."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from importlib.resources import files

from mmrepro.environments.spec import EnvironmentSpec, Reason
from mmrepro.errors import UnknownRelease
from mmrepro.machine.files import Device, detect_device
from mmrepro.records import Record
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


def tabled_spec(
    engine: str,
    release: str,
    device: Device | None,
    entries: Sequence[Entry] | None,
    *,
    title: str,
    example: str,
    origin: str,
) -> EnvironmentSpec:
    """What ``<engine>.toml``, or ``entries`` in its place, says of ``release``.

    Asks nobody: whether there is such a release turns out when it is built.

    Args:
        device: None: what this machine has.
        title: the engine as people write it.
        example: a release, for the error's hint.

    Raises:
        UnknownRelease: ``release`` is not a version number.
    """
    version = parse_release(release, title, example)
    device = device or detect_device()
    applicable = entries_for(table(engine) if entries is None else entries, version, device)
    return EnvironmentSpec(
        engine=engine,
        release=version.public,
        device=device,
        project=engine,
        dated_by=engine,
        origin=origin,
        requirements=tuple(line for entry in applicable for line in entry.requirements),
        drop=tuple(line for entry in applicable for line in entry.drop),
        overrides=tuple(line for entry in applicable for line in entry.overrides),
        python=next((entry.python for entry in applicable if entry.python), ""),
        cutoff=next((entry.cutoff for entry in applicable if entry.cutoff), ""),
        disk_bytes=(8 if device == "cpu" else 14) * 1024**3,
        reasons=tuple(Reason(f"{engine}.toml", entry.releases, entry.why) for entry in applicable),
    )


def parse_release(release: str, engine: str, example: str) -> Version:
    """Raises UnknownRelease: ``release`` is not a version number."""
    try:
        return Version(release)
    except InvalidVersion as error:
        raise UnknownRelease(
            f"{release!r} is not a release of {engine}.",
            hint=f"give a version number, e.g. {example}",
        ) from error
