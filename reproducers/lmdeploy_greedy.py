"""Greedy tokens of a model by LMDeploy's PyTorch engine and by transformers, side by side.

Run it with the engine's interpreter: ``python lmdeploy_greedy.py MODEL``. It shows whether a
stand-in computes what the model means; without one it needs a GPU. Prints one JSON object: the new
tokens of each prompt by both, and whether they are equal.
"""

from __future__ import annotations

import json
import sys
from typing import Any

NEW_TOKENS = 12
LENGTHS = (3, 64, 65, 700)
"""Prompts below, at and above a block, and of many blocks."""


def prompts(vocabulary: int) -> list[list[int]]:
    """Fixed prompts that look like noise: a linear congruence."""
    found = []
    for length in LENGTHS:
        value, prompt = 12_345 + length, []
        for _ in range(length):
            value = (1_103_515_245 * value + 12_345) % 2**31
            prompt.append(value % min(256, vocabulary))
        found.append(prompt)
    return found


def by_lmdeploy(model: str, asked: list[list[int]]) -> list[list[int]]:
    from lmdeploy.messages import GenerationConfig, PytorchEngineConfig
    from lmdeploy.pytorch.engine import Engine

    config = PytorchEngineConfig(eager_mode=True, cache_max_entry_count=0.5, max_batch_size=8)
    engine = Engine.from_pretrained(model, engine_config=config)
    greedy = GenerationConfig(max_new_tokens=NEW_TOKENS, top_k=1, ignore_eos=True)
    answers = []
    for number, prompt in enumerate(asked):
        instance = engine.create_instance()
        tokens: list[int] = []
        for output in instance.stream_infer(number, prompt, gen_config=greedy):
            tokens = [int(t) for t in output.token_ids]
        instance.end(number)
        answers.append(tokens)
    return answers


def by_transformers(model: str, asked: list[list[int]]) -> list[list[int]]:
    import torch
    from transformers import AutoModelForCausalLM

    loaded: Any = AutoModelForCausalLM.from_pretrained(model, torch_dtype=torch.bfloat16)
    answers = []
    for prompt in asked:
        tokens = list(prompt)
        for _ in range(NEW_TOKENS):
            with torch.no_grad():
                logits = loaded(torch.tensor([tokens])).logits[0, -1]
            tokens.append(int(logits.argmax()))
        answers.append(tokens[len(prompt) :])
    return answers


def main(model: str) -> None:
    asked = prompts(256)
    ours, reference = by_lmdeploy(model, asked), by_transformers(model, asked)
    print(json.dumps({"lmdeploy": ours, "transformers": reference, "equal": ours == reference}))


if __name__ == "__main__":
    main(sys.argv[1])
