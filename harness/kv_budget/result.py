"""The answer to a question: for a table, and as one JSON document."""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal

from mmrepro.errors import UsageError
from mmrepro.kv_budget import lmdeploy
from mmrepro.kv_budget.base import UNLIMITED, Budget, MemoryPlan, Smallest, smallest
from mmrepro.kv_budget.inputs import Question, plan_for

SPREAD = ("0.6.4", "0.9.2", "0.10.0", "0.11.1", "0.18.0")
"""Releases of LMDeploy that answer differently."""

Json = dict[str, object]


@dataclass(frozen=True)
class Need:
    """A prompt: text and images, together in tokens."""

    text: int
    images: int = 0
    image_tokens: int = 0

    @property
    def tokens(self) -> int:
        return self.text + self.images * self.image_tokens

    def words(self) -> str:
        if not self.images:
            return f"{self.tokens:,} tokens"
        return (
            f"{self.tokens:,} tokens ({self.text:,} of text, {self.images} "
            f"image{'s' if self.images > 1 else ''} of {self.image_tokens:,})"
        )


@dataclass(frozen=True)
class OtherRelease:
    """What another release makes of the same numbers."""

    release: str
    budget: Budget | None
    smallest: Smallest | None


@dataclass(frozen=True)
class Answer:
    question: Question
    plan: MemoryPlan
    decimals: int
    budget: Budget | None
    need: Need | None
    smallest: Smallest | None
    others: tuple[OtherRelease, ...]

    @property
    def works(self) -> bool:
        """Whether the engine starts at the setting asked for, and some setting holds the need."""
        starts = self.budget is None or self.budget.starts
        return starts and (self.smallest is None or self.smallest.setting is not None)

    def document(self) -> Json:
        """For machines; numbers in bytes and tokens, settings as text, digit for digit."""
        plan = self.plan
        return {
            "engine": plan.engine,
            "release": self.question.release,
            "formula_since": plan.formula_release,
            "setting_name": plan.setting_name,
            "block_bytes": plan.block_bytes,
            "block_size": plan.block_size,
            "budget": _budget(self.budget),
            "need": None
            if self.need is None
            else {
                "tokens": self.need.tokens,
                "text_tokens": self.need.text,
                "images": self.need.images,
                "tokens_per_image": self.need.image_tokens,
            },
            "smallest": _smallest(self.smallest),
            "other_releases": [
                {
                    "release": other.release,
                    "budget": _budget(other.budget),
                    "smallest": _smallest(other.smallest),
                }
                for other in self.others
            ],
            "sources": [
                {
                    "repository": s.repository,
                    "release": s.release,
                    "file": s.file,
                    "line": s.line,
                    "says": s.says,
                }
                for s in plan.sources
            ],
        }


def answer(question: Question, need: Need | None, decimals: int = 2) -> Answer:
    """Forward at the question's setting (or the engine's default), backward for the need.

    Raises:
        UsageError: see ``plan_for``; nothing was asked; the engine refuses the setting.
    """
    plan = plan_for(question)
    setting = question.setting
    if setting is None and need is None:
        setting = plan.default
        if setting is None:
            raise UsageError(
                f"Neither {question.own_option} nor --need is given: there is nothing to compute.",
                hint="mmrepro kv-budget --help",
            )
    if setting is not None and not plan.takes(setting):
        raise UsageError(f"{question.own_option} {setting} is refused: {_range(plan)}.")
    return Answer(
        question=question,
        plan=plan,
        decimals=decimals,
        budget=plan.forward(setting) if setting is not None else None,
        need=need,
        smallest=smallest(plan, need.tokens, decimals) if need else None,
        others=_others(question, plan, setting, need, decimals),
    )


def _others(
    question: Question, plan: MemoryPlan, setting: Decimal | None, need: Need | None, decimals: int
) -> tuple[OtherRelease, ...]:
    """The same numbers in LMDeploy's other releases, where they mean something there."""
    if not isinstance(plan, lmdeploy.LmdeployPlan):
        return ()
    others = []
    for release in SPREAD:
        try:
            other = plan_for(replace(question, release=release))
        except UsageError:
            continue  # it had no such quantisation, or could not divide the heads
        others.append(
            OtherRelease(
                release=release,
                budget=other.forward(setting) if setting is not None else None,
                smallest=smallest(other, need.tokens, decimals) if need else None,
            )
        )
    return tuple(others)


def _range(plan: MemoryPlan) -> str:
    if plan.whole:
        return f"it takes whole numbers from 1 to {plan.top}"
    return f"it takes numbers above 0 and {'up to' if plan.top_included else 'below'} {plan.top}"


def _budget(budget: Budget | None) -> Json | None:
    if budget is None:
        return None
    return {
        "setting": str(budget.setting),
        "pool_bytes": budget.pool_bytes,
        "reserve_bytes": budget.reserve_bytes,
        "blocks": budget.blocks,
        "block_size": budget.block_size,
        # JSON readers with 53-bit numbers would change "no limit".
        "max_tokens": None if is_unlimited(budget) else budget.max_tokens,
        "limited_by": budget.limited_by,
        "starts": budget.starts,
        "refusal": budget.refusal,
        "notes": list(budget.notes),
        "log": budget.log,
    }


def _smallest(least: Smallest | None) -> Json | None:
    if least is None:
        return None
    return {
        "tokens": least.tokens,
        "blocks": least.blocks,
        "setting": _budget(least.setting),
        "lowest": _budget(least.lowest),
        "one_step_below": _budget(least.below),
        "most": _budget(least.best),
    }


def is_unlimited(budget: Budget) -> bool:
    return budget.max_tokens > UNLIMITED // 2
