"""Minimal reproducer of SGLang's caller hash, with the installed engine's own classes.

``python caller_hash.py``, with the interpreter of an SGLang environment. No server, no
GPU.

Two pictures' features get the hash that a caller gives, as the tokenizer manager does
with ``mm_hashes``, and then their pad values, which the prefix cache goes by. Prints
one JSON object of facts."""

from __future__ import annotations

import json
from dataclasses import fields
from importlib import import_module
from typing import Any

_CALLERS = 0x5EED5EED5EED5EED


def main() -> None:
    import torch

    module = import_module("sglang.srt.managers.schedule_batch")
    request = import_module("sglang.srt.managers.io_struct").GenerateReqInput

    def pad(seed: int, given: int | None) -> tuple[int, ...]:
        values = torch.rand(64, 32, generator=torch.Generator().manual_seed(seed))
        item: Any = module.MultimodalDataItem(
            modality=module.Modality.IMAGE, feature=values
        )
        if given is not None:
            if hasattr(item, "set_hash"):
                item.set_hash(given)
            else:
                item.hash = given
        item.set_pad_value()
        return tuple(getattr(item, "pad_values", None) or (item.pad_value,))

    own, given = (
        [pad(seed, None) for seed in (1, 2)],
        [pad(seed, _CALLERS) for seed in (1, 2)],
    )
    print(
        json.dumps(
            {
                "takes_hashes": any(
                    field.name == "mm_hashes" for field in fields(request)
                ),
                "own_alike": own[0] == own[1],
                "given_alike": given[0] == given[1],
                "own_x": str(own[0][0]),
                "own_y": str(own[1][0]),
                "given_x": str(given[0][0]),
                "given_y": str(given[1][0]),
            }
        )
    )


if __name__ == "__main__":
    main()
