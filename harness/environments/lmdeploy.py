"""What an environment for LMDeploy is made of: the project's own wheel, on a CPU as on a GPU."""

from __future__ import annotations

import tomllib
from importlib.resources import files

from mmrepro.environments.place import detect_device
from mmrepro.environments.spec import Device, EnvironmentSpec, Reason
from mmrepro.environments.vllm import Entry
from mmrepro.errors import UnknownRelease
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version
from pydantic import TypeAdapter

ORIGIN = "the LMDeploy project's own wheel"


def table() -> list[Entry]:
    """The entries of lmdeploy.toml."""
    text = files("mmrepro.environments").joinpath("lmdeploy.toml").read_text(encoding="utf-8")
    return TypeAdapter(list[Entry]).validate_python(tomllib.loads(text).get("entry", []))


def lmdeploy_spec(
    release: str, device: Device | None = None, *, entries: list[Entry] | None = None
) -> EnvironmentSpec:
    """The environment of LMDeploy ``release``; ``device`` None: what this machine has.

    No compiled module is checked: the PyTorch engine needs none of LMDeploy's own (TurboMind's
    ``_turbomind`` wants a GPU's driver).

    Raises:
        UnknownRelease: ``release`` is not a version number.
    """
    try:
        version = Version(release)
    except InvalidVersion as error:
        raise UnknownRelease(
            f"{release!r} is not a release of LMDeploy.", hint="give a version number, e.g. 0.6.4"
        ) from error
    device = device or detect_device()
    found = [
        entry
        for entry in (table() if entries is None else entries)
        if entry.device in (None, device)
        and SpecifierSet(entry.releases, prereleases=True).contains(version)
    ]
    return EnvironmentSpec(
        engine="lmdeploy",
        release=version.public,
        device=device,
        project="lmdeploy",
        dated_by="lmdeploy",
        origin=ORIGIN,
        requirements=tuple(line for entry in found for line in entry.requirements),
        drop=tuple(line for entry in found for line in entry.drop),
        overrides=tuple(line for entry in found for line in entry.overrides),
        python=next((entry.python for entry in found if entry.python), ""),
        cutoff=next((entry.cutoff for entry in found if entry.cutoff), ""),
        disk_bytes=8 * 1024**3,
        reasons=tuple(Reason("lmdeploy.toml", entry.releases, entry.why) for entry in found),
    )
