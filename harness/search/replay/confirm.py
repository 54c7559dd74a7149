"""Seen once is no finding: how often it shows on fresh servers, of whole cases and
smaller ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mmrepro.campaign import Spent
from mmrepro.failure.documents.replay import Rate
from mmrepro.search.replay.attempts import Attempts
from mmrepro.search.replay.store import AttemptWanted, CandidateVerdict, Observation
from mmrepro.traffic.case import Case, case_digest

_CONFIDENCE = 0.95
_WRONG = 0.05
"""Chance that any of the steps of a shrinking takes a failing case for one that does
not fail."""
_STEPS = 60
"""Halvings: as far as a float tells."""


def rate_of(failed: int, plays: int) -> Rate:
    """With its exact (Clopper-Pearson) interval: each end leaves half of the doubt
    outside."""
    doubt = (1 - _CONFIDENCE) / 2
    low, high = 0.0, 1.0
    if failed:
        low = _where(lambda p: _at_least(failed, plays, p) < doubt)
    if failed != plays:
        high = _where(lambda p: _at_least(failed + 1, plays, p) < 1 - doubt)
    return Rate(failed=failed, plays=plays, low=low, high=high, confidence=_CONFIDENCE)


def repeats(rate: float, steps: int, most: int) -> int:
    """Plays without a failure after which a case counts as one that does not fail.

    So many that, at ``rate``, all ``steps`` together are wrong in at most one of twenty
    cases; no more than ``most``. A case that always failed is played once."""
    if rate >= 1:
        return 1
    if rate <= 0:
        return most
    # All steps together may be wrong once in twenty cases, so each may be by that share
    # alone.
    needed = math.ceil(math.log(_WRONG / max(1, steps)) / math.log(1 - rate))
    return max(1, min(most, needed))


def luck(rate: float, plays: int) -> float:
    """Chance that ``plays`` plays of a failing case all show nothing."""
    return max(0.0, 1 - rate) ** plays


def _at_least(failed: int, plays: int, p: float) -> float:
    """Chance of that many failures or more."""
    return math.fsum(
        math.comb(plays, k) * p**k * (1 - p) ** (plays - k)
        for k in range(failed, plays + 1)
    )


def _where(below: Callable[[float], bool]) -> float:
    """The chance up to which ``below`` holds."""
    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if below(middle):
            low = middle
        else:
            high = middle
    return (low + high) / 2


GIVE_UP, MOST = 7, 12
"""Plays without a second sighting, and plays in all, of what comes and goes. A failure
of every second play shows itself again within seven in 99 of 100 cases."""
SELDOM = 24
"""Plays in all of what was seen again, and not yet as often as confirms it."""
_WIDE = 0.6
"""An interval as wide as this tells little more than that it comes and goes."""


def tally(seens: Sequence[Observation]) -> dict[str, tuple[int, int]]:
    """Count of each bucket how often it was seen again, and in how many plays. The
    worst class comes first."""
    counts: dict[str, tuple[int, int]] = {}
    classes: dict[str, int] = {}
    for number, seen in enumerate(seens):
        for sighting in seen.sightings:
            bucket = sighting.bucket
            if bucket in counts:
                continue
            # That it was seen at all is why it is asked for: its first sighting would
            # raise the rate, and counts for nothing.
            others = [s for n, s in enumerate(seens) if n != number]
            counts[bucket] = sum(s.has(bucket) for s in others), len(others)
            classes[bucket] = sighting.finding_class.place

    return dict(sorted(counts.items(), key=lambda item: classes[item[0]]))


def decided(
    failed: int, plays: int, repeat: int, least: int = 0, give_up: int = GIVE_UP
) -> bool:
    """Whether further plays would tell nothing worth a server.

    Args:
        give_up: plays without a second sighting.
        repeat: failures that confirm it.
        least: plays that there must be in any case; never fewer than ``repeat``.
    """
    least = max(least, repeat)
    if plays < least:
        return False
    # It showed each time, or never: no interval is needed.
    if failed in (0, plays):
        return failed == plays or plays >= max(give_up, least)
    if failed < repeat:
        return plays >= max(SELDOM, least)
    rate = rate_of(failed, plays)
    return plays >= max(MOST, least) or rate.high - rate.low <= _WIDE


@dataclass
class Candidates:
    """Plays smaller cases of one finding: a failure is one of the same bucket.

    Attributes:
        shows: whether a play shows the finding's failure.
        repeats: plays without it after which a candidate counts as one that does not
            fail.
        reserve: starts that are kept for what comes later.
        jobs: candidates at a time.
        known: verdicts that were asked for.
        made: verdicts of candidates that may be asked for next.
    """

    plays: Attempts
    shows: Callable[[Observation], bool]
    repeats: int = 1
    reserve: int = 0
    jobs: int = 1
    known: dict[str, CandidateVerdict] = field(default_factory=dict)
    made: dict[str, CandidateVerdict] = field(default_factory=dict)

    @property
    def left(self) -> int:
        """Candidates that may still be played."""
        return max(0, self.plays.left - self.reserve) // self.repeats

    @property
    def verdicts(self) -> dict[str, CandidateVerdict]:
        """All that there are."""
        return {**self.known, **self.made}

    def __call__(self, case: Case, what: str) -> CandidateVerdict:
        """Judge a candidate. Raises Spent: no start is left for it."""
        digest = case_digest(case)
        if digest in self.known:
            return self.known[digest]._replace(again=True)
        if digest in self.made:
            self.plays.unasked -= 1
            return self.known.setdefault(digest, self.made.pop(digest))
        for index in range(1, self.repeats + 1):
            if self.plays.left - self.reserve < 1:
                raise Spent
            seen = self.plays.play(AttemptWanted(case, "shrink", index, what))
            if self.shows(seen):
                self.known[digest] = CandidateVerdict(True, 1, index, seen)
                break
        else:
            self.known[digest] = CandidateVerdict(False, 0, self.repeats)

        return self.known[digest]

    def beside(self, candidates: Sequence[tuple[Case, str]]) -> None:
        """Make attempts at these at once: one that is asked for, and others that may
        be; they count as starts once they are. Only where one attempt at each tells."""
        verdicts = self.verdicts
        new: dict[str, AttemptWanted] = {}
        for case, what in candidates:
            digest = case_digest(case)
            if digest not in verdicts:
                new[digest] = AttemptWanted(case, "shrink", 1, what)

        if self.repeats > 1 or len(new) < 2 or self.left < len(new):
            return
        seens = self.plays.several(list(new.values()))
        for digest, seen in zip(new, seens, strict=True):
            fails = self.shows(seen)
            self.made[digest] = CandidateVerdict(
                fails, int(fails), 1, seen if fails else None
            )
        self.plays.unasked += len(new)
