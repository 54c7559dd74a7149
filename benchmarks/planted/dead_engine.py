"""A plugin of minivllm: the second step ends the engine, whose front lives on and answers
500.

The mistake: a step is counted in a list that is too short."""

from __future__ import annotations

from typing import Any

from minivllm.config import EngineConfig
from minivllm.engine import Engine


def plug(config: EngineConfig) -> EngineConfig:
    sound = Engine.step
    left = [None]

    def step(self: Engine) -> Any:
        left.pop()
        return sound(self)

    Engine.step = step  # type: ignore[method-assign]
    return config
