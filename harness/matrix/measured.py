"""What environments take, by those that are on this machine."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from mmrepro.campaign.groups import ASSUMED_BUILD_S, Group
from mmrepro.environments.store import Stored, list_environments
from packaging.version import InvalidVersion, Version

ASSUMED_BYTES = 8 * 1024**3
OWN, NEAR, NONE = "its own", "another one of the engine", "nothing"
"""What a figure is based on."""


class Measured:
    """Times and sizes of environments; what is not here is taken to be like the nearest release."""

    def __init__(self, stored: Sequence[Stored] | None = None) -> None:
        self._given = stored
        self._sizes: dict[Path, dict[str, int]] = {}
        self._builds: dict[str, float] = {}

    @cached_property
    def _stored(self) -> Sequence[Stored]:
        return list_environments(sizes=False) if self._given is None else self._given

    def build_s(self, group: Group) -> float:
        """Seconds that its build takes, about."""
        if group.name not in self._builds:
            own, alike = self._own(group), self._alike(group)
            like = [one.manifest.build_seconds for one in ([own] if own else alike)]
            self._builds[group.name] = statistics.median(like) if like else ASSUMED_BUILD_S
        return self._builds[group.name]

    def packages(self, group: Group) -> Mapping[str, int]:
        """Unpacked bytes of what is in it, by name and version."""
        if (own := self._own(group)) is not None:
            return self._packages(own)
        engine = f"{group.engine} {group.release} {group.commit}"
        if not (alike := self._alike(group)):
            spec = group.spec
            return {engine: ASSUMED_BYTES if spec is None else spec.disk_bytes}
        wanted = _version(group.release)
        older = [one for one in alike if _version(one.manifest.release) <= wanted]
        nearest = older[-1] if older else alike[0]
        project = nearest.manifest.project.replace("-", "_").lower()
        return {
            engine if name.lower().startswith(f"{project}-") else name: size
            for name, size in self._packages(nearest).items()
        }

    def basis(self, group: Group) -> str:
        """What its figures are based on: OWN, NEAR or NONE."""
        if self._own(group) is not None:
            return OWN
        return NEAR if self._alike(group) else NONE

    def _own(self, group: Group) -> Stored | None:
        for one in self._alike(group):
            if (one.manifest.release, one.manifest.commit) == (group.release, group.commit):
                return one
        return None

    def _alike(self, group: Group) -> list[Stored]:
        """Of the same engine and device, oldest release first."""
        wanted = (group.engine, group.device)
        alike = [s for s in self._stored if (s.manifest.engine, s.manifest.device) == wanted]
        return sorted(alike, key=lambda one: _version(one.manifest.release))

    def _packages(self, one: Stored) -> Mapping[str, int]:
        """By the installers' own lists of files."""
        if one.path not in self._sizes:
            records = one.path.glob("venv/lib/python*/site-packages/*.dist-info/RECORD")
            self._sizes[one.path] = {path.parent.stem: _bytes(path) for path in records}
        return self._sizes[one.path]


def _bytes(record: Path) -> int:
    with record.open(newline="", encoding="utf-8") as file:
        return sum(int(row[2]) for row in csv.reader(file) if len(row) == 3 and row[2])


def _version(release: str) -> Version:
    try:
        return Version(release)
    except InvalidVersion:
        return Version("0")
