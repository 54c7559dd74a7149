"""A dots.ocr of two layers with random weights, written without torch.

The names of weights and the fields of the configuration are those of vLLM's ``DotsOCRForCausalLM``
(0.12.0, model_executor/models/dots_ocr.py, transformers_utils/configs/dotsocr.py), which are the
published checkpoint's. As there, the configuration's class travels with the model
(``configuration_dots.py``, needs ``--trust-remote-code``).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

from mmrepro.models.base import (
    Shapes,
    dump,
    named_after,
    patch_merger,
    qwen2_language_model,
    write_weights,
)
from mmrepro.models.qwen_images import MERGE, PATCH, QwenModel
from mmrepro.models.tokenizer import DOTS_OCR

REPORTED_IMAGE_TOKENS = 4819
"""Of the bug report's image; 2212 x 1708 pixels, say."""

MAX_POSITIONS = 32768

CONFIGURATION = '''\
"""The configuration of dots.ocr models, for transformers' AutoConfig."""

from transformers.configuration_utils import PretrainedConfig
from transformers.models.qwen2 import Qwen2Config


class DotsVisionConfig(PretrainedConfig):
    model_type = "dots_vit"

    def __init__(
        self,
        embed_dim=1536,
        hidden_size=1536,
        intermediate_size=4224,
        num_hidden_layers=42,
        num_attention_heads=12,
        num_channels=3,
        patch_size=14,
        spatial_merge_size=2,
        temporal_patch_size=1,
        rms_norm_eps=1e-5,
        use_bias=False,
        post_norm=True,
        **more,
    ):
        super().__init__(**more)
        self.embed_dim = embed_dim
        self.hidden_size = hidden_size
        self.intermediate_size = intermediate_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.num_channels = num_channels
        self.patch_size = patch_size
        self.spatial_merge_size = spatial_merge_size
        self.temporal_patch_size = temporal_patch_size
        self.rms_norm_eps = rms_norm_eps
        self.use_bias = use_bias
        self.post_norm = post_norm


class DotsOCRConfig(Qwen2Config):
    model_type = "dots_ocr"

    def __init__(self, image_token_id=151665, video_token_id=151656, vision_config=None, **more):
        super().__init__(**more)
        self.image_token_id = image_token_id
        self.video_token_id = video_token_id
        self.vision_config = DotsVisionConfig(**(vision_config or {}))
'''


@dataclass(frozen=True)
class TinyDotsOCR(QwenModel):
    kind: ClassVar[str] = "tiny dots.ocr with random weights"

    @property
    def image_token(self) -> str:
        """The placeholder token as a text has it."""
        return DOTS_OCR.image

    @property
    def image_token_id(self) -> int:
        """Id of the placeholder token that stands for one row of an image."""
        return DOTS_OCR.id_of(self.image_token)

    @property
    def key(self) -> str:
        """Names the folder: everything that decides the files."""
        made_of = [
            CONFIGURATION,
            asdict(DOTS_OCR),
            self._config(),
            self.processor(1),
            list(self.shapes()),
        ]
        return named_after("tiny-dotsocr", 1, asdict(self), made_of)

    def shapes(self) -> Shapes:
        v, h = self.vision_width, self.hidden
        yield "vision_tower.patch_embed.patchifier.proj.weight", (v, 3, PATCH, PATCH)
        yield "vision_tower.patch_embed.patchifier.proj.bias", (v,)
        yield "vision_tower.patch_embed.patchifier.norm.weight", (v,)
        for i in range(self.vision_depth):
            block = f"vision_tower.blocks.{i}"
            yield f"{block}.norm1.weight", (v,)
            yield f"{block}.norm2.weight", (v,)
            yield f"{block}.attn.qkv.weight", (3 * v, v)
            yield f"{block}.attn.proj.weight", (v, v)
            yield f"{block}.mlp.fc1.weight", (2 * v, v)
            yield f"{block}.mlp.fc3.weight", (2 * v, v)
            yield f"{block}.mlp.fc2.weight", (v, 2 * v)
        yield "vision_tower.post_trunk_norm.weight", (v,)
        yield from patch_merger("vision_tower.merger", v, h)
        yield from qwen2_language_model(self.vocab_size, h, self.layers)

    def _write_into(self, folder: Path) -> None:
        from mmrepro.models.tokenizer import write_tokenizer

        write_tokenizer(folder, self.vocab_size, DOTS_OCR)
        (folder / "configuration_dots.py").write_text(CONFIGURATION)
        dump(folder / "config.json", self._config())
        dump(folder / "preprocessor_config.json", self.processor(temporal_patch=1))
        dump(
            folder / "generation_config.json",
            {
                "eos_token_id": [DOTS_OCR.id_of(DOTS_OCR.eos)],
                "pad_token_id": DOTS_OCR.id_of(DOTS_OCR.pad),
            },
        )
        write_weights(folder / "model.safetensors", self.shapes(), self.seed, self.spread)

    def _config(self) -> dict[str, object]:
        heads = self.hidden // 64
        return {
            "architectures": ["DotsOCRForCausalLM"],
            "auto_map": {"AutoConfig": "configuration_dots.DotsOCRConfig"},
            "model_type": "dots_ocr",
            "hidden_size": self.hidden,
            "intermediate_size": self.hidden * 2,
            "num_hidden_layers": self.layers,
            "num_attention_heads": heads,
            "num_key_value_heads": heads,
            "vocab_size": self.vocab_size,
            "max_position_embeddings": MAX_POSITIONS,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1e6,
            "rope_scaling": None,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
            "use_sliding_window": False,
            "hidden_act": "silu",
            "attention_bias": True,
            "image_token_id": self.image_token_id,
            "video_token_id": DOTS_OCR.id_of(DOTS_OCR.video),
            "bos_token_id": None,
            "eos_token_id": DOTS_OCR.id_of(DOTS_OCR.eos),
            "vision_config": {
                "embed_dim": self.vision_width,
                "hidden_size": self.hidden,
                "intermediate_size": self.vision_width * 2,
                "num_hidden_layers": self.vision_depth,
                "num_attention_heads": 2,
                "num_channels": 3,
                "patch_size": PATCH,
                "spatial_merge_size": MERGE,
                "temporal_patch_size": 1,
                "rms_norm_eps": 1e-5,
                "use_bias": False,
                "post_norm": True,
            },
        }
