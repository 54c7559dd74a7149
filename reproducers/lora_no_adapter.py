"""Minimal reproducer of vLLM's LoRA without an adapter, with the installed engine's own
functions.

``python lora_no_adapter.py``, with the interpreter of a vLLM environment. No server, no
GPU.

Two tokens go through the CPU's LoRA functions beside each other: one has the adapter in
slot 0, the other none, which is index -1. The second one's output must stay as it was.
Prints one JSON object of facts."""

from __future__ import annotations

import json
from importlib import import_module


def main() -> None:
    import torch

    ops = import_module("vllm.lora.ops.torch_ops.lora_ops")
    slots, width, rank = 2, 4, 3

    def added(adapters: int) -> list[float]:
        """Largest absolute value that is added to each token; so many slots hold an
        adapter."""
        filled = torch.zeros(slots, 1, 1, 1)
        filled[:adapters] = 1.0
        shrink, expand = (
            torch.ones(slots, 1, rank, width),
            torch.ones(slots, 1, width, rank),
        )
        tokens, indices = torch.ones(2, width), torch.tensor([0, -1])
        middle, out = torch.zeros(2, rank), torch.zeros(2, width)
        ops.bgmv_shrink(tokens, shrink * filled, middle, indices, 1.0)
        ops.bgmv_expand(middle, expand * filled, out, indices, add_inputs=True)
        return out.abs().amax(dim=1).tolist()

    full, spare = added(slots), added(slots - 1)
    print(
        json.dumps(
            {
                "with_adapter": full[0],
                "without_adapter": full[1],
                "without_and_an_empty_slot": spare[1],
            }
        )
    )


if __name__ == "__main__":
    main()
