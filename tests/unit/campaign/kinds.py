"""Each kind of campaign on made-up runs, for the contract that all of them keep.

A kind is a function: it opens the campaign in a folder, a new one or one that is gone on with, and
gives what makes its runs up. A run's name goes to ``made`` as its place makes it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from fake_player import NO_START, FakedReplaying, FakePlayer
from fake_plays import SERVER, Answers, fake_case, fake_op
from fuzz_sessions import FakedFuzzing, server, write_replay
from matrix_nights import FakeProvisions, FakeTrials, night, planned
from mmrepro.bisect.points import field_of
from mmrepro.bisect.session import Bisecting
from mmrepro.campaign.campaign import Policy
from mmrepro.campaign.local import LocalPlaces
from mmrepro.campaign.work import Places
from mmrepro.case.files import write_case
from mmrepro.case.model import Case
from mmrepro.fuzz.options import FuzzOptions
from mmrepro.fuzz.store import EPISODES
from mmrepro.history.ledger import Ledger
from mmrepro.incident.bisection import BISECTION_FILE
from mmrepro.incident.ledger import Attempt, Cell, Lost
from mmrepro.machine.journal import JournalKind
from mmrepro.matrix.nights import begin
from mmrepro.matrix.session import Nightly, Slicing
from mmrepro.records import Record
from mmrepro.replay.options import ReplayOptions
from mmrepro.replay.seen import STUCK
from mmrepro.replay.store import VERDICTS
from mmrepro.signature import Outcome
from test_bisect_session import GHOST, OPTIONS, Made, listed, truth

Say = Callable[[str], None]


def written(document: Record, folder: Path) -> None:
    """The document alone: reports of it are drawn elsewhere."""
    (folder / BISECTION_FILE).write_text(document.model_dump_json())


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
    return Opened(Nightly(ledger, runs, Slicing()), places, ledger.close)


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
    policy = Bisecting(GHOST, options, field_of(GHOST, options, listed()), write=written)
    return Opened(policy, LocalPlaces(Trials(world), FakeProvisions(), jobs))


class Saying(FakePlayer):
    """Says of each attempt that it is made, by its folder; an episode's reference is part of it."""

    def __init__(self, engine: Answers, top: Path, say: Say) -> None:
        super().__init__(engine)
        self.top, self.say = top, say

    def play(self, case: Case, contents: Path | None, options: Any, folder: Path, **_: Any) -> Any:
        if folder.name != "reference":
            self.say(folder.relative_to(self.top).as_posix())
        return super().play(case, contents, options, folder)


def replay(folder: Path, say: Say, jobs: int = 1) -> Opened:
    """One request hangs where another came before it."""

    def engine(case: Case) -> dict[str, str]:
        ids = [op.id for op in case.operations]
        return {id: STUCK if {"r0", id} <= set(ids) and id == "r2" else "200" for id in ids}

    traffic = folder.parent / "traffic"
    write_case(fake_case([fake_op(f"r{n}") for n in range(3)]), traffic)
    place = _place(VERDICTS, folder)
    options = ReplayOptions(file=traffic, server=SERVER, jobs=jobs, repeat=1, **place)
    policy = FakedReplaying(options, write=written)
    policy.player = Saying(engine, folder.resolve(), say)
    return Opened(policy, policy.local_places())


def fuzz(folder: Path, say: Say, jobs: int = 1) -> Opened:
    """Two sound episodes, and a server that does not start: then nothing else is tried."""

    def engine(case: Case) -> dict[str, str]:
        if case.title.startswith("episode 2"):
            return {NO_START: ""}
        return {op.id: "200" for op in case.operations}

    options = FuzzOptions(server=server(), jobs=jobs, **_place(EPISODES, folder))
    policy = FakedFuzzing(options, write=written, write_replay=write_replay)
    policy.player = Saying(engine, folder.resolve(), say)
    return Opened(policy, policy.local_places())


def _place(kind: JournalKind, folder: Path) -> dict[str, Any]:
    return {"resume" if kind.is_in(folder) else "out": folder}


KINDS: dict[str, Callable[..., Opened]] = {
    "matrix": matrix,
    "bisect": bisect,
    "replay": replay,
    "fuzz": fuzz,
}
