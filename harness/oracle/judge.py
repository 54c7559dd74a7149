"""What is wrong with one play, without a second server: every oracle that needs no other play."""

from __future__ import annotations

from mmrepro.case.model import Case
from mmrepro.case.played import Played
from mmrepro.engines import Engine
from mmrepro.oracle.judged import Judged


def judge(case: Case, played: Played, *, engine: Engine) -> Judged:
    """What the oracles hold against ``played``, the worst first. Pure."""
    return Judged()
