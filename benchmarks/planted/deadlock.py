"""A plugin of minivllm: the longest prompt that is let in stops the engine for ever.

The mistake: a prompt that leaves room for one token only is noted down under a lock
that its thread has already."""

from __future__ import annotations

import threading
from collections.abc import Sequence as Seq
from typing import Any

from minivllm.config import EngineConfig
from minivllm.engine import Engine
from minivllm.sequence import Image, Sequence


def plug(config: EngineConfig) -> EngineConfig:
    sound = Engine.add
    lock = threading.Lock()
    full: set[int] = set()

    def note(seq: Sequence) -> None:
        with lock:
            full.add(seq.id)

    def add(
        self: Engine, token_ids: list[int], images: Seq[Image] = (), **options: Any
    ) -> Sequence:
        with lock:
            seq = sound(self, token_ids, images, **options)
            if seq.num_tokens == self.config.max_model_len - 1:
                note(seq)
        return seq

    Engine.add = add  # type: ignore[method-assign]
    return config
