"""Log files: with their rotated predecessors, packed or not, in any Unicode; a pipe; folders."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import re
import shutil
import stat
import sys
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast

from mmrepro.probes.base import Unavailable

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MAX_FILES = 1000
STDIN = Path("-")
"""The standard input, as it is written among paths."""
BROKEN = (OSError, EOFError, lzma.LZMAError, zlib.error, zstd.ZstdError)
"""What reading a damaged file raises."""

_MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_OPENERS: Mapping[str, Callable[[BinaryIO], Any]] = {
    "gzip": gzip.open,
    "bz2": bz2.open,
    "xz": lzma.open,
    "zstd": zstd.open,
}
_BOMS = (  # the longer ones first: UTF-32's begins as UTF-16's
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
    (codecs.BOM_UTF8, "utf-8-sig"),
)
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


def logs_in(paths: Iterable[Path]) -> list[Path]:
    """``paths``, each folder replaced by the logs in it, the oldest first.

    A log is a file that is packed, or has no byte 0 in its beginning (but for UTF-16 and UTF-32).
    """
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            found.append(path)
            continue
        files = sorted(
            (file for file in path.rglob("*") if file.is_file() and not file.is_symlink()),
            key=lambda file: (file.stat().st_mtime, file.name),
        )
        found += [file for file in files if _is_text(file)][:MAX_FILES] or [path]
    return found


def kept(paths: Iterable[Path], folder: Path) -> list[Path]:
    """``paths``, what comes from the standard input as a file in ``folder``: it is read twice.

    Raises:
        OSError: it cannot be kept.
    """
    found = []
    for path in paths:
        file = folder / "stdin" if path == STDIN else path
        if path == STDIN and not file.exists():
            with file.open("xb") as copy:
                shutil.copyfileobj(sys.stdin.buffer, copy, 1 << 20)
        found.append(file)
    return found


def _is_text(path: Path) -> bool:
    try:
        with path.open("rb") as stream:
            head = stream.read(4096)
    except OSError:
        return True  # whoever reads it says why not
    known = [*_MAGIC, *(bom for bom, _ in _BOMS)]
    return head.startswith(tuple(known)) or b"\0" not in head


def open_log(path: Path) -> BinaryIO:
    """``path`` as a binary stream of UTF-8, unpacked and decoded by what its first bytes say.

    Raises:
        OSError: it cannot be opened.
        Unavailable: no plain file.
    """
    if not stat.S_ISREG(path.stat().st_mode):  # a FIFO or a device would block or never end
        raise Unavailable(f"{path} is not a file")
    with path.open("rb") as stream:
        head = stream.read(6)
    if not head.startswith((*_MAGIC, *(bom for bom, _ in _BOMS))):
        return cast("BinaryIO", path.open("rb", buffering=0))
    return _unpacked(cast("BinaryIO", path.open("rb")))


def _unpacked(stream: BinaryIO) -> BinaryIO:
    """What is inside a stream; a packed one may hold UTF-16."""
    buffered = cast("io.BufferedReader", stream)
    head = buffered.peek(6)[:6]
    for magic, kind in _MAGIC.items():
        if head.startswith(magic):
            packed = _OPENERS[kind](buffered)
            return _unpacked(
                cast("BinaryIO", Packed(io.BufferedReader(packed, Packed.STEP), stream))
            )
    for bom, encoding in _BOMS:
        if head.startswith(bom):
            return cast("BinaryIO", Decoded(buffered, encoding))
    return stream


class Packed(io.RawIOBase):
    """An unpacked stream, read in small steps: a read that meets damage returns nothing of what
    came before it in that step."""

    STEP = 64 << 10

    def __init__(self, inner: BinaryIO, below: BinaryIO) -> None:
        self._inner, self._below = inner, below
        self._head = b""

    def readable(self) -> bool:
        return True

    def peek(self, size: int) -> bytes:
        self._head = self._head or self._inner.read(max(size, self.STEP))
        return self._head

    def read(self, size: int = -1) -> bytes:
        head, self._head = self._head, b""
        return head or self._inner.read(self.STEP if size < 0 else min(size, self.STEP))

    def close(self) -> None:
        self._inner.close()
        self._below.close()
        super().close()


class Decoded(io.RawIOBase):
    """A stream of another encoding as UTF-8; what is none of it becomes U+FFFD."""

    def __init__(self, stream: BinaryIO, encoding: str) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder(encoding)("replace")

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        """About ``size`` bytes; none at the end only."""
        while data := self._stream.read(size if size > 0 else 1 << 20):
            if text := self._decoder.decode(data):
                return text.encode("utf-8", "replace")
        return self._decoder.decode(b"", True).encode("utf-8", "replace")

    def close(self) -> None:
        self._stream.close()
        super().close()
