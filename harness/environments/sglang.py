"""What an environment for SGLang is made of: its own wheel, on a CPU without the CUDA kernels."""

from __future__ import annotations

from dataclasses import replace

from mmrepro.environments.requirements import never
from mmrepro.environments.spec import EnvironmentSpec
from mmrepro.environments.table import tabled_spec
from mmrepro.machine.files import Device

ORIGIN = "the SGLang project's own wheel"


def sglang_spec(release: str, device: Device | None = None) -> EnvironmentSpec:
    """The environment of SGLang ``release``: see :func:`tabled_spec`."""
    spec = tabled_spec(
        "sglang", release, device, None, title="SGLang", example="0.5.6", origin=ORIGIN
    )
    return replace(spec, drop=(), overrides=(*spec.overrides, *never(spec.drop)))
