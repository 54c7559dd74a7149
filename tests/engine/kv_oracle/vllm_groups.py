"""Runs vLLM's own grouping and sizing of the KV cache for whole models; no server, no
weights.

stdin: a JSON list of cases; stdout, one line a case: {blocks, block_size, concurrency},
or {error}. The model is built on torch's meta device, so that its layers say what they
keep. The ranks of a case are made up in this one process; the pool's bytes are the
case's; all else is vLLM's."""

import copy
import json
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import torch
from vllm.config import set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.model_executor.models import registry
from vllm.platforms import current_platform
from vllm.v1.core import kv_cache_utils

try:
    from vllm.v1.core import kv_cache_planning as planning  # 0.33.0
except ImportError:
    planning = kv_cache_utils
try:
    from vllm.model_executor.layers.fused_moe import unquantized_fused_moe_method as moe

    # Experts are never run, and a CPU has no kernel for some.
    moe.select_unquantized_moe_backend = lambda *a, **k: (None, None)
except ImportError:
    pass
registry._run_in_subprocess = lambda inspect: inspect()
GROUPS = ("_TP", "_PP", "_DP", "_EP", "_DCP", "_PCP", "_EPLB", "_WORLD")


def ranks(size, rank=0):
    return SimpleNamespace(
        world_size=size,
        rank_in_group=rank,
        rank=rank,
        ranks=list(range(size)),
        local_rank=rank,
        is_first_rank=rank == 0,
        is_last_rank=rank == size - 1,
        first_rank=0,
        cpu_group=None,
        device_group=SimpleNamespace(size=lambda: size, rank=lambda: rank),
        device=torch.device("cpu"),
        unique_name="made-up",
        device_communicator=None,
    )


def specs_of(config, tp, pp, stage):
    """What each layer of a stage keeps, the drafter's after the target's."""
    compiled = config.compilation_config
    compiled.static_forward_context.clear()
    compiled.static_all_moe_layers.clear()
    for name in GROUPS:
        if hasattr(parallel_state, name):
            setattr(parallel_state, name, ranks(1))
    parallel_state._TP, parallel_state._PP = ranks(tp), ranks(pp, stage)
    drafting = config.speculative_config
    with set_current_vllm_config(config):
        torch.set_default_dtype(torch.bfloat16)
        with torch.device("meta"):
            initialize_model(config)
            if drafting and drafting.method != "ngram":
                own = copy.copy(config)  # with the same table of layers
                own.model_config = drafting.draft_model_config
                initialize_model(
                    own, prefix="" if drafting.method == "mtp" else "draft_model"
                )
        torch.set_default_dtype(torch.float32)
        if stage == 0:
            current_platform.update_block_size_for_backend(config)
        layers = compiled.static_forward_context.items()
        made = {
            name: layer.get_kv_cache_spec(config)
            for name, layer in layers
            if hasattr(layer, "get_kv_cache_spec")
        }
    return {name: spec for name, spec in made.items() if spec}


def compute(case):
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(case["config"]))
        args = dict(case["args"])
        if draft := case.get("draft"):
            Path(folder, "draft").mkdir()
            Path(folder, "draft", "config.json").write_text(json.dumps(draft))
            args["speculative_config"]["model"] = str(Path(folder, "draft"))
        config = EngineArgs(
            model=folder,
            skip_tokenizer_init=True,
            load_format="dummy",
            enforce_eager=True,
            max_model_len=case["context"],
            **args,
        ).create_engine_config()
        tp, pp = case["tp"], case["pp"]
        parallel, cache = config.parallel_config, config.cache_config
        parallel.tensor_parallel_size, parallel.pipeline_parallel_size = tp, pp
        if hasattr(cache, "kv_cache_layout"):
            cache.kv_cache_layout = "LBHNC"  # the CPU backend's only one
        specs = [specs_of(config, tp, pp, stage) for stage in range(pp)]
        pools = [case["gib"] << 30] * pp
        with set_current_vllm_config(config):
            if hasattr(planning, "get_global_kv_cache_groups"):
                groups = planning.get_global_kv_cache_groups(config, specs)
                made = planning.get_kv_cache_configs(config, specs, pools, groups)
            else:
                made = planning.get_kv_cache_configs(config, specs, pools)
            several = kv_cache_utils.get_max_concurrency_for_kv_cache_config(
                config, made[0]
            )
    return {
        "blocks": made[0].num_blocks,
        "block_size": cache.block_size,
        "concurrency": round(several, 6),
    }


for case in json.load(sys.stdin):
    try:
        told = compute(case)
    except Exception as error:
        told = {"error": f"{type(error).__name__}: {error}"[:400]}
    print(json.dumps(told), flush=True)
