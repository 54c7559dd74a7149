"""Options of ``matrix run``."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from mmrepro.base import common_options as common
from mmrepro.base.options import LIMITS, OUTPUT, Command, Origin, option
from mmrepro.base.units import exact_duration, exact_size, parse_duration, parse_size
from mmrepro.matrix import selectors
from mmrepro.matrix.file import MatrixFile, Settings
from mmrepro.run.options import StartMode

DEFAULT_OUT = "nights"


@dataclass(frozen=True)
class MatrixCommand(Command):
    """The options that say which cells there are. None and what is empty: not said."""

    file: Path | None = option(
        None, "FILE.toml with the rows; see docs/matrix.md.", "FILE", argument=True
    )
    scenarios: tuple[str, ...] = option(
        (),
        "NAME, NAME:VARIANT, NAME:all, a FILE.py, or all. May be repeated.",
        "SCENARIO",
        name="--scenario",
        configurable=False,
        names="scenario",
    )
    engine: str = common.ENGINE_NAME("", help="Only scenarios of this engine.")
    releases: tuple[str, ...] = option(
        (),
        "affected, boundary, after, newest, own, A..B or versions, separated by commas.",
        "RELEASE,…",
        shown="own,newest",
        read=selectors.parse,
        write=",".join,
    )
    device: str | None = common.DEVICE(None, shown="auto")
    mitigation: tuple[str, ...] = common.MITIGATION(
        (), help="none, each (one more cell for each), or a name. May be repeated.", shown="none"
    )
    repeat: int | None = common.REPEAT(None, help="Number of runs of each cell.", shown="1")
    max_time: float | None = option(
        None,
        "The same as --budget.",
        "TIME",
        LIMITS,
        read=parse_duration,
        write=exact_duration,
    )
    disk: int | None = option(
        None,
        "Maximum growth of the disk's use, e.g. 40G.",
        "SIZE",
        LIMITS,
        shown="no bound",
        read=parse_size,
        write=exact_size,
    )
    json: bool = common.JSON(False)

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

    def under(self, file: MatrixFile) -> tuple[Self, MatrixFile]:
        """Return both so that FILE.toml goes before what ``mmrepro.toml`` says of the same keys."""
        tables = (file.matrix, *file.cell)
        mine: dict[str, Any] = {
            one.name: one.default
            for one in fields(self)
            if self.origins.get(one.name) is Origin.FILE
            and any(getattr(table, one.name, None) is not None for table in tables)
        }
        origins = {name: origin for name, origin in self.origins.items() if name not in mine}
        below = Settings(**{name: value for name, value in self.settings if name in mine})
        matrix = file.matrix.over(below)
        return replace(self, origins=origins, **mine), file.model_copy(update={"matrix": matrix})


@dataclass(frozen=True)
class MatrixRunCommand(MatrixCommand):
    """Options of ``mmrepro matrix run``."""

    COMMAND: ClassVar[str] = "matrix run"
    server_args: tuple[str, ...] = common.SERVER_ARG(())
    options: tuple[str, ...] = common.OPTION(())
    confirm: int | None = option(
        None,
        "Number of further runs of a cell with an unexpected result.",
        "N",
        shown="3",
        least=0,
        most=100,
    )
    jobs: int | None = common.JOBS(None, help="Number of environments at a time.", shown="1")
    timeout: float | None = common.TIMEOUT(None, shown="600")
    quarantine: Path | None = common.QUARANTINE(None)
    every: float | None = option(
        None,
        "When the next nightly run is due, e.g. 24h; a missing one is reported.",
        "TIME",
        LIMITS,
        read=parse_duration,
        write=exact_duration,
    )
    start_mode: StartMode | None = common.START_MODE(
        None, shown="warm, so that all nightly runs are alike", configurable=False, variable=""
    )
    shard: str = option(
        "", "I/N: the Ith of N machines' part; join with matrix merge.", "I/N", configurable=False
    )
    machine: str = option("", "Label of this machine in the ledger.", "NAME", OUTPUT)
    ray: str = common.RAY("")
    budget_s: float | None = common.BUDGET(None)
    events: str = common.EVENTS("")
    out: Path | None = common.OUT(None, help="Folder of the ledger.", shown=DEFAULT_OUT, once=False)
    night: str = common.NIGHT("", help="Name of the nightly run.", shown="the UTC date")
    full: bool = common.FULL(False)
    resume: bool = common.RESUME(False, help="Continue the newest run that is unfinished.")
    quiet: bool = common.QUIET(False)
    verbose: bool = common.VERBOSE(False)
    dry_run: bool = common.DRY_RUN(False)

    def resumed(self, folder: Path) -> str:
        """Return the command that goes on with the plan that is written down in ``folder``."""
        kept = {"origins", "file", *HOW}
        plan = {one.name: one.default for one in fields(self) if one.name not in kept}
        return self.command_line(**{**plan, "out": folder, "resume": True})


HOW = ("jobs", "max_time", "budget_s", "timeout", "disk", "quarantine", "start_mode", "ray")
"""Fields that no plan holds: how its cells are run."""
