"""SGLang."""

from mmrepro.engines.sglang.adapter import (
    CPU_OPTIONS as CPU_OPTIONS,
    KERNELS as KERNELS,
    OPTIONS as OPTIONS,
    VLLM_NAMES as VLLM_NAMES,
    SglangEngine as SglangEngine,
)

ENGINE = SglangEngine
