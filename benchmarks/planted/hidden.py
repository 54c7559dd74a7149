"""A plugin of minivllm: one of its own faults, which neither the command line nor the
log names.

``MINIVLLM_HIDDEN`` has the fault's name in rot13.
"""

from __future__ import annotations

import codecs
import os
from dataclasses import replace

from minivllm.config import FAULTS, EngineConfig

VARIABLE = "MINIVLLM_HIDDEN"


def plug(config: EngineConfig) -> EngineConfig:
    name = codecs.decode(os.environ.get(VARIABLE, ""), "rot13")
    if name not in FAULTS:
        raise ValueError(f"{VARIABLE} is no fault's name in rot13")
    return replace(
        config,
        faults=config.faults | {name},
        async_scheduling=config.async_scheduling or name == "reused-mask",
    )
