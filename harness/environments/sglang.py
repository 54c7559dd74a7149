"""What an environment for SGLang is made of: its own wheel, on a CPU without the CUDA kernels."""

from __future__ import annotations

from mmrepro.environments.place import detect_device
from mmrepro.environments.spec import Device, EnvironmentSpec, Reason
from mmrepro.environments.table import Entry, entries_for, parse_release, table

ORIGIN = "the SGLang project's own wheel"
NEVER = "sys_platform == 'never'"
"""A marker that holds nowhere: uv then leaves the package out, whoever asks for it."""


def sglang_spec(
    release: str, device: Device | None = None, *, entries: list[Entry] | None = None
) -> EnvironmentSpec:
    """The environment of SGLang ``release``; ``device`` None: what this machine has.

    Asks nobody: whether there is such a release turns out when it is built.

    Raises:
        UnknownRelease: ``release`` is not a version number.
    """
    version = parse_release(release, "SGLang", "0.5.6")
    device = device or detect_device()
    found = entries_for(table("sglang") if entries is None else entries, version, device)
    dropped = tuple(name for entry in found for name in entry.drop)
    return EnvironmentSpec(
        engine="sglang",
        release=version.public,
        device=device,
        project="sglang",
        dated_by="sglang",
        origin=ORIGIN,
        requirements=tuple(line for entry in found for line in entry.requirements),
        overrides=(
            *(line for entry in found for line in entry.overrides),
            *(f"{name} ; {NEVER}" for name in dropped),
        ),
        python=next((entry.python for entry in found if entry.python), ""),
        cutoff=next((entry.cutoff for entry in found if entry.cutoff), ""),
        disk_bytes=(8 if device == "cpu" else 14) * 1024**3,
        reasons=tuple(Reason("sglang.toml", entry.releases, entry.why) for entry in found),
    )
