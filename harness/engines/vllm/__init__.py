"""vLLM."""

from mmrepro.engines.vllm.adapter import (
    CONTRACT_PROBE as CONTRACT_PROBE,
    EMULATED_STREAM as EMULATED_STREAM,
    VllmEngine as VllmEngine,
)

ENGINE = VllmEngine
