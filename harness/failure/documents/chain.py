"""A gateway and what stands behind it: which hop a failure is at."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from mmrepro.base.records import Document, Moment, Record
from mmrepro.failure.documents.cause import Certainty
from pydantic import Field


class HopState(StrEnum):
    """What one hop of a chain is, asked by itself."""

    WELL = "well"
    DEAD = "dead"
    HUNG = "hung"
    HALF_OPEN = "half-open"
    REFUSING = "refusing"
    FAILING = "failing"
    SLOW = "slow"
    OTHER_SERVER = "other-server"
    WRONG_MODEL = "wrong-model"
    UNREACHABLE = "unreachable"


HOP_WORDS: dict[HopState, str] = {
    HopState.WELL: "answers",
    HopState.DEAD: "is dead: nothing listens there",
    HopState.HUNG: "is hung: it lists its models and answers no request",
    HopState.HALF_OPEN: "takes connections and answers nothing",
    HopState.REFUSING: "refuses the request",
    HopState.FAILING: "fails",
    HopState.SLOW: "is slow",
    HopState.OTHER_SERVER: "is no inference server: a wrong port, perhaps",
    HopState.WRONG_MODEL: "does not serve the model that the gateway asks for",
    HopState.UNREACHABLE: "cannot be reached from here",
}


class Hop(Record):
    """A gateway, or a server behind it."""

    url: str
    state: HopState
    told: Annotated[str, Field(description="what it did, in our own words")] = ""
    seconds: float | None = None
    models: list[str] = []
    called_healthy: Annotated[
        bool | None, Field(description="by the gateway; null: it does not tell")
    ] = None


class Chain(Document, kind="chain"):
    """What ``mmrepro diagnose GATEWAY --through --json`` prints."""

    taken: Moment
    gateway: Hop
    workers: list[Hop] = []
    found_by: Annotated[str, Field(description="how the workers were found")] = ""
    asked: Annotated[int, Field(description="small requests through the gateway")] = 0
    answered: int = 0
    at: Annotated[
        list[str],
        Field(description="addresses of the hops that are wrong; []: none is"),
    ] = []
    between: Annotated[
        bool, Field(description="the failure is between the gateway and its workers")
    ] = False
    certainty: Certainty = Certainty.LIKELY
    sentence: str = ""
    advice: list[str] = []

    @property
    def exit_code(self) -> int:
        """0: all is well; 1: a hop is wrong; 3: it could not be told."""
        if self.at or self.between:
            return 1
        return 0 if self.gateway.state is HopState.WELL else 3
