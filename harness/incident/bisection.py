"""A bisection as it is written to ``bisection.json``. Reports are made from it alone."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Literal

from mmrepro.incident import Fidelity
from mmrepro.incident.ledger import Attempt
from mmrepro.incident.searched import SearchDocument
from mmrepro.records import Record, WheelFacts
from pydantic import Field

BISECTION_FILE = "bisection.json"
BISECTION_VERSION: Final = 1

By = Literal["release", "commit"]
Find = Literal["introduced", "fixed", "both"]


class PointVerdict(StrEnum):
    """What a point's runs show together."""

    BAD = "bad"
    """The failure, with its symptom and its cause."""
    GOOD = "good"
    """Not reproduced, where the gate passed, the trigger arrived and the engine works after it."""
    OTHER = "different-failure"
    UNTESTABLE = "untestable"
    """No run reached a verdict: inconclusive, infrastructure, or a wheel that does not load."""
    BOTH = "both"
    """Runs contradict each other."""


class SideConclusion(StrEnum):
    FOUND = "found"
    RANGE = "range"
    """The boundary lies in a gap of points that cannot be tested."""
    NO_BOUNDARY = "no-boundary"
    """The failure is in the last point on that side, too."""
    NO_FAILURE = "no-failure"
    """The failure was seen in no point that was run."""
    INCONCLUSIVE = "inconclusive"


class Point(Record):
    """A release or commit, and what was seen of it."""

    name: Annotated[str, Field(description="the release, or the commit")]
    release: Annotated[str, Field(description="that is installed; of a commit, its wheel's")] = ""
    commit: str = ""
    subject: Annotated[str, Field(description="of the commit")] = ""
    uploaded: Annotated[str, Field(description="of the wheel, or the commit's date; RFC 3339")] = ""
    declared: Annotated[bool, Field(description="the scenario declares it affected")] = False
    verdict: Annotated[PointVerdict | None, Field(description="None: it was not run")] = None
    why: str = ""
    fetched: Annotated[bool, Field(description="its environment was made for this")] = False
    wheel: WheelFacts | None = None
    fidelity: Fidelity | None = None
    runs: list[Attempt] = []


class Chance(Record):
    """One position of a boundary in the posterior."""

    last_bad: Annotated[str, Field(description="the last point with the failure, going outward")]
    probability: float


class Side(Record):
    """What was found on one side of the known bad point."""

    conclusion: SideConclusion
    first_bad: Annotated[str | None, Field(description="introduced: the first with it")] = None
    first_good: Annotated[str | None, Field(description="fixed: the first without it")] = None
    between: Annotated[
        list[str], Field(description="the two testable points next to the boundary, older first")
    ] = []
    one_of: Annotated[
        list[str], Field(description="in a range: the points of which one is the first")
    ] = []
    verified: Annotated[
        bool, Field(description="nothing lies between, and both sides were run again and agree")
    ] = False
    runs: Annotated[int, Field(description="that were made for this side")] = 0
    before: Annotated[
        str, Field(description="introduced: what the point before shows; good, different-failure")
    ] = ""
    after: Annotated[str, Field(description="fixed: likewise of the point after it")] = ""
    explanation: Annotated[str, Field(description="one plain sentence")] = ""
    notes: list[str] = []
    other_between: Annotated[
        list[str], Field(description="where the different failure gives way to good")
    ] = []
    returned: Annotated[
        list[str], Field(description="points beyond the boundary that have the failure again")
    ] = []
    posterior: Annotated[
        list[Chance], Field(description="after a contradiction: where the boundary may lie")
    ] = []
    rate: Annotated[float | None, Field(description="how often the failure shows")] = None


class Bisection(SearchDocument):
    """One search for the release or commit that a failure came in or went with."""

    document: Annotated[Literal["urn:mmrepro:bisection:1"], Field(alias="$id")] = (
        "urn:mmrepro:bisection:1"
    )
    by: By
    find: Find
    confidence: float
    repeat: Annotated[int | None, Field(description="runs of each point; None: as needed")] = None
    linear: Annotated[bool, Field(description="one after another, not a search")] = False
    known_bad: Annotated[str, Field(description="the point that the search starts from")] = ""
    points: Annotated[list[Point], Field(description="oldest first")] = []
    introduced: Side | None = None
    fixed: Side | None = None

    def point(self, name: str) -> Point | None:
        return next((point for point in self.points if point.name == name), None)

    @property
    def runs(self) -> int:
        return sum(len(point.runs) for point in self.points)

    @property
    def seconds(self) -> float:
        return sum(run.seconds for point in self.points for run in point.runs)
