"""One digest of all files below a folder: the same, as long as nobody changed, added or
took one.

usage: python3 cache_digest.py FOLDER [DIGEST]   (with DIGEST: exit 1 where it is another)

A list of hashes inside of the folder would be changed together with what it lists.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
from pathlib import Path

CHUNK = 1 << 20


class Odd(Exception):
    """Something that no environment has: a device, a socket, a FIFO."""


def digest(folder: Path) -> tuple[str, int]:
    """The digest, and how many entries there are. Raises Odd, OSError."""
    whole = hashlib.sha256()
    entries = 0
    waiting = [b""]
    while waiting:
        inside = waiting.pop()
        for name in sorted(os.listdir(os.path.join(os.fsencode(folder), inside))):  # noqa: PTH118, PTH208
            path = os.path.join(inside, name)  # noqa: PTH118 (names need not be text)
            kind, content = _facts(os.path.join(os.fsencode(folder), path))  # noqa: PTH118
            if kind == b"folder":
                waiting.append(path)
            # The length before each part: no two trees have the same bytes in a row.
            for part in (path, kind, content):
                whole.update(b"%d:" % len(part))
                whole.update(part)
            entries += 1
    return f"sha256:{whole.hexdigest()}", entries


def _facts(path: bytes) -> tuple[bytes, bytes]:
    """What it is, and a hash of its content; of a link, where it leads."""
    mode = os.lstat(path).st_mode
    if stat.S_ISLNK(mode):
        return b"link", os.readlink(path)  # noqa: PTH115
    if stat.S_ISDIR(mode):
        return b"folder", b""
    if not stat.S_ISREG(mode):
        raise Odd(f"{os.fsdecode(path)!a} is no file, folder or link.")
    content = hashlib.sha256()
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:  # noqa: PTH123
        while chunk := file.read(CHUNK):
            content.update(chunk)
    executable = b"program" if mode & stat.S_IXUSR else b"file"
    return executable, content.digest()


def main(folder: str, wanted: str = "") -> None:
    try:
        found, entries = digest(Path(folder))
    except (Odd, OSError) as error:
        sys.exit(f"::error::The environments cannot be verified: {error}")
    if not wanted:
        print(found)
    elif found != wanted:
        sys.exit(
            "::error::The environments are not those whose digest the workflow has."
        )
    else:
        print(f"{entries} files and folders are as they were built.")


if __name__ == "__main__":
    main(*sys.argv[1:])
