"""Bisections and ablations, as they are written to ``bisection.json`` and
``ablation.json``, and what the documents of campaigns have in common. Reports are made
from a document alone."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Any, Literal

import mmrepro
from mmrepro.base.records import (
    Document,
    Fidelity,
    HostFacts,
    Moment,
    Record,
    StandIn,
    WheelFacts,
)
from mmrepro.failure.documents.ledger import Attempt
from mmrepro.failure.documents.model import ClaimResult, ScenarioFacts
from mmrepro.failure.signature import Outcome, Truth
from pydantic import Field


class CampaignDocument(Document):
    """A campaign, whole or as far as it came."""

    mmrepro_version: str
    id: str
    created: Moment
    finished: Moment | None = None
    state: Literal["complete", "interrupted", "failed"]
    failure: Annotated[str, Field(description="why it is partial")] = ""
    command: Annotated[str, Field(description="that repeats it")]
    resume: Annotated[str, Field(description="that goes on with it")] = ""


def begun(what: str, command: str, resume: str) -> dict[str, Any]:
    """The facts of a campaign's document before the campaign has ended.

    Args:
        what: that people call it: "replay".
        command: that repeats it.
        resume: the command that goes on with it.
    """
    return {
        "mmrepro_version": mmrepro.__version__,
        "id": uuid.uuid4().hex[:12],
        "created": Moment.now(),
        "state": "interrupted",
        "failure": f"the {what} has not ended; to resume, run: {resume}",
        "command": command,
    }


class SearchDocument(CampaignDocument):
    """A search over cells of one scenario."""

    scenario: ScenarioFacts
    engine: str
    device: str
    host: HostFacts
    stand_ins: list[StandIn] = []
    limits: Annotated[list[str], Field(description="what this does not establish")] = []


BISECTION_FILE = "bisection.json"

By = Literal["release", "commit"]
Find = Literal["introduced", "fixed", "both"]


class PointVerdict(StrEnum):
    """What a point's runs show together."""

    BAD = "bad"
    """The failure, with its symptom and its cause."""
    GOOD = "good"
    """Not reproduced, where the gate passed, the trigger arrived and the engine works
    after it."""
    OTHER = "different-failure"
    UNTESTABLE = "untestable"
    """No run reached a verdict: inconclusive, infrastructure, or a wheel that does not
    load."""
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
    release: Annotated[
        str, Field(description="that is installed; of a commit, its wheel's")
    ] = ""
    commit: str = ""
    subject: Annotated[str, Field(description="of the commit")] = ""
    uploaded: Annotated[
        str, Field(description="of the wheel, or the commit's date; RFC 3339")
    ] = ""
    declared: Annotated[
        bool, Field(description="the scenario declares it affected")
    ] = False
    verdict: Annotated[
        PointVerdict | None, Field(description="None: it was not run")
    ] = None
    why: str = ""
    fetched: Annotated[bool, Field(description="its environment was made for this")] = (
        False
    )
    wheel: WheelFacts | None = None
    fidelity: Fidelity | None = None
    runs: list[Attempt] = []

    @property
    def label(self) -> str:
        """A release; of a commit its first digits, with the version that its wheel
        has."""
        if not self.commit:
            return self.name
        if ".src" in self.release:  # of a source tree: it names the commit as well
            return self.commit[:12]
        return (
            f"{self.commit[:12]} ({self.release})" if self.release else self.commit[:12]
        )


class Chance(Record):
    """One position of a boundary in the posterior."""

    last_bad: Annotated[
        str, Field(description="the last point with the failure, going outward")
    ]
    probability: float


class Side(Record):
    """What was found on one side of the known bad point."""

    conclusion: SideConclusion
    first_bad: Annotated[
        str | None, Field(description="introduced: the first with it")
    ] = None
    first_good: Annotated[
        str | None, Field(description="fixed: the first without it")
    ] = None
    between: Annotated[
        list[str],
        Field(description="the two testable points next to the boundary, older first"),
    ] = []
    one_of: Annotated[
        list[str], Field(description="in a range: the points of which one is the first")
    ] = []
    verified: Annotated[
        bool,
        Field(
            description="nothing lies between, and both sides were run again and agree"
        ),
    ] = False
    runs: Annotated[int, Field(description="that were made for this side")] = 0
    before: Annotated[
        str,
        Field(
            description=(
                "introduced: what the point before shows; good, different-failure"
            )
        ),
    ] = ""
    after: Annotated[
        str, Field(description="fixed: likewise of the point after it")
    ] = ""
    explanation: Annotated[str, Field(description="one plain sentence")] = ""
    notes: list[str] = []
    other_between: Annotated[
        list[str], Field(description="where the different failure gives way to good")
    ] = []
    returned: Annotated[
        list[str],
        Field(description="points beyond the boundary that have the failure again"),
    ] = []
    posterior: Annotated[
        list[Chance],
        Field(description="after a contradiction: where the boundary may lie"),
    ] = []
    rate: Annotated[float | None, Field(description="how often the failure shows")] = (
        None
    )


class Bisection(SearchDocument, kind="bisection"):
    """One search for the release or commit that a failure came in or went with."""

    by: By
    find: Find
    confidence: float
    repeat: Annotated[
        int | None, Field(description="runs of each point; None: as needed")
    ] = None
    linear: Annotated[bool, Field(description="one after another, not a search")] = (
        False
    )
    measure: Annotated[
        str, Field(description="the metric that moved; empty: a failure")
    ] = ""
    known_bad: Annotated[
        str, Field(description="the point that the search starts from")
    ] = ""
    points: Annotated[list[Point], Field(description="oldest first")] = []
    introduced: Side | None = None
    fixed: Side | None = None

    @property
    def sides(self) -> list[tuple[str, Side]]:
        """The sides that were asked for, each with its direction."""
        both = (("introduced", self.introduced), ("fixed", self.fixed))
        return [(direction, side) for direction, side in both if side is not None]

    @property
    def ran(self) -> list[Point]:
        return [point for point in self.points if point.verdict is not None]

    def point(self, name: str) -> Point | None:
        return next((point for point in self.points if point.name == name), None)

    @property
    def runs(self) -> int:
        return sum(len(point.runs) for point in self.points)

    @property
    def seconds(self) -> float:
        return sum(run.seconds for point in self.points for run in point.runs)


