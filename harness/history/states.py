"""What attempts at one cell show together, in one night and over several: its state,
how sure that is, whether it surprises, and what is new about it.

Pure functions. A cell is good only by a conclusive run; what was lost or inconclusive
is told and decides nothing."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from mmrepro.failure.documents import Attempt, Cell, EventKind
from mmrepro.failure.signature import Outcome

_Z_95 = 1.959963984540054
_UNLIKELY = 0.05
"""Below it, chance is not taken for the reason."""


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a proportion; (0, 1) without any trial."""
    if not trials:
        return 0.0, 1.0
    z2 = _Z_95**2
    share = successes / trials
    variance = share * (1 - share) / trials + z2 / (4 * trials**2)
    half = _Z_95 * math.sqrt(variance)
    middle = share + z2 / (2 * trials)
    scale = 1 + z2 / trials

    # At the ends the exact value is an end, and rounding would leave it out.
    low = (middle - half) / scale if successes else 0.0
    high = (middle + half) / scale if successes < trials else 1.0
    return low, high


def fisher(first: tuple[int, int], second: tuple[int, int]) -> float:
    """Two-sided p of Fisher's exact test that two samples of two kinds are of one
    source.

    Counted in whole numbers, so that tables that are equally likely are seen to be.
    """
    kinds = first[0] + second[0]
    size = sum(first)
    total = size + sum(second)

    def ways(x: int) -> int:
        return math.comb(kinds, x) * math.comb(total - kinds, size - x)

    observed = ways(first[0])
    least = max(0, size + kinds - total)
    most = min(size, kinds)
    as_unlikely = 0
    for x in range(least, most + 1):
        if ways(x) <= observed:
            as_unlikely += ways(x)

    return as_unlikely / math.comb(total, size)


class JobState(StrEnum):
    """What the attempts at one cell come to."""

    REPRODUCED = "reproduced"
    NOT_REPRODUCED = "not-reproduced"
    DIFFERENT_FAILURE = "different-failure"
    INCONCLUSIVE = "inconclusive"
    FLAKY = "flaky"
    """More than one verdict under one key."""
    LOST = "lost"
    """No attempt had an outcome."""
    MISSING = "missing"
    """There was no attempt."""


_CONCLUSIVE = (Outcome.REPRODUCED, Outcome.DIFFERENT_FAILURE, Outcome.NOT_REPRODUCED)
"""The worst first: where verdicts differ between keys, it is the cell's."""
VERDICTS = frozenset(
    (JobState.REPRODUCED, JobState.DIFFERENT_FAILURE, JobState.NOT_REPRODUCED)
)
"""The states that say something of the engine."""


@dataclass(frozen=True)
class Settled:
    """What the attempts at one cell come to.

    Attributes:
        reproduced: of the ``conclusive`` attempts; ``low`` and ``high`` are its 95 %
            interval.
        why: one clause: what was counted, and what else is to be known.
        as_expected: None: nothing was expected, or nothing was learnt.
        keys: of the attempts with an outcome.
        differing: the parts of the keys that differ where verdicts do, if those are of
            different keys: the cell drifted within its night and is not flaky.
    """

    state: JobState
    count: Counter[Outcome] = field(default_factory=Counter)
    lost: int = 0
    reproduced: int = 0
    conclusive: int = 0
    low: float = 0.0
    high: float = 1.0
    why: str = ""
    expected: Outcome | None = None
    as_expected: bool | None = None
    keys: frozenset[str] = frozenset()
    differing: tuple[str, ...] = ()


