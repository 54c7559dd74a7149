"""Options of a run, and of the commands that make several."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, ClassVar

from mmrepro.base.common_options import (
    COMMIT,
    COMMIT_DATE,
    CONTRACT_PROBE,
    DEVICE,
    FLIP,
    INDEX,
    JSON,
    MITIGATION,
    MODEL,
    OPTION,
    OUT,
    RELEASE,
    REPEAT,
    SCENARIO,
    SERVER_ARG,
    START_MODE,
    TIMEOUT,
    VARIANT,
)
from mmrepro.base.options import OUTPUT, Command, Option


class StartMode(StrEnum):
    """How a server is started; see ``mmrepro.run.starter``."""

    AUTO = "auto"
    COLD = "cold"
    FORK = "fork"
    WARM = "warm"


@dataclass(frozen=True)
class ScenarioCommand(Command):
    """What a single run, an ablation and a bisection have in common.

    ``timeout_s`` bounds a run from the engine's start on; building an environment is not in it.
    ``scenario`` is the name or file as the user typed it.
    """

    scenario: Annotated[str, SCENARIO] = ""
    variant: Annotated[str, VARIANT] = ""
    device: Annotated[str, DEVICE] = "auto"
    server_args: Annotated[tuple[str, ...], SERVER_ARG] = ()
    start_mode: Annotated[StartMode, START_MODE] = StartMode.AUTO
    timeout_s: Annotated[float, TIMEOUT] = 600.0
    json: Annotated[bool, JSON] = False


@dataclass(frozen=True)
class RunCommand(ScenarioCommand):
    """Options of ``mmrepro run``, checked by the runner."""

    COMMAND: ClassVar[str] = "run"
    release: Annotated[str, RELEASE] = ""
    commit: Annotated[str, COMMIT] = ""
    """In place of a release: its wheel comes from the index of commits."""
    commit_date: Annotated[str, COMMIT_DATE] = ""
    """RFC 3339: the commit's requirements are resolved as of then."""
    index: Annotated[str, INDEX] = ""
    model: Annotated[Path | None, MODEL] = None
    mitigations: Annotated[tuple[str, ...], MITIGATION] = ()
    flips: Annotated[tuple[str, ...], FLIP] = ()
    """Names of the factors that are not left as in the failing baseline."""
    options: Annotated[tuple[str, ...], OPTION] = ()
    """The scenario's own options: NAME or NAME=VALUE."""
    contract_probe: Annotated[bool, CONTRACT_PROBE] = False
    start_mode: Annotated[
        StartMode,
        START_MODE.but(
            help="cold: the engine's own start; fork: one import of the engine; warm: forked from "
            "a process that has imported it; auto: warm for several starts, else fork."
        ),
    ] = StartMode.AUTO
    repeat: Annotated[int, REPEAT.but(repeated=False)] = 1
    keep_server: Annotated[
        bool,
        Option(
            "--keep-server",
            "Leave the server running and print its pid.",
            OUTPUT,
            repeated=False,
        ),
    ] = False
    out: Annotated[Path | None, OUT.but(help="Folder of the incident.", default="incidents/…")] = (
        None
    )

    def numbered(self, number: int) -> RunCommand:
        """The same for run ``number`` of several: a folder of its own below ``out``."""
        return replace(self, out=self.out / f"run-{number}" if self.out else None)


NOT_OF_ONE_RUN = {"origins", "json", "out", "repeat"}


class SeveralRuns(ScenarioCommand):
    """Options of a command that makes runs of one scenario."""

    @property
    def run(self) -> RunCommand:
        """The options that all of its runs have."""
        own = {one.name for one in fields(self)} - NOT_OF_ONE_RUN
        same = [one.name for one in fields(RunCommand) if one.name in own]
        return RunCommand(**{name: getattr(self, name) for name in same})
