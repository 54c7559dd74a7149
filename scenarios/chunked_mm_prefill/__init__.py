"""vLLM: masked_scatter finds more image rows than image embeddings, and EngineCore
dies.

One assertion, several ways into it: see the variants.
"""

from mmrepro.scenario import with_variants
from mmrepro.scenarios.chunked_mm_prefill.async_race import AsyncRace, FullSize
from mmrepro.scenarios.chunked_mm_prefill.placeholder import (
    GeneratedPlaceholder,
    LiteralPlaceholder,
)

SCENARIO = with_variants(
    GeneratedPlaceholder(), LiteralPlaceholder(), AsyncRace(), FullSize()
)
