"""A bound for what a night adds to the disk: environments that it built go again when it must be.

An environment's files are hard links into uv's cache, so removing it frees next to nothing: what
counts is that uv's cache lets go of the packages as well.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from mmrepro.base.units import size
from mmrepro.environments.store import list_environments, prune, uv_cache_dir
from mmrepro.environments.uv import UvFailed, run_uv
from mmrepro.machine.files import cache_root, environments_root, refuse_other_kinds, write_file
from mmrepro.records import Record
from pydantic import ValidationError


class Kept(Record):
    """What a night remembers of its disk, so that it can be gone on with."""

    used_bytes: int
    """On the disks of both caches, when the night began."""
    built: list[str] = []
    """Folders of the environments that it built and has not dropped, oldest first."""


class Bound:
    """Keeps the growth since the night's start below ``limit`` bytes.

    Counted is what is used on the file systems of mmrepro's and uv's caches, whoever wrote it: the
    bound is for the disk and not for a folder.
    """

    def __init__(self, limit: int, file: Path, *, used: Callable[[], int] | None = None) -> None:
        self.limit = limit
        self._file = file
        self._used = used or used_bytes
        try:
            refuse_other_kinds(file)
            self._kept = Kept.model_validate_json(file.read_bytes())
        except (OSError, ValidationError):
            self._kept = Kept(used_bytes=self._used())
            self._save()

    @property
    def growth(self) -> int:
        """Bytes since the night's start."""
        return self._used() - self._kept.used_bytes

    def built(self, name: str) -> None:
        """The night built the environment in that folder."""
        self._kept.built.append(name)
        self._save()

    def make_room(self, needed: int, busy: frozenset[str]) -> str:
        """Drop environments until ``needed`` bytes more are within the bound.

        Args:
            busy: folders that cells of this night still need.

        Returns:
            Why there is no room; "": there is.
        """
        for name in list(self._kept.built):
            if self.growth + needed <= self.limit:
                break
            if name not in busy and drop(name):
                self._kept.built.remove(name)
                self._save()
        if self.growth + needed <= self.limit:
            return ""
        return (
            f"another environment, about {size(needed)}, does not fit into the "
            f"{size(self.limit)} that --disk allows: {size(max(0, self.growth))} "
            "were added since the night began"
        )

    def _save(self) -> None:
        write_file(self._file, self._kept.model_dump_json() + "\n")


def used_bytes() -> int:
    """On the file systems of both caches, each counted once."""
    devices: dict[int, int] = {}
    for path in (environments_root(), uv_cache_dir() or cache_root()):
        there = next(p for p in (path, *path.parents) if p.exists())
        facts = os.statvfs(there)
        devices[there.stat().st_dev] = (facts.f_blocks - facts.f_bfree) * facts.f_frsize
    return sum(devices.values())


def drop(name: str) -> bool:
    """Remove an environment and what only it needs of uv's cache; False: it is in use.

    uv forgets a package by its name. One goes if the environment had a version of it that no other
    environment has; others keep their files, and a later build of them fetches that package anew.
    """
    stored = list_environments(sizes=False)
    mine = {p for one in stored if one.path.name == name for p in one.manifest.packages}
    others = {p for one in stored if one.path.name != name for p in one.manifest.packages}
    done = prune(names=[name])
    if any(kept == name for kept, _ in done.kept):
        return False
    if packages := sorted({p.partition("==")[0] for p in mine - others}):
        try:
            run_uv(["cache", "clean", *packages])
        except UvFailed:
            return True  # it is gone; that uv keeps the packages shows in the growth
    return True
