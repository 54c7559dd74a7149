"""What a failure is. ``from mmrepro.scenario import …`` is the only import a scenario needs."""

from mmrepro.engines.changes import Mitigation, Patch
from mmrepro.scenario.base import Scenario
from mmrepro.scenario.parts import Control, Factor, LiveFacts, RunFacts, SourceRef
from mmrepro.signature.decide import unmet

__all__ = [
    "Control",
    "Factor",
    "LiveFacts",
    "Mitigation",
    "Patch",
    "RunFacts",
    "Scenario",
    "SourceRef",
    "unmet",
]
