"""Two sides that got the same requests: what each run recorded, and what the answers
differ in.

``upgrade`` compares releases with it, ``fuzz --against`` any two servers of an
engine."""

from __future__ import annotations

from collections.abc import Sequence

from mmrepro.failure.documents import Difference, SideRun, UpgradeSide
from mmrepro.failure.documents.replay import Sighting
from mmrepro.search.oracle import side_answers, side_form
from mmrepro.traffic.case import Case, Played, PlayState


def side_run(
    side: UpgradeSide,
    index: int,
    played: Played,
    *,
    seconds: float,
    folder: str,
    sightings: Sequence[Sighting] = (),
) -> SideRun:
    """A run of one side, with all that it recorded.

    Args:
        seconds: of all of it.
        folder: of its files, below the campaign's.
    """
    fields: dict[str, dict[str, list[str]]] = {}
    for id, body in played.bodies.items():
        fields[id] = side_form.fields_of(body.encode(), played.headers.get(id))
    return SideRun(
        side=side,
        index=index,
        played=played,
        state=played.state,
        error="" if played.state is PlayState.ENDED else played.said,
        start_s=played.start_s,
        seconds=seconds,
        sightings=list(sightings),
        fields=fields,
        folder=folder,
    )


def compare(
    old: Sequence[SideRun], new: Sequence[SideRun], *, case: Case
) -> list[Difference]:
    """What the answers say, then the form in which they say it."""
    return [
        *side_answers.compare(old, new, case=case),
        *side_form.compare(old, new, case=case),
    ]
