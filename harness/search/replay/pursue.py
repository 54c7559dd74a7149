"""One failure from its first sighting to a finding: shrunk, confirmed as it is left,
named."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mmrepro.base.errors import UsageError
from mmrepro.base.machine import write_file
from mmrepro.base.records import FindingClass
from mmrepro.campaign import Spent
from mmrepro.failure.documents.replay import PUBLIC_DIR, Finding, Rate, Sighting, Step
from mmrepro.search.oracle.judge import grows
from mmrepro.search.oracle.judged import alike
from mmrepro.search.replay.attempts import Attempts
from mmrepro.search.replay.confirm import (
    MOST,
    Candidates,
    decided,
    luck,
    rate_of,
    repeats,
)
from mmrepro.search.replay.known import resembling, upstream_of
from mmrepro.search.replay.shrink import Shrinking
from mmrepro.search.replay.store import BLOCKS, AttemptWanted, Named, Observation
from mmrepro.traffic.capture.anonymise import anonymise
from mmrepro.traffic.capture.messages import Captured
from mmrepro.traffic.case import CASE_FILE, IMAGES_DIR, Case, read_contents, write_case

FATAL = frozenset(
    {
        FindingClass.START_FAILURE,
        FindingClass.DEATH,
        FindingClass.HANG,
        FindingClass.FAILING,
    }
)
"""After which the server does nothing more."""
LOUD = FATAL | {FindingClass.SERVER_ERROR}
_CANDIDATES = 20
"""Of a shrinking, about: each may be wrong about a failure that comes and goes."""
_MOST_REPEATS = 8
_OF_RATE = 8
"""Plays of what is left, at least, where it comes and goes."""


@dataclass(frozen=True)
class Start:
    """Where the search for one failure begins: a case that showed it, and how often."""

    bucket: str
    case: Case
    seen: Observation
    rate: Rate
    before: int
    limits: tuple[str, ...] = ()
    simpler: bool = True
    """Whether requests may be changed, and not only left out."""


@dataclass
class Pursuit:
    """Makes findings of failures. ``repeat``: attempts that confirm what is left;
    ``brief``: and no more of them for how often it shows."""

    plays: Attempts
    repeat: int
    shrink: bool
    brief: bool = False
    _repeats: int = 1

    @property
    def folder(self) -> Path:
        """The replay's; each finding has one of its own below it."""
        return self.plays.folder

    def pursue(
        self, start: Start, id: str, reserve: int = 0
    ) -> tuple[Finding, Case, Named | None]:
        """The finding, what is left of the case, and its name. ``reserve``: starts that
        are not this one's."""
        sighting = start.seen.sighting(start.bucket)
        assert sighting is not None
        finding = Finding(
            id=id,
            finding_class=sighting.finding_class,
            bucket=start.bucket,
            said=sighting.said,
            expected=sighting.expected,
            rate=start.rate,
            confirmed=start.rate.failed >= self.repeat,
            requests=len(start.case.operations),
            requests_before=start.before,
            folder=id,
            case_file=f"{id}/{CASE_FILE}",
            server=start.case.server,
            limits=list(start.limits),
        )
        self.plays.silent = sighting.finding_class not in LOUD
        if not grows(start.bucket):
            self.plays.blocks = 0
        elif not self.plays.blocks:
            self.plays.blocks = BLOCKS

        begun = len(self.plays.facts)
        case, seen, named = start.case, start.seen, None
        self._keep(finding, case, seen)
        if not self.shrink:
            finding.limits.append("not shrunk: --no-shrink")
            case, named = self._confirm(finding, start, case, seen)
        while self.shrink:
            rate = _share(finding.rate)
            case, seen = self._shrunk(finding, start, case, seen, reserve)
            case, named = self._confirm(finding, start, case, seen)
            if rate < 1 or _share(finding.rate) in (0, 1):
                break
            # It seemed to fail each time, and what was left out on that ground may not
            # be all.
            if self.plays.left - reserve < _CANDIDATES:
                break

        mine = self.plays.facts[begun:]
        finding.starts = len(mine)
        finding.seconds = round(sum(facts.seconds for facts in mine), 2)
        self.plays.grew(finding)
        return finding, case, named

    # ------------------------------------------------------------------ shrinking

    def _shrunk(
        self,
        finding: Finding,
        start: Start,
        case: Case,
        seen: Observation,
        reserve: int,
    ) -> tuple[Case, Observation]:
        rate = _share(finding.rate)
        # What comes and goes takes several plays a candidate: as many as the budget
        # bears.
        most = max(2, min(_MOST_REPEATS, self.plays.left // _CANDIDATES))
        test = Candidates(
            self.plays,
            lambda seen: seen.has(start.bucket),
            repeats=repeats(rate, _CANDIDATES, most),
            reserve=reserve + self.repeat,
            jobs=self.plays.search.at_once,
        )
        before = finding.steps

        def failing(seen: Observation) -> list[str]:
            sighting = seen.sighting(start.bucket)
            return sighting.operations if sighting else []

        def grew() -> None:
            finding.steps = [*before, *shrinking.steps]
            if shrinking.steps[-1].kept:
                self._keep(finding, shrinking.case, shrinking.seen)
            self.plays.grew(finding)

        shrinking = Shrinking(
            case,
            seen,
            test,
            failing,
            grew=grew,
            simpler=start.simpler,
            plainer=rate >= 1,
        )
        shrinking.run()
        finding.shrunk = shrinking.minimal
        finding.needed = [
            *shrinking.needed.values(),
            *shrinking.needed_options.values(),
        ]
        finding.limits = list(start.limits)
        for what in shrinking.not_tried:
            finding.limits.append(f"not tried: {what} (--budget)")
        if not shrinking.plainer:
            finding.limits.append(
                "the server's options are all kept: the whole case came and went"
            )

        self._repeats = test.repeats
        return shrinking.case, shrinking.seen

    # ---------------------------------------------------------- confirming what is left

    def _confirm(
        self, finding: Finding, start: Start, case: Case, seen: Observation
    ) -> tuple[Case, Named | None]:
        """Play what is left on fresh servers, with whole deadlines, and look at one of
        them.

        Where nothing was left out, that was done before: it is looked at, and played on
        where it was broken off."""
        untouched = case == start.case and len(case.operations) == start.before
        if finding.finding_class is FindingClass.HANG and self.shrink:
            untouched = False  # the plays before were judged early
        plays = self._played_again(finding, start.rate, case, untouched=untouched)
        failing = [play for play in plays if play.has(finding.bucket)]
        if untouched:
            before = start.rate
            finding.rate = rate_of(
                before.failed + len(failing), before.plays + len(plays)
            )
        elif plays and not failing:
            finding.limits.append(
                f"a smaller case was found, and did not fail in {len(plays)} plays "
                "with the whole deadline: this is the case as it was before"
            )
            case, seen = start.case, start.seen
            finding.shrunk, finding.needed = False, []
            finding.rate = start.rate
        elif plays:
            finding.rate = rate_of(len(failing), len(plays))

        finding.confirmed = finding.rate.failed >= self.repeat
        rate = _share(finding.rate)
        if rate < 1 and self.shrink:
            times = f"{self._repeats} play{'s' * (self._repeats > 1)}"
            finding.limits.append(
                f"it comes and goes: at this rate {times} of a case that fails show "
                f"nothing in {luck(rate, self._repeats):.1%} of the cases, and a "
                "smaller case was taken for sound after that; more may be left than is "
                "needed"
            )

        self._keep(finding, case, failing[-1] if failing else seen)
        named = _name(plays, finding.bucket)
        if named is not None:
            finding.known, finding.known_variant = named.known, named.variant
            finding.known_why = named.why
        finding.upstream = upstream_of(finding.known)
        finding.resembles = [] if finding.known else resembling(finding)
        if named is not None and named.diagnosis:
            diagnosed = next(play for play in plays if play.named is named)
            source = self.folder / diagnosed.folder / named.diagnosis
            finding.diagnosis = f"{finding.folder}/{named.diagnosis}"
            shutil.copytree(source, self.folder / finding.diagnosis, dirs_exist_ok=True)

        return case, named

    def _played_again(
        self, finding: Finding, before: Rate, case: Case, *, untouched: bool
    ) -> list[Observation]:
        """Play what is left until it is known how often it fails; the first play that
        fails names it."""
        plays: list[Observation] = []
        what = f"{finding.id}: what is left, on a fresh server"
        try:
            with self.plays.confirming():
                while self._open(finding.bucket, plays, before, untouched=untouched):
                    named = _name(plays, finding.bucket)
                    bucket = "" if named else finding.bucket
                    wanted = AttemptWanted(case, "look", len(plays) + 1, what)
                    plays.append(self.plays.play(wanted, bucket))
        except Spent:
            times = "1 time" if len(plays) == 1 else f"{len(plays)} times"
            if not untouched:
                finding.limits.append(
                    f"what is left was played {times} again: --budget"
                )

        return plays

    def _open(
        self, bucket: str, plays: list[Observation], before: Rate, *, untouched: bool
    ) -> bool:
        """Whether one more play tells something. What came and went before is not taken
        for something else because it shows a few times in a row."""
        failed = sum(play.has(bucket) for play in plays)
        if untouched:
            if not plays:
                return True
            failed, made = before.failed + failed, before.plays + len(plays)
            if self.brief and failed >= self.repeat:
                return False
            return not decided(failed, made, self.repeat)

        least = 0
        if _share(before) != 1:
            least = _OF_RATE if failed else MOST
        return not decided(failed, len(plays), self.repeat, least)

    def _keep(self, finding: Finding, case: Case, seen: Observation) -> None:
        """What is shown of it is of ``case`` and its play; the case is on disk."""
        sighting = seen.sighting(finding.bucket)
        if sighting is not None:
            show(finding, sighting)
        finding.requests, finding.server = len(case.operations), case.server
        ids = [op.id for op in case.operations]
        finding.observed = {id: seen.observed.get(id, "") for id in ids}
        finding.stack, finding.log_lines = seen.stack, seen.log_lines
        write_case(case, self.folder / finding.folder, read_contents(case, self.folder))


def _name(plays: Sequence[Observation], bucket: str) -> Named | None:
    """That one of the plays gave to this failure: the case may have been played for
    another."""
    for play in plays:
        if play.named is not None and alike(play.named.bucket, bucket):
            return play.named
    return None


def _share(rate: Rate) -> float:
    return rate.failed / max(1, rate.plays)


def show(finding: Finding, sighting: Sighting) -> None:
    finding.said, finding.expected = sighting.said, sighting.expected
    finding.expectations = sighting.expectations
    finding.operations = sighting.operations


# --------------------------------------------------------------------- with other words

COMPARED = (FindingClass.CROSS_TALK, FindingClass.WRONG_ANSWER)
"""Classes that one play does not show."""
_MOST_PLAYS = 3
"""Of a failure that comes and goes."""
PUBLIC = "texts and images are random ones of the same shape"


def attempt_publicly(
    plays: Attempts, finding: Finding, case: Case, folder: Path, seed: int
) -> None:
    """Play ``case``, what is left of a confirmed and unknown finding, without what
    people wrote; if it fails likewise it is kept below the finding's folder, for what
    leaves the machine.

    ``folder``: the replay's, with the pictures. Without a start that is left nothing is
    played."""
    if finding.known is not None or not finding.confirmed:
        return  # there is nothing to report
    if case.origin.anonymised or not case.operations:
        return  # its texts are random already
    if finding.finding_class in COMPARED or plays.left < 1:
        return
    given = Path(case.server.model)
    has_tokenizer = (given / "tokenizer.json").is_file()
    model = given if has_tokenizer else None  # whose tokens count
    try:
        changed = anonymise(Captured(case, read_contents(case, folder)), seed, model)
    except UsageError as error:
        finding.limits.append(
            f"not played with random texts: {error.message.rstrip('.')}"
        )
        return

    for sha256, data in changed.contents.items():
        (folder / IMAGES_DIR).mkdir(exist_ok=True)
        write_file(folder / IMAGES_DIR / sha256, data)
    failed, made = _played_publicly(plays, finding, changed.case)
    if not made:
        return
    finding.starts += made
    step = Step(
        what=PUBLIC,
        kept=bool(failed),
        requests=len(case.operations),
        failed=failed,
        plays=made,
        why="for what leaves this machine",
    )
    finding.steps.append(step)
    if failed:
        write_case(changed.case, folder / finding.folder / PUBLIC_DIR, changed.contents)
    else:
        finding.limits.append(
            f"with random texts and images of the same shape it did not show in {made} "
            f"play{'s' * (made > 1)}: what leaves this machine may not fail"
        )


def _played_publicly(plays: Attempts, finding: Finding, case: Case) -> tuple[int, int]:
    """Play it until it fails. Returns failures, at most one, and plays."""
    rate, failed, made = finding.rate, 0, 0
    most = 1 if rate.failed == rate.plays else _MOST_PLAYS
    what = f"{finding.id}: with random texts and images"
    try:
        while made < most and not failed:
            seen = plays.play(AttemptWanted(case, "confirm", made + 1, what))
            failed += seen.has(finding.bucket)
            made += 1
    except Spent:
        pass

    return failed, made
