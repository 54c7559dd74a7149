"""A Qwen3 of two layers with a small vision tower beside it: what minivllm serves."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import ClassVar

from mmrepro.models.base import Shapes, mlp_and_norms, named_after, tower_block
from mmrepro.models.qwen2vl import FORMAT, MERGE, PATCH, TinyQwen2VL


@dataclass(frozen=True)
class TinyQwen3(TinyQwen2VL):
    """The language model is transformers' ``Qwen3ForCausalLM`` (models/qwen3), weight for weight.

    The tower (``visual.*``) is minivllm's own: patches of 14 pixels, merged 2 x 2. Image sizes and
    the tokens that they become follow the same rule as Qwen2-VL's.
    """

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
            yield from tower_block(f"visual.blocks.{i}", v, ("qkv", "proj", "fc1", "fc2"))
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
                yield f"{layer}.self_attn.{name}.weight", (self.kv_heads * self.head_dim, h)
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