def settle(attempts: Sequence[Attempt]) -> Settled:
    """The state of the cell of these attempts.

    FLAKY: two verdicts under one key, whichever two they are. Under different keys they
        are no
    contradiction: the worst one is the cell's, and ``why`` names what differs between
    them. Attempts whose key nobody knows count as being of one."""
    count: Counter[Outcome] = Counter()
    keys = set()
    expected = None
    for attempt in attempts:
        if attempt.expected is not None:
            expected = attempt.expected
        if attempt.outcome is not None:
            count[attempt.outcome] += 1
            if attempt.key:
                keys.add(attempt.key)

    decided = [attempt for attempt in attempts if attempt.outcome in _CONCLUSIVE]
    state, differing = _state(attempts, decided)
    reproduced = count[Outcome.REPRODUCED]
    low, high = wilson(reproduced, len(decided))
    return Settled(
        state=state,
        count=count,
        lost=len(attempts) - count.total(),
        reproduced=reproduced,
        conclusive=len(decided),
        low=low,
        high=high,
        why=_why(attempts, state, differing),
        expected=expected,
        as_expected=_as_expected(state, expected),
        keys=frozenset(keys),
        differing=differing,
    )


def surprise(
    now: Settled | Attempt, before: Settled | None, expected: Outcome | None = None
) -> str:
    """Why this is not what was expected; "": it is, or nothing was, or nothing was
    learnt.

    Expected is what ``before``, the last night, settled on for this cell if the key is
    the same; else what the scenario says."""
    seen = settle([now]) if isinstance(now, Attempt) else now
    if seen.state in (JobState.LOST, JobState.MISSING):
        return ""
    if before is not None and _same_experiment(now, before):
        against_before = _against_night_before(seen, before)
        if against_before is not None:
            return against_before

    if seen.state is JobState.FLAKY:
        return f"more than one verdict under one key: {seen.why}"
    wanted = expected if expected is not None else seen.expected
    if wanted is None or seen.state.value == wanted.value:
        return ""
    return f"{seen.state}, but {wanted} is expected"


def _against_night_before(seen: Settled, before: Settled) -> str | None:
    """Compare with what the same experiment settled on the night before, as
    ``surprise``; None: that decides nothing."""
    if before.state is JobState.FLAKY or before.differing:
        known = any(before.count[outcome] for outcome in seen.count)
        if known or seen.state is JobState.FLAKY:
            return ""
        return f"{seen.state}, which was not among the verdicts of the night before"

    if before.state not in (*VERDICTS, JobState.INCONCLUSIVE):
        return None
    if seen.state is before.state:
        return ""
    if before.state not in VERDICTS:
        return None
    return f"{seen.state}, but {before.state} the night before, under the same key"


def changed_parts(
    some: Iterable[Attempt], others: Iterable[Attempt]
) -> tuple[str, ...]:
    """Names of the parts of the key of which some have another value than the
    others."""
    first = [attempt.parts for attempt in some]
    second = [attempt.parts for attempt in others]
    # A dictionary, for the order in which the keys have them.
    names: dict[str, None] = {}
    for parts in (*first, *second):
        names.update(dict.fromkeys(parts))

    changed = []
    for name in names:
        values = {parts.get(name) for parts in first}
        if values.isdisjoint({parts.get(name) for parts in second}):
            changed.append(name)

    return tuple(changed)


def _same_experiment(now: Settled | Attempt, before: Settled) -> bool:
    keys = {now.key} if isinstance(now, Attempt) else now.keys
    return not before.keys.isdisjoint(keys)


def _state(
    attempts: Sequence[Attempt], decided: Sequence[Attempt]
) -> tuple[JobState, tuple[str, ...]]:
    """The state, and the parts of the keys that differ where verdicts do."""
    if not attempts:
        return JobState.MISSING, ()
    if not decided:
        # What had an outcome, and none that decides, was inconclusive.
        if any(attempt.outcome for attempt in attempts):
            return JobState.INCONCLUSIVE, ()
        return JobState.LOST, ()
    if _contradict(decided):
        return JobState.FLAKY, ()

    worst = _worst(decided)
    of_worst = []
    rest = []
    for attempt in decided:
        if attempt.outcome is worst:
            of_worst.append(attempt)
        else:
            rest.append(attempt)

    differing: tuple[str, ...] = ()
    if rest:
        differing = changed_parts(of_worst, rest) or ("key",)
    return JobState(worst.value), differing


