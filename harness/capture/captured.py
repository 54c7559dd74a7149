"""What reading a recording gives: a case, and the bytes of its pictures, kept on disk."""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from mmrepro.case.model import Case
from mmrepro.machine.files import write_file


class Contents(Mapping[str, bytes]):
    """Pictures by the SHA-256 of their bytes, each a file of its own: memory holds none.

    Args:
        folder: where they lie, or shall lie. None: a temporary one, gone with this object.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="mmrepro-") if folder is None else None
        self.folder = (
            Path(self._temporary.name) if self._temporary is not None else Path(folder or "")
        )
        self._sizes: dict[str, int] = {}

    def add(self, data: bytes) -> str:
        """Keep ``data``; returns its SHA-256."""
        digest = hashlib.sha256(data).hexdigest()
        if digest not in self._sizes:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_file(self.folder / digest, data)
            self._sizes[digest] = len(data)
        return digest

    def has(self, digests: Iterable[str]) -> None:
        """These lie in the folder already."""
        for digest in digests:
            with contextlib.suppress(OSError):
                self._sizes[digest] = (self.folder / digest).stat().st_size

    def keep(self, digests: Collection[str]) -> None:
        """Remove all others."""
        for digest in self._sizes.keys() - set(digests):
            (self.folder / digest).unlink(missing_ok=True)
            del self._sizes[digest]

    def __getitem__(self, sha256: str) -> bytes:
        if sha256 not in self._sizes:
            raise KeyError(sha256)
        return (self.folder / sha256).read_bytes()

    def __iter__(self) -> Iterator[str]:
        return iter(self._sizes)

    def __len__(self) -> int:
        return len(self._sizes)


@dataclass(frozen=True)
class Captured:
    """A case, and the bytes of the pictures that it keeps by content."""

    case: Case
    contents: Mapping[str, bytes]
