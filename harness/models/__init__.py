"""Tiny random-weight models that real engines serve. Most are loaded when first asked for."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from mmrepro.models.base import TinyModel as TinyModel
from mmrepro.models.qwen2vl import TinyQwen2VL as TinyQwen2VL, smart_resize as smart_resize

if TYPE_CHECKING:
    from mmrepro.models.dotsocr import TinyDotsOCR as TinyDotsOCR
    from mmrepro.models.qwen3 import TinyQwen3 as TinyQwen3
    from mmrepro.models.text import TinyText as TinyText
    from mmrepro.models.tiny import TINY as TINY

LATER = {"TINY": "tiny", "TinyDotsOCR": "dotsocr", "TinyQwen3": "qwen3", "TinyText": "text"}


def __getattr__(name: str) -> object:
    if name not in LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{LATER[name]}"), name)
