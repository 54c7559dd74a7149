"""Runs LMDeploy's own cache arithmetic on given numbers; under its interpreter, without
a server.

stdin: a JSON list of cases; stdout, last line: a JSON list of [block bytes, blocks,
prefill tokens, longest prompt], or [block bytes, the error's words]. The device's
memory is the case's number, and the layout of a block is that of LMDeploy's default
backend; all else is LMDeploy's."""

import json
import sys

import torch
from lmdeploy.pytorch.backends.default import DefaultOpsBackend
from lmdeploy.pytorch.config import CacheConfig, ModelConfig


def model_of(case):
    return ModelConfig(
        hidden_size=64,
        num_layers=case["layers"],
        num_attention_heads=case["kv_heads"],
        num_key_value_heads=case["kv_heads"],
        bos_token_id=1,
        eos_token_id=[2],
        head_dim=case["head_dim"],
        k_head_dim=case["head_dim"],
        v_head_dim=case["head_dim"],
        vocab_size=case["vocab_size"],
        dtype=torch.bfloat16,
    )


def cache_of(case, **more):
    return CacheConfig(
        max_batches=case["max_batches"],
        block_size=case["block_size"],
        num_cpu_blocks=1,
        num_gpu_blocks=0,
        cache_max_entry_count=case["share"],
        max_prefill_token_num=8192,
        quant_policy=case["quant_policy"],
        **more,
    )


def longest(cache):
    """``Engine._get_max_session_len`` itself, with nothing but the two configs that it
    reads."""
    from types import SimpleNamespace

    from lmdeploy.pytorch.engine.engine import Engine

    engine = SimpleNamespace(
        scheduler_config=SimpleNamespace(max_session_len=None), cache_config=cache
    )
    return Engine._get_max_session_len(engine)


def old(case):
    """0.6.4 to 0.7.1: one function does it all."""
    from lmdeploy.pytorch.engine import cache_engine, model_agent

    cache_engine.get_backend = lambda: DefaultOpsBackend
    model_agent.get_gpu_memory = lambda gpu_id=0: (case["free"], 1 << 40)
    torch.cuda.empty_cache = lambda: None
    model, cache = model_of(case), cache_of(case)
    size = cache_engine.CacheEngine.get_cache_block_size(
        cache.block_size, model, 1, cache.quant_policy
    )
    try:
        model_agent._update_cache_config(model, cache)
    except RuntimeError as error:
        return [size, str(error)]
    return [size, cache.num_gpu_blocks, cache.max_prefill_token_num, longest(cache)]


def new(case):
    """0.18.0: the executor asks its workers for free memory and for the size of a
    block."""
    from lmdeploy.messages import QuantPolicy
    from lmdeploy.pytorch.engine.cache_engine import plan, schema
    from lmdeploy.pytorch.engine.config_builder import ConfigBuilder
    from lmdeploy.pytorch.engine.executor import base

    schema.get_backend = plan.get_backend = lambda: DefaultOpsBackend
    case = {**case, "quant_policy": QuantPolicy(case["quant_policy"])}
    kept = ConfigBuilder.build_cache_config(
        _engine_config(case)
    ).num_reserved_gpu_blocks
    model, cache = model_of(case), cache_of(case, num_reserved_gpu_blocks=kept)
    cache.kernel_block_size = cache.block_size
    size = plan.build_block_cache_plan(model, cache, 1).logical_block_nbytes

    class Executor(base.ExecutorBase):
        def __init__(self):
            self.model_config, self.cache_config = model, cache
            self.specdecode_config = None

        def gather_free_mem(self):
            return [case["free"]]

    executor = Executor()
    sizes = [base._WorkerCachePlanSizes(target=size)]
    try:
        free = executor._reserve_runtime_mem(executor._get_free_gpu_mems(), sizes, None)
        executor._update_num_gpu_blocks(free, sizes, None)
    except RuntimeError as error:
        return [size, str(error)]
    return [size, cache.num_gpu_blocks, cache.max_prefill_token_num, longest(cache)]


def _engine_config(case):
    from lmdeploy.messages import PytorchEngineConfig

    return PytorchEngineConfig(max_batch_size=case["max_batches"])


def main():
    try:
        from lmdeploy.pytorch.engine import model_agent

        compute = old if hasattr(model_agent, "_update_cache_config") else new
    except ImportError:
        compute = new
    print(json.dumps([compute(case) for case in json.load(sys.stdin)]))


main()
