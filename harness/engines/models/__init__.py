"""Tiny random-weight models that real engines serve: that of most; the others are
modules."""

from mmrepro.engines.models.base import TinyModel as TinyModel
from mmrepro.engines.models.qwen import (
    TinyQwen2VL as TinyQwen2VL,
    smart_resize as smart_resize,
)
