"""Which engines an environment can be made for."""

from __future__ import annotations

from collections.abc import Callable

from mmrepro.environments.lmdeploy import lmdeploy_spec
from mmrepro.environments.minivllm import minivllm_spec
from mmrepro.environments.place import detect_device
from mmrepro.environments.sglang import sglang_spec
from mmrepro.environments.spec import Device, EnvironmentSpec
from mmrepro.environments.vllm import vllm_spec
from mmrepro.errors import UsageError

SPECS: dict[str, Callable[[str, Device], EnvironmentSpec]] = {
    "lmdeploy": lmdeploy_spec,
    "minivllm": minivllm_spec,
    "sglang": sglang_spec,
    "vllm": vllm_spec,
}


def spec_for(engine: str, release: str, device: str = "auto") -> EnvironmentSpec:
    """The environment of ``engine`` at ``release``; ``device``: auto, cpu or cuda.

    Raises:
        UsageError: no such engine or device.
        UnknownRelease: not a version number.
    """
    if engine not in SPECS:
        raise UsageError(
            f"There is no engine {engine!r}; there is {', '.join(sorted(SPECS))}.",
            hint="mmrepro env create vllm 0.23.0",
        )
    chosen: Device
    if device == "auto":
        chosen = detect_device()
    elif device == "cpu":
        chosen = "cpu"
    elif device == "cuda":
        chosen = "cuda"
    else:
        raise UsageError(f"There is no device {device!r}.", hint="use auto, cpu or cuda")
    return SPECS[engine](release, chosen)
