"""Log files: with their rotated predecessors, compressed or not."""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
import stat
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO, cast

from mmrepro.probes.base import Unavailable

MAX_FILES = 1000
BROKEN = (OSError, EOFError, lzma.LZMAError, zlib.error)
"""What reading a damaged file raises."""
PACKED = (gzip.GzipFile, bz2.BZ2File, lzma.LZMAFile)
"""Streams of which a read that meets damage returns nothing of what came before it."""

_MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_OPENERS: Mapping[str, Callable[[Path], object]] = {
    "gzip": gzip.open,
    "bz2": bz2.open,
    "xz": lzma.open,
}
_PACKED = r"(?:\.(?:gz|bz2|xz|zst))?"


def with_rotated(path: Path) -> list[Path]:
    """``path`` and what was rotated away from it, oldest first.

    As logrotate and Python's handlers name them: ``server.log.2.gz``, ``server.log.1``,
    ``server.log-20261120.xz``, ``server.log.2026-11-20``. Never raises.
    """
    name = re.escape(path.name)
    numbered = re.compile(rf"{name}\.(\d{{1,6}}){_PACKED}")
    dated = re.compile(
        rf"{name}[.-](\d{{8}}(?:-?\d{{1,10}})?|\d{{4}}-\d\d-\d\d(?:[_T-][\d-]+)?){_PACKED}"
    )
    rotated: list[tuple[int, str, Path]] = []
    try:
        siblings = list(path.parent.iterdir())
    except OSError:
        siblings = []
    for sibling in siblings:
        if (match := dated.fullmatch(sibling.name)) is not None:
            # Rotated by date and by number at once is not done; by date comes first.
            rotated.append((-(10**7), match[1], sibling))
        elif (match := numbered.fullmatch(sibling.name)) is not None:
            rotated.append((-int(match[1]), "", sibling))
    older = [sibling for _, _, sibling in sorted(rotated, key=lambda item: item[:2])]
    return [*older[-MAX_FILES:], path]


def recent(path: Path, max_bytes: int) -> list[Path]:
    """``path`` and as many of its predecessors, oldest first, as have ``max_bytes`` together.

    None at all where ``path`` alone is larger, or is not there.
    """
    files: list[Path] = []
    for file in reversed(with_rotated(path)):
        try:
            max_bytes -= file.stat().st_size
        except OSError:
            break
        if max_bytes < 0:
            break
        files.insert(0, file)
    return files


def open_log(path: Path) -> BinaryIO:
    """``path`` as a binary stream, decompressed by what its first bytes say.

    Raises:
        OSError: it cannot be opened.
        Unavailable: no plain file, or a compression that Python cannot read.
    """
    if not stat.S_ISREG(path.stat().st_mode):  # a FIFO or a device would block or never end
        raise Unavailable(f"{path} is not a file")
    with path.open("rb") as stream:
        head = stream.read(6)
    kind = next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), "")
    if kind == "zstd":
        raise Unavailable(f"{path} is compressed with zstd; unpack it first: unzstd {path}")
    if opener := _OPENERS.get(kind):
        return cast("BinaryIO", opener(path))
    return cast("BinaryIO", path.open("rb", buffering=0))
