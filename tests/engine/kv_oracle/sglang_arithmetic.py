"""Runs SGLang's own cache arithmetic on given numbers; under its interpreter, without a server.

stdin: a JSON list of cases; stdout, last line: a JSON list of tokens before pages are cut, or an
error's words. The device's memory is the case's; all else is SGLang's.
"""

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
        hf_config=SimpleNamespace(architectures=["LlamaForCausalLM"], model_type="llama"),
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


def main():
    cases = json.load(sys.stdin)
    from sglang.srt.model_executor import model_runner

    print(json.dumps([old(case, model_runner) for case in cases]))


main()
