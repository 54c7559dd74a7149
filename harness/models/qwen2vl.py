"""A Qwen2-VL of two layers with random weights, written without torch.

The architecture, names of weights and processor fields are those of transformers'
``Qwen2VLForConditionalGeneration`` (models/qwen2_vl), so every engine loads it as the real one.
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
    tower_block,
    write_weights,
)
from mmrepro.models.qwen_images import FACTOR, MERGE, PATCH, QwenModel, smart_resize

__all__ = ["FACTOR", "FORMAT", "MERGE", "PATCH", "TinyQwen2VL", "smart_resize"]

FORMAT = 4
"""Raised when what the factory writes changes, so that old cached models are not reused."""


@dataclass(frozen=True)
class TinyQwen2VL(QwenModel):
    kind: ClassVar[str] = "tiny Qwen2-VL with random weights"

    @property
    def key(self) -> str:
        """Names the folder: everything that decides the files."""
        return named_after("tiny-qwen2vl", FORMAT, asdict(self))

    def shapes(self) -> Shapes:
        v, h = self.vision_width, self.hidden
        yield "visual.patch_embed.proj.weight", (v, 3, 2, PATCH, PATCH)
        for i in range(self.vision_depth):
            parts = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
            yield from tower_block(f"visual.blocks.{i}", v, parts)
        yield from patch_merger("visual.merger", v, h)
        yield from qwen2_language_model(self.vocab_size, h, self.layers)

    def _write_into(self, folder: Path) -> None:
        from mmrepro.models.tokenizer import write_tokenizer

        ids = write_tokenizer(folder, self.vocab_size)
        dump(folder / "config.json", self._config(ids))
        dump(folder / "preprocessor_config.json", self.processor(temporal_patch=2))
        dump(
            folder / "generation_config.json",
            {"eos_token_id": [ids["<|im_end|>"]], "pad_token_id": ids["<|endoftext|>"]},
        )
        write_weights(folder / "model.safetensors", self.shapes(), self.seed, self.spread)

    def _config(self, ids: dict[str, int]) -> dict[str, object]:
        heads = self.hidden // 64
        return {
            "architectures": ["Qwen2VLForConditionalGeneration"],
            "model_type": "qwen2_vl",
            "hidden_size": self.hidden,
            "intermediate_size": self.hidden * 2,
            "num_hidden_layers": self.layers,
            "num_attention_heads": heads,
            "num_key_value_heads": heads,
            "vocab_size": self.vocab_size,
            "max_position_embeddings": 32768,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1e6,
            "rope_scaling": {"type": "mrope", "mrope_section": [8, 12, 12]},
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
            "use_sliding_window": False,
            "hidden_act": "silu",
            "vision_start_token_id": ids["<|vision_start|>"],
            "vision_end_token_id": ids["<|vision_end|>"],
            "vision_token_id": ids["<|vision_pad|>"],
            "image_token_id": ids["<|image_pad|>"],
            "video_token_id": ids["<|video_pad|>"],
            "bos_token_id": ids["<|endoftext|>"],
            "eos_token_id": ids["<|im_end|>"],
            "vision_config": {
                "depth": self.vision_depth,
                "embed_dim": self.vision_width,
                "hidden_size": self.hidden,
                "num_heads": 2,
                "mlp_ratio": 2,
                "in_channels": 3,
                "in_chans": 3,
                "patch_size": PATCH,
                "spatial_patch_size": PATCH,
                "spatial_merge_size": MERGE,
                "temporal_patch_size": 2,
                "hidden_act": "quick_gelu",
            },
        }
