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

from mmrepro.failure.documents.ledger import Attempt, Cell, EventKind
from mmrepro.failure.signature import Outcome

Z_95 = 1.959963984540054
UNLIKELY = 0.05
"""Below it, chance is not taken for the reason."""


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a proportion; (0, 1) without any trial."""
    if not trials:
        return 0.0, 1.0
    share, z2 = successes / trials, Z_95**2
    middle = share + z2 / (2 * trials)
    half = Z_95 * math.sqrt(share * (1 - share) / trials + z2 / (4 * trials**2))
    scale = 1 + z2 / trials
    low, high = (middle - half) / scale, (middle + half) / scale
    # At the ends the exact value is an end, and rounding would leave it out.
    return (low if successes else 0.0), (high if successes < trials else 1.0)


def fisher(first: tuple[int, int], second: tuple[int, int]) -> float:
    """Two-sided p of Fisher's exact test that two samples of two kinds are of one
    source.

    Counted in whole numbers, so that tables that are equally likely are seen to be.
    """
    kinds = first[0] + second[0]
    size, total = sum(first), sum(first) + sum(second)

    def ways(x: int) -> int:
        return math.comb(kinds, x) * math.comb(total - kinds, size - x)

    observed = ways(first[0])
    possible = range(max(0, size + kinds - total), min(size, kinds) + 1)
    return sum(w for x in possible if (w := ways(x)) <= observed) / math.comb(
        total, size
    )


class State(StrEnum):
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


CONCLUSIVE = (Outcome.REPRODUCED, Outcome.DIFFERENT_FAILURE, Outcome.NOT_REPRODUCED)
"""The worst first: where verdicts differ between keys, it is the cell's."""
VERDICTS = frozenset((State.REPRODUCED, State.DIFFERENT_FAILURE, State.NOT_REPRODUCED))
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

    state: State
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
    count = Counter(a.outcome for a in attempts if a.outcome is not None)
    lost = sum(a.outcome is None for a in attempts)
    decided = [a for a in attempts if a.outcome in CONCLUSIVE]
    state, differing = _state(attempts, decided)
    reproduced = count[Outcome.REPRODUCED]
    low, high = wilson(reproduced, len(decided))
    expected = next(
        (a.expected for a in reversed(attempts) if a.expected is not None), None
    )
    return Settled(
        state=state,
        count=count,
        lost=lost,
        reproduced=reproduced,
        conclusive=len(decided),
        low=low,
        high=high,
        why=_why(attempts, state, differing),
        expected=expected,
        as_expected=_as_expected(state, expected),
        keys=frozenset(a.key for a in attempts if a.outcome is not None and a.key),
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
    if seen.state in (State.LOST, State.MISSING):
        return ""
    if before is not None and _same_experiment(now, before):
        if before.state is State.FLAKY or before.differing:
            if seen.state is State.FLAKY or any(before.count[o] for o in seen.count):
                return ""
            return f"{seen.state}, which was not among the verdicts of the night before"
        if before.state in (*VERDICTS, State.INCONCLUSIVE):
            if seen.state is before.state:
                return ""
            if before.state in VERDICTS:
                return (
                    f"{seen.state}, but {before.state} the night before, under the "
                    "same key"
                )
    if seen.state is State.FLAKY:
        return f"more than one verdict under one key: {seen.why}"
    wanted = expected if expected is not None else seen.expected
    if wanted is None or seen.state.value == wanted.value:
        return ""
    return f"{seen.state}, but {wanted} is expected"


def changed_parts(
    some: Iterable[Attempt], others: Iterable[Attempt]
) -> tuple[str, ...]:
    """Names of the parts of the key of which some have another value than the
    others."""
    first, second = [a.parts for a in some], [a.parts for a in others]
    names = dict.fromkeys(name for parts in (*first, *second) for name in parts)
    return tuple(
        name
        for name in names
        if {p.get(name) for p in first}.isdisjoint({p.get(name) for p in second})
    )


def _same_experiment(now: Settled | Attempt, before: Settled) -> bool:
    keys = {now.key} if isinstance(now, Attempt) else now.keys
    return not before.keys.isdisjoint(keys)


def _state(
    attempts: Sequence[Attempt], decided: Sequence[Attempt]
) -> tuple[State, tuple[str, ...]]:
    if not attempts:
        return State.MISSING, ()
    if not decided:
        return (
            State.INCONCLUSIVE if any(a.outcome for a in attempts) else State.LOST
        ), ()
    by_key: dict[str, set[Outcome | None]] = {}
    for attempt in decided:
        by_key.setdefault(attempt.key, set()).add(attempt.outcome)
    if any(len(verdicts) > 1 for verdicts in by_key.values()):
        return State.FLAKY, ()
    worst = next(o for o in CONCLUSIVE if any(a.outcome is o for a in decided))
    rest = [a for a in decided if a.outcome is not worst]
    if not rest:
        return State(worst.value), ()
    return State(worst.value), (
        changed_parts((a for a in decided if a.outcome is worst), rest) or ("key",)
    )


def _why(attempts: Sequence[Attempt], state: State, differing: Sequence[str]) -> str:
    if state is State.MISSING:
        return "no run"
    words = Counter(
        a.outcome.value if a.outcome else f"lost ({a.lost})" for a in attempts
    )
    said = ", ".join(f"{number} × {word}" for word, number in words.most_common())
    if state is State.FLAKY:
        under = (
            "one key"
            if all(a.key for a in attempts if a.outcome)
            else "a key nobody knows"
        )
        return f"{said}, under {under}"
    if differing:
        return (
            f"{said}; the verdicts are of different keys, which differ in: "
            + ", ".join(differing)
        )
    return said


def _as_expected(state: State, expected: Outcome | None) -> bool | None:
    if state in (State.LOST, State.MISSING) or expected is None:
        return None
    return state.value == expected.value


MIN_DRIFT_RUNS = 2
"""Of one night: a single run agrees with itself whatever it shows."""


@dataclass(frozen=True)
class Change:
    """Another verdict on the same release: what it is, and a clause why it is not
    chance, or is."""

    kind: EventKind
    why: str
    parts: tuple[str, ...] = ()
    """Of the key, that changed."""


@dataclass
class Track:
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
    ) -> tuple[Settled, list[Change]]:
        """A night's attempts: what they come to, and what that changes."""
        settled = settle(attempts)
        self.covered = settled.state in VERDICTS or settled.state is State.FLAKY
        if not self.covered:
            return settled, []
        decided = [a for a in attempts if a.outcome in CONCLUSIVE]
        changes = self._under_one_key(decided)
        flaky = any(len(self.pools[a.key]) > 1 for a in decided)
        if flaky and self.shaky:
            changes = [c for c in changes if c.kind is not EventKind.FLAKY]
        if not changes and not flaky:
            changes = self._under_another_key(settled, decided)
        self.shaky, self.ever_flaky = flaky, self.ever_flaky or flaky
        self.settled, self.night, self.attempts = settled, night, decided
        return settled, changes

    def _under_one_key(self, decided: Sequence[Attempt]) -> list[Change]:
        changes = []
        for key in dict.fromkeys(a.key for a in decided):
            tonight = Counter(a.outcome for a in decided if a.key == key and a.outcome)
            before = self.pools.get(key, Counter())
            both = before + tonight
            self.pools[key] = both
            if len(both) < 2 or len(before) > 1:
                continue
            p = _chance(before, tonight)
            if p < UNLIKELY:
                self.pools[key] = tonight
                changes.append(
                    Change(EventKind.DRIFT, _not_in_the_key(before, tonight, p))
                )
            else:
                changes.append(Change(EventKind.FLAKY, _share(both, known=bool(key))))
        return changes

    def _under_another_key(
        self, now: Settled, decided: Sequence[Attempt]
    ) -> list[Change]:
        known = {(a.key, a.outcome) for a in self.attempts}
        if all((a.key, a.outcome) in known for a in decided):
            return []
        if now.differing and (self.settled is None or not self.settled.differing):
            return [
                Change(EventKind.DRIFT, f"within one night: {now.why}", now.differing)
            ]
        if self.settled is None or self.settled.state is now.state or self.shaky:
            return []
        parts = changed_parts(self.attempts, decided) or ("key",)
        told = ", ".join(describe(name, self.attempts, decided) for name in parts)
        return [Change(EventKind.DRIFT, f"changed beside it: {told}", parts)]


