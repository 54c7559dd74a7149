"""The rounds of a replay: which cases are played, how often, and what becomes of what
they show."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from mmrepro.base.records import FindingClass
from mmrepro.campaign import Note, Spent
from mmrepro.failure.documents.replay import Answer, Finding, Sighting
from mmrepro.search.oracle.judge import NO_BLOCKS
from mmrepro.search.oracle.judged import OracleReport, alike
from mmrepro.search.replay.attempts import Attempts, CaseSearch, StartingPoint
from mmrepro.search.replay.confirm import GIVE_UP, decided, rate_of, tally
from mmrepro.search.replay.known import mitigation
from mmrepro.search.replay.pursue import (
    FATAL,
    LOUD,
    Pursuit,
    Start,
    attempt_publicly,
    show,
)
from mmrepro.search.replay.store import (
    AttemptWanted,
    Named,
    Observation,
    ReplayFolder,
    answers_of,
)
from mmrepro.traffic.case import Case, PlayState, in_order, read_case

_ALONE = 2
"""Plays of traffic that showed nothing and in which nothing runs beside anything
else."""
_SHOWN = 12
"""Requests of the first play that are listed, at most."""
_QUIET_S = 120.0
"""For playing traffic again that showed nothing."""
_LED, _LET_GO = 2, 4
"""Plays that show again what somebody else's play showed, before it is shrunk; and
plays that do not, after which it is let go: other traffic may show it better."""
_OF_ANOTHER = 3
"""Starts that a further finding takes besides its confirmation, about."""


class Rounds:
    """Those of one replay, which grows by what they show. Within a line of work."""

    def __init__(
        self,
        search: CaseSearch[Any],
        files: ReplayFolder,
        start: StartingPoint | None = None,
    ) -> None:
        """``start``: where it begins that pursues what somebody else's attempt
        showed."""
        self._files, self._replay, self._options = files, files.replay, files.options
        self._start = start or StartingPoint()
        self._left: list[tuple[Finding, tuple[list[str], str]]] = []
        self._with_another: list[str] = []
        self.plays = Attempts(search, files, self._start)
        self._silent = self.plays.comparison
        options, brief = self._options, self._start.brief
        self._pursuit = Pursuit(self.plays, options.repeat, options.shrink, brief)

    def run(self) -> None:
        """All of them, to the conclusion."""
        case = self._files.case
        self._replay.deadline_s = self.plays.calibrate(self._start.deadlines).answer_s
        if self._start.seen is not None or self._start.again:
            self._pursued(case)
            return
        loud, named = self._round(case, "the whole case")
        if self._start.brief:
            if not (loud or self._start.loud or self._replay.nothing_tested):
                self._compared(case)
            return

        keep_away = ""
        if named is not None:
            keep_away = mitigation(named, case.server.release)
        if keep_away:
            self._mitigated(case, keep_away)
        elif not (loud or self._replay.untestable or self._replay.nothing_tested):
            self._compared(case)

        self._side_findings()

    def once_more(self, case: Case, what: str) -> None:
        """Another case of the same server, looked at as the whole one was."""
        self._round(case, what)
        self._side_findings()

    def _pursued(self, case: Case) -> None:
        """Only what the starting point is about, and what shows itself on the way."""
        if self._start.compared:
            self._compared(case)
        else:
            self.plays.blocks = self._start.blocks
            self._round(case, "the whole case")
        self._side_findings()

    def _round(
        self, case: Case, what: str, limits: tuple[str, ...] = ()
    ) -> tuple[bool, Named | None]:
        """Play a case until it is known how often it shows what, and make findings of
        that.

        Returns whether it showed anything loud, and the name of the fatal failure, if
        it is known."""
        seens: list[Observation] = []
        try:
            first = self._start.seen or self.plays.play(
                AttemptWanted(case, "whole", 1, what)
            )
            seens.append(first)
            self._say(first)
            self._answered(case, first)
            started = first.play.state != PlayState.START_FAILED
            # A server that does not start tells nothing of the requests.
            if not (started or self._start.starts):
                self._replay.unconfirmed += first.sightings
                return True, None
            # The whole case is the smallest one so far of all that it shows.
            for bucket in first.play.buckets:
                self.plays.smallest.setdefault(bucket, (case, first))
            with self.plays.confirming():
                while self._open(seens) or self._quiet(case, seens):
                    again = AttemptWanted(case, "confirm", len(seens), f"{what}, again")
                    seens.append(self.plays.play(again))
        except Spent:
            self._replay.limits.append(
                f"{what} was played {len(seens)} times: --budget"
            )

        return self._found(case, seens, limits)

    def _found(
        self,
        case: Case,
        seens: list[Observation],
        limits: tuple[str, ...],
        *,
        simpler: bool = True,
    ) -> tuple[bool, Named | None]:
        """Make a finding of each failure that the plays of a case confirm.

        Returns as :meth:`_round`."""
        fatal: Named | None = None
        loud = False
        counts = self._pursuable(seens)
        confirmed = [bucket for bucket, (failed, _) in counts.items() if failed]
        for bucket, (failed, plays) in counts.items():
            sighting = _first_sighting(seens, bucket)
            loud = loud or sighting.finding_class in LOUD
            if not failed:
                self._replay.unconfirmed.append(sighting)
                continue
            smaller, small_seen = self.plays.smallest[bucket]
            rate = rate_of(failed, plays)
            before = len(case.operations)
            start = Start(bucket, smaller, small_seen, rate, before, limits, simpler)
            is_fatal = sighting.finding_class in FATAL
            later = len(confirmed) - confirmed.index(bucket) - 1
            named = self._finding(start, self._reserve(later, is_fatal))
            if is_fatal and fatal is None:
                fatal = named

        return loud, fatal

    def _reserve(self, later: int, is_fatal: bool) -> int:
        """Starts that a finding leaves for those that are pursued after it."""
        reserve = later * (self._options.repeat + _OF_ANOTHER)
        if is_fatal:
            reserve += 1  # to see what comes after it, if it is known
        return min(reserve, self.plays.left // 2)

    def _finding(self, start: Start, reserve: int) -> Named | None:
        id = f"f{len(self._replay.findings) + 1}"
        finding, left, named = self._pursuit.pursue(start, id, reserve)
        if self._comes_with_another(finding, left):
            return None
        attempt_publicly(
            self.plays, finding, left, self._files.folder, self._options.seed
        )
        self.plays.grew(finding)
        return named if finding.known else None

    def _comes_with_another(self, finding: Finding, case: Case) -> bool:
        """Whether exactly the same requests were left of another failure: then it is
        what else they show, and no finding of its own."""
        left = [op.id for op in case.operations], case.server.mitigation
        same = [earlier for earlier, left_of_it in self._left if left_of_it == left]
        other = same[0] if same and left[0] else None
        if other is None or not (finding.shrunk and other.shrunk):
            self._left.append((finding, left))
            return False
        other.also.append(f"{finding.finding_class}: {finding.said}")
        self._with_another.append(finding.bucket)
        self._replay.findings.remove(finding)
        if finding.folder:  # without a name of its own it would be the replay's
            shutil.rmtree(self._files.folder / finding.folder, ignore_errors=True)
        self.plays.grew(other)
        return True

    def _mitigated(self, case: Case, keep_away: str) -> None:
        """Once more, with the known fatal failure kept away: what did it hide?"""
        server = case.server.model_copy(update={"mitigation": keep_away})
        limit = f"found with the mitigation {keep_away} on, which keeps a known failure away"
        kept = case.model_copy(update={"server": server})
        known = [finding.bucket for finding in self._replay.findings]
        if self.plays.left < 1:
            why = f"what comes after it, with {keep_away}, was not tried: --budget"
            self._replay.limits.append(why)
            return

        begun = len(self.plays.facts)
        loud, _ = self._round(kept, f"the whole case, with {keep_away}", (limit,))
        seen: list[str] = []
        for facts in self.plays.facts[begun:]:
            seen += facts.buckets
        if any(_is_among(bucket, known) for bucket in seen):
            why = f"with the mitigation {keep_away} something of what is known is still seen"
            self._replay.limits.append(why)
        elif not loud:
            self._compared(kept, (limit,))

    def _compared(self, case: Case, limits: tuple[str, ...] = ()) -> None:
        """Nothing loud: are the answers right?"""
        known = len(self._replay.findings)
        try:
            with self.plays.confirming():
                comparison = self._silent.compare(case)
            if comparison is None:
                return
            asked, first = comparison
            if self.plays.blocks:
                # What the whole case's play could not see was seen now.
                unseen = [text for text in self._replay.unseen if text != NO_BLOCKS]
                self._replay.unseen = unseen
            self._say(first)
            seens = self._held_against_reference(asked, first)
            self.plays.blocks = 0  # what is left out may lie in another block then
            limit = "found with the requests made greedy and with logprobs: so answers compare"
            self._found(asked, seens, (*limits, limit), simpler=False)
            for finding in self._replay.findings[known:]:
                wrong = finding.finding_class is FindingClass.WRONG_ANSWER
                if wrong and finding.confirmed:
                    self._crossed(finding)
        except Spent:
            self._replay.unseen.append(
                "whether the answers are right: no start is left (--budget)"
            )
        finally:
            self._silent.reference, self.plays.blocks = None, 0
            self._say(OracleReport.of(self._silent.judged))

    def _held_against_reference(
        self, asked: Case, first: Observation
    ) -> list[Observation]:
        """Play what is compared until it is known how often it is wrong."""
        seens = [first]
        what = "held against the reference, again"
        try:
            with self.plays.confirming():
                while self._open(seens) or self._led_to(seens):
                    again = AttemptWanted(asked, "confirm", len(seens), what)
                    seens.append(self.plays.play(again))
        except Spent:
            played = f"what is held against the reference was played {len(seens)} times"
            self._replay.limits.append(f"{played}: --budget")

        return seens

    def _led_to(self, seens: list[Observation]) -> bool:
        """Whether what another play showed beside its reference is still waited for."""
        if not self._start.compared or len(seens) > _LET_GO:
            return False
        return not any(seen.sightings for seen in seens)

    def _crossed(self, finding: Finding) -> None:
        """Does the wrong answer follow from what other requests hold? Then it is
        that."""
        left, _ = read_case(self._files.folder / finding.case_file)
        judged = self._silent.cross_talk(left, finding.operations)
        self._say(judged)
        for sighting in judged.sightings:
            finding.finding_class = sighting.finding_class
            finding.bucket = sighting.bucket
            show(finding, sighting)
            self.plays.grew(finding)

    def _side_findings(self) -> None:
        """What only a smaller case showed, on the way: is it there again?"""
        what = "a smaller case that showed something else, again"
        for bucket, (case, seen) in sorted(self.plays.smallest.items()):
            # One option may not go without another: the server that was given does start.
            if self._handled(bucket) or seen.play.state == PlayState.START_FAILED:
                continue
            seens = [seen]
            try:
                while self._open(seens):
                    again = AttemptWanted(case, "confirm", len(seens), what)
                    seens.append(self.plays.play(again))
            except Spent:
                self._replay.limits.append(
                    "what a smaller case showed was not confirmed: --budget"
                )

            self._found(case, seens, ())

    def _pursuable(self, seens: list[Observation]) -> dict[str, tuple[int, int]]:
        """As :func:`tally`, of what is not handled yet; of what is asked for, where
        that shows."""
        kinds: dict[str, FindingClass] = {}
        for seen in seens:
            for sighting in seen.sightings:
                kinds[sighting.bucket] = sighting.finding_class
        counts: dict[str, tuple[int, int]] = {}
        mine: dict[str, tuple[int, int]] = {}
        others: set[str] = set()
        for bucket, count in tally(seens).items():
            if self._handled(bucket):
                continue
            counts[bucket] = count
            if kinds[bucket] in self._start.classes:
                mine[bucket] = count
            else:
                others.add(str(kinds[bucket]))

        if not mine:
            return counts
        if others:
            text = f"also observed, and not pursued: {', '.join(sorted(others))}"
            if text not in self._replay.limits:
                self._replay.limits.append(text)

        return mine

    def _open(self, seens: list[Observation]) -> bool:
        """Whether one more play of the same case is worth a server."""
        repeat, give_up = self._options.repeat, GIVE_UP
        if self._start.seen is not None:  # what is left is confirmed in any case
            repeat, give_up = min(repeat, _LED), _LET_GO
        for failed, plays in self._pursuable(seens).values():
            if self._start.brief and failed >= repeat:
                continue
            if not decided(failed, plays, repeat, give_up=give_up):
                return True

        return False

    def _answered(self, case: Case, first: Observation) -> None:
        """The first play says what each request tested, before anything is played
        again; a later one may show what the first did not."""
        if self._start.seen is not None:
            return
        if self._replay.answers:
            for answer in self._replay.answers:
                self._also_shown(answer, first)
            return
        self._replay.answers = answers_of(case, first)
        for line in _answer_lines(self._replay.answers):
            self.plays.search.campaign.emit(Note(text=line))

    def _also_shown(self, answer: Answer, seen: Observation) -> None:
        if seen.answers.get(answer.operation) != answer.status:
            return
        still = seen.missing.get(answer.operation, [])
        answer.missing = [what for what in answer.missing if what in still]

    def _quiet(self, case: Case, seens: list[Observation]) -> bool:
        """Whether a case that showed nothing is worth one more play: what comes and
        goes may not have come. Not of traffic that takes minutes, nor of requests that
        were all refused; and once of requests of which none runs beside another."""
        if any(seen.sightings or seen.untestable for seen in seens):
            return False
        if self._replay.nothing_tested:
            return False
        most = GIVE_UP
        if in_order(case):
            most = self._start.quiet or _ALONE
        took = sum(seen.play.seconds for seen in seens)
        return len(seens) < most and took < _QUIET_S

    def _handled(self, bucket: str) -> bool:
        replay = self._replay
        findings = [finding.bucket for finding in replay.findings]
        unconfirmed = [sighting.bucket for sighting in replay.unconfirmed]
        known = [*findings, *unconfirmed, *self._with_another, *self._start.handled]
        return _is_among(bucket, known)

    def _say(self, judged: OracleReport | Observation) -> None:
        """Add what a play could not see, could not test, and counted."""
        replay = self._replay
        for text in judged.unseen:
            if text not in replay.unseen:
                replay.unseen.append(text)
        for text in judged.untestable:
            if text not in replay.untestable:
                replay.untestable.append(text)
        for what, number in judged.counted.items():
            replay.counted[what] = replay.counted.get(what, 0) + number


def _is_among(bucket: str, others: Iterable[str]) -> bool:
    return any(alike(bucket, other) for other in others)


def _first_sighting(seens: Sequence[Observation], bucket: str) -> Sighting:
    """The sighting of a bucket in the first of the plays that shows it."""
    seen = next(seen for seen in seens if seen.has(bucket))
    sighting = seen.sighting(bucket)
    assert sighting is not None
    return sighting


def _answer_lines(answers: Sequence[Answer]) -> list[str]:
    """List ``r1 POST /v1/completions: 400 in 0.02 s: …``, and of many how many have
    which status."""
    lines: list[str] = []
    for answer in answers[:_SHOWN]:
        line = f"{answer.operation} {answer.method} {answer.path}: {answer.status}"
        if answer.seconds is not None:
            line += f" in {answer.seconds:.2f} s"
        words = answer.words.removeprefix(answer.status).strip()
        if words:
            line += f": {words}"
        lines.append(line)

    rest = Counter(answer.status for answer in answers[_SHOWN:])
    if rest:
        counts = [f"{number} × {status}" for status, number in rest.items()]
        lines.append(", ".join(counts))
    return lines
