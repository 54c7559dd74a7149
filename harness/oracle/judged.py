"""What oracles say of a play."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Self

from mmrepro.incident.replay import Sighting
from mmrepro.records import Record
from pydantic import Field


class Judged(Record):
    """Sightings, what was seen and is none, and what could not be judged."""

    sightings: Annotated[list[Sighting], Field(description="worst class first")] = []
    counted: Annotated[dict[str, int], Field(description="seen, and no failure")] = {}
    unseen: Annotated[list[str], Field(description="sentences: not judged, and why")] = []

    @classmethod
    def of(cls, parts: Iterable[Judged]) -> Self:
        """All of ``parts`` in one."""
        sightings: list[Sighting] = []
        counted: dict[str, int] = {}
        unseen: list[str] = []
        for part in parts:
            sightings += part.sightings
            unseen += part.unseen
            for what, number in part.counted.items():
                counted[what] = counted.get(what, 0) + number
        sightings.sort(key=lambda sighting: sighting.finding_class.place)
        return cls(sightings=sightings, counted=counted, unseen=list(dict.fromkeys(unseen)))
