"""What happens in a campaign, as it happens: progress, JSON lines and documents listen
to it."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Annotated, Literal, TypeAlias

from mmrepro.base.errors import UnwritableOutput
from mmrepro.base.machine import open_plain
from mmrepro.base.records import Moment, Record
from mmrepro.failure.documents import Attempt
from mmrepro.failure.signature import Outcome
from pydantic import Field

Tone = Literal["good", "bad", "unsure", "soft"]
"""How a line is coloured."""


class RunBegan(Record):
    event: Literal["run-began"] = "run-began"
    at: Moment = Field(default_factory=Moment.now)
    what: Annotated[str, Field(description="for people: '0.23.0', 'f1: what is left'")]
    index: Annotated[int, Field(description="which of its runs, from 1")]
    role: str = ""
    machine: str = ""
    expected_s: float | None = None


class RunEnded(Record):
    """A run has ended, or an earlier call made it."""

    event: Literal["run-ended"] = "run-ended"
    at: Moment = Field(default_factory=Moment.now)
    what: str
    index: int
    role: str = ""
    machine: str = ""
    outcome: Annotated[
        str, Field(description="in a word: 'reproduced', 'lost (timeout)'")
    ]
    detail: Annotated[str, Field(description="what is to be known besides")] = ""
    tone: Tone = "soft"
    seconds: float = 0.0
    kept: Annotated[
        bool, Field(description="an earlier call made it, or a cache has it")
    ] = False


class Established(Record):
    """Something is established: a boundary, a finding, a cell's state."""

    event: Literal["found"] = "found"
    at: Moment = Field(default_factory=Moment.now)
    text: str
    tone: Tone = "bad"


class Note(Record):
    """What happens beside the runs: an environment is built, a machine is lost."""

    event: Literal["note"] = "note"
    at: Moment = Field(default_factory=Moment.now)
    text: str
    passing: Annotated[bool, Field(description="worth a line on a terminal only")] = (
        False
    )


class CampaignBegan(Record):
    event: Literal["began"] = "began"
    at: Moment = Field(default_factory=Moment.now)
    kind: Annotated[str, Field(description="'bisection', 'fuzz session'")]
    folder: str
    resume: Annotated[str, Field(description="the command that goes on with it")]


class CampaignEnded(Record):
    event: Literal["ended"] = "ended"
    at: Moment = Field(default_factory=Moment.now)
    kind: str
    folder: str
    state: str
    failure: str = ""
    resume: str = ""


CampaignEvent: TypeAlias = Annotated[
    CampaignBegan | RunBegan | RunEnded | Established | Note | CampaignEnded,
    Field(discriminator="event"),
]
Handler = Callable[[CampaignEvent], object]


def run_ended(
    what: str, attempt: Attempt, expected: Outcome | None = None, *, kept: bool = False
) -> RunEnded:
    detail: str = ""
    tone: Tone = "soft"
    if attempt.outcome is None:
        detail, tone = attempt.error, "unsure"
    elif expected is not None and attempt.outcome is not expected:
        detail, tone = f"{expected} was expected", "bad"
    return RunEnded(
        what=what,
        index=attempt.index,
        role=attempt.role,
        machine=attempt.machine,
        outcome=attempt.outcome or f"lost ({attempt.lost})",
        detail=detail,
        tone=tone,
        seconds=attempt.seconds,
        kept=kept,
    )


@contextlib.contextmanager
def json_lines(target: str) -> Iterator[Sequence[Handler]]:
    """A handler that writes each event as a JSON line, for machines that follow a
    campaign.

    Raises:
        UnwritableOutput: the file cannot be written.
    """
    if not target:
        yield []
        return
    try:
        file: IO[str] = sys.stdout
        if target != "-":
            handle = open_plain(Path(target), os.O_WRONLY | os.O_APPEND)
            file = os.fdopen(handle, "a", encoding="utf-8")
    except OSError as error:
        raise UnwritableOutput(
            f"{target} cannot be written: {error.strerror or error}.",
            hint="--events FILE, or --events - for standard output",
        ) from error
    lock = threading.Lock()

    def write(event: CampaignEvent) -> None:
        with lock:
            file.write(event.model_dump_json() + "\n")
            file.flush()

    try:
        yield [write]
    finally:
        if file is not sys.stdout:
            file.close()
