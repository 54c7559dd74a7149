"""The machine that a wheelhouse is for: its wheel tags, and what it has already."""

from __future__ import annotations

import platform as this_platform
import re
from collections.abc import Iterator
from functools import lru_cache

from mmrepro.environments.uv import Distribution
from mmrepro.environments.wheelhouse.model import Target
from mmrepro.errors import UsageError
from packaging import tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

COMMON_GLIBC = 35  # Ubuntu 22.04; a newer host runs such wheels as well
_PLATFORM = re.compile(r"(x86_64|aarch64)-manylinux_2_(\d+)")
_PYTHON = re.compile(r"3\.\d+")
_FREEZE = re.compile(r"([A-Za-z0-9][\w.-]*)\s*==\s*(\S+)")
_FROM_FILE = re.compile(r"([A-Za-z0-9][\w.-]*)\s*@\s*\S*?([^/\s]+\.whl)")
_LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}


def default_platform() -> str:
    return f"{this_platform.machine()}-manylinux_2_{COMMON_GLIBC}"


def make_target(python: str, platform: str = "", freeze: str = "") -> Target:
    """``freeze``: text of ``pip freeze`` or ``pip list --format=freeze`` there.

    Raises:
        UsageError: one of them cannot be read.
    """
    platform = platform or default_platform()
    if not _PYTHON.fullmatch(python):
        raise UsageError(f"{python!r} is no version of Python.", hint="e.g. --python 3.12")
    if not _PLATFORM.fullmatch(platform):
        raise UsageError(
            f"{platform!r} is no platform that a wheelhouse can be made for.",
            hint="e.g. --platform x86_64-manylinux_2_39 (the glibc of `ldd --version` there)",
        )
    return Target(python=python, platform=platform, have=have_of(freeze))


def have_of(freeze: str) -> dict[str, str]:
    """Version by canonical name. Lines that name no version (``-e …``) are passed over.

    Raises:
        UsageError: there is text, and no line of it says a version.
    """
    have: dict[str, str] = {}
    for line in freeze.splitlines():
        line = line.strip().partition(" #")[0]
        if match := _FREEZE.match(line):
            name, version = match[1], match[2]
        elif match := _FROM_FILE.match(line):
            try:
                name, version = match[1], str(parse_wheel_filename(match[2].replace("%2B", "+"))[1])
            except InvalidWheelFilename:
                continue
        else:
            continue
        try:
            Version(version)
        except InvalidVersion:
            continue
        have[canonicalize_name(name)] = version
    if freeze.strip() and not have:
        raise UsageError(
            "The list of what the target has names no package with its version.",
            hint="make it there with: python -m pip list --format=freeze",
        )
    return have


def public(version: str) -> str:
    """``2.11.0`` of ``2.11.0+cu130``."""
    return version.partition("+")[0]


def fitting(wheels: list[Distribution], target: Target) -> Distribution | None:
    """The wheel that an installer on the target would take; None: none fits."""
    rank = _ranks(target.python, target.platform)
    best: tuple[int, tuple[int, str], Distribution] | None = None
    for wheel in wheels:
        try:
            _, _, build, own = parse_wheel_filename(wheel.filename)
        except InvalidWheelFilename:
            continue
        places = [rank[tag] for tag in own if tag in rank]
        if not places:
            continue
        key = -min(places), (build[0], build[1]) if build else (-1, "")
        if best is None or key > best[:2]:
            best = (*key, wheel)
    return best[2] if best else None


@lru_cache(maxsize=4)
def _ranks(python: str, platform: str) -> dict[tags.Tag, int]:
    """The target's tags, best first, with their places."""
    number = tuple(map(int, python.split(".")))
    platforms = list(_platforms(platform))
    interpreter = f"cp{number[0]}{number[1]}"
    every = [
        *tags.cpython_tags(number, platforms=platforms),
        *tags.compatible_tags(number, interpreter, platforms=platforms),
    ]
    return {tag: place for place, tag in enumerate(every)}


def _platforms(platform: str) -> Iterator[str]:
    match = _PLATFORM.fullmatch(platform)
    assert match is not None
    machine, newest = match[1], int(match[2])
    for minor in range(newest, 4, -1):
        yield f"manylinux_2_{minor}_{machine}"
        if minor in _LEGACY:
            yield f"{_LEGACY[minor]}_{machine}"
    yield f"linux_{machine}"
