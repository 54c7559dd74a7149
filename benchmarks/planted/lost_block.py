"""A plugin of minivllm: an aborted request keeps one block of the KV cache.

The mistake: the block that is being written is left to the step under way, and no step
gives it back."""

from __future__ import annotations

from minivllm.config import EngineConfig
from minivllm.scheduler import Scheduler
from minivllm.sequence import Sequence


def plug(config: EngineConfig) -> EngineConfig:
    sound = Scheduler.finish

    def finish(self: Scheduler, seq: Sequence, reason: str, error: str = "") -> None:
        if reason == "abort" and seq in self.running:
            seq.block_table.pop()
        sound(self, seq, reason, error)

    Scheduler.finish = finish  # type: ignore[method-assign]
    return config
