"""What an environment for LMDeploy is made of: the project's own wheel, on a CPU as on a GPU."""

from __future__ import annotations

from dataclasses import replace

from mmrepro.environments.spec import EnvironmentSpec
from mmrepro.environments.table import tabled_spec
from mmrepro.machine.files import Device

ORIGIN = "the LMDeploy project's own wheel"


def lmdeploy_spec(release: str, device: Device | None = None) -> EnvironmentSpec:
    """The environment of LMDeploy ``release``: see :func:`tabled_spec`.

    No compiled module is checked: the PyTorch engine needs none of LMDeploy's own (TurboMind's
    ``_turbomind`` wants a GPU's driver).
    """
    spec = tabled_spec(
        "lmdeploy", release, device, None, title="LMDeploy", example="0.6.4", origin=ORIGIN
    )
    return replace(spec, disk_bytes=8 * 1024**3)
