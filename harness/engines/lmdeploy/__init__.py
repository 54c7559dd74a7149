"""LMDeploy."""

from mmrepro.engines.lmdeploy.adapter import (
    CPU as CPU,
    WITNESS as WITNESS,
    WITNESS_PATTERNS as WITNESS_PATTERNS,
    LmdeployEngine as LmdeployEngine,
    device_memory as device_memory,
)

ENGINE = LmdeployEngine
