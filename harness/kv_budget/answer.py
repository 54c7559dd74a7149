"""The answer to a question: forward, backward, in other releases, and as one JSON
document."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from mmrepro.base.errors import UsageError
from mmrepro.kv_budget.base import Budget, MemoryPlan, Smallest, smallest
from mmrepro.kv_budget.eras import LMDEPLOY
from mmrepro.kv_budget.options import KvBudgetCommand, plan_for

_SPREAD = ("0.6.4", "0.9.2", "0.10.0", "0.11.1", "0.18.0")
"""Releases of LMDeploy that answer differently."""

_Json = dict[str, object]


@dataclass(frozen=True)
class Need:
    """A prompt: text and images, together in tokens."""

    text: int
    images: int = 0
    image_tokens: int = 0
    requests: int = 1

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
class Computed:
    """What a release makes of the numbers: at the setting, and for the need."""

    release: str
    budget: Budget | None
    smallest: Smallest | None

    def document(self) -> _Json:
        return {"budget": _budget(self.budget), "smallest": _smallest(self.smallest)}


@dataclass(frozen=True)
class BudgetAnswer:
    plan: MemoryPlan
    need: Need | None
    here: Computed
    others: tuple[Computed, ...]
    replicas: int = 1

    @property
    def works(self) -> bool:
        """Whether the engine starts at the setting asked for, and some setting holds
        the need."""
        budget, least = self.here.budget, self.here.smallest
        return (budget is None or budget.starts) and (
            least is None or least.setting is not None
        )

    def document(self) -> _Json:
        """For machines; numbers in bytes and tokens, settings as text, digit for
        digit."""
        plan, need = self.plan, self.need
        return {
            "engine": plan.engine.name,
            "release": plan.release,
            "formula_since": plan.era.since,
            "setting_name": plan.engine.setting,
            "block_bytes": plan.bytes_per_block,
            "block_size": plan.tokens_per_block,
            "groups": plan.groups,
            "replicas": self.replicas,
            **self.here.document(),
            "need": need
            and {
                "tokens": need.tokens,
                "text_tokens": need.text,
                "images": need.images,
                "tokens_per_image": need.image_tokens,
                "requests": need.requests,
            },
            "other_releases": [
                {"release": o.release, **o.document()} for o in self.others
            ],
            "sources": [asdict(source) for source in plan.sources],
        }


def _need_of(asked: KvBudgetCommand) -> Need | None:
    """The prompt that is asked for, if one is.

    Raises:
        UsageError: its images have no number, or no known size.
    """
    if not asked.images:
        if asked.image_tokens or asked.image_size:
            raise UsageError(
                "--image-tokens and --image-size need --images: how many there are."
            )
        if asked.need == 0:
            raise UsageError("--need 0 is no prompt: it has at least one token.")
        if asked.requests > 1 and not asked.need:
            raise UsageError("--requests needs --need: the tokens of each.")
        return Need(asked.need, requests=asked.requests) if asked.need else None

    each = asked.image_tokens
    if not each:
        rule = asked.read.images if asked.read else None
        if rule is None:
            name = asked.read and (asked.read.name or "this model")
            raise UsageError(
                "How many tokens an image becomes is not known: give --image-tokens"
                + (f" ({name} has no rule here)." if name else ".")
            )
        each = (
            rule.tokens(*asked.image_size) if asked.image_size else rule.largest
        ) + rule.around

    return Need(asked.need or 0, asked.images, each, asked.requests)


def answer(asked: KvBudgetCommand) -> BudgetAnswer:
    """Forward at the question's setting (or the engine's default), backward for the
    need.

    Raises:
        UsageError: see ``plan_for``; nothing was asked; the engine refuses the setting.
    """
    need, engine = _need_of(asked), asked.chosen
    plan = plan_for(asked, asked.version)
    setting = asked.setting
    if setting is None and need is None:
        setting = plan.default
        if setting is None:
            raise UsageError(
                (
                    f"Neither {engine.option} nor --need is given: there is nothing to "
                    "compute."
                ),
                hint="mmrepro kv-budget --help",
            )

    if setting is not None and not plan.takes(setting):
        raise UsageError(f"{engine.option} {setting} is refused: {engine.takes}.")

    def compute(plan: MemoryPlan) -> Computed:
        return Computed(
            plan.release,
            plan.forward(setting) if setting is not None else None,
            smallest(plan, need.tokens, asked.decimals, need.requests)
            if need
            else None,
        )

    others = []
    for release in _SPREAD if engine is LMDEPLOY else ():
        try:
            others.append(compute(plan_for(asked, release)))
        except UsageError:
            continue  # it had no such quantisation, or could not divide the heads

    return BudgetAnswer(plan, need, compute(plan), tuple(others), asked.dp)


def _budget(budget: Budget | None) -> _Json | None:
    if budget is None:
        return None
    return {
        **asdict(budget),
        "setting": str(budget.setting),
        # JSON readers with 53-bit numbers would change "no limit".
        "max_tokens": None if budget.unlimited else budget.max_tokens,
        "starts": budget.starts,
    }


def _smallest(least: Smallest | None) -> _Json | None:
    if least is None:
        return None
    return {
        "tokens": least.tokens,
        "blocks": least.blocks,
        "bytes": least.bytes,
        "requests": least.requests,
        "setting": _budget(least.setting),
        "lowest": _budget(least.lowest),
        "one_step_below": _budget(least.below),
        "most": _budget(least.best),
    }
