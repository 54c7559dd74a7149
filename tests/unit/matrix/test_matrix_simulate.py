"""`benchmarks/matrix_simulate.py`: arithmetic that can be done by hand, and a real
nightly run."""

import json
import math
import random
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import matrix_simulate
import pytest
from _fleet import Fleet, Simulated, Times, copies, simulate
from matrix_nights import (
    FakePlaces,
    FakeProvisions,
    FakeTrials,
    attempt,
    execute,
    night,
    planned,
)
from matrix_simulate import ASSUMED_BYTES, NEAR, NONE, OWN, Packages
from mmrepro.base.records import WheelFacts
from mmrepro.campaign.matrix import plan as planning
from mmrepro.campaign.matrix.session import Slicing, begin
from mmrepro.campaign.schedule import ASSUMED_BUILD_S, EnvironmentGroup, groups_of
from mmrepro.campaign.work import CellsUntilWhole, Order, StartedRun, Working, Workplace
from mmrepro.engines.environments.spec import Manifest
from mmrepro.engines.environments.store import Size, Stored
from mmrepro.failure.signature import Outcome
from mmrepro.history.ledger import Ledger

MIB = 2**20


def plan(*sizes: int) -> list[EnvironmentGroup]:
    return groups_of(
        planned(f"s{n}", f"{number}.0")
        for number, size in enumerate(sizes, 1)
        for n in range(size)
    )


def times(
    groups: list[EnvironmentGroup],
    run: float = 10.0,
    build: float = 0.0,
    setup: float = 0.0,
    repeat: int = 1,
) -> Times:
    names = [p.cell.id for group in groups for p in group.cells]
    packages = {
        group.name: {group.name: 5 * MIB, "torch": 100 * MIB} for group in groups
    }
    return Times(
        dict.fromkeys(names, run),
        build=lambda group: build,
        packages=lambda group: packages[group.name],
        room=lambda group: 105 * MIB,
        repeat=repeat,
        setup=setup,
    )


def result(
    groups: list[EnvironmentGroup], with_times: Times, fleet: Fleet
) -> Simulated:
    return simulate(groups, with_times, [fleet])[0]


# ---------------------------------------------------------------- by hand


@pytest.mark.parametrize("machines", [1, 2, 3, 7, 16])
@pytest.mark.parametrize("sizes", [(48,), (5,), (20, 30, 1), (3,) * 9])
def test_identical_cells_come_to_the_arithmetic_answer(
    sizes: tuple[int, ...], machines: int
) -> None:
    groups = plan(*sizes)
    told = result(groups, times(groups), Fleet(machines))
    rounds = math.ceil(sum(sizes) / machines)
    assert told.makespan_s == pytest.approx(10.0 * rounds)
    assert told.runs == sum(sizes)
    assert told.idle_s == pytest.approx(10.0 * (machines * rounds - sum(sizes)))
    assert told.efficiency == pytest.approx(sum(sizes) / (machines * rounds), abs=0.001)


def test_one_machine_fetches_the_next_environment_beside_the_runs() -> None:
    groups = plan(4, 4, 1)
    told = result(groups, times(groups, run=10, build=30, setup=2), Fleet(1))
    # 30, 2 + 40; the second is there by then: 2 + 40; the third one too, and has one
    # run: 10.
    assert told.makespan_s == 30 + 42 + 42 + 10
    assert (told.builds, told.orders, told.longest_s) == (3, 3, 72)
    assert told.fetched_bytes == told.disk_bytes == (3 * 5 + 100) * MIB, (
        "one torch on a machine"
    )
    slow = result(groups, times(groups, run=10, build=100), Fleet(1))
    assert slow.makespan_s == 100 + 100 + 100 + 10, (
        "runs wait for what is being fetched"
    )
    there = result(groups, times(groups, run=10, build=100), Fleet(1, fetched=True))
    assert (there.makespan_s, there.builds, there.disk_bytes) == (90, 0, 0)


