"""Build times of environments, by those that are on this machine."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import cached_property

from mmrepro.campaign.groups import ASSUMED_BUILD_S, Group
from mmrepro.environments.store import Stored, list_environments
from packaging.version import InvalidVersion, Version


class Measured:
    """What environments take; one that is not here is taken to be like the engine's others."""

    def __init__(self, stored: Sequence[Stored] | None = None) -> None:
        self._given = stored
        self._builds: dict[str, float] = {}

    @cached_property
    def _stored(self) -> Sequence[Stored]:
        return list_environments(sizes=False) if self._given is None else self._given

    def build_s(self, group: Group) -> float:
        """Seconds that its build takes, about."""
        if group.name not in self._builds:
            own = self.own(group)
            like = [one.manifest.build_seconds for one in ([own] if own else self.alike(group))]
            self._builds[group.name] = statistics.median(like) if like else ASSUMED_BUILD_S
        return self._builds[group.name]

    def own(self, group: Group) -> Stored | None:
        """The group's own environment, where it is on this machine."""
        for one in self.alike(group):
            if (one.manifest.release, one.manifest.commit) == (group.release, group.commit):
                return one
        return None

    def alike(self, group: Group) -> list[Stored]:
        """Those of the same engine and device, oldest release first."""
        wanted = (group.engine, group.device)
        found = [s for s in self._stored if (s.manifest.engine, s.manifest.device) == wanted]
        return sorted(found, key=lambda one: version_of(one.manifest.release))


def version_of(release: str) -> Version:
    """The version to sort by; what is none comes first."""
    try:
        return Version(release)
    except InvalidVersion:
        return Version("0")
