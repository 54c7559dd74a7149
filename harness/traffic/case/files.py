"""A case on disk: ``case.json`` and its pictures, read or made byte for byte the same
each time."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmrepro.base.errors import UnwritableOutput, UsageError
from mmrepro.base.machine import is_folder, read_file, write_file
from mmrepro.base.records import Unfit, parsed
from mmrepro.traffic.case.model import (
    CASE_FILE,
    IMAGES_DIR,
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
from mmrepro.traffic.pictures import Picture, encoded, noise, tiles

if TYPE_CHECKING:
    from mmrepro.engines.models import TinyModel
    from PIL.Image import Image as Pixels

MAX_CASE_BYTES = 64 << 20
MOST_VALUES = 6_000_000
"""Prompts of token ids that fill as much."""
MAX_IMAGE_BYTES = 64 << 20


def read_case(file: Path) -> tuple[Case, Path]:
    """The case in ``file``, or in the folder ``file``, and the folder that its pictures
    lie below. Raises UsageError: it cannot be read, is too large, or is no case; says
    where in the file."""
    file = file / CASE_FILE if is_folder(file) else file
    try:
        data = read_file(file, MAX_CASE_BYTES)
    except OSError as error:
        raise UsageError(
            f"{file} cannot be read: {error.strerror or error}."
        ) from error
    try:
        return parsed(Case, data, most_values=MOST_VALUES), file.parent
    except Unfit as error:
        raise UsageError(f"{file} is no case: {error}.") from error


def case_text(case: Case) -> str:
    """``case.json``: to be read and compared by people, so what is at its default is
    left out."""
    return json.dumps(_plain(case), indent=1, ensure_ascii=False) + "\n"


def write_case(
    case: Case, folder: Path, contents: Mapping[str, bytes] | None = None
) -> Path:
    """Write ``case.json``, and of ``contents`` (by SHA-256) the pictures that the case
    has. Raises
    UnwritableOutput: the folder cannot be written."""
    wanted = {
        image.sha256 for image in case.images.values() if isinstance(image, Content)
    }
    contents = contents or {}
    given = sorted(wanted & contents.keys())
    file = folder / CASE_FILE
    try:
        (folder / IMAGES_DIR if given else folder).mkdir(parents=True, exist_ok=True)
        for name in given:  # one at a time: they may be a night's
            write_file(folder / IMAGES_DIR / name, contents[name])
        write_file(file, case_text(case))
    except OSError as error:
        raise UnwritableOutput(
            f"{folder} cannot be written: {error.strerror or error}."
        ) from error
    return file


def read_contents(case: Case, folder: Path | None) -> dict[str, bytes]:
    """The pictures of ``case`` that lie below ``folder``, by SHA-256, for
    ``write_case``. Raises
    UsageError: one of them cannot be read."""
    contents = {}
    for name, image in case.images.items():
        if isinstance(image, Content) and image.sha256 not in contents:
            contents[image.sha256] = read_content(name, image, folder)
    return contents


def read_content(name: str, image: Content, folder: Path | None) -> bytes:
    """Raises UsageError: the file is missing, or another one."""
    file = (folder or Path()) / IMAGES_DIR / image.sha256
    try:
        data = read_file(file, MAX_IMAGE_BYTES)
    except OSError as error:
        raise UsageError(
            (
                f"The image {name} is kept by content, and {file} cannot be read: "
                f"{error.strerror}."
            ),
            hint=f"put {IMAGES_DIR}/ beside {CASE_FILE}",
        ) from error
    if hashlib.sha256(data).hexdigest() != image.sha256:
        raise UsageError(
            f"The image {name} is not what {file} holds: its SHA-256 is another."
        )
    return data


def scripted_model(folder: Path) -> TinyModel:
    """The model that says the scripts of the case in ``folder``. Raises UsageError: the
    case has none."""
    case, _ = read_case(folder)
    if case.server.scripts is None or case.server.tiny is None:
        raise UsageError(f"The case in {folder} has no scripts.")
    return case.server.tiny


def case_digest(case: Case) -> str:
    """SHA-256 of what decides a play: not its title, its origin, or what a recording
    showed."""
    # A play is the same, whatever its document is.
    plain = _plain(case) | {"schema_version": 1}
    for name in ("title", "origin"):
        plain.pop(name, None)
    for operation in plain.get("operations", []):
        for name in ("at_s", "recorded"):
            operation.pop(name, None)
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def _plain(case: Case) -> dict[str, Any]:
    plain: dict[str, Any] = case.model_dump(mode="json", exclude_defaults=True)
    plain = {"schema_version": case.schema_version, **plain}
    images = plain.get("images", {})
    for name, image in case.images.items():  # its kind is the default of its class
        images[name] = {"kind": image.kind, **images[name]}
    return plain


# ----------------------------------------------------------------------------- pictures

_FAMILIES = {
    "pad-value": ("mmrepro.scenarios.data", "pad_value_pair", ("A.png", "B.png"))
}
"""Collision family: package that ships it, folder in it, files of the members. Data,
not code."""
_MAX_PIXELS = 64 << 20
"""As Pillow's own bound against small files of enormous pictures, roughly."""


def pictures(case: Case, folder: Path | None) -> dict[str, Picture]:
    """By name; ``folder`` is the one that holds ``images``. Raises UsageError: the file
    of a picture is missing or another one, or a picture is to be made from one that is
    none."""
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
            from PIL import Image as Pillow

            return encoded(name, Pillow.new("RGB", image.size, image.colour))
        case Near():
            return _near(name, image, _pixels(name, made[image.of]))
        case Resized():
            return encoded(name, _pixels(name, made[image.of]).resize(image.size))
        case Relayout():
            of = case.images[image.of]
            assert isinstance(of, Tiles)  # the case holds to it
            return tiles(name, image.rows, image.columns, of.seed)
        case Collision():
            package, below, files = _FAMILIES[image.family]
            file = resources.files(package) / below / files[image.member]
            return _whole(name, file.read_bytes(), "image/png")


def _near(name: str, image: Near, of: Pixels) -> Picture:
    """One channel of each chosen pixel is another one; as many as there are, if more
    are asked."""
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
        if of.width * of.height > _MAX_PIXELS:
            raise ValueError("it is too large")
        with Pillow.open(io.BytesIO(of.png)) as opened:
            return opened.convert("RGB")
    except (OSError, ValueError, SyntaxError, Pillow.DecompressionBombError) as error:
        raise UsageError(
            f"The image {name} cannot be made of {of.name}, which cannot be decoded: "
            f"{error}."
        ) from error


def _whole(name: str, data: bytes, media_type: str) -> Picture:
    """Sent as it is, be it a picture or not: a broken one may be what a case is
    about."""
    from PIL import Image as Pillow

    try:
        with Pillow.open(io.BytesIO(data)) as opened:
            size = opened.size
    except (OSError, ValueError, SyntaxError, Pillow.DecompressionBombError):
        size = (0, 0)
    return Picture(name, data, *size, media_type)
