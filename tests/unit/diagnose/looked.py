"""A look whose probes are named, not run, and whose clock stands still."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from mmrepro.engines import ENGINES
from mmrepro.live.diagnose import collect, discover
from mmrepro.live.diagnose.collect import Collector
from mmrepro.live.diagnose.discover import ServerTarget
from mmrepro.live.diagnose.options import DiagnoseCommand
from mmrepro.probes.data import AnyProbeData
from mmrepro.traffic.evidence.recorder import Recorder
from seen import probed, target

NOW = 1000.0
"""The clock of these tests stands still."""


@dataclass
class Told:
    """What a look asked for: probes as (name, arguments, options), starts, and
    waits."""

    started: list[tuple[Any, float, str]] = field(default_factory=list)
    until: list[float] = field(default_factory=list)
    waited: list[float] = field(default_factory=list)

    @property
    def labels(self) -> list[str]:
        return [label or probe[0] for probe, _, label in self.started]

    def probe(self, label: str) -> Any:
        return next(p for p, _, at in self.started if label == (at or p[0]))

    def seconds(self, label: str) -> float:
        return next(s for p, s, at in self.started if label == (at or p[0]))


PROBES = (
    "ConnectionsProbe",
    "GpuProbe",
    "HttpProbe",
    "InferenceProbe",
    "LogsProbe",
    "MetricsProbe",
    "ProcessesProbe",
    "StacksProbe",
    "SyscallsProbe",
)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    """Probes are named, not run, and time is noted, not spent."""
    seen = Told()

    def named(name: str) -> Callable[..., Any]:
        return lambda *words, **options: (
            name.removesuffix("Probe").lower(),
            words,
            options,
        )

    for name in PROBES:
        monkeypatch.setattr(collect, name, named(name))

    def start(
        self: Collector, probe: Any, *, seconds: float = 6.0, label: str = ""
    ) -> Future[None]:
        seen.started.append((probe, seconds, label))
        done: Future[None] = Future()
        if probe[0] != "inference":
            done.set_result(None)
        return done

    def until(
        self: Collector, moment: float, unless: Future[None] | None = None
    ) -> None:
        seen.until.append(moment - NOW)

    monkeypatch.setattr(Collector, "_start", start)
    monkeypatch.setattr(Collector, "_until", until)
    monkeypatch.setattr(
        collect, "_wait", lambda future, moment: seen.waited.append(moment - NOW)
    )
    monkeypatch.setattr(collect.time, "monotonic", lambda: NOW)
    monkeypatch.setattr(discover, "refresh", lambda found: seen.until.append(-1.0))
    return seen


def collector(
    tmp_path: Path, engine: str = "vllm", *data: AnyProbeData, **facts: Any
) -> Collector:
    plan = facts.pop("plan", DiagnoseCommand(deadline_s=10.0, model="m"))
    recorder = Recorder(tmp_path)
    recorder.evidence.probes.extend(probed(one) for one in data)
    return Collector(ServerTarget(target(**facts), ENGINES.get(engine)), plan, recorder)
