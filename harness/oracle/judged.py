"""What was sent in a play, and what oracles report of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Self

from mmrepro.case.model import CHAT, COMPLETIONS, Case, Operation
from mmrepro.case.played import Played
from mmrepro.evidence import RequestRecord
from mmrepro.incident.replay import FindingClass, Sighting
from mmrepro.oracle.buckets import silent
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

    @classmethod
    def found(cls, kind: FindingClass, bucket: str, *words: str, by: Sequence[str] = ()) -> Self:
        """One sighting; ``words``: what was observed, and what was expected. ``by``: operations."""
        return cls(sightings=[sighting(kind, bucket, *words, by=by)])


def sighting(
    kind: FindingClass, bucket: str, said: str, expected: str, *, by: Sequence[str] = ()
) -> Sighting:
    """What an oracle found; a ``bucket`` without a slash is one of that class's own."""
    return Sighting(
        finding_class=kind,
        bucket=bucket if "/" in bucket else silent(kind, bucket),
        operations=list(by),
        said=said,
        expected=expected,
    )


# ------------------------------------------------------------------ what was sent

GENERATES = (CHAT, COMPLETIONS)
_ANY_STREAM = ("stream", "stream_options")


@dataclass(frozen=True)
class Sent:
    """An operation and its request."""

    op: Operation
    record: RequestRecord

    @property
    def begin(self) -> float:
        return self.record.sent.mono

    @property
    def end(self) -> float:
        return self.record.sent.mono + self.record.latency_s

    @property
    def generates(self) -> bool:
        return self.op.path in GENERATES

    @property
    def n(self) -> int:
        """Answers asked for."""
        wanted = [self.parameter("n", 1), self.parameter("best_of", 1)]
        prompts = self.op.prompt if isinstance(self.op.prompt, list) else []
        several = len(prompts) if any(not isinstance(p, int) for p in prompts) else 1
        return max([1, *(w for w in wanted if isinstance(w, int))]) * several

    @property
    def limit(self) -> int | None:
        """Most tokens asked for, of each answer; None: not told."""
        for name in ("max_completion_tokens", "max_tokens"):
            if isinstance(found := self.op.parameters.get(name), int) and found > 0:
                return found
        return None

    @property
    def greedy(self) -> bool:
        return self.parameter("temperature", 1) == 0 and self.n == 1

    @cached_property
    def body(self) -> str:
        """All that is asked for, but for whether it streams; equal texts ask for the same."""
        op = self.op.model_dump(
            mode="json", include={"path", "messages", "prompt", "parameters"}, exclude_none=True
        )
        op["parameters"] = {
            name: value for name, value in op["parameters"].items() if name not in _ANY_STREAM
        }
        return json.dumps(op, sort_keys=True)

    def parameter(self, name: str, otherwise: Any = None) -> Any:
        """A field of the body; ``otherwise``: it is not there, or null."""
        value = self.op.parameters.get(name)
        return otherwise if value is None else value

    def overlaps(self, other: Sent) -> bool:
        return self.begin < other.end and other.begin < self.end


def sent_of(case: Case, played: Played) -> list[Sent]:
    """In the order in which they were sent."""
    records = {record.label: record for record in reversed(played.evidence.requests)}
    sent = [Sent(op, records[op.id]) for op in case.operations if op.id in records]
    return sorted(sent, key=lambda one: one.begin)
