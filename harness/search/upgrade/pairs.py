"""Two sides that got the same requests: what each run recorded, and what the answers
differ in.

``upgrade`` compares releases with it, ``fuzz --against`` any two servers of an
engine."""

from __future__ import annotations

from collections.abc import Sequence

from mmrepro.failure.documents import Difference, SideRun, UpgradeSide
from mmrepro.failure.documents.replay import Sighting
from mmrepro.search.replay.attempts import CaseResult
from mmrepro.search.upgrade import answers, protocol
from mmrepro.traffic.case import Case, PlayState


def side_run(
    side: UpgradeSide,
    index: int,
    result: CaseResult,
    sightings: Sequence[Sighting] = (),
) -> SideRun:
    """A run of one side, with all that it recorded."""
    played = result.played
    assert played is not None
    fields: dict[str, dict[str, list[str]]] = {}
    for id, body in played.bodies.items():
        fields[id] = protocol.fields_of(body.encode(), played.headers.get(id))
    return SideRun(
        side=side,
        index=index,
        played=played,
        state=played.state,
        error="" if played.state is PlayState.ENDED else played.said,
        start_s=played.start_s,
        seconds=result.seconds,
        sightings=list(sightings),
        fields=fields,
        folder=result.place,
    )


def compare(
    old: Sequence[SideRun], new: Sequence[SideRun], *, case: Case
) -> list[Difference]:
    """What the answers say, then the form in which they say it."""
    return [
        *answers.compare(old, new, case=case),
        *protocol.compare(old, new, case=case),
    ]
