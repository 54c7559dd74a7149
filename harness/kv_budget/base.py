"""What every engine's arithmetic has in common: a setting in, a budget out, and where it is from.

An engine's ``MemoryPlan`` holds everything that is fixed before the server starts (memory, model,
release); ``forward`` answers what one value of the engine's own setting gives. It uses the
engine's operations in the engine's order, so that it also truncates where the engine does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from decimal import Decimal
from typing import ClassVar

from mmrepro.errors import UsageError

UNLIMITED = (1 << 63) - 1
"""What LMDeploy takes for "no limit" where a sliding window fits the cache."""


@dataclass(frozen=True)
class Source:
    """Where a formula was read.

    Attributes:
        release: the published wheel it was read in.
        file: below the package's folder.
        line: of that release.
        says: the formula in words.
    """

    repository: str
    release: str
    file: str
    line: int
    says: str

    def __str__(self) -> str:
        return f"{self.repository} {self.release} {self.file}:{self.line}"


@dataclass(frozen=True)
class Budget:
    """What one setting gives.

    Attributes:
        setting: value of the engine's option, as typed.
        pool_bytes: memory for the KV cache, rounded down to whole bytes; may be negative.
        reserve_bytes: what was set aside for everything else.
        blocks: whole blocks that fit, as the engine counts them.
        block_size: tokens a block.
        max_tokens: tokens of the longest prompt that the engine takes; 0 when it does not start.
        limited_by: what sets ``max_tokens``: ``kv``, ``context`` or ``window``.
        refusal: why the engine does not start, in its own words; empty when it does.
        notes: what else the engine changes by itself at this setting.
        log: what the engine's log says of it, as far as it can be foretold.
    """

    setting: Decimal
    pool_bytes: int
    reserve_bytes: int
    blocks: int
    block_size: int
    max_tokens: int
    limited_by: str = "kv"
    refusal: str = ""
    notes: tuple[str, ...] = ()
    log: str = ""

    @property
    def starts(self) -> bool:
        return not self.refusal

    def holds(self, tokens: int) -> bool:
        """Whether the engine starts and takes a prompt of so many tokens."""
        return self.starts and self.max_tokens >= tokens


def too_old(title: str, release: str, oldest: str) -> UsageError:
    """An engine's release before the first whose code was read."""
    return UsageError(
        f"The arithmetic of {title} {release} is not known here; it starts with {oldest}.",
        hint=f"mmrepro kv-budget --engine {title.lower()} --release {oldest} …",
    )


class MemoryPlan(ABC):
    """One engine at one release on one device with one model; only its setting is open.

    Attributes:
        setting_name: the option of the engine's command line, without dashes.
        top: the largest value that the engine takes.
        top_included: whether ``top`` itself is taken.
        whole: only whole numbers are taken.
    """

    engine: ClassVar[str]
    setting_name: ClassVar[str]
    whole: ClassVar[bool] = False
    top: ClassVar[Decimal] = Decimal(1)
    top_included: ClassVar[bool] = True

    @property
    @abstractmethod
    def default(self) -> Decimal | None:
        """What the engine takes without the option; None when it works one out itself."""

    @property
    @abstractmethod
    def formula_release(self) -> str:
        """Oldest release that computes like this."""

    @property
    @abstractmethod
    def sources(self) -> tuple[Source, ...]:
        """Every formula that ``forward`` uses, in its order."""

    @property
    @abstractmethod
    def block_bytes(self) -> int:
        """Bytes of one block over all layers, on one device."""

    @property
    @abstractmethod
    def block_size(self) -> int:
        """Tokens of one block."""

    @abstractmethod
    def forward(self, setting: Decimal) -> Budget:
        """The budget at that setting. Never raises for a setting that the engine takes."""

    @abstractmethod
    def blocks_for(self, tokens: int) -> int:
        """Blocks that the engine must have before it takes a prompt of so many tokens."""

    def takes(self, setting: Decimal) -> bool:
        """Whether the engine's own check lets that value pass."""
        if self.whole and setting != setting.to_integral_value():
            return False
        return setting > 0 and (setting < self.top or (self.top_included and setting == self.top))


@dataclass(frozen=True)
class Smallest:
    """Answer to "which setting holds a prompt of N tokens?".

    Attributes:
        tokens: N.
        blocks: blocks needed for it.
        setting: smallest step from which on every larger step holds N; None when no step does.
        lowest: smallest step that holds N at all. Differs from ``setting`` where an engine sets
            aside less by itself when memory is scarce (LMDeploy halves its prefill batch).
        below: the budget one step below ``setting``; it does not hold N. None at the first step.
        best: the budget of the step that holds most.
    """

    tokens: int
    blocks: int
    setting: Budget | None
    lowest: Budget | None
    below: Budget | None
    best: Budget | None


MAX_DECIMALS = 4


def steps(plan: MemoryPlan, decimals: int) -> list[Decimal]:
    """Every value with so many decimals that the engine takes, ascending.

    Raises:
        ValueError: decimals outside 1..4.
    """
    if not 1 <= decimals <= MAX_DECIMALS:
        raise ValueError(f"decimals must be between 1 and {MAX_DECIMALS}")
    if plan.whole:
        return [Decimal(k) for k in range(1, int(plan.top) + 1)]
    unit = Decimal(1).scaleb(-decimals)
    last = int(plan.top / unit)
    return [s for s in (unit * k for k in range(1, last + 1)) if plan.takes(s)]


def smallest(plan: MemoryPlan, tokens: int, decimals: int = 2) -> Smallest:
    """Find the smallest setting that holds ``tokens``, with so many decimals.

    Every step is tried with ``forward`` itself: there is no second formula that could disagree
    with it at a block's boundary, and budgets need not grow with the setting everywhere.

    Raises:
        ValueError: tokens not positive, or decimals outside 1..4.
    """
    if tokens < 1:
        raise ValueError("a prompt has at least one token")
    lowest: Budget | None = None
    setting: Budget | None = None
    below: Budget | None = None
    best: Budget | None = None
    previous: Budget | None = None
    for step in steps(plan, decimals):
        budget = plan.forward(step)
        if best is None or budget.max_tokens > best.max_tokens:
            best = budget
        if budget.holds(tokens):
            lowest = lowest or budget
            if setting is None:
                setting, below = budget, previous
        else:
            setting = None
        previous = budget
    return Smallest(
        tokens=tokens,
        blocks=plan.blocks_for(tokens),
        setting=setting,
        lowest=lowest,
        below=below if setting is not None else None,
        best=best,
    )
