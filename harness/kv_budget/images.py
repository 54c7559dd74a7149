"""How many tokens an image becomes, for the model families where config.json says it."""

from __future__ import annotations

from dataclasses import dataclass

from mmrepro.errors import UsageError
from mmrepro.models.qwen import smart_resize


@dataclass(frozen=True)
class ImageRule:
    """One family's rule.

    Attributes:
        family: for people.
        around: tokens that the template puts around each image.
        largest: tokens of the largest image, without those.
    """

    family: str
    around: int
    largest: int

    def tokens(self, width: int, height: int) -> int:
        """Tokens of an image of that size in pixels, without those around it."""
        return self.largest


@dataclass(frozen=True)
class Patches(ImageRule):
    """Qwen2-VL and later: as many tokens as merged patches fit after a resize.

    transformers models/qwen2_vl/image_processing_qwen2_vl.py, ``smart_resize``.

    Attributes:
        factor: pixels a side of one token: patch size times merge size.
    """

    factor: int
    min_pixels: int
    max_pixels: int

    def tokens(self, width: int, height: int) -> int:
        try:
            h, w = smart_resize(
                height,
                width,
                min_pixels=self.min_pixels,
                max_pixels=self.max_pixels,
                factor=self.factor,
            )
        except ValueError as error:
            raise UsageError(f"An image of {width}x{height} is refused: {error}.") from error
        return (h // self.factor) * (w // self.factor)


@dataclass(frozen=True)
class Tiles(ImageRule):
    """InternVL: square tiles, and a thumbnail when there is more than one.

    InternLM/lmdeploy 0.6.4 vl/model/internvl.py:34, ``dynamic_preprocess``, which is
    OpenGVLab/InternVL's own.

    Attributes:
        side: of a tile in pixels.
        each: tokens of a tile.
    """

    side: int
    each: int
    min_tiles: int
    max_tiles: int
    thumbnail: bool

    def tokens(self, width: int, height: int) -> int:
        ratio = width / height
        shapes = sorted(
            (
                (i, j)
                for i in range(1, self.max_tiles + 1)
                for j in range(1, self.max_tiles + 1)
                if self.min_tiles <= i * j <= self.max_tiles
            ),
            key=lambda shape: shape[0] * shape[1],
        )
        best, best_difference = (1, 1), float("inf")
        for i, j in shapes:
            difference = abs(ratio - i / j)
            if difference < best_difference:
                best, best_difference = (i, j), difference
            elif difference == best_difference and width * height > 0.5 * self.side**2 * i * j:
                best = (i, j)
        tiles = best[0] * best[1]
        return self.each * (tiles + (1 if self.thumbnail and tiles > 1 else 0))
