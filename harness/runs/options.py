"""Options of a run, and of the commands that make several."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import ClassVar

from mmrepro.base import common_options as common
from mmrepro.base.options import OUTPUT, Command, option


class StartMode(StrEnum):
    """How a server is started; see ``mmrepro.runs.starter``."""

    AUTO = "auto"
    COLD = "cold"
    FORK = "fork"
    WARM = "warm"


_NOT_OF_ONE_RUN = {"origins", "full", "json", "quiet", "verbose", "out", "repeat"}


def split_variant(scenario: str, variant: str = "") -> tuple[str, str]:
    """Return name and variant of ``NAME:VARIANT``; what else was typed stays."""
    name, colon, after = scenario.rpartition(":")
    if not colon or not name or variant or scenario.endswith(".py"):
        return scenario, variant
    return name, after


@dataclass(frozen=True)
class _NamedScenario(Command):
    """A scenario as the user typed it: a name or a file. NAME:VARIANT is both at
    once."""

    scenario: str = common.SCENARIO("")
    variant: str = common.VARIANT("")

    def __post_init__(self) -> None:
        name, variant = split_variant(self.scenario, self.variant)
        object.__setattr__(self, "scenario", name)
        object.__setattr__(self, "variant", variant)


@dataclass(frozen=True)
class ScenarioCommand(_NamedScenario):
    """What a single run, an ablation and a bisection have in common.

    ``timeout_s`` bounds a run from the engine's start on; building an environment is
    not in it."""

    device: str = common.DEVICE("auto")
    server_args: tuple[str, ...] = common.SERVER_ARG(())
    start_mode: StartMode = common.START_MODE(StartMode.AUTO)
    timeout_s: float = common.TIMEOUT(600.0)
    full: bool = common.FULL(False)
    json: bool = common.JSON(False)
    quiet: bool = common.QUIET(False)
    verbose: bool = common.VERBOSE(False)

    @property
    def run(self) -> RunCommand:
        """The options that all of its runs have."""
        own = {field.name for field in fields(self)} - _NOT_OF_ONE_RUN
        values = {}
        for field in fields(RunCommand):
            if field.name in own:
                values[field.name] = getattr(self, field.name)

        return RunCommand(**values)


@dataclass(frozen=True)
class RunCommand(ScenarioCommand):
    """Options of ``mmrepro run``, checked by the runner."""

    COMMAND: ClassVar[str] = "run"
    DOCUMENTS: ClassVar[tuple[str, ...]] = ("mmrepro.failure.documents:Incident",)
    release: str = common.RELEASE("")
    tree: str = common.SOURCE("")
    kernels: str = common.KERNELS("")
    commit: str = common.COMMIT("")
    commit_date: str = common.COMMIT_DATE("")
    """RFC 3339: the commit's requirements are resolved as of then."""
    index: str = common.INDEX("")
    model: Path | None = common.MODEL(None)
    mitigations: tuple[str, ...] = common.MITIGATION(())
    flips: tuple[str, ...] = common.FLIP(())
    """Names of the factors that are not left as in the failing baseline."""
    options: tuple[str, ...] = common.OPTION(())
    contract_probe: bool = common.CONTRACT_PROBE(False)
    start_mode: StartMode = common.START_MODE(
        StartMode.AUTO,
        help="cold: the engine's own start; fork: one import of the engine; warm: "
        "forked from a process that has imported it; auto: warm for several starts, "
        "else fork.",
    )
    repeat: int = common.REPEAT(1, once=True)
    keep_server: bool = option(
        False, "Leave the server running and print its pid.", group=OUTPUT, once=True
    )
    yes: bool = common.YES(False)
    out: Path | None = common.OUT(None, shown="incidents/…")

    def numbered(self, number: int) -> RunCommand:
        """The same for run ``number`` of several: a folder of its own below ``out``."""
        if self.out is None:
            return replace(self, out=None)
        return replace(self, out=self.out / f"run-{number}")


@dataclass(frozen=True)
class SeveralRuns(ScenarioCommand):
    """Options of a command that makes runs of one scenario."""

    jobs: int | None = common.JOBS(None, shown="1")
    ray: str = common.RAY("")
    budget_s: float | None = common.BUDGET(None)
    events: str = common.EVENTS("")
    dry_run: bool = common.DRY_RUN(False)
    out: Path | None = common.OUT(None)
