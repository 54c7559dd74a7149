"""Campaigns of runs that sleep, on a Ray cluster: fakes of what makes them, and nothing
else.

Their runs are child processes, as real ones are, started by the same function. Each
leaves a mark in a folder as it begins. Run as a program, so that Ray sends these
classes to the workers by value."""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from mmrepro.base.machine.host import host_facts
from mmrepro.base.records import Moment
from mmrepro.campaign.bisect.options import BisectCommand
from mmrepro.campaign.bisect.plan import field_of
from mmrepro.campaign.bisect.session import Bisecting
from mmrepro.campaign.campaign import Campaign, CampaignState
from mmrepro.campaign.cluster.machines import Machines, connected
from mmrepro.campaign.matrix.session import Nightly, Slicing, begin
from mmrepro.campaign.schedule import EnvironmentGroup
from mmrepro.campaign.search import Search
from mmrepro.campaign.trial import end, spawn_program
from mmrepro.campaign.work import (
    StartedRun,
    WithoutEnvironment,
    Working,
    Workplace,
    lost,
)
from mmrepro.failure.documents.ledger import (
    Attempt,
    Cell,
    Night,
    NightState,
    Planned,
    Role,
)
from mmrepro.failure.documents.searches import Bisection, Point
from mmrepro.failure.signature import Outcome
from mmrepro.history.ledger import Ledger
from mmrepro.runs.play.players import Players
from mmrepro.scenario.registry import load_scenario
from mmrepro.search.fuzz.options import FuzzCommand
from mmrepro.search.replay.attempts import CaseResult, CaseRun
from mmrepro.search.replay.options import ReplayCommand
from mmrepro.traffic.case.files import write_case
from mmrepro.traffic.case.model import Case
from mmrepro.traffic.case.sending import Played

sys.path += [
    str(Path(__file__).parent.parent / "unit" / name) for name in ("replay", "fuzz")
]
import fake_player
import fake_plays
import fuzz_sessions

for module in (fake_player, fake_plays, fuzz_sessions):
    ray.cloudpickle.register_pickle_by_value(module)

RELEASES = [f"0.{number}.0" for number in range(41)]
BAD = {"0.1", *RELEASES[10:31]}
NEEDED = ("r5", "r17", "r31")
"""Requests of a replay that hangs."""


@dataclass(frozen=True)
class Sleeping:
    """The outfit."""

    marks: str
    seconds: float
    stuck: str
    eaten: int

    def here(
        self, machine: str, campaign: str, say: Callable[[str], None]
    ) -> Workplace:
        sleepers = Sleepers(Path(self.marks), self, machine)
        players = Players(make=lambda servers, root: SleepingPlayer(sleepers, root))
        return Workplace(sleepers, Nothing(), machine, players=players)


class Sleepers:
    """A run sleeps, and ends with 3, which is written down as its key.

    The first run of the cell that is to be ``stuck``, by its variant or release, takes
    a hundred seconds, and has ``eaten`` bytes of memory meanwhile."""

    def __init__(self, marks: Path, asked: Sleeping, machine: str) -> None:
        self.marks, self.asked, self.machine = marks, asked, machine
        self.children: set[subprocess.Popen[bytes]] = set()

    def run(
        self,
        cell: Cell,
        folder: Path,
        root: Path,
        *,
        night: str,
        index: int,
        role: Role,
    ) -> Attempt:
        folder.mkdir(parents=True)
        created, began = Moment.now(), time.monotonic()
        stuck = index == 1 and self.asked.stuck in (cell.variant or "-", cell.release)
        ended, mark = self.sleep(cell.id, index, stuck=stuck)
        (folder / "incident.json").write_text(json.dumps(mark))
        return Attempt(
            night=night,
            cell=cell.id,
            index=index,
            role=role,
            created=created,
            seconds=time.monotonic() - began,
            outcome=Outcome.REPRODUCED
            if cell.release in BAD
            else Outcome.NOT_REPRODUCED,
            expected=Outcome.REPRODUCED,
            key=f"exit code {ended}",
            machine=self.machine,
            incident=str(folder.relative_to(root)),
        )

    def sleep(
        self, what: str, index: int, *, stuck: bool
    ) -> tuple[int, dict[str, object]]:
        """Its exit code, and its mark."""
        size, seconds = (self.asked.eaten, 100.0) if stuck else (0, self.asked.seconds)
        code = (
            f"import sys, time; held = b'x' * {size}; time.sleep({seconds}); "
            "sys.exit(3)"
        )
        child = spawn_program([sys.executable, "-c", code], dict(os.environ))
        self.children.add(child)
        mark: dict[str, object] = {
            "cell": what,
            "index": index,
            "machine": self.machine,
        }
        mark |= {"stuck": stuck, "worker": os.getpid(), "child": child.pid}
        mark["variables"] = sorted(os.environ)
        name = f"{what.replace('/', '_')}.{index}.{os.urandom(4).hex()}"
        (self.marks / f".{name}").write_text(json.dumps(mark))
        (self.marks / f".{name}").rename(self.marks / name)
        return child.wait(), mark

    def stop(self) -> None:
        end(self.children, 5)


