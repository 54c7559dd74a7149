"""Files that users name: read within bounds, written whole or not at all.

Only a plain file is ever written over: a link, a FIFO, a socket or a device that stands there is
somebody else's, and a rename would destroy it, as root a device node too. A link in the path of
the *folder* is followed: that is where its user wants the file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, Final

from mmrepro.base import units
from mmrepro.errors import UsageError

MAX_TOML_BYTES: Final = 4 << 20
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


def open_to_read(path: Path) -> BufferedReader:
    """The plain file ``path``, or one that it is a link to.

    Raises:
        OSError: it cannot be opened, or is no plain file; ``strerror`` says which.
    """
    kind = stat.S_IFMT(path.stat().st_mode)
    if kind != stat.S_IFREG:  # opening a FIFO waits for ever
        raise OSError(errno.EINVAL, f"it is {_KINDS.get(kind, 'no file')}", path)
    return path.open("rb")


def read_file(path: Path, most: int) -> bytes:
    """The content of ``path``. Raises OSError, as above, and where it has over ``most`` bytes."""
    with open_to_read(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it is too large: more than {units.size(most)}", path)
    return content


def read_toml(path: Path, hint: str = "") -> dict[str, Any]:
    """Return the document of a TOML file. Raises UsageError: it cannot be read, or is none."""
    import tomllib

    try:
        return tomllib.loads(read_file(path, MAX_TOML_BYTES).decode())
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not valid TOML: {error}.", hint=hint) from error


def is_file(path: Path) -> bool:
    """Whether a plain file can be seen there; whoever opens one that cannot is told why."""
    return os.path.isfile(path)  # noqa: PTH113  (Path.is_file raises where a folder is closed to us)


def is_folder(path: Path) -> bool:
    """Whether a folder can be seen there."""
    return os.path.isdir(path)  # noqa: PTH112


def is_there(path: Path) -> bool:
    """Whether ``path`` can be seen; one that cannot fails later, when it is made, with a reason."""
    return os.path.exists(path)  # noqa: PTH110  (Path.exists raises where a folder is closed to us)


def refuse_other_kinds(path: Path) -> None:
    """Raises OSError: ``path`` is there and is no plain file."""
    try:
        kind = stat.S_IFMT(path.lstat().st_mode)
    except FileNotFoundError:
        return
    if kind != stat.S_IFREG:
        what = _KINDS.get(kind, "no file")
        raise OSError(errno.EEXIST, f"it is {what}, and only a plain file is written over", path)
