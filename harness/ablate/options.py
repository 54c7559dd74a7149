"""What the command line asks of an ablation."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from pathlib import Path

from mmrepro.errors import UsageError
from mmrepro.run.options import RunOptions, StartMode
from mmrepro.scenario import Factor, Scenario


@dataclass(frozen=True)
class AblateOptions:
    """Arguments of ``mmrepro ablate``.

    Attributes:
        run: of every cell; its ``flips`` and ``out`` are set for each.
        factors: names; empty: all that the scenario declares.
        repeat: runs of each cell.
        threshold: failing runs of a cell that make it fail.
        fresh: take nothing from the cache.
        where: words of the command that goes on with it: --ray, --jobs, --budget.
    """

    run: RunOptions
    factors: tuple[str, ...] = ()
    repeat: int = 1
    threshold: int = 1
    fresh: bool = False
    out: Path | None = None
    where: tuple[str, ...] = ()

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

    def of_cell(self, flips: tuple[str, ...], out: Path | None = None) -> RunOptions:
        return replace(self.run, flips=flips, out=out)

    def command(self, scenario: str, out: Path | None = None) -> str:
        """The command that repeats the ablation; with ``out``, the one that resumes it."""
        parts = ["mmrepro", "ablate", self.run.scenario or scenario]
        if self.run.variant:
            parts += ["--variant", self.run.variant]
        if self.run.release:
            parts += ["--release", self.run.release]
        if self.run.device != "auto":
            parts += ["--device", self.run.device]
        if self.run.start_mode is not StartMode.AUTO:
            parts += ["--start-mode", self.run.start_mode]
        parts += [f"--server-arg={arg}" for arg in self.run.server_args]
        if self.factors:
            parts += ["--factors", ",".join(self.factors)]
        if self.repeat > 1:
            parts += ["--repeat", str(self.repeat)]
        if self.threshold > 1:
            parts += ["--threshold", str(self.threshold)]
        if out is not None:
            parts += ["--out", str(out), *self.where]
        return shlex.join(parts)
