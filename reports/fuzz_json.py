"""A fuzzing session for machines, as ``mmrepro fuzz --json`` prints it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from mmrepro.case.model import ServerWanted
from mmrepro.incident.replay import FindingClass, Found, Fuzz
from mmrepro.records import Record
from mmrepro.reports.replay_json import ToldFinding, told_finding
from pydantic import ConfigDict, Field


class ToldFound(ToldFinding):
    """``id``: F1, F2 …, in the order in which they were seen."""

    after_s: Annotated[float, Field(description="seconds of fuzzing before it was first seen")]
    episode: int


class ToldOnce(Record):
    """What one episode showed, and no further play."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    finding_class: Annotated[FindingClass, Field(alias="class")]
    bucket: str
    said: str
    episode: int


class ToldFuzz(Record):
    """What ``mmrepro fuzz --json`` prints; all the rest is in the folder's ``fuzz.json``."""

    schema_version: Literal[1] = 1
    id: str
    state: Literal["complete", "interrupted", "failed"]
    failure: str = ""
    exit_code: int
    folder: str
    server: ServerWanted
    profile: str
    seed: int
    blind: Annotated[bool, Field(description="nothing was named")] = False
    starts: Annotated[int, Field(description="of servers, all together")]
    episodes: int
    requests: Annotated[int, Field(description="of the episodes, without what pursued them")]
    seconds: Annotated[float, Field(description="of the budget")]
    budget: Annotated[float, Field(description="in seconds")]
    findings: list[ToldFound] = []
    once: Annotated[list[ToldOnce], Field(description="seen once, and not again")] = []
    counted: dict[str, int] = {}
    unseen: list[str] = []
    limits: list[str] = []
    command: str
    resume: str = ""


def fuzz_json(fuzz: Fuzz, folder: Path) -> str:
    """One document that ends with a newline."""
    return told(fuzz, folder).model_dump_json(indent=1, by_alias=True) + "\n"


def told(fuzz: Fuzz, folder: Path) -> ToldFuzz:
    return ToldFuzz(
        id=fuzz.id,
        state=fuzz.state,
        failure=fuzz.failure,
        exit_code=fuzz.exit_code if fuzz.state != "failed" else 4,
        folder=str(folder),
        server=fuzz.server,
        profile=fuzz.profile,
        seed=fuzz.seed,
        blind=fuzz.blind,
        starts=fuzz.starts,
        episodes=len(fuzz.episodes),
        requests=fuzz.requests,
        seconds=round(fuzz.elapsed_s, 2),
        budget=fuzz.budget_s,
        findings=[_found(found, folder) for found in fuzz.found],
        once=[
            ToldOnce(
                finding_class=one.sighting.finding_class,
                bucket=one.sighting.bucket,
                said=one.sighting.said,
                episode=one.episode,
            )
            for one in fuzz.once
        ],
        counted=fuzz.counted,
        unseen=fuzz.unseen,
        limits=fuzz.limits,
        command=fuzz.command,
        resume=fuzz.resume,
    )


def _found(found: Found, folder: Path) -> ToldFound:
    one = told_finding(found.finding, folder / found.folder)
    return ToldFound(
        **{**one.model_dump(), "id": found.id},
        after_s=round(found.after_s, 2),
        episode=found.episode,
    )
