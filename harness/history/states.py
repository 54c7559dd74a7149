"""What the attempts at one cell show together: its state, how sure that is, whether it surprises.

Pure functions. A cell is good only by a conclusive run; what was lost or inconclusive is told and
decides nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from mmrepro.history.chance import wilson
from mmrepro.incident.ledger import Attempt
from mmrepro.signature import Outcome


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
        reproduced: of the ``conclusive`` attempts; ``low`` and ``high`` are its 95 % interval.
        why: one clause: what was counted, and what else is to be known.
        as_expected: None: nothing was expected, or nothing was learnt.
        keys: of the attempts with an outcome.
        differing: the parts of the keys that differ where verdicts do, if those are of different
            keys: the cell drifted within its night and is not flaky.
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

    FLAKY: two verdicts under one key, whichever two they are. Under different keys they are no
    contradiction: the worst one is the cell's, and ``why`` names what differs between them.
    Attempts whose key nobody knows count as being of one.
    """
    count = Counter(a.outcome for a in attempts if a.outcome is not None)
    lost = sum(a.outcome is None for a in attempts)
    decided = [a for a in attempts if a.outcome in CONCLUSIVE]
    state, differing = _state(attempts, decided)
    reproduced = count[Outcome.REPRODUCED]
    low, high = wilson(reproduced, len(decided))
    expected = next((a.expected for a in reversed(attempts) if a.expected is not None), None)
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
    """Why this is not what was expected; "": it is, or nothing was, or nothing was learnt.

    Expected is what ``before``, the last night, settled on for this cell if the key is the same;
    else what the scenario says.
    """
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
                return f"{seen.state}, but {before.state} the night before, under the same key"
    if seen.state is State.FLAKY:
        return f"more than one verdict under one key: {seen.why}"
    wanted = expected if expected is not None else seen.expected
    if wanted is None or seen.state.value == wanted.value:
        return ""
    return f"{seen.state}, but {wanted} is expected"


def changed_parts(some: Iterable[Attempt], others: Iterable[Attempt]) -> tuple[str, ...]:
    """Names of the parts of the key of which some have another value than the others."""
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
        return (State.INCONCLUSIVE if any(a.outcome for a in attempts) else State.LOST), ()
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
    words = Counter(a.outcome.value if a.outcome else f"lost ({a.lost})" for a in attempts)
    said = ", ".join(f"{number} × {word}" for word, number in words.most_common())
    if state is State.FLAKY:
        under = "one key" if all(a.key for a in attempts if a.outcome) else "a key nobody knows"
        return f"{said}, under {under}"
    if differing:
        return f"{said}; the verdicts are of different keys, which differ in: " + ", ".join(
            differing
        )
    return said


def _as_expected(state: State, expected: Outcome | None) -> bool | None:
    if state in (State.LOST, State.MISSING) or expected is None:
        return None
    return state.value == expected.value
