"""From evidence to truth: conditions, and the verdict that follows from them."""

from mmrepro.failure.signature.decide import (
    Checker as Checker,
    Condition as Condition,
    ConditionResult as ConditionResult,
    Finding as Finding,
    Outcome as Outcome,
    Part as Part,
    Truth as Truth,
    Verdict as Verdict,
    combine as combine,
    decide as decide,
    evaluate as evaluate,
)
