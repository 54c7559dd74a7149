"""What an environment will download, how long that takes, and how far it has come."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mmrepro.base.units import duration, size
from mmrepro.environments.uv import UNCACHED, UvFailed, locked

DISK_RATIO = 1.9
"""Unpacked bytes to downloaded ones: 1.78 to 1.96 in environments of the four engines."""

ASSUMED_RATE = 12.5e6
"""Bytes a second (100 Mbit/s), where nothing was downloaded yet that was large enough to tell."""

TELLING_BYTES = 20_000_000
"""A smaller download is mostly waiting: its rate tells nothing."""

_COUNT = re.compile(r"would download (\d+)")


@dataclass(frozen=True)
class Download:
    """What is not in uv's cache yet."""

    files: int
    bytes: int
    """0: the index does not say."""
    rate: float = 0.0
    """Bytes a second seen a moment ago; 0: nothing was."""

    def __str__(self) -> str:
        """One line for people, before it begins."""
        if not self.files:
            return "nothing to download: all is in uv's cache"
        what = f"{self.files} package{'' if self.files == 1 else 's'} to download"
        if not self.bytes:
            return f"{what}; the index does not say how large"
        rate = self.rate or ASSUMED_RATE
        basis = f"at the {size(rate)}/s seen" if self.rate else "at 100 Mbit/s"
        took = duration(max(1, round(self.bytes / rate)))
        unpacked = size(self.bytes * DISK_RATIO)
        return f"{what}, {size(self.bytes)}; up to {unpacked} on disk, {took} {basis}"


def rate_of(size: int, seconds: float) -> float:
    """Bytes a second of one download; 0.0: too small to tell."""
    return size / seconds if size >= TELLING_BYTES and seconds > 0 else 0.0


def sizes(pylock: str) -> dict[str, int]:
    """Bytes of what is downloaded of each ``name==version`` of a pylock.toml; 0: not said."""
    found = {}
    for one in locked(pylock):
        # Several wheels that fit differ by little; without one it is the source.
        files = one.wheels or ([one.sdist] if one.sdist else [])
        found[f"{one.project}=={one.version}"] = max((f.size or 0 for f in files), default=0)
    return found


def plan_of(
    run: Callable[..., str], install: list[str], described: list[str], rate: float
) -> Download:
    """What ``install`` will fetch.

    Args:
        run: runs uv, as ``run_uv`` does.
        install: the arguments of an installation.
        described: arguments for ``uv pip compile`` with the same packages, for uv to describe.
        rate: bytes a second, as far as known.

    Raises:
        UvFailed: the installation could not even be planned.
    """
    phases: list[str] = []
    run([*install, "--dry-run", "-v"], progress=phases.append)
    try:
        known = sizes(run(["pip", "compile", "-q", "--format", "pylock.toml", *described]))
    except UvFailed:
        known = {}  # it can be installed, so it will be
    return planned(phases, known, rate)


def planned(phases: Sequence[str], known: Mapping[str, int], rate: float) -> Download:
    """From what a dry run of uv said, and :func:`sizes`."""
    names = [phase.removeprefix(UNCACHED) for phase in phases if phase.startswith(UNCACHED)]
    counts = [match for phase in phases if (match := _COUNT.match(phase))]
    files = max([len(names), *(int(match[1]) for match in counts)])
    return Download(files, sum(known.get(name, 0) for name in names), rate)
