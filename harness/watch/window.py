"""The readings of the last few checks, and the classes of failure that they show together."""

from __future__ import annotations

from collections import deque
from typing import Any

from mmrepro.diagnose.classes import classes
from mmrepro.evidence import Evidence
from mmrepro.incident.diagnosis import Certainty, NamedClass, TargetFacts
from mmrepro.probes.base import ProbeResult
from mmrepro.probes.data import InferenceData
from mmrepro.signature.live_server import LATENESS

CHECKS = 3


class Window:
    """Takes the results of each check's probes. What was read before an answer tells nothing of a
    silence after it."""

    def __init__(self) -> None:
        self._checks: deque[list[ProbeResult[Any]]] = deque(maxlen=CHECKS)
        self._now: list[ProbeResult[Any]] = []

    def begin(self) -> None:
        self._now = []
        self._checks.append(self._now)

    def add(self, result: ProbeResult[Any]) -> None:
        if result.data is not None:
            self._now.append(result)

    def classes(
        self, facts: TargetFacts, silence: Evidence, *, late: float = 0.0
    ) -> list[NamedClass]:
        """Those that are more than possible.

        Args:
            silence: stacks that were taken while a request waited.
            late: the part of the time for which this process waited for a processor, where that
                was much.
        """
        asked = [r for r in self._now if isinstance(r.data, InferenceData)]
        if not _answered(self._now):
            for check in [c for c in self._checks if _answered(c)]:
                check.clear()
        readings = [r for c in self._checks for r in c if not isinstance(r.data, InferenceData)]
        facts_too = {LATENESS: late} if late else {}
        evidence = Evidence(probes=[*readings, *asked, *silence.probes], facts=dict(facts_too))
        found = classes(evidence, facts)
        return [one for one in found if one.certainty is not Certainty.POSSIBLE]


def _answered(check: list[ProbeResult[Any]]) -> bool:
    return any(isinstance(r.data, InferenceData) and r.data.answered for r in check)
