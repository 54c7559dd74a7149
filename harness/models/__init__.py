"""Tiny random-weight models that real engines serve."""

from mmrepro.models.base import TinyModel
from mmrepro.models.qwen2vl import TinyQwen2VL, smart_resize

__all__ = ["TinyModel", "TinyQwen2VL", "smart_resize"]