ABLATION_FILE = "ablation.json"


class CellState(StrEnum):
    """What a run, or a cell of several runs, shows."""

    FAILS = "fails"
    """The failure, with its symptom and its cause."""
    CURED = "cured"
    """No symptom, the engine works, and the cause was seen to be gone."""
    HIDDEN = "hidden"
    """No symptom, and the cause was seen to be still there."""
    OTHER = "other-failure"
    """It fails, but not like that."""
    UNDECIDED = "undecided"
    """Too little is known: the cause could not be seen, say, or the runs differ."""
    NOT_TESTED = "not-tested"
    """A flip was not seen to take effect: whatever the run shows, it shows nothing of
    it."""
    LOST = "lost"
    """No verdict was reached: infrastructure."""


class FactorClass(StrEnum):
    """What an ablation says of a factor; the words are defined in docs/ablate.md."""

    NECESSARY = "necessary"
    SUFFICIENT = "sufficient-cure"
    CONTRIBUTES = "contributes"
    IRRELEVANT = "irrelevant"
    HIDES = "hides-it"
    OTHER = "other-failure"
    NOT_TESTED = "not-tested"
    INCONCLUSIVE = "inconclusive"


class Conclusion(StrEnum):
    CURE = "cure-found"
    NO_CURE = "no-cure"
    INCONCLUSIVE = "inconclusive"


Role = Literal["baseline", "alone", "together", "search"]


class CellRun(Record):
    """One run of a cell, kept in the cache as it is."""

    key: Annotated[
        str, Field(description="digest of all that decides the run's outcome")
    ]
    index: Annotated[int, Field(description="1 for the first run of its cell")]
    created: Moment
    seconds: Annotated[
        float, Field(description="wall-clock seconds from start to reports")
    ]
    outcome: Outcome | None = None
    gate_passed: bool = False
    symptom: Annotated[
        Truth, Field(description="all required conditions of the symptom")
    ]
    symptom_observed: str = ""
    cause: Annotated[
        Truth, Field(description="met: the cause is there, also without the symptom")
    ]
    cause_observed: str = ""
    explanation: str = ""
    without_effect: Annotated[
        str,
        Field(description="flips that were not seen to take effect, and what was seen"),
    ] = ""
    fidelity: Fidelity | None = None
    start_mode: Annotated[
        str, Field(description='cold, fork or warm; "": none was used')
    ] = ""
    stand_ins: list[StandIn] = []
    error: Annotated[str, Field(description="why there is no verdict")] = ""
    retried: Annotated[str, Field(description="why a first attempt was lost")] = ""
    incident_dir: str = ""
    command: Annotated[str, Field(description="the one command that repeats it")] = ""


class Cell(Record):
    """A set of flipped factors, and the runs with it."""

    flips: Annotated[
        list[str], Field(description="names; all others are as in the baseline")
    ]
    role: Role
    state: CellState
    why: str
    runs: list[CellRun]
    reused: Annotated[
        int, Field(description="how many of the runs this call did not make")
    ] = 0

    def count(self, outcome: Outcome) -> int:
        return sum(run.outcome is outcome for run in self.runs)


class FactorResult(Record):
    name: str
    description: str
    failing: Annotated[str, Field(description="setting in the failing baseline")]
    setting: Annotated[str, Field(description="the other setting")]
    claim: Annotated[str, Field(description="what is said of it")] = ""
    factor_class: Annotated[
        FactorClass | None, Field(description="None: not judged yet")
    ] = None
    cures_alone: Annotated[bool | None, Field(description="None: not known")] = None
    needed: Annotated[
        bool | None,
        Field(description="nothing that was tried cures without it; None: not known"),
    ] = None
    why: str = ""


class Cure(Record):
    """A set of flips that cures, none of which can be left out."""

    flips: list[str]
    settings: str
    minimal: Annotated[
        bool | None,
        Field(description="every smaller set was seen not to cure; None: not known"),
    ]
    why: str


class Ablation(SearchDocument, kind="ablation"):
    """One ablation, whole or as far as it came."""

    release: str
    fidelity: Fidelity | None = None
    repeat: Annotated[int, Field(description="runs of each cell")] = 1
    threshold: Annotated[
        int, Field(description="failing runs that make a cell fail")
    ] = 1
    factors: list[FactorResult]
    cells: list[Cell] = []
    left_out: Annotated[
        dict[str, str], Field(description="factors left out of combinations, and why")
    ] = {}
    cures: list[Cure] = []
    conclusion: Conclusion | None = None
    explanation: str = ""
    hypotheses: list[ClaimResult] = []

    def factor(self, name: str) -> FactorResult | None:
        return next((f for f in self.factors if f.name == name), None)

    def cell(self, flips: Iterable[str]) -> Cell | None:
        """The cell with exactly these flips."""
        wanted = set(flips)
        return next((c for c in self.cells if set(c.flips) == wanted), None)

    @property
    def runs(self) -> int:
        return sum(len(cell.runs) for cell in self.cells)

    @property
    def reused(self) -> int:
        return sum(cell.reused for cell in self.cells)
