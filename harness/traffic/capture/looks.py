"""Noise in the place of pictures: of the same size, and in the same relations to each
other."""

from __future__ import annotations

import hashlib
import io
import random
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mmrepro.traffic.capture.messages import Contents
from mmrepro.traffic.capture.sounds import noise_like
from mmrepro.traffic.case.model import (
    Case,
    Content,
    Image,
    Near,
    Noise,
    Relayout,
    Tiles,
)
from mmrepro.traffic.pictures import noise

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_SIDE = 28
"""Of the tiles in which a picture's layout is told; as of ``traffic.drive.tiles``."""
_BANDS = 64
"""Pictures that are alike in one of so many bands are compared whole."""
FEW = 0.02
"""Pictures that differ in no more of their pixels are near duplicates."""
_MOST_PIXELS = 32 << 20
_LARGEST = 8192
_SMALLEST = 8
"""Bytes: of less nobody hears or sees anything."""


class Looks:
    """``image(name)`` is what stands for the picture called so; ``contents`` what it
    needs."""

    def __init__(
        self, case: Case, contents: Mapping[str, bytes], kept: Contents, seed: int
    ) -> None:
        self.contents = kept
        self.replaced = 0
        self.unread = 0
        """Sounds, films and files in whose place are bytes that no decoder reads."""
        self._old = contents
        self._case = case
        self._chance = random.Random(f"looks {seed}")  # noqa: S311 - no secret
        self.images: dict[str, Image] = {}
        self._seeds: dict[bytes, int] = {}
        self._pixels: dict[str, str] = {}
        """Digest of pixels and size: the name that has them."""
        self._bands: dict[tuple[Any, ...], str] = {}
        self._layouts: dict[str, str] = {}
        for name, image in case.images.items():
            if isinstance(image, Content):
                image = self._stand_in(name, image)
            self.images[name] = image

    def data(self, data: bytes) -> bytes:
        """For a picture, or something else, that stands in a text."""
        seen = look(data)
        if seen.size is None:
            return self._broken(data)
        return self._drawn(seen, self._seed(data))

    # ------------------------------------------------------------------ one picture

    def _stand_in(self, name: str, image: Content) -> Image:
        """Return what replaces a picture; it has the same relations to earlier ones."""
        self.replaced += 1
        data = self._old[image.sha256]
        seen = look(data)
        if seen.size is None:
            return self._kept(image, self._broken(data))
        if seen.pixels is not None:
            same = self._pixels.setdefault(_digest(seen.pixels), name)
            if same != name:
                # Another file with the same pixels: the same picture to an engine.
                return self.images[same]
            related = self._relayout(name, seen.pixels) or self._near(name, seen.pixels)
            if related is not None:
                return related
            if seen.form in ("PNG RGB", "JPEG RGB") and max(seen.size) <= _LARGEST:
                return Noise(seed=self._seed(data), size=seen.size)
        return self._kept(image, self._drawn(seen, self._seed(data)))

    def _kept(self, image: Content, data: bytes) -> Content:
        return image.model_copy(update={"sha256": self.contents.add(data)})

    def _drawn(self, seen: DecodedPicture, seed: int) -> bytes:
        """Draw a picture of that size, format and mode; cut where that one was."""
        from PIL import Image as Pillow

        assert seen.size is not None
        width, height = seen.size
        if width * height <= _MOST_PIXELS:
            drawn = noise("", seed, seen.size).png
            pixels = Pillow.open(io.BytesIO(drawn)).convert("RGB")
        else:
            colour = tuple(random.Random(seed).randbytes(3))  # noqa: S311
            pixels = Pillow.new("RGB", seen.size, colour)
        kind, _, mode = seen.form.partition(" ")
        buffer = io.BytesIO()
        try:
            pixels.convert(mode).save(buffer, kind)
        except (OSError, ValueError, KeyError):
            # Pillow reads more formats and modes than it writes.
            buffer = io.BytesIO()
            pixels.save(buffer, "PNG")
        made = buffer.getvalue()
        return made[: len(made) // 2] if seen.cut else made

    def _relayout(self, name: str, pixels: NDArray[np.uint8]) -> Image | None:
        """The tiles of an earlier one in other rows; that one becomes one of tiles
        then."""
        import numpy as np

        height, width = pixels.shape[:2]
        rows, columns = height // _SIDE, width // _SIDE
        if (
            height % _SIDE
            or width % _SIDE
            or not (0 < rows <= 64 and 0 < columns <= 64)
        ):
            return None
        tiles = pixels.reshape(rows, _SIDE, columns, _SIDE, 3).transpose(0, 2, 1, 3, 4)
        digest = hashlib.sha256(np.ascontiguousarray(tiles).tobytes()).hexdigest()
        of = self._layouts.setdefault(digest, name)
        if of == name:
            return None
        first = self.images[of]
        if isinstance(first, Noise):
            size = first.size
            first = Tiles(
                seed=first.seed, rows=size[1] // _SIDE, columns=size[0] // _SIDE
            )
            self.images[of] = first
        if not isinstance(first, Tiles):
            return None
        return Relayout(of=of, rows=rows, columns=columns)

    def _near(self, name: str, pixels: NDArray[np.uint8]) -> Image | None:
        """Return a near duplicate of an earlier picture that differs in as many pixels;
        None: no earlier one is near."""
        import numpy as np

        # Near duplicates have a band in common: only such are compared whole.
        seen: set[str] = set()
        bands = np.array_split(pixels, min(_BANDS, len(pixels)))
        for number, band in enumerate(bands):
            key = (number, pixels.shape, hashlib.sha256(band.tobytes()).digest())
            of = self._bands.setdefault(key, name)
            if of == name or of in seen:
                continue
            seen.add(of)
            first = self._case.images[of]
            assert isinstance(first, Content)  # only those are compared
            other = look(self._old[first.sha256]).pixels
            if other is None or other.shape != pixels.shape:
                continue
            differing = int((other != pixels).any(axis=2).sum())
            height, width = pixels.shape[:2]
            if 0 < differing <= FEW * height * width:
                seed = self._chance.randrange(1 << 30)
                return Near(of=of, seed=seed, pixels=differing)
        return None

    def _broken(self, data: bytes) -> bytes:
        """Return what is no picture either, of the same length."""
        chance = random.Random(self._seed(data))  # noqa: S311
        made, is_read = noise_like(data, chance)
        self.unread += not is_read and len(data) > _SMALLEST
        return made

    def _seed(self, data: bytes) -> int:
        """The same for the same bytes only; nothing of them is in it."""
        digest = hashlib.sha256(data).digest()
        return self._seeds.setdefault(digest, self._chance.randrange(1 << 48))


@dataclass(frozen=True)
class DecodedPicture:
    """What Pillow makes of some bytes.

    ``size``: None where it is no picture. ``form``: format and mode. ``cut``: the
    picture does not end. ``pixels``: as RGB, unless it is cut or enormous."""

    size: tuple[int, int] | None = None
    form: str = ""
    cut: bool = False
    pixels: NDArray[np.uint8] | None = None


def look(data: bytes) -> DecodedPicture:
    """Decode a picture, as far as it can be decoded."""
    import numpy as np
    from PIL import Image as Pillow

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            opened = Pillow.open(io.BytesIO(data))
            size = opened.size
            form = f"{opened.format} {opened.mode}"
    except Exception:  # decoders raise whatever they like
        return DecodedPicture()
    width, height = size
    if width * height > _MOST_PIXELS:
        return DecodedPicture(size, form)
    try:
        with opened:
            pixels = np.asarray(opened.convert("RGB"))
    except Exception:
        return DecodedPicture(size, form, cut=True)
    return DecodedPicture(size, form, pixels=pixels)


def _digest(pixels: NDArray[np.uint8]) -> str:
    total = hashlib.sha256(repr(pixels.shape).encode())
    total.update(pixels.tobytes())
    return total.hexdigest()
