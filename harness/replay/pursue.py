"""One failure from its first sighting to a finding: shrunk, confirmed as it is left, named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mmrepro.case.files import read_contents, write_case
from mmrepro.case.model import CASE_FILE, Case
from mmrepro.incident.replay import Finding, FindingClass, Rate, Sighting
from mmrepro.replay.confirm import Candidates, confirmed, decided
from mmrepro.replay.known import Naming
from mmrepro.replay.plays import Looker, Plays, Wanted
from mmrepro.replay.rate import luck, rate_of, repeats
from mmrepro.replay.seen import Named, Seen
from mmrepro.replay.shrink import Shrinking, Spent

LOUD = frozenset(
    {
        FindingClass.START_FAILURE,
        FindingClass.DEATH,
        FindingClass.HANG,
        FindingClass.SERVER_ERROR,
    }
)
CANDIDATES = 20
"""Of a shrinking, about: each may be wrong about a failure that comes and goes."""
MOST_REPEATS = 8


@dataclass(frozen=True)
class Start:
    """Where the search for one failure begins: a case that showed it, and how often."""

    bucket: str
    case: Case
    seen: Seen
    rate: Rate
    before: int
    limits: tuple[str, ...] = ()
    simpler: bool = True
    """Whether requests may be changed, and not only left out."""


@dataclass
class Pursuit:
    """Makes findings of failures.

    Attributes:
        folder: the replay's; each finding has one of its own below it.
        repeat: plays that confirm what is left.
        look: makes who looks at the server of a confirming play.
        grew: told whenever a finding has more to say.
    """

    plays: Plays
    folder: Path
    repeat: int
    jobs: int
    shrink: bool
    grew: Callable[[Finding], None]
    look: Callable[[str, float], Looker] = Naming

    def pursue(self, start: Start, id: str, reserve: int = 0) -> tuple[Finding, Case, Named | None]:
        """The finding, what is left of the case, and its name. ``reserve``: starts that are not
        this one's."""
        sighting = start.seen.sighting(start.bucket)
        assert sighting is not None
        finding = Finding(
            id=id,
            finding_class=sighting.finding_class,
            bucket=start.bucket,
            said=sighting.said,
            expected=sighting.expected,
            rate=start.rate,
            confirmed=confirmed(start.rate, self.repeat),
            requests=len(start.case.operations),
            requests_before=start.before,
            folder=id,
            case_file=f"{id}/{CASE_FILE}",
            server=start.case.server,
            limits=list(start.limits),
        )
        self.plays.silent = sighting.finding_class not in LOUD
        spent = self.plays.left
        case, seen = start.case, start.seen
        self._keep(finding, case, seen)
        if self.shrink:
            case, seen = self._shrunk(finding, start, reserve)
        else:
            finding.limits.append("not shrunk: --no-shrink")
        named = self._confirm(finding, start, case, seen)
        finding.starts += spent - self.plays.left
        self.grew(finding)
        return finding, case, named

    # ------------------------------------------------------------------ shrinking

    def _shrunk(self, finding: Finding, start: Start, reserve: int) -> tuple[Case, Seen]:
        rate = start.rate.failed / max(1, start.rate.plays)
        most = max(2, min(MOST_REPEATS, self.plays.left // CANDIDATES))
        test = Candidates(
            self.plays,
            lambda seen: seen.has(start.bucket),
            repeats=repeats(rate, CANDIDATES, most),
            reserve=reserve + self.repeat,
            jobs=self.jobs,
        )

        def failing(seen: Seen) -> list[str]:
            found = seen.sighting(start.bucket)
            return found.operations if found else []

        def grew() -> None:
            finding.steps = shrinking.steps
            if finding.requests != len(shrinking.case.operations) or shrinking.steps[-1].kept:
                self._keep(finding, shrinking.case, shrinking.seen)
            self.grew(finding)

        shrinking = Shrinking(
            start.case, start.seen, test, failing, grew=grew, simpler=start.simpler
        )
        shrinking.run()
        finding.shrunk = shrinking.minimal
        finding.needed = [*shrinking.needed.values(), *shrinking.needed_options.values()]
        finding.limits += [f"not tried: {what} (--budget)" for what in shrinking.not_tried]
        if test.repeats > 1 or rate < 1:
            chance = luck(rate, test.repeats)
            finding.limits.append(
                f"it comes and goes: a smaller case that shows nothing in {test.repeats} plays, "
                f"though it fails {rate:.0%} of the time, is taken for sound in {chance:.1%} of "
                "the cases; more may be left than is needed"
            )
        return shrinking.case, shrinking.seen

    # ------------------------------------------------------------------ confirming what is left

    def _confirm(self, finding: Finding, start: Start, case: Case, seen: Seen) -> Named | None:
        """Plays what is left on fresh servers, with whole deadlines, and looks at one of them."""
        plays: list[Seen] = []
        try:
            while not decided(sum(p.has(start.bucket) for p in plays), len(plays), self.repeat):
                known = any(p.named for p in plays)
                look = None if known else self.look(start.bucket, self._deadline)
                what = f"{finding.id}: what is left, on a fresh server"
                plays.append(self.plays.play(Wanted(case, "look", len(plays) + 1, what), look))
        except Spent:
            finding.limits.append(
                f"what is left was played {len(plays)} times, not {self.repeat}: --budget"
            )
        failing = [p for p in plays if p.has(start.bucket)]
        named = next((p.named for p in plays if p.named), None)
        self._keep(finding, case, failing[-1] if failing else seen)
        if plays and not failing:
            finding.limits.append(
                f"what is left did not fail in {len(plays)} plays with the whole deadline: the "
                "rate is that of the case before it was shrunk"
            )
            finding.shrunk = finding.confirmed = False
        elif plays:
            finding.rate = rate_of(len(failing), len(plays))
            finding.confirmed = confirmed(finding.rate, self.repeat)
        if named is not None:
            finding.known, finding.known_variant = named.known, named.variant
            finding.known_why = named.why
            looked = next(p for p in plays if p.named)
            finding.diagnosis = f"{looked.folder}/{named.diagnosis}" if named.diagnosis else ""
        return named

    @property
    def _deadline(self) -> float:
        return self.plays.deadlines.answer_s if self.plays.deadlines else 0.0

    def _keep(self, finding: Finding, case: Case, seen: Seen) -> None:
        """What is shown of it is of ``case`` and its play; the case is on disk."""
        sighting = seen.sighting(finding.bucket)
        if sighting is not None:
            show(finding, sighting)
        finding.requests, finding.server = len(case.operations), case.server
        finding.observed = {op.id: seen.observed.get(op.id, "") for op in case.operations}
        finding.stack, finding.log_lines = seen.stack, seen.log_lines
        write_case(case, self.folder / finding.folder, read_contents(case, self.folder))


def show(finding: Finding, sighting: Sighting) -> None:
    finding.said, finding.expected = sighting.said, sighting.expected
    finding.expectations, finding.operations = sighting.expectations, sighting.operations
