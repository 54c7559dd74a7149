"""The note's stand-in for a vision tower: the image's bytes seed its embeddings."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from .config import ModelConfig
from .sequence import Image


class FakeVision:
    """Deterministic: equal bytes and shapes give equal embeddings, others do not."""

    def __init__(self, model: ModelConfig, scale: float = 0.12) -> None:
        self.hidden_size = model.hidden_size
        self.scale = scale

    def embed(self, image: Image) -> Tensor:
        """Embeddings (image.tokens, hidden), normally distributed."""
        shape = f"{image.rows}x{image.cols}:".encode()
        seed = hashlib.sha256(shape + image.data).digest()[:8]
        generator = torch.Generator().manual_seed(int.from_bytes(seed, "little") >> 1)
        size = (image.tokens, self.hidden_size)
        return torch.randn(size, generator=generator) * self.scale
