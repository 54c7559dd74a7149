"""An incident's folder on its way from one machine to another: whole, or not at all."""

from __future__ import annotations

import io
import shutil
import tarfile
import zlib
from pathlib import Path

from mmrepro.base import units
from mmrepro.errors import MmreproError

LIMIT_BYTES = 512 << 20
"""Of an incident's files together. One of a usual run has less than 10 MiB."""
LIMIT_FILES = 20_000


class NotCarried(MmreproError):
    """An incident that cannot be brought."""


def packed(folder: Path, limit: int = LIMIT_BYTES) -> bytes:
    """Its files and folders; no links, sockets or devices.

    Raises:
        NotCarried: it is too large, or cannot be read.
    """
    try:
        size = sum(path.lstat().st_size for path in folder.rglob("*"))
        if size > limit:
            raise NotCarried(
                f"Its incident has {units.size(size)}; up to {units.size(limit)} are brought."
            )
        target = io.BytesIO()
        with tarfile.open(fileobj=target, mode="w:gz", compresslevel=1) as tar:
            tar.add(folder, arcname=".", filter=_plain)
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise NotCarried(f"Its incident could not be read: {why}.") from error
    return target.getvalue()


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Without names of users and machines' ids; None: it is left out."""
    if not (member.isreg() or member.isdir()):
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def unpacked(data: bytes, folder: Path, limit: int = LIMIT_BYTES) -> None:
    """Put it at ``folder``, in place of what is there.

    Raises:
        NotCarried: it is no such archive, too large, or would be written elsewhere; ``folder`` is
            not there then.
    """
    shutil.rmtree(folder, ignore_errors=True)
    coming = folder.with_name(f"{folder.name}.coming")
    shutil.rmtree(coming, ignore_errors=True)
    try:
        coming.mkdir(parents=True)
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as tar:
            _bounded(tar, limit)
            tar.extractall(coming, filter="data")
        coming.rename(folder)
    except (OSError, EOFError, ValueError, tarfile.TarError, zlib.error) as error:
        shutil.rmtree(coming, ignore_errors=True)
        why = getattr(error, "strerror", None) or type(error).__name__
        raise NotCarried(f"Its incident did not arrive whole: {why}.") from error
    except NotCarried:
        shutil.rmtree(coming, ignore_errors=True)
        raise


def _bounded(tar: tarfile.TarFile, limit: int) -> None:
    size = number = 0
    for member in tar:
        size, number = size + member.size, number + 1
        if size > limit or number > LIMIT_FILES:
            raise NotCarried("Its incident is too large.")
