"""Stand-in: the barrier of vllm#28706 and vllm#31373, as a patch.

vLLM 0.12.0 and 0.13.0 record the event after which the host may reuse its buffers
before ``_preprocess`` has queued the copy of ``is_mm_embed``. Here it is recorded once
more after it."""

import sys
from types import ModuleType
from typing import Any

from mmrepro_boot import after_import

_SAID = "mmrepro: the event was recorded after GPUModelRunner._preprocess"
"""Of the first time in each process: of an engine that never got there it is not
said."""
told: list[bool] = []


def patch(module: ModuleType) -> None:
    cls: Any = module.GPUModelRunner
    original = cls._preprocess

    def preprocess(self: Any, *args: Any, **options: Any) -> Any:
        result = original(self, *args, **options)
        if self.prepare_inputs_event is not None:
            self.prepare_inputs_event.record()
            if not told:
                told.append(True)
                print(_SAID, file=sys.stderr, flush=True)
        return result

    cls._preprocess = preprocess


after_import("vllm.v1.worker.gpu_model_runner", patch)
