"""What the documents of campaigns have in common."""

from __future__ import annotations

from typing import Annotated, Literal

from mmrepro.incident import HostFacts, ScenarioFacts, StandIn
from mmrepro.records import Document, Moment
from pydantic import Field


class CampaignDocument(Document):
    """A campaign, whole or as far as it came."""

    schema_version: Literal[1] = 1
    mmrepro_version: str
    id: str
    created: Moment
    finished: Moment | None = None
    state: Literal["complete", "interrupted", "failed"]
    failure: Annotated[str, Field(description="why it is partial")] = ""
    command: Annotated[str, Field(description="that repeats it")]
    resume: Annotated[str, Field(description="that goes on with it")] = ""


class SearchDocument(CampaignDocument):
    """A search over cells of one scenario."""

    scenario: ScenarioFacts
    engine: str
    device: str
    host: HostFacts
    stand_ins: list[StandIn] = []
    limits: Annotated[list[str], Field(description="what this does not establish")] = []
