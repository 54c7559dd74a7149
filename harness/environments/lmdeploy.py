"""What an environment for LMDeploy is made of: the project's own wheel, on a CPU as on a GPU."""

from __future__ import annotations

from mmrepro.environments.place import detect_device
from mmrepro.environments.spec import Device, EnvironmentSpec, Reason
from mmrepro.environments.table import Entry, entries_for, parse_release, table

ORIGIN = "the LMDeploy project's own wheel"


def lmdeploy_spec(
    release: str, device: Device | None = None, *, entries: list[Entry] | None = None
) -> EnvironmentSpec:
    """The environment of LMDeploy ``release``; ``device`` None: what this machine has.

    No compiled module is checked: the PyTorch engine needs none of LMDeploy's own (TurboMind's
    ``_turbomind`` wants a GPU's driver).

    Raises:
        UnknownRelease: ``release`` is not a version number.
    """
    version = parse_release(release, "LMDeploy", "0.6.4")
    device = device or detect_device()
    found = entries_for(table("lmdeploy") if entries is None else entries, version, device)
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
