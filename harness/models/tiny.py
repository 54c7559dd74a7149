"""The tiny models by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mmrepro.models.base import TinyModel
from mmrepro.models.dotsocr import TinyDotsOCR
from mmrepro.models.qwen2vl import TinyQwen2VL
from mmrepro.models.qwen3 import TinyQwen3
from mmrepro.models.text import TinyText

TINY: Final[Mapping[str, TinyModel]] = {
    "qwen2-vl": TinyQwen2VL(),
    "dots-ocr": TinyDotsOCR(),
    "qwen3": TinyQwen3(),
    "text": TinyText(),
}
"""By what a case, and ``--model`` of a replay, call them."""
