"""Wheels into parts of a bounded size: what is too large is cut, the rest is put together."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mmrepro.environments.wheelhouse.model import Piece, WheelFile

CHUNK = 1 << 20


@dataclass(frozen=True)
class Stretch:
    """``size`` bytes of a file from ``start`` on; the whole of it if it has no ``number``."""

    file: str
    start: int
    size: int
    number: int = 0

    @property
    def name(self) -> str:
        return f"{self.file}.{self.number:03d}" if self.number else self.file


@dataclass
class Bin:
    """One part, as it is filled."""

    room: int
    stretches: list[Stretch] = field(default_factory=list)

    def put(self, stretch: Stretch) -> None:
        self.stretches.append(stretch)
        self.room -= stretch.size


def cut(file: str, size: int, capacity: int) -> list[Stretch]:
    """In stretches of at most ``capacity`` bytes; all but the last have just that."""
    if size <= capacity:
        return [Stretch(file, 0, size)]
    starts = range(0, size, capacity)
    return [Stretch(file, s, min(capacity, size - s), n) for n, s in enumerate(starts, 1)]


def arrange(groups: Sequence[dict[str, int]], capacity: int) -> list[list[Stretch]]:
    """Parts of at most ``capacity`` bytes for files of these sizes.

    Those of an earlier group are in the earlier parts. In a group, the largest stretch first, each
    into the first part that has room.
    """
    bins: list[Bin] = []
    for group in groups:
        stretches = [s for file, size in sorted(group.items()) for s in cut(file, size, capacity)]
        for stretch in sorted(stretches, key=lambda one: -one.size):
            place = next((b for b in bins if b.room >= stretch.size), None)
            if place is None:
                bins.append(place := Bin(capacity))
            place.put(stretch)
    return [one.stretches for one in bins]


def write(
    parts: dict[str, list[Stretch]], source: Path, into: Path, digests: dict[str, str]
) -> list[WheelFile]:
    """Write each part below ``into`` out of the files in ``source``, which are used up.

    Args:
        digests: SHA-256 by file; it is known since the file was checked by it.
    """
    pieces: dict[str, list[tuple[int, Piece]]] = {}
    sizes = {file: (source / file).stat().st_size for file in digests}
    for part, stretches in parts.items():
        (into / part).mkdir()
        for stretch in stretches:
            target = into / part / stretch.name
            if stretch.number:
                digest = _copy(source / stretch.file, stretch, target)
            else:
                (source / stretch.file).rename(target)
                digest = digests[stretch.file]
            piece = Piece(part=part, name=stretch.name, bytes=stretch.size, sha256=digest)
            pieces.setdefault(stretch.file, []).append((stretch.start, piece))
    return [
        WheelFile(
            name=file,
            bytes=sizes[file],
            sha256=digests[file],
            pieces=[piece for _, piece in sorted(pieces[file], key=lambda one: one[0])],
        )
        for file in sorted(pieces)
    ]


def _copy(path: Path, stretch: Stretch, target: Path) -> str:
    digest = hashlib.sha256()
    left = stretch.size
    with path.open("rb") as stream, target.open("wb") as out:
        stream.seek(stretch.start)
        while left:
            chunk = stream.read(min(CHUNK, left))
            digest.update(chunk)
            out.write(chunk)
            left -= len(chunk)
    return digest.hexdigest()
