"""Writing files: whole or not at all, and only ever in the place of a plain file.

A link, a FIFO, a socket or a device that stands where a file shall go is somebody else's, and a
rename over it would destroy it, as root a device node too. A link in the path of the *folder* is
followed: that is where its user wants the file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

_KINDS: Final = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A new file, which takes the place of ``path`` when the block ends, and not if it raises.

    Raises:
        OSError: it cannot be written, or something that is no plain file is there; ``strerror``
            says which.
    """
    refuse_other_kinds(path)  # before somebody spends a minute on the content
    temporary = path.with_name(f".mmrepro-{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as file:
            yield file
        refuse_other_kinds(path)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def write_file(path: Path, content: str | bytes) -> None:
    """Write ``path`` whole or not at all, a text as UTF-8. Raises OSError, as ``replacing``."""
    with replacing(path) as file:
        file.write(content.encode("utf-8", "replace") if isinstance(content, str) else content)


def open_plain(path: Path, flags: int) -> int:
    """A handle of the plain file ``path``, which is made if there is none.

    Raises:
        OSError: it cannot be opened, or is no plain file; ``strerror`` says which.
    """
    refuse_other_kinds(path)  # opening a FIFO waits, opening a device may act
    return os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)


def refuse_other_kinds(path: Path) -> None:
    """Raises OSError: ``path`` is there and is no plain file."""
    try:
        kind = stat.S_IFMT(path.lstat().st_mode)
    except FileNotFoundError:
        return
    if kind != stat.S_IFREG:
        what = _KINDS.get(kind, "no file")
        raise OSError(errno.EEXIST, f"it is {what}, and only a plain file is written over", path)