def test_two_machines_share_the_environments_and_one_helps() -> None:
    groups = plan(8, 40)
    told = result(groups, times(groups, run=10, build=20), Fleet(2))
    assert told.builds == 3, "both build the large one, one the small one"
    assert told.fetched_bytes == (3 * 5 + 2 * 100) * MIB
    assert 480 / 2 + 20 < told.makespan_s <= 480 / 2 + 20 + 20 + 10


def test_what_is_not_worth_a_build_is_left_to_the_one_that_has_it() -> None:
    groups = plan(10)
    told = result(groups, times(groups, run=10, build=200), Fleet(4))
    assert (told.makespan_s, told.builds) == (300, 1)


def test_repeats_jobs_and_a_time_limit() -> None:
    groups = plan(4, 4)
    assert result(groups, times(groups, repeat=3), Fleet(1)).makespan_s == 240
    assert result(groups, times(groups), Fleet(1, jobs=2)).makespan_s == 40
    built = result(groups, times(groups, build=30), Fleet(1, jobs=2))
    assert built.makespan_s == 30 + 30 + 40, (
        "a machine builds one environment at a time"
    )
    late = result(groups, times(groups, build=20), Fleet(1, max_time_s=45))
    assert (late.runs, late.left, late.makespan_s, late.builds) == (2, 6, 40, 2)
    early = result(groups, times(groups, build=20), Fleet(1, max_time_s=25))
    assert (early.runs, early.left, early.builds) == (0, 8, 0), (
        "nothing is fetched for nothing"
    )


def test_a_bounded_disk_drops_environments_and_fetches_them_again() -> None:
    groups = plan(2, 2, 2)
    bounded = Fleet(1, disk=110 * MIB)
    told = result(groups, times(groups), bounded)
    assert (told.dropped, told.disk_bytes) == (2, 105 * MIB)
    assert told.fetched_bytes == 3 * 105 * MIB
    assert told.again_bytes == 2 * 100 * MIB, "torch went with each of them"
    none = result(groups, times(groups), Fleet(1, disk=100 * MIB))
    assert (none.left, none.builds) == (6, 0)
    wide = result(groups, times(groups), Fleet(1, disk=300 * MIB))
    assert (wide.dropped, wide.disk_bytes, wide.again_bytes) == (0, 115 * MIB, 0)


def test_ten_thousand_cells_on_sixty_four_machines() -> None:
    made = [p for p, _ in copies([p for g in plan(*[4] * 40) for p in g.cells], 10_000)]
    groups = groups_of(made)
    began = time.process_time()
    told = result(groups, times(groups, run=30, build=60, setup=8), Fleet(64))
    assert time.process_time() - began < 10
    assert (told.runs, told.left) == (10_000, 0)
    assert told.efficiency > 0.85
    assert told.orders < 2000, "an order is several runs"


def test_copies_are_cells_of_their_own_in_the_same_environments() -> None:
    cells = [p for g in plan(2, 1) for p in g.cells]
    made = copies(cells, 8)
    assert [original for _, original in made] == [
        cells[n % 3].cell.id for n in range(8)
    ]
    assert len({p.cell.id for p, _ in made}) == 8
    assert [len(g.cells) for g in groups_of(p for p, _ in made)] == [6, 2]


# ---------------------------------------------------------------- beside a real night


class Sleeping(FakeProvisions):
    """Environments that take ``build`` seconds once, and parents that take ``setup``
    each time."""

    def __init__(self, build: float, setup: float) -> None:
        super().__init__()
        self.build, self.setup = build, setup
        self.there: dict[str, threading.Thread] = {}

    def prepare(self, group: EnvironmentGroup) -> str:
        self.prefetch(group)
        self.there[group.name].join()
        return ""

    def prefetch(self, group: EnvironmentGroup) -> None:
        if group.name not in self.there:
            building = threading.Thread(target=time.sleep, args=(self.build,))
            self.there[group.name] = building
            building.start()

    @contextmanager
    def warm(self, runs: object) -> Iterator[None]:
        time.sleep(self.setup)
        yield


