"""Options of ``mmrepro accept``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from mmrepro.base.common_options import BUDGET, DEVICE, JSON, OUT, RESUME, WEEK_S
from mmrepro.base.options import LIMITS, OUTPUT, WHAT, Command, Option
from mmrepro.errors import UsageError
from mmrepro.matrix.quantity import seconds, seconds_text


@dataclass(frozen=True)
class AcceptCommand(Command):
    COMMAND: ClassVar[str] = "accept"
    only: Annotated[
        tuple[str, ...],
        Option("--only", "A part; see --list. May be repeated.", WHAT, "PART", configurable=False),
    ] = ()
    device: Annotated[Literal["auto", "cpu", "cuda"], DEVICE] = "auto"
    budget_s: Annotated[
        float,
        BUDGET.but(
            help="Time for all of it, e.g. 25m; what does not fit is not tested.",
            default="25m",
            read=seconds,
            write=seconds_text,
        ),
    ] = 1500.0
    resume: Annotated[bool, RESUME.but(help="Continue what is in --out, as it was asked for.")] = (
        False
    )
    again: Annotated[
        bool,
        Option("--again", "Run what failed or was inconclusive once more.", LIMITS, repeated=False),
    ] = False
    list_: Annotated[
        bool, Option("--list", "Show the parts and their times.", OUTPUT, repeated=False)
    ] = False
    out: Annotated[Path | None, OUT.but(help="Folder of the summary and of all incidents.")] = None
    json: Annotated[bool, JSON] = False

    def __post_init__(self) -> None:
        if self.budget_s > WEEK_S:
            raise UsageError(
                f"--budget {seconds_text(self.budget_s)} is more than a week.",
                hint="e.g. --budget 25m",
            )
