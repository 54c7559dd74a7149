"""vLLM: masked_scatter finds more image rows than image embeddings, and EngineCore dies.

One assertion, several ways into it: see the variants.
"""

from __future__ import annotations

from mmrepro.scenario import Scenario
from mmrepro.scenarios.async_race import AsyncRace
from mmrepro.scenarios.placeholder_mask import GeneratedPlaceholder, LiteralPlaceholder


class ChunkedMmPrefill(GeneratedPlaceholder):
    """The default variant, which knows the others."""

    @property
    def variants(self) -> tuple[Scenario, ...]:
        return (self, LiteralPlaceholder(), AsyncRace())


SCENARIO = ChunkedMmPrefill()
