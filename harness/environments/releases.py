"""Finds a release on the index: an interpreter it fits, its wheel, and the day it came out."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta

from mmrepro.environments.spec import EnvironmentSpec, Reason
from mmrepro.environments.uv import Distribution, ReleaseFiles, UvFailed, explain, release_files
from mmrepro.errors import EnvironmentBuildError, UnknownRelease
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

OLDEST_PYTHON, NEWEST_PYTHON = (3, 10), (3, 13)
# Tried after the harness's own, best served first.
OTHER_PYTHONS = ("3.12", "3.11", "3.13", "3.10")

_UNKNOWN = re.compile(
    r"there (?:is|are) no versions? of|was not found in the (?:package registry|cache)"
)
_WRONG_PYTHON = re.compile(
    r"no wheels with a matching Python|Python ABI tag|requires? Python|depends on Python"
    r"|does not satisfy Python|No interpreter found",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Release:
    """A release that can be installed here."""

    python: str
    """What uv is given as interpreter: a path or a version."""
    wheel: Distribution
    cutoff: datetime
    """Nothing uploaded later is used, but for the wheel itself."""
    wheel_cutoff: datetime
    reasons: list[Reason]


def pythons(spec: EnvironmentSpec) -> list[str]:
    """Interpreters to try, best first."""
    if spec.python:
        return [spec.python]
    own = OLDEST_PYTHON <= sys.version_info[:2] <= NEWEST_PYTHON
    own_version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    return ([sys.executable] if own else []) + [
        v for v in OTHER_PYTHONS if not own or v != own_version
    ]


def end_of_day(moment: datetime) -> datetime:
    """The midnight (UTC) after ``moment``."""
    day = moment.astimezone(UTC).date() + timedelta(days=1)
    return datetime.combine(day, time(), UTC)


def best_wheel(wheels: list[Distribution]) -> Distribution:
    """The one with the highest build number, as installers choose (vllm 0.23.0 has a ``-2``)."""

    def rank(wheel: Distribution) -> tuple[int, str]:
        try:
            build = parse_wheel_filename(wheel.filename)[2]
        except InvalidWheelFilename:
            return (-1, "")
        return (build[0], build[1]) if build else (0, "")

    return max(wheels, key=rank)


def find(spec: EnvironmentSpec, platform: str = "") -> Release:
    """Where ``spec`` comes from and as of when it is to be resolved.

    ``platform``: of another machine, as uv names them; ``spec.python`` is then a version there.

    Raises:
        UnknownRelease: the index has no such release of the engine.
        EnvironmentBuildError: it has, but no wheel for this machine; or it cannot be asked.
    """
    requirement = f"{spec.project}=={spec.installed}"
    refused: UvFailed | None = None
    for python in pythons(spec):
        try:
            files = release_files(requirement, python, platform=platform)
        except UvFailed as failure:
            refused = failure
            if _UNKNOWN.search(failure.stderr) and "network was disabled" not in failure.stderr:
                raise _unknown(spec, python) from failure
            if _WRONG_PYTHON.search(failure.stderr):
                continue
            raise explain(failure, f"looking for {requirement}") from failure
        if files.wheels:
            return _dated(spec, python, files, platform)
    reason = explain(refused, "looking for its wheel").detail if refused else []
    oldest, newest = ".".join(map(str, OLDEST_PYTHON)), ".".join(map(str, NEWEST_PYTHON))
    python = f"Python {spec.python}" if spec.python else f"any Python from {oldest} to {newest}"
    raise EnvironmentBuildError(
        f"{requirement} has no wheel for {platform or 'this machine'} and {python}.",
        hint="try another release: mmrepro run SCENARIO --release X.Y.Z",
        detail=reason,
    )


def _dated(spec: EnvironmentSpec, python: str, files: ReleaseFiles, platform: str) -> Release:
    wheel = best_wheel(files.wheels)
    own = wheel.uploaded or files.uploaded
    reasons: list[Reason] = []
    if spec.cutoff:
        cutoff = datetime.fromisoformat(spec.cutoff)
    else:
        own_day = spec.dated_by == spec.project
        dated = files.uploaded if own_day else _upload_of(spec, python, platform)
        if dated is None:
            dated = own
            why = f"the index does not say when {spec.dated_by} {spec.release} was uploaded"
            reasons.append(Reason("resolution date", f"upload of {spec.project}", why))
        if dated is None:
            raise EnvironmentBuildError(
                f"The package index gives no upload time for {spec.project} {spec.release}, so its "
                "requirements cannot be resolved as of its day.",
                hint="use an index that gives upload times (PEP 700)",
            )
        cutoff = end_of_day(dated)
    wheel_cutoff = max(cutoff, end_of_day(own) if own else cutoff)
    return Release(python, wheel, cutoff, wheel_cutoff, reasons)


def _upload_of(spec: EnvironmentSpec, python: str, platform: str) -> datetime | None:
    """When ``dated_by`` was released. A repackaged 0.11.1.post2 has the date of 0.11.1."""
    for release in dict.fromkeys((spec.installed, Version(spec.installed).base_version)):
        try:
            requirement = f"{spec.dated_by}=={release}"
            return release_files(requirement, python, platform=platform).uploaded
        except UvFailed as failure:
            if not (_UNKNOWN.search(failure.stderr) or _WRONG_PYTHON.search(failure.stderr)):
                raise explain(failure, f"looking for {spec.dated_by}=={release}") from failure
    return None


def _unknown(spec: EnvironmentSpec, python: str) -> UnknownRelease:
    near = nearest(spec, python)
    others = f"next to it: {' and '.join(near)}" if near else "it may not serve the project"
    what = spec.project if spec.project == spec.engine else f"{spec.engine} ({spec.project})"
    return UnknownRelease(
        f"The package index has no release {spec.installed} of {what}; {others}.",
        hint=f"for example: --release {near[-1]}" if near else "check the index that uv uses",
    )


def nearest(spec: EnvironmentSpec, python: str) -> list[str]:
    """The releases next below and next above, as far as there are any."""
    releases: list[str] = []
    for sign in "<>":
        try:
            requirement = f"{spec.project}{sign}{spec.installed}"
            releases.append(release_files(requirement, python, lowest=sign == ">").version)
        except UvFailed:
            continue
    return releases


def repackaged(spec: EnvironmentSpec, python: str) -> str:
    """A later build of the same release (``0.11.1.post2``), or ``""``."""
    try:
        version = release_files(f"{spec.project}=={spec.installed}.*", python).version
        return version if Version(version) > Version(spec.installed) else ""
    except (UvFailed, InvalidVersion):
        return ""
