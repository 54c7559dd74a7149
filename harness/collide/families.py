"""The two pictures of which a search makes families: drawn from a seed, or the user's own."""

from __future__ import annotations

from pathlib import Path
from random import Random

from mmrepro.errors import UsageError
from PIL import Image, ImageDraw, UnidentifiedImageError

MAX_SIDE = 840
"""In pixels; SGLang makes Qwen2-VL's images of more than 1 003 520 pixels smaller."""

Colour = tuple[int, int, int]


def draw(seed: int, size: int, second_size: int | None = None) -> tuple[Image.Image, Image.Image]:
    """A red square on black and a blue disc on white, ``size`` pixels a side; the disc's picture
    ``second_size``, if given.

    The seed shifts colours and places a little: other seeds give other families, none of which
    could be mistaken for the other.
    """
    random = Random(seed)  # noqa: S311 - pictures, not secrets

    def near(colour: Colour) -> Colour:
        red, green, blue = (min(255, max(0, part + random.randint(-14, 14))) for part in colour)
        return red, green, blue

    def box(size: int, margin: float) -> tuple[int, int, int, int]:
        x, y = (round(size * (margin + random.uniform(-0.04, 0.04))) for _ in range(2))
        side = round(size * (1 - 2 * margin))
        return x, y, x + side, y + side

    first = Image.new("RGB", (size, size), near((18, 20, 26)))
    ImageDraw.Draw(first).rectangle(box(size, 0.25), fill=near((220, 45, 40)))
    other = second_size or size
    second = Image.new("RGB", (other, other), near((240, 236, 226)))
    ImageDraw.Draw(second).ellipse(box(other, 0.16), fill=near((35, 70, 210)))
    return first, second


def load(
    paths: tuple[Path, Path], factor: int, least: int, second_size: int | None = None
) -> tuple[Image.Image, Image.Image]:
    """The user's pictures, brought to a size that the image processor keeps.

    The size is the first's, rounded to multiples of ``factor`` pixels, at least ``least`` a side
    and at most 840; the second's ``second_size`` a side, if given.

    Raises:
        UsageError: a file is no picture.
    """
    opened = []
    for path in paths:
        try:
            with Image.open(path) as picture:
                opened.append(picture.convert("RGB"))
        except FileNotFoundError as error:
            raise UsageError(f"There is no picture {path}.") from error
        except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
            raise UsageError(f"{path} is not a picture that can be read.") from error
    width, height = (
        max(least, min(MAX_SIDE, round(side / factor) * factor)) for side in opened[0].size
    )
    other = (second_size, second_size) if second_size else (width, height)
    return opened[0].resize((width, height)), opened[1].resize(other)
