"""What runs show, what to flip next, and what follows from it. Pure functions.

The oracle that gives cells' states may be anything: runs of a real engine, the cache
alone, a made-up function in a test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from mmrepro.failure.documents.searches import (
    CellRun,
    CellState,
    Conclusion,
    FactorClass,
    Role,
)
from mmrepro.failure.signature import Outcome, Truth


def state_of_run(run: CellRun) -> CellState:
    """An unknown cause is not a cause that is gone: it leaves a run without symptom
    undecided.

    A run without the symptom may be inconclusive for the scenario, because the trigger
    did not come as far as it must. Such a run shows no workaround, but its observation
    of the cause counts."""
    if run.outcome is None:
        return CellState.LOST
    if run.without_effect:
        return CellState.NOT_TESTED
    if run.outcome is Outcome.REPRODUCED:
        return CellState.FAILS
    if run.outcome is Outcome.DIFFERENT_FAILURE:
        return CellState.OTHER
    if not run.gate_passed or run.symptom is not Truth.NOT_MET:
        return CellState.UNDECIDED
    if run.cause is Truth.MET:
        return CellState.HIDDEN
    if run.cause is Truth.NOT_MET and run.outcome is Outcome.NOT_REPRODUCED:
        return CellState.CURED
    return CellState.UNDECIDED


def state_of_cell(
    states: Sequence[CellState], repeat: int, threshold: int
) -> tuple[CellState, str]:
    """The state of a cell, and why.

    ``threshold`` failing runs of ``repeat`` make it fail. Below that, one failing run
    is enough to say that it is no cure. Every run has to show a cure for a cell to be
    one; one that shows the hidden cause makes it hidden."""
    count = Counter(states)
    fails, done = count[CellState.FAILS], len(states)
    said = ", ".join(f"{number} × {state}" for state, number in count.most_common())
    if fails >= threshold:
        return CellState.FAILS, said
    if fails:
        return (
            CellState.UNDECIDED,
            f"{said}: it comes and goes, {threshold} are needed to call it one",
        )
    if done < repeat:
        return CellState.UNDECIDED, f"{said or 'no run'}, of {repeat}"
    if count[CellState.LOST] == done:
        return CellState.LOST, said
    for state in (CellState.OTHER, CellState.NOT_TESTED):
        if count[state]:
            return state, said

    if count[CellState.UNDECIDED] or count[CellState.LOST]:
        return CellState.UNDECIDED, said
    return (CellState.HIDDEN if count[CellState.HIDDEN] else CellState.CURED), said


def decided(states: Sequence[CellState], repeat: int, threshold: int) -> bool:
    """Whether further runs of the cell could not change its state any more."""
    if len(states) >= repeat:
        return True
    count = Counter(states)
    fails, left = count[CellState.FAILS], repeat - len(states)
    return fails >= threshold or (fails > 0 and fails + left < threshold)


# ---------------------------------------------------------------- delta debugging

T = TypeVar("T")


def ddmin(items: Sequence[T], holds: Callable[[tuple[T, ...]], bool]) -> tuple[T, ...]:
    """A subset of ``items``, in their order, for which ``holds`` and that is 1-minimal.

    1-minimal: ``holds`` was asked of the result without each one of its items and
    denied it (but for a result of one item, whose remainder is empty and never asked).
    ``holds`` may be any
    function: where it is not monotone, the result is 1-minimal all the same, though a
    smaller set that does it may exist. At most ``bound(len(items))`` questions,
    repetitions included.

    Args:
        holds: must be true of ``items`` as a whole; that is not asked again.
    """
    current = tuple(items)
    parts = 2
    while len(current) >= 2:
        chunks = _split(current, parts)
        smaller = next((chunk for chunk in chunks if holds(chunk)), None)
        if smaller is not None:
            current, parts = smaller, 2
            continue
        # With two parts the complements are the parts themselves.
        complements = (
            [_without(current, chunk) for chunk in chunks] if parts > 2 else []
        )
        smaller = next((rest for rest in complements if holds(rest)), None)
        if smaller is not None:
            current, parts = smaller, max(parts - 1, 2)
        elif parts < len(current):
            parts = min(2 * parts, len(current))
        else:
            break

    return current


def bound(count: int) -> int:
    """Most questions that ddmin may ask about ``count`` items (proved in the paper)."""
    return 0 if count < 2 else count * count + 3 * count


def _split(items: tuple[T, ...], parts: int) -> list[tuple[T, ...]]:
    """``parts`` pieces of nearly equal length, none empty."""
    size, longer = divmod(len(items), parts)
    pieces, start = [], 0
    for number in range(parts):
        end = start + size + (number < longer)
        pieces.append(items[start:end])
        start = end

    return pieces


def _without(items: tuple[T, ...], removed: tuple[T, ...]) -> tuple[T, ...]:
    return tuple(item for item in items if item not in removed)


Flips = tuple[str, ...]
_Oracle = Callable[[Sequence[Flips], Role], Sequence[CellState]]
"""States of the cells with exactly these flips, which do not depend on each other. It
is asked once for each cell."""

NOT_CURED = (CellState.FAILS, CellState.HIDDEN)
"""States that show that a set of flips is no cure."""


@dataclass(frozen=True)
class _FactorVerdict:
    factor_class: FactorClass
    cures_alone: bool | None
    needed: bool | None
    why: str


PLAIN = {
    CellState.HIDDEN: _FactorVerdict(
        FactorClass.HIDES,
        False,
        False,
        "toggled alone, it takes the symptom away, and the cause is still there",
    ),
    CellState.OTHER: _FactorVerdict(
        FactorClass.OTHER, None, None, "toggled alone, it fails in another way"
    ),
    CellState.NOT_TESTED: _FactorVerdict(
        FactorClass.NOT_TESTED, None, None, "the toggle was not observed to take effect"
    ),
}
"""What a factor's own cell says of it, whatever the others show."""


