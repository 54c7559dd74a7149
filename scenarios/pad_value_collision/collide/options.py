"""What is searched for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

SCRIPT: Final = "python -m mmrepro.scenarios.pad_value_collision.collide"
"""As a person types the script of this folder."""
PAD_BITS: Final = 30
"""Bits of SGLang's pad value up to 0.5.22; a pair that agrees in fewer is only an
exercise."""


@dataclass(frozen=True)
class PairSearch:
    """A search for two images of two families.

    Attributes:
        bits: low bits of the hash that must agree.
        size: pixels a side, a multiple of 28 from 56 on.
        second_size: that of the second family, where it differs.
        first, second: the user's own images, in place of drawn ones.
        jobs: processes; None: one a core.
        max_images: after so many the search gives up; None: after all.
    """

    bits: int = PAD_BITS
    seed: int = 1
    size: int = 84
    second_size: int | None = None
    first: Path | None = None
    second: Path | None = None
    jobs: int | None = None
    max_images: int | None = None
