"""A night on machines that come, go and die: no cell lost, no attempt twice."""

import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from grids import examples
from hypothesis import given, strategies as st
from matrix_nights import FakePlace, FakePlaces, World, execute, night, planned
from mmrepro.base.errors import ExitCode, NoPlaceLeft
from mmrepro.campaign.events import CampaignEvent, Note, RunBegan, RunEnded
from mmrepro.campaign.matrix.session import STRIKES, Slicing, begin, unfinished
from mmrepro.campaign.schedule import Schedule
from mmrepro.failure.documents.ledger import Cell, Lost, NightState, Planned
from mmrepro.failure.signature import Outcome
from mmrepro.history.ledger import Ledger, NightRuns, read

BAD, GOOD = Outcome.REPRODUCED, Outcome.NOT_REPRODUCED
SLICED = Slicing(build_s=lambda group: 0.0, setup_s=0)
bad: World = lambda cell, index: BAD  # noqa: E731


class Told:
    """A handler that remembers what happened."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.groups: list[tuple[str, str]] = []
        self.open: set[tuple[str, int]] = set()
        self.strange: list[str] = []

    def __call__(self, event: CampaignEvent) -> None:
        if isinstance(event, RunBegan):
            self.open.add((event.what, event.index))
        elif isinstance(event, RunEnded):
            run = event.what, event.index
            if run not in self.open:
                self.strange.append(event.what)
            self.open.discard(run)
        elif isinstance(event, Note) and " (cpu) on " in event.text:
            group, _, machine = event.text.partition(" (cpu) on ")
            self.groups.append((group.partition(" ")[2], machine))
        elif isinstance(event, Note):
            self.said.append(event.text)


def run(
    folder: Path, cells: Sequence[Planned], places: Sequence[FakePlace], **more: int
) -> tuple[NightRuns, Told]:
    told = Told()
    with Ledger(folder) as ledger:
        runs = unfinished(ledger) or begin(ledger, night(), cells)
        execute(ledger, runs, FakePlaces(list(places), **more), SLICED, [told])
    assert read(folder).night("n1").attempts == runs.attempts
    assert not told.open, "every run that began was said to have ended"
    assert not told.strange
    return runs, told


def check(runs: NightRuns, cells: Sequence[Planned]) -> None:
    """Each attempt is the one that the schedule has next, and none is left."""
    for one in cells:
        attempts = runs.attempts_of(one.cell.id)
        rules = Schedule(runs.night.repeat, runs.night.confirm)
        for number, made in enumerate(attempts):
            assert rules.next(attempts[:number], one) == (made.index, made.role)
        assert rules.next(attempts, one) is None
    assert runs.night.state is NightState.COMPLETE


def cells_of(*sizes: int) -> list[Planned]:
    return [
        planned(f"s{n}", f"{r}.0")
        for r, size in enumerate(sizes, 1)
        for n in range(size)
    ]


def test_several_machines_share_one_environment(tmp_path: Path) -> None:
    both = threading.Barrier(2, timeout=20)
    seen: set[str] = set()

    def world(cell: Cell, index: int) -> Outcome:
        if threading.current_thread().name not in seen:  # the first run of each
            seen.add(threading.current_thread().name)
            both.wait()
        return BAD

    cells = cells_of(8)
    runs, told = run(tmp_path, cells, [FakePlace("a", world), FakePlace("b", world)])
    check(runs, cells)
    assert {attempt.machine for attempt in runs.attempts} == {"a", "b"}
    assert set(told.groups) == {("1.0", "a"), ("1.0", "b")}
    assert len(runs.attempts) == 8


@pytest.mark.parametrize(
    ("step", "lost", "seen"),
    [(0, 0, 0), (1, 1, 0), (2, 0, 1), (3, 1, 1)],
    ids=["at the start", "in a run", "in between", "in a later run"],
)
def test_a_machine_is_lost(tmp_path: Path, step: int, lost: int, seen: int) -> None:
    lives = threading.Event()

    def patient(cell: Cell, index: int) -> Outcome:
        assert lives.wait(20)
        return BAD

    cells = cells_of(4, 4)
    dies = FakePlace("dies", bad, {step})
    good = FakePlace("good", patient)

    class Places(FakePlaces):
        def there(self) -> list[FakePlace]:
            if dies.gone:
                lives.set()
            return super().there()

    told = Told()
    with Ledger(tmp_path) as ledger:
        runs = begin(ledger, night(), cells)
        execute(ledger, runs, Places([dies, good]), SLICED, [told])
    check(runs, cells)
    gone = [a for a in runs.attempts if a.lost is Lost.INFRASTRUCTURE]
    assert [(a.machine, a.error) for a in gone] == [("dies", "dies is gone.")] * lost
    for one in gone:
        again = runs.attempts_of(one.cell)[1]
        assert (again.role, again.machine, again.outcome) == ("retry", "good", BAD)
    assert sum(a.machine == "dies" for a in runs.attempts) == lost + seen
    assert len(runs.attempts) == len(cells) + lost
    assert [text.partition(":")[0] for text in told.said] == ["dies was lost"]


def test_two_are_lost_in_turn(tmp_path: Path) -> None:
    cells = cells_of(3, 3, 3)
    places = [FakePlace("a", bad, {1}), FakePlace("b", bad, {2}), FakePlace("c", bad)]
    runs, told = run(tmp_path, cells, places)
    check(runs, cells)
    assert (
        sum(a.lost is not None for a in runs.attempts)
        == len(told.said) - places[1].gone
    )


def test_none_is_left_and_the_night_is_gone_on_with(tmp_path: Path) -> None:
    cells = cells_of(3, 3)
    with pytest.raises(NoPlaceLeft, match="2 of 6 cells done") as caught:
        run(tmp_path, cells, [FakePlace("a", bad, {5})])
    assert caught.value.exit_code is ExitCode.INFRASTRUCTURE
    before = read(tmp_path).night("n1")
    assert before.night.state is NightState.INTERRUPTED
    assert [a.lost for a in before.attempts] == [None, None, Lost.INFRASTRUCTURE]
    runs, _ = run(tmp_path, [], [FakePlace("b", bad)])
    check(runs, cells)
    assert [a.machine for a in runs.attempts] == [*["a"] * 3, *["b"] * 4]


def test_a_machine_joins_later(tmp_path: Path) -> None:
    started = threading.Event()
    late = FakePlace("late", bad)
    late.gone = True

    def world(cell: Cell, index: int) -> Outcome:
        late.gone = False
        assert started.wait(20), "it works while the other one joins and begins"
        return BAD

    first = FakePlace("first", world)

    class Places(FakePlaces):
        def there(self) -> list[FakePlace]:
            if late.orders:
                started.set()
            return super().there()

    cells = cells_of(6)
    with Ledger(tmp_path) as ledger:
        runs = begin(ledger, night(), cells)
        execute(ledger, runs, Places([first, late]), SLICED)
    check(runs, cells)
    assert {a.machine for a in runs.attempts} == {"first", "late"}


def test_the_first_machine_may_be_late(tmp_path: Path) -> None:
    cells = cells_of(2)
    runs, _ = run(tmp_path, cells, [FakePlace("a", bad)], late=2)
    check(runs, cells)


def test_a_machine_that_loses_everything_is_left_alone(tmp_path: Path) -> None:
    failing = FakePlace("failing", bad, range(0, 99, 1), stays=True)

    def patient(cell: Cell, index: int) -> Outcome:
        assert done.wait(20)
        return BAD

    done = threading.Event()
    good = FakePlace("good", patient)

    class Places(FakePlaces):
        def there(self) -> list[FakePlace]:
            if len(failing.orders) == STRIKES:
                done.set()
            return super().there()

    cells, told = cells_of(1, 1, 1, 1, 1, 1), Told()
    with Ledger(tmp_path) as ledger:
        runs = begin(ledger, night(), cells)
        execute(ledger, runs, Places([failing, good]), SLICED, [told])
    check(runs, cells)
    assert len(failing.orders) == STRIKES
    assert {(a.machine, a.outcome) for a in runs.attempts} == {("good", BAD)}
    assert "and is not used any more" in told.said[-1]


def test_cells_that_lose_every_machine_are_lost(tmp_path: Path) -> None:
    """Nothing came of them on three machines, not even a run that began."""
    cells = cells_of(1)
    runs, _ = run(tmp_path, cells, [FakePlace(name, bad, {0}) for name in "abc"])
    check(runs, cells)
    assert [(a.role, a.lost, a.machine) for a in runs.attempts] == [
        ("planned", Lost.INFRASTRUCTURE, "c"),
        ("retry", Lost.INFRASTRUCTURE, "c"),
    ]


def test_ctrl_c_stops_all_machines(tmp_path: Path) -> None:
    def press(cell: Cell, index: int) -> Outcome:
        assert working.wait(20)
        raise KeyboardInterrupt

    def busy(cell: Cell, index: int) -> Outcome:
        working.set()
        while not places.stopped:
            time.sleep(0.01)
        time.sleep(0.2)  # an engine takes a while to end
        return BAD

    working = threading.Event()
    cells = cells_of(3, 3)
    places = FakePlaces([FakePlace("a", press), FakePlace("b", busy)])
    with Ledger(tmp_path) as ledger:
        runs = begin(ledger, night(), cells)
        with pytest.raises(KeyboardInterrupt):
            execute(ledger, runs, places, SLICED)
    assert places.stopped
    assert runs.night.state is NightState.INTERRUPTED
    assert not [t for t in threading.enumerate() if t.name.startswith("matrix-")]


# ---------------------------------------------------------------- lost anywhere


@examples(15)
@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    losses=st.lists(st.sets(st.integers(0, 12), max_size=4), min_size=0, max_size=3),
    stays=st.booleans(),
    came=st.lists(
        st.sampled_from([BAD, GOOD, Lost.INFRASTRUCTURE, Lost.TIMEOUT]), min_size=4
    ),
)
def test_wherever_machines_are_lost_every_attempt_is_made_once(
    sizes: list[int], losses: list[set[int]], stays: bool, came: list[Outcome | Lost]
) -> None:
    cells = cells_of(*sizes)
    world: World = lambda cell, index: came[(len(cell.id) + index) % len(came)]  # noqa: E731
    places = [
        FakePlace(f"m{n}", world, some, stays=stays) for n, some in enumerate(losses)
    ]
    places.append(FakePlace("immortal", world))
    with tempfile.TemporaryDirectory() as folder:
        runs, _ = run(Path(folder), cells, places)
        check(runs, cells)
        made = sorted((name, index) for p in places for name, index, _ in p.trials.made)
        assert len(made) == len(set(made)), "nothing is run twice"
        told = sorted((a.cell, a.index) for a in runs.attempts)
        assert set(made) <= set(told), "what was run is told, as lost too"
        ran = {(a.cell, a.index) for a in runs.attempts if a.incident}
        assert ran <= set(made)
