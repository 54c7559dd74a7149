"""Tiny random-weight models that real engines serve: that of most; the others are
modules."""

from typing import TYPE_CHECKING

from mmrepro.base.door import lazily
from mmrepro.engines.models.base import TinyModel as TinyModel
from mmrepro.engines.models.qwen import (
    TinyQwen2VL as TinyQwen2VL,
    smart_resize as smart_resize,
)

if TYPE_CHECKING:
    from mmrepro.engines.models.base import (
        DOTS_OCR as DOTS_OCR,
        QWEN2VL as QWEN2VL,
        VECTOR_WIDTHS as VECTOR_WIDTHS,
        write_tokenizer as write_tokenizer,
    )
    from mmrepro.engines.models.families import (
        all_tokens as family_tokens,
        calls_as as calls_as,
        families as known_families,
        forms_known as forms_known,
        thinks_as as thinks_as,
    )
    from mmrepro.engines.models.family_reading import read_output as read_output
    from mmrepro.engines.models.hub import (
        models_named as hub_models_named,
        stand_in_of as stand_in_of_hub,
        write_hub as write_hub,
    )
    from mmrepro.engines.models.qwen import (
        FACTOR as FACTOR,
        MERGE as MERGE,
        PATCH as PATCH,
        QwenModel as QwenModel,
        TinyQwen3 as TinyQwen3,
    )
    from mmrepro.engines.models.script_file import (
        BASES as SCRIPT_BASES,
        USUAL_BASE as USUAL_SCRIPT_BASE,
        ScriptedAnswer as ScriptedAnswer,
        ScriptedCall as ScriptedCall,
        Scripts as Scripts,
        read_scripts as read_scripts,
    )
    from mmrepro.engines.models.scripted import (
        pieces_of as pieces_of_text,
        text_of as text_of_pieces,
    )
    from mmrepro.engines.models.tiny import (
        ADAPTERS as ADAPTERS,
        BESIDE as BESIDE,
        LLAMAS as LLAMAS,
        MODELS_DIR as MODELS_DIR,
        REPORTED_IMAGE_TOKENS as REPORTED_IMAGE_TOKENS,
        TINY as TINY,
        TinyDotsOCR as TinyDotsOCR,
        TinyText as TinyText,
        named_in as named_in,
        with_folders as with_folders,
    )
else:
    __getattr__ = lazily(__name__)
