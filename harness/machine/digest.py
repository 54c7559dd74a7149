"""Digests of files, for keys that tell whether two runs are the same experiment."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

FileState = tuple[int, int, int]


def digest(files: Iterable[Path]) -> str:
    """Of names and contents; a file that cannot be read counts as that."""
    total = hashlib.sha256()
    for path in files:
        total.update(path.name.encode() + b"\0")
        try:
            total.update(_file_digest(path, state(path)))
        except OSError:
            total.update(b"unreadable")
    return total.hexdigest()[:16]


@lru_cache(maxsize=4096)
def _file_digest(path: Path, state: FileState) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def state(path: Path) -> FileState:
    """What changes when a file does. Raises OSError."""
    facts = path.stat()
    return facts.st_mtime_ns, facts.st_size, facts.st_ino
