"""LMDeploy's opaque HTTP 500 in one process: the report's numbers through the installed
code.

Run it with the engine's interpreter: ``python lmdeploy_kv_chain.py``. It needs no GPU,
no model and no server, and prints one JSON object of facts. It holds for the releases
that size the cache in ``pytorch/engine/model_agent.py`` (up to 0.7.1); on later ones it
says so and ends with 1.

From the memory that the report names to the exception that the client's HTTP 500 stands
for: ``_update_cache_config`` sizes the cache, ``Engine._get_max_session_len`` makes the
limit of it, ``EngineInstance.async_stream_infer`` refuses the prompt, and the
response's model refuses that."""

from __future__ import annotations

import asyncio
import json
import sys
import types
from types import FrameType
from typing import Any

_FREE = 7_114_457_088
"""Bytes, solved from the report (its gpu_mem 903 548 928 with 0.5, and the reserve that
LMDeploy computes): 6784 MiB as LMDeploy logs it (>> 20). Blocks and gpu_mem below are
consistent with the report by this choice and confirm none of its numbers; the bytes a
block and the reserve do not depend on it."""
_PROMPT = 3446
_VOCABULARY = 92_553
LAYERS, KV_HEADS, HEAD = 32, 8, 128
"""InternVL2-8B's language model, InternLM2-7B."""


def load() -> Any:
    import torch
    from lmdeploy.pytorch.engine import model_agent

    if not hasattr(model_agent, "_update_cache_config"):
        sys.exit(
            "this release sizes its KV cache elsewhere "
            "(pytorch/engine/executor/base.py)"
        )
    torch.cuda.mem_get_info = lambda *args: (_FREE, 4 * _FREE)
    torch.cuda.empty_cache = lambda: None
    return model_agent


def model_config() -> Any:
    import torch
    from lmdeploy.pytorch.config import ModelConfig

    return ModelConfig(
        hidden_size=4096,
        num_layers=LAYERS,
        num_attention_heads=32,
        num_key_value_heads=KV_HEADS,
        bos_token_id=1,
        eos_token_id=[2],
        head_dim=HEAD,
        k_head_dim=HEAD,
        v_head_dim=HEAD,
        vocab_size=_VOCABULARY,
        dtype=torch.bfloat16,
    )


def sized(model_agent: Any, share: float) -> tuple[Any, dict[str, Any]]:
    """The cache's configuration after LMDeploy sized it, and what its functions
    returned."""
    from lmdeploy.pytorch.config import CacheConfig

    config = CacheConfig(
        max_batches=128,
        block_size=64,
        num_cpu_blocks=0,
        num_gpu_blocks=0,
        cache_max_entry_count=share,
        max_prefill_token_num=8192,  # api_server's default
    )
    seen: dict[str, Any] = {}

    def profile(frame: FrameType, event: Any, value: Any) -> None:
        if event == "return":
            seen[frame.f_code.co_name] = value

    sys.setprofile(profile)
    try:
        model_agent._update_cache_config(model_config(), config)
    finally:
        sys.setprofile(None)
    return config, seen


def quantised() -> dict[str, int]:
    """Bytes of a block with 8 and with 4 bits an element (--quant-policy)."""
    from lmdeploy.pytorch.engine.cache_engine import CacheEngine

    sizes = {
        bits: CacheEngine.get_cache_block_size(64, model_config(), 1, bits)
        for bits in (8, 4)
    }
    return {f"block_bytes_{bits}_bit": int(size) for bits, size in sizes.items()}


def _instance_of(config: Any) -> tuple[Any, int]:
    """A real EngineInstance of a real Engine that has a cache's configuration and no
    model."""
    from lmdeploy.pytorch.config import SchedulerConfig
    from lmdeploy.pytorch.engine.engine import Engine
    from lmdeploy.pytorch.engine.engine_instance import EngineInstance

    engine = Engine.__new__(Engine)
    engine.scheduler_config = SchedulerConfig(max_batches=128, max_session_len=None)
    engine.cache_config = config
    engine.max_session_len = engine._get_max_session_len()
    engine.req_manager = types.SimpleNamespace(
        build_sender=lambda: types.SimpleNamespace(sender_id=0), senders={0: None}
    )
    return EngineInstance(engine), engine.max_session_len


async def _first_status(instance: Any) -> str:
    """What the instance answers a prompt that is above its limit."""
    async for output in instance.async_stream_infer(0, list(range(_PROMPT))):
        return str(output.status.name)
    return "no output"


def _validation_error() -> str:
    """What the response's model says of the finish reason that stands for such a
    status."""
    from lmdeploy.serve.openai.protocol import ChatCompletionResponseChoice, ChatMessage

    message = ChatMessage(role="assistant", content="internal error happened")
    try:
        ChatCompletionResponseChoice(index=0, message=message, finish_reason="error")
    except ValueError as error:  # pydantic's
        return " ".join(str(error).split())[:300]
    return ""


def facts() -> dict[str, Any]:
    import lmdeploy

    model_agent = load()
    found: dict[str, Any] = {"lmdeploy": lmdeploy.__version__, "free_mib": _FREE >> 20}
    found |= quantised()
    for name, share in (("small", 0.1), ("big", 0.5)):
        config, seen = sized(model_agent, share)
        instance, limit = _instance_of(config)
        runtime = seen["__get_runtime_size"][0]
        found |= {
            "block_bytes": seen["get_cache_block_size"],
            "runtime_mib": runtime >> 20,
            f"pool_{name}": seen["__get_free_gpu_mem_size"],
            f"blocks_{name}": config.num_gpu_blocks,
            f"limit_{name}": limit,
            f"fits_{name}": limit >= _PROMPT,
        }
        if limit < _PROMPT:
            found[f"status_{name}"] = asyncio.run(_first_status(instance))
    error = _validation_error()
    return {
        **found,
        "finish_reason_error_allowed": not error,
        "validation_error": error,
    }


if __name__ == "__main__":
    print(json.dumps(facts()))
