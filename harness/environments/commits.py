"""Wheels of single commits, from an index with a folder for each, as vLLM publishes them.

The index's address may hold a password: it stands in the environment of mmrepro and its children,
and in no file, message or command line. A wheel is fetched here and given to uv as a file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

from mmrepro.environments import download
from mmrepro.environments.download import unreachable
from mmrepro.environments.listing import Interpreter, interpreters
from mmrepro.environments.releases import Release, best_wheel, end_of_day, pythons
from mmrepro.environments.spec import EnvironmentSpec, Reason
from mmrepro.environments.store import list_environments
from mmrepro.environments.uv import Distribution, Progress
from mmrepro.errors import UnknownRelease, UsageError
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

INDEX_VARIABLE = "MMREPRO_COMMIT_INDEX"
"""Address of the wheels; ``{commit}`` stands for the commit, which else comes after it."""
COMMIT = re.compile(r"[0-9a-f]{7,64}")
PAGE_S = 30.0
THE_INDEX = "the index of commits"


@dataclass(frozen=True)
class CommitWheel:
    """One wheel of a commit's folder."""

    filename: str
    address: str = field(repr=False)
    sha256: str = ""
    uploaded: datetime | None = None

    @property
    def project(self) -> str:
        return str(parse_wheel_filename(self.filename)[0])

    @property
    def version(self) -> str:
        return str(parse_wheel_filename(self.filename)[1])


def check_index(address: str) -> None:
    """Raises UsageError: it is no address."""
    if not address.startswith(("http://", "https://")):
        raise UsageError(
            "Wheels of commits need the address of their index.",
            hint=f"--index 'https://HOST/{{commit}}', or {INDEX_VARIABLE} in the environment",
        )


def commit_spec(
    spec_of: Callable[[str], EnvironmentSpec], commit: str, date: str = ""
) -> EnvironmentSpec:
    """The environment of an engine at ``commit``.

    The version is the wheel's own. An environment that is on disk already says it; else the index
    is asked.

    Args:
        spec_of: the environment of a release of that engine.
        date: of the commit, RFC 3339; its requirements are resolved as of that day. Empty: as of
            the wheel's.

    Raises:
        UsageError: not a commit, a date that is none, an engine that comes with mmrepro.
        UnknownRelease: the index has no wheel of it for this machine.
        EnvironmentBuildError: it cannot be asked.
    """
    if not COMMIT.fullmatch(commit):
        raise UsageError(
            f"{commit[:40]!r} is no commit.", hint="7 to 64 hexadecimal digits, as git prints them"
        )
    if date:
        try:
            made = datetime.fromisoformat(date)
        except ValueError as error:
            raise UsageError(
                f"{date[:40]!r} is no date of a commit.", hint="e.g. 2026-06-14T12:00:00+00:00"
            ) from error
        date = end_of_day(made if made.tzinfo else made.replace(tzinfo=UTC)).isoformat()
    general = spec_of("0.0")
    known = _built(general, commit)
    project, version = known or _asked(general, commit)
    spec = spec_of(Version(version).public)
    if project != spec.project:  # the engine's own name: it needs no other
        spec = replace(spec, project=project, dist_aliases=())
    return replace(
        spec,
        commit=commit,
        version=version,
        dated_by=project,
        origin=f"the wheel of commit {commit[:12]}, from the index that was given",
        cutoff=date,
    )


def _built(spec: EnvironmentSpec, commit: str) -> tuple[str, str] | None:
    """Project and version, from an environment on disk."""
    for stored in list_environments(sizes=False):
        facts = stored.manifest
        if (facts.engine, facts.device, facts.commit) == (spec.engine, spec.device, commit):
            return facts.project, str(parse_wheel_filename(facts.wheel.filename)[1])
    return None


def _asked(spec: EnvironmentSpec, commit: str) -> tuple[str, str]:
    wheel = wheels_of(spec, commit)[1]
    return wheel.project, wheel.version


