"""Minimal reproducer of SGLang's shape alias, with the installed engine's own classes.

``python shape_alias.py MODEL_FOLDER [WIDE.png TALL.png]``, with the interpreter of an
SGLang environment; or the variables MMREPRO_MODEL and MMREPRO_PAIR (a folder with W.png
and T.png). No server, no GPU. MODEL_FOLDER is any Qwen2-VL's (only its processor is
used); without pictures it makes two itself: eight tiles of 28 x 28 pixels, laid out 2 x
4 and 4 x 2.

SGLang hashes the bytes of the preprocessed pixels and not their grid, so that one
buffer in two layouts is one picture. Prints one JSON object of facts."""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

_TILE = 28
_PROCESSORS = (
    "sglang.srt.utils.hf_transformers.processor",
    "sglang.srt.utils.hf_transformers_utils",
)
"""Where ``get_processor`` is: from about 0.5.10 on, and before."""


def image_processor(model: str) -> Any:
    for name in _PROCESSORS:
        try:
            return (
                import_module(name).get_processor(model, use_fast=False).image_processor
            )
        except (ModuleNotFoundError, AttributeError):
            continue
    sys.exit("this release of SGLang has no get_processor where it is known to be")


def tiles(rows: int, columns: int) -> Any:
    """The same eight tiles in the same order, as a picture of so many rows and
    columns."""
    import numpy as np
    from PIL import Image

    made = np.random.default_rng(7).integers(
        0, 256, (8, _TILE, _TILE, 3), dtype=np.uint8
    )
    grid = made.reshape(rows, columns, _TILE, _TILE, 3).transpose(0, 2, 1, 3, 4)
    return Image.fromarray(grid.reshape(rows * _TILE, columns * _TILE, 3))


def facts(model: str, pictures: dict[str, Any]) -> dict[str, Any]:
    processor = image_processor(model)
    module = import_module("sglang.srt.managers.schedule_batch")
    found: dict[str, Any] = {"image_processor": type(processor).__name__}
    seen = {}
    for name, picture in pictures.items():
        made = processor(images=[picture.convert("RGB")], return_tensors="pt")
        item = module.MultimodalDataItem(
            modality=module.Modality.IMAGE, feature=made["pixel_values"]
        )
        item.set_pad_value()
        grid = "x".join(str(int(n)) for n in made["image_grid_thw"][0])
        seen[name] = (made["pixel_values"].numpy().tobytes(), int(item.hash), grid)
        found[f"hash_{name.lower()}"] = f"{int(item.hash):016x}"
        found[f"grid_{name.lower()}"] = grid
    wide, tall = seen["W"], seen["T"]
    found["bytes_equal"] = wide[0] == tall[0]
    found["hashes_equal"] = wide[1] == tall[1]
    found["grids_differ"] = wide[2] != tall[2]
    return found


def main(given: list[str]) -> None:
    from PIL import Image

    folder = given[0] if given else os.environ.get("MMREPRO_MODEL", "")
    if not folder:
        sys.exit(__doc__)
    pair = os.environ.get("MMREPRO_PAIR", "")
    files = given[1:3] or ([str(Path(pair) / f"{n}.png") for n in "WT"] if pair else [])
    pictures = [Image.open(f) for f in files] or [tiles(2, 4), tiles(4, 2)]
    print(json.dumps(facts(folder, dict(zip("WT", pictures, strict=True)))))


if __name__ == "__main__":
    main(sys.argv[1:])
