"""What is wrong with one play, without a second server: every oracle that needs no other play.

An oracle says three things: what it holds against the play, what it saw that is no failure, and
what it could not judge. What it could not judge counts as neither sound nor wrong.
"""

from __future__ import annotations

from mmrepro.case.model import Case
from mmrepro.case.played import Played, PlayState
from mmrepro.engines import Engine
from mmrepro.oracle import loud
from mmrepro.oracle.cache_bound import cache_bound
from mmrepro.oracle.canary import canary
from mmrepro.oracle.judged import Judged
from mmrepro.oracle.ledger import ledger
from mmrepro.oracle.protocol import protocol
from mmrepro.oracle.quiescence import quiescence


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
