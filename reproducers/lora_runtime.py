"""Minimal reproducer of which LoRA adapters vLLM takes for one, with the engine's own
functions.

``python lora_runtime.py``, with the interpreter of a vLLM environment. No server, no
model, no GPU. What sets an adapter's blocks of the prefix cache apart from those of
another one; and whether the mapping of tokens to slots is worked out anew once adapters
have moved between slots. Prints one JSON object of facts."""

from __future__ import annotations

import json
from importlib import import_module
from types import SimpleNamespace
from typing import Any


def key(name: str, number: int, path: str) -> str:
    """What the hash of a block has of an adapter."""
    from vllm.lora.request import LoRARequest
    from vllm.v1.core.kv_cache_utils import _gen_lora_extra_hash_keys

    adapter = LoRARequest(lora_name=name, lora_int_id=number, lora_path=path)
    request: Any = SimpleNamespace(lora_request=adapter)
    return json.dumps(_gen_lora_extra_hash_keys(request))


def _refreshes() -> list[int]:
    """How often slots are worked out: for a first mapping, for the same, and after a
    move."""
    try:
        module = import_module("vllm.lora.model_manager")
    except ModuleNotFoundError:  # until 0.13
        module = import_module("vllm.lora.models")
    manager: Any = module.LoRAModelManager.__new__(module.LoRAModelManager)
    calls: list[object] = []
    manager.__dict__.update(_last_mapping=None, _last_slot_layout=None)
    manager.lora_index_to_id = [1, 2]
    manager._set_adapter_mapping = calls.append
    counted = []
    for slots in ([1, 2], [1, 2], [2, 1]):
        before = len(calls)
        manager.lora_index_to_id = slots
        manager.set_adapter_mapping("the mapping of a batch")
        counted.append(len(calls) - before)
    return counted


def main() -> None:
    first, again, moved = _refreshes()
    one = key("x", 1, "/one")
    print(
        json.dumps(
            {
                "key": one,
                "another_path_same_key": key("x", 2, "/other") == one,
                "another_name_same_key": key("y", 2, "/one") == one,
                "refreshed_at_first": first,
                "refreshed_again": again,
                "refreshed_after_a_move": moved,
            }
        )
    )


if __name__ == "__main__":
    main()