WORDS = {
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
    word = WORDS.get(part, part)
    old, new = _value(part, before), _value(part, now)
    if (
        not old
        or not new
        or max(len(old), len(new)) > 60
        or _is_digest(old)
        or _is_digest(new)
    ):
        return word
    return f"{word} ({old} → {new})"


def _value(part: str, attempts: Sequence[Attempt]) -> str:
    values = {a.parts.get(part, "") for a in attempts}
    return values.pop() if len(values) == 1 else ""


def _is_digest(value: str) -> bool:
    return len(value) >= 16 and set(value) <= set("0123456789abcdef")


def _chance(before: Counter[Outcome], tonight: Counter[Outcome]) -> float:
    """That nights which agree each with itself differ by chance; 1 where they do not
    agree."""
    if len(before) != 1 or len(tonight) != 1 or tonight.total() < MIN_DRIFT_RUNS:
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
    said = ", ".join(f"{number} × {outcome}" for outcome, number in both.most_common())
    low, high = wilson(both[Outcome.REPRODUCED], both.total())
    under = "one key" if known else "a key nobody knows"
    return (
        f"{said} under {under}: it reproduces in {both[Outcome.REPRODUCED]} of "
        f"{both.total()} runs (95 %: {low:.0%} to {high:.0%})"
    )