class SleepingPlayer(fake_player.FakePlayer):
    """Attempts that sleep: of ``NEEDED`` together the last one is never answered, and a
    request with a client that leaves makes an error.

    The attempt in the folder that is to be ``stuck`` takes a hundred seconds when it is
    first made."""

    def __init__(self, sleepers: Sleepers, root: Path) -> None:
        super().__init__(answers)
        self.sleepers, self.root = sleepers, root

    def cancel(self) -> None:
        self.sleepers.stop()

    def play(
        self,
        case: Case,
        contents: Path | None,
        options: object,
        folder: Path,
        **more: object,
    ) -> Played:
        place = folder.relative_to(self.root).as_posix()
        before = [
            p
            for p in self.sleepers.marks.iterdir()
            if place.replace("/", "_") in p.name
        ]
        stuck = place == self.sleepers.asked.stuck and not before
        self.sleepers.sleep(place, len(before) + 1, stuck=stuck)
        return super().play(case, contents, options, folder, **more)


def answers(case: Case) -> dict[str, str]:
    ids = {op.id for op in case.operations}
    if case.title.startswith("episode"):
        return {op.id: "500" if op.leave else "200" for op in case.operations}
    return fake_plays.answered_until(
        case, NEEDED[-1] if ids.issuperset(NEEDED) else None
    )


class Nothing:
    """Provisions of runs that need none."""

    def expect(self, groups: Sequence[EnvironmentGroup]) -> None: ...
    def prepare(self, group: EnvironmentGroup) -> str:
        return ""

    def prefetch(self, group: EnvironmentGroup) -> None: ...
    def warm(
        self, runs: Sequence[tuple[Cell, int]]
    ) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def seconds(self, group: EnvironmentGroup) -> float:
        return 0.0

    def done(self, group: EnvironmentGroup) -> None: ...
    def stop(self) -> None: ...
    def join(self) -> None: ...


# ---------------------------------------------------------------- kinds of campaigns


def cells(night: str, number: int) -> list[Planned]:
    return [
        Planned(
            night=night,
            cell=Cell(
                scenario="borrowed-faults",
                variant=f"cell-{one}",
                engine="minivllm",
                release="0.1",
                device="cpu",
            ),
            expected=Outcome.REPRODUCED,
        )
        for one in range(number)
    ]


def matrix(night: Night, folder: Path, number: int) -> Nightly:
    ledger = Ledger(folder)
    runs = begin(ledger, night, cells(night.id, number))
    return Nightly(ledger, runs, Slicing(setup_s=0.1))


def bisection(night: Night, folder: Path, number: int) -> Bisecting:
    """Of that many releases: the failure is in the middle half."""
    points = [Point(name=r, release=r, declared=r == "0.20.0") for r in RELEASES]
    scenario = load_scenario("ghost-key-eviction")
    options = BisectCommand(
        scenario=scenario.name, device="cpu", bad="0.20.0", out=folder, resume=True
    )

    def write(document: Bisection, to: Path) -> None:
        (to / "bisection.json").write_text(document.model_dump_json())

    return Bisecting(
        scenario, options, field_of(scenario, options, points), write=write
    )


@dataclass(frozen=True)
class Sleep(WithoutEnvironment):
    """An order that needs no environment."""

    night: str
    cell: Cell
    began: StartedRun
    name = "a sleep"
    device = "cpu"

    @property
    def campaign(self) -> str:
        return self.night

    def folder(self, began: StartedRun) -> Path:
        return Path("runs", self.cell.variant, f"{began.index}")

    def files(self, result: Attempt) -> str:
        return result.incident

    def carry_out(self, here: Workplace, root: Path) -> Working:
        yield self.began
        index, role = self.began.index, self.began.role
        yield here.trials.run(
            self.cell,
            root / self.folder(self.began),
            root,
            night=self.night,
            index=index,
            role=role,
        )

    def not_carried(self, result: Attempt, why: str) -> Attempt:
        raise AssertionError(why)


