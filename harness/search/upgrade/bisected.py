"""Where a metric moved: at each point of a bisection it is compared with the good
end's."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mmrepro.base.errors import BadIncident, ExitCode, UsageError
from mmrepro.campaign import StartedRun, TrialOptions
from mmrepro.campaign.bisect import (
    CERTAIN_CHANGE,
    CLEAR_SIDE,
    NO_CHANGE,
    BisectCommand,
    Bisecting,
    Field,
    MeanChange,
    SearchOptions,
    SideFinding,
    ends_differ,
    is_step,
    mean_change,
)
from mmrepro.failure.documents import (
    UPGRADE_FILE,
    Attempt,
    Cell,
    Incident,
    Lost,
    Measured,
    Upgrade,
    load_document,
)
from mmrepro.failure.documents.searches import (
    Bisection,
    PointVerdict,
    Side,
    SideConclusion,
)
from mmrepro.failure.signature import Outcome
from mmrepro.runs import FEWEST, Metric
from mmrepro.scenario.registry import scenario_names
from mmrepro.search.replay.bisected import BisectingCase, CaseSubject, subject
from mmrepro.search.replay.known import server_wanted
from mmrepro.search.upgrade.options import UpgradeCommand
from mmrepro.traffic.capture import read_capture
from mmrepro.traffic.case import CASE_FILE

_END_RUNS = 3
"""Comparisons of the two ends, at most, until it is known whether they differ."""
_BUDGET = 12
"""Comparisons at most, once one of them has left it open."""
_STARTS = 100
"""Servers that one comparison starts, at most."""


def traffic(asked: BisectCommand) -> CaseSubject:
    """What is sent to each point. Raises UsageError: no such traffic, or no engine."""
    if (known := subject(asked.scenario)) is not None:
        return known
    if asked.scenario in scenario_names():
        raise UsageError(
            f"{asked.scenario} is a failure: a metric is measured under traffic.",
            hint=f"mmrepro bisect night.har --engine vllm --measure {asked.measure}",
        )

    if not asked.engine:
        raise UsageError(
            "--engine says which engine the traffic is played on.",
            hint=(
                f"mmrepro bisect {asked.scenario} --measure {asked.measure} --engine "
                "vllm"
            ),
        )

    place = Path(asked.scenario)
    named: dict[str, object] = {"engine": asked.engine}
    if asked.server_args:
        named["args"] = list(asked.server_args)
    captured = read_capture(place, server_wanted(place, None, named))
    return CaseSubject(place, captured.case, place.parent, contents=captured.contents)


@dataclass
class ByComparison:
    """Runs of a point, by ``mmrepro upgrade``, against ``good``.

    Attributes:
        good: the release of the good end.
        worse: the change that is to be told from none.
        server_args: what the user typed: a case file alone may not set all of it.
    """

    case: Path
    metric: Metric
    good: str
    worse: float
    server_args: tuple[str, ...] = ()
    file: str = UPGRADE_FILE
    starts: int = _STARTS

    def command(self, cell: Cell, options: TrialOptions) -> UpgradeCommand:
        share = f"{self.metric.relative(self.worse):.2%}"
        return UpgradeCommand(
            old=self.good,
            new=cell.release,
            traffic=self.case,
            server_args=self.server_args,
            only=self.metric.name,
            worse=(f"{self.metric.name}={share}",),
            device=cell.device,
            timeout_s=options.timeout_s,
            start_mode=options.start_mode,
            yes=True,
        )

    def outcome(self, folder: Path, code: int | None, words: str) -> dict[str, object]:
        """What the comparison in ``folder`` says of the metric."""
        try:
            made = load_document(folder, UPGRADE_FILE, Upgrade)
        except BadIncident:
            kind = Lost.USAGE if code == ExitCode.USAGE else Lost.INFRASTRUCTURE
            return {
                "lost": kind,
                "error": words or f"mmrepro upgrade ended with {code}",
            }

        name = self.metric.name
        changes = [
            b.changes[name] for b in made.blocks if not b.error and name in b.changes
        ]
        # An interval needs some blocks; fewer would call noise a step.
        if len(changes) < FEWEST:
            why = next((b.error for b in made.blocks if b.error), made.failure or words)
            why = why or f"{self.metric.words} was not measured"
            return {"lost": Lost.INFRASTRUCTURE, "error": why}

        sign = 1 if self.metric.worse == "higher" else -1
        measured = Measured(
            metric=name,
            change=sign * statistics.fmean(changes),
            error=statistics.stdev(changes) / math.sqrt(len(changes)),
            blocks=len(changes),
        )
        moved = measured.change > self.worse / 2
        return {
            "outcome": Outcome.REPRODUCED if moved else Outcome.NOT_REPRODUCED,
            "measured": measured,
            "explanation": (
                f"{self.metric.words}: {measured.change:+.2%}, {len(changes)} blocks"
            ),
        }


class BisectingMetric(BisectingCase):
    """A bisection of a metric: its runs are comparisons with the good end."""

    options: BisectCommand

    def __init__(
        self,
        subject: CaseSubject,
        options: BisectCommand,
        field: Field,
        *,
        write: Callable[[Bisection, Path], object],
    ) -> None:
        self.metric = options.metric
        self._moved: MeanChange | None = None
        self._why, self._untold = "", False
        """Why there is nothing to search for; whether it could not be told."""
        super().__init__(subject, options, field, write=write)
        self.document.measure = self.metric.name
        self.good = field.far(options.directions[0])
        if self.good == field.bad:
            raise UsageError(
                "The two ends are the same.", hint="--good RELEASE --bad RELEASE"
            )

    def prepare(self, folder: Path) -> ByComparison:
        self.subject.write(folder)
        options = self.options
        return ByComparison(
            folder / CASE_FILE,
            self.metric,
            "",
            options.worse_by,
            tuple(options.server_args),
        )

    def search_options(self) -> SearchOptions:
        options = self.options
        return SearchOptions(
            options.confidence,
            options.repeat,
            options.linear,
            budget=_BUDGET,
            always=True,
        )

    # ------------------------------------------------------------------ the search

    def _start(self) -> None:
        """Both ends first."""
        if why := self._read(self.good):
            raise UsageError(f"The good end cannot be read: {why}")
        bad, points = self.field.bad, self.field.points
        self._fetching(self.good, there=self._is_there(self.good))
        self.making.good = points[self.good].release
        points[self.good].verdict = PointVerdict.GOOD
        points[self.good].why = "all others are compared with it"
        self._board.odds[self.good] = -CERTAIN_CHANGE
        self._board.runs[self.good] = [PointVerdict.GOOD] * 2
        self._bad = self._ends(bad)
        self.document.known_bad = points[bad].name if self._bad is not None else ""
        self._started = True

    def _ends(self, bad: int) -> int | None:
        name, good = self._board.names[bad], self._board.names[self.good]
        self._why, self._untold = f"{name} cannot be measured against {good}", True
        for _ in range(_END_RUNS):
            self._board.run(bad)
            if (moved := mean_change(self.field.points[bad].runs)) is None:
                continue
            apart = ends_differ(moved, self.options.worse_by)
            self._why = (
                f"{self.metric.words} of {name} against {good}: "
                f"{moved.words(self.metric)}"
            )
            if apart:
                self._moved = moved
                # What a probe has to tell apart is known from here on.
                self.making.worse = max(moved.mean / 2, self.options.worse_by / 2)
                self._weighed(bad)
                return bad

            if apart is False:
                self._why += f": it did not move by {self.options.worse} to the worse"
                self._untold = False
                return None

        self._why += "; this machine is too noisy to tell"
        return None

    def _oracle(self, number: int) -> PointVerdict:
        if number == self.good:
            return PointVerdict.GOOD
        verdict = super()._oracle(number)
        odds = self._board.odds.get(number)
        if odds is None or verdict is PointVerdict.UNTESTABLE:
            return verdict
        return PointVerdict.BAD if odds > 0 else PointVerdict.GOOD

    def _note(self, number: int, attempt: Attempt) -> None:
        super()._note(number, attempt)
        self._weighed(number)

    def _weighed(self, number: int) -> None:
        """What all runs of a point tell together."""
        point = self.field.points[number]
        if (weighed := mean_change(point.runs)) is None:
            return
        point.why = f"{self.metric.words}: {weighed.words(self.metric)}"
        if self._moved is None:
            return
        odds = self._board.odds[number] = weighed.odds(self._moved)
        point.verdict = PointVerdict.BAD if odds > 0 else PointVerdict.GOOD
        if abs(odds) < CLEAR_SIDE:
            point.verdict = PointVerdict.BOTH

    def adjust(self, side: Side, finding: SideFinding | None) -> None:
        """In the words of a metric."""
        if self._moved is None:
            side.explanation = self._why
            if self._untold:
                side.conclusion = SideConclusion.INCONCLUSIVE
            return

        if finding is None or finding.bad is None or finding.beyond is None:
            return
        after, before = self._reading(finding.bad), self._reading(finding.beyond)
        names = self._board.names
        if finding.conclusion is SideConclusion.FOUND:
            changed = max(finding.bad, finding.beyond)
            side.explanation = (
                f"{self.metric.words} moved in {names[changed]}: against "
                f"{names[self.good]} it is "
                f"{after.words(self.metric)} in {names[finding.bad]}, and "
                f"{before.words(self.metric)} in {names[finding.beyond]}"
            )

        if not is_step(self._moved, before, after):
            step = self.metric.relative(after.mean - before.mean)
            whole = self.metric.relative(self._moved.mean)
            side.notes.append(
                f"it creeps, or moved in several steps: this one is {step:+.1%} of "
                f"{whole:+.1%} between the ends, and the boundary is where half of "
                "that has come"
            )

    def _reading(self, number: int) -> MeanChange:
        known = mean_change(self.field.points[number].runs)
        return NO_CHANGE if known is None or number == self.good else known

    # ------------------------------------------------------------------ a run

    def attempt(self, want: StartedRun) -> Attempt:
        return Bisecting.attempt(self, want)

    def incident(self, attempt: Attempt) -> Incident | None:
        return None