class SleepingPlace:
    """A machine that is none, on which runs only sleep."""

    def __init__(
        self, name: str, sleeps: dict[str, float], provisions: Sleeping
    ) -> None:
        self.name, self.gone = name, False
        self.trials = FakeTrials(
            lambda cell, index: Outcome.REPRODUCED,
            lambda cell, index: time.sleep(sleeps[cell.id]),
        )
        self.provisions = provisions
        self.ended = 0.0
        self.setups: list[float] = []
        """From the end of an order to the first run of the next, if its environment was
        there."""
        self.took: dict[str, float] = {}
        """By cell: until the ledger had it."""

    def has(self, group: EnvironmentGroup) -> bool:
        return group.name in self.provisions.there

    def work(self, order: Order, root: Path) -> Working:
        there, began, cell = self.has(order.group), 0.0, ""
        assert isinstance(order, CellsUntilWhole)
        for told in order.carry_out(Workplace(self.trials, self.provisions), root):
            if isinstance(told, StartedRun):
                if there and not cell and self.ended:
                    self.setups.append(time.monotonic() - self.ended)
                began, cell = time.monotonic(), told.id
                yield told
            else:
                yield told
                self.ended = time.monotonic()
                self.took[cell] = self.ended - began


def a_real_night(folder: Path) -> bool:
    """Whether it took as long as was said, and as long as nothing else that could be
    said."""
    chance = random.Random(16)
    cells = [
        planned(f"s{n}", f"{r}.0")
        for r, s in enumerate((40, 6, 6, 6), 1)
        for n in range(s)
    ]
    sleeps = {p.cell.id: chance.uniform(0.02, 0.05) for p in cells}
    build, setup = 0.2, 0.04
    with Ledger(folder) as ledger:
        before = [p.model_copy(update={"night": "n0"}) for p in cells]
        begin(ledger, night("n0"), before)
        for one in before:
            ledger.append(
                attempt(one, 1, Outcome.REPRODUCED, seconds=sleeps[one.cell.id])
            )
        places = [SleepingPlace(n, sleeps, Sleeping(build, setup)) for n in "abc"]
        slicing = Slicing(build_s=lambda group: build, setup_s=setup)
        runs = begin(ledger, night(), cells)
        began = time.monotonic()
        execute(ledger, runs, FakePlaces(places), slicing)  # type: ignore[arg-type]
    took = max(place.ended for place in places) - began
    assert len(runs.attempts) == len(cells)
    measured = {name: s for place in places for name, s in place.took.items()}
    assert len(measured) == len(cells)
    slow = statistics.median(s for place in places for s in place.setups)

    def said(machines: int = 3, build: float = build) -> float:
        known = Times(measured, lambda group: build, setup=slow)
        return result(groups_of(cells), known, Fleet(machines)).makespan_s

    others = [said(2), said(4), said(build=0.0), sum(measured.values()) / 3]
    by_chance = any(other == pytest.approx(took, rel=0.1) for other in others)
    print(f"took {took:.3f} s, said {said():.3f} s; others {others}")
    return said() == pytest.approx(took, rel=0.06) and not by_chance


@pytest.mark.nightly
def test_a_real_night_takes_as_long_as_was_said(tmp_path: Path) -> None:
    """A machine that has other things to do may hold one night up, but not each of
    four."""
    assert any(a_real_night(tmp_path / str(number)) for number in range(4))


# ---------------------------------------------------------------- what is measured


def stored(folder: Path, release: str, build_seconds: float, **packages: int) -> Stored:
    """An environment of minivllm that has only its lists of files."""
    for name, size in packages.items():
        info = (
            folder
            / release
            / f"venv/lib/python3.11/site-packages/{name}-{release}.dist-info"
        )
        info.mkdir(parents=True)
        (info / "RECORD").write_text(
            f"a.py,sha256=x,{size}\nb.pyc,,\n", encoding="utf-8"
        )
    manifest = Manifest(
        engine="minivllm",
        release=release,
        device="cpu",
        project="mini-vllm",
        wheel=WheelFacts(
            project="x", filename="x.whl", sha256="", uploaded="", origin="made up"
        ),
        resolved_until="2026-01-01T00:00:00Z",
        packages=[],
        python="3.11",
        uv="0",
        created=datetime(2026, 1, 1, tzinfo=UTC),
        build_seconds=build_seconds,
    )
    return Stored(folder / release, manifest, 0.0, Size(0, 0))