def wheels_of(spec: EnvironmentSpec, commit: str) -> tuple[str, CommitWheel]:
    """The interpreter that the commit's wheel is for, as uv is given it, and the wheel."""
    address = os.environ.get(INDEX_VARIABLE, "")
    check_index(address)
    names = tuple(dict.fromkeys(canonicalize_name(n) for n in (spec.project, spec.engine)))
    files = _files(address, commit, names)
    for name in names:
        own = [f for f in files if _is_of(f, name)]
        for python, interpreter in zip(pythons(spec), interpreters(spec), strict=True):
            if fits := [f for f in own if _fits(f, interpreter)]:
                best = best_wheel([Distribution(f.filename, None, "") for f in fits]).filename
                return python, next(f for f in fits if f.filename == best)
    raise UnknownRelease(
        f"The index of commits has no wheel of {' or '.join(names)} for commit {commit[:12]} and "
        f"this machine.",
        hint="another commit, or another --index",
    )


def find(spec: EnvironmentSpec) -> tuple[Release, CommitWheel]:
    """As ``releases.find``, for the spec of a commit."""
    python, wheel = wheels_of(spec, spec.commit)
    cutoff = datetime.fromisoformat(spec.cutoff) if spec.cutoff else None
    reasons = []
    if cutoff is None:
        cutoff = end_of_day(wheel.uploaded or datetime.now(UTC))
        day = "upload of the wheel" if wheel.uploaded else "today"
        reasons.append(Reason("resolution date", day, "the commit's own date was not given"))
    file = Distribution(wheel.filename, wheel.uploaded, wheel.sha256)
    return Release(python, file, cutoff, cutoff, reasons), wheel


def fetch(wheel: CommitWheel, folder: Path, say: Progress) -> tuple[Path, str]:
    """Download the wheel into ``folder``. Its path, and its SHA-256.

    Raises:
        EnvironmentBuildError: it cannot be fetched, or is not the one that the index announces.
    """
    say(f"fetching {wheel.filename}")
    file = Distribution(wheel.filename, wheel.uploaded, wheel.sha256, address=wheel.address)
    return download.fetch(file, folder, where=THE_INDEX)


# ---------------------------------------------------------------------- pages


@lru_cache(maxsize=64)
def _files(address: str, commit: str, names: tuple[str, ...]) -> tuple[CommitWheel, ...]:
    """All wheels in the commit's folder: below the project's name, or flat."""
    import httpx2

    base = address if "{commit}" in address else address.rstrip("/") + "/{commit}"
    base = base.replace("{commit}", commit).rstrip("/")
    found: list[CommitWheel] = []
    with httpx2.Client(timeout=PAGE_S, follow_redirects=True) as client:
        for page in (*(f"{base}/{name}/" for name in names), f"{base}/"):
            try:
                answer = client.get(page, headers={"Accept": "text/html"})
            except (httpx2.HTTPError, httpx2.InvalidURL) as error:
                raise unreachable(THE_INDEX, type(error).__name__) from None
            if answer.status_code == 404:
                continue
            if answer.status_code != 200:
                raise unreachable(THE_INDEX, f"it answers {answer.status_code}")
            found += _read(answer.text, str(answer.url))
            if any(_is_of(wheel, name) for wheel in found for name in names):
                break
    return tuple(found)


def _read(text: str, page: str) -> Iterator[CommitWheel]:
    links = _Links()
    links.feed(text)
    for href in links.found:
        address = urljoin(page, href)
        parts = urlsplit(address)
        filename = unquote(parts.path.rpartition("/")[2])
        digest = re.fullmatch(r"sha256=([0-9a-f]{64})", parts.fragment)
        if filename.endswith(".whl") and parts.scheme in ("http", "https"):
            yield CommitWheel(filename, address.partition("#")[0], digest[1] if digest else "")


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.found += [value for name, value in attrs if (tag, name) == ("a", "href") and value]


def _is_of(wheel: CommitWheel, name: str) -> bool:
    try:
        return wheel.project == name
    except InvalidWheelFilename:
        return False


def _fits(wheel: CommitWheel, interpreter: Interpreter) -> bool:
    return bool(parse_wheel_filename(wheel.filename)[3] & interpreter.tags)
