"""Adapters to inference engines."""

from __future__ import annotations

from mmrepro.engines.base import (
    Engine,
    LaunchPlan,
    LaunchRequest,
    Signs,
    root_cause_lines,
    worth_another,
)
from mmrepro.engines.lmdeploy import LmdeployEngine
from mmrepro.engines.minivllm import MinivllmEngine
from mmrepro.engines.sglang import SglangEngine
from mmrepro.engines.vllm import VllmEngine
from mmrepro.errors import UsageError

ENGINES: dict[str, Engine] = {
    engine.name: engine
    for engine in (VllmEngine(), SglangEngine(), LmdeployEngine(), MinivllmEngine())
}

__all__ = [
    "ENGINES",
    "Engine",
    "LaunchPlan",
    "LaunchRequest",
    "Signs",
    "get_engine",
    "root_cause_lines",
    "worth_another",
]


def get_engine(name: str) -> Engine:
    """The adapter called ``name``. Raises UsageError and lists what there is."""
    if name not in ENGINES:
        raise UsageError(f"There is no engine {name!r}; there is: {', '.join(ENGINES)}.")
    return ENGINES[name]
