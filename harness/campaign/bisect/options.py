"""Options of a bisection."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from mmrepro.base import common_options as common
from mmrepro.base.errors import UsageError
from mmrepro.base.options import LIMITS, Command, Option, option
from mmrepro.campaign.bisect.search import Direction
from mmrepro.failure.documents.searches import By, Find
from mmrepro.runs import (
    METRICS,
    Metric,
    ScenarioCommand,
    SeveralRuns,
    metric_of,
    thresholds,
)

TEST = Option(
    "In place of a scenario: a test of the engine's own tree, as pytest names it, run in "
    "a box. Needs --source.",
    "TEST",
    name="--test",
)
TEST_FROM = Option(
    "With --test: the revision of which the test's file is taken.",
    "REV",
    name="--test-from",
)


def _read_repeat(text: str) -> int | None:
    if text == "auto":
        return None
    if not text.isdecimal() or not 1 <= int(text) <= 1000:
        raise UsageError(
            f"--repeat {text} is neither auto nor a number from 1 to 1000."
        )

    return int(text)


@dataclass(frozen=True)
class BisectCommand(SeveralRuns):
    """Options of ``mmrepro bisect``; its ``run`` gets a release or commit for each
    point."""

    COMMAND: ClassVar[str] = "bisect"
    DOCUMENTS: ClassVar[tuple[str, ...]] = (
        "mmrepro.failure.documents.searches:Bisection",
        "bisection-plan=mmrepro.campaign.bisect.plan:BisectionPlan",
    )
    scenario: str = common.SCENARIO("", required=False)
    test: tuple[str, ...] = TEST(())
    newer: str = TEST_FROM("", shown="the newer end of the search")
    find: Find = option(
        "both", "Where the failure came in, where it was fixed, or both."
    )
    good: str = option("", "Search no further than this one.", "VERSION|REV")
    bad: str = option(
        "", "Start from this one.", "VERSION|REV", shown="the scenario's release"
    )
    measure: str = option(
        "",
        "In place of a failure: where this metric moved, under the traffic of a case, "
        f"a recording or a profile. {', '.join(METRICS)}.",
        "METRIC",
    )
    worse: str = option("5%", "The change to the worse that is looked for.", "PERCENT")
    engine: str = common.ENGINE_NAME("", help="Engine, for traffic that is no case.")
    by: By = option(
        "release",
        (
            "Releases of the package index, or commits: of a clone (--source), or of "
            "a list."
        ),
        shown="commit with --source, else release",
    )
    clone: Path | None = common.SOURCE(
        None,
        help="A git clone of the engine: the commits of its --first-parent line, each "
        "as Python over the compiled files of a release. After --: only commits that "
        "change these paths.",
        metavar="DIR[@A..B]",
    )
    over: str = common.KERNELS("", name="--kernels")
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
        read=_read_repeat,
    )
    confidence: float = option(
        0.95,
        "How sure a boundary must be where runs contradict each other.",
        "PROBABILITY",
    )
    linear: bool = option(False, "Try the points one after another.", group=LIMITS)
    keep_environments: bool = option(
        False,
        "Keep the environments that were fetched for this.",
        group=LIMITS,
        name="--keep-environments/--no-keep-environments",
    )
    resume: bool = common.RESUME(
        False, help="Continue what is in --out; no run is repeated."
    )
    out: Path | None = common.OUT(None, shown="bisections/…")
    child: tuple[str, ...] = ()
    """What follows --: paths."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.resume and self.out is None:
            raise UsageError(
                "--resume needs the folder to go on with.", hint="--resume --out DIR"
            )
        if self.measure:
            self._check_measure()
        elif self.engine:
            raise UsageError(
                "--engine is for the traffic of --measure.", hint="--measure tpot"
            )

        if not 0.5 <= self.confidence < 1:
            raise UsageError(
                (
                    f"--confidence {self.confidence:g} is not a probability from 0.5 "
                    "to below 1."
                ),
                hint="--confidence 0.95",
            )
        if self.test and self.clone is None:
            raise UsageError(
                "--test is a test of a tree.",
                hint="--source DIR, a git clone of the engine",
            )
        if self.clone is not None:
            self._take_range(self.clone)
            if self.commits is not None:
                raise UsageError(
                    "--source and --commits both say which commits: give one of them."
                )
            if self.ray:
                raise UsageError(
                    "The trees of --source are read on this machine, without --ray."
                )

            object.__setattr__(self, "by", "commit")
        elif self.child:
            raise UsageError(
                "Paths after -- are for --source DIR.", hint="--source DIR -- PATH"
            )

        if self.by == "commit" and self.commits is None and self.clone is None:
            raise UsageError(
                "--by commit needs the commits: a clone, or a list of them.",
                hint="--source DIR; or git log --format='%H %cI %s' GOOD..BAD > "
                "commits.txt, then: --commits commits.txt",
            )
        if self.by == "release" and self.commits is not None:
            raise UsageError("--commits is for --by commit.", hint="add --by commit")

    @property
    def metric(self) -> Metric:
        return metric_of(self.measure, f"--measure {self.measure}")

    @property
    def worse_by(self) -> float:
        """As a change of the metric. Raises UsageError: it is no share, or there is no
        metric."""
        return self.metric.limit(
            thresholds([f"{self.measure}={self.worse}"])[self.measure]
        )

    def _take_range(self, clone: Path) -> None:
        """Read ``DIR@A..B`` as the clone, its older and its newer commit.

        Raises:
            UsageError: one of the two ends is given by an option as well; or which end
                has the failure is not said.
        """
        place, _, span = str(clone).rpartition("@")
        if clone.exists() or not place or ".." not in span:
            return
        older, _, newer = span.partition("..")
        if self.good or self.bad:
            raise UsageError(
                f"--source {clone} names both ends: --good and --bad do as well.",
                hint=f"--source {place}, with --good and --bad",
            )
        if self.find == "both":
            raise UsageError(
                f"Which end of {span} has the failure?",
                hint="--find introduced, where the newer one has it, or --find fixed",
            )
        ends = {"introduced": (older, newer), "fixed": (newer, older)}
        good, bad = ends[self.find]
        object.__setattr__(self, "clone", Path(place))
        object.__setattr__(self, "good", good)
        object.__setattr__(self, "bad", bad)

    def _check_measure(self) -> None:
        _ = self.worse_by
        if self.find == "both":
            object.__setattr__(self, "find", "introduced")
        if (self.jobs or 1) > 1 or self.ray:
            raise UsageError(
                (
                    "--measure runs by itself: whatever else runs on the machine "
                    "would be measured."
                ),
                hint="leave --jobs and --ray out",
            )

    def argv(self, **changed: Any) -> list[str]:
        words = super().argv(**changed)
        return [*words, *(["--", *self.child] if self.child or "--" in words else [])]

    @property
    def directions(self) -> tuple[Direction, ...]:
        return ("introduced", "fixed") if self.find == "both" else (self.find,)


