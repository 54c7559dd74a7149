"""One cell, night after night: what it came to, and what is new about it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from mmrepro.history.chance import UNLIKELY, fisher, wilson
from mmrepro.history.states import CONCLUSIVE, VERDICTS, Settled, State, changed_parts, settle
from mmrepro.incident.ledger import Attempt, Cell, EventKind
from mmrepro.signature import Outcome

MIN_DRIFT_RUNS = 2
"""Of one night: a single run agrees with itself whatever it shows."""


@dataclass(frozen=True)
class Change:
    """Another verdict on the same release: what it is, and a clause why it is not chance, or is."""

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

    def add(self, night: str, attempts: Sequence[Attempt]) -> tuple[Settled, list[Change]]:
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
                changes.append(Change(EventKind.DRIFT, _not_in_the_key(before, tonight, p)))
            else:
                changes.append(Change(EventKind.FLAKY, _share(both, known=bool(key))))
        return changes

    def _under_another_key(self, now: Settled, decided: Sequence[Attempt]) -> list[Change]:
        known = {(a.key, a.outcome) for a in self.attempts}
        if all((a.key, a.outcome) in known for a in decided):
            return []
        if now.differing and (self.settled is None or not self.settled.differing):
            return [Change(EventKind.DRIFT, f"within one night: {now.why}", now.differing)]
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
    if not old or not new or max(len(old), len(new)) > 60 or _is_digest(old) or _is_digest(new):
        return word
    return f"{word} ({old} → {new})"


def _value(part: str, attempts: Sequence[Attempt]) -> str:
    values = {a.parts.get(part, "") for a in attempts}
    return values.pop() if len(values) == 1 else ""


def _is_digest(value: str) -> bool:
    return len(value) >= 16 and set(value) <= set("0123456789abcdef")


def _chance(before: Counter[Outcome], tonight: Counter[Outcome]) -> float:
    """That nights which agree each with itself differ by chance; 1 where they do not agree."""
    if len(before) != 1 or len(tonight) != 1 or tonight.total() < MIN_DRIFT_RUNS:
        return 1.0
    return fisher((before.total(), 0), (0, tonight.total()))


def _not_in_the_key(before: Counter[Outcome], tonight: Counter[Outcome], p: float) -> str:
    (old,), (new,) = before, tonight
    return (
        f"the key is unchanged: {old} in all {before.total()} runs before, {new} in all "
        f"{tonight.total()} now (p = {p:.2g}), so that something changed that is not in the key"
    )


def _share(both: Counter[Outcome], *, known: bool) -> str:
    said = ", ".join(f"{number} × {outcome}" for outcome, number in both.most_common())
    low, high = wilson(both[Outcome.REPRODUCED], both.total())
    under = "one key" if known else "a key nobody knows"
    return (
        f"{said} under {under}: it reproduces in {both[Outcome.REPRODUCED]} of {both.total()} "
        f"runs (95 %: {low:.0%} to {high:.0%})"
    )