@dataclass(frozen=True)
class _FoundCure:
    flips: Flips
    minimal: bool | None
    why: str


@dataclass
class AblationResult:
    conclusion: Conclusion
    explanation: str
    factors: dict[str, _FactorVerdict] = field(default_factory=dict)
    cures: list[_FoundCure] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    asked: dict[frozenset[str], CellState] = field(default_factory=dict)


class _Memory:
    """Asks each cell once, in the factors' own order."""

    def __init__(self, names: Sequence[str], oracle: _Oracle) -> None:
        self.names = tuple(names)
        self.oracle = oracle
        self.states: dict[frozenset[str], CellState] = {}

    def ask(self, cells: Sequence[Sequence[str]], role: Role) -> list[CellState]:
        keys = [frozenset(flips) for flips in cells]
        if new := [key for key in dict.fromkeys(keys) if key not in self.states]:
            flips = [tuple(n for n in self.names if n in key) for key in new]
            self.states.update(zip(new, self.oracle(flips, role), strict=True))

        return [self.states[key] for key in keys]

    def cures(self, flips: Sequence[str]) -> bool:
        return self.ask([flips], "search") == [CellState.CURED]


def search(names: Sequence[str], oracle: _Oracle) -> AblationResult:
    """The one-at-a-time table, then combinations, then the smallest cures.

    1. The baseline has to fail; else there is nothing to find.
    2. Each factor is flipped alone. One that hides the failure would mask whatever it
       is combined with, and one whose run showed nothing clear would spoil it: neither
       goes any further.
    3. All that are left are flipped together, and so are those that cure nothing alone:
       do they cure without the ones that do?
    4. Where only a combination cures, ddmin finds a smallest one.
    """
    memory = _Memory(names, oracle)
    (baseline,) = memory.ask([()], "baseline")
    if baseline is not CellState.FAILS:
        found = AblationResult(
            Conclusion.INCONCLUSIVE,
            f"the baseline does not fail ({baseline}): there is nothing to ablate",
            asked=memory.states,
        )
        unknown = _FactorVerdict(
            FactorClass.INCONCLUSIVE, None, None, "the baseline does not fail"
        )
        found.factors = dict.fromkeys(names, unknown)
        return found

    alone = dict(
        zip(names, memory.ask([(name,) for name in names], "alone"), strict=True)
    )
    usable = [n for n in names if alone[n] in (CellState.FAILS, CellState.CURED)]
    singles = [n for n in usable if alone[n] is CellState.CURED]
    rest = [n for n in usable if n not in singles]
    memory.ask([some for some in (usable, rest) if len(some) > 1], "together")
    cures = [
        _FoundCure((n,), True, "toggled alone, it works around the failure")
        for n in singles
    ]
    if len(rest) > 1 and memory.states[frozenset(rest)] is CellState.CURED:
        cures.append(_minimised(rest, memory))
        if not singles:  # could anything else cure without one of these?
            memory.ask(
                [[n for n in usable if n != name] for name in cures[-1].flips], "search"
            )

    conclusion, explanation = _concluded(names, cures, alone, usable, memory)
    return AblationResult(
        conclusion,
        explanation,
        {n: _judged(n, alone[n], singles, usable, cures, memory) for n in names},
        cures,
        {n: _left_out(alone[n]) for n in names if n not in usable},
        memory.states,
    )


