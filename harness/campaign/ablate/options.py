"""Options of an ablation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from mmrepro.base import common_options as common
from mmrepro.base.errors import UsageError
from mmrepro.base.options import names_of, option
from mmrepro.runs import RunCommand, SeveralRuns
from mmrepro.scenario import Factor, Scenario


@dataclass(frozen=True)
class AblateCommand(SeveralRuns):
    """Options of ``mmrepro ablate``; its ``run`` gets ``flips`` and ``out`` for each
    cell."""

    COMMAND: ClassVar[str] = "ablate"
    DOCUMENTS: ClassVar[tuple[str, ...]] = (
        "mmrepro.failure.documents.searches:Ablation",
        "ablation-plan=mmrepro.campaign.ablate.session:AblationPlan",
    )
    release: str = common.RELEASE("")
    tree: str = common.SOURCE("")
    kernels: str = common.KERNELS("")
    factors: tuple[str, ...] = option(
        (),
        "Only these factors, separated by commas; see mmrepro show SCENARIO.",
        "FACTOR,…",
        read=names_of,
        write=",".join,
    )
    """Empty: all that the scenario declares."""
    repeat: int = common.REPEAT(1, help="Number of runs of each cell.")
    threshold: int = option(
        1, "Failing runs that make a cell fail.", "N", least=1, most=1000
    )
    fresh: bool = common.FRESH(False)
    out: Path | None = common.OUT(
        None,
        help="Folder of the results; name it again to continue.",
        shown="ablations/…",
    )

    def chosen(self, scenario: Scenario) -> tuple[Factor, ...]:
        """The factors, in the order in which the scenario declares them. Raises
        UsageError."""
        if not scenario.factors:
            raise UsageError(
                (
                    f"Scenario {scenario.full_name} declares no factors: there is "
                    "nothing to ablate."
                ),
                hint="mmrepro show SCENARIO counts its factors; ghost-key-eviction "
                "has some",
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
