"""A plug-in of minivllm that plants one change of a new release: ``--plugin
upgrade_server.py``.

The variable PLANT says which. ``sitecustomize`` beside it (PYTHONPATH) takes an option
away, since a plug-in comes after the options."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import Any

LEAK_BYTES = 2 << 20
"""That each request leaves behind."""
_KEPT: list[bytearray] = []
IDLE_S = 0.01
"""Between two steps: the engine had nothing to do."""
_last = [0.0]


def plug(config: Any) -> Any:
    """The engine's configuration, with the change of PLANT."""
    plant = os.environ["PLANT"]
    if plant == "half the KV cache":
        return replace(config, num_blocks=(config.num_blocks - 1) // 2 + 1)
    from minivllm.chat import Chat
    from minivllm.engine import Engine
    from minivllm.server import Handler

    def changed(owner: type, name: str, change: Any) -> None:
        made = getattr(owner, name)
        setattr(
            owner,
            name,
            lambda self, *args, **kwargs: change(made, self, *args, **kwargs),
        )

    def field(made: Any, self: Any, *args: Any) -> Any:
        frame = made(self, *args)
        frame["created_at"] = frame.pop("created")
        return frame

    def token(made: Any, self: Any, ids: list[int]) -> str:
        place = 3
        if len(ids) > place and sum(ids[:place]) % 4 == 0:
            ids = [*ids[:place], ids[place] ^ 1, *ids[place + 1 :]]
        return str(made(self, ids))

    def leak(made: Any, self: Any, *args: Any) -> Any:
        _KEPT.append(bytearray(os.urandom(1)) * LEAK_BYTES)
        return made(self, *args)

    def slower(made: Any, self: Any) -> Any:
        """Each step takes longer by a share (DELAY) of the time since the last one
        ended, or of its own after the engine was idle."""
        began = time.perf_counter()
        found = made(self)
        now = time.perf_counter()
        took = now - (_last[0] if began - _last[0] < IDLE_S else began)
        end = now + float(os.environ["DELAY"]) * took
        while time.perf_counter() < end:
            pass
        _last[0] = time.perf_counter()
        return found

    def reason(made: Any, self: Any, content: Any, reason: Any, *args: Any) -> Any:
        return made(
            self, content, "max_tokens" if reason == "length" else reason, *args
        )

    where = {
        "a field renamed": (Handler, "_frame", field),
        "one token": (Chat, "text", token),
        "a leak": (Handler, "_complete", leak),
        "slower": (Engine, "step", slower),
        "a finish reason": (Handler, "_choice", reason),
    }
    if plant in where:
        changed(*where[plant])
    return config
