"""The attempts of one replay: each on a fresh server, each once, and counted."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from mmrepro.campaign.events import Found, RunEnded
from mmrepro.campaign.search import Spent
from mmrepro.case.files import case_digest
from mmrepro.case.model import Case
from mmrepro.case.played import Played
from mmrepro.engines import get_engine
from mmrepro.incident.replay import Finding, PlayFacts, bucket_words
from mmrepro.oracle.judged import Judged
from mmrepro.play.options import PlayOptions
from mmrepro.replay.attempts import CaseRun, CaseSearch
from mmrepro.replay.known import diagnosed
from mmrepro.replay.seen import Seen, seen_of
from mmrepro.replay.silent import Silent
from mmrepro.replay.store import PLAYS_DIR, How, Key, ReplayFolder, Wanted
from mmrepro.run.judge import Deadlines

PLAYED_FILE = "played.json"
LAST, USUAL_S = 5, 5.0
"""Attempts by which it is known how many more there is time for; seconds, before there are any."""


@dataclass(frozen=True)
class StartingPoint:
    """Where a replay begins that pursues what somebody else's attempt at the case showed.

    Attributes:
        seen: that attempt; None: there is none, and all of the case is looked at.
        compared: it was wrong beside a reference, and by itself nothing was.
        blocks: it was made in so many blocks.
        again: the case is what was left of a finding: nothing besides is looked for.
        handled: buckets that are known already, and not pursued.
        deadlines: None: they are measured.
        until: monotonic seconds; no attempt begins after it.
        end: the same, of attempts that confirm.
    """

    seen: Seen | None = None
    compared: bool = False
    blocks: int = 0
    again: bool = False
    handled: tuple[str, ...] = ()
    deadlines: Deadlines | None = None
    until: float = math.inf
    end: float = -math.inf


class Plays:
    """Makes the attempts of a replay within a line of work, or says what those of an earlier call
    showed.

    Attributes:
        blocks: into so many blocks a case is cut, with a reading of the idle server after each.
        hurried: a hang is judged early in attempts that confirm a case before it is shrunk; what is
            left is confirmed with the whole deadline.
        silent: candidates are judged by what the idle server looks like, too.
        facts: of all attempts, in the order in which they were asked for.
        smallest: of each bucket the smallest case that showed it, and that attempt.
        comparison: what answers are held against.
        until: monotonic seconds after which no attempt begins.
    """

    def __init__(self, search: CaseSearch[Any], files: ReplayFolder, start: StartingPoint) -> None:
        self.search, self.files, self.folder = search, files, files.folder
        self.until, self._end = start.until, start.end
        self.deadlines: Deadlines | None = None
        self.silent, self.hurried, self.blocks = False, files.options.shrink, 0
        self.facts: list[PlayFacts] = []
        self.smallest: dict[str, tuple[Case, Seen]] = {}
        engine = get_engine(files.options.server.engine)
        self.comparison = Silent(self, engine, self.folder)
        self._asked: dict[Key, Seen] = {}
        self._found: dict[str, tuple[bool, bool]] = {}

    @property
    def left(self) -> int:
        """Starts of servers that may still be made: of the budget, and before ``until``, if each
        takes as long as the slowest of the last ones."""
        left = self.files.options.budget - len(self.facts)
        if math.isinf(self.until):
            return left
        took = [facts.seconds for facts in self.facts if facts.seconds][-LAST:]
        usual = max(took, default=USUAL_S)
        return max(0, min(left, int((self.until - time.monotonic()) / usual)))

    @contextmanager
    def confirming(self) -> Iterator[None]:
        """How often it shows is worth a few attempts more: up to the starting point's end."""
        until, self.until = self.until, max(self.until, self._end)
        try:
            yield
        finally:
            self.until = until

    def calibrate(self, known: Deadlines | None) -> Deadlines:
        """Measured on a server of its own, if they are not ``known``; counts as a start."""
        key = Key("", "calibration", 1)
        facts = self._counted("deadlines", 0)
        facts.state = "ended"
        kept = self.files.ended.get(key)
        if kept is None or kept.deadlines is None:
            self.files.begin_attempt(1, key, facts)
            deadlines = known
            if deadlines is None:
                order = CaseRun(self._id(key), self._name(facts), self.search.servers)
                result = self.search.attempt(order)
                deadlines, facts.seconds = result.deadlines, result.seconds
            line = self.files.end_attempt(1, key, Seen(play=facts), deadlines)
        else:
            line = kept
            facts.seconds = kept.seen.play.seconds
        self.deadlines = line.deadlines
        assert self.deadlines is not None
        self._report(facts, kept=kept is not None)
        return self.deadlines

    def play(self, wanted: Wanted, bucket: str = "") -> Seen:
        """One attempt; what was asked for before costs no start.

        Args:
            bucket: the server is looked at, and the failure named.

        Raises:
            Spent: no start is left.
        """
        return self.several([wanted], bucket)[0]

    def several(self, wanted: Sequence[Wanted], bucket: str = "") -> list[Seen]:
        """As :meth:`play`; beside each other where places are free."""
        works: dict[Key, Callable[[], None]] = {}
        for one in wanted:
            key = self._key(one)
            if key in self._asked or key in works:
                continue
            if self.left < 1:
                raise Spent
            facts = self._counted(one.what, len(one.case.operations))
            works[key] = functools.partial(self._known, key, facts, one, bucket)
        if len(works) > 1:
            self.search.beside(list(works.values()))
        for key in works.keys() - self._asked.keys():
            works[key]()
        return [self._asked[self._key(one)] for one in wanted]

    def whole(self, seen: Seen) -> Played:
        """All that an attempt recorded; it was kept beside its log."""
        return Played.model_validate_json((self.folder / seen.folder / PLAYED_FILE).read_bytes())

    def grew(self, finding: Finding) -> None:
        """A finding has more to say."""
        self.files.grew(finding)
        stands = finding.confirmed, finding.shrunk
        if self._found.get(finding.id) != stands:
            self._found[finding.id] = stands
            self.search.campaign.emit(found(f"{self._prefix}{finding.id}", finding))

    # ------------------------------------------------------------------ one attempt

    def _key(self, wanted: Wanted) -> Key:
        cut = f"/{self.blocks}" if self.blocks else ""
        return Key(case_digest(wanted.case) + cut, wanted.how, wanted.nth)

    def _counted(self, what: str, requests: int) -> PlayFacts:
        """It has a number, and is one start of the budget."""
        facts = PlayFacts(number=len(self.facts) + 1, what=what, requests=requests, state="")
        self.facts.append(facts)
        return facts

    def _order(self, key: Key, facts: PlayFacts, wanted: Wanted, bucket: str) -> CaseRun:
        look = None
        if bucket and not self.search.blind:
            assert self.deadlines is not None
            look = functools.partial(diagnosed, self.deadlines.answer_s)
        return CaseRun(
            self._id(key),
            self._name(facts),
            self.search.servers,
            f"{self._below}{PLAYS_DIR}/{facts.number:04d}",
            case=wanted.case,
            contents=self.folder,
            options=self._options(wanted.how),
            look=look,
        )

    def _options(self, how: How) -> PlayOptions:
        pace = self.files.options.time
        common = PlayOptions(self.deadlines, time=pace, blocks=self.blocks)
        if how == "shrink":
            return replace(common, look="quick" if self.silent else "none", early=True)
        return replace(common, look="quick", early=how == "confirm" and self.hurried)

    def _known(self, key: Key, facts: PlayFacts, wanted: Wanted, bucket: str) -> None:
        """It is made, or an earlier call made it."""
        kept = self.files.ended.get(key)
        seen = kept.seen if kept else self._made(key, facts, wanted, bucket)
        for name in ("state", "buckets", "start_s", "seconds", "early"):
            setattr(facts, name, getattr(seen.play, name))
        self._asked[key] = seen
        for one in facts.buckets:
            best = self.smallest.get(one)
            if best is None or len(wanted.case.operations) < len(best[0].operations):
                self.smallest[one] = wanted.case, seen
        self._report(facts, kept=kept is not None)

    def _made(self, key: Key, facts: PlayFacts, wanted: Wanted, bucket: str) -> Seen:
        """What it showed, written down. Raises Spent: judging it takes one more start."""
        self.files.begin_attempt(facts.number, key, facts)
        result = self.search.attempt(self._order(key, facts, wanted, bucket))
        case, played = wanted.case, result.played
        assert played is not None
        facts.error = result.error
        alone = self.search.judged(case, played)
        judged = Judged.of([alone, self.comparison.judge(case, played)])
        seen = seen_of(case, played, judged, facts.model_copy())
        seen.folder = f"{PLAYS_DIR}/{facts.number:04d}"
        if bucket:
            seen = self.search.named(bucket, seen, case, result)
        if wanted.how != "shrink":
            file = self.folder / seen.folder / PLAYED_FILE
            file.write_text(played.model_dump_json(), encoding="utf-8")
        return self.files.end_attempt(facts.number, key, seen).seen

    # ------------------------------------------------------------------ its names

    @property
    def _below(self) -> str:
        """The replay's folder within the campaign's, as a beginning of others."""
        inside = self.folder.relative_to(self.search.folder).as_posix()
        return "" if inside == "." else f"{inside}/"

    @property
    def _prefix(self) -> str:
        return self._below.replace("/", ", ")

    def _id(self, key: Key) -> str:
        return f"{self._below}{key.how}/{key.nth}/{key.digest}"

    def _name(self, facts: PlayFacts) -> str:
        return self._prefix + name_of(facts, self.files.options.budget)

    def _report(self, facts: PlayFacts, *, kept: bool) -> None:
        self.files.attempted(self.facts, kept_s=facts.seconds if kept else 0.0)
        self.search.campaign.emit(attempt_ended(self._name(facts), facts, kept=kept))


