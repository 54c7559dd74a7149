"""Options of a bisection."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from mmrepro.base import common_options as common
from mmrepro.base.errors import UsageError
from mmrepro.base.options import LIMITS, option
from mmrepro.campaign.bisect.search import Direction
from mmrepro.failure.documents.searches import By, Find
from mmrepro.runs.options import SeveralRuns


def read_repeat(text: str) -> int | None:
    if text == "auto":
        return None
    if not text.isdecimal() or not 1 <= int(text) <= 1000:
        raise UsageError(f"--repeat {text} is neither auto nor a number from 1 to 1000.")
    return int(text)


@dataclass(frozen=True)
class BisectCommand(SeveralRuns):
    """Options of ``mmrepro bisect``; its ``run`` gets a release or commit for each point."""

    COMMAND: ClassVar[str] = "bisect"
    find: Find = option("both", "Where the failure came in, where it was fixed, or both.")
    good: str = option("", "Search no further than this one.", "VERSION")
    bad: str = option("", "Start from this one.", "VERSION", shown="the scenario's release")
    by: By = option("release", "Releases of the package index, or a list of commits.")
    commits: Path | None = option(
        None, "Lines SHA [DATE] [SUBJECT], as git log prints them.", "FILE"
    )
    index: str = common.INDEX("")
    mitigations: tuple[str, ...] = common.MITIGATION(())
    options: tuple[str, ...] = common.OPTION(())
    repeat: int | None = common.REPEAT(
        None,
        help="Number of runs of each point; auto: as many as it needs.",
        metavar="auto|N",
        shown="auto",
        read=read_repeat,
    )
    confidence: float = option(
        0.95, "How sure a boundary must be where runs contradict each other.", "PROBABILITY"
    )
    linear: bool = option(False, "Try the points one after another.", group=LIMITS)
    keep_environments: bool = option(
        False,
        "Keep the environments that were fetched for this.",
        group=LIMITS,
        name="--keep-environments/--no-keep-environments",
    )
    resume: bool = common.RESUME(False, help="Continue what is in --out; no run is repeated.")
    out: Path | None = common.OUT(None, shown="bisections/…")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.resume and self.out is None:
            raise UsageError("--resume needs the folder to go on with.", hint="--resume --out DIR")
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
        return ("introduced", "fixed") if self.find == "both" else (self.find,)
