"""An engine made of a model's folder."""

from pathlib import Path

import torch

from .config import EngineConfig, ModelConfig
from .engine import Engine, Runner
from .model import Qwen3
from .runner import ModelRunner, read_weights


def load(folder: Path, config: EngineConfig) -> Engine:
    """A model in the format of transformers' Qwen3ForCausalLM."""
    model = Qwen3(ModelConfig.read(folder))
    model.load(read_weights(folder))
    dtype = torch.bfloat16 if config.dtype == "bfloat16" else torch.float32
    return build(config, model.to(config.device, dtype).eval(), folder)


def build(config: EngineConfig, model: Qwen3, folder: Path | None = None) -> Engine:
    """``folder``: where the vision tower's weights are; the fake vision needs none."""
    text = ModelRunner(config, model)

    def with_images() -> Runner:
        from .images import ImageRunner

        return ImageRunner(text, read_weights(folder, "visual.") if folder else {})

    return Engine(config, text, with_images, model.config.eos_token_id)
