"""What --from gives a session: a recording, a case, or pictures."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mmrepro.capture.messages import Contents
from mmrepro.capture.read import read
from mmrepro.case.files import MAX_IMAGE_BYTES
from mmrepro.case.model import CASE_FILE, IMAGES_DIR, Case, Content, Image, ServerWanted
from mmrepro.errors import UnwritableOutput, UsageError
from mmrepro.machine.files import is_file, is_folder, read_file, write_file

MEDIA = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".webp": "image/webp"}
MOST_PICTURES = 64


@dataclass(frozen=True)
class Source:
    """Attributes:
    name: of the file or folder, without those above it; "": nothing was given.
    images: to be used besides those that are made up.
    case: to be changed.
    contents: the pictures' bytes, by SHA-256.
    """

    name: str = ""
    images: Mapping[str, Image] = field(default_factory=dict)
    case: Case | None = None
    contents: Contents | Mapping[str, bytes] = field(default_factory=dict)

    def keep(self, folder: Path) -> Contents | Mapping[str, bytes]:
        """The pictures, in the session's folder as well. Raises UnwritableOutput."""
        try:
            if self.contents:
                (folder / IMAGES_DIR).mkdir(exist_ok=True)
            for sha256 in self.contents:
                write_file(folder / IMAGES_DIR / sha256, self.contents[sha256])
        except OSError as error:
            raise UnwritableOutput(f"{folder} cannot be written: {error.strerror}.") from error
        return self.contents


def read_source(place: Path | None, server: ServerWanted) -> Source:
    """A folder of pictures, or whatever ``mmrepro replay`` reads.

    Raises:
        UsageError: it is neither, or holds nothing.
    """
    if place is None:
        return Source()
    if is_folder(place) and not is_file(place / CASE_FILE):
        return _pictures(place)
    captured = read(place, server)
    case = captured.case.model_copy(update={"server": server, "title": place.name})
    contents = captured.contents
    return Source(place.name, dict(case.images), case, contents)


def _pictures(folder: Path) -> Source:
    images: dict[str, Image] = {}
    contents: dict[str, bytes] = {}
    try:
        files = sorted(p for p in folder.iterdir() if p.suffix.lower() in MEDIA and is_file(p))
        for number, file in enumerate(files[:MOST_PICTURES], 1):
            data = read_file(file, MAX_IMAGE_BYTES)
            sha256 = hashlib.sha256(data).hexdigest()
            contents[sha256] = data
            images[f"given{number}"] = Content(sha256=sha256, media_type=MEDIA[file.suffix.lower()])
    except OSError as error:
        raise UsageError(f"{folder} cannot be read: {error.strerror or error}.") from error
    if not images:
        raise UsageError(
            f"{folder} holds neither a {CASE_FILE} nor a picture.",
            hint=f"pictures are files that end in {', '.join(MEDIA)}",
        )
    return Source(folder.resolve().name, images, None, contents)