def _contradict(decided: Sequence[Attempt]) -> bool:
    """Whether two verdicts stand under one key."""
    by_key: dict[str, Outcome | None] = {}
    for attempt in decided:
        first = by_key.setdefault(attempt.key, attempt.outcome)
        if attempt.outcome is not first:
            return True

    return False


def _worst(decided: Sequence[Attempt]) -> Outcome:
    outcomes = [attempt.outcome for attempt in decided if attempt.outcome]
    return min(outcomes, key=_CONCLUSIVE.index)


def _why(attempts: Sequence[Attempt], state: JobState, differing: Sequence[str]) -> str:
    if state is JobState.MISSING:
        return "no run"
    counts: Counter[str] = Counter()
    for attempt in attempts:
        if attempt.outcome:
            counts[attempt.outcome.value] += 1
        else:
            counts[f"lost ({attempt.lost})"] += 1

    text = ", ".join(f"{number} × {word}" for word, number in counts.most_common())
    if state is JobState.FLAKY:
        known = all(attempt.key for attempt in attempts if attempt.outcome)
        return f"{text}, under {_under(known)}"

    if differing:
        return (
            f"{text}; the verdicts are of different keys, which differ in: "
            + ", ".join(differing)
        )

    return text


def _under(known: bool) -> str:
    return "one key" if known else "a key nobody knows"


def _as_expected(state: JobState, expected: Outcome | None) -> bool | None:
    if state in (JobState.LOST, JobState.MISSING) or expected is None:
        return None
    return state.value == expected.value


_MIN_DRIFT_RUNS = 2
"""Of one night: a single run agrees with itself whatever it shows."""


@dataclass(frozen=True)
class VerdictChange:
    """Another verdict on the same release: what it is, and a clause why it is not
    chance, or is."""

    kind: EventKind
    why: str
    parts: tuple[str, ...] = ()
    """Of the key, that changed."""


@dataclass
class CellTrack:
    """What is known of a cell so far.

    Attributes:
        settled: by the last night in which it had a verdict (or several: flaky).
        night: that night's id; ``attempts``: those of its attempts that decided.
        pools: verdicts by key over all nights, since the last drift under that key.
        covered: it had a verdict when it was looked at last.
        shaky: it was flaky, within a night or over several, when it last had a verdict.
        ever_flaky: it was so once.
    """

    cell: Cell
    settled: Settled | None = None
    night: str = ""
    attempts: list[Attempt] = field(default_factory=list)
    pools: dict[str, Counter[Outcome]] = field(default_factory=dict)
    covered: bool = False
    shaky: bool = False
    ever_flaky: bool = False

    def add(
        self, night: str, attempts: Sequence[Attempt]
    ) -> tuple[Settled, list[VerdictChange]]:
        """A night's attempts: what they come to, and what that changes."""
        settled = settle(attempts)
        self.covered = settled.state in VERDICTS or settled.state is JobState.FLAKY
        if not self.covered:
            return settled, []

        decided = [attempt for attempt in attempts if attempt.outcome in _CONCLUSIVE]
        changes = self._under_one_key(decided)
        flaky = any(len(self.pools[attempt.key]) > 1 for attempt in decided)
        # That it is flaky was told when it began to be.
        if flaky and self.shaky:
            changes = [known for known in changes if known.kind is not EventKind.FLAKY]

        # Under one key first: where that tells of a change, another key explains none.
        if not changes and not flaky:
            changes = self._under_another_key(settled, decided)

        self.shaky = flaky
        self.ever_flaky = self.ever_flaky or flaky
        self.settled = settled
        self.night = night
        self.attempts = decided
        return settled, changes

    def _under_one_key(self, decided: Sequence[Attempt]) -> list[VerdictChange]:
        by_key: dict[str, Counter[Outcome]] = {}
        for attempt in decided:
            verdicts = by_key.setdefault(attempt.key, Counter())
            if attempt.outcome:
                verdicts[attempt.outcome] += 1

        changes = []
        for key, tonight in by_key.items():
            before = self.pools.get(key, Counter())
            both = before + tonight
            self.pools[key] = both
            # One verdict contradicts nothing; a key that was flaky before is no news.
            if len(both) < 2 or len(before) > 1:
                continue

            p = _chance(before, tonight)
            if p < _UNLIKELY:
                # From here on the key has the new verdict: a drift is told once.
                self.pools[key] = tonight
                why = _not_in_the_key(before, tonight, p)
                changes.append(VerdictChange(EventKind.DRIFT, why))
            else:
                why = _share(both, known=bool(key))
                changes.append(VerdictChange(EventKind.FLAKY, why))

        return changes

    def _under_another_key(
        self, now: Settled, decided: Sequence[Attempt]
    ) -> list[VerdictChange]:
        if _verdicts(decided) <= _verdicts(self.attempts):
            return []
        before = self.settled
        if now.differing and (before is None or not before.differing):
            why = f"within one night: {now.why}"
            return [VerdictChange(EventKind.DRIFT, why, now.differing)]
        if before is None or before.state is now.state or self.shaky:
            return []

        parts = changed_parts(self.attempts, decided) or ("key",)
        changes = [describe(part, self.attempts, decided) for part in parts]
        why = f"changed beside it: {', '.join(changes)}"
        return [VerdictChange(EventKind.DRIFT, why, parts)]


