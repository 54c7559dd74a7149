"""A whole ablation against an engine that is not there: cells, cache, retry, resume,
files."""

import json
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import worlds
from kinds import written
from made_up import hang_run, healthy_run
from matrix_nights import FakeProvisions
from mmrepro.base.errors import EngineStartError, NoSpace, UnwritableOutput, UsageError
from mmrepro.base.records import ClaimStatus
from mmrepro.campaign.ablate import cells
from mmrepro.campaign.ablate.options import AblateCommand
from mmrepro.campaign.ablate.session import Ablating, plan
from mmrepro.campaign.campaign import Campaign
from mmrepro.campaign.trial import TrialOptions
from mmrepro.campaign.work import LocalPlaces
from mmrepro.failure.documents.searches import (
    Ablation,
    CellState,
    Conclusion,
    FactorClass,
)
from mmrepro.reports.ablation import KIND
from mmrepro.reports.documents import keep
from mmrepro.runs import key
from mmrepro.runs.options import StartMode
from mmrepro.scenario.registry import load_scenario
from mmrepro.traffic.evidence import Evidence
from worlds import World, WorldTrials, as_in_0_23, environment

GHOST = load_scenario("ghost-key-eviction")
Ablate = Callable[..., Ablation]
REPORTS = partial(keep, KIND)
"""What the command writes with: each time in every format."""
CPU = {"device": "cpu"}


@pytest.fixture
def ablate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ablate:
    """``ablate(world, factors=…)``: an ablation in its own folder, with a cache of the
    test."""
    monkeypatch.setenv("MMREPRO_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(key, "closure", worlds.closure_once)
    place = environment(tmp_path / "cache/environments/vllm-0.23.0-cpu")
    monkeypatch.setattr(cells, "existing", lambda spec: place)

    def run(
        world: World,
        *,
        jobs: int = 1,
        budget_s: float | None = None,
        write: Callable[[Any, Path], object] = written,
        **more: object,
    ) -> Ablation:
        options = AblateCommand(**{**CPU, "out": tmp_path / "out", **more})  # type: ignore[arg-type]
        trials = WorldTrials(
            world, place, TrialOptions(start_mode=options.run.start_mode)
        )
        policy = Ablating(GHOST, options, write=write)
        places = LocalPlaces(trials, FakeProvisions(), jobs)
        return Campaign(policy, places, budget_s=budget_s).execute()

    return run


def classes(ablation: Ablation) -> dict[str, FactorClass | None]:
    return {f.name: f.factor_class for f in ablation.factors}


def test_the_ghost_key_of_0_23_0(ablate: Ablate, tmp_path: Path) -> None:
    world = World()
    done = ablate(world, write=REPORTS)
    assert classes(done) == {
        "prefix-caching": FactorClass.IRRELEVANT,
        "concurrency": FactorClass.IRRELEVANT,
        "cache-size": FactorClass.HIDES,
        "refusal": FactorClass.SUFFICIENT,
        "mm-cache": FactorClass.SUFFICIENT,
        "touch-fix": FactorClass.SUFFICIENT,
        "popitem-fix": FactorClass.SUFFICIENT,
    }
    assert [c.flips for c in done.cures] == [
        ["refusal"],
        ["mm-cache"],
        ["touch-fix"],
        ["popitem-fix"],
    ]
    assert (done.state, done.conclusion) == ("complete", Conclusion.CURE)
    assert (done.runs, done.reused) == (len(world.calls), 0) == (10, 0)
    assert len({r.incident_dir for c in done.cells for r in c.runs}) == 10
    for cell in done.cells:
        for run in cell.runs:
            assert (tmp_path / "out" / run.incident_dir / "incident.json").is_file()
    kept = KIND.load(tmp_path / "out")
    assert kept.model_dump(exclude={"finished"}) == done.model_dump(
        exclude={"finished"}
    )
    assert '"factor_class": "hides-it"' in (tmp_path / "out/ablation.json").read_text()


def test_a_second_call_reuses_every_cell(ablate: Ablate, tmp_path: Path) -> None:
    first = ablate(World())
    world = World()
    second = ablate(world, out=tmp_path / "other")
    assert world.calls == []
    assert second.reused == second.runs == first.runs
    assert classes(second) == classes(first)
    fresh = World()
    assert ablate(fresh, out=tmp_path / "third", fresh=True).reused == 0
    assert len(fresh.calls) == 10


def test_fewer_factors_reuse_what_is_theirs(ablate: Ablate, tmp_path: Path) -> None:
    ablate(World())
    world = World()
    done = ablate(world, factors=("mm-cache", "concurrency"), out=tmp_path / "other")
    assert classes(done) == {
        "concurrency": FactorClass.IRRELEVANT,
        "mm-cache": FactorClass.NECESSARY,
    }
    assert world.calls == [("concurrency", "mm-cache")], "only their combination is new"


@pytest.mark.parametrize(
    "change",
    [
        {"server_args": ("--x",)},
        {"release": "0.22.0"},
    ],
)
def test_what_decides_a_cell_is_in_its_key(
    ablate: Ablate, tmp_path: Path, change: dict[str, object]
) -> None:
    ablate(World(), factors=("mm-cache",))
    world = World()
    ablate(world, factors=("mm-cache",), out=tmp_path / "other", **change)
    assert world.calls == [(), ("mm-cache",)]


def test_a_run_of_one_start_mode_is_none_of_another(
    ablate: Ablate, tmp_path: Path
) -> None:
    """Also where it was asked for in another mode, which could not be used."""
    one = {"factors": ("mm-cache",)}
    both = [(), ("mm-cache",)]
    fell_back = World(start_mode="fork")
    ablate(fell_back, **one)
    assert fell_back.calls == both
    forked, warm = World(), World()
    ablate(forked, **one, start_mode=StartMode.FORK, out=tmp_path / "forked")
    assert forked.calls == [], "they were forks"
    ablate(warm, **one, out=tmp_path / "warm")
    assert warm.calls == both, "and no warm starts"
    cold = World()
    ablate(
        cold,
        **one,
        start_mode=StartMode.COLD,
        out=tmp_path / "cold",
    )
    assert cold.calls == both


def test_ctrl_c_keeps_what_is_whole_and_says_how_to_go_on(
    ablate: Ablate, tmp_path: Path
) -> None:
    def interrupted(flips: frozenset[str]) -> Evidence:
        if flips == {"cache-size"}:
            raise KeyboardInterrupt
        return as_in_0_23(flips)

    with pytest.raises(KeyboardInterrupt):
        ablate(World(interrupted), write=REPORTS)
    partial_one = KIND.load(tmp_path / "out")
    assert (partial_one.state, partial_one.conclusion) == ("interrupted", None)
    assert [c.flips for c in partial_one.cells] == [
        [],
        ["prefix-caching"],
        ["concurrency"],
    ]
    assert (
        f"mmrepro ablate ghost-key-eviction --device cpu --out {tmp_path / 'out'}"
        in (partial_one.failure)
    )
    assert "interrupted" in (tmp_path / "out/ablation.md").read_text()
    world = World()
    resumed = ablate(world)
    assert resumed.reused == 3
    assert ("concurrency",) not in world.calls
    assert ("cache-size",) in world.calls
    assert resumed.state == "complete"


def test_cells_that_do_not_depend_on_each_other_run_beside_each_other(
    ablate: Ablate, tmp_path: Path
) -> None:
    """Each of these waits until all of them are under way."""
    alone = {
        frozenset({name}) for name in ("prefix-caching", "concurrency", "cache-size")
    }
    met = threading.Barrier(len(alone))

    def together(flips: frozenset[str]) -> Evidence:
        if flips in alone:
            met.wait(30)
        return as_in_0_23(flips)

    one = ablate(World(), out=tmp_path / "one", fresh=True)
    three = ablate(World(together), jobs=3, fresh=True)
    assert classes(three) == classes(one)
    assert [c.flips for c in three.cells] == [c.flips for c in one.cells]


def test_runs_of_the_baseline_are_made_beside_each_other(ablate: Ablate) -> None:
    met = threading.Barrier(2)

    def together(flips: frozenset[str]) -> Evidence:
        if not flips:
            met.wait(30)
        return as_in_0_23(flips)

    done = ablate(World(together), factors=("mm-cache",), repeat=2, jobs=2)
    assert classes(done) == {"mm-cache": FactorClass.NECESSARY}
    assert [run.index for run in done.cells[0].runs] == [1, 2]


def test_without_time_it_stops_and_says_how_to_go_on(ablate: Ablate) -> None:
    done = ablate(World(), budget_s=-1.0)
    assert (done.state, done.conclusion, done.runs) == ("interrupted", None, 0)
    assert "its time is over; to resume, run: mmrepro ablate" in done.failure


def test_its_own_journal_is_gone_on_with_where_the_cache_is_lost(
    ablate: Ablate, tmp_path: Path
) -> None:
    ablate(World(), factors=("mm-cache",))
    shutil.rmtree(tmp_path / "cache/ablate")
    world = World()
    done = ablate(world, factors=("mm-cache", "concurrency"))
    assert world.calls == [("concurrency",), ("concurrency", "mm-cache")]
    assert done.reused == 2
    again = World()
    ablate(again, factors=("mm-cache",), fresh=True)
    assert again.calls == [(), ("mm-cache",)], "anew: neither the journal nor the cache"
    ablate(broken := World(), factors=("mm-cache",), server_args=("--x",))
    assert broken.calls == [(), ("mm-cache",)]


def test_what_was_run_by_other_code_is_not_mixed_with_it(
    ablate: Ablate, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def kept() -> list[Path]:
        return list((tmp_path / "cache/ablate").rglob("*.json"))

    ablate(World(), factors=("mm-cache",))
    decisive = key.decisive_parts

    def edited(*rest: Any, **more: Any) -> dict[str, str]:
        return {**decisive(*rest, **more), "code": "edited"}

    monkeypatch.setattr(cells, "decisive_parts", edited)
    monkeypatch.setattr(worlds, "decisive_parts", edited)
    world = World()
    ablate(world, factors=("mm-cache",))
    assert world.calls == [(), ("mm-cache",)]
    monkeypatch.setattr(cells, "decisive_parts", decisive)
    count = 0

    def meanwhile(*rest: Any, **more: Any) -> dict[str, str]:
        nonlocal count
        count += 1
        parts = decisive(*rest, **more)
        return {**parts, "code": "half"} if count > 1 else parts

    monkeypatch.setattr(worlds, "decisive_parts", meanwhile)
    done = ablate(World(), factors=("mm-cache",), fresh=True, out=tmp_path / "other")
    assert any("edited meanwhile" in line for line in done.limits)
    stored = [
        read["parts"]["code"] for read in map(json.loads, map(Path.read_text, kept()))
    ]
    assert len(stored) == 4
    assert "half" not in stored


def test_a_lost_cell_is_tried_once_more_and_does_not_lose_the_rest(
    ablate: Ablate, tmp_path: Path
) -> None:
    def broken(flips: frozenset[str]) -> Evidence:
        if flips == {"prefix-caching"}:
            raise EngineStartError("vllm 0.23.0 ended with 1 while it started.")
        return as_in_0_23(flips)

    world = World(broken)
    done = ablate(world, factors=("prefix-caching", "mm-cache", "concurrency"))
    assert world.calls.count(("prefix-caching",)) == 2
    cell = done.cell(["prefix-caching"])
    assert cell is not None
    assert cell.state is CellState.LOST
    assert "ended with 1" in cell.runs[0].error
    assert cell.runs[0].retried
    assert classes(done)["prefix-caching"] is FactorClass.INCONCLUSIVE
    assert classes(done)["mm-cache"] is FactorClass.NECESSARY
    assert any("no run reached a verdict" in line for line in done.limits)
    again = World()
    done = ablate(again, factors=("prefix-caching", "mm-cache", "concurrency"))
    assert ("prefix-caching",) in again.calls, "what was lost is not kept"
    assert classes(done)["prefix-caching"] is FactorClass.IRRELEVANT


def test_a_run_that_is_lost_once_counts_the_second_time(ablate: Ablate) -> None:
    lost = []

    def flaky(flips: frozenset[str]) -> Evidence:
        if flips == {"mm-cache"} and not lost:
            lost.append(flips)
            raise EngineStartError("the port was taken.")
        return as_in_0_23(flips)

    done = ablate(World(flaky), factors=("mm-cache",))
    assert classes(done) == {"mm-cache": FactorClass.NECESSARY}
    cell = done.cell(["mm-cache"])
    assert cell is not None
    assert cell.runs[0].retried == "the port was taken."


def test_what_every_cell_would_meet_ends_it(ablate: Ablate, tmp_path: Path) -> None:
    def full(flips: frozenset[str]) -> Evidence:
        raise NoSpace("The disk is full.")

    world = World(full)
    with pytest.raises(NoSpace):
        ablate(world)
    assert len(world.calls) == 1
    assert KIND.load(tmp_path / "out").state == "failed"


def test_a_baseline_that_is_lost_is_infrastructure(
    ablate: Ablate, tmp_path: Path
) -> None:
    def broken(flips: frozenset[str]) -> Evidence:
        raise EngineStartError("it never came up.")

    with pytest.raises(EngineStartError):
        ablate(World(broken))
    kept = KIND.load(tmp_path / "out")
    assert (kept.state, kept.failure) == ("failed", "it never came up.")


def test_a_baseline_that_does_not_fail(ablate: Ablate) -> None:
    world = World(lambda flips: healthy_run())
    done = ablate(world)
    assert done.conclusion is Conclusion.INCONCLUSIVE
    assert world.calls == [()]


def test_a_failure_that_comes_and_goes(ablate: Ablate) -> None:
    """Half of the runs fail: the threshold decides, and the luck of a clean cell is
    told."""
    count = dict.fromkeys(["fails"], 0)

    def flaky(flips: frozenset[str]) -> Evidence:
        if "mm-cache" in flips:
            return healthy_run()
        count["fails"] += 1
        return hang_run() if count["fails"] % 2 else healthy_run()

    world = World(flaky)
    done = ablate(world, factors=("mm-cache", "concurrency"), repeat=4, threshold=2)
    assert classes(done) == {
        "concurrency": FactorClass.IRRELEVANT,
        "mm-cache": FactorClass.NECESSARY,
    }
    assert world.calls.count(()) == 4, "the baseline is run in full"
    assert world.calls.count(("concurrency",)) == 3, "two failing runs settle it"
    assert world.calls.count(("mm-cache",)) == 4
    assert any("2 of 4 runs" in line and "6%" in line for line in done.limits)


def test_a_check_that_crashes_leaves_the_cause_unknown(
    ablate: Ablate, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object) -> object:
        raise RuntimeError("a bug")

    monkeypatch.setattr(type(GHOST), "cause_remains", crash)
    done = ablate(World(), factors=("mm-cache",))
    assert classes(done) == {"mm-cache": FactorClass.INCONCLUSIVE}
    assert done.conclusion is Conclusion.INCONCLUSIVE


def test_a_scenario_without_factors() -> None:
    bare = type("Bare", (type(GHOST),), {"factors": ()})()
    with pytest.raises(UsageError, match="declares no factors"):
        AblateCommand().chosen(bare)


def test_another_ablations_folder_is_left_alone(ablate: Ablate, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/ablation.json").write_text("{}")
    with pytest.raises(UnwritableOutput, match="another ablation"):
        ablate(World())


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"factors": ("prayer",)}, "it has: prefix-caching"),
        ({"repeat": 2, "threshold": 3}, "--threshold 3 is more than --repeat 2"),
    ],
)
def test_wrong_use(
    ablate: Ablate, tmp_path: Path, more: dict[str, object], says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        ablate(World(), **more)
    assert not (tmp_path / "out").exists()


def test_every_run_may_have_to_fail(ablate: Ablate) -> None:
    assert ablate(World(), factors=("mm-cache",), repeat=2, threshold=2)


def test_the_plan_knows_the_cache_and_the_time(ablate: Ablate, tmp_path: Path) -> None:
    options = AblateCommand(device="cpu", factors=("mm-cache", "concurrency"))
    before = plan(GHOST, options)
    assert [c.runs for c in before.cells] == [1, 1, 1, 1]
    assert before.more > 0
    assert "an estimate" in before.seconds_from
    ablate(World(), factors=("mm-cache",))
    half = plan(GHOST, options)
    assert [(c.flips, c.runs) for c in half.cells if not c.runs] == [
        ([], 0),
        (["mm-cache"], 0),
    ]
    assert "median of 2 measured runs of this scenario" in half.seconds_from
    ablate(World(), factors=options.factors)
    after = plan(GHOST, options)
    assert (after.seconds, after.more) == (0, 0)
    assert all(c.reused == 1 for c in after.cells)
    fresh = plan(GHOST, replace(options, fresh=True))
    assert [c.runs for c in fresh.cells] == [1, 1, 1, 1]


def test_a_cache_that_is_broken_is_not_believed(ablate: Ablate, tmp_path: Path) -> None:
    ablate(World(), factors=("mm-cache",))
    files = sorted((tmp_path / "cache/ablate").rglob("*.json"))
    files[0].write_text("{")
    swapped = json.loads(files[1].read_text())
    swapped["run"]["key"] = "another"
    files[1].write_text(json.dumps(swapped))
    world = World()
    ablate(world, factors=("mm-cache",), out=tmp_path / "other")
    assert len(world.calls) == 2


def test_hypotheses_follow_the_table(ablate: Ablate) -> None:
    done = ablate(World())
    said = {c.id: c.status for c in done.hypotheses}
    assert said["both-parts"] is ClaimStatus.REFUTED
    assert said["larger-cache"] is ClaimStatus.REFUTED
    assert said["disable-cache"] is ClaimStatus.CONFIRMED
    assert said["high-concurrency"] is ClaimStatus.REFUTED

    def both(flips: frozenset[str]) -> Evidence:
        return healthy_run() if flips >= {"touch-fix", "popitem-fix"} else hang_run()

    said = {c.id: c.status for c in ablate(World(both), fresh=True).hypotheses}
    assert said["both-parts"] is ClaimStatus.CONFIRMED
    assert said["disable-cache"] is ClaimStatus.REFUTED
