"""What is wrong with one attempt by itself: every oracle that needs no second attempt.

An oracle says three things: what it holds against the attempt, what it saw that is no failure, and
what it could not judge. What it could not judge counts as neither sound nor wrong.
"""

from __future__ import annotations

from mmrepro.case.model import Case
from mmrepro.case.played import Played, PlayState
from mmrepro.engines import Engine
from mmrepro.incident.replay import FindingClass
from mmrepro.oracle import loud, near_ties
from mmrepro.oracle.cache_bound import cache_bound
from mmrepro.oracle.counters import ledger, quiescence
from mmrepro.oracle.judged import Judged
from mmrepro.oracle.near_ties import Answer, Verdict
from mmrepro.oracle.protocol import protocol
from mmrepro.play.observing import CANARY_AFTER, CANARY_BEFORE

EXACT = ("minivllm",)
"""Engines whose greedy answers are the same for any batch, chunk and cache: float32, and tested."""


def canary(played: Played, engine: Engine) -> Judged:
    """Whether the canary is answered as before, word for word, but for near-ties."""
    before, after = played.record(CANARY_BEFORE), played.record(CANARY_AFTER)
    if before is None or after is None:
        return Judged(unseen=["The canary was not asked both before and after the traffic."])
    if not before.answered or not after.answered:
        return Judged(unseen=["The canary was not answered both before and after the traffic."])
    if before.text == after.text:
        return Judged()
    exact = engine.name in EXACT
    mine = next(iter(near_ties.answers(after)), Answer(after.text))
    right = next(iter(near_ties.answers(before)), Answer(before.text))
    bound = near_ties.bound_of((), exact=exact) or 0.0
    compared = near_ties.compare(mine, right, bound, exact=exact)
    if compared.verdict in (Verdict.SAME, Verdict.NEAR_TIE):
        return Judged(counted={"canary: near-tie": 1})
    if compared.verdict is Verdict.NOT_COMPARABLE:
        return Judged(unseen=[f"The canary's answer changed ({compared.said}): it may be a tie."])
    return Judged.found(
        FindingClass.CANARY,
        "text",
        f"The canary was answered {before.text[:60]!r} before the traffic and "
        f"{after.text[:60]!r} after it: {compared.said}.",
        "A greedy answer does not change by what else was asked.",
    )


def judge(case: Case, played: Played, *, engine: Engine) -> Judged:
    """What the oracles hold against ``played``, the worst first. Pure."""
    if played.state is PlayState.START_FAILED:
        return loud.start_failure(played, engine)
    return Judged.of(
        [
            loud.death(case, played, engine),
            loud.hang(played, engine),
            loud.failing(case, played, engine),
            loud.server_errors(case, played, engine),
            cache_bound(case, played, engine),
            canary(played, engine),
            protocol(case, played, engine),
            ledger(case, played, engine),
            quiescence(case, played, engine),
        ]
    )