def _minimised(items: Sequence[str], memory: _Memory) -> _FoundCure:
    flips = ddmin(tuple(items), memory.cures)
    smaller = [tuple(n for n in flips if n != left) for left in flips]
    states = [memory.states.get(frozenset(s)) for s in smaller]
    if all(state in NOT_CURED for state in states):
        return _FoundCure(
            flips, True, "together they are a workaround, and none can be left out"
        )

    unclear = ", ".join(sorted({str(s) for s in states if s not in NOT_CURED}))
    return _FoundCure(
        flips,
        None,
        f"together a workaround; it is not known whether all are needed ({unclear})",
    )


def _judged(
    name: str,
    state: CellState,
    singles: Sequence[str],
    usable: Sequence[str],
    cures: Sequence[_FoundCure],
    memory: _Memory,
) -> _FactorVerdict:
    if state is CellState.CURED:
        needed, why = _needed(name, singles, usable, memory)
        chosen = FactorClass.NECESSARY if needed else FactorClass.SUFFICIENT
        return _FactorVerdict(
            chosen, True, needed, f"toggled alone, it works around the failure; {why}"
        )
    if state in PLAIN:
        return PLAIN[state]
    if state is not CellState.FAILS:
        return _FactorVerdict(
            FactorClass.INCONCLUSIVE, None, None, f"toggled alone: {state}"
        )

    member = next((c for c in cures if name in c.flips), None)
    if member is not None:
        others = ", ".join(n for n in member.flips if n != name)
        why = (
            "toggled alone, it changes nothing; it is a workaround together with "
            f"{others}"
        )
        needed = False if singles else _none_without(name, usable, memory)
        if needed:
            why += ", and no workaround here does without it"
        return _FactorVerdict(FactorClass.CONTRIBUTES, False, needed, why)

    return _FactorVerdict(
        FactorClass.IRRELEVANT,
        False,
        False,
        "toggled alone, nothing changes; no workaround has it",
    )


def _none_without(name: str, usable: Sequence[str], memory: _Memory) -> bool | None:
    """Whether nothing cures with ``name`` as it is in the baseline; None: not known."""
    rest = frozenset(n for n in usable if n != name)
    if any(
        state is CellState.CURED and name not in cell
        for cell, state in memory.states.items()
    ):
        return False

    return True if memory.states[rest] in NOT_CURED else None


def _needed(
    name: str, singles: Sequence[str], usable: Sequence[str], memory: _Memory
) -> tuple[bool | None, str]:
    """Whether nothing that was tried cures without ``name``, which cures alone."""
    others = [n for n in singles if n != name]
    if others:
        verb = "does" if len(others) == 1 else "do"
        return False, f"so {verb} {', '.join(others)}: it is not the only workaround"
    rest = [n for n in usable if n != name]
    needed = _none_without(name, usable, memory)
    if not rest:
        return (
            needed,
            "the failure needs its failing setting: there is no other workaround here",
        )

    state = memory.states[frozenset(rest)]
    together = f"all other usable factors toggled ({', '.join(rest)})"
    if needed is None:
        return (
            None,
            (
                f"whether there is another workaround is not known: with {together}, "
                f"{state}"
            ),
        )
    if not needed:
        return False, "but there are workarounds without it"
    return (
        True,
        f"the failure needs its failing setting: with {together}, {_still(state)}",
    )


def _still(state: CellState) -> str:
    return "it still fails" if state is CellState.FAILS else "the cause is still there"


def _left_out(state: CellState) -> str:
    if state is CellState.HIDDEN:
        return "it hides the failure, and would mask what it is combined with"
    return f"toggled alone: {state}"


def _concluded(
    names: Sequence[str],
    cures: Sequence[_FoundCure],
    alone: dict[str, CellState],
    usable: Sequence[str],
    memory: _Memory,
) -> tuple[Conclusion, str]:
    if cures:
        listed = "; or ".join(" + ".join(c.flips) for c in cures)
        return Conclusion.CURE, f"smallest workaround: {listed}"
    unclear = [n for n in names if alone[n] not in (*NOT_CURED, CellState.OTHER)]
    together = memory.states.get(frozenset(usable))
    if unclear or (together is not None and together not in NOT_CURED):
        what = ", ".join(unclear) or "all of them together"
        return (
            Conclusion.INCONCLUSIVE,
            f"no workaround was found, and nothing is known of: {what}",
        )

    return Conclusion.NO_CURE, "no factor is a workaround, alone or all together"
