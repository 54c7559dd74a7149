"""Tiny random-weight models that real engines serve."""

from collections.abc import Mapping

from mmrepro.models.base import TinyModel
from mmrepro.models.dotsocr import TinyDotsOCR
from mmrepro.models.qwen2vl import TinyQwen2VL, smart_resize
from mmrepro.models.qwen3 import TinyQwen3
from mmrepro.models.text import TinyText

TINY: Mapping[str, TinyModel] = {
    "qwen2-vl": TinyQwen2VL(),
    "dots-ocr": TinyDotsOCR(),
    "qwen3": TinyQwen3(),
    "text": TinyText(),
}
"""By what a case, and ``--model`` of a replay, call them."""

__all__ = [
    "TINY",
    "TinyDotsOCR",
    "TinyModel",
    "TinyQwen2VL",
    "TinyQwen3",
    "TinyText",
    "smart_resize",
]
