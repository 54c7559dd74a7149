"""Options of ``mmrepro accept``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from mmrepro.base import common_options as common
from mmrepro.base.errors import UsageError
from mmrepro.base.options import LIMITS, OUTPUT, Command, option
from mmrepro.base.units import exact_duration


@dataclass(frozen=True)
class AcceptCommand(Command):
    COMMAND: ClassVar[str] = "accept"
    only: tuple[str, ...] = option(
        (), "A part; see --list. May be repeated.", "PART", configurable=False
    )
    device: Literal["auto", "cpu", "cuda"] = common.DEVICE("auto")
    budget_s: float = common.BUDGET(
        1500.0,
        help="Time for all of it, e.g. 25m; what does not fit is not tested.",
        shown="25m",
    )
    resume: bool = common.RESUME(
        False, help="Continue what is in --out, as it was asked for."
    )
    again: bool = option(
        False, "Run what failed or was inconclusive once more.", group=LIMITS, once=True
    )
    events: str = common.EVENTS("")
    list_: bool = option(
        False, "Show the parts and their times.", group=OUTPUT, once=True
    )
    out: Path | None = common.OUT(
        None, help="Folder of the summary and of all incidents."
    )
    full: bool = common.FULL(False)
    json: bool = common.JSON(False)
    quiet: bool = common.QUIET(False)
    verbose: bool = common.VERBOSE(False)

    def __post_init__(self) -> None:
        if self.budget_s > common.WEEK_S:
            raise UsageError(
                f"--budget {exact_duration(self.budget_s)} is more than a week.",
                hint="e.g. --budget 25m",
            )
