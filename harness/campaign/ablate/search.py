"""What runs show, what to flip next, and what follows from it. Pure functions.

The oracle that gives cells' states may be anything: runs of a real engine, the cache
alone, a made-up function in a test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
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
    fails = count[CellState.FAILS]
    done = len(states)
    counts = ", ".join(f"{number} × {state}" for state, number in count.most_common())
    if fails >= threshold:
        return CellState.FAILS, counts
    if fails:
        flaky = f"it comes and goes, {threshold} are needed to call it one"
        return CellState.UNDECIDED, f"{counts}: {flaky}"
    if done < repeat:
        return CellState.UNDECIDED, f"{counts or 'no run'}, of {repeat}"
    if count[CellState.LOST] == done:
        return CellState.LOST, counts

    # What a run shows outweighs that others show a cure.
    for state in (CellState.OTHER, CellState.NOT_TESTED):
        if count[state]:
            return state, counts
    if count[CellState.UNDECIDED] or count[CellState.LOST]:
        return CellState.UNDECIDED, counts
    if count[CellState.HIDDEN]:
        return CellState.HIDDEN, counts
    return CellState.CURED, counts


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
        chunk = _first(chunks, holds)
        if chunk is not None:
            current = chunk
            parts = 2
            continue

        rest = None
        # With two parts the complements are the parts themselves.
        if parts > 2:
            rest = _first((_without(current, chunk) for chunk in chunks), holds)
        if rest is not None:
            current = rest
            parts = max(parts - 1, 2)
        elif parts < len(current):
            parts = min(2 * parts, len(current))
        else:
            break

    return current


def _first(
    sets: Iterable[tuple[T, ...]], holds: Callable[[tuple[T, ...]], bool]
) -> tuple[T, ...] | None:
    """The first set that holds; None: none does. No further one is asked."""
    for candidate in sets:
        if holds(candidate):
            return candidate

    return None


def bound(count: int) -> int:
    """Most questions that ddmin may ask about ``count`` items (proved in the paper)."""
    return 0 if count < 2 else count * count + 3 * count


def _split(items: tuple[T, ...], parts: int) -> list[tuple[T, ...]]:
    """``parts`` pieces of nearly equal length, none empty."""
    size, longer = divmod(len(items), parts)
    pieces = []
    start = 0
    for number in range(parts):
        end = start + size + (number < longer)
        pieces.append(items[start:end])
        start = end

    return pieces


def _without(items: tuple[T, ...], removed: tuple[T, ...]) -> tuple[T, ...]:
    return tuple(item for item in items if item not in removed)


Flips = tuple[str, ...]
Oracle = Callable[[Sequence[Flips], Role], Sequence[CellState]]
"""States of the cells with exactly these flips, which do not depend on each other. It
is asked once for each cell."""

NOT_CURED = (CellState.FAILS, CellState.HIDDEN)
"""States that show that a set of flips is no cure."""


@dataclass(frozen=True)
class FactorVerdict:
    factor_class: FactorClass
    cures_alone: bool | None
    needed: bool | None
    why: str


_PLAIN = {
    CellState.HIDDEN: FactorVerdict(
        factor_class=FactorClass.HIDES,
        cures_alone=False,
        needed=False,
        why="toggled alone, it takes the symptom away, and the cause is still there",
    ),
    CellState.OTHER: FactorVerdict(
        factor_class=FactorClass.OTHER,
        cures_alone=None,
        needed=None,
        why="toggled alone, it fails in another way",
    ),
    CellState.NOT_TESTED: FactorVerdict(
        factor_class=FactorClass.NOT_TESTED,
        cures_alone=None,
        needed=None,
        why="the toggle was not observed to take effect",
    ),
}


@dataclass(frozen=True)
class FoundCure:
    flips: Flips
    minimal: bool | None
    why: str


@dataclass
class AblationResult:
    conclusion: Conclusion
    explanation: str
    factors: dict[str, FactorVerdict] = field(default_factory=dict)
    cures: list[FoundCure] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    asked: dict[frozenset[str], CellState] = field(default_factory=dict)


class _Memory:
    """Asks each cell once, in the factors' own order."""

    def __init__(self, names: Sequence[str], oracle: Oracle) -> None:
        self.names = tuple(names)
        self.oracle = oracle
        self.states: dict[frozenset[str], CellState] = {}

    def ask(self, cells: Sequence[Sequence[str]], role: Role) -> list[CellState]:
        keys = [frozenset(flips) for flips in cells]
        new = [key for key in dict.fromkeys(keys) if key not in self.states]
        if new:
            flips = [self._ordered(key) for key in new]
            self.states.update(zip(new, self.oracle(flips, role), strict=True))

        return [self.states[key] for key in keys]

    def _ordered(self, flips: frozenset[str]) -> Flips:
        return tuple(name for name in self.names if name in flips)

    def cures(self, flips: Sequence[str]) -> bool:
        return self.ask([flips], "search") == [CellState.CURED]


