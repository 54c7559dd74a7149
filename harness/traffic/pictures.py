"""The images that requests send, made from a seed, so that a run repeats byte for
byte."""

from __future__ import annotations

import base64
import hashlib
import io
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from mmrepro.base.errors import UsageError
from mmrepro.traffic.evidence import ImageSent

if TYPE_CHECKING:
    from PIL.Image import Image as Pixels

_MOST_PICTURE_BYTES = 64 << 20


@dataclass(frozen=True)
class Picture:
    """A PNG, or with another ``media_type`` whatever it says, and what to call it."""

    name: str
    png: bytes
    width: int
    height: int
    media_type: str = "image/png"

    @property
    def data_url(self) -> str:
        return f"data:{self.media_type};base64," + base64.b64encode(self.png).decode()

    @property
    def part(self) -> dict[str, object]:
        """Of a chat message's content."""
        return {"type": "image_url", "image_url": {"url": self.data_url}}

    def sent(self) -> ImageSent:
        pixels, coarse = _looks(self.png)
        return ImageSent(
            sha256=hashlib.sha256(self.png).hexdigest(),
            width=self.width,
            height=self.height,
            bytes=len(self.png),
            name=self.name,
            pixels=pixels,
            coarse=coarse,
        )


@dataclass(frozen=True)
class Video(Picture):
    """Frames, one after the other; ``png`` is all of them, JPEGs, to name it by."""

    frames: tuple[bytes, ...] = ()

    @property
    def data_url(self) -> str:
        """As vLLM takes frames (0.23.0 multimodal/media/video.py,
        VideoMediaIO.load_base64)."""
        encoded = (base64.b64encode(frame).decode() for frame in self.frames)
        return "data:video/jpeg;base64," + ",".join(encoded)

    @property
    def part(self) -> dict[str, object]:
        return {"type": "video_url", "video_url": {"url": self.data_url}}


@lru_cache(maxsize=1024)
def _looks(data: bytes) -> tuple[str, str]:
    """Return what the picture shows, however it is encoded: a digest of its pixels and
    size, and its mean colours, both hex; ("", ""): it cannot be decoded.

    Of one colour only that counts: after an engine's resizing nothing else is left of
    it."""
    from PIL import Image, ImageOps

    try:
        with Image.open(io.BytesIO(data)) as opened:
            pixels = ImageOps.exif_transpose(opened).convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return "", ""
    colours = pixels.getcolors(maxcolors=1)
    if colours is None:  # it has more than one
        shown = repr(pixels.size).encode() + pixels.tobytes()
    else:
        _, colour = colours[0]
        shown = repr(colour).encode()
    coarse = pixels.resize((4, 4), Image.Resampling.BOX).tobytes()
    return hashlib.sha256(shown).hexdigest(), coarse.hex()


def noise(name: str, seed: int, size: tuple[int, int]) -> Picture:
    """Make uniform noise of ``size`` = (width, height) pixels: any two seeds look
    different.

    Blocks of 14 x 14 pixels (one patch) share a colour, so that the PNG stays small.
    """
    import numpy as np
    from PIL import Image

    width, height = size
    rows, columns = -(-height // 14), -(-width // 14)
    random = np.random.default_rng(seed)
    cells = random.integers(0, 256, (rows, columns, 3), dtype=np.uint8)
    pixels = cells.repeat(14, axis=0).repeat(14, axis=1)[:height, :width]
    return encoded(name, Image.fromarray(pixels), compress_level=1)


def clip(name: str, seed: int, size: tuple[int, int], frames: int = 2) -> Video:
    """Make a video of so many frames of :func:`noise`."""
    from PIL import Image

    encoded: list[bytes] = []
    for number in range(frames):
        still = noise(name, seed + 10_000_000 * number, size)
        buffer = io.BytesIO()
        with Image.open(io.BytesIO(still.png)) as frame:
            frame.save(buffer, "JPEG", quality=90)
        encoded.append(buffer.getvalue())
    return Video(name, b"".join(encoded), *size, "video/jpeg", tuple(encoded))


def tiles(name: str, rows: int, columns: int, seed: int, side: int = 28) -> Picture:
    """Tiles of ``side`` pixels, each of four colours, in so many rows and columns.

    28 pixels are what Qwen2-VL's processor takes at a time, row by row of tiles, so
    that the order of the preprocessed pixels is that of the tiles, whatever their
    layout: 2 x 4 tiles and 4 x 2 tiles of one seed are the same bytes."""
    import numpy as np
    from PIL import Image

    shape = (rows * columns, 2, 2, 3)
    cells = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    made = cells.repeat(side // 2, axis=1).repeat(side // 2, axis=2)
    grid = made.reshape(rows, columns, side, side, 3).transpose(0, 2, 1, 3, 4)
    pixels = np.ascontiguousarray(grid.reshape(rows * side, columns * side, 3))
    return encoded(name, Image.fromarray(pixels))


def encoded(name: str, pixels: Pixels, **options: int) -> Picture:
    """Encode it as a PNG; ``options`` are its encoder's."""
    buffer = io.BytesIO()
    pixels.save(buffer, "PNG", **options)
    return Picture(name, buffer.getvalue(), pixels.width, pixels.height)


def read_picture(path: Path, hint: str = "") -> Picture:
    """The picture in a file, called as the file is. Raises UsageError: it cannot be
    read, or is no picture; with ``hint``."""
    from mmrepro.base.machine import read_file
    from PIL import Image

    try:
        data = read_file(path, _MOST_PICTURE_BYTES)
        with Image.open(io.BytesIO(data)) as image:
            return Picture(path.stem, data, image.width, image.height)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror or error}.", hint=hint
        ) from error
