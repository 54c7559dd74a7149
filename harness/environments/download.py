"""Files of an index, fetched by ourselves: uv installs wheels, but keeps none.

An address may hold a password: it stands in no message, and is stored nowhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from mmrepro.environments.uv import Distribution
from mmrepro.errors import EnvironmentBuildError
from mmrepro.machine.files import replacing, write_file

if TYPE_CHECKING:
    import httpx2

PAGE_S = 30.0
CHUNK = 1 << 20
Logins = Mapping[str, tuple[str, str]]
"""Name and password by host; see listing.logins."""


def fetch(
    file: Distribution, folder: Path, *, where: str, logins: Logins | None = None
) -> tuple[Path, str]:
    """The file in ``folder``, and its SHA-256. One that is there and right is not fetched again.

    Args:
        where: what it comes from, in words, for the error.

    Raises:
        EnvironmentBuildError: it cannot be fetched, or is not the one that is announced.
    """
    path = folder / file.filename
    if file.sha256 and path.is_file() and digest_of(path) == file.sha256:
        return path, file.sha256
    if (local := local_path(file.address)) is not None:
        write_file(path, local.read_bytes())
        digest = digest_of(path)
    else:
        digest = _stream(file, path, where, logins or {})
    if file.sha256 not in ("", digest):
        path.unlink()
        raise EnvironmentBuildError(
            f"{file.filename} is not the file that {where} announces: its SHA-256 differs.",
            hint="try again; if it stays so, the index is damaged",
        )
    return path, digest


def read_beside(file: Distribution, ending: str, logins: Logins) -> str | None:
    """Text of the address with ``ending`` after it (PEP 658); None: it is not served."""
    import httpx2

    if local_path(file.address) is not None:
        return None
    try:
        with _client(file, logins) as client:
            answer = client.get(file.address.partition("#")[0] + ending)
    except (httpx2.HTTPError, httpx2.InvalidURL):
        return None
    return answer.text if answer.status_code == 200 else None


def digest_of(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def local_path(address: str) -> Path | None:
    """The file that an address without a network names."""
    parts = urlsplit(address)
    if parts.scheme in ("http", "https"):
        return None
    return Path(unquote(parts.path)) if parts.scheme == "file" else Path(address)


def unreachable(where: str, why: str) -> EnvironmentBuildError:
    return EnvironmentBuildError(
        f"{where[:1].upper()}{where[1:]} could not be asked: {why}.",
        hint="check --index, the network and the proxy",
    )


def _client(file: Distribution, logins: Logins) -> httpx2.Client:
    import httpx2

    login = logins.get(urlsplit(file.address).hostname or "")
    return httpx2.Client(timeout=PAGE_S, follow_redirects=True, auth=login)


def _stream(file: Distribution, path: Path, where: str, logins: Logins) -> str:
    import httpx2

    digest = hashlib.sha256()
    try:
        with (
            _client(file, logins) as client,
            client.stream("GET", file.address) as answer,
            replacing(path) as out,
        ):
            if answer.status_code != 200:
                raise unreachable(where, f"it answers {answer.status_code} for {file.filename}")
            for chunk in answer.iter_bytes(CHUNK):
                digest.update(chunk)
                out.write(chunk)
    except httpx2.HTTPError as error:
        # Its text may have the address in it, and that a password.
        raise unreachable(where, type(error).__name__) from None
    return digest.hexdigest()
