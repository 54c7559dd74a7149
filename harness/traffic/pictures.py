"""Images that traffic sends: made from a seed, so that a run repeats byte for byte."""

from __future__ import annotations

import base64
import hashlib
import io
from dataclasses import dataclass

from mmrepro.evidence import ImageSent


@dataclass(frozen=True)
class Picture:
    """A PNG and what to call it."""

    name: str
    png: bytes
    width: int
    height: int

    @property
    def data_url(self) -> str:
        return "data:image/png;base64," + base64.b64encode(self.png).decode()

    def sent(self) -> ImageSent:
        return ImageSent(
            sha256=hashlib.sha256(self.png).hexdigest(),
            width=self.width,
            height=self.height,
            bytes=len(self.png),
            name=self.name,
        )


def noise(name: str, seed: int, size: tuple[int, int]) -> Picture:
    """Uniform noise of ``size`` = (width, height) pixels: any two seeds look different.

    Blocks of 14 x 14 pixels (one patch) share a colour, so that the PNG stays small.
    """
    import numpy as np
    from PIL import Image

    width, height = size
    cells = np.random.default_rng(seed).integers(
        0, 256, (-(-height // 14), -(-width // 14), 3), dtype=np.uint8
    )
    pixels = cells.repeat(14, axis=0).repeat(14, axis=1)[:height, :width]
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", compress_level=1)
    return Picture(name, buffer.getvalue(), width, height)
