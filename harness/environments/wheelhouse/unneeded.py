"""What a wheelhouse need not carry; see ``unneeded.toml``."""

from __future__ import annotations

import tomllib
from importlib.resources import files

from mmrepro.environments.spec import EnvironmentSpec
from mmrepro.machine.files import Device
from mmrepro.records import Record
from packaging.specifiers import SpecifierSet
from pydantic import TypeAdapter


class Entry(Record):
    engine: str
    releases: str
    device: Device
    why: str
    packages: tuple[str, ...]


def table() -> list[Entry]:
    text = files("mmrepro.environments.wheelhouse").joinpath("unneeded.toml").read_text("utf-8")
    return TypeAdapter(list[Entry]).validate_python(tomllib.loads(text)["entry"])


def unneeded(spec: EnvironmentSpec) -> dict[str, str]:
    """Why each package is not needed, by its name."""
    return {
        name: entry.why
        for entry in table()
        if (entry.engine, entry.device) == (spec.engine, spec.device)
        and SpecifierSet(entry.releases, prereleases=True).contains(spec.release)
        for name in entry.packages
    }
