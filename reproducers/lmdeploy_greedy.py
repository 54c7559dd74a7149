"""Greedy tokens of a model by LMDeploy's PyTorch engine, judged by transformers.

Run it with the engine's interpreter: ``python lmdeploy_greedy.py MODEL``. It shows
whether a stand-in computes what the model means; without one it needs a GPU. Prints one
JSON object: how many of the new tokens are transformers' own choice, and how far the
others are from it."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from typing import Any

_NEW_TOKENS = 12
_LENGTHS = (3, 64, 65, 700)
"""Prompts below, at and above a block, and of many blocks."""


def prompts(vocabulary: int) -> list[list[int]]:
    """Fixed prompts that look like noise: a linear congruence."""
    found = []
    for length in _LENGTHS:
        value, prompt = 12_345 + length, []
        for _ in range(length):
            value = (1_103_515_245 * value + 12_345) % 2**31
            prompt.append(value % min(256, vocabulary))
        found.append(prompt)
    return found


def _by_lmdeploy(model: str, asked: list[list[int]]) -> list[list[int]]:
    from lmdeploy.messages import GenerationConfig, PytorchEngineConfig
    from lmdeploy.pytorch.engine import Engine

    config = PytorchEngineConfig(
        eager_mode=True, cache_max_entry_count=0.5, max_batch_size=8
    )
    engine = Engine.from_pretrained(model, engine_config=config)
    greedy = GenerationConfig(max_new_tokens=_NEW_TOKENS, top_k=1, ignore_eos=True)
    answers = []
    for number, prompt in enumerate(asked):
        instance = engine.create_instance()
        tokens: list[int] = []
        for output in instance.stream_infer(number, prompt, gen_config=greedy):
            said = [int(t) for t in output.token_ids]
            # 0.6.4 gives all tokens so far each time, 0.18.0 those of the step.
            tokens = said if said[: len(tokens)] == tokens else tokens + said
        instance.end(number)
        answers.append(tokens)
    return answers


def judged(
    model: str, asked: list[list[int]], answers: list[list[int]]
) -> list[list[float]]:
    """For each new token: how far its logit is below the highest, by transformers.

    In units of what bfloat16 can tell apart at the highest logit; 0 is transformers'
    own choice. Both continue from the same tokens, so that one rounding does not change
    all that follows."""
    import torch
    from transformers import AutoModelForCausalLM

    loaded: Any = AutoModelForCausalLM.from_pretrained(
        model, torch_dtype=torch.bfloat16
    )
    behind = []
    for prompt, answer in zip(asked, answers, strict=True):
        with torch.no_grad():
            logits = loaded(torch.tensor([prompt + answer])).logits[0].float()
        steps = []
        for i, token in enumerate(answer):
            row = logits[len(prompt) - 1 + i]
            highest = float(row.max())
            unit = 2.0 ** (math.floor(math.log2(max(abs(highest), 1e-30))) - 7)
            steps.append((highest - float(row[token])) / unit)
        behind.append(steps)
    return behind


def _judged_apart(
    model: str, asked: list[list[int]], answers: list[list[int]]
) -> list[list[float]]:
    """``judged`` in a process without the stand-in: what changes torch for LMDeploy
    changes it for transformers too (5.17 then computes other logits)."""
    judge = subprocess.run(
        # Isolated: PYTHONPATH, by which a stand-in comes in, is ignored.
        [sys.executable, "-I", __file__, model, "--judge"],
        input=json.dumps([asked, answers]),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    behind: list[list[float]] = json.loads(judge.stdout)
    return behind


def main(model: str) -> None:
    asked = prompts(256)
    answers = _by_lmdeploy(model, asked)
    behind = _judged_apart(model, asked, answers)
    every = [step for steps in behind for step in steps]
    facts = {
        "tokens": len(every),
        "equal": sum(step == 0 for step in every),
        "most_behind": max(every),
        "different_answers": len({tuple(a) for a in answers}),
        "answers": answers,
    }
    print(json.dumps(facts), flush=True)
    # The engine of 0.18.0 leaves generators that end the interpreter with a SIGSEGV
    # where it collects them last.
    os._exit(0)


if __name__ == "__main__":
    if sys.argv[2:] == ["--judge"]:
        print(json.dumps(judged(sys.argv[1], *json.load(sys.stdin))))
    else:
        main(sys.argv[1])
