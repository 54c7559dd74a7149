"""What a watch keeps of a server at the moment of its fall, before anybody restarts
it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from mmrepro.base.records import Document, Moment, Record
from mmrepro.failure.documents.cause import Cause
from mmrepro.failure.documents.diagnosis import Effect, TargetFacts
from mmrepro.traffic.evidence import Evidence
from pydantic import Field

FALL_FILE = "fall.json"


class RequestShape(Record):
    """A request without its words."""

    id: Annotated[str, Field(description="as the log has it")]
    time: Annotated[str, Field(description="as the log has it; empty: without")] = ""
    line_chars: Annotated[int, Field(description="length of its log line")] = 0
    prompt_tokens: int | None = None
    max_tokens: int | None = None
    features: Annotated[
        list[str], Field(description="pictures, adapter, grammar, logprobs, several")
    ] = []


class FallRecord(Document, kind="fall"):
    """The evidence of one look at a server that has just failed a check."""

    mmrepro_version: str = ""
    taken: Moment
    why: Annotated[str, Field(description="the check that failed")]
    deadline_s: float
    complete: Annotated[
        bool, Field(description="false: it was written while more was collected")
    ] = False
    target: TargetFacts
    evidence: Evidence
    cause: Annotated[Cause | None, Field(description="by its log")] = None
    requests: Annotated[
        list[RequestShape], Field(description="added after the last work, oldest first")
    ] = []
    unseen: list[str] = []
    effect: Effect = Effect()

    @property
    def oldest(self) -> RequestShape | None:
        """The open request that waits longest, as far as the log tells."""
        return self.requests[0] if self.requests else None


def read_fall(folder: Path) -> FallRecord:
    """The record in ``folder``, or the newest one below it.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it is damaged.
    """
    own = folder / FALL_FILE
    if not own.is_file():
        below = sorted(folder.glob(f"*/{FALL_FILE}"))
        if not below:
            raise FileNotFoundError(own)
        own = below[-1]
    return FallRecord.model_validate_json(own.read_bytes())
