"""From an image to embeddings: one interface, the fake of the note and a real small tower."""

from __future__ import annotations

import io
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from .config import ModelConfig, VisionConfig
from .sequence import Image


class Vision(Protocol):
    def embed(self, image: Image) -> Tensor:
        """Embeddings (image.tokens, hidden)."""


class TowerBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(1, 2, 0, 3)
        found = functional.scaled_dot_product_attention(*parts[:, None])[0]
        x = x + self.proj(found.transpose(0, 1).flatten(-2))
        return x + self.fc2(functional.gelu(self.fc1(self.norm2(x))))


class VisionTower(nn.Module):
    """Patches, blocks of full attention, and a merger of ``merge`` x ``merge`` patches."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        config = self.config = model.vision
        group = config.width * config.merge**2
        self.patch_embed = nn.Linear(3 * config.patch**2, config.width)
        self.blocks = nn.ModuleList(
            TowerBlock(config.width, config.heads) for _ in range(config.depth)
        )
        self.norm = nn.LayerNorm(config.width)
        self.merge1, self.merge2 = nn.Linear(group, group), nn.Linear(group, model.hidden_size)

    @torch.inference_mode()
    def embed(self, image: Image) -> Tensor:
        """Raises ValueError when ``image`` is no picture."""
        weight = self.patch_embed.weight
        patches = patches_of(image, self.config).to(weight.device, weight.dtype)
        x = self.patch_embed(patches)
        x = x + places(image.rows, image.cols, self.config).to(x)
        for block in self.blocks:
            x = block(x)
        groups = self.norm(x).unflatten(0, (-1, self.config.merge**2)).flatten(-2)
        return self.merge2(functional.gelu(self.merge1(groups)))


def patches_of(image: Image, config: VisionConfig) -> Tensor:
    """Pixels (patches, 3 * patch * patch) in -1…1; the patches of one embedding stand together."""
    import numpy as np
    from PIL import Image as Pil, UnidentifiedImageError

    size = (image.cols * config.factor, image.rows * config.factor)
    try:
        with Pil.open(io.BytesIO(image.data)) as picture:
            pixels = np.array(picture.convert("RGB").resize(size), dtype=np.float32)
    except (OSError, UnidentifiedImageError) as error:
        raise ValueError(f"not a picture: {error}") from error
    grid = (image.rows, config.merge, config.patch, image.cols, config.merge, config.patch, 3)
    ordered = torch.from_numpy(pixels / 127.5 - 1).reshape(grid).permute(0, 3, 1, 4, 6, 2, 5)
    return ordered.reshape(image.tokens * config.merge**2, -1)


def places(rows: int, cols: int, config: VisionConfig) -> Tensor:
    """Sines of the patches' rows and columns (patches, width), in the order of ``patches_of``."""
    quarter, merge = config.width // 4, config.merge
    scale = 100.0 ** -(torch.arange(quarter) / quarter)
    row = (torch.arange(rows * merge)[:, None] * scale).reshape(rows, 1, merge, 1, quarter)
    col = (torch.arange(cols * merge)[:, None] * scale).reshape(1, cols, 1, merge, quarter)
    row, col = torch.broadcast_tensors(row, col)
    return torch.cat((row.sin(), row.cos(), col.sin(), col.cos()), dim=-1).reshape(-1, config.width)