def search(names: Sequence[str], oracle: Oracle) -> AblationResult:
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
        return _nothing_to_ablate(names, baseline, memory)

    states = memory.ask([(name,) for name in names], "alone")
    alone = dict(zip(names, states, strict=True))
    usable = [n for n in names if alone[n] in (CellState.FAILS, CellState.CURED)]
    singles = [name for name in usable if alone[name] is CellState.CURED]
    rest = _less(usable, singles)
    memory.ask([some for some in (usable, rest) if len(some) > 1], "together")

    cures = []
    for name in singles:
        why = "toggled alone, it works around the failure"
        cures.append(FoundCure((name,), True, why))

    if len(rest) > 1 and memory.states[frozenset(rest)] is CellState.CURED:
        together = _minimised(rest, memory)
        cures.append(together)
        # Could anything else cure without one of these?
        if not singles:
            memory.ask([_less(usable, [name]) for name in together.flips], "search")

    factors = {}
    left_out = {}
    for name in names:
        factors[name] = _judged(name, alone[name], singles, usable, cures, memory)
        if name not in usable:
            left_out[name] = _left_out(alone[name])

    conclusion, explanation = _concluded(names, cures, alone, usable, memory)
    return AblationResult(
        conclusion=conclusion,
        explanation=explanation,
        factors=factors,
        cures=cures,
        left_out=left_out,
        asked=memory.states,
    )


def _less(names: Sequence[str], left_out: Sequence[str]) -> list[str]:
    return [name for name in names if name not in left_out]


def _nothing_to_ablate(
    names: Sequence[str], baseline: CellState, memory: _Memory
) -> AblationResult:
    unknown = FactorVerdict(
        factor_class=FactorClass.INCONCLUSIVE,
        cures_alone=None,
        needed=None,
        why="the baseline does not fail",
    )
    return AblationResult(
        conclusion=Conclusion.INCONCLUSIVE,
        explanation=(
            f"the baseline does not fail ({baseline}): there is nothing to ablate"
        ),
        factors=dict.fromkeys(names, unknown),
        asked=memory.states,
    )


def _minimised(items: Sequence[str], memory: _Memory) -> FoundCure:
    flips = ddmin(tuple(items), memory.cures)
    unclear = set()
    for left_out in flips:
        smaller = frozenset(_less(flips, [left_out]))
        state = memory.states.get(smaller)
        if state not in NOT_CURED:
            unclear.add(str(state))

    if not unclear:
        why = "together they are a workaround, and none can be left out"
        return FoundCure(flips, True, why)
    states = ", ".join(sorted(unclear))
    why = f"together a workaround; it is not known whether all are needed ({states})"
    return FoundCure(flips, None, why)


