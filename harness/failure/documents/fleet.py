"""Several servers as data: what ``mmrepro diagnose URL URL… --json`` prints and
keeps."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from mmrepro.base.records import Document, Moment, Record
from mmrepro.failure.documents.cause import Certainty
from mmrepro.failure.documents.diagnosis import COULD_NOT_TELL, Diagnosis
from pydantic import Field

FLEET_FILE = "fleet.json"


class Part(StrEnum):
    """What a server is for."""

    REPLICA = "replica"
    PREFILL = "prefill"
    DECODE = "decode"


class FleetState(StrEnum):
    ALL_WELL = "all-well"
    ODD_ONE_OUT = "odd-one-out"
    ALL_UNWELL = "all-unwell"
    TRANSFER_STANDS = "transfer-stands"
    PREFILLS_LOCALLY = "prefills-locally"
    UNKNOWN = "unknown"


FLEET_WORDS: dict[FleetState, str] = {
    FleetState.ALL_WELL: "all well",
    FleetState.ODD_ONE_OUT: "odd one out: one server is unlike the others",
    FleetState.ALL_UNWELL: "all unwell: no server of this kind works",
    FleetState.TRANSFER_STANDS: (
        "transfer stands: no KV cache goes from prefill to decode"
    ),
    FleetState.PREFILLS_LOCALLY: (
        "prefills locally: a decode server computes its prompts itself"
    ),
    FleetState.UNKNOWN: "undecided",
}


class Scraped(Record):
    """What a Prometheus server says of a target."""

    job: str = ""
    instance: str = ""
    health: Annotated[
        str, Field(description="up, down, unknown; empty: it lists no targets")
    ] = ""
    last_error: str = ""
    seconds: Annotated[
        float, Field(description="between the two readings that it holds")
    ] = 0.0
    running: list[float] = []
    waiting: list[float] = []
    tokens: Annotated[
        list[float], Field(description="prompt and generated tokens, counted")
    ] = []

    @property
    def stands(self) -> bool:
        """Whether requests run or wait at both moments, and no token is counted between
        them."""
        whole = [values for values in (self.running, self.waiting) if len(values) == 2]
        busy = [sum(values) for values in zip(*whole, strict=True)]
        still = len(self.tokens) == 2 and len(set(self.tokens)) == 1
        return still and bool(busy) and min(busy) >= 1


class Member(Record):
    """One server of several."""

    name: Annotated[str, Field(description="host and port")]
    url: str
    part: Part = Part.REPLICA
    part_because: str = ""
    diagnosis: Annotated[
        Diagnosis | None, Field(description="None: it could not be made")
    ] = None
    error: str = ""
    scraped: Annotated[
        Scraped | None, Field(description="None: no Prometheus was asked")
    ] = None
    counted: Annotated[
        dict[str, list[float]],
        Field(description="running, waiting, transfers …: each reading"),
    ] = {}
    differs: Annotated[
        list[str], Field(description="in what it is unlike the others")
    ] = []

    @property
    def well(self) -> bool | None:
        """Whether it is well; None: that could not be told."""
        diagnosis = self.diagnosis
        undecided = diagnosis is None or (
            diagnosis.state in COULD_NOT_TELL and not diagnosis.found
        )
        if diagnosis is not None and not undecided:
            return diagnosis.exit_code == 0
        # Prometheus may have seen what could not be looked at.
        stands = self.scraped is not None and self.scraped.stands
        return False if stands else None

    @property
    def sentence(self) -> str:
        scraped = self.scraped
        far = self.diagnosis is None or self.diagnosis.state in COULD_NOT_TELL
        if far and scraped is not None and scraped.stands:
            return (
                "requests run or wait, and no token was counted in "
                f"{scraped.seconds:.0f} s, by Prometheus"
            )
        return self.diagnosis.assessment.sentence if self.diagnosis else self.error


class Finding(Record):
    """One statement about several servers."""

    state: FleetState
    certainty: Certainty
    sentence: Annotated[str, Field(description="what is wrong, for people")]
    servers: Annotated[
        list[str], Field(description="names of those that it is about")
    ] = []
    why: list[str] = []
    advice: list[str] = []


class Fleet(Document, kind="fleet"):
    mmrepro_version: str = ""
    taken: Moment
    prometheus: str = ""
    state: FleetState
    sentence: str
    findings: Annotated[list[Finding], Field(description="the gravest first")] = []
    members: list[Member]
    unseen: list[str] = []
    seconds: float = 0.0
    incident_dir: str = ""

    @property
    def exit_code(self) -> int:
        """0 all well; 1 something is found; 3 could not be told."""
        if self.state is FleetState.ALL_WELL:
            return 0
        return 3 if self.state is FleetState.UNKNOWN else 1