def _verdicts(attempts: Iterable[Attempt]) -> set[tuple[str, Outcome | None]]:
    """The verdict of each attempt, with its key."""
    return {(attempt.key, attempt.outcome) for attempt in attempts}


_WORDS = {
    "code": "mmrepro's own code",
    "mmrepro": "mmrepro's version",
    "environment": "the engine's environment",
    "host": "the machine",
    "key_version": "what mmrepro makes a run's key of",
    "inherited": "variables that the engine inherits",
    "key": "the key, of which no part is known",
}
"""What the parts of a key are called in a sentence."""


def describe(part: str, before: Sequence[Attempt], now: Sequence[Attempt]) -> str:
    """The part of the key, and how it changed where that is short enough to be read."""
    word = _WORDS.get(part, part)
    old, new = _value(part, before), _value(part, now)
    if _is_readable(old) and _is_readable(new):
        return f"{word} ({old} → {new})"
    return word


def _is_readable(value: str) -> bool:
    return 0 < len(value) <= 60 and not _is_digest(value)


def _value(part: str, attempts: Sequence[Attempt]) -> str:
    """The value that all attempts have of a part of the key; empty where they differ."""
    values = {attempt.parts.get(part, "") for attempt in attempts}
    return values.pop() if len(values) == 1 else ""


def _is_digest(value: str) -> bool:
    return len(value) >= 16 and set(value) <= set("0123456789abcdef")


def _chance(before: Counter[Outcome], tonight: Counter[Outcome]) -> float:
    """Probability that nights which agree each with itself differ by chance; 1 where
    they do not agree."""
    if len(before) != 1 or len(tonight) != 1 or tonight.total() < _MIN_DRIFT_RUNS:
        return 1.0
    return fisher((before.total(), 0), (0, tonight.total()))


def _not_in_the_key(
    before: Counter[Outcome], tonight: Counter[Outcome], p: float
) -> str:
    (old,), (new,) = before, tonight
    return (
        f"the key is unchanged: {old} in all {before.total()} runs before, {new} in "
        f"all {tonight.total()} now (p = {p:.2g}), so that something changed that is "
        "not in the key"
    )


def _share(both: Counter[Outcome], *, known: bool) -> str:
    counts = [f"{number} × {outcome}" for outcome, number in both.most_common()]
    reproduced, runs = both[Outcome.REPRODUCED], both.total()
    low, high = wilson(reproduced, runs)
    return (
        f"{', '.join(counts)} under {_under(known)}: it reproduces in {reproduced} of "
        f"{runs} runs (95 %: {low:.0%} to {high:.0%})"
    )
