"""A setting in, a budget out: what the engines' arithmetic has in common.

A ``MemoryPlan`` holds everything that is fixed before the server starts (memory, model,
release); ``forward`` answers what one value of the engine's own setting gives. It uses
the engine's operations in the engine's order, so that it also truncates where the
engine does."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import ClassVar

from mmrepro.kv_budget.eras import BudgetEngine, Era, FormulaSource

UNLIMITED = (1 << 63) - 1
"""What LMDeploy takes for "no limit" where a sliding window fits the cache."""
MAX_DECIMALS = 4


@dataclass(frozen=True)
class Budget:
    """What one setting gives.

    Attributes:
        setting: value of the engine's option, as typed.
        pool_bytes: memory for the KV cache, rounded down to whole bytes; may be
            negative.
        reserve_bytes: what was set aside for everything else.
        blocks: whole blocks that fit, as the engine counts them.
        block_size: tokens a block.
        max_tokens: tokens of the longest prompt that the engine takes; 0 when it does
            not start.
        limited_by: what sets ``max_tokens``: ``kv``, ``context`` or ``window``.
        refusal: why the engine does not start, in its own words; empty when it does.
        concurrency: requests of the whole context that fit at once; None: the engine
            has no such.
        notes: what else the engine changes by itself at this setting.
        log: the line of the engine's log that follows, as far as it can be computed.
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
    concurrency: float | None = None

    @property
    def starts(self) -> bool:
        return not self.refusal

    @property
    def unlimited(self) -> bool:
        return self.max_tokens > UNLIMITED // 2

    def holds(self, tokens: int) -> bool:
        """Whether the engine starts and takes a prompt of so many tokens."""
        return self.starts and self.max_tokens >= tokens


class MemoryPlan(ABC):
    """One engine at one release on one device with one model; only its setting is open.

    Attributes:
        bytes_per_block: bytes of one block over all layers, on one device.
        tokens_per_block: tokens of one block.
    """

    engine: ClassVar[BudgetEngine]
    release: str
    bytes_per_block: int
    tokens_per_block: int

    def __post_init__(self) -> None:
        self.era  # noqa: B018  a release that is too old is refused here

    @cached_property
    def era(self) -> Era:
        """How this release computes."""
        return self.engine.era(self.release)

    @property
    def default(self) -> Decimal | None:
        """What the engine takes without the option; None when it works one out
        itself."""
        return self.engine.default(self.release)

    @property
    def groups(self) -> list[dict[str, object]]:
        """Layers that share a block table, where the engine has several kinds."""
        return []

    @property
    def sources(self) -> tuple[FormulaSource, ...]:
        """Every formula that ``forward`` uses, in its order."""
        return self.engine.sources(self.release)

    @abstractmethod
    def forward(self, setting: Decimal) -> Budget:
        """The budget at that setting. Never raises for a setting that the engine
        takes."""

    def blocks_for(self, tokens: int, requests: int = 1) -> int:
        """Blocks that hold so many requests of so many tokens at once."""
        return requests * -(-tokens // self.tokens_per_block) + self.era.spare_blocks

    def takes(self, setting: Decimal) -> bool:
        """Whether the engine's own check lets that value pass."""
        engine = self.engine
        if engine.whole and setting != setting.to_integral_value():
            return False
        return 0 < setting < engine.top or (
            engine.top_included and setting == engine.top
        )

    def _budget(
        self,
        setting: Decimal,
        pool: int,
        reserve: int,
        blocks: int = 0,
        tokens: int = 0,
        *,
        limited_by: str = "kv",
        refusal: str = "",
        notes: tuple[str, ...] = (),
        log: str = "",
        concurrency: float | None = None,
    ) -> Budget:
        """A budget in this plan's blocks; a server that does not start takes no
        prompt."""
        if refusal:
            tokens, log, concurrency = 0, "", None
        size = self.tokens_per_block
        return Budget(
            setting,
            pool,
            reserve,
            blocks,
            size,
            tokens,
            limited_by,
            refusal,
            notes,
            log,
            concurrency,
        )


@dataclass(frozen=True)
class Smallest:
    """Answer to "which setting holds a prompt of N tokens?".

    Attributes:
        tokens: N.
        blocks: blocks needed for it; ``bytes``: of them, on one device.
        requests: that many at once.
        setting: smallest step from which on every larger step holds N; None when no
            step does.
        lowest: smallest step that holds N at all. Differs from ``setting`` where an
            engine sets aside less by itself when memory is scarce (LMDeploy halves its
            prefill batch).
        below: the budget one step below ``setting``; it does not hold N. None at the
            first step.
        best: the budget of the step that holds most.
    """

    tokens: int
    blocks: int
    bytes: int
    requests: int
    setting: Budget | None
    lowest: Budget | None
    below: Budget | None
    best: Budget | None


def steps(plan: MemoryPlan, decimals: int) -> list[Decimal]:
    """Every value with so many decimals that the engine takes, ascending.

    Raises:
        ValueError: decimals outside 1..4.
    """
    if not 1 <= decimals <= MAX_DECIMALS:
        raise ValueError(f"decimals must be between 1 and {MAX_DECIMALS}")
    unit = Decimal(1) if plan.engine.whole else Decimal(1).scaleb(-decimals)
    last = int(plan.engine.top / unit)
    return [s for s in (unit * k for k in range(1, last + 1)) if plan.takes(s)]


def smallest(
    plan: MemoryPlan, tokens: int, decimals: int = 2, requests: int = 1
) -> Smallest:
    """Find the smallest setting that holds so many requests of ``tokens`` at once.

    Every step is tried with ``forward`` itself: there is no second formula that could
    disagree with it at a block's boundary, and budgets need not grow with the setting
    everywhere.

    Raises:
        ValueError: tokens not positive, or decimals outside 1..4.
    """
    if tokens < 1:
        raise ValueError("a prompt has at least one token")
    budgets = [plan.forward(step) for step in steps(plan, decimals)]
    blocks = plan.blocks_for(tokens, requests)
    holding = [
        b.holds(tokens) and (requests == 1 or b.blocks >= blocks) for b in budgets
    ]
    # The first step behind the last one that does not hold N.
    first = len(budgets) - next(
        (k for k, holds in enumerate(reversed(holding)) if not holds), len(budgets)
    )
    found = first < len(budgets)
    return Smallest(
        tokens=tokens,
        blocks=blocks,
        bytes=blocks * plan.bytes_per_block,
        requests=requests,
        setting=budgets[first] if found else None,
        lowest=budgets[holding.index(True)] if True in holding else None,
        below=budgets[first - 1] if found and first else None,
        best=max(budgets, key=lambda budget: budget.max_tokens, default=None),
    )
