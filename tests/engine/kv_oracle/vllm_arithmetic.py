"""Runs vLLM's own cache arithmetic on given numbers; under its interpreter, without a
server.

stdin: a JSON list of cases; stdout, last line: a JSON list of [requested bytes or an
error, block bytes, blocks]. The device's memory is the case's; all else is vLLM's."""

import json
import sys
from types import SimpleNamespace

import torch
from vllm.v1.core.kv_cache_utils import get_num_blocks
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.worker.utils import request_memory


def compute(case):
    snapshot = SimpleNamespace(
        total_memory=case["total"],
        free_memory=case["free"],
        device_=torch.device("cpu"),
    )
    cache = SimpleNamespace(
        gpu_memory_utilization=case["share"], num_gpu_blocks_override=None
    )
    page = FullAttentionSpec(
        block_size=case["block_size"],
        num_kv_heads=case["kv_heads"],
        head_size=case["head_dim"],
        dtype=torch.float8_e4m3fn if case["fp8"] else torch.bfloat16,
    ).page_size_bytes
    try:
        requested = request_memory(snapshot, cache)
    except ValueError as error:
        return [str(error), page * case["layers"], 0]
    blocks = get_num_blocks(
        SimpleNamespace(cache_config=cache),
        case["layers"],
        int(requested - case["non_kv"]),
        page,
    )
    return [requested, page * case["layers"], blocks]


print(json.dumps([compute(case) for case in json.load(sys.stdin)]))
