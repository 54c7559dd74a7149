"""When silence counts as a hang: a rule over the latencies that the gate measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mmrepro.incident import GateFacts
from mmrepro.signature import Finding, Truth

FLOOR_S = 6.0
CEILING_S = 120.0
FACTOR = 30.0
SUSPECT_SHARE = 0.4
"""Part of the deadline after which the check begins, while the request goes on waiting."""


@dataclass(frozen=True)
class Deadlines:
    """``answer_s``: silence from then on is a hang; ``suspect_s``: time to look. In seconds."""

    answer_s: float
    suspect_s: float
    rule: str = ""


def of_gate(
    finding: Finding, latencies_s: Sequence[float], before: Deadlines
) -> tuple[GateFacts, Deadlines]:
    """What a gate gave; where it failed, the deadlines stay those ``before``. Raises as derive."""
    passed = finding.truth is Truth.MET
    facts = GateFacts(passed=passed, why=finding.observed, latencies_s=list(latencies_s))
    if not passed:
        return facts, before
    deadlines = derive(latencies_s)
    facts.deadline_s, facts.deadline_rule = deadlines.answer_s, deadlines.rule
    return facts, deadlines


def derive(latencies_s: Sequence[float]) -> Deadlines:
    """Deadlines from the gate's latencies in seconds, in order; the first one warmed up.

    The slowest warm request times 30, at least 6 s and at most 120 s: a hang is not slowness.

    Raises:
        ValueError: no latency was measured.
    """
    if not latencies_s:
        raise ValueError("the gate measured no latency")
    warm = max(latencies_s[1:] or latencies_s)
    answer = min(CEILING_S, max(FLOOR_S, FACTOR * warm))
    return Deadlines(
        answer_s=round(answer, 2),
        suspect_s=round(answer * SUSPECT_SHARE, 2),
        rule=f"{FACTOR:g} × the slowest warm request of the gate ({warm:.2f} s), "
        f"at least {FLOOR_S:g} s, at most {CEILING_S:g} s",
    )