def test_an_environment_that_is_not_here_is_like_the_nearest_older_one(
    tmp_path: Path,
) -> None:
    here = Packages(
        [
            stored(tmp_path, "1.0", 20, mini_vllm=5, torch=100),
            stored(tmp_path, "3.0", 40, mini_vllm=7, torch=200),
        ]
    )
    first, between, last = (planned("a", r).cell.release for r in ("1.0", "2.0", "4.0"))
    one, two, four = (groups_of([planned("a", r)])[0] for r in (first, between, last))
    assert (here.basis(one), here.build_s(one)) == (OWN, 20)
    assert here.of(one) == {"mini_vllm-1.0": 5, "torch-1.0": 100}
    assert (here.basis(two), here.build_s(two)) == (NEAR, 30)
    assert here.of(two) == {"minivllm 2.0 ": 5, "torch-1.0": 100}
    assert here.of(four) == {"minivllm 4.0 ": 7, "torch-3.0": 200}
    nothing, known = Packages([]), groups_of([planned("a", "0.1")])[0]
    assert (nothing.basis(one), nothing.build_s(one)) == (NONE, ASSUMED_BUILD_S)
    assert list(nothing.of(one).values()) == [ASSUMED_BYTES], "there is no such release"
    assert known.spec is not None
    assert list(nothing.of(known).values()) == [known.spec.disk_bytes]


# ---------------------------------------------------------------- the command


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a ledger; no environment, and no index that could be asked."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MMREPRO_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(
        planning, "releases_of", lambda spec: pytest.fail("the index is asked")
    )
    with Ledger(tmp_path / "nights") as ledger:
        cells = [planned(s, "0.1") for s in "abc"]
        begin(ledger, night(), cells)
        for one in cells[:2]:
            ledger.append(attempt(one, 1, Outcome.REPRODUCED, seconds=40.0))
    return tmp_path


def test_the_command(asked: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def printed(*words: str, code: int = 0) -> str:
        assert matrix_simulate.main(words) == code
        return "".join(capsys.readouterr())

    text = printed("--machines", "1,3")
    for part in (
        "3 jobs in 1 environment; the runs alone take 2 min 00 s.",
        (
            "Measured: run times: medians of the attempts in nights: 2 by the cell, 1 "
            "by the"
        ),
        "of engines that this machine has none of, 180 s and",
        "no machine has any at the start",
    ):
        assert part in text
    words = ("--cells", "12", "--machines", "2", "--fetched", "--repeat", "2", "--json")
    document = json.loads(printed(*words))
    assert (document["cells"], document["environments"], document["run_s"]) == (
        12,
        1,
        960.0,
    )
    (one,) = document["nights"]
    assert (one["runs"], one["builds"]) == (24, 0)
    assert 480 < one["makespan_s"] < 480 + 8 * one["orders"]
    assert document["assumed"] == [
        "9 of the 12 cells are copies of the plan's 3, in the same environments",
        "environments: every machine has all of them",
        document["assumed"][2],
    ]
    own = (
        "--scenario",
        "borrowed-faults:ghost-key-lru",
        "--releases",
        "own",
        "--machines",
        "1",
    )
    assert "1 job in 1 environment" in printed(*own)
    for machines in ("0", "two", "1,", "5000"):
        assert "is not numbers from 1 to 4096" in printed(
            "--machines", machines, code=2
        )
    for more in ("--machines=4096", "--jobs=64"):
        assert "would take minutes" in printed("--cells", "10000", more, code=2)
