"""A model small enough for thousands of steps, and transformers' Qwen3 with the same
weights."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from minivllm.config import EngineConfig, ModelConfig, VisionConfig
from minivllm.loading import build
from minivllm.model import Qwen3
from minivllm.sequence import Image
from torch import Tensor

torch.set_num_threads(1)

MODEL = ModelConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    vision=VisionConfig(depth=1, width=16, heads=2),
)


@cache
def model() -> Qwen3:
    torch.manual_seed(7)
    made = Qwen3(MODEL).eval()
    for name, weight in made.named_parameters():
        if "norm" not in name:
            torch.nn.init.normal_(weight, std=0.3)
        else:  # a norm that does something
            torch.nn.init.uniform_(weight, 0.5, 1.5)
    return made


@cache
def transformers_model(device: str = "cpu") -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=MODEL.vocab_size,
        hidden_size=MODEL.hidden_size,
        intermediate_size=MODEL.intermediate_size,
        num_hidden_layers=MODEL.num_hidden_layers,
        num_attention_heads=MODEL.num_attention_heads,
        num_key_value_heads=MODEL.num_key_value_heads,
        head_dim=MODEL.head_dim,
        rope_theta=MODEL.rope_theta,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    made = Qwen3ForCausalLM(config).eval()
    weights = {
        name if name.startswith("lm_head") else f"model.{name}": tensor
        for name, tensor in model().state_dict().items()
    }
    missing = made.load_state_dict(weights, strict=True)
    assert not missing.missing_keys
    return made.to(device)


def reference(
    ids: Sequence[int], images: Sequence[Image], max_tokens: int, device: str = "cpu"
) -> list[int]:
    """Greedy tokens of transformers, images as embeddings in front of the text's."""
    made = transformers_model(device)
    with torch.inference_mode():
        text = made.model.embed_tokens(torch.tensor(ids, device=device))
        embeds = torch.cat([*(embed(image).to(device) for image in images), text])
        found = made.generate(
            inputs_embeds=embeds[None],
            attention_mask=torch.ones(1, len(embeds), dtype=torch.long, device=device),
            max_new_tokens=max_tokens,
            do_sample=False,
        )
    return found[0].tolist()


def embed(image: Image) -> Tensor:
    from minivllm.fake_vision import FakeVision  # here: one test runs without it

    return FakeVision(MODEL).embed(image)


def engine(config: EngineConfig) -> Any:
    """A minivllm engine over a fresh copy of the model's class, the weights shared."""
    made = Qwen3(MODEL)
    made.load_state_dict(model().state_dict(), assign=True)
    return build(config, made.to(config.device).eval())
