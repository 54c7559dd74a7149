"""What a tiny model offers to scenarios and engines."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar


class TinyModel(ABC):
    """A random-weight model in the format of Hugging Face; equal values give byte-equal files.

    Attributes:
        kind: what it is, for reports.
        seed: of the weights.
        image_tokens: most image tokens that one image becomes; 0 for a text model.
    """

    kind: ClassVar[str]
    seed: int
    image_tokens: int

    @property
    @abstractmethod
    def parameters(self) -> int:
        """Number of weights."""

    @abstractmethod
    def write(self, cache: Path) -> Path:
        """Write the model below ``cache`` unless it is there; returns its folder."""

    def image_size(self) -> tuple[int, int]:
        """(width, height) in pixels of an image that becomes exactly ``image_tokens`` tokens."""
        return (28, 28)