@dataclass(frozen=True)
class BisectRunCommand(ScenarioCommand):
    """Options of ``mmrepro bisect-run``: one tree, one verdict."""

    COMMAND: ClassVar[str] = "bisect-run"
    DOCUMENTS: ClassVar[tuple[str, ...]] = (
        "bisect-run=mmrepro.campaign.bisect.once:Tested",
    )
    scenario: str = common.SCENARIO("", required=False)
    test: tuple[str, ...] = TEST(())
    newer: str = TEST_FROM("", shown="the tree's own")
    source: str = common.SOURCE(".", help="The tree that is tested.")
    over: str = common.KERNELS("", name="--kernels")
    find: Literal["", "introduced", "fixed"] = option(
        "",
        "Which change is searched for; fixed swaps the exit codes 0 and 1.",
        shown="introduced; fixed where git bisect's term for the new is fixed",
    )
    mitigations: tuple[str, ...] = common.MITIGATION(())
    options: tuple[str, ...] = common.OPTION(())
    repeat: int = common.REPEAT(
        1, help="Number of runs; one that shows the failure is enough."
    )
    keep_environments: bool = option(
        False,
        "Keep the environment that was made for this tree.",
        group=LIMITS,
        name="--keep-environments/--no-keep-environments",
    )
    out: Path | None = common.OUT(None, shown="nothing is kept")


@dataclass(frozen=True)
class TreeTestCommand(Command):
    """Options of ``mmrepro test-tree``."""

    COMMAND: ClassVar[str] = "test-tree"
    DOCUMENTS: ClassVar[tuple[str, ...]] = ("mmrepro.runs.tree_tests:UpstreamRun",)
    tests: tuple[str, ...] = option(
        (),
        "Tests of the tree, as pytest names them: tests/x/test_y.py::test_z.",
        "TEST…",
        argument=True,
        required=True,
    )
    tree: str = common.SOURCE(".", help="The git clone, or one of its revisions.")
    kernels: str = common.KERNELS("")
    newer: str = option(
        "",
        "Take the files of the tests from this revision: an older tree lacks a test "
        "that came with its fix.",
        "REV",
        name="--test-from",
    )
    release: str = common.RELEASE("", help="A tree that was read before.")
    device: str = common.DEVICE("auto")
    timeout_s: float = common.TIMEOUT(300.0)
    json: bool = common.JSON(False)
    out: Path | None = common.OUT(None, shown="nothing is kept")
