"""The faults that can be switched on, each a mistake that somebody really made.

The first six are the bugs of the milestone note that added images to a text-only engine; the others
are small copies of failures of vLLM, SGLang and LMDeploy. The code asks ``name in faults`` at the
one place that was wrong; everything else stays as it is.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

FAULTS: dict[str, str] = {
    "warmup-sequence": "warm-up builds plain Sequences where the image prefill expects "
    "ImageSequences",
    "warmup-order": "the base initialiser warms up before the model accepts inputs_embeds",
    "broken-module": "an edit left the fake vision module with a syntax error",
    "image-path": "the configured warm-up image is a path that does not exist",
    "pinned-placeholder": "the placeholder of the embeddings is pinned, though it is no CPU tensor",
    "slot-mapping": "last_block_num_tokens is derived from the text ids only",
    "ghost-key-lru": "the image cache's touch inserts missing keys; eviction never gets past them",
    "pad-value-key": "prefix keys hold the image's digest modulo 65536 in place of the digest",
    "kv-budget": "the KV cache gets a tenth of its budget, and nobody checks what fits",
    "reused-mask": "the next step is prepared in the mask buffer that this step still reads",
}

NOTE_FAULTS = tuple(FAULTS)[:6]
"""Those of the note."""


def chosen(faults: Iterable[str], fixes: Iterable[str] = ()) -> frozenset[str]:
    """``faults`` without ``fixes``. Raises ValueError for a name that is not in ``FAULTS``."""
    for name in (*faults, *fixes):
        if name not in FAULTS:
            raise ValueError(f"there is no fault {name!r}; there is: {', '.join(FAULTS)}")
    return frozenset(faults) - frozenset(fixes)


def by_chance(
    faults: frozenset[str], probability: float, seed: int | None = None
) -> frozenset[str]:
    """All of ``faults`` or none, decided once for a server's life.

    Args:
        seed: None: the system's randomness, so that no two servers agree but by chance.
    """
    source = random.SystemRandom() if seed is None else random.Random(seed)  # noqa: S311
    return faults if source.random() < probability else frozenset()
