"""Log files: with their rotated predecessors, packed or not, in any Unicode; a pipe;
folders."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import os
import re
import shutil
import stat
import sys
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast

from mmrepro.base.machine import FilesBelow, files_below, open_to_read
from mmrepro.probes.base import Unavailable

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MAX_FILES = 1000
_BLOCK = 512
"""Bytes of which stat(2) counts."""
LARGE_HOLES = 1 << 20
"""Bytes of a file that are on no disk, from which on it is read without its holes."""
MOST_OF_SPARSE = 1 << 30
STDIN = Path("-")
"""The standard input, as it is written among paths."""
BROKEN = (OSError, EOFError, lzma.LZMAError, zlib.error, zstd.ZstdError)
"""What reading a damaged file raises."""

_MAGIC = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bz2",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
}
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
    """``path`` and as many of its predecessors, oldest first, as have ``max_bytes``
    together.

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

    A log is a file that is packed, or has no byte 0 in its beginning (but for UTF-16
    and UTF-32)."""
    return logs_below(paths).files


def logs_below(paths: Iterable[Path]) -> FilesBelow:
    """As :func:`logs_in`, with sentences on what a bound left out."""
    found = FilesBelow()
    for path in paths:
        if not path.is_dir():
            found.files.append(path)
            continue
        below = files_below(path)
        logs = [
            file for file in sorted(below.files, key=_last_written) if _is_text(file)
        ]
        found.files += logs[:MAX_FILES] or [path]
        found.left_out += below.left_out
        if len(logs) > MAX_FILES:
            found.left_out.append(
                f"of {len(logs):,} logs in {path} {MAX_FILES:,} are read"
            )
    return found


def _last_written(file: Path) -> tuple[float, str]:
    try:
        return file.stat().st_mtime, file.name
    except OSError:
        return 0.0, file.name  # it went meanwhile


def kept(paths: Iterable[Path], folder: Path) -> list[Path]:
    """``paths``, what comes from the standard input as a file in ``folder``: it is read
    twice.

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
        with open_to_read(path) as stream:
            head = stream.read(4096)
    except OSError:
        return True  # whoever reads it says why not
    known = [*_MAGIC, *(bom for bom, _ in _BOMS)]
    return head.startswith(tuple(known)) or b"\0" not in head


def open_log(path: Path) -> BinaryIO:
    """``path`` as a binary stream of UTF-8, unpacked and decoded by what its first
    bytes say.

    Raises:
        OSError: it cannot be opened.
        Unavailable: no plain file.
    """
    # A FIFO or a device would block or never end.
    if not stat.S_ISREG(path.stat().st_mode):
        raise Unavailable(f"{path} is not a file")
    with open_to_read(path) as stream:
        head = stream.read(6)
        size = os.fstat(stream.fileno())
    if size.st_size - size.st_blocks * _BLOCK > LARGE_HOLES:
        return cast("BinaryIO", WithoutHoles(open_to_read(path).detach(), size.st_size))
    if not head.startswith((*_MAGIC, *(bom for bom, _ in _BOMS))):
        return cast("BinaryIO", open_to_read(path).detach())
    unpacked = _unpacked(cast("BinaryIO", open_to_read(path)))
    return (
        cast("BinaryIO", BothEnds(unpacked))
        if isinstance(unpacked, Packed)
        else unpacked
    )


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
    """An unpacked stream, read in small steps: a read that meets damage returns nothing
    of what came before it in that step."""

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


class BothEnds(io.RawIOBase):
    """The beginning and the end of what is packed: a small file may hold more than can
    be read.

    Attributes:
        left_out: a clause on what is not read of it; "": all is.
    """

    HEAD, TAIL = 32 << 20, 96 << 20
    MOST_S = 10.0
    """For unpacking what is passed over."""

    def __init__(self, inner: BinaryIO) -> None:
        self._inner = inner
        self._head_left = self.HEAD
        self._tail: deque[bytes] | None = None
        self._damage: Exception | None = None
        self.left_out = ""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if self._head_left > 0:
            piece = self._inner.read(size)
            self._head_left -= len(piece)
            return piece
        if self._tail is None:
            self._tail = self._end()
        if self._tail:
            return self._tail.popleft()
        if self._damage is not None:
            damage, self._damage = self._damage, None
            raise damage
        return b""

    def _end(self) -> deque[bytes]:
        """Unpacks the rest, and keeps the last of it."""
        kept: deque[bytes] = deque()
        held = passed = 0
        due = time.monotonic() + self.MOST_S
        try:
            while piece := self._inner.read(Packed.STEP):
                kept.append(piece)
                held += len(piece)
                while held - len(kept[0]) >= self.TAIL:
                    passed += len(kept[0])
                    held -= len(kept.popleft())
                if time.monotonic() > due:
                    self.left_out = (
                        f"what is beyond its first {_mib(self.HEAD + passed + held)}; "
                    )
                    break
        except BROKEN as error:
            self._damage = error
        if passed:
            kept.appendleft(b"\n")
            self.left_out += f"{_mib(passed)} in its middle"
        if self.left_out:
            ends = (
                f"the first {_mib(self.HEAD)} and the last {_mib(held)} that were "
                "unpacked"
            )
            self.left_out = f"only {ends} were read, without {self.left_out}".rstrip(
                "; "
            )
        return kept

    def close(self) -> None:
        self._inner.close()
        super().close()


def _mib(count: int) -> str:
    return f"{count >> 20:,} MiB"


class WithoutHoles(io.RawIOBase):
    """The data of a file that has holes; what a hole would be read as is passed
    over."""

    def __init__(self, below: io.RawIOBase, size: int) -> None:
        self._below, self._size = below, size
        self._at = self._data_end = 0
        self._holes = 0
        self._read = 0

    @property
    def left_out(self) -> str:
        parts = [f"{_mib(self._holes)} of holes in it"] if self._holes else []
        if self._read >= MOST_OF_SPARSE:
            parts.append(f"what is beyond its first {_mib(MOST_OF_SPARSE)}")
        return f"it was read without {' and '.join(parts)}" if parts else ""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if self._read >= MOST_OF_SPARSE:
            return b""
        handle = self._below.fileno()
        if self._at >= self._data_end:
            begin = self._next_data(handle)
            self._holes += begin - self._at
            jumped = begin > self._at > 0
            self._at = begin
            if begin >= self._size:
                return b""
            self._data_end = os.lseek(handle, begin, os.SEEK_HOLE)
            if jumped:
                return b"\n"
        wanted = min(size if size >= 0 else 1 << 20, self._data_end - self._at)
        data = os.pread(handle, wanted, self._at)
        self._at += len(data)
        self._read += len(data)
        return data

    def _next_data(self, handle: int) -> int:
        try:
            return os.lseek(handle, self._at, os.SEEK_DATA)
        except OSError:  # there is none any more
            return self._size

    def close(self) -> None:
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
