"""A night from start to end, and from wherever it was killed."""

import tempfile
import threading
from pathlib import Path

import pytest
from grids import examples
from hypothesis import example, given, strategies as st
from matrix_nights import (
    Came,
    DyingLedger,
    FakeProvisions,
    FakeTrials,
    Killed,
    World,
    attempt,
    execute,
    night,
    planned,
)
from mmrepro.base.errors import UsageError
from mmrepro.campaign.matrix.session import begin, unfinished
from mmrepro.campaign.schedule import Schedule
from mmrepro.campaign.work import INCIDENTS, LocalPlaces
from mmrepro.failure.documents.ledger import Cell, Lost, NightState, Planned
from mmrepro.failure.signature import Outcome
from mmrepro.history.ledger import Ledger, NightRuns, read
from mmrepro.history.states import JobState, settle

BAD, GOOD, UNSURE = Outcome.REPRODUCED, Outcome.NOT_REPRODUCED, Outcome.INCONCLUSIVE
BROKEN = Lost.INFRASTRUCTURE


def run(
    ledger: Ledger,
    cells: list[Planned],
    world: World,
    *,
    provisions: FakeProvisions | None = None,
    trials: FakeTrials | None = None,
    repeat: int = 1,
    confirm: int = 3,
    name: str = "n1",
    jobs: int = 1,
) -> NightRuns:
    runs = begin(ledger, night(name, repeat=repeat, confirm=confirm), cells)
    places = LocalPlaces(
        trials or FakeTrials(world), provisions or FakeProvisions(), jobs
    )
    execute(ledger, runs, places)
    return runs


def roles(runs: NightRuns, cell: str) -> list[str]:
    return [f"{a.role} {a.outcome or a.lost}" for a in runs.attempts_of(cell)]


# ---------------------------------------------------------------- which run comes next


@pytest.mark.parametrize(
    ("came", "following"),
    [
        ([], "planned"),
        ([("planned", BAD)], None),
        ([("planned", BROKEN)], "retry"),
        ([("planned", BROKEN), ("retry", BROKEN)], None),
        ([("planned", BROKEN), ("retry", BAD)], None),
        ([("planned", BROKEN), ("retry", GOOD)], "confirm"),
        ([("planned", GOOD)], "confirm"),
        ([("planned", GOOD), ("confirm", BAD)], "confirm"),
        ([("planned", GOOD), ("confirm", BROKEN)], "retry"),
        ([("planned", GOOD), ("confirm", BROKEN), ("retry", BAD)], "confirm"),
        ([("planned", GOOD), ("confirm", BAD), ("confirm", BAD)], None),
        ([("planned", Lost.TIMEOUT)], None),
        ([("planned", Lost.UNLOADABLE)], None),
        ([("planned", Lost.USAGE)], None),
    ],
)
def test_what_comes_next(came: list[tuple[str, Came]], following: str | None) -> None:
    one = planned("a", "1.0")
    done = [attempt(one, n, c, role) for n, (role, c) in enumerate(came, 1)]  # type: ignore[arg-type]
    coming = Schedule(1, 2).next(done, one)
    assert (coming.role if coming else None) == following
    assert coming is None or coming.number == len(came) + 1
    assert (Schedule(1, 2).left(done, one) == 0) == (coming is None)


def test_what_was_so_the_night_before_is_no_surprise() -> None:
    one = planned("a", "1.0")
    rules = Schedule(1, 2, {one.cell.id: settle([attempt(one, 1, GOOD)])})
    assert rules.next([attempt(one, 1, GOOD)], one) is None
    coming = rules.next([attempt(one, 1, BAD)], one)
    assert coming is not None
    assert coming.role == "confirm", (
        "expected by the scenario, but not so the night before"
    )


def test_all_planned_runs_come_before_the_first_confirming_one() -> None:
    one = planned("a", "1.0")
    done = [attempt(one, 1, GOOD)]
    assert Schedule(2, 1).next(done, one) == (2, "planned")
    assert Schedule(2, 1).left(done, one) == 1


# ---------------------------------------------------------------- whole nights