# ---------------------------------------------------------------------- for people


def requests(number: int) -> str:
    return f"{number} request{'s' * (number != 1)}"


def name_of(facts: PlayFacts, budget: int) -> str:
    """``attempt 2 of at most 40 (the whole case, 12 requests)``."""
    of = f"{facts.number} of at most {budget}"
    return f"attempt {of} ({facts.what}, {requests(facts.requests)})"


def attempt_ended(name: str, facts: PlayFacts, *, kept: bool) -> RunEnded:
    """The event of an attempt that has ended, now or in an earlier call."""
    quiet = "nothing is wrong" if facts.state == "ended" else facts.state
    return RunEnded(
        what=name,
        index=1,
        outcome=bucket_words(facts.buckets) or quiet,
        detail=f"the one before it counts for nothing: {facts.error}" if facts.error else "",
        tone="bad" if facts.buckets else "soft",
        seconds=facts.seconds,
        kept=kept,
    )


def found(name: str, finding: Finding) -> Found:
    """The event of a finding that is new, or has more to say."""
    known = f"known: {finding.known}" if finding.known else "unknown"
    confirmed = "confirmed" if finding.confirmed else "not confirmed"
    shrunk = ", shrunk" if finding.shrunk else ""
    rate = f"{finding.rate.failed} of {finding.rate.plays} attempts"
    words = f"{finding.finding_class}, {known}, {confirmed}{shrunk}, {rate}"
    text = f"{name}: {words}, {requests(finding.requests)}: {finding.said}"
    return Found(text=text, tone="bad" if finding.confirmed else "unsure")
