"""What stacks, metrics and other dumps show, alone or beside a log, as data."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from mmrepro.base.records import Record
from mmrepro.probes import DumpKind, Frame
from pydantic import Field


class DumpFile(Record):
    """One file, and what it is."""

    file: str
    kind: Annotated[DumpKind | None, Field(description="None: a log that holds stacks")]
    sentence: Annotated[str, Field(description="what it is, or why it was not read")]
    read: bool = True


class ProcessStand(Record):
    """What one process does, by its stacks."""

    pid: Annotated[int | None, Field(description="None: the dump does not print it")]
    role: Annotated[str, Field(description="empty: nothing names the process")] = ""
    tool: str
    reason: Annotated[str, Field(description="why it was written, e.g. a signal")] = ""
    samples: Annotated[
        int, Field(description="dumps of it; of one, whether it stays is unknown")
    ]
    thread: str
    running: Annotated[
        bool | None, Field(description="None: the tool does not print it")
    ] = None
    stays: Annotated[
        bool | None,
        Field(description="in one place in every dump; None: fewer than three"),
    ] = None
    frames: Annotated[
        list[Frame], Field(description="innermost first, at most 12")
    ] = []
    sentence: Annotated[str, Field(description="for people")]


class Resemblance(StrEnum):
    """How a known failure fits dumps and the log beside them, best first."""

    MATCH = "match"
    LIKELY = "likely"
    SYMPTOM_ONLY = "symptom-only"
    STANDS_THERE = "stands-there"
    """A process stands in its place; its symptom is not in the files."""
    IF_IT_STAYS = "if-it-stays"
    """The same of one moment: whether it stays there is unknown."""


class KnownFailure(Record):
    scenario: str
    variant: str = ""
    title: str
    fit: Resemblance
    why: Annotated[list[str], Field(description="what was observed of it")]
    affected: Annotated[str, Field(description="releases that have it")] = ""
    remedies: list[str] = []
    references: list[str] = []


class DumpReading(Record):
    """What the dumps show. What is not in them is unknown: nothing is frozen by one
    sample, and nothing idle by its metrics."""

    engine: str = ""
    release: str = ""
    files: list[DumpFile]
    processes: Annotated[
        list[ProcessStand], Field(description="the engine's core first")
    ] = []
    counts: Annotated[
        list[str], Field(description="metrics, GPUs and requests, for people")
    ] = []
    failures: Annotated[
        list[KnownFailure], Field(description="that fit, best first")
    ] = []
    unseen: Annotated[list[str], Field(description="what else would help")] = []

    @property
    def sentence(self) -> str:
        """All of it in one line: what the processes do, and what is counted."""
        parts = [process.sentence.rstrip(".") for process in self.processes[:1]]
        parts += self.counts[:2]
        return f"{'; '.join(parts)}." if parts else ""
