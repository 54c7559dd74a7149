"""Engines, each in a folder of its own. An adapter is loaded when it is first asked
for."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Final

from mmrepro.base.errors import UsageError, did_you_mean
from mmrepro.engines.base import (
    BOOT as BOOT,
    PROXY as PROXY,
    REACH as REACH,
    SERVED_MODEL as SERVED_MODEL,
    UVICORN_STARTS as UVICORN_STARTS,
    Engine as Engine,
    LaunchPlan as LaunchPlan,
    LaunchRequest as LaunchRequest,
    Mitigation as Mitigation,
    Patch as Patch,
    Signs as Signs,
    StackRole as StackRole,
    has_option as has_option,
    option_of as option_of,
    without_prefix as without_prefix,
)
from mmrepro.engines.folders import folders

if TYPE_CHECKING:
    from mmrepro.engines.environments.spec import EnvironmentSpec


@cache
def _loaded(name: str) -> Engine:
    folder = importlib.import_module(f"{__name__}.{name}")
    engine: Engine = folder.ENGINE()
    return engine


class _Engines(Mapping[str, Engine]):
    """Adapters by name. What is asked for is loaded; names are known without."""

    def __getitem__(self, name: str) -> Engine:
        if name not in folders():
            raise KeyError(name)
        return _loaded(name)

    def __contains__(self, name: object) -> bool:
        return name in folders()

    def __iter__(self) -> Iterator[str]:
        return iter(folders())

    def __len__(self) -> int:
        return len(folders())


ENGINES: Final = _Engines()


def log_marks() -> dict[str, str]:
    """Of each engine the line that only it logs while it starts."""
    return {
        name: engine.log_mark for name, engine in ENGINES.items() if engine.log_mark
    }


def get_engine(name: str) -> Engine:
    """The adapter called ``name``. Raises UsageError and lists what there is."""
    if name not in ENGINES:
        raise UsageError(
            f"There is no engine {name!r}; there is {', '.join(sorted(ENGINES))}."
            + did_you_mean(name, ENGINES),
            hint="mmrepro list",
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
    from mmrepro.base.machine import device_of

    adapter = get_engine(engine)
    if device not in ("auto", "cpu", "cuda"):
        raise UsageError(
            f"There is no device {device!r}.", hint="use auto, cpu or cuda"
        )
    wanted = device_of(device)
    if not commit:
        return adapter.environment_spec(release, wanted)
    if release:
        raise UsageError(
            f"Release {release} and commit {commit[:12]} exclude each other: a "
            "commit's wheel has its own version.",
            hint=f"--commit {commit[:12]} alone",
        )
    from mmrepro.engines.environments.index import commit_spec

    return commit_spec(
        lambda version: adapter.environment_spec(version, wanted), commit, date
    )
