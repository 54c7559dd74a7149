"""A night of cells that sleep, on a Ray cluster: fakes of what runs them, and nothing else.

Their runs are child processes, as real ones are, started by the same function. Each leaves a mark
in a folder as it begins. Run as a program, so that Ray sends these classes to the workers by value.
"""

from __future__ import annotations

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

import ray
from mmrepro.campaign.campaign import Campaign
from mmrepro.campaign.child import end, spawn_program
from mmrepro.campaign.groups import Group
from mmrepro.campaign.work import Here
from mmrepro.cluster.machines import Machines, connected
from mmrepro.history.ledger import Ledger
from mmrepro.incident.ledger import Attempt, Cell, Night, Planned, Role
from mmrepro.machine.facts import host_facts
from mmrepro.matrix.nights import begin
from mmrepro.matrix.session import Nightly, Slicing
from mmrepro.records import Moment
from mmrepro.signature import Outcome


@dataclass(frozen=True)
class Sleeping:
    """The outfit."""

    marks: str
    seconds: float
    stuck: bool
    eaten: int

    def here(self, machine: str, campaign: str, say: Callable[[str], None]) -> Here:
        return Here(Sleepers(Path(self.marks), self, machine), Nothing(), machine)


class Sleepers:
    """A run sleeps, and ends with 3, which is written down as its key.

    If it is to be ``stuck``, the first run of the first cell takes a hundred seconds, and has
    ``eaten`` bytes of memory meanwhile.
    """

    def __init__(self, marks: Path, asked: Sleeping, machine: str) -> None:
        self.marks, self.asked, self.machine = marks, asked, machine
        self.children: set[subprocess.Popen[bytes]] = set()

    def run(
        self, cell: Cell, folder: Path, root: Path, *, night: str, index: int, role: Role
    ) -> Attempt:
        folder.mkdir(parents=True)
        created, began = Moment.now(), time.monotonic()
        size, seconds = 0, self.asked.seconds
        if self.asked.stuck and (cell.variant, index) == ("cell-0", 1):
            size, seconds = self.asked.eaten, 100.0
        code = f"import sys, time; held = b'x' * {size}; time.sleep({seconds}); sys.exit(3)"
        child = spawn_program([sys.executable, "-c", code], dict(os.environ))
        self.children.add(child)
        mark = {"cell": cell.id, "index": index, "machine": self.machine}
        mark |= {"worker": os.getpid(), "child": child.pid, "variables": sorted(os.environ)}
        name = f"{night}.{cell.id}.{index}.{os.urandom(4).hex()}"
        (self.marks / f".{name}").write_text(json.dumps(mark))
        (self.marks / f".{name}").rename(self.marks / name)
        ended = child.wait()
        (folder / "incident.json").write_text(json.dumps(mark))
        return Attempt(
            night=night,
            cell=cell.id,
            index=index,
            role=role,
            created=created,
            seconds=time.monotonic() - began,
            outcome=Outcome.REPRODUCED,
            expected=Outcome.REPRODUCED,
            key=f"exit code {ended}",
            machine=self.machine,
            incident=str(folder.relative_to(root)),
        )

    def stop(self) -> None:
        end(self.children, 5)


class Nothing:
    """Provisions of runs that need none."""

    def expect(self, groups: Sequence[Group]) -> None: ...
    def prepare(self, group: Group) -> str:
        return ""

    def prefetch(self, group: Group) -> None: ...
    def warm(self, runs: Sequence[tuple[Cell, int]]) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def seconds(self, group: Group) -> float:
        return 0.0

    def done(self, group: Group) -> None: ...
    def stop(self) -> None: ...
    def join(self) -> None: ...


@ray.remote(num_cpus=0)
def untouched() -> tuple[int, str]:
    """How a child that ends with 3 seems to end where nothing is put right; a worker's Python."""
    return subprocess.run(["bash", "-c", "exit 3"]).returncode, sys.executable


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("night")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--marks")
    parser.add_argument("--machines", type=int)
    parser.add_argument("--cells", type=int)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--stuck", action="store_true")
    parser.add_argument("--eaten", type=int, default=0)
    asked = parser.parse_args()
    plan = [
        Planned(
            night=asked.night,
            cell=Cell(
                scenario="borrowed-faults",
                variant=f"cell-{number}",
                engine="minivllm",
                release="0.1",
                device="cpu",
            ),
            expected=Outcome.REPRODUCED,
        )
        for number in range(asked.cells)
    ]
    with connected(asked.address) as cluster, Ledger(asked.out) as ledger:
        exit_code, python = ray.get(untouched.remote())
        told: dict[str, object] = {"untouched": exit_code, "own_python": python == sys.executable}
        outfit = Sleeping(asked.marks, asked.seconds, asked.stuck, asked.eaten)
        machines = Machines(cluster, outfit, say=print)
        night = Night(
            id=asked.night,
            created=Moment.now(),
            command="mmrepro matrix run",
            mmrepro_version="0",
            host=host_facts(),
        )
        runs = begin(ledger, night, plan)
        while len(machines.there()) < asked.machines:
            time.sleep(0.05)
        began = time.monotonic()
        Campaign(Nightly(ledger, runs, Slicing(sliced=True, setup_s=0.1)), machines).execute()
        told["seconds"] = time.monotonic() - began
    print(json.dumps(told))


if __name__ == "__main__":
    main()