def test_a_surprise_is_confirmed_and_nothing_is_run_until_green(tmp_path: Path) -> None:
    cells = [
        planned("a", "1.0"),
        planned("b", "1.0"),
        planned("c", "1.0"),
        planned("d", "1.0"),
    ]
    outcomes = {
        "a": [BAD],
        "b": [GOOD, BAD, BAD, BAD],
        "c": [BROKEN, BAD],
        "d": [Lost.TIMEOUT],
    }
    with Ledger(tmp_path) as ledger:
        runs = run(
            ledger, cells, lambda cell, index: outcomes[cell.scenario][index - 1]
        )
    a, b, c, d = (p.cell.id for p in cells)
    assert roles(runs, a) == ["planned reproduced"]
    assert roles(runs, b) == ["planned not-reproduced", *["confirm reproduced"] * 3]
    assert roles(runs, c) == ["planned infrastructure", "retry reproduced"]
    assert roles(runs, d) == ["planned timeout"]
    assert settle(runs.attempts_of(b)).state is JobState.FLAKY
    assert runs.night.state is NightState.COMPLETE
    assert read(tmp_path).night("n1").attempts == runs.attempts


def test_groups_are_run_one_after_another_with_the_next_one_fetched(
    tmp_path: Path,
) -> None:
    cells = [planned(s, r) for r in ("1.0", "2.0") for s in "ab"]
    provisions = FakeProvisions()
    with Ledger(tmp_path) as ledger:
        run(ledger, cells, lambda cell, index: BAD, provisions=provisions)
    assert provisions.told == [
        "expect 2",
        "prepare 1.0",
        "prefetch 2.0",
        "warm 2",
        "cold",
        "done 1.0",
        "prepare 2.0",
        "warm 2",
        "cold",
        "done 2.0",
    ]


def test_a_second_run_does_nothing(tmp_path: Path) -> None:
    cells = [planned("a", "1.0"), planned("b", "2.0", GOOD)]
    with Ledger(tmp_path) as ledger:
        run(ledger, cells, lambda cell, index: BAD)
        content = ledger.path.read_bytes()
        trials = FakeTrials(lambda cell, index: BAD)
        run(ledger, cells, lambda cell, index: BAD, trials=trials)
        assert trials.made == []
        assert unfinished(ledger) is None
        assert ledger.path.read_bytes() == content


def test_a_night_is_gone_on_with_by_more_cells_and_more_runs(tmp_path: Path) -> None:
    one, other = planned("a", "1.0"), planned("b", "1.0")
    with Ledger(tmp_path) as ledger:
        run(ledger, [one], lambda cell, index: BAD)
        runs = run(ledger, [other], lambda cell, index: BAD)
        assert list(runs.planned) == [one.cell.id, other.cell.id]
        assert len(runs.attempts) == 2
        runs = run(ledger, [one, other], lambda cell, index: BAD, repeat=2)
        assert len(runs.attempts) == 4


def test_no_run_is_started_that_is_not_expected_to_end_in_time(tmp_path: Path) -> None:
    now = [0.0]

    def takes(cell: Cell, index: int) -> None:
        now[0] += 10

    cells = [planned(s, r) for r in ("1.0", "2.0", "3.0") for s in "ab"]
    with Ledger(tmp_path) as ledger:
        first = run(
            ledger, [planned("a", "1.0", name="n0")], lambda cell, index: BAD, name="n0"
        )
        assert len(first.attempts) == 1, "from here on a run is known to take 10 s"
        runs = begin(ledger, night(), cells)
        trials = FakeTrials(lambda cell, index: BAD, takes)
        provisions = FakeProvisions()
        clock = lambda: now[0]  # noqa: E731
        places = LocalPlaces(trials, provisions, clock=clock)
        execute(ledger, runs, places, budget_s=35, clock=clock)
        assert len(runs.attempts) == 3, "the fourth would end at 40"
        assert runs.night.state is NightState.OUT_OF_TIME
        assert "prepare 3.0" not in provisions.told, "nothing is fetched for nothing"
        assert unfinished(ledger) is runs
        execute(ledger, runs, LocalPlaces(trials, FakeProvisions()))
        assert len(runs.attempts) == 6
        assert runs.night.state is NightState.COMPLETE


def test_what_does_not_fit_on_the_disk_is_lost_and_says_why(tmp_path: Path) -> None:
    trials = FakeTrials(lambda cell, index: BAD)
    provisions = FakeProvisions(refused="no room")
    with Ledger(tmp_path) as ledger:
        runs = run(
            ledger,
            [planned("a", "1.0")],
            trials.world,
            trials=trials,
            provisions=provisions,
        )
    assert trials.made == []
    assert {(a.lost, a.error) for a in runs.attempts} == {(BROKEN, "no room")}


