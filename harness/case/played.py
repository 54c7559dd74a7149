"""What came of one play of a case: what oracles judge. Nothing in it is decided."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated

from mmrepro.evidence import Evidence, RequestRecord
from mmrepro.probes.data import ThreadStack
from mmrepro.records import Record
from pydantic import Field


class PlayState(StrEnum):
    """How a play ended."""

    ENDED = "ended"
    """Every request has its answer, or its client went away as the case says."""
    START_FAILED = "start-failed"
    DIED = "died"
    """The server ended by itself."""
    HUNG = "hung"
    """A request has no answer, and nothing moves any more."""


class Reading(Record):
    """The server's processes and counters at one moment, idle."""

    mono: float
    metrics: Annotated[
        dict[str, float], Field(description="all of /metrics, summed over label sets")
    ] = {}
    threads: int | None = None
    files: Annotated[int | None, Field(description="open descriptors, all processes")] = None
    rss_bytes: int | None = None
    shm: Annotated[dict[str, int], Field(description="its files in /dev/shm: name, bytes")] = {}

    def first(self, names: Iterable[str]) -> float | None:
        """The first metric of ``names`` that the server has; None: it has none of them."""
        return next((self.metrics[name] for name in names if name in self.metrics), None)


class Played(Record):
    """One play of a case on one fresh server.

    ``evidence`` holds every request (its label is the operation's id; the canary's are ``canary
    before`` and ``canary after``) and what was looked at; ``before`` and ``after`` are readings of
    the idle server around the operations, ``blocks`` further ones, taken idle, after equal blocks
    of requests where the play was asked for them.
    """

    state: PlayState
    said: Annotated[str, Field(description="one sentence on how it ended")] = ""
    evidence: Evidence = Evidence()
    before: Reading | None = None
    after: Reading | None = None
    blocks: list[Reading] = []
    stuck: Annotated[list[str], Field(description="operations without an answer at the end")] = []
    unsent: Annotated[list[str], Field(description="operations that were never sent")] = []
    exit_code: int | None = None
    stack: Annotated[
        list[ThreadStack],
        Field(description="hung: the core's threads as they stand, busiest first"),
    ] = []
    log_file: Annotated[str, Field(description="the engine's log, below the play's folder")] = ""
    causes: Annotated[
        list[str], Field(description="first exceptions in the log, or why it did not start")
    ] = []
    frames: Annotated[
        list[str],
        Field(description="innermost first: function names of that exception's traceback"),
    ] = []
    start_s: Annotated[float, Field(description="seconds from the start to ready")] = 0.0
    seconds: Annotated[float, Field(description="of the whole play, with start and stop")] = 0.0
    deadline_s: Annotated[float, Field(description="silence from then on is a hang")] = 0.0
    early: Annotated[
        bool, Field(description="judged before the deadline, by what stands still")
    ] = False

    def record(self, op: str) -> RequestRecord | None:
        """The request of operation ``op``; None: it was not sent."""
        return next((r for r in self.evidence.requests if r.label == op), None)
