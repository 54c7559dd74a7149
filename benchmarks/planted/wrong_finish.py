"""A plugin of minivllm: an answer that max_tokens cut is said to have ended by itself.

The mistake: the end is looked for where a new block would be taken, and an answer whose
last token fills a block looks finished there."""

from __future__ import annotations

from minivllm.config import EngineConfig
from minivllm.engine import Engine
from minivllm.sequence import Sequence


def plug(config: EngineConfig) -> EngineConfig:
    sound = Engine._finish

    def finish(self: Engine, seq: Sequence, reason: str, error: str = "") -> None:
        if reason == "length" and not len(seq.output_ids) % self.config.block_size:
            reason = "stop"
        sound(self, seq, reason, error)

    Engine._finish = finish  # type: ignore[method-assign]
    return config
