"""Questions that mmrepro itself puts to an index: which releases, single files, wheels
of commits.

uv resolves and installs, but lists no releases and keeps no wheels. An address may hold
a password: it is in the environment of mmrepro and its children, and in no file,
message or command line."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache, partial
from html import unescape
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urljoin, urlsplit

from mmrepro.base.errors import (
    EnvironmentBuildError,
    MmreproError,
    UnknownRelease,
    UsageError,
)
from mmrepro.base.machine import replacing, write_file
from mmrepro.engines.environments.releases import (
    EnvironmentPython,
    Release,
    best_wheel,
    end_of_day,
    interpreters,
    pythons,
)
from mmrepro.engines.environments.spec import EnvironmentSpec, Reason
from mmrepro.engines.environments.store import list_environments
from mmrepro.engines.environments.uv import Distribution, run_uv
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import (
    InvalidWheelFilename,
    canonicalize_name,
    parse_wheel_filename,
)
from packaging.version import Version
from pydantic import BaseModel, Field, ValidationError

if TYPE_CHECKING:
    import httpx2

_TIMEOUT_S = 30.0
_CHUNK = 1 << 20
JSON_PAGE = "application/vnd.pypi.simple.v1+json"
_NAME_THEM = "name the releases themselves, e.g. --releases 0.22.0,0.23.0"
INDEX_VARIABLE = "MMREPRO_COMMIT_INDEX"
"""Address of the wheels of commits; ``{commit}`` stands for the commit, which else
follows it."""
PACKAGES, COMMITS = "the package index", "the index of commits"

Logins = Mapping[str, tuple[str, str]]
"""Name and password by host."""


# -------------------------------------------------------------- addresses, pages, files


def indexes() -> list[str]:
    """Addresses of the indexes that uv uses, in its order. They may hold passwords."""
    # Without a requirement uv only prints its settings, and asks no index.
    text = run_uv(
        ["pip", "compile", "-q", "--emit-index-url", "-"], doing="looking for the index"
    )
    options = ("extra-index-url", "index-url")
    return [
        one
        for o in options
        for one in re.findall(rf"^--{o} (\S+)$", text, re.MULTILINE)
    ]


def logins() -> Logins:
    """Logins of the indexes that have one: the addresses of their files lack them."""
    found = [urlsplit(index) for index in indexes()]
    return {
        parts.hostname: (unquote(parts.username), unquote(parts.password or ""))
        for parts in reversed(found)
        if parts.hostname and parts.username
    }


def _unreachable(where: str, why: str) -> EnvironmentBuildError:
    return EnvironmentBuildError(
        f"{where[:1].upper()}{where[1:]} could not be asked: {why}.",
        hint="check --index, the network and the proxy",
    )


def _page(
    address: str, accept: str, refusal: Callable[[str], MmreproError]
) -> httpx2.Response | None:
    """A page of an index; None: it has no such page. Raises ``refusal`` of the
    reason."""
    import httpx2

    headers = {"Accept": accept}
    try:
        answer = httpx2.get(
            address, headers=headers, timeout=_TIMEOUT_S, follow_redirects=True
        )
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        # The error's text may have the address in it, and so a password.
        raise refusal(type(error).__name__) from None
    if answer.status_code not in (200, 404):
        raise refusal(f"it answers {answer.status_code}")
    return answer if answer.status_code == 200 else None


def fetch(
    file: Distribution,
    folder: Path,
    *,
    where: str = PACKAGES,
    logins: Logins | None = None,
) -> tuple[Path, str]:
    """Bring a file into ``folder``; return its path and SHA-256. A whole one is not
    fetched again.

    Args:
        where: the index in words, for the error.

    Raises:
        EnvironmentBuildError: it cannot be fetched, or its SHA-256 is not the announced
            one.
    """
    path = folder / file.filename
    if file.sha256 and path.is_file() and digest_of(path) == file.sha256:
        return path, file.sha256
    parts = urlsplit(file.address)
    if parts.scheme in ("http", "https"):
        _download(file, path, where, (logins or {}).get(parts.hostname or ""))
    else:  # an index that is a folder
        write_file(path, Path(unquote(parts.path)).read_bytes())
    digest = digest_of(path)
    if file.sha256 not in ("", digest):
        path.unlink()
        raise EnvironmentBuildError(
            (
                f"{file.filename} is not the file that {where} announces: its SHA-256 "
                "differs."
            ),
            hint="try again; if it stays so, the index is damaged",
        )
    return path, digest


def _download(
    file: Distribution, path: Path, where: str, login: tuple[str, str] | None
) -> None:
    import httpx2

    client = httpx2.Client(timeout=_TIMEOUT_S, follow_redirects=True, auth=login)
    try:
        with (
            client,
            client.stream("GET", file.address) as answer,
            replacing(path) as out,
        ):
            if answer.status_code != 200:
                raise _unreachable(
                    where, f"it answers {answer.status_code} for {file.filename}"
                )
            for chunk in answer.iter_bytes(_CHUNK):
                out.write(chunk)
    except httpx2.HTTPError as error:
        raise _unreachable(where, type(error).__name__) from None


def metadata_beside(wheel: Distribution, logins: Logins) -> str | None:
    """METADATA of a wheel, as an index serves it by itself (PEP 658); None: it does
    not."""
    import httpx2

    login = logins.get(urlsplit(wheel.address).hostname or "")
    address = wheel.address.partition("#")[0] + ".metadata"
    try:
        answer = httpx2.get(
            address, timeout=_TIMEOUT_S, follow_redirects=True, auth=login
        )
    except (httpx2.HTTPError, httpx2.InvalidURL):
        return None
    return answer.text if answer.status_code == 200 else None


def digest_of(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


# ------------------------------------------------------------- which releases there are


@dataclass(frozen=True, order=True)
class Listed:
    """One release that can be installed here."""

    parsed: Version
    version: str
    """As ``--release`` has it; the latest build of it: 0.11.1.post2 stands for
    0.11.1."""
    uploaded: datetime | None
    """When the first of its wheels came; None: the index does not say."""
    kernels: str = field(default="", compare=False)
    """The release that lends it compiled files: for this device it has no wheel; "":
    its own."""

    @property
    def base(self) -> str:
        """The version without the number of the build: ``0.11.1``."""
        return self.parsed.base_version


class File(BaseModel):
    """One file of a project on its page."""

    filename: str
    requires_python: str | None = Field(None, alias="requires-python")
    yanked: bool | str = False
    uploaded: datetime | None = Field(None, alias="upload-time")


class Page(BaseModel):
    """All files of a project (PEP 691)."""

    files: list[File]


def releases_of(spec: EnvironmentSpec, *, upstream: bool = True) -> list[Listed]:
    """The releases of the engine of ``spec``, oldest first, for its device; no
    pre-releases.

    Where somebody else repackages the engine, its own later releases count as well:
    their Python runs over the last repackaged kernels (overlay.py). ``upstream`` False
    leaves them out.

    The release of ``spec`` does not matter. An engine that comes with mmrepro has only
    that one. One request for the project's page: to walk from release to release with
    uv takes 10 s a step and misses a release that was built again (``.post2``).

    Raises:
        UnknownRelease: no index that uv uses has the project.
        EnvironmentBuildError: the index cannot be asked, or does not answer in JSON
            (PEP 691).
    """
    if spec.version:
        return [Listed(Version(spec.release), spec.release, None)]
    pythons = interpreters(spec)
    found = fitting(project_page(spec.project), spec.project, pythons)
    if upstream and spec.project != spec.engine and found:
        with contextlib.suppress(UnknownRelease):  # an index of one's own may lack it
            own = fitting(project_page(spec.engine), spec.engine, pythons)
            last = found[-1]
            later = (one for one in own if one.parsed > last.parsed)
            found += [replace(one, kernels=last.version) for one in later]
    return found


def project_page(project: str) -> Page:
    """All files of a project, on the first index that uv uses and that has it.

    Raises:
        UnknownRelease: no index has it.
        EnvironmentBuildError: the index cannot be asked, or does not answer in JSON
            (PEP 691).
    """

    def refusal(why: str) -> EnvironmentBuildError:
        text = (
            f"The package index could not be asked for the releases of {project}: "
            f"{why}."
        )
        return EnvironmentBuildError(text, hint=_NAME_THEM)

    if os.environ.get("UV_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        raise refusal("uv is set to work offline")
    for index in indexes():
        address = f"{index.rstrip('/')}/{canonicalize_name(project)}/"
        if (answer := _page(address, JSON_PAGE, refusal)) is None:
            continue
        try:
            return Page.model_validate_json(answer.content)
        except ValidationError:
            raise EnvironmentBuildError(
                (
                    f"The package index does not list the releases of {project} as "
                    "JSON (PEP 691)."
                ),
                hint=_NAME_THEM,
            ) from None
    raise UnknownRelease(
        f"The package index has no project {project}.",
        hint="check the index that uv uses",
    )


def fitting(
    page: Page, project: str, pythons: Sequence[EnvironmentPython]
) -> list[Listed]:
    """The releases with a wheel for one of ``pythons``: the latest build of each."""
    found: dict[Version, datetime | None] = {}
    for file in page.files:
        version = _version_of(file, project, pythons)
        if version is None:
            continue
        times = [t for t in (file.uploaded, found.get(version)) if t is not None]
        in_utc = [t if t.tzinfo else t.replace(tzinfo=UTC) for t in times]
        found[version] = min(in_utc, default=None)
    latest = {version.base_version: version for version in sorted(found)}
    return [Listed(v, str(v), found[v]) for v in sorted(latest.values())]


def _version_of(
    file: File, project: str, pythons: Sequence[EnvironmentPython]
) -> Version | None:
    """The version of a file that can be installed with one of ``pythons``."""
    if file.yanked is not False:  # a text is the reason
        return None
    try:
        name, version, _, tags = parse_wheel_filename(file.filename)
        allowed = SpecifierSet(file.requires_python or "")
    except (InvalidWheelFilename, InvalidSpecifier):
        return None
    if name != canonicalize_name(project) or version.is_prerelease or version.local:
        return None
    fits = any(
        tags & python.tags and allowed.contains(python.version) for python in pythons
    )
    return version if fits else None


# ------------------------------------------------------------- wheels of single commits


def check_index(address: str) -> None:
    """Raises UsageError: ``address`` is no address of an index of commits."""
    if not address.startswith(("http://", "https://")):
        raise UsageError(
            "Wheels of commits need the address of their index.",
            hint=(
                f"--index 'https://HOST/{{commit}}', or {INDEX_VARIABLE} in the "
                "environment"
            ),
        )


def commit_spec(
    spec_of: Callable[[str], EnvironmentSpec], commit: str, date: str = ""
) -> EnvironmentSpec:
    """The environment of an engine at ``commit``, whose version is the wheel's own.

    The index is asked where no environment on disk has that wheel.

    Args:
        spec_of: returns the environment of a release of that engine.
        date: of the commit, RFC 3339: its requirements are resolved as of that day;
            empty: as of today.

    Raises:
        UsageError: not a commit, or not a date.
        UnknownRelease: the index has no wheel of it for this machine.
        EnvironmentBuildError: the index cannot be asked.
    """
    if not re.fullmatch(r"[0-9a-f]{7,64}", commit):
        raise UsageError(
            f"{commit[:40]!r} is no commit.",
            hint="7 to 64 hexadecimal digits, as git prints them",
        )
    if date:
        try:
            made = datetime.fromisoformat(date)
        except ValueError as error:
            raise UsageError(
                f"{date[:40]!r} is no date of a commit.",
                hint="e.g. 2026-06-14T12:00:00+00:00",
            ) from error
        date = end_of_day(made if made.tzinfo else made.replace(tzinfo=UTC)).isoformat()
    general = spec_of("0.0")
    wanted = (general.engine, general.device, commit)
    for facts in (stored.manifest for stored in list_environments(sizes=False)):
        if (facts.engine, facts.device, facts.commit) == wanted:
            project, filename = facts.project, facts.wheel.filename
            break
    else:
        filename = _wheel_of(general, commit)[1].filename
        project = str(parse_wheel_filename(filename)[0])
    version = parse_wheel_filename(filename)[1]
    spec = spec_of(version.public)
    if project != spec.project:  # the engine's own name: it needs no other
        spec = replace(spec, project=project, dist_aliases=())
    return replace(
        spec,
        commit=commit,
        version=str(version),
        dated_by=project,
        origin=f"the wheel of commit {commit[:12]}, from the index that was given",
        cutoff=date,
    )


def find_commit(spec: EnvironmentSpec) -> Release:
    """As ``releases.find``, for the environment of a commit."""
    python, wheel = _wheel_of(spec, spec.commit)
    if spec.cutoff:
        cutoff = datetime.fromisoformat(spec.cutoff)
        return Release(python, wheel, cutoff, cutoff, [])
    cutoff = end_of_day(datetime.now(UTC))  # such an index gives no upload times
    why = "the commit's own date was not given"
    return Release(
        python, wheel, cutoff, cutoff, [Reason("resolution date", "today", why)]
    )


def _wheel_of(spec: EnvironmentSpec, commit: str) -> tuple[str, Distribution]:
    """The interpreter that the commit's wheel is for, as uv is given it, and the
    wheel."""
    address = os.environ.get(INDEX_VARIABLE, "")
    check_index(address)
    names = tuple(
        dict.fromkeys(canonicalize_name(n) for n in (spec.project, spec.engine))
    )
    files = _files(address, commit, names)
    for name in names:
        for python, interpreter in zip(pythons(spec), interpreters(spec), strict=True):
            own = [file for file in files if _is_of(file, [name])]
            fits = [
                f for f in own if parse_wheel_filename(f.filename)[3] & interpreter.tags
            ]
            if fits:
                return python, best_wheel(fits)
    raise UnknownRelease(
        f"The index of commits has no wheel of {' or '.join(names)} for commit "
        f"{commit[:12]} and this machine.",
        hint="another commit, or another --index",
    )


@lru_cache(maxsize=64)
def _files(
    address: str, commit: str, names: tuple[str, ...]
) -> tuple[Distribution, ...]:
    """All wheels in the commit's folder: below the project's name, or flat."""
    base = address if "{commit}" in address else address.rstrip("/") + "/{commit}"
    base = base.replace("{commit}", commit).rstrip("/")
    found: list[Distribution] = []
    for place in (*(f"{base}/{name}/" for name in names), f"{base}/"):
        answer = _page(place, "text/html", partial(_unreachable, COMMITS))
        if answer is not None:
            found += _linked(answer.text, str(answer.url))
            if any(_is_of(wheel, names) for wheel in found):
                break
    return tuple(found)


def _linked(text: str, place: str) -> Iterator[Distribution]:
    """The wheels that a page of HTML links to (PEP 503)."""
    for href in re.findall(
        r"""<a\s[^>]*?href\s*=\s*["']([^"']+)""", text, re.IGNORECASE
    ):
        address = urljoin(place, unescape(href))
        parts = urlsplit(address)
        filename = unquote(parts.path.rpartition("/")[2])
        digest = re.fullmatch(r"sha256=([0-9a-f]{64})", parts.fragment)
        if filename.endswith(".whl") and parts.scheme in ("http", "https"):
            own = digest[1] if digest else ""
            yield Distribution(filename, None, own, address=address.partition("#")[0])


def _is_of(wheel: Distribution, names: Iterable[str]) -> bool:
    try:
        return parse_wheel_filename(wheel.filename)[0] in names
    except InvalidWheelFilename:
        return False
