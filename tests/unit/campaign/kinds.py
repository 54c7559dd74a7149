"""Each kind of campaign on made-up runs, for the contract that all of them keep.

A kind is a function: it opens the campaign in a folder, a new one or one that is gone
on with, and gives what makes its runs up. A run's name goes to ``made`` as its place
makes it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from fake_player import NO_START, FakedReplaying, FakePlayer, Fakes
from fake_plays import SERVER, Answers, fake_case, fake_op
from fuzz_sessions import FakedFuzzing, server, write_replay
from matrix_nights import FakeProvisions, FakeTrials, night, planned
from mmrepro.base.errors import EngineStartError
from mmrepro.base.machine.journal import JournalKind
from mmrepro.base.records import Record
from mmrepro.campaign.ablate.options import AblateCommand
from mmrepro.campaign.ablate.session import Ablating
from mmrepro.campaign.bisect.plan import field_of
from mmrepro.campaign.bisect.session import Bisecting
from mmrepro.campaign.campaign import Policy
from mmrepro.campaign.matrix.session import Nightly, begin
from mmrepro.campaign.work import LocalPlaces, Places
from mmrepro.failure.documents.ledger import Attempt, Cell, Lost
from mmrepro.failure.documents.searches import (
    ABLATION_FILE,
    BISECTION_FILE,
    Ablation,
    Bisection,
)
from mmrepro.failure.documents.upgrade import Block, OptionSeen, Side
from mmrepro.failure.signature import Outcome
from mmrepro.history.ledger import Ledger
from mmrepro.runs.play.options import Measuring
from mmrepro.search.fuzz.knowledge import EPISODES
from mmrepro.search.fuzz.options import FuzzCommand
from mmrepro.search.replay.options import ReplayCommand
from mmrepro.search.replay.store import STUCK, VERDICTS
from mmrepro.search.repro.options import ReproCommand
from mmrepro.search.repro.session import Reproducing
from mmrepro.search.upgrade.options import UpgradeCommand
from mmrepro.search.upgrade.session import RUNS, Upgrading
from mmrepro.traffic.case.files import write_case
from mmrepro.traffic.case.model import Case
from mmrepro.traffic.evidence import Evidence
from test_bisect_session import GHOST, OPTIONS, Made, listed, truth
from worlds import World, WorldTrials, as_in_0_23, environment

Say = Callable[[str], None]


def written(document: Bisection | Ablation, folder: Path) -> None:
    """The document alone: reports of it are drawn elsewhere."""
    name = BISECTION_FILE if isinstance(document, Bisection) else ABLATION_FILE
    (folder / name).write_text(document.model_dump_json())


def unwritten(document: Record, folder: Path) -> None:
    """Nowhere: nothing of it is read again."""


class Opened(NamedTuple):
    """A campaign that can be executed, and what is to be closed after it."""

    policy: Policy[Any]
    places: Places
    close: Callable[[], object] = lambda: None


class Noted(FakeTrials):
    """Says of each run that it is made, before anything is known of it."""

    def __init__(self, world: Callable[[Cell, int], Outcome | Lost], say: Say) -> None:
        super().__init__(world)
        self.during = lambda cell, index: say(f"{cell.id} {index}")


def matrix(folder: Path, say: Say, jobs: int = 1) -> Opened:
    """Six cells of three releases, one that surprises, one that is lost at first."""
    cells = [planned(f"s{n}", f"{release}.0") for release in (1, 2, 3) for n in (1, 2)]

    def world(cell: Cell, index: int) -> Outcome | Lost:
        if cell.scenario == "s2" and cell.release == "2.0":
            return Lost.INFRASTRUCTURE if index == 1 else Outcome.REPRODUCED
        surprises = cell.scenario == "s1" and cell.release == "3.0"
        return Outcome.NOT_REPRODUCED if surprises else Outcome.REPRODUCED

    ledger = Ledger(folder)
    runs = begin(ledger, night(), cells)
    places = LocalPlaces(Noted(world, say), FakeProvisions(), jobs)
    return Opened(Nightly(ledger, runs), places, ledger.close)


def bisect(folder: Path, say: Say, jobs: int = 1) -> Opened:
    """Both boundaries of the ghost key, and a point that is lost at first."""

    class Trials(Made):
        def run(self, cell: Cell, *rest: Path, index: int, **more: Any) -> Attempt:
            say(f"{cell.release} {index}")
            return super().run(cell, *rest, index=index, **more)

    def world(release: str, index: int) -> Outcome | Lost:
        if release == "0.32.0" and index == 1:
            return Lost.INFRASTRUCTURE
        return truth(release, index)

    options = replace(OPTIONS, out=folder, resume=True)
    policy = Bisecting(
        GHOST, options, field_of(GHOST, options, listed()), write=written
    )
    return Opened(policy, LocalPlaces(Trials(world), FakeProvisions(), jobs))


class Saying(FakePlayer):
    """Says of each attempt that it is made, by its folder; an episode's reference is
    part of it."""

    def __init__(self, engine: Answers, top: Path, say: Say) -> None:
        super().__init__(engine)
        self.top, self.say = top, say

    def play(
        self, case: Case, contents: Path | None, options: Any, folder: Path, **_: Any
    ) -> Any:
        if folder.name != "reference":
            self.say(folder.relative_to(self.top).as_posix())
        return super().play(case, contents, options, folder)


def replay(folder: Path, say: Say, jobs: int = 1) -> Opened:
    """One request hangs where another came before it."""

    def engine(case: Case) -> dict[str, str]:
        ids = [op.id for op in case.operations]
        return {
            id: STUCK if {"r0", id} <= set(ids) and id == "r2" else "200" for id in ids
        }

    traffic = folder.parent / "traffic"
    write_case(fake_case([fake_op(f"r{n}") for n in range(3)]), traffic)
    place = _place(VERDICTS, folder)
    options = ReplayCommand(file=traffic, server=SERVER, repeat=1, **place)
    policy = FakedReplaying(options, write=unwritten)
    policy.player, policy.jobs = Saying(engine, folder.resolve(), say), jobs
    return Opened(policy, policy.local_places())


class FakedReproducing(Fakes, Reproducing):
    """A bug report on fake servers."""


def repro(folder: Path, say: Say, jobs: int = 1) -> Opened:
    """A request's body that a server of the report's release answers with a 500."""
    client = folder.parent / "body.json"
    client.write_text('{"model": "m", "prompt": "hi", "max_tokens": 4}')
    options = ReproCommand(
        server_command="vllm serve meta-llama/Llama-3.1-8B",
        client=str(client),
        release="0.23.0",
        reported="500",
        **_place(VERDICTS, folder),
    )
    policy = FakedReproducing(options, write=unwritten)

    def engine(case: Case) -> dict[str, str]:
        return {op.id: "500" for op in case.operations}

    policy.player, policy.jobs = Saying(engine, folder.resolve(), say), jobs
    return Opened(policy, policy.local_places())


def fuzz(folder: Path, say: Say, jobs: int = 1) -> Opened:
    """Two sound episodes, and a server that does not start: then nothing else is
    tried."""

    def engine(case: Case) -> dict[str, str]:
        if case.title.startswith("episode 2"):
            return {NO_START: ""}
        return {op.id: "200" for op in case.operations}

    options = FuzzCommand(server=server(), **_place(EPISODES, folder))
    policy = FakedFuzzing(options, write=unwritten, write_replay=write_replay)
    policy.player, policy.jobs = Saying(engine, folder.resolve(), say), jobs
    return Opened(policy, policy.local_places())


class Measures(Saying):
    """Measures in a moment: a side that is slower by a tenth, the same in each
    block."""

    def measure(self, wanted: Measuring, folder: Path) -> Block:
        self.say(folder.relative_to(self.top).as_posix())
        values = {"itl": 0.095 + 0.0001 * (wanted.index % 3)}
        ones = dict.fromkeys(values, 1.0)
        return Block(
            index=wanted.index, first="old", changes=values, old=ones, new=ones
        )


class FakedUpgrading(Fakes, Upgrading):
    """A comparison on fake servers."""

    def listed_options(self, side: Side) -> list[OptionSeen]:
        return []


def upgrade(folder: Path, say: Say, jobs: int = 1) -> Opened:
    """Sound answers on both sides, and more time a token on the new one."""
    traffic = folder.parent / "traffic"
    case = fake_case([fake_op(f"r{n}") for n in range(3)])
    write_case(case, traffic)
    newer = SERVER.model_copy(update={"release": "0.24.0"})
    place = _place(RUNS, folder)
    options = UpgradeCommand(traffic=traffic, server=SERVER, new_server=newer, **place)
    policy = FakedUpgrading(options, write=unwritten)
    sound = {op.id: "200" for op in case.operations}
    policy.player, policy.jobs = Measures(lambda _: sound, folder.resolve(), say), jobs
    return Opened(policy, policy.local_places())


def _place(kind: JournalKind, folder: Path) -> dict[str, Any]:
    return {"resume" if kind.is_in(folder) else "out": folder}


def ablate(folder: Path, say: Say, jobs: int = 1) -> Opened:
    """Two factors of the ghost key, one of which cures; a run of one is lost at
    first."""

    class Trials(WorldTrials):
        def run(self, cell: Cell, *rest: Path, index: int, **more: Any) -> Attempt:
            say(f"{cell.flips} {index}")
            lost = cell.flips == ("concurrency",) and index == 1
            one = WorldTrials(World(broken if lost else as_in_0_23), self.environment)
            return one.run(cell, *rest, index=index, **more)

    def broken(flips: frozenset[str]) -> Evidence:
        raise EngineStartError("the port was taken.")

    options = AblateCommand(
        device="cpu",
        scenario="ghost-key-eviction",
        factors=("mm-cache", "concurrency"),
        out=folder,
    )
    policy = Ablating(GHOST, options, write=written)
    trials = Trials(World(), environment(folder.parent / "environment"))
    return Opened(policy, LocalPlaces(trials, FakeProvisions(), jobs))


KINDS: dict[str, Callable[..., Opened]] = {
    "matrix": matrix,
    "bisect": bisect,
    "replay": replay,
    "repro": repro,
    "fuzz": fuzz,
    "ablate": ablate,
    "upgrade": upgrade,
}
