"""From evidence to truth: conditions, and the verdict that follows from them."""

from mmrepro.signature.decide import (
    Checker,
    Condition,
    ConditionResult,
    Finding,
    Outcome,
    Part,
    Truth,
    Verdict,
    combine,
    decide,
    evaluate,
    unmet,
)

__all__ = [
    "Checker",
    "Condition",
    "ConditionResult",
    "Finding",
    "Outcome",
    "Part",
    "Truth",
    "Verdict",
    "combine",
    "decide",
    "evaluate",
    "unmet",
]
