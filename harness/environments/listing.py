"""Which releases of an engine the package index has for this machine.

uv is asked where it looks for packages, and the index for its one page of the project (PEP 691):
one request. Walking from release to release with uv takes 10 s a step and never sees a release
that was built again (``.post2``).
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import unquote, urlsplit

from mmrepro.environments.releases import pythons
from mmrepro.environments.spec import EnvironmentSpec
from mmrepro.environments.uv import UvFailed, explain, run_uv
from mmrepro.errors import EnvironmentBuildError, UnknownRelease
from packaging import tags
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version
from pydantic import BaseModel, Field, ValidationError

JSON_PAGE = "application/vnd.pypi.simple.v1+json"
PAGE_S = 30.0
NAME_THEM = "name the releases themselves, e.g. --releases 0.22.0,0.23.0"


@dataclass(frozen=True, order=True)
class Listed:
    """One release that can be installed here."""

    parsed: Version
    version: str
    """As ``--release`` has it; the latest build of it: 0.11.1.post2 stands for 0.11.1."""
    uploaded: datetime | None
    """When the first of its wheels came; None: the index does not say."""

    @property
    def base(self) -> str:
        """Without the number of the build: ``0.11.1``."""
        return self.parsed.base_version


class File(BaseModel):
    """One file of a project, as an index tells it."""

    filename: str
    requires_python: str | None = Field(None, alias="requires-python")
    yanked: bool | str = False
    uploaded: datetime | None = Field(None, alias="upload-time")


class Page(BaseModel):
    """All files of a project."""

    files: list[File]


@dataclass(frozen=True)
class Interpreter:
    """A Python that an environment may be made with, and the wheels that it takes."""

    version: str
    tags: frozenset[tags.Tag]


def releases_of(spec: EnvironmentSpec) -> list[Listed]:
    """The releases of the engine of ``spec``, oldest first, for its device; no pre-releases.

    Which release ``spec`` is of does not matter. An engine that comes with mmrepro has the one.

    Raises:
        UnknownRelease: no index that uv uses has the project.
        EnvironmentBuildError: the index cannot be asked, or does not answer in JSON (PEP 691).
    """
    if spec.version:
        return [Listed(Version(spec.release), spec.release, None)]
    return fitting(_page(spec.project), spec.project, interpreters(spec))


def fitting(page: Page, project: str, pythons: Sequence[Interpreter]) -> list[Listed]:
    """The releases with a wheel for one of ``pythons``: of each its latest build."""
    found: dict[Version, datetime | None] = {}
    for file in page.files:
        version = _fits(file, project, pythons)
        if version is None:
            continue
        times = [t for t in (file.uploaded, found.get(version)) if t is not None]
        found[version] = min(times, key=_utc, default=None)
    latest: dict[str, Version] = {}
    for version in sorted(found):
        latest[version.base_version] = version
    return [Listed(v, str(v), found[v]) for v in sorted(latest.values())]


def interpreters(spec: EnvironmentSpec) -> list[Interpreter]:
    """Those that an environment of ``spec`` may be made with."""
    made = []
    platforms = list(tags.platform_tags())
    for python in pythons(spec):
        if python == sys.executable:
            own = ".".join(map(str, sys.version_info[:3]))
            made.append(Interpreter(own, frozenset(tags.sys_tags())))
            continue
        number = tuple(int(part) for part in python.split(".")[:2])
        name = f"cp{number[0]}{number[1]}"
        taken: Iterable[tags.Tag] = [
            *tags.cpython_tags(number, platforms=platforms),
            *tags.compatible_tags(number, name, platforms=platforms),
        ]
        made.append(Interpreter(python, frozenset(taken)))
    return made


def _fits(file: File, project: str, pythons: Sequence[Interpreter]) -> Version | None:
    if file.yanked is not False:  # a text is the reason
        return None
    try:
        name, version, _, wheel_tags = parse_wheel_filename(file.filename)
        allowed = SpecifierSet(file.requires_python or "")
    except (InvalidWheelFilename, InvalidSpecifier):
        return None
    if name != canonicalize_name(project) or version.is_prerelease or version.local:
        return None
    for python in pythons:
        if wheel_tags & python.tags and allowed.contains(python.version):
            return version
    return None


def _utc(moment: datetime) -> datetime:
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _page(project: str) -> Page:
    """The project's page of the first index that has it, as uv chooses."""
    import httpx2

    if os.environ.get("UV_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        raise _unreachable(project, "uv is set to work offline")
    with httpx2.Client(timeout=PAGE_S, follow_redirects=True) as client:
        for index in _indexes():
            address = f"{index.rstrip('/')}/{canonicalize_name(project)}/"
            try:
                answer = client.get(address, headers={"Accept": JSON_PAGE})
            except (httpx2.HTTPError, httpx2.InvalidURL) as error:
                # Its text may have the address in it, and that a password.
                raise _unreachable(project, type(error).__name__) from None
            if answer.status_code == 404:
                continue
            if answer.status_code != 200:
                raise _unreachable(project, f"it answers {answer.status_code}")
            try:
                return Page.model_validate_json(answer.content)
            except ValidationError:
                raise EnvironmentBuildError(
                    f"The package index does not list the releases of {project} as JSON (PEP 691).",
                    hint=NAME_THEM,
                ) from None
    raise UnknownRelease(
        f"The package index has no project {project}.", hint="check the index that uv uses"
    )


def _unreachable(project: str, why: str) -> EnvironmentBuildError:
    return EnvironmentBuildError(
        f"The package index could not be asked for the releases of {project}: {why}.",
        hint=NAME_THEM,
    )


def _indexes() -> Iterator[str]:
    """Addresses of the indexes, in the order in which uv asks them. They may hold passwords."""
    try:
        # Of no requirement at all: uv only writes down its settings, and asks nobody.
        text = run_uv(["pip", "compile", "-q", "--emit-index-url", "-"])
    except UvFailed as failure:
        raise explain(failure, "looking for the package index") from failure
    for option in ("extra-index-url", "index-url"):
        yield from re.findall(rf"^--{option} (\S+)$", text, re.MULTILINE)


def logins() -> dict[str, tuple[str, str]]:
    """Name and password by host, of the indexes that have them: for files fetched by ourselves."""
    found = [urlsplit(index) for index in _indexes()]
    return {
        parts.hostname: (unquote(parts.username), unquote(parts.password or ""))
        for parts in reversed(found)
        if parts.hostname and parts.username
    }
