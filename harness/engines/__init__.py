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
from mmrepro.machine.cache import device_of

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


def spec_for(
    engine: str, release: str, device: str = "auto", *, commit: str = "", date: str = ""
) -> EnvironmentSpec:
    """The environment of ``engine`` at ``release``, or at ``commit``.

    Args:
        device: auto, cpu or cuda.
        date: of the commit, RFC 3339; empty: that of its wheel.

    Raises:
        UsageError: no such engine or device; or a release and a commit.
        UnknownRelease: not a version number; or the index of commits has no wheel.
        EnvironmentBuildError: the index of commits cannot be asked.
    """
    adapter = get_engine(engine)
    if device not in ("auto", "cpu", "cuda"):
        raise UsageError(f"There is no device {device!r}.", hint="use auto, cpu or cuda")
    wanted = device_of(device)
    if not commit:
        return adapter.environment_spec(release, wanted)
    if release:
        raise UsageError(
            f"Release {release} and commit {commit[:12]} exclude each other: a commit's wheel has "
            "its own version.",
            hint=f"--commit {commit[:12]} alone",
        )
    from mmrepro.environments.commits import commit_spec

    return commit_spec(lambda version: adapter.environment_spec(version, wanted), commit, date)
