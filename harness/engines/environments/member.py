"""One file out of a wheel on the package index: the rest is not downloaded.

A zip archive has its list of members at its end, so a few requests for ranges of bytes
are enough. vLLM's Rust front end is 60 MB of a wheel of 340."""

from __future__ import annotations

import io
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from mmrepro.base.errors import EnvironmentBuildError
from mmrepro.base.machine import replacing
from mmrepro.engines.environments.index import logins
from mmrepro.engines.environments.uv import Distribution

if TYPE_CHECKING:
    import httpx2

_TIMEOUT_S = 60.0
_READ_AHEAD = 8 << 20
"""Bytes of one request: few of them for a large member, little more than the list of
members for a small one."""
_CHUNK = 1 << 20
_PARTIAL_CONTENT = 206


def fetch_member(wheel: Distribution, member: str, path: Path) -> None:
    """Write ``member`` of ``wheel`` to ``path``, whole or not at all.

    Raises:
        EnvironmentBuildError: the index cannot be reached or serves no parts of files;
            the wheel has no such member, or is damaged.
    """
    import httpx2

    try:
        with (
            _opened(wheel) as stream,
            zipfile.ZipFile(stream) as archive,
            archive.open(member) as content,
            replacing(path) as out,
        ):
            # zipfile checks the member's CRC at its end.
            shutil.copyfileobj(content, out, _CHUNK)
    except KeyError as error:
        raise EnvironmentBuildError(
            f"{wheel.filename} has no {member}.",
            hint="take a release that has it",
        ) from error
    except httpx2.HTTPError as error:
        # The error's text may have the address in it, and so a password.
        raise _unreadable(wheel, type(error).__name__) from None
    except (OSError, zipfile.BadZipFile) as error:
        raise _unreadable(wheel, str(error)) from None


def _unreadable(wheel: Distribution, why: str) -> EnvironmentBuildError:
    return EnvironmentBuildError(
        f"{wheel.filename} cannot be read on the package index: {why}.",
        hint="check the network and the proxy",
    )


@contextmanager
def _opened(wheel: Distribution) -> Iterator[IO[bytes]]:
    """Open ``wheel`` where it lies: on a server, or in an index that is a folder."""
    import httpx2

    parts = urlsplit(wheel.address)
    if parts.scheme not in ("http", "https"):
        with Path(unquote(parts.path)).open("rb") as stream:
            yield stream
        return
    login = logins().get(parts.hostname or "")
    with httpx2.Client(timeout=_TIMEOUT_S, follow_redirects=True, auth=login) as client:
        yield io.BufferedReader(_RemoteFile(client, wheel), _READ_AHEAD)


class _RemoteFile(io.RawIOBase):
    """A file on a server, read in ranges of bytes (RFC 9110, section 14)."""

    def __init__(self, client: httpx2.Client, wheel: Distribution) -> None:
        self._client = client
        self._wheel = wheel
        self._at = 0
        self._size = wheel.size or self._measured()

    def _measured(self) -> int:
        """The file's size: an index need not announce it."""
        content_range = self._range(0, 0).headers.get("content-range", "")
        return int(content_range.rpartition("/")[2])

    def _range(self, first: int, last: int) -> httpx2.Response:
        """Return the answer with the bytes from ``first`` to ``last``. Raises
        EnvironmentBuildError: the server sends something else."""
        # Without this header a server may send the bytes compressed.
        headers = {"Range": f"bytes={first}-{last}", "Accept-Encoding": "identity"}
        address = self._wheel.address.partition("#")[0]
        # A server that ignores the header sends the whole file: it is not read.
        with self._client.stream("GET", address, headers=headers) as answer:
            if answer.status_code != _PARTIAL_CONTENT:
                # No OSError: zipfile would take it for a damaged archive.
                why = f"asked for a part of it, the index answers {answer.status_code}"
                raise _unreadable(self._wheel, why)
            answer.read()
        return answer

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}
        self._at = base[whence] + offset
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        wanted = min(len(buffer), self._size - self._at)
        if wanted <= 0:
            return 0
        content = self._range(self._at, self._at + wanted - 1).content
        if len(content) != wanted:
            raise _unreadable(self._wheel, "fewer bytes came than were asked for")
        buffer[:wanted] = content
        self._at += wanted
        return wanted
