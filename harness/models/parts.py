"""Weights that several architectures have in common: names and shapes, in drawing order."""

from __future__ import annotations

from mmrepro.models.base import Shapes
from mmrepro.models.qwen_images import MERGE


def patch_merger(prefix: str, width: int, hidden: int) -> Shapes:
    """Weights of Qwen2-VL's merger, from the tower's ``width`` to the language model's."""
    merged = width * MERGE * MERGE
    yield f"{prefix}.ln_q.weight", (width,)
    yield f"{prefix}.ln_q.bias", (width,)
    yield f"{prefix}.mlp.0.weight", (merged, merged)
    yield f"{prefix}.mlp.0.bias", (merged,)
    yield f"{prefix}.mlp.2.weight", (hidden, merged)
    yield f"{prefix}.mlp.2.bias", (hidden,)


def tower_block(block: str, width: int, parts: tuple[str, str, str, str]) -> Shapes:
    """Weights of one block of a vision tower with biases.

    ``parts``: what qkv, the attention's output and the two layers of the MLP are called.
    """
    qkv, out, up, down = parts
    for norm in ("norm1", "norm2"):
        yield f"{block}.{norm}.weight", (width,)
        yield f"{block}.{norm}.bias", (width,)
    for name, rows, columns in (
        (qkv, 3 * width, width),
        (out, width, width),
        (up, 2 * width, width),
        (down, width, 2 * width),
    ):
        yield f"{block}.{name}.weight", (rows, columns)
        yield f"{block}.{name}.bias", (rows,)


def qwen2_language_model(vocab_size: int, hidden: int, layers: int) -> Shapes:
    """Weights of a Qwen2 with as many KV heads as heads and a head of its own."""
    yield "model.embed_tokens.weight", (vocab_size, hidden)
    for i in range(layers):
        layer = f"model.layers.{i}"
        for name in ("q_proj", "k_proj", "v_proj"):
            yield f"{layer}.self_attn.{name}.weight", (hidden, hidden)
            yield f"{layer}.self_attn.{name}.bias", (hidden,)
        yield f"{layer}.self_attn.o_proj.weight", (hidden, hidden)
        yield from mlp_and_norms(layer, hidden)
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (vocab_size, hidden)


def mlp_and_norms(layer: str, width: int) -> Shapes:
    """What follows the attention in a layer of Llama and all that descend from it."""
    yield f"{layer}.mlp.gate_proj.weight", (2 * width, width)
    yield f"{layer}.mlp.up_proj.weight", (2 * width, width)
    yield f"{layer}.mlp.down_proj.weight", (width, 2 * width)
    yield f"{layer}.input_layernorm.weight", (width,)
    yield f"{layer}.post_attention_layernorm.weight", (width,)
