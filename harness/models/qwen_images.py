"""How Qwen2-VL's image processor turns pixels into tokens; dots.ocr uses it as well."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mmrepro.models.base import MERGE as MERGE, TinyModel

PATCH = 14
FACTOR = PATCH * MERGE
"""One image token covers 28 x 28 pixels: patches of 14, merged 2 x 2."""

MAX_RATIO = 200
"""The image processor refuses images with longer sides."""


def smart_resize(
    height: int, width: int, *, min_pixels: int, max_pixels: int, factor: int = FACTOR
) -> tuple[int, int]:
    """Height and width in pixels after the image processor's resize.

    The rule of transformers ``models/qwen2_vl/image_processing_qwen2_vl.py:smart_resize``.

    Raises:
        ValueError: a side is not positive, or the sides differ more than 200-fold.
    """
    if min(height, width) <= 0:
        raise ValueError("an image has at least one pixel a side")
    if max(height, width) / min(height, width) > MAX_RATIO:
        raise ValueError("the aspect ratio must be below 200")
    h = max(factor, round(height / factor) * factor)
    w = max(factor, round(width / factor) * factor)
    if h * w > max_pixels:
        beta = math.sqrt(height * width / max_pixels)
        h = max(factor, math.floor(height / beta / factor) * factor)
        w = max(factor, math.floor(width / beta / factor) * factor)
    elif h * w < min_pixels:
        beta = math.sqrt(min_pixels / (height * width))
        h = math.ceil(height * beta / factor) * factor
        w = math.ceil(width * beta / factor) * factor
    return h, w


@dataclass(frozen=True)
class QwenModel(TinyModel):
    """A model whose images go through Qwen2-VL's processor; equal values give byte-equal files.

    Attributes:
        image_tokens: most image tokens that one image becomes; images are resized to it.
        seed: of the weights.
        hidden: width of the language model; a multiple of 64.
        std: standard deviation of the weights. 0.12 makes greedy answers depend on the image;
            transformers' 0.02 gives nearly flat logits.
    """

    image_tokens: int = 225
    seed: int = 0
    hidden: int = 128
    layers: int = 2
    vision_width: int = 64
    vision_depth: int = 2
    vocab_size: int = 320
    std: float = 0.12

    @property
    def max_pixels(self) -> int:
        return self.image_tokens * FACTOR * FACTOR

    def image_size(self) -> tuple[int, int]:
        """(width, height) in pixels of an image that becomes exactly ``image_tokens`` tokens.

        Raises:
            ValueError: there is none, as for a prime above 200: the processor refuses images that
                are more than 200 times as wide as high.
        """
        side = math.isqrt(self.image_tokens)
        rows = next(r for r in range(side, 0, -1) if self.image_tokens % r == 0)
        if self.image_tokens > MAX_RATIO * rows * rows:
            raise ValueError(f"no image becomes exactly {self.image_tokens} tokens; take another")
        return self.image_tokens // rows * FACTOR, rows * FACTOR

    def tokens_of(self, width: int, height: int) -> int:
        """Image tokens of an image of that size in pixels, after the processor's resize."""
        h, w = smart_resize(height, width, min_pixels=FACTOR * FACTOR, max_pixels=self.max_pixels)
        return (h // FACTOR) * (w // FACTOR)

    def processor(self, temporal_patch: int) -> dict[str, object]:
        """``preprocessor_config.json``; ``temporal_patch``: frames that one patch covers."""
        return {
            "image_processor_type": "Qwen2VLImageProcessor",
            "processor_class": "Qwen2VLProcessor",
            "min_pixels": FACTOR * FACTOR,
            "max_pixels": self.max_pixels,
            "size": {"shortest_edge": FACTOR * FACTOR, "longest_edge": self.max_pixels},
            "patch_size": PATCH,
            "temporal_patch_size": temporal_patch,
            "merge_size": MERGE,
            "image_mean": [0.48, 0.457, 0.408],
            "image_std": [0.268, 0.261, 0.275],
            "do_resize": True,
            "do_rescale": True,
            "do_normalize": True,
            "do_convert_rgb": True,
        }
