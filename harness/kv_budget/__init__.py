"""KV budget arithmetic: memory and one setting in, blocks and the longest prompt out,
and back.

Forward::

    plan = LmdeployPlan("0.6.4", free=6784 << 20, runtime=5061 << 20, bytes_per_block=8388608)
    plan.forward(Decimal("0.1")).max_tokens        # 1344

Backward: the smallest setting, with so many decimals, that holds a prompt::

    smallest(plan, tokens=3446, decimals=2).setting.setting     # Decimal("0.26")

Nothing here starts an engine or needs one. ``eras`` holds how each release range
computes and where that was read (``plan.sources``); ``docs/kv-budget.md`` compares it
with what the real engines log."""

from mmrepro.kv_budget.base import (
    Budget as Budget,
    MemoryPlan as MemoryPlan,
    Smallest as Smallest,
    smallest as smallest,
    steps as steps,
)
from mmrepro.kv_budget.eras import (
    LMDEPLOY as LMDEPLOY,
    SGLANG as SGLANG,
    VLLM as VLLM,
    VLLM_CPU as VLLM_CPU,
)
from mmrepro.kv_budget.model import Geometry as Geometry, read_model as read_model
from mmrepro.kv_budget.plans import (
    LmdeployPlan as LmdeployPlan,
    SglangPlan as SglangPlan,
    VllmCpuPlan as VllmCpuPlan,
    VllmPlan as VllmPlan,
    block_bytes_of as block_bytes_of,
    block_size_of as block_size_of,
)
