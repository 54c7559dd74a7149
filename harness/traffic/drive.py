"""What a scenario's gate and trigger may do to a running engine, and the images that
they send, made from a seed, so that a run repeats byte for byte."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import zlib
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmrepro.base.errors import UsageError
from mmrepro.traffic.evidence import ImageSent

# An HTTP client takes a while to import, and a scenario is often only read.
if TYPE_CHECKING:
    from mmrepro.traffic.client import Traffic
    from mmrepro.traffic.evidence import RequestRecord
    from mmrepro.traffic.evidence.recorder import Recorder
    from PIL.Image import Image as Pixels

_GATE_DEADLINE_S = 60.0
"""For requests of the gate: nothing is known of latencies yet, and the first one warms
up."""
_MOST_PICTURE_BYTES = 64 << 20


@dataclass
class Drive:
    """The scenario's hands.

    Attributes:
        image_size: (width, height) in pixels of an image that fills the model's token
            budget.
        max_model_len: tokens that prompt and answer may have.
        release: of the engine, e.g. ``0.23.0``.
        mitigations: names of those applied.
        flips: names of the factors that are not left as in the failing baseline.
        deadline_s: seconds after which a request counts as unanswered; derived from the
            gate.
        options: of the scenario, as given with ``--option``.
        python: the interpreter of the engine's environment.
        model: the folder of the served model.
        reproducer_env: variables for the scenario's reproducers, besides the server's.
        suspect_s: seconds after which an unanswered request makes the trigger stop and
            look, while the request itself keeps waiting for its full deadline.
    """

    traffic: Traffic
    recorder: Recorder
    image_size: tuple[int, int]
    max_model_len: int
    release: str
    mitigations: frozenset[str] = frozenset()
    flips: frozenset[str] = frozenset()
    deadline_s: float = _GATE_DEADLINE_S
    suspect_s: float = _GATE_DEADLINE_S
    options: Mapping[str, str] = field(default_factory=dict)
    python: Path | None = None
    model: Path | None = None
    reproducer_env: dict[str, str] = field(default_factory=dict)
    pending: list[asyncio.Task[RequestRecord]] = field(default_factory=list)

    def picture(
        self, name: str, seed: int, size: tuple[int, int] | None = None
    ) -> Picture:
        return noise(name, seed, size or self.image_size)

    def note(self, text: str) -> None:
        self.recorder.event(text, source="scenario")

    def fact(self, name: str, value: str | int | float | bool | None) -> None:
        """Keep a measured value for the signature."""
        self.recorder.evidence.facts[name] = value

    def attach(self, name: str, data: bytes) -> Path:
        """Keep a file below ``evidence/``; returns where."""
        from mmrepro.base.machine.files import write_file

        path = self.recorder.dir / name
        write_file(path, data)
        return path

    async def chat(
        self,
        label: str,
        *,
        text: str = "hi",
        images: Sequence[Picture] = (),
        max_tokens: int = 4,
        stream: bool = False,
        extra: Mapping[str, Any] | None = None,
    ) -> RequestRecord:
        """One request, waited for until the full deadline."""
        return await self.traffic.chat(
            label,
            text=text,
            images=images,
            max_tokens=max_tokens,
            deadline_s=self.deadline_s,
            stream=stream,
            extra=extra,
        )

    async def ask(self, label: str, **request: Any) -> RequestRecord | None:
        """One request of the trigger (see :meth:`chat`); None: it is stuck, and waits
        on.

        ``image``: a picture, or the size in pixels of one that is made for the label.
        """
        image = request.pop("image", None)
        if isinstance(image, tuple):
            image = self.picture(label, zlib.crc32(label.encode()) % 100_000, image)
        if image is not None:
            request["images"] = [image]
        elif "images" not in request:
            request.setdefault("text", "hello")
        return await self.unless_stuck(self.chat(label, **request))

    async def unless_stuck(
        self, request: Awaitable[RequestRecord]
    ) -> RequestRecord | None:
        """Return the record of ``request``; None when it is unanswered after ``suspect_s``.

        A suspect keeps waiting in the background, beyond its deadline if need be, so
        that the check looks at the engine while the request still hangs; ``collect``
        ends that."""
        task = asyncio.ensure_future(request)
        # At once: a trigger that is cancelled here leaves no orphan.
        self.pending.append(task)
        done, _ = await asyncio.wait({task}, timeout=self.suspect_s)
        if not done:
            self.traffic.hold(task)
            return None
        self.pending.remove(task)
        return task.result()

    async def collect(self) -> None:
        """Wait for what still runs, each until its own deadline."""
        for task in self.pending:
            self.traffic.release(task)
        await asyncio.gather(*self.pending)

    async def metric(self, name: str) -> float | None:
        """Return the sum of a metric over all label sets, now; None if it cannot be
        read."""
        from mmrepro.probes.metrics import parse_metrics

        text = await self.traffic.scrape(deadline_s=min(5.0, self.deadline_s))
        samples, _ = parse_metrics(text)
        values: list[float] = []
        for sample in samples:
            if sample.name == name and sample.value is not None:
                values.append(sample.value)
        return sum(values) if values else None

    async def text_of_tokens(self, tokens: int) -> str:
        """Return a plain text of about ``tokens`` tokens by the server's own tokenizer, not
        above."""
        unit = "a "
        sample = 256
        counted = await self.traffic.count_tokens(unit * sample)
        per_unit = counted / sample if counted else 2.0
        return unit * int(tokens / per_unit)


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
    from mmrepro.base.machine.files import read_file
    from PIL import Image

    try:
        data = read_file(path, _MOST_PICTURE_BYTES)
        with Image.open(io.BytesIO(data)) as image:
            return Picture(path.stem, data, image.width, image.height)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror or error}.", hint=hint
        ) from error
