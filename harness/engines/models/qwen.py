"""Qwen2-VL and Qwen3 of two layers with random weights, written without torch.

The architecture, names of weights and processor fields of Qwen2-VL are those of
transformers' ``Qwen2VLForConditionalGeneration`` (models/qwen2_vl), so every engine
loads it as the real one. The Qwen3 has a small vision tower beside it: it is what
minivllm serves."""

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

from mmrepro.engines.models.base import (
    MERGE as MERGE,
    Shapes,
    TinyModel,
    dump,
    mlp_and_norms,
    named_after,
    patch_merger,
    qwen2_language_model,
    tower_block,
    write_weights,
)

PATCH = 14
FACTOR = PATCH * MERGE
"""One image token covers 28 x 28 pixels: patches of 14, merged 2 x 2."""

_MAX_RATIO = 200
"""The image processor refuses images with longer sides."""


def smart_resize(
    height: int, width: int, *, min_pixels: int, max_pixels: int, factor: int = FACTOR
) -> tuple[int, int]:
    """Height and width in pixels after the image processor's resize.

    The rule of transformers
    ``models/qwen2_vl/image_processing_qwen2_vl.py:smart_resize``.

    Raises:
        ValueError: a side is not positive, or the sides differ more than 200-fold.
    """
    if min(height, width) <= 0:
        raise ValueError("an image has at least one pixel a side")
    if max(height, width) / min(height, width) > _MAX_RATIO:
        raise ValueError("the aspect ratio must be below 200")
    h = max(factor, round(height / factor) * factor)
    w = max(factor, round(width / factor) * factor)
    if h * w > max_pixels:
        beta = math.sqrt(height * width / max_pixels)
        h = max(factor, math.floor(height / beta / factor) * factor)
        w = max(factor, math.floor(width / beta / factor) * factor)
    elif h * w < min_pixels:
        beta = math.sqrt(min_pixels / (height * width))
        h = math.ceil(height * beta / factor) * factor
        w = math.ceil(width * beta / factor) * factor
    return h, w


