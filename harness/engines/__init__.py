"""Adapters to inference engines."""

from __future__ import annotations

from mmrepro.engines.base import (
    Engine as Engine,
    LaunchPlan as LaunchPlan,
    LaunchRequest as LaunchRequest,
    Signs as Signs,
    root_cause_lines as root_cause_lines,
    worth_another as worth_another,
)
from mmrepro.engines.lmdeploy import LmdeployEngine
from mmrepro.engines.minivllm import MinivllmEngine
from mmrepro.engines.sglang import SglangEngine
from mmrepro.engines.vllm import VllmEngine
from mmrepro.environments.spec import EnvironmentSpec
from mmrepro.errors import UsageError
from mmrepro.machine.cache import detect_device

ENGINES: dict[str, Engine] = {
    engine.name: engine
    for engine in (VllmEngine(), SglangEngine(), LmdeployEngine(), MinivllmEngine())
}


def get_engine(name: str) -> Engine:
    """The adapter called ``name``. Raises UsageError and lists what there is."""
    if name not in ENGINES:
        raise UsageError(
            f"There is no engine {name!r}; there is {', '.join(sorted(ENGINES))}.",
            hint="mmrepro env create vllm 0.23.0",
        )
    return ENGINES[name]


def spec_for(engine: str, release: str, device: str = "auto") -> EnvironmentSpec:
    """The environment of ``engine`` at ``release``; ``device``: auto, cpu or cuda.

    Raises:
        UsageError: no such engine or device.
        UnknownRelease: not a version number.
    """
    adapter = get_engine(engine)
    if device not in ("auto", "cpu", "cuda"):
        raise UsageError(f"There is no device {device!r}.", hint="use auto, cpu or cuda")
    return adapter.environment_spec(release, detect_device() if device == "auto" else device)
