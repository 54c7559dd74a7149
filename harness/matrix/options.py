"""Options of ``matrix run`` and ``matrix simulate``."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from mmrepro.base.common_options import (
    DEVICE,
    DRY_RUN,
    JOBS,
    JSON,
    MITIGATION,
    OPTION,
    OUT,
    RAY,
    REPEAT,
    RESUME,
    SERVER_ARG,
    START_MODE,
    TIMEOUT,
)
from mmrepro.base.options import LIMITS, OUTPUT, WHAT, Command, Option, Origin
from mmrepro.matrix import selectors
from mmrepro.matrix.file import Settings
from mmrepro.matrix.quantity import seconds, seconds_text, size
from mmrepro.run.options import StartMode

DEFAULT_OUT = "nights"


@dataclass(frozen=True)
class MatrixCommand(Command):
    """What is run: the options that say which cells. None and what is empty: not said."""

    file: Annotated[
        Path | None, Option("FILE", "FILE.toml with the rows; see docs/matrix.md.", metavar="FILE")
    ] = None
    scenarios: Annotated[
        tuple[str, ...],
        Option(
            "--scenario",
            "NAME, NAME:VARIANT, NAME:all, a FILE.py, or all. May be repeated.",
            WHAT,
            "SCENARIO",
            configurable=False,
        ),
    ] = ()
    engine: Annotated[str, Option("--engine", "Only scenarios of this engine.", WHAT, "ENGINE")] = (
        ""
    )
    releases: Annotated[
        tuple[str, ...],
        Option(
            "--releases",
            "affected, boundary, after, newest, own, A..B or versions, separated by commas.",
            WHAT,
            "RELEASE,…",
            default="own,newest",
            read=selectors.parse,
            write=",".join,
        ),
    ] = ()
    device: Annotated[str | None, DEVICE.but(default="auto")] = None
    mitigation: Annotated[
        tuple[str, ...],
        MITIGATION.but(
            help="none, each (one more cell for each), or a name. May be repeated.",
            default="none",
            distinct=False,
        ),
    ] = ()
    repeat: Annotated[int | None, REPEAT.but(help="Number of runs of each cell.", default="1")] = (
        None
    )
    max_time: Annotated[
        float | None,
        Option(
            "--max-time",
            "Start no run that is not expected to end in time, e.g. 45m.",
            LIMITS,
            "TIME",
            read=seconds,
            write=seconds_text,
        ),
    ] = None
    disk: Annotated[
        int | None,
        Option(
            "--disk",
            "Maximum growth of the disk's use, e.g. 40G.",
            LIMITS,
            "SIZE",
            default="no bound",
            read=size,
        ),
    ] = None
    json: Annotated[bool, JSON] = False

    @property
    def settings(self) -> Settings:
        """What the options say of what FILE.toml has, too."""
        said: dict[str, Any] = {}
        for name in Settings.model_fields:
            value = getattr(self, name, None)
            if value not in (None, "", ()):
                plain = str(value) if isinstance(value, Path) else value
                said[name] = list(plain) if isinstance(plain, tuple) else plain
        return Settings(**said)

    def under(self, file: Settings) -> Self:
        """Leave to FILE.toml what it says itself and ``mmrepro.toml`` says for all commands."""
        mine: dict[str, Any] = {
            one.name: one.default
            for one in fields(self)
            if self.origins.get(one.name) is Origin.FILE
            and getattr(file, one.name, None) is not None
        }
        origins = {name: origin for name, origin in self.origins.items() if name not in mine}
        return replace(self, origins=origins, **mine)


@dataclass(frozen=True)
class MatrixRunCommand(MatrixCommand):
    """Options of ``mmrepro matrix run``."""

    COMMAND: ClassVar[str] = "matrix run"
    server_args: Annotated[tuple[str, ...], SERVER_ARG] = ()
    options: Annotated[tuple[str, ...], OPTION] = ()
    confirm: Annotated[
        int | None,
        Option(
            "--confirm",
            "Number of further runs of a cell with an unexpected result.",
            WHAT,
            "N",
            default="3",
            least=0,
            most=100,
        ),
    ] = None
    jobs: Annotated[int | None, JOBS.but(help="Number of environments at a time.", default="1")] = (
        None
    )
    timeout: Annotated[float | None, TIMEOUT.but(default="600")] = None
    quarantine: Annotated[
        Path | None,
        Option(
            "--quarantine",
            "TOML with the cells that are not to fail the run.",
            OUTPUT,
            "FILE",
            configurable=False,
        ),
    ] = None
    every: Annotated[
        float | None,
        Option(
            "--every",
            "When the next nightly run is due, e.g. 24h; a missing one is reported.",
            LIMITS,
            "TIME",
            read=seconds,
            write=seconds_text,
        ),
    ] = None
    start_mode: Annotated[
        StartMode | None,
        START_MODE.but(
            default="warm, so that all nightly runs are alike", configurable=False, variable=""
        ),
    ] = None
    shard: Annotated[
        str,
        Option(
            "--shard",
            "I/N: the Ith of N machines' part; join with matrix merge.",
            WHAT,
            "I/N",
            configurable=False,
        ),
    ] = ""
    machine: Annotated[
        str, Option("--machine", "Label of this machine in the ledger.", OUTPUT, "NAME")
    ] = ""
    ray: Annotated[str, RAY] = ""
    out: Annotated[
        Path | None, OUT.but(help="Folder of the ledger.", default=DEFAULT_OUT, repeated=True)
    ] = None
    night: Annotated[
        str,
        Option(
            "--night",
            "Name of the nightly run.",
            OUTPUT,
            "NAME",
            default="the UTC date",
            configurable=False,
        ),
    ] = ""
    resume: Annotated[bool, RESUME.but(help="Continue the newest run that is unfinished.")] = False
    dry_run: Annotated[bool, DRY_RUN] = False

    def resumed(self, folder: Path) -> str:
        """Return the command that goes on with the plan that is written down in ``folder``."""
        kept = {"origins", "file", *HOW}
        plan = {one.name: one.default for one in fields(self) if one.name not in kept}
        return self.command_line(**{**plan, "out": folder, "resume": True})


HOW = ("jobs", "max_time", "timeout", "disk", "quarantine", "start_mode", "ray")
"""Fields that no plan holds: how its cells are run."""


@dataclass(frozen=True)
class SimulateCommand(MatrixCommand):
    """Options of ``mmrepro matrix simulate``."""

    COMMAND: ClassVar[str] = "matrix simulate"
    jobs: Annotated[int, JOBS.but(help="Number of orders at a time on each machine.")] = 1
    machines: Annotated[
        str,
        Option("--machines", "How many; several with commas.", LIMITS, "N,…", configurable=False),
    ] = "1,2,4,8,16"
    ledger: Annotated[
        Path | None,
        Option(
            "--ledger",
            "Where the times of earlier runs are; without a scenario, its newest run's cells.",
            WHAT,
            "DIR",
            default="nights, if it is there",
        ),
    ] = None
    cells: Annotated[
        int | None,
        Option(
            "--cells",
            "So many: copies of the plan's.",
            WHAT,
            "N",
            least=1,
            most=50_000,
            configurable=False,
        ),
    ] = None
    fetched: Annotated[
        bool, Option("--fetched", "All machines have all environments already.", LIMITS)
    ] = False

    @property
    def run(self) -> MatrixRunCommand:
        """The command that is simulated."""
        same = {one.name for one in fields(MatrixCommand)}
        return MatrixRunCommand(**{name: getattr(self, name) for name in same})
