"""Whether a run's evidence is of that run: held against itself, before a condition is
judged.

Conditions ask whether something is there. Whose it is, when it was and who said it is
asked here, once, by kinds of evidence and never by scenario: what a bug of ours, a
race or a busy machine can mix up. What does not fit the rest is doubted: a condition
that reads it is unknown, and the run has no verdict. Nothing is asked of a field that
an older document does not have.

Whether somebody changed a run afterwards is not seen here, but from the record of its
hashes (``failure.documents.hashes``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mmrepro.failure.signature.log_ownership import logs
from mmrepro.failure.signature.ownership import (
    counted,
    ended,
    environments,
    frames,
    named,
    one_server,
    one_tree,
    replies,
    reproduced_here,
    sent_by_others as sent_by_others,
)
from mmrepro.failure.signature.run_facts import EVERYTHING, Doubts, Run as Run
from mmrepro.failure.signature.timing import in_phase, silence, windows, within_the_run
from mmrepro.traffic.evidence import Evidence

CHECKS: Sequence[Callable[[Evidence, Run], Doubts]] = (
    named,
    reproduced_here,
    one_server,
    one_tree,
    environments,
    within_the_run,
    in_phase,
    windows,
    silence,
    counted,
    logs,
    frames,
    replies,
    ended,
)


def doubts(evidence: Evidence, run: Run) -> dict[str, str]:
    """What of ``evidence`` does not belong to the rest or to ``run``, and the first
    reason why.

    A check that fails, on a document that nobody could have recorded, doubts
    everything."""
    reasons: dict[str, str] = {}
    for check in CHECKS:
        try:
            for what, why in check(evidence, run):
                reasons.setdefault(what, why)
        except Exception as error:
            reasons.setdefault(
                EVERYTHING, f"{check.__name__}: {type(error).__name__}: {error}"
            )
    return reasons
