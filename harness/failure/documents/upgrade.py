"""A comparison of two engines under the same traffic, as it is written to
``upgrade.json``.

Reports need the document alone. The runs behind it lie beside it, one folder a run.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from mmrepro.base.records import HostFacts, Moment, Record
from mmrepro.failure.documents.replay import Sighting
from mmrepro.failure.documents.searches import CampaignDocument
from mmrepro.traffic.case import Origin, Played, PlayState, ServerWanted
from pydantic import Field, JsonValue

UPGRADE_FILE = "upgrade.json"
RUNS_FILE = "runs.jsonl"
"""Beside it: one line for each run that began and each that ended; ``--resume`` reads
it."""

Side = Literal["old", "new"]


class Area(StrEnum):
    """What is compared; a report lists the differences in this order."""

    START = "start"
    FAILURES = "failures"
    ANSWERS = "answers"
    PROTOCOL = "protocol"
    SPEED = "speed"
    MEMORY = "memory"


class Outcome(StrEnum):
    DIFFERENCE = "difference"
    NONE = "none"
    """No difference, as far as the ``statement`` claims it: 'no difference above 3
    %'."""
    UNTOLD = "untold"
    """It could not be established; the ``statement`` has the reason."""


class Difference(Record):
    """One statement about the two sides."""

    area: Area
    subject: Annotated[str, Field(description="'TTFT, median', '--enable-foo', 'r3'")]
    outcome: Outcome
    matters: Annotated[
        bool, Field(description="above the threshold, or of a kind that always matters")
    ] = False
    statement: Annotated[
        str, Field(description="one sentence: 'slower by 7 % (4 to 10)'")
    ]
    old: Annotated[JsonValue, Field(description="the old side's value")] = None
    new: JsonValue = None
    interval: Annotated[
        tuple[float, float] | None,
        Field(
            description=(
                "relative change, 0.07 is 7 %; simultaneous over all metrics and looks"
            )
        ),
    ] = None
    evidence: Annotated[
        list[str], Field(description="request ids, source lines, files")
    ] = []
    decides: Annotated[
        bool,
        Field(
            description=(
                "the comparison is not complete without it: untold, it exits with 3"
            )
        ),
    ] = True
    unit: Annotated[
        str, Field(description="of old and new, where they are measured")
    ] = ""
    metric: Annotated[
        str, Field(description="name of what was measured, as --worse takes it")
    ] = ""


class OptionSeen(Record):
    """An option of a server, as its ``--help`` lists it."""

    name: Annotated[str, Field(description="the first long spelling: --max-model-len")]
    aliases: list[str] = []
    value: Annotated[
        str, Field(description='placeholder of its value; "": a switch')
    ] = ""
    default: str | None = None
    choices: list[str] = []
    text: str = ""


class SideRun(Record):
    """One server of one side, on which all of the traffic was played once.

    Of the journal: ``played`` is kept beside it, in the run's folder. ``options`` and
    ``config`` are of a side's first run."""

    side: Side
    index: Annotated[int, Field(description="which of its side's runs, from 1")]
    played: Annotated[
        Played | None,
        Field(description="all that was recorded; None: not read back yet"),
    ] = None
    state: PlayState = PlayState.ENDED
    error: Annotated[
        str, Field(description="why it did not start, or how it ended")
    ] = ""
    start_s: Annotated[float, Field(description="seconds from the start to ready")] = (
        0.0
    )
    seconds: Annotated[float, Field(description="of all of it")] = 0.0
    sightings: Annotated[
        list[Sighting],
        Field(description="what the oracles call wrong with it by itself"),
    ] = []
    fields: Annotated[
        dict[str, dict[str, list[str]]],
        Field(
            description="of each request's answer: path ('choices[].finish_reason') "
            "and the JSON types that were there; of a stream, all pieces together; "
            "headers likewise"
        ),
    ] = {}
    options: Annotated[
        list[OptionSeen], Field(description="by --help; [] where it is not had")
    ] = []
    config: Annotated[
        dict[str, str],
        Field(description="by the server's own log, or /server_info: name, value"),
    ] = {}
    folder: Annotated[
        str, Field(description="its files, below the campaign's folder")
    ] = ""

    @property
    def started(self) -> bool:
        return self.state is not PlayState.START_FAILED


class Block(Record):
    """A server of each side, measured in turn: the unit of the statistics.

    ``changes``: by metric, the natural logarithm of new over old; what a block could
    not measure is left out. ``old`` and ``new``: the values themselves, in the metric's
    unit."""

    index: int
    first: Side
    changes: dict[str, float] = {}
    old: dict[str, float] = {}
    new: dict[str, float] = {}
    spread: Annotated[
        dict[str, tuple[list[float], list[float]]],
        Field(
            description="by metric: 21 quantiles of single requests, of old and of new"
        ),
    ] = {}
    client_busy: Annotated[
        float, Field(description="the client's own processor time, of one core, 0 to 1")
    ] = 0.0
    noise: Annotated[
        float, Field(description="processor time that others took meanwhile, in cores")
    ] = 0.0
    pace: Annotated[
        float,
        Field(description="milliseconds of a fixed computation before and after it"),
    ] = 0.0
    seconds: float = 0.0
    error: Annotated[str, Field(description="why it measured nothing")] = ""


class Upgrade(CampaignDocument, kind="upgrade"):
    """One comparison, whole or as far as it came."""

    server: Annotated[ServerWanted, Field(description="the old side's")]
    new: Annotated[ServerWanted, Field(description="the new side's")]
    origin: Annotated[Origin, Field(description="of the traffic")] = Origin()
    requests: int = 0
    seed: int = 0
    confidence: float = 0.99
    thresholds: Annotated[
        dict[str, float], Field(description="by metric: 0.03 is 3 %")
    ] = {}
    interleaved: Annotated[
        Literal["requests", "servers"],
        Field(
            description=(
                "both servers at once and their requests in turn, or one after another"
            )
        ),
    ] = "servers"
    host: HostFacts
    differences: list[Difference] = []
    blocks: list[Block] = []
    runs: Annotated[list[SideRun], Field(description="without what was recorded")] = []
    limits: Annotated[list[str], Field(description="what this does not establish")] = []
    began: Annotated[Moment | None, Field(description="of the first block")] = None

    @property
    def matter(self) -> list[Difference]:
        return [one for one in self.differences if one.matters]

    @property
    def exit_code(self) -> int:
        """0 nothing found; 1 a difference that matters; 3 something could not be
        told."""
        if self.matter:
            return 1
        untold = any(
            d.outcome is Outcome.UNTOLD and d.decides for d in self.differences
        )
        return 3 if untold or self.state != "complete" else 0
