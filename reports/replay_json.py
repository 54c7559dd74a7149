"""A replay for machines, as ``mmrepro replay --json`` prints it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from mmrepro.incident.replay import Finding, FindingClass, Rate, Replay, Sighting
from mmrepro.records import Record
from mmrepro.reports import replay_view as view
from pydantic import ConfigDict, Field


class ToldRate(Record):
    """How often it shows; the interval holds the true rate in 95 of 100 cases."""

    failed: int
    plays: int
    low: float
    high: float
    confidence: float


class ToldFinding(Record):
    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    id: str
    finding_class: Annotated[FindingClass, Field(alias="class")]
    known: Annotated[str | None, Field(description="a scenario's name")]
    known_variant: str = ""
    known_why: str = ""
    confirmed: bool
    rate: ToldRate
    requests: Annotated[int, Field(description="after shrinking")]
    requests_before: int
    shrunk: Annotated[bool, Field(description="nothing more can be left out, as was tried")]
    folder: Annotated[str, Field(description="with case.json, reproduce.py and the report")]
    bucket: str
    said: str
    expected: str
    also: Annotated[list[str], Field(description="what else the same requests show")] = []
    starts: int
    seconds: float


class ToldReplay(Record):
    """What ``mmrepro replay --json`` prints; all the rest is in the folder's ``replay.json``."""

    schema_version: Literal[1] = 1
    id: str
    state: Literal["complete", "interrupted", "failed"]
    failure: str = ""
    exit_code: int
    folder: str
    engine: str
    release: str
    requests: Annotated[int, Field(description="before anything was left out")]
    starts: Annotated[int, Field(description="of servers")]
    budget: int
    seconds: float
    findings: list[ToldFinding] = []
    unconfirmed: list[Sighting] = []
    counted: dict[str, int] = {}
    unseen: list[str] = []
    limits: list[str] = []
    command: str
    resume: str = ""


def replay_json(replay: Replay, folder: Path) -> str:
    """One document that ends with a newline."""
    return told(replay, folder).model_dump_json(indent=1, by_alias=True) + "\n"


def told(replay: Replay, folder: Path) -> ToldReplay:
    return ToldReplay(
        id=replay.id,
        state=replay.state,
        failure=replay.failure,
        exit_code=replay.exit_code if replay.state != "failed" else 4,
        folder=str(folder),
        engine=replay.server.engine,
        release=replay.server.release,
        requests=replay.requests,
        starts=view.starts(replay),
        budget=replay.budget,
        seconds=round(view.seconds(replay), 2),
        findings=[told_finding(finding, folder / finding.folder) for finding in replay.findings],
        unconfirmed=replay.unconfirmed,
        counted=replay.counted,
        unseen=replay.unseen,
        limits=replay.limits,
        command=replay.command,
        resume=replay.resume,
    )


def told_finding(finding: Finding, folder: Path) -> ToldFinding:
    """``folder``: the finding's."""
    return ToldFinding(
        id=finding.id,
        finding_class=finding.finding_class,
        known=finding.known,
        known_variant=finding.known_variant,
        known_why=finding.known_why,
        confirmed=finding.confirmed,
        rate=_rate(finding.rate),
        requests=finding.requests,
        requests_before=finding.requests_before,
        shrunk=finding.shrunk,
        folder=str(folder),
        bucket=finding.bucket,
        said=finding.said,
        expected=view.expected(finding),
        also=finding.also,
        starts=finding.starts,
        seconds=finding.seconds,
    )


def _rate(rate: Rate) -> ToldRate:
    return ToldRate.model_validate(rate.model_dump())
