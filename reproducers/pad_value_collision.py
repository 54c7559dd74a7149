"""Minimal reproducer of SGLang's pad value collision, with the installed engine's own
classes.

``python pad_value_collision.py MODEL_FOLDER [PAIR_FOLDER]``, with the interpreter of an
SGLang environment; or the variables MMREPRO_MODEL and MMREPRO_PAIR. No server, no GPU,
some seconds, most of them imports. MODEL_FOLDER is any Qwen2-VL's (only its processor
is used), PAIR_FOLDER holds A.png, B.png and control.png; without it: the pair that
comes with mmrepro.

Shown: two different pictures, two different 64-bit hashes, one pad value; and that the
engine's RadixCache takes the one's entry for the other's. Prints one JSON object of
facts."""

from __future__ import annotations

import array
import base64
import inspect
import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

_SHIPPED = (
    Path(__file__).resolve().parent.parent / "scenarios" / "data" / "pad_value_pair"
)
PREFIX, IMAGE_TOKENS, SUFFIX = [1, 2, 3], 9, [4, 5]
_PROCESSORS = (
    "sglang.srt.utils.hf_transformers.processor",
    "sglang.srt.utils.hf_transformers_utils",
)
"""Where ``get_processor`` is: from about 0.5.10 on, and before."""


def _item_class() -> tuple[Any, Any]:
    module = import_module("sglang.srt.managers.schedule_batch")
    return module.MultimodalDataItem, module.Modality.IMAGE


def image_processor(model: str) -> Any:
    for name in _PROCESSORS:
        try:
            return (
                import_module(name).get_processor(model, use_fast=False).image_processor
            )
        except (ModuleNotFoundError, AttributeError):
            continue
    sys.exit("this release of SGLang has no get_processor where it is known to be")


def features(processor: Any, png: Path) -> Any:
    """The tensor that SGLang hashes, from the PNG as a request carries it."""
    text = base64.b64encode(png.read_bytes()).decode()
    image = import_module("sglang.srt.utils").load_image(
        f"data:image/png;base64,{text}"
    )[0]
    made = processor(images=[image.convert("RGB")], return_tensors="pt")
    return made["pixel_values"]


def padded(item: Any, length: int) -> list[int]:
    """The token ids that stand for the image: one pad value, or (0.5.23) a pattern of
    several."""
    if hasattr(item, "padding_sequence"):
        return list(item.padding_sequence(length))
    return [item.pad_value] * length


def _pad_of(hash_value: int) -> int:
    """The pad value that the engine makes of a hash."""
    cls, image = _item_class()
    item = cls(modality=image, feature=None, hash=hash_value)
    item.set_pad_value()
    return int(item.pad_value)


def radix_cache(module: Any) -> Any:
    """The engine's own, without memory pools; 0.5.3 has no create_simulated yet."""
    cls = module.RadixCache
    if hasattr(cls, "create_simulated"):
        return cls.create_simulated()
    return cls(req_to_token_pool=None, token_to_kv_pool_allocator=None, page_size=1)


def matched(stored: list[int], asked: list[int], extra_key: str | None) -> int:
    """Tokens of ``asked`` that a radix cache holds after ``stored`` was put in without
    a key."""
    module = import_module("sglang.srt.mem_cache.radix_cache")
    torch = import_module("torch")
    cache = radix_cache(module)
    # Both calls came to take one object of parameters: in 0.5.8 match_prefix does,
    # insert not yet.
    insert_params, match_params = (
        "params" in inspect.signature(f).parameters
        for f in (cache.insert, cache.match_prefix)
    )
    base: Any = import_module("sglang.srt.mem_cache.base_prefix_cache")
    ids = (lambda values: array.array("q", values)) if insert_params else list
    key = module.RadixKey(ids(stored), None)
    wanted = module.RadixKey(ids(asked), extra_key)
    value = torch.arange(len(stored))
    if insert_params:
        cache.insert(base.InsertParams(key=key, value=value))
    else:
        cache.insert(key, value)
    asks = base.MatchPrefixParams(key=wanted) if match_params else wanted
    return _matched_length(cache.match_prefix(asks))


def _matched_length(result: Any) -> int:
    """0.5.23 gives the length; older releases the indices of the matched tokens."""
    length = getattr(result, "device_prefix_len", None)
    return len(result.device_indices) if length is None else int(length)


def facts(model: str, pair: Path) -> dict[str, Any]:
    processor = image_processor(model)
    cls, image = _item_class()
    found: dict[str, Any] = {"image_processor": type(processor).__name__}
    ids: dict[str, list[int]] = {}
    for name in ("A", "B", "control"):
        item = cls(modality=image, feature=features(processor, pair / f"{name}.png"))
        item.set_pad_value()
        ids[name] = [*PREFIX, *padded(item, IMAGE_TOKENS), *SUFFIX]
        found[f"hash_{name.lower()}"] = f"{int(item.hash):016x}"
        found[f"pad_{name.lower()}"] = int(item.pad_value)
    found["pads_equal"] = ids["A"] == ids["B"]
    found["hashes_differ"] = found["hash_a"] != found["hash_b"]
    found["control_differs"] = ids["control"] not in (ids["A"], ids["B"])
    found["tokens"] = len(ids["A"])
    found["prefix_tokens"] = len(PREFIX)
    found["match_b_after_a"] = matched(ids["A"], ids["B"], None)
    found["match_control_after_a"] = matched(ids["A"], ids["control"], None)
    found["match_b_after_a_other_key"] = matched(ids["A"], ids["B"], "another")
    low, high = _pad_of(0), _pad_of((1 << 30) - 1)
    found |= {
        "pad_of_0": low,
        "pad_of_2_30_less_1": high,
        "pad_of_2_30": _pad_of(1 << 30),
    }
    return found


if __name__ == "__main__":
    given = sys.argv[1:]
    folder = given[0] if given else os.environ.get("MMREPRO_MODEL", "")
    if not folder:
        sys.exit(__doc__)
    images = given[1] if len(given) > 1 else os.environ.get("MMREPRO_PAIR", "")
    print(json.dumps(facts(folder, Path(images) if images else _SHIPPED)))
