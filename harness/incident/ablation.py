"""An ablation as it is written to ``ablation.json``. Reports are made from it alone."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Literal

from mmrepro.incident import ClaimResult, Fidelity, StandIn
from mmrepro.incident.searched import SearchDocument
from mmrepro.records import Moment, Record
from mmrepro.signature import Outcome, Truth
from pydantic import Field

ABLATION_FILE = "ablation.json"
SCHEMA_VERSION = 1


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
    """A flip was not seen to take effect: whatever the run shows, it shows nothing of it."""
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

    key: Annotated[str, Field(description="digest of all that decides the run's outcome")]
    index: Annotated[int, Field(description="1 for the first run of its cell")]
    created: Moment
    seconds: Annotated[float, Field(description="wall-clock seconds from start to reports")]
    outcome: Outcome | None = None
    gate_passed: bool = False
    symptom: Annotated[Truth, Field(description="all required conditions of the symptom")]
    symptom_observed: str = ""
    cause: Annotated[Truth, Field(description="met: the cause is there, also without the symptom")]
    cause_observed: str = ""
    explanation: str = ""
    without_effect: Annotated[
        str, Field(description="flips that were not seen to take effect, and what was seen")
    ] = ""
    fidelity: Fidelity | None = None
    start_mode: Annotated[str, Field(description='cold, fork or warm; "": none was used')] = ""
    stand_ins: list[StandIn] = []
    error: Annotated[str, Field(description="why there is no verdict")] = ""
    retried: Annotated[str, Field(description="why a first attempt was lost")] = ""
    incident_dir: str = ""
    command: Annotated[str, Field(description="the one command that repeats it")] = ""


class Cell(Record):
    """A set of flipped factors, and the runs with it."""

    flips: Annotated[list[str], Field(description="names; all others are as in the baseline")]
    role: Role
    state: CellState
    why: str
    runs: list[CellRun]
    reused: Annotated[int, Field(description="how many of the runs this call did not make")] = 0

    def count(self, outcome: Outcome) -> int:
        return sum(run.outcome is outcome for run in self.runs)


class FactorResult(Record):
    name: str
    description: str
    failing: Annotated[str, Field(description="setting in the failing baseline")]
    setting: Annotated[str, Field(description="the other setting")]
    claim: Annotated[str, Field(description="what is said of it")] = ""
    factor_class: Annotated[FactorClass | None, Field(description="None: not judged yet")] = None
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
        bool | None, Field(description="every smaller set was seen not to cure; None: not known")
    ]
    why: str


class Ablation(SearchDocument):
    """One ablation, whole or as far as it came."""

    document: Annotated[Literal["urn:mmrepro:ablation:1"], Field(alias="$id")] = (
        "urn:mmrepro:ablation:1"
    )
    release: str
    fidelity: Fidelity | None = None
    repeat: Annotated[int, Field(description="runs of each cell")] = 1
    threshold: Annotated[int, Field(description="failing runs that make a cell fail")] = 1
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
