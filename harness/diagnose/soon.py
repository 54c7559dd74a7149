"""A hang that need not wait for its request's deadline: what else is seen decides it. Pure.

A busy server may be silent as long as a hung one. It does not stand, in two rounds of stacks, in
the frames of a known failure, with the GIL and a core in user space, while no counter of work moves
and its log says how it came about: all of a known failure's conditions, and the general diagnosis.
"""

from __future__ import annotations

from collections.abc import Iterable

from mmrepro.diagnose import general
from mmrepro.diagnose.match import match_all
from mmrepro.diagnose.readings import View
from mmrepro.evidence import Evidence
from mmrepro.incident.diagnosis import Match, ServerState, TargetFacts
from mmrepro.probes.base import ProbeResult, ProbeStatus
from mmrepro.probes.data import InferenceData
from mmrepro.records import Moment
from mmrepro.scenario import LiveFacts, Scenario


def known_hang(
    scenarios: Iterable[Scenario],
    evidence: Evidence,
    facts: TargetFacts,
    live: LiveFacts,
    waited_s: float,
) -> Match | None:
    """The known failure that it would be if the request, silent for ``waited_s`` by now, remained
    so; None: whatever it is, only its deadline decides."""
    silent = _silent(evidence, waited_s, live.deadline_s)
    view = View(facts, silent)
    if view.progress is not False or not view.core_hot:
        return None
    if general.assess(silent, facts).state is not ServerState.FROZEN_PYTHON:
        return None
    return next(iter(match_all(scenarios, silent, live)), None)


def _silent(evidence: Evidence, waited_s: float, deadline_s: float) -> Evidence:
    data = InferenceData(
        answered=False, status=None, seconds=waited_s, deadline_s=deadline_s, cut=True
    )
    result = ProbeResult(
        probe="inference",
        phase="check",
        status=ProbeStatus.OK,
        started=Moment.now(),
        seconds=waited_s,
        data=data,
    )
    return evidence.model_copy(update={"probes": [*evidence.probes, result]})