def _judged(
    name: str,
    state: CellState,
    singles: Sequence[str],
    usable: Sequence[str],
    cures: Sequence[FoundCure],
    memory: _Memory,
) -> FactorVerdict:
    if state is CellState.CURED:
        needed, why = _needed(name, singles, usable, memory)
        return FactorVerdict(
            factor_class=FactorClass.NECESSARY if needed else FactorClass.SUFFICIENT,
            cures_alone=True,
            needed=needed,
            why=f"toggled alone, it works around the failure; {why}",
        )
    if state in _PLAIN:
        return _PLAIN[state]
    if state is not CellState.FAILS:
        return FactorVerdict(
            factor_class=FactorClass.INCONCLUSIVE,
            cures_alone=None,
            needed=None,
            why=f"toggled alone: {state}",
        )

    for cure in cures:
        if name in cure.flips:
            needed = False if singles else _none_without(name, usable, memory)
            return _contributes(name, cure, needed)

    return FactorVerdict(
        factor_class=FactorClass.IRRELEVANT,
        cures_alone=False,
        needed=False,
        why="toggled alone, nothing changes; no workaround has it",
    )


def _contributes(name: str, cure: FoundCure, needed: bool | None) -> FactorVerdict:
    others = ", ".join(_less(cure.flips, [name]))
    why = (
        f"toggled alone, it changes nothing; it is a workaround together with {others}"
    )
    if needed:
        why += ", and no workaround here does without it"
    return FactorVerdict(
        factor_class=FactorClass.CONTRIBUTES,
        cures_alone=False,
        needed=needed,
        why=why,
    )


def _none_without(name: str, usable: Sequence[str], memory: _Memory) -> bool | None:
    """Whether nothing cures with ``name`` as it is in the baseline; None: not known."""
    for cell, state in memory.states.items():
        if state is CellState.CURED and name not in cell:
            return False

    rest = frozenset(_less(usable, [name]))
    return True if memory.states[rest] in NOT_CURED else None


def _needed(
    name: str, singles: Sequence[str], usable: Sequence[str], memory: _Memory
) -> tuple[bool | None, str]:
    """Whether nothing that was tried cures without ``name``, which cures alone."""
    others = _less(singles, [name])
    if others:
        verb = "does" if len(others) == 1 else "do"
        return False, f"so {verb} {', '.join(others)}: it is not the only workaround"

    setting = "the failure needs its failing setting"
    rest = _less(usable, [name])
    needed = _none_without(name, usable, memory)
    if not rest:
        return needed, f"{setting}: there is no other workaround here"

    state = memory.states[frozenset(rest)]
    together = f"with all other usable factors toggled ({', '.join(rest)})"
    if needed is None:
        unknown = "whether there is another workaround is not known"
        return None, f"{unknown}: {together}, {state}"
    if not needed:
        return False, "but there are workarounds without it"
    return True, f"{setting}: {together}, {_still(state)}"


def _still(state: CellState) -> str:
    return "it still fails" if state is CellState.FAILS else "the cause is still there"


def _left_out(state: CellState) -> str:
    if state is CellState.HIDDEN:
        return "it hides the failure, and would mask what it is combined with"
    return f"toggled alone: {state}"


def _concluded(
    names: Sequence[str],
    cures: Sequence[FoundCure],
    alone: dict[str, CellState],
    usable: Sequence[str],
    memory: _Memory,
) -> tuple[Conclusion, str]:
    if cures:
        listed = "; or ".join(" + ".join(cure.flips) for cure in cures)
        return Conclusion.CURE, f"smallest workaround: {listed}"

    clear = (*NOT_CURED, CellState.OTHER)
    unclear = [name for name in names if alone[name] not in clear]
    together = memory.states.get(frozenset(usable))
    if unclear or (together is not None and together not in NOT_CURED):
        what = ", ".join(unclear) or "all of them together"
        unknown = f"no workaround was found, and nothing is known of: {what}"
        return Conclusion.INCONCLUSIVE, unknown

    return Conclusion.NO_CURE, "no factor is a workaround, alone or all together"
