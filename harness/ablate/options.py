"""Options of an ablation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar

from mmrepro.base.common_options import DRY_RUN, FRESH, OUT, RELEASE, REPEAT
from mmrepro.base.options import WHAT, Option, names_of
from mmrepro.errors import UsageError
from mmrepro.run.options import RunCommand, SeveralRuns
from mmrepro.scenario import Factor, Scenario


@dataclass(frozen=True)
class AblateCommand(SeveralRuns):
    """Options of ``mmrepro ablate``; its ``run`` gets ``flips`` and ``out`` for each cell."""

    COMMAND: ClassVar[str] = "ablate"
    release: Annotated[str, RELEASE] = ""
    factors: Annotated[
        tuple[str, ...],
        Option(
            "--factors",
            "Only these factors, separated by commas; see mmrepro show SCENARIO.",
            WHAT,
            "FACTOR,…",
            read=names_of,
            write=",".join,
        ),
    ] = ()
    """Empty: all that the scenario declares."""
    repeat: Annotated[int, REPEAT.but(help="Number of runs of each cell.")] = 1
    threshold: Annotated[
        int,
        Option("--threshold", "Failing runs that make a cell fail.", WHAT, "N", least=1, most=1000),
    ] = 1
    fresh: Annotated[bool, FRESH] = False
    dry_run: Annotated[bool, DRY_RUN] = False
    out: Annotated[
        Path | None,
        OUT.but(help="Folder of the ablation; name it again to continue.", default="ablations/…"),
    ] = None

    def chosen(self, scenario: Scenario) -> tuple[Factor, ...]:
        """The factors, in the order in which the scenario declares them. Raises UsageError."""
        if not scenario.factors:
            raise UsageError(
                f"Scenario {scenario.full_name} declares no factors: there is nothing to ablate.",
                hint="mmrepro list",
            )
        if self.threshold > self.repeat:
            raise UsageError(
                f"--threshold {self.threshold} is more than --repeat {self.repeat}.",
                hint=f"mmrepro ablate {scenario.name} --repeat {self.threshold} "
                f"--threshold {self.threshold}",
            )
        wanted = {scenario.factor(name).name for name in self.factors}
        return tuple(f for f in scenario.factors if not wanted or f.name in wanted)

    def of_cell(self, flips: tuple[str, ...], out: Path | None = None) -> RunCommand:
        return replace(self.run, flips=flips, out=out)
