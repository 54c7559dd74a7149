"""The release in which a metric moved, over made-up comparisons."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pytest
from cloned import KERNELS, Clone
from made_up_replay import ghost_case
from matrix_nights import FakeProvisions
from mmrepro.base.errors import UsageError
from mmrepro.base.machine.host import host_facts
from mmrepro.base.options import Command
from mmrepro.base.records import Moment
from mmrepro.campaign.bisect.measured import MeanChange, differ, is_step, reading
from mmrepro.campaign.bisect.options import BisectCommand
from mmrepro.campaign.bisect.plan import field_of
from mmrepro.campaign.campaign import Campaign
from mmrepro.campaign.cluster import where
from mmrepro.campaign.trial import TrialOptions, Trials
from mmrepro.campaign.work import LocalPlaces
from mmrepro.cli.app import app
from mmrepro.cli.bisect import exit_code
from mmrepro.engines.environments.source import blob, read_tree
from mmrepro.engines.environments.spec import TreeLabel
from mmrepro.failure.documents.ledger import Attempt, Measured
from mmrepro.failure.documents.searches import Bisection, Point, PointVerdict
from mmrepro.failure.documents.stored import document_json
from mmrepro.failure.documents.upgrade import UPGRADE_FILE, Block, Upgrade
from mmrepro.failure.signature import Outcome
from mmrepro.reports.bisection import KIND
from mmrepro.reports.documents import keep
from mmrepro.runs.changes import METRICS
from mmrepro.search.upgrade.bisected import BisectingMetric, ByComparison, traffic
from mmrepro.traffic.case.files import write_case
from typer.testing import CliRunner

RELEASES = [f"0.{minor}.0" for minor in range(11, 19)]
CASE = ghost_case()


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MMREPRO_CACHE_DIR", str(tmp_path / "cache"))


@dataclass
class World:
    """Comparisons that are made up: each release is slower than the first by so
    much."""

    slower: Mapping[str, float]
    noise: float = 0.004
    metric: str = "tpot"
    blocks: int = 6
    broken: Sequence[str] = ()
    chance: random.Random = field(default_factory=lambda: random.Random(7))
    typed: list[list[str]] = field(default_factory=list)

    def child(self, trials: Trials, made: Command, folder: Path) -> tuple[int, str]:
        argv = made.argv(out=folder, json=True)
        self.typed.append(argv)
        old, new = argv[1:3]
        if TreeLabel.of(new) is not None:
            self.slower = {one: float(state_of(one)) for one in (old, new)}
        change = math.log1p(self.slower[new]) - math.log1p(self.slower[old])
        change = change if self.metric != "throughput" else -change
        blocks = []
        for index in range(1, self.blocks + 1):
            seen = change + self.chance.gauss(0, self.noise)
            error = "the new side did not start" if new in self.broken else ""
            changes = {} if error else {self.metric: seen, "ttft": 9.0}
            blocks.append(Block(index=index, first="old", changes=changes, error=error))
        folder.mkdir(parents=True)
        write_upgrade(folder, blocks)
        return 0, ""


def write_upgrade(folder: Path, blocks: list[Block]) -> None:
    """Write what a comparison leaves in its folder."""
    document = Upgrade(
        mmrepro_version="0",
        id="made-up",
        created=Moment.now(),
        state="complete",
        command="mmrepro upgrade",
        server=CASE.server,
        new=CASE.server,
        host=host_facts([]),
        blocks=blocks,
    )
    (folder / UPGRADE_FILE).write_text(document_json(document))


def state_of(release: str) -> str:
    """What ``state.py`` of a tree says."""
    label = TreeLabel.of(release)
    assert label is not None
    return blob(read_tree(label.digest).files["state.py"]).read_text()


Bisect = Callable[..., tuple[Bisection, World]]


@pytest.fixture
def bisect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bisect:
    def made(world: World, **options: object) -> tuple[Bisection, World]:
        monkeypatch.setattr(Trials, "_child", lambda *given: world.child(*given))
        write_case(CASE, tmp_path / "mine")
        given = {
            "scenario": "mine",
            "device": "cpu",
            "bad": RELEASES[-1],
            "out": tmp_path / "b",
        }
        asked = BisectCommand(**{**given, "measure": world.metric, **options})  # type: ignore[arg-type]
        what = traffic(asked)
        points = [Point(name=one, release=one) for one in RELEASES]
        policy = BisectingMetric(
            what,
            asked,
            field_of(what.scenario, asked, points),
            write=partial(keep, KIND),
        )
        trials = Trials(TrialOptions(making=policy.making))
        return Campaign(
            policy, LocalPlaces(trials, FakeProvisions(), 1)
        ).execute(), world

    return made


def stepped(first: int, by: float) -> dict[str, float]:
    return {name: by * (number >= first) for number, name in enumerate(RELEASES)}


@pytest.mark.parametrize(
    ("first", "metric"),
    [*((first, "tpot") for first in range(1, 8)), (4, "throughput")],
)
def test_the_planted_release_among_eight_is_found(
    bisect: Bisect, first: int, metric: str
) -> None:
    made, world = bisect(World(stepped(first, 0.05), metric=metric))
    side = made.introduced
    assert side is not None
    assert (side.first_bad, side.verified) == (RELEASES[first], True)
    assert side.explanation.startswith(
        ("TPOT, median moved in ", "throughput at saturation moved")
    )
    assert f"moved in {RELEASES[first]}: against 0.11.0 it is" in side.explanation
    assert not any("creeps" in note for note in side.notes)
    assert exit_code(made) == 0
    assert len(world.typed) <= 9
    assert {tuple(argv[:2]) for argv in world.typed} == {("upgrade", "0.11.0")}
    assert all(argv[argv.index("--only") + 1] == metric for argv in world.typed)


def test_a_probe_tells_half_of_what_the_ends_differ_by(bisect: Bisect) -> None:
    _made, world = bisect(World(stepped(4, 0.1), noise=0.0001))
    first, *others = [argv[argv.index("--worse") + 1] for argv in world.typed]
    assert first == "tpot=5.00%", "as it was asked for"
    assert set(others) == {"tpot=4.88%"}, "half of a tenth, as a logarithm"
    _made, world = bisect(World(stepped(4, 0.051), noise=0.0001), out=Path("c"))
    assert {argv[argv.index("--worse") + 1] for argv in world.typed[1:]} == {
        "tpot=2.52%"
    }


@pytest.mark.parametrize(
    ("metric", "change", "outcome"),
    [
        ("tpot", 0.026, Outcome.REPRODUCED),
        ("tpot", 0.024, Outcome.NOT_REPRODUCED),
        ("tpot", -0.06, Outcome.NOT_REPRODUCED),
        ("throughput", -0.026, Outcome.REPRODUCED),
        ("throughput", -0.024, Outcome.NOT_REPRODUCED),
        ("throughput", 0.06, Outcome.NOT_REPRODUCED),
    ],
)
def test_a_comparison_moved_from_half_of_what_is_asked_for(
    tmp_path: Path, metric: str, change: float, outcome: Outcome
) -> None:
    made = ByComparison(tmp_path, METRICS[metric], "0.11.0", worse=0.05)
    blocks = [Block(index=n, first="old", changes={metric: change}) for n in range(6)]
    write_upgrade(tmp_path, blocks)
    assert made.outcome(tmp_path, 0, "")["outcome"] is outcome


def test_ends_that_do_not_differ_end_it(bisect: Bisect) -> None:
    made, world = bisect(World(stepped(9, 0)))
    assert made.introduced is not None
    assert len(world.typed) == 1
    assert (
        "TPOT, median of 0.18.0 against 0.11.0: unchanged ("
        in made.introduced.explanation
    )
    assert made.introduced.explanation.endswith("it did not move by 5% to the worse")
    assert (made.introduced.first_bad, exit_code(made)) == (None, 1)
    made, _ = bisect(World(stepped(4, 0.02)), out=Path("c"))
    assert made.introduced is not None
    assert "% slower (" in made.introduced.explanation, "it moved, but not by as much"
    assert exit_code(made) == 1
    made, _ = bisect(World(stepped(4, 0.02)), out=Path("d"), worse="2%")
    assert made.introduced is not None
    assert made.introduced.first_bad == RELEASES[4]


def test_a_noisy_machine_is_said(bisect: Bisect) -> None:
    made, world = bisect(World(stepped(4, 0.05), noise=0.4))
    assert made.introduced is not None
    assert made.introduced.explanation.endswith("this machine is too noisy to tell")
    assert (len(world.typed), exit_code(made)) == (3, 3)


@pytest.mark.parametrize("seed", range(4))
def test_noise_never_names_a_wrong_release(bisect: Bisect, seed: int) -> None:
    world = World(stepped(5, 0.05), noise=0.02, chance=random.Random(seed))
    made, _ = bisect(world)
    assert made.introduced is not None
    assert made.introduced.first_bad in (RELEASES[5], None)


def test_what_is_left_open_is_weighed(bisect: Bisect) -> None:
    made, _ = bisect(World(stepped(5, 0.05), noise=0.024, chance=random.Random(3)))
    assert made.introduced is not None
    assert any("leave it open" in note for note in made.introduced.notes)
    assert made.introduced.posterior[0].last_bad == RELEASES[5]


def test_a_metric_that_creeps_is_said_to(bisect: Bisect) -> None:
    creeping = {name: 0.01 * number for number, name in enumerate(RELEASES)}
    made, _ = bisect(World(creeping, noise=0.001))
    assert made.introduced is not None
    (note,) = (note for note in made.introduced.notes if "creeps" in note)
    assert "this one is +1." in note
    assert "of +7." in note


def test_a_point_that_cannot_be_measured_is_skipped(bisect: Bisect) -> None:
    made, _ = bisect(World(stepped(4, 0.05), broken=("0.14.0",)))
    assert made.introduced is not None
    assert made.introduced.one_of == ["0.14.0", "0.15.0"]
    (point,) = (p for p in made.points if p.name == "0.14.0")
    assert point.verdict is PointVerdict.UNTESTABLE
    assert point.why == "infrastructure: the new side did not start"


def test_what_was_measured_is_not_measured_again(bisect: Bisect) -> None:
    made, _world = bisect(World(stepped(3, 0.05)))
    again, other = bisect(World(stepped(3, 0.05)), resume=True)
    assert other.typed == []
    assert again.introduced == made.introduced
    assert made.measure == "tpot"
    assert json.loads(Path("b/bisection.json").read_text())["measure"] == "tpot"
    assert "TPOT, median" in Path("b/bisection.md").read_text()
    assert made.command.startswith("mmrepro bisect mine --device cpu --find introduced")
    assert "--measure tpot" in made.command


def test_a_metric_that_was_fixed(bisect: Bisect) -> None:
    faster = {name: 0.05 * (number < 3) for number, name in enumerate(RELEASES)}
    made, world = bisect(World(faster), find="fixed", bad=RELEASES[0])
    assert made.fixed is not None
    assert made.fixed.first_good == RELEASES[3]
    assert {argv[1] for argv in world.typed} == {RELEASES[-1]}, (
        "the good end is the newest"
    )


def test_the_commit_of_a_clone_by_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World({})
    monkeypatch.setattr(Trials, "_child", lambda *given: world.child(*given))
    monkeypatch.setattr(where, "Provisions", lambda *rest: FakeProvisions())
    clone = Clone(tmp_path / "tree")
    states = ("0", "0.001", "0", "0.05", "0.051", "0.05")
    changes = [
        (f"c{n}", {"state": text, "other": f"{n}"}) for n, text in enumerate(states)
    ]
    made = clone.commits(changes)
    write_case(CASE, tmp_path / "mine")
    words = [
        "bisect",
        "mine",
        "--device",
        "cpu",
        "--measure",
        "tpot",
        "--json",
        "--source",
        str(clone.path),
        "--kernels",
        KERNELS,
    ]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)["introduced"]
    assert (found["first_bad"], found["verified"]) == (made[3], True)
    assert (
        f"moved in {made[3][:12]}: against {made[0][:12]} it is" in found["explanation"]
    )
    assert {argv[0] for argv in world.typed} == {"upgrade"}


def test_options_are_checked() -> None:
    with pytest.raises(UsageError, match="no metric 'ttfd'"):
        BisectCommand(scenario="mine", measure="ttfd")
    with pytest.raises(UsageError, match="'much' is no share"):
        BisectCommand(scenario="mine", measure="ttft", worse="much")
    with pytest.raises(UsageError, match="--measure runs by itself"):
        BisectCommand(scenario="mine", measure="ttft", jobs=2)
    with pytest.raises(UsageError, match="--engine is for the traffic of --measure"):
        BisectCommand(scenario="mine", engine="vllm")
    with pytest.raises(UsageError, match="ghost-key-eviction is a failure"):
        traffic(BisectCommand(scenario="ghost-key-eviction", measure="ttft"))


def test_traffic_without_a_server_of_its_own() -> None:
    asked = BisectCommand(
        scenario="chat",
        measure="ttft",
        engine="minivllm",
        server_args=("--num-blocks=9",),
    )
    what = traffic(asked)
    assert what.scenario.engine == "minivllm"
    assert what.case.server.args == ["--num-blocks=9"]
    with pytest.raises(UsageError, match="--engine says which engine"):
        traffic(replace(asked, engine=""))
    assert what.title == "minivllm 0.1: 200 requests of chat"


def test_what_several_runs_tell_together() -> None:
    def run(change: float, error: float = 0.01, blocks: int = 6) -> Attempt:
        one = Measured(metric="tpot", change=change, error=error, blocks=blocks)
        return Attempt(
            night="n", cell="c", index=1, created=Moment.now(), seconds=1, measured=one
        )

    assert reading([run(0.05, blocks=1)]) is None
    both = reading([run(0.04), run(0.06)])
    assert both is not None
    assert (round(both.mean, 6), both.freedom) == (0.05, 10)
    apart = reading([run(0.0), run(0.1)])
    assert apart is not None
    assert apart.error > 4 * both.error, (
        "runs that contradict each other are less exact"
    )
    whole = MeanChange(0.05, 0.002, 10)
    assert whole.odds(whole) > 8
    assert MeanChange(0.0, 0.002, 10).odds(whole) < -8
    assert abs(MeanChange(0.025, 0.002, 10).odds(whole)) < 1
    assert abs(MeanChange(0.05, 0.1, 10).odds(whole)) < 1, "noise is no verdict"
    assert differ(whole, 0.05) is True
    assert differ(replace(whole, mean=0.01), 0.05) is False
    assert differ(MeanChange(0.05, 0.05, 5), 0.05) is None
    assert is_step(whole, MeanChange(0.001, 0.002, 10), whole)
    assert not is_step(whole, MeanChange(0.03, 0.002, 10), whole)
