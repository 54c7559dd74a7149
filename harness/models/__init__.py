"""Tiny random-weight models that real engines serve."""

from mmrepro.models.qwen2vl import TinyQwen2VL, smart_resize

__all__ = ["TinyQwen2VL", "smart_resize"]
