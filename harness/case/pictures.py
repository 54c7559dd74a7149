"""The pictures of a case: made from recipes, byte for byte the same each time, or read."""

from __future__ import annotations

import io
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from mmrepro.case.files import read_content
from mmrepro.case.model import (
    Case,
    Collision,
    Content,
    Image,
    Near,
    Noise,
    Relayout,
    Resized,
    Solid,
    Tiles,
)
from mmrepro.errors import UsageError
from mmrepro.traffic.drive import Picture, encoded, noise, tiles

if TYPE_CHECKING:
    from PIL.Image import Image as Pixels

FAMILIES = {"pad-value": ("mmrepro.scenarios.data", "pad_value_pair", ("A.png", "B.png"))}
"""Collision family: package that ships it, folder in it, files of the members. Data, not code."""
MAX_PIXELS = 64 << 20
"""As Pillow's own bound against small files of enormous pictures, roughly."""


def pictures(case: Case, folder: Path | None) -> dict[str, Picture]:
    """By name; ``folder`` is the one that holds ``images``.

    Raises:
        UsageError: the file of a picture is missing or another one, or a picture is to be made
            from one that is none.
    """
    made: dict[str, Picture] = {}
    for name, image in case.images.items():
        made[name] = _made(name, image, case, made, folder)
    return made


def _made(
    name: str, image: Image, case: Case, made: dict[str, Picture], folder: Path | None
) -> Picture:
    match image:
        case Content():
            return _whole(name, read_content(name, image, folder), image.media_type)
        case Noise():
            return noise(name, image.seed, image.size)
        case Tiles():
            return tiles(name, image.rows, image.columns, image.seed)
        case Solid():
            return _solid(name, image)
        case Near():
            return _near(name, image, _pixels(name, made[image.of]))
        case Resized():
            return encoded(name, _pixels(name, made[image.of]).resize(image.size))
        case Relayout():
            of = case.images[image.of]
            assert isinstance(of, Tiles)  # the case holds to it
            return tiles(name, image.rows, image.columns, of.seed)
        case Collision():
            package, below, files = FAMILIES[image.family]
            file = resources.files(package) / below / files[image.member]
            return _whole(name, file.read_bytes(), "image/png")


def _solid(name: str, image: Solid) -> Picture:
    from PIL import Image as Pillow

    return encoded(name, Pillow.new("RGB", image.size, image.colour))


def _near(name: str, image: Near, of: Pixels) -> Picture:
    """One channel of each chosen pixel is another one; as many as there are, if more are asked."""
    import numpy as np
    from PIL import Image as Pillow

    pixels = np.array(of)
    flat = pixels.reshape(-1, 3)
    random = np.random.default_rng(image.seed)
    count = min(image.pixels, len(flat))
    chosen = random.choice(len(flat), count, replace=False)
    channels = random.integers(0, 3, count)
    flat[chosen, channels] += random.integers(1, 256, count, dtype=np.uint8)
    return encoded(name, Pillow.fromarray(pixels))


def _pixels(name: str, of: Picture) -> Pixels:
    """Raises UsageError: it is no picture."""
    from PIL import Image as Pillow

    try:
        if of.width * of.height > MAX_PIXELS:
            raise ValueError("it is too large")
        with Pillow.open(io.BytesIO(of.png)) as opened:
            return opened.convert("RGB")
    except (OSError, ValueError, SyntaxError, Pillow.DecompressionBombError) as error:
        raise UsageError(
            f"The image {name} cannot be made of {of.name}, which cannot be decoded: {error}."
        ) from error


def _whole(name: str, data: bytes, media_type: str) -> Picture:
    """Sent as it is, be it a picture or not: a broken one may be what a case is about."""
    from PIL import Image as Pillow

    try:
        with Pillow.open(io.BytesIO(data)) as opened:
            size = opened.size
    except (OSError, ValueError, SyntaxError, Pillow.DecompressionBombError):
        size = (0, 0)
    return Picture(name, data, *size, media_type)
