"""A small engine that hashes as SGLang does, for the worker of the collision search.

``python`` below is this interpreter with a folder on its path that holds ``sglang``;
its image processor lays pixels out as Qwen2-VL's does (patches of 14, merged 2 x 2,
each frame twice)."""

from pathlib import Path

PROCESSOR = '''
import hashlib, json
from pathlib import Path
import numpy as np

PATCH, MERGE = 14, 2


class Tensor:
    """As much of torch's as the worker touches."""

    def __init__(self, array):
        self.array = array

    def detach(self):
        return self

    cpu = contiguous = detach

    def reshape(self, *shape):
        return Tensor(self.array.reshape(*shape))

    def numpy(self):
        return self.array


class FakeImageProcessor:
    def __call__(self, images, return_tensors):
        pixels = np.asarray(images[0]).astype(np.float32) / np.float32(255) - np.float32(0.48)
        if MIX:
            pixels = pixels + np.roll(pixels, 1, axis=1)
        frames = np.stack([pixels.transpose(2, 0, 1)] * 2)
        height, width = pixels.shape[:2]
        rows, columns = height // PATCH, width // PATCH
        shape = (1, 2, 3, rows // MERGE, MERGE, PATCH, columns // MERGE, MERGE, PATCH)
        patches = frames.reshape(shape).transpose(0, 3, 6, 4, 7, 2, 1, 5, 8)
        return {"pixel_values": Tensor(np.ascontiguousarray(patches).reshape(rows * columns, -1))}


class Processor:
    image_processor = FakeImageProcessor()


def get_processor(model, use_fast):
    assert not use_fast
    assert Path(model, "preprocessor_config.json").is_file()
    print("engines print while they start")
    return Processor()
'''

BATCH = """
import hashlib


class Modality:
    IMAGE = "image"


class MultimodalDataItem:
    def __init__(self, modality, feature):
        assert modality is Modality.IMAGE
        self.feature, self.hash, self.pad_value = feature, None, None

    def set_pad_value(self):
        digest = hashlib.sha256(SALT + self.feature.array.tobytes()).digest()
        self.hash = int.from_bytes(digest[:8], "big")
        self.pad_value = PAD
"""

UTILS = """
import base64, io
from PIL import Image


def load_image(text):
    head, _, data = text.partition(",")
    assert head == "data:image/png;base64"
    picture = Image.open(io.BytesIO(base64.b64decode(data)))
    return picture, picture.size
"""


def write_engine(
    folder: Path,
    *,
    pad: str = "self.hash % (1 << 30)",
    salt: bytes = b"",
    mix: bool = False,
) -> Path:
    """The engine's package below ``folder`` (for PYTHONPATH), and a model in
    ``folder/model``.

    ``pad`` is the expression of the pad value; ``salt`` makes the engine hash something
    else than the pixels; ``mix`` makes its image processor mix neighbouring pixels."""
    files = {
        "sglang/srt/utils/hf_transformers_utils.py": f"MIX = {mix}\n{PROCESSOR}",
        "sglang/srt/utils/__init__.py": UTILS,
        "sglang/srt/managers/schedule_batch.py": f"SALT = {salt!r}\n"
        + BATCH.replace("PAD", pad),
        "sglang/srt/managers/__init__.py": "",
        "sglang/srt/__init__.py": "",
        "sglang/__init__.py": "",
        "model/preprocessor_config.json": "{}",
    }
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder
