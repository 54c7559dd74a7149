"""What a machine does with an order, without a night around it."""

import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from matrix_nights import FakeProvisions, FakeTrials, attempt, planned
from mmrepro.campaign import provisions as module
from mmrepro.campaign.schedule import groups_of
from mmrepro.campaign.trial import TrialOptions, cell_of, run_options
from mmrepro.campaign.work import CellsUntilWhole, StartedRun, Workplace
from mmrepro.engines.environments.spec import starts_seen
from mmrepro.engines.supervise.warm import Refused
from mmrepro.failure.documents.ledger import Attempt, Cell, Lost, Planned
from mmrepro.failure.signature import Outcome
from mmrepro.runs.options import RunCommand
from mmrepro.scenario.registry import load_scenario
from worlds import environment

BAD = Outcome.REPRODUCED


class Slow(FakeProvisions):
    """Its environments take 100 s."""

    def seconds(self, group: object) -> float:
        return 100.0


def order(cells: Sequence[Planned], **more: object) -> CellsUntilWhole:
    known: dict[str, object] = {
        "night": "n1",
        "group": groups_of(cells)[0],
        "attempts": {},
        "before": {},
        "seconds": {},
        "repeat": 1,
        "confirm": 2,
    }
    return CellsUntilWhole(**{**known, **more})  # type: ignore[arg-type]


def told(
    order: CellsUntilWhole,
    root: Path,
    provisions: FakeProvisions | None = None,
    takes: float = 50.0,
) -> list[str]:
    now = [0.0]

    def pass_by(cell: Cell, index: int) -> None:
        now[0] += takes

    class Timed(FakeTrials):
        def run(self, *rest: object, **more: object) -> Attempt:
            made = super().run(*rest, **more)  # type: ignore[arg-type]
            return made.model_copy(update={"seconds": takes})

    trials = Timed(lambda cell, index: BAD, pass_by)
    here = Workplace(trials, provisions or FakeProvisions(), clock=lambda: now[0])
    made = order.carry_out(here, root)
    return [
        f"{one.what.partition(' ')[0]}{one.index}"
        if isinstance(one, StartedRun)
        else f"{one.outcome or one.lost}"
        for one in made
    ]


CELLS = [planned(scenario, "1.0") for scenario in "abc"]


def test_an_order_can_be_sent_and_attempts_of_before_count(tmp_path: Path) -> None:
    before = {CELLS[0].cell.id: (attempt(CELLS[0], 1, Lost.INFRASTRUCTURE),)}
    sent = pickle.loads(pickle.dumps(order(CELLS[:2], attempts=before)))
    assert told(sent, tmp_path) == ["a2", BAD, "b1", BAD]


@pytest.mark.parametrize(
    ("until", "runs"), [(59.0, 0), (60.0, 1), (99.0, 1), (100.0, 2), (150.0, 3)]
)
def test_what_was_measured_a_moment_ago_is_what_a_run_takes(
    tmp_path: Path, until: float, runs: int
) -> None:
    """60 s are assumed of the first; it takes 50 s, and so will the others."""
    assert len(told(order(CELLS, until=until), tmp_path)) == 2 * runs


def test_what_earlier_nights_measured_counts_before_that(tmp_path: Path) -> None:
    seconds = {planned.cell.id: 20.0 for planned in CELLS}
    assert len(told(order(CELLS, until=70.0, seconds=seconds), tmp_path)) == 4


def test_nothing_is_fetched_that_there_is_no_time_for(tmp_path: Path) -> None:
    provisions = Slow()
    assert told(order(CELLS, until=159.0), tmp_path, provisions) == []
    assert provisions.told == ["done 1.0"]
    assert len(told(order(CELLS, until=160.0), tmp_path, provisions)) == 6, (
        "100 s, and 60 s"
    )


def test_the_next_environment_is_fetched_if_there_is_time_for_it(
    tmp_path: Path,
) -> None:
    ahead = groups_of([planned("a", "2.0")])[0]
    provisions = FakeProvisions()
    told(order(CELLS, ahead=ahead), tmp_path, provisions)
    assert "prefetch 2.0" in provisions.told
    late = FakeProvisions()
    known = {planned.cell.id: 1.0 for planned in CELLS}
    told(order(CELLS, ahead=ahead, until=59.0, seconds=known), tmp_path / "late", late)
    assert "prefetch 2.0" not in late.told


def test_a_closed_order_leaves_no_parent(tmp_path: Path) -> None:
    provisions = FakeProvisions()
    working = order(CELLS).carry_out(
        Workplace(FakeTrials(lambda cell, index: BAD), provisions), tmp_path
    )
    next(working)
    assert provisions.told[-1] == "warm 3"
    working.close()
    assert provisions.told[-1] == "cold"


def test_cells_of_one_environment_are_entered_without_leaving_it() -> None:
    provisions = FakeProvisions()
    here = Workplace(FakeTrials(lambda cell, index: BAD), provisions)
    first, second, other = (
        groups_of([planned(n, r)])[0] for n, r in ("a1", "b1", "a2")
    )
    for group in (first, first, second, other):
        assert here.enter(group, 2) == ""
    assert provisions.told == [
        "expect 1",
        "prepare 1",
        "warm 2",
        "warm 2",
        "cold",
        "cold",
        "done 1",
        "expect 1",
        "prepare 2",
        "warm 2",
    ]
    here.leave()
    assert provisions.told[-2:] == ["cold", "done 2"]


def test_a_parent_that_is_refused_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that whoever looks a run up knows in which mode it would be made."""
    asked: list[object] = []

    def refuse(self: object, spec: object) -> None:
        asked.append(spec)
        raise Refused("it has threads")

    monkeypatch.setenv("MMREPRO_CACHE_DIR", str(tmp_path))
    place = environment(tmp_path / "environments/vllm-0.23.0-cpu")
    monkeypatch.setattr(module, "existing", lambda spec: place)
    monkeypatch.setattr(module.ForkServers, "get", refuse)
    cell = planned("ghost-key-eviction", "0.23.0").cell.model_copy(
        update={"engine": "vllm"}
    )
    one = module.Provisions(TrialOptions())
    with one.warm([(cell, 1)]):
        assert not asked, "one run has no use for a parent"
    for _ in range(2):
        with one.warm([(cell, 2)]):
            assert len(asked) == 1, "once refused, it is not tried again"
    (seen,) = starts_seen(place.state_dir).modes.values()
    assert (seen.works, seen.certain, seen.why) == (False, True, "it has threads")


def test_a_file_below_the_home_folder_is_named_relative_to_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    scenario = load_scenario("ghost-key-eviction")
    run = RunCommand(scenario=str(tmp_path / "mine.py"), server_args=("--x",))
    cell = cell_of(scenario, run, "cpu", release="0.23.0", flips=("mm-cache",))
    assert (cell.scenario, cell.flips, cell.server_args) == (
        "mine.py",
        ("mm-cache",),
        ("--x",),
    )
    assert run_options(cell, TrialOptions()).command_line() == (
        "mmrepro run mine.py --device cpu --server-arg=--x --release 0.23.0 --flip "
        "mm-cache"
    )
    given = replace(run, scenario="/elsewhere/mine.py")
    assert (
        cell_of(scenario, given, "cpu", release="0.23.0").scenario
        == "/elsewhere/mine.py"
    )
