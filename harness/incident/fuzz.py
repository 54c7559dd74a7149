"""A fuzzing session as it is written to ``fuzz.json``. Reports need it and nothing else."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from mmrepro.case.model import ServerWanted
from mmrepro.incident import Fidelity, HostFacts, StandIn
from mmrepro.incident.replay import Finding, Sighting
from mmrepro.incident.searched import CampaignDocument
from mmrepro.records import Record, Setting, WheelFacts
from pydantic import Field, StringConstraints

FUZZ_FILE = "fuzz.json"
FUZZ_VERSION: Final = 1
EPISODES_FILE = "episodes.jsonl"
"""Beside it: a line for each episode that began, ended, or was pursued; ``--resume`` reads it."""
EPISODES_DIR = "episodes"
"""Below the session's folder: ``0007/case.json`` is what episode 7 sent."""

Place = Annotated[
    str, StringConstraints(pattern=r"^(?:e\d{4,6}(?:-f\d{1,4}){0,2}(?:/f\d{1,4})?)?$")
]


class Learnt(Record):
    """One number of the server that lengths are chosen around."""

    name: Annotated[str, Field(description="context, KV cache, block, batch, or a refusal's")]
    tokens: int
    source: Annotated[str, Field(description="where it was told")]


class Episode(Record):
    """One run of generated requests on one fresh server."""

    number: Annotated[int, Field(description="0: the one that learns the server's limits")]
    kind: Literal["learning", "mixed", "steady", "many"]
    origin: Annotated[
        str, Field(description='"new", or what it was changed from: "episode 3", a file\'s name')
    ] = "new"
    switches: Annotated[list[str], Field(description="what its requests may have")] = []
    requests: int
    state: Annotated[str, Field(description="how its play ended")] = ""
    answers: Annotated[
        dict[str, int], Field(description="status, stuck, left, unsent or broken: requests")
    ] = {}
    buckets: Annotated[list[str], Field(description="of what the oracles hold against it")] = []
    new: Annotated[int, Field(description="things seen that no episode before it showed")] = 0
    compared: Annotated[bool, Field(description="its answers were held against a reference")] = (
        False
    )
    starts: Annotated[int, Field(description="of servers, without what pursued it")] = 1
    seconds: float = 0.0
    pursued: Annotated[Place, Field(description="folder of the replay that pursued it")] = ""


class Found(Record):
    """A finding, and where it came from."""

    id: Annotated[str, Field(description="F1, F2 …, in the order in which they were seen")]
    episode: int
    after_s: Annotated[float, Field(description="seconds of fuzzing before it was first seen")]
    replay: Annotated[Place, Field(description="folder of the replay that pursued it")]
    folder: Annotated[Place, Field(description="of the finding: report, case, reproduce.py")]
    finding: Finding


class SeenOnce(Record):
    """What one episode showed, and no further play."""

    episode: int
    sighting: Sighting


class Fuzz(CampaignDocument):
    """One session: episodes in, findings out. Nothing is claimed absent."""

    document: Annotated[Literal["urn:mmrepro:fuzz:1"], Field(alias="$id")] = "urn:mmrepro:fuzz:1"
    server: ServerWanted
    profile: str
    seed: int
    budget_s: float
    elapsed_s: Annotated[float, Field(description="of the budget, earlier calls included")] = 0.0
    blind: Annotated[bool, Field(description="nothing was named")] = False
    source: Annotated[str, Field(description="--from: the file's name, without folders")] = ""
    host: HostFacts
    fidelity: Fidelity
    stand_ins: list[StandIn] = []
    settings: list[Setting] = []
    wheel: WheelFacts | None = None
    packages: list[str] = []
    start_mode: str = ""
    deadline_s: float | None = None
    learnt: list[Learnt] = []
    episodes: list[Episode] = []
    features: Annotated[
        dict[str, int],
        Field(description="different things seen: log lines, answers, metrics, pairs of requests"),
    ] = {}
    found: list[Found] = []
    once: Annotated[list[SeenOnce], Field(description="seen once, and not again")] = []
    starts: Annotated[int, Field(description="of servers, all together")] = 0
    pursuing_s: Annotated[float, Field(description="of elapsed_s, spent on findings")] = 0.0
    counted: dict[str, int] = {}
    unseen: list[str] = []
    limits: list[str] = []

    @property
    def requests(self) -> int:
        """Sent by episodes, without what pursued them."""
        return sum(episode.requests for episode in self.episodes)

    @property
    def exit_code(self) -> int:
        """1: unknown and confirmed; 3: unproven only; 0: neither."""
        if any(f.finding.confirmed and f.finding.known is None for f in self.found):
            return 1
        unproven = any(not f.finding.confirmed for f in self.found) or bool(self.once)
        return 3 if unproven else 0
