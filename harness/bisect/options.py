"""What the command line asks of a bisection."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from mmrepro.bisect.search import Direction
from mmrepro.errors import UsageError
from mmrepro.incident.bisection import By, Find
from mmrepro.run.options import RunOptions, StartMode


@dataclass(frozen=True)
class BisectOptions:
    """Arguments of ``mmrepro bisect``.

    Attributes:
        run: of every point; its ``release``, ``commit`` and ``out`` are set for each.
        good, bad: points that are said to be so; empty: by the scenario.
        commits: file with the list of commits.
        repeat: runs of each point; None: as many as it needs.
        out: the bisection's folder; an existing one is gone on with only if ``resume``.
        where: words of the command that goes on with it: --ray, --jobs, --budget.
    """

    run: RunOptions
    find: Find = "both"
    by: By = "release"
    good: str = ""
    bad: str = ""
    commits: Path | None = None
    repeat: int | None = None
    confidence: float = 0.95
    linear: bool = False
    keep_environments: bool = False
    resume: bool = False
    out: Path | None = None
    where: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0.5 <= self.confidence < 1:
            raise UsageError(
                f"--confidence {self.confidence:g} is not a probability from 0.5 to below 1.",
                hint="--confidence 0.95",
            )
        if self.by == "commit" and self.commits is None:
            raise UsageError(
                "--by commit needs the list of commits.",
                hint="git log --format='%H %cI %s' GOOD..BAD > commits.txt, then: --commits "
                "commits.txt",
            )
        if self.by == "release" and self.commits is not None:
            raise UsageError("--commits is for --by commit.", hint="add --by commit")

    @property
    def directions(self) -> tuple[Direction, ...]:
        """The sides that are looked at, in their order."""
        return ("introduced", "fixed") if self.find == "both" else (self.find,)

    def command(self, scenario: str, out: Path | None = None) -> str:
        """The command that repeats the bisection; with ``out``, the one that goes on with it.

        The address of the commits' index is not in it: it may hold a password.
        """
        run = self.run
        parts = ["mmrepro", "bisect", run.scenario or scenario, "--find", self.find]
        if run.variant:
            parts += ["--variant", run.variant]
        if run.device != "auto":
            parts += ["--device", run.device]
        if run.start_mode is not StartMode.AUTO:
            parts += ["--start-mode", run.start_mode]
        parts += [f"--server-arg={arg}" for arg in run.server_args]
        for name in run.mitigations:
            parts += ["--mitigation", name]
        for option in run.options:
            parts += ["--option", option]
        for name, value in (("--good", self.good), ("--bad", self.bad)):
            parts += [name, value] if value else []
        if self.by != "release":
            parts += ["--by", self.by]
        if self.commits is not None:
            parts += ["--commits", str(self.commits)]
        if self.repeat is not None:
            parts += ["--repeat", str(self.repeat)]
        if self.confidence != 0.95:
            parts += ["--confidence", f"{self.confidence:g}"]
        parts += ["--linear"] if self.linear else []
        parts += ["--keep-environments"] if self.keep_environments else []
        if out is not None:
            parts += ["--out", str(out), "--resume", *self.where]
        return shlex.join(parts)