class Searching(Search[Night, Attempt]):
    """Lines of work as those of a fuzz session, two runs each; the last one is a
    shrink, whose candidates may run beside each other."""

    kind = "search"
    resume_command = "none"

    def __init__(self, night: Night, folder: Path, number: int) -> None:
        super().__init__()
        self.folder, self.night = folder, night
        self.ledger = Ledger(folder)
        self.planned = {p.cell.id: p for p in cells(night.id, number)}
        for record in (night, *self.planned.values()):
            self.ledger.append(record)
        names = [*self.planned]
        pairs = [names[n : n + 2] for n in range(0, len(names), 2)]
        self.left = [
            *(
                lambda pair=pair: [self.made([one]) for one in pair]
                for pair in pairs[:-1]
            ),
            lambda: self.made(pairs[-1]),
        ]

    def standing(self) -> str:
        return f"{len(self.done)} runs"

    def more(self) -> Callable[[], object] | None:
        return self.left.pop(0) if self.left else None

    def made(self, names: Sequence[str]) -> None:
        came = self.results([StartedRun(name, 1) for name in names])
        if lost_ones := [StartedRun(a.cell, 2, "retry") for a in came if a.lost]:
            self.results(lost_ones)

    def order_of(self, want: StartedRun) -> Sleep:
        return Sleep(self.night.id, self.planned[want.id].cell, want)

    def keep(self, line: Attempt) -> tuple[str, int]:
        self.ledger.append(line)
        return line.cell, line.index

    def lose(self, want: StartedRun, why: str, place: str) -> Attempt:
        return lost(self.night.id, want, why, place)

    def end(self, state: CampaignState, failure: str) -> Night:
        night = self.night.model_copy(
            update={"state": NightState(state), "finished": Moment.now()}
        )
        self.ledger.append(night)
        return night


class Replaying(fake_player.FakedReplaying):
    """A hang that three of forty requests make; its shrink is measured apart."""

    def __init__(self, night: Night, folder: Path, number: int) -> None:
        ops = [fake_plays.fake_op(f"r{n}", text="a" * (n + 1)) for n in range(number)]
        traffic = folder.parent / "traffic"
        write_case(fake_plays.fake_case(ops), traffic)
        command = ReplayCommand(
            file=traffic, server=fake_plays.SERVER, out=folder, budget=200
        )
        super().__init__(command, write=lambda replay, where: None)
        self.shrunk: list[float] = []

    def attempt(self, order: CaseRun) -> CaseResult:
        began = time.monotonic()
        result = super().attempt(order)
        if order.id.startswith("shrink/"):
            self.shrunk += [began, time.monotonic()]
        return result

    def told(self) -> dict[str, Any]:
        found = [[f.finding_class, f.requests, f.shrunk] for f in self.replay.findings]
        spent = max(self.shrunk) - min(self.shrunk)
        return {"seconds": spent, "runs": len(self.shrunk) // 2, "found": found}


class Fuzzing(fuzz_sessions.FakedFuzzing):
    """A session of so many seconds."""

    def __init__(self, night: Night, folder: Path, number: int) -> None:
        command = FuzzCommand(
            server=fuzz_sessions.server(), out=folder, budget_s=float(number)
        )
        super().__init__(
            command,
            write=lambda fuzz, where: None,
            write_replay=fuzz_sessions.write_replay,
        )
        self.made = 0

    def attempt(self, order: CaseRun) -> CaseResult:
        result = super().attempt(order)
        self.made += 1
        return result

    def told(self) -> dict[str, Any]:
        found = [[f.finding.finding_class, f.finding.requests] for f in self.fuzz.found]
        return {
            "seconds": self.fuzz.elapsed_s,
            "runs": self.made,
            "found": found,
            "episodes": [e.number for e in self.fuzz.episodes],
        }


KINDS = {
    "matrix": matrix,
    "bisect": bisection,
    "search": Searching,
    "replay": Replaying,
    "fuzz": Fuzzing,
}


@ray.remote(num_cpus=0)
def untouched() -> tuple[int, str]:
    """How a child that ends with 3 seems to end where nothing is put right; a worker's
    Python."""
    return subprocess.run(["bash", "-c", "exit 3"]).returncode, sys.executable


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("night")
    parser.add_argument("--kind", choices=KINDS, default="matrix")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--marks")
    parser.add_argument("--machines", type=int)
    parser.add_argument("--cells", type=int)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--stuck", default="")
    parser.add_argument("--eaten", type=int, default=0)
    asked = parser.parse_args()
    with connected(asked.address) as cluster:
        exit_code, python = ray.get(untouched.remote())
        told: dict[str, object] = {
            "untouched": exit_code,
            "own_python": python == sys.executable,
        }
        outfit = Sleeping(asked.marks, asked.seconds, asked.stuck, asked.eaten)
        machines = Machines(cluster, outfit, say=print)
        night = Night(
            id=asked.night,
            created=Moment.now(),
            command="mmrepro matrix run",
            mmrepro_version="0",
            host=host_facts(),
        )
        policy = KINDS[asked.kind](night, asked.out, asked.cells)
        while len(machines.there()) < asked.machines:
            time.sleep(0.05)
        began = time.monotonic()
        Campaign(policy, machines).execute()
        told["seconds"] = time.monotonic() - began
        told |= getattr(policy, "told", dict)()
    print(json.dumps(told))


if __name__ == "__main__":
    main()
