"""What happens in a campaign, as it happens: progress, JSON lines and documents listen to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal, TypeAlias

from mmrepro.incident.ledger import Attempt
from mmrepro.records import Moment, Record
from mmrepro.signature import Outcome
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
    outcome: Annotated[str, Field(description="in a word: 'reproduced', 'lost (timeout)'")]
    detail: Annotated[str, Field(description="what is to be known besides")] = ""
    tone: Tone = "soft"
    seconds: float = 0.0
    kept: Annotated[bool, Field(description="an earlier call made it, or a cache has it")] = False


class Found(Record):
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
    passing: Annotated[bool, Field(description="worth a line on a terminal only")] = False


class Began(Record):
    event: Literal["began"] = "began"
    at: Moment = Field(default_factory=Moment.now)
    kind: Annotated[str, Field(description="'bisection', 'fuzz session'")]
    folder: str
    resume: Annotated[str, Field(description="the command that goes on with it")]


class Ended(Record):
    event: Literal["ended"] = "ended"
    at: Moment = Field(default_factory=Moment.now)
    kind: str
    folder: str
    state: str
    failure: str = ""
    resume: str = ""


CampaignEvent: TypeAlias = Annotated[
    Began | RunBegan | RunEnded | Found | Note | Ended, Field(discriminator="event")
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
