"""Writing model folders: whole or not at all, weights as safetensors without torch."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path


def written_whole(target: Path, write_into: Callable[[Path], None]) -> Path:
    """``target``, made by ``write_into`` unless it is there.

    Written beside and renamed when whole: a killed run leaves no half model behind.
    """
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".tmp-", dir=target.parent))
    try:
        write_into(folder)
        os.chmod(folder, 0o755)  # noqa: S103, PTH101 - mkdtemp's 0700 would hide a model
        folder.rename(target)
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        # Another run may have been faster: its files are the same.
        if not (isinstance(error, OSError) and target.is_dir()):
            raise
    return target


def write_weights(
    path: Path,
    shapes: Iterable[tuple[str, tuple[int, ...]]],
    seed: int,
    spread: Callable[[str], tuple[float, float]],
) -> None:
    """A safetensors file of random bfloat16 weights.

    The format: header length (8 bytes, little endian), JSON header, data. The library's own
    writer takes numpy arrays, which have no bfloat16.

    Args:
        shapes: names and shapes, in the order in which they are drawn.
        spread: mean and standard deviation of a weight, by its name; deviation 0 draws nothing.
    """
    import numpy as np

    random = np.random.default_rng(seed)
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    blob = bytearray()
    for name, shape in shapes:
        mean, deviation = spread(name)
        if deviation:
            values = random.standard_normal(shape, dtype=np.float32) * np.float32(deviation)
            values += np.float32(mean)
        else:
            values = np.full(shape, mean, dtype=np.float32)
        # bfloat16 is the upper half of a float32 (truncated)
        data = (values.view(np.uint32) >> 16).astype("<u2").tobytes()
        header[name] = {
            "dtype": "BF16",
            "shape": list(shape),
            "data_offsets": [len(blob), len(blob) + len(data)],
        }
        blob += data
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(blob))


def named_after(prefix: str, *made_of: object) -> str:
    """A folder's name: ``prefix`` and a hash of everything that decides the files in it."""
    text = json.dumps(made_of, sort_keys=True)
    return f"{prefix}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def dump(path: Path, content: dict[str, object]) -> None:
    path.write_text(json.dumps(content, indent=1))