def test_two_groups_at_a_time(tmp_path: Path) -> None:
    both = threading.Barrier(2, timeout=20)
    cells = [planned("a", "1.0"), planned("a", "2.0")]
    trials = FakeTrials(
        lambda cell, index: BAD, lambda cell, index: both.wait() and None
    )
    with Ledger(tmp_path) as ledger:
        runs = run(ledger, cells, trials.world, trials=trials, jobs=2)
    assert runs.night.state is NightState.COMPLETE
    assert not both.broken


def test_ctrl_c_keeps_what_ended(tmp_path: Path) -> None:
    cells = [planned(s, "1.0") for s in "abc"]

    def press(cell: Cell, index: int) -> None:
        if cell.scenario == "b":
            raise KeyboardInterrupt

    with Ledger(tmp_path) as ledger:
        runs = begin(ledger, night(), cells)
        trials = FakeTrials(lambda cell, index: BAD, press)
        provisions = FakeProvisions()
        with pytest.raises(KeyboardInterrupt):
            execute(ledger, runs, LocalPlaces(trials, provisions))
        assert (len(runs.attempts), runs.night.state) == (1, NightState.INTERRUPTED)
        assert trials.stopped
        assert "stop" in provisions.told
        again = FakeTrials(lambda cell, index: BAD)
        execute(ledger, runs, LocalPlaces(again, FakeProvisions()))
    assert [made[0] for made in again.made] == [p.cell.id for p in cells[1:]]


def test_a_plan_that_was_not_written_whole_is_not_gone_on_with(tmp_path: Path) -> None:
    cells = [planned(s, "1.0") for s in "abc"]
    ledger = DyingLedger(tmp_path)
    ledger.at = 2
    with ledger, pytest.raises(Killed):
        begin(ledger, night(), cells)
    with Ledger(tmp_path) as ledger:
        with pytest.raises(UsageError, match="before its plan") as caught:
            unfinished(ledger)
        assert "--scenario a" in caught.value.hint
        runs = run(ledger, cells, lambda cell, index: BAD)
        assert len(runs.attempts) == 3


# ---------------------------------------------------------------- killed anywhere

CAME = st.sampled_from([BAD, GOOD, UNSURE, BROKEN, Lost.TIMEOUT, Lost.UNLOADABLE])


@examples(12)
@example(came=[[BAD] * 10] * 3, kills=[(2, "after")], repeat=1, jobs=1)
@given(
    came=st.lists(st.lists(CAME, min_size=10, max_size=10), min_size=1, max_size=4),
    kills=st.lists(
        st.tuples(st.integers(0, 14), st.sampled_from(["before", "after", "torn"])),
        max_size=3,
    ),
    repeat=st.integers(1, 2),
    jobs=st.integers(1, 2),
)
def test_wherever_it_is_killed_every_attempt_is_made_once(
    came: list[list[Came]], kills: list[tuple[int, str]], repeat: int, jobs: int
) -> None:
    cells = [planned(f"s{n}", f"{n % 2 + 1}.0") for n in range(len(came))]
    outcomes = dict(zip([p.cell.id for p in cells], came, strict=True))

    def world(cell: Cell, index: int) -> Came:
        return outcomes[cell.id][index - 1]

    def go_on(ledger: Ledger) -> NightRuns:
        try:
            runs = unfinished(ledger)
        except UsageError:  # the plan is not whole: the same command again
            runs = None
        if runs is None:
            runs = begin(ledger, night(repeat=repeat, confirm=2), cells)
        places = LocalPlaces(FakeTrials(world), FakeProvisions(), jobs)
        execute(ledger, runs, places)
        return runs

    with tempfile.TemporaryDirectory() as folder:
        whole, broken = Path(folder, "whole"), Path(folder, "broken")
        with Ledger(whole) as ledger:
            wanted = go_on(ledger)
        for at, how in kills:
            ledger = DyingLedger(broken)
            ledger.at, ledger.how = at, how
            with ledger:
                try:
                    go_on(ledger)
                except Killed:
                    continue
                break
        with Ledger(broken) as ledger:
            runs = go_on(ledger)
        assert runs.night.state is NightState.COMPLETE
        told = [event.identity for event in runs.events]
        assert sorted(told) == sorted(event.identity for event in wanted.events)
        for one in cells:
            assert roles(runs, one.cell.id) == roles(wanted, one.cell.id)
            attempts = runs.attempts_of(one.cell.id)
            assert [a.index for a in attempts] == list(range(1, len(attempts) + 1))
            below = broken / INCIDENTS / "n1" / one.cell.id
            assert {p.name for p in below.iterdir()} == {
                f"run-{a.index}" for a in attempts
            }
            assert all((broken / a.incident / "whole").exists() for a in attempts)
