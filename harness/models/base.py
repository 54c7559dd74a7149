"""What a tiny model offers to scenarios and engines."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from mmrepro.models.files import written_whole

Shapes = Iterator[tuple[str, tuple[int, ...]]]
"""Names and shapes of weights, in the order in which they are drawn."""


class TinyModel(ABC):
    """A random-weight model in the format of Hugging Face; equal values give byte-equal files.

    Attributes:
        kind: what it is, for reports.
        seed: of the weights.
        image_tokens: most image tokens that one image becomes; 0 for a text model.
        std: standard deviation of the weights.
    """

    kind: ClassVar[str]
    seed: int
    image_tokens: int
    std: float

    @property
    @abstractmethod
    def key(self) -> str:
        """Names the folder: everything that decides the files."""

    @abstractmethod
    def shapes(self) -> Shapes:
        """Names and shapes of all weights, as the published checkpoints have them."""

    @abstractmethod
    def _write_into(self, folder: Path) -> None:
        """Write all files into an empty folder."""

    @property
    def parameters(self) -> int:
        """Number of weights."""
        return sum(math.prod(shape) for _, shape in self.shapes())

    def write(self, cache: Path) -> Path:
        """Write the model below ``cache`` unless it is there; returns its folder."""
        return written_whole(cache / self.key, self._write_into)

    def spread(self, name: str) -> tuple[float, float]:
        """Mean and deviation of a weight's random values; a norm starts as the identity."""
        if "norm" in name or ".ln_q." in name:
            return (0.0 if name.endswith("bias") else 1.0), 0.0
        return 0.0, self.std

    def image_size(self) -> tuple[int, int]:
        """(width, height) in pixels of an image that becomes exactly ``image_tokens`` tokens."""
        return (28, 28)
