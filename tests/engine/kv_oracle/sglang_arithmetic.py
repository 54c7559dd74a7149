"""Runs SGLang's own cache arithmetic on given numbers; under its interpreter, without a
server.

stdin: a JSON list of cases; stdout, last line: a JSON list of tokens before pages are
cut, or an error's words. The device's memory is the case's; all else is SGLang's."""

import json
import sys
from types import SimpleNamespace

import torch

GIB = 1 << 30


def model_of(case):
    return SimpleNamespace(
        get_num_kv_heads=lambda *groups: case["kv_heads"],
        head_dim=case["head_dim"],
        v_head_dim=case["head_dim"],
        hf_config=SimpleNamespace(
            architectures=["LlamaForCausalLM"], model_type="llama"
        ),
        is_multimodal=False,
    )


def old(case, module):
    """0.5.6: a method of the model runner."""
    module.get_available_gpu_memory = lambda *a, **k: case["free"] / GIB
    module.get_world_group = lambda: SimpleNamespace(world_size=1, cpu_group=None)
    module.get_attention_tp_size = lambda: 1
    runner = SimpleNamespace(
        device="cuda",
        gpu_id=0,
        is_draft_worker=False,
        mambaish_config=None,
        num_effective_layers=case["layers"],
        use_mla_backend=False,
        model_config=model_of(case),
        kv_cache_dtype=torch.float8_e5m2 if case["fp8"] else torch.bfloat16,
        mem_fraction_static=case["share"],
    )
    return module.ModelRunner.profile_max_num_token(runner, case["before"] / GIB)


def new(case, profiles, pools):
    """0.5.17 and later: one module profiles the memory, another one makes a pool of
    it."""
    profiles.get_available_gpu_memory = lambda *a, **k: case["free"] / GIB
    profiles.get_world_group = lambda: SimpleNamespace(world_size=1, cpu_group=None)
    parallel = SimpleNamespace(
        attn_tp_size=1,
        attn_dcp_size=1,
        launch_world_size=1,
        enable_dsa_cache_layer_split=False,
        world_group=SimpleNamespace(cpu_group=None),
    )
    from sglang.srt.layers.cp import utils

    profiles.get_parallel = pools.get_parallel = utils.get_parallel = lambda: parallel
    profiles.get_schedule = lambda: SimpleNamespace(
        mem_fraction_static=case["share"],
        prefill_max_requests=None,
        max_mamba_cache_size=None,
    )
    graph = SimpleNamespace(
        prefill=SimpleNamespace(full_prefill_max_req=None, backend=None)
    )
    profiles.get_exec = lambda: SimpleNamespace(
        graph=SimpleNamespace(cuda_graph_config=graph)
    )
    profiles.get_disagg = lambda: SimpleNamespace(disaggregation_mode="null")
    profiles.get_mm = lambda: SimpleNamespace(mm_feature_transport=None)
    configurator = SimpleNamespace(
        device="cuda",
        gpu_id=0,
        mambaish_config=None,
        post_capture_kv_active=False,
        model_config=model_of(case),
        kv_cache_dtype=torch.float8_e5m2 if case["fp8"] else torch.bfloat16,
        use_mla_backend=False,
        is_draft_worker=False,
        server_args=SimpleNamespace(
            enable_hisparse=False, enable_dsa_cache_layer_split=False, dcp_size=1
        ),
    )
    try:
        available = profiles.KVCacheConfigurator._profile_available_bytes(
            configurator, case["before"] / GIB
        )
    except ValueError as error:
        return str(error)
    pool = object.__new__(pools.DefaultPoolConfigurator)
    pool.kv_cache_dtype_str = "auto"
    pool._fixed_overhead_bytes = 0
    pool._cell_size = pool._compute_cell_size(configurator, case["layers"])
    return pool.calculate_pool_sizes(available, 1).max_total_num_tokens


def main():
    cases = json.load(sys.stdin)
    try:
        from sglang.srt.mem_cache import kv_cache_configurator as profiles
        from sglang.srt.model_executor import pool_configurator as pools
    except ImportError:
        from sglang.srt.model_executor import model_runner

        found = [old(case, model_runner) for case in cases]
    else:
        found = [new(case, profiles, pools) for case in cases]
    print(json.dumps(found))


main()
