"""What one play showed, as it is kept: all that shrinking needs of it."""

from __future__ import annotations

from typing import Annotated

from mmrepro.case.model import Case, Operation
from mmrepro.case.played import Played
from mmrepro.evidence import RequestRecord
from mmrepro.incident.diagnosis import Match
from mmrepro.incident.replay import Learnt, PlayFacts, Sighting
from mmrepro.oracle.buckets import alike
from mmrepro.oracle.judged import Judged
from mmrepro.records import Record
from pydantic import Field

STUCK, LEFT, UNSENT, BROKEN = "stuck", "left", "unsent", "broken"
_SHOWN = 160
_FRAMES, _LINES = 12, 12


class Named(Record):
    """What a look at the server, or its log, said of a known failure.

    ``bucket``: of the failure that was looked for.
    """

    bucket: str = ""
    known: Annotated[str | None, Field(description="a scenario that fits in all conditions")] = None
    variant: str = ""
    why: str = ""
    diagnosis: Annotated[str, Field(description="folder of its incident, below the play's")] = ""


class Looked(Record):
    """What a look at a server that still lived told.

    Attributes:
        matches: known failures, by their signatures; None: nobody looked, and ``why``.
        diagnosis: folder of its incident, below the attempt's.
        learnt: of its limits.
    """

    matches: list[Match] | None = None
    why: str = ""
    diagnosis: str = ""
    learnt: list[Learnt] = []


class Seen(Record):
    """One play, judged."""

    play: PlayFacts
    sightings: list[Sighting] = []
    counted: dict[str, int] = {}
    unseen: list[str] = []
    said: str = ""
    sent: Annotated[list[str], Field(description="operations in the order they were sent")] = []
    times: Annotated[
        dict[str, tuple[float, float | None]],
        Field(description="operation: sent and ended, in seconds; None: it has no answer"),
    ] = {}
    answers: Annotated[
        dict[str, str], Field(description="operation: its status, stuck, left, unsent or broken")
    ] = {}
    observed: Annotated[dict[str, str], Field(description="operation: what came, for people")] = {}
    sizes: Annotated[dict[str, str], Field(description="operation: of its images")] = {}
    stack: Annotated[list[str], Field(description="where it stands, innermost first")] = []
    log_lines: list[str] = []
    deadline_s: float = 0.0
    folder: Annotated[str, Field(description="of the play, below the replay's")] = ""
    named: Named | None = None

    def has(self, bucket: str) -> bool:
        return any(alike(seen, bucket) for seen in self.play.buckets)

    def sighting(self, bucket: str) -> Sighting | None:
        return next((s for s in self.sightings if alike(s.bucket, bucket)), None)

    @property
    def stuck(self) -> list[str]:
        """In the order they were sent."""
        return [op for op in self.sent if self.answers.get(op) == STUCK]


def seen_of(case: Case, played: Played, judged: Judged, play: PlayFacts) -> Seen:
    """``play`` gets the state and the buckets."""
    play.state, play.early = played.state.value, played.early
    play.buckets = list(dict.fromkeys(s.bucket for s in judged.sightings))
    play.start_s, play.seconds = played.start_s, played.seconds
    records = {r.label: r for r in played.evidence.requests}
    mine = [(op, records.get(op.id)) for op in case.operations]
    began = min((r.sent.mono for _, r in mine if r is not None), default=0.0)
    sent = sorted((r.sent.mono, number) for number, (_, r) in enumerate(mine) if r is not None)
    stuck = set(played.stuck)
    return Seen(
        play=play,
        sightings=judged.sightings,
        counted=judged.counted,
        unseen=judged.unseen,
        said=played.said,
        sent=[case.operations[number].id for _, number in sent],
        times={
            op.id: (
                round(r.sent.mono - began, 4),
                None if op.id in stuck else round(r.sent.mono - began + r.latency_s, 4),
            )
            for op, r in mine
            if r is not None
        },
        answers={op.id: _answer(op, r, stuck) for op, r in mine},
        observed={op.id: _observed(op, r, stuck) for op, r in mine},
        sizes={
            op.id: " ".join(f"{i.width}x{i.height}" for i in r.images)
            for op, r in mine
            if r is not None and r.images
        },
        stack=_stack(played),
        log_lines=played.causes[:_LINES],
        deadline_s=played.deadline_s,
    )


def _answer(op: Operation, record: RequestRecord | None, stuck: set[str]) -> str:
    if op.id in stuck:
        return STUCK
    if record is None:
        return UNSENT
    if record.status is not None and record.status >= 400:
        return str(record.status)
    if op.leave:
        return LEFT
    return BROKEN if record.status is None or record.error else str(record.status)


def _observed(op: Operation, record: RequestRecord | None, stuck: set[str]) -> str:
    """In the forms that ``Finding.observed`` names."""
    if record is None:
        return "not sent"
    if op.id in stuck:
        return f"no answer in {record.latency_s:.1f} s"
    if op.leave and (record.status is None or record.status < 400):
        return f"left after {op.leave}"
    text = record.reply if record.status is None or record.status >= 400 else record.text
    shown = " ".join(text.split())[:_SHOWN]
    known = f"{record.status or 'no answer'}"
    return shown if shown.startswith(known) else f"{known} {shown}".strip()


def _stack(played: Played) -> list[str]:
    """Of the busiest thread; else of the exception."""
    if played.stack:
        frames = played.stack[0].frames
        return [f"{f.name} ({f.file}:{f.line})" for f in frames[:_FRAMES]]
    return played.frames[:_FRAMES]
