"""Tiny random-weight models that real engines serve."""

from mmrepro.models.base import TinyModel
from mmrepro.models.dotsocr import TinyDotsOCR
from mmrepro.models.qwen2vl import TinyQwen2VL, smart_resize
from mmrepro.models.qwen3 import TinyQwen3
from mmrepro.models.text import TinyText

__all__ = ["TinyDotsOCR", "TinyModel", "TinyQwen2VL", "TinyQwen3", "TinyText", "smart_resize"]
