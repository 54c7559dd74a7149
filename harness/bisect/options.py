"""Options of a bisection."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from mmrepro.base.common_options import (
    DRY_RUN,
    INDEX,
    MITIGATION,
    OPTION,
    OUT,
    REPEAT,
    RESUME,
)
from mmrepro.base.options import LIMITS, WHAT, Option
from mmrepro.bisect.search import Direction
from mmrepro.errors import UsageError
from mmrepro.incident.bisection import By, Find
from mmrepro.run.options import SeveralRuns


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
    find: Annotated[
        Find, Option("--find", "Where the failure came in, where it was fixed, or both.", WHAT)
    ] = "both"
    good: Annotated[str, Option("--good", "Search no further than this one.", WHAT, "VERSION")] = ""
    bad: Annotated[
        str,
        Option("--bad", "Start from this one.", WHAT, "VERSION", default="the scenario's release"),
    ] = ""
    by: Annotated[
        By, Option("--by", "Releases of the package index, or a list of commits.", WHAT)
    ] = "release"
    commits: Annotated[
        Path | None,
        Option("--commits", "Lines SHA [DATE] [SUBJECT], as git log prints them.", WHAT, "FILE"),
    ] = None
    index: Annotated[str, INDEX] = ""
    mitigations: Annotated[tuple[str, ...], MITIGATION] = ()
    options: Annotated[tuple[str, ...], OPTION] = ()
    repeat: Annotated[
        int | None,
        REPEAT.but(
            help="Number of runs of each point; auto: as many as it needs.",
            metavar="auto|N",
            default="auto",
            read=read_repeat,
        ),
    ] = None
    confidence: Annotated[
        float,
        Option(
            "--confidence",
            "How sure a boundary must be where runs contradict each other.",
            WHAT,
            "PROBABILITY",
        ),
    ] = 0.95
    linear: Annotated[bool, Option("--linear", "Try the points one after another.", LIMITS)] = False
    keep_environments: Annotated[
        bool,
        Option(
            "--keep-environments/--no-keep-environments",
            "Keep the environments that were fetched for this.",
            LIMITS,
        ),
    ] = False
    resume: Annotated[bool, RESUME.but(help="Continue what is in --out; no run is repeated.")] = (
        False
    )
    dry_run: Annotated[bool, DRY_RUN] = False
    out: Annotated[
        Path | None, OUT.but(help="Folder of the bisection.", default="bisections/…")
    ] = None

    def __post_init__(self) -> None:
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
        """The sides that are looked at, in their order."""
        return ("introduced", "fixed") if self.find == "both" else (self.find,)
