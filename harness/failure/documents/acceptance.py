"""``summary.json`` of an acceptance: what was tried on a machine, what was expected and
seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Final, Literal

from mmrepro.base.machine.files import Device
from mmrepro.base.records import Document, HostFacts, Moment, Record
from pydantic import Field

SUMMARY_FILE: Final = "summary.json"
RESULT_FILE: Final = "result.json"
SAMPLES_FILE: Final = "gpu.jsonl"


class Status(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    NOT_TESTED = "not-tested"
    BROKEN_OFF = "broken-off"


class Row(Record):
    """One thing that was asked of the machine."""

    asked: str
    expected: str = ""
    source: Annotated[str, Field(description="where the expectation is from")] = ""
    seen: str
    status: Status
    seconds: Annotated[
        float | None, Field(description="where it was timed by itself")
    ] = None


class StepRecord(Record):
    """One child process, or the reason why there was none."""

    step: str
    title: str
    key: Annotated[
        str, Field(description="of what is run; another key is another step")
    ]
    command: Annotated[str, Field(description="as a person types it")] = ""
    created: Moment
    seconds: float = 0.0
    exit_code: Annotated[
        int | None, Field(description="None: it was ended, or never begun")
    ] = None
    whole: Annotated[bool, Field(description="it came to its end: not run again")]
    over_budget: bool = False
    incident: Annotated[
        str, Field(description="its folder, below that of the summary")
    ] = ""
    rows: list[Row]


class Peak(Record):
    """Least and most of several readings."""

    least: float
    most: float


class GpuUse(Record):
    """Of one GPU over a step; every reading is in ``gpu.jsonl``."""

    step: str
    gpu: int
    readings: int
    utilisation_pct: Peak | None = None
    memory_bytes: Peak | None = None


class PartRecord(Record):
    """``result.json`` of a part: written last, when all its steps are whole or given
    up."""

    schema_version: Literal[1] = 1
    part: str
    title: str
    steps: list[StepRecord]
    gpu: list[GpuUse] = []

    @property
    def rows(self) -> list[Row]:
        return [row for step in self.steps for row in step.rows]

    @property
    def seconds(self) -> float:
        return sum(step.seconds for step in self.steps)

    @property
    def status(self) -> Status:
        """The worst of its rows; what was not tested does not take away what passed."""
        seen = {row.status for row in self.rows}
        for one in (Status.FAILED, Status.BROKEN_OFF, Status.PASSED):
            if one in seen:
                return one
        return Status.NOT_TESTED

    @property
    def whole(self) -> bool:
        return all(step.whole for step in self.steps)


class Acceptance(Document, kind="acceptance"):
    mmrepro_version: str
    created: Moment
    state: Annotated[
        Literal["complete", "interrupted", "failed"],
        Field(description="complete: every step came to its end"),
    ] = "interrupted"
    seconds: Annotated[
        float, Field(description="of this command; of all, see the steps")
    ]
    budget_s: float
    device: Device
    command: str
    resume: Annotated[str, Field(description="the command that goes on with it")]
    host: HostFacts
    parts: list[PartRecord]


def counts(rows: Sequence[Row]) -> str:
    """``7 passed, 1 not tested``."""
    found = Counter(row.status for row in rows)
    words = {status: status.replace("-", " ") for status in Status}
    return ", ".join(f"{found[s]} {words[s]}" for s in Status if found[s]) or "nothing"