@dataclass(frozen=True)
class QwenModel(TinyModel):
    """A model whose images go through Qwen2-VL's processor; equal values give
    byte-equal files.

    Attributes:
        image_tokens: most image tokens that one image becomes; images are resized to
            it.
        seed: of the weights.
        hidden: width of the language model; a multiple of 64.
        std: standard deviation of the weights. 0.12 makes greedy answers depend on the
            image; transformers' 0.02 gives nearly flat logits.
    """

    image_tokens: int = 225
    seed: int = 0
    hidden: int = 128
    layers: int = 2
    vision_width: int = 64
    vision_depth: int = 2
    vocab_size: int = 320
    std: float = 0.12

    @property
    def max_pixels(self) -> int:
        return self.image_tokens * FACTOR * FACTOR

    def image_size(self) -> tuple[int, int]:
        """(width, height) in pixels of an image that becomes exactly ``image_tokens``
        tokens.

        Raises:
            ValueError: there is none, as for a prime above 200: the processor refuses
                images that are more than 200 times as wide as high.
        """
        side = math.isqrt(self.image_tokens)
        rows = next(r for r in range(side, 0, -1) if self.image_tokens % r == 0)
        if self.image_tokens > _MAX_RATIO * rows * rows:
            raise ValueError(
                f"no image becomes exactly {self.image_tokens} tokens; take another"
            )
        return self.image_tokens // rows * FACTOR, rows * FACTOR

    def tokens_of(self, width: int, height: int) -> int:
        """Image tokens of an image of that size in pixels, after the processor's
        resize."""
        h, w = smart_resize(
            height, width, min_pixels=FACTOR * FACTOR, max_pixels=self.max_pixels
        )
        return (h // FACTOR) * (w // FACTOR)

    def processor(self, temporal_patch: int) -> dict[str, object]:
        """``preprocessor_config.json``; ``temporal_patch``: frames that one patch
        covers."""
        return {
            "image_processor_type": "Qwen2VLImageProcessor",
            "processor_class": "Qwen2VLProcessor",
            "min_pixels": FACTOR * FACTOR,
            "max_pixels": self.max_pixels,
            "size": {"shortest_edge": FACTOR * FACTOR, "longest_edge": self.max_pixels},
            "patch_size": PATCH,
            "temporal_patch_size": temporal_patch,
            "merge_size": MERGE,
            "image_mean": [0.48, 0.457, 0.408],
            "image_std": [0.268, 0.261, 0.275],
            "do_resize": True,
            "do_rescale": True,
            "do_normalize": True,
            "do_convert_rgb": True,
        }


__all__ = ["FACTOR", "FORMAT", "MERGE", "PATCH", "TinyQwen2VL", "smart_resize"]

FORMAT = 4
"""Raised when what the factory writes changes, so that old cached models are not
reused."""


@dataclass(frozen=True)
class TinyQwen2VL(QwenModel):
    kind: ClassVar[str] = "tiny Qwen2-VL with random weights"

    @property
    def key(self) -> str:
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
        from mmrepro.engines.models.base import write_tokenizer

        ids = write_tokenizer(folder, self.vocab_size)
        dump(folder / "config.json", self._config(ids))
        dump(folder / "preprocessor_config.json", self.processor(temporal_patch=2))
        dump(
            folder / "generation_config.json",
            {"eos_token_id": [ids["<|im_end|>"]], "pad_token_id": ids["<|endoftext|>"]},
        )
        write_weights(
            folder / "model.safetensors", self.shapes(), self.seed, self.spread
        )

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


@dataclass(frozen=True)
class TinyQwen3(TinyQwen2VL):
    """The language model is transformers' ``Qwen3ForCausalLM`` (models/qwen3), weight
    for weight.

    The tower (``visual.*``) is minivllm's own: patches of 14 pixels, merged 2 x 2.
    Image sizes and the tokens that they become follow the same rule as Qwen2-VL's."""

    kind: ClassVar[str] = "tiny Qwen3 with a vision tower, random weights"

    image_tokens: int = 64
    hidden: int = 64
    vision_width: int = 32
    head_dim: int = 16
    heads: int = 4
    kv_heads: int = 2

    @property
    def key(self) -> str:
        return named_after("tiny-qwen3", FORMAT, asdict(self))

    def shapes(self) -> Shapes:
        v, h = self.vision_width, self.hidden
        group = v * MERGE * MERGE
        yield "visual.patch_embed.weight", (v, 3 * PATCH * PATCH)
        yield "visual.patch_embed.bias", (v,)
        for i in range(self.vision_depth):
            yield from tower_block(
                f"visual.blocks.{i}", v, ("qkv", "proj", "fc1", "fc2")
            )
        yield "visual.norm.weight", (v,)
        yield "visual.norm.bias", (v,)
        yield "visual.merge1.weight", (group, group)
        yield "visual.merge1.bias", (group,)
        yield "visual.merge2.weight", (h, group)
        yield "visual.merge2.bias", (h,)
        yield "model.embed_tokens.weight", (self.vocab_size, h)
        for i in range(self.layers):
            layer = f"model.layers.{i}"
            yield f"{layer}.self_attn.q_proj.weight", (self.heads * self.head_dim, h)
            for name in ("k_proj", "v_proj"):
                yield (
                    f"{layer}.self_attn.{name}.weight",
                    (self.kv_heads * self.head_dim, h),
                )
            yield f"{layer}.self_attn.o_proj.weight", (h, self.heads * self.head_dim)
            for name in ("q_norm", "k_norm"):
                yield f"{layer}.self_attn.{name}.weight", (self.head_dim,)
            yield from mlp_and_norms(layer, h)
        yield "model.norm.weight", (h,)
        yield "lm_head.weight", (self.vocab_size, h)

    def _config(self, ids: dict[str, int]) -> dict[str, object]:
        return {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "hidden_size": self.hidden,
            "intermediate_size": self.hidden * 2,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocab_size,
            "max_position_embeddings": 32768,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1e6,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
            "use_sliding_window": False,
            "hidden_act": "silu",
            "bos_token_id": ids["<|endoftext|>"],
            "eos_token_id": ids["<|im_end|>"],
            "pad_token_id": ids["<|endoftext|>"],
            "vision_config": {
                "depth": self.vision_depth,
                "width": self.vision_width,
                "heads": 2,
                "patch": PATCH,
                "merge": MERGE,
                "max_tokens": self.image_tokens,
            },
        }
