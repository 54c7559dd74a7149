"""A comparison from its options to its document and its reports, on servers that are
made up."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from fake_player import NO_START, FakePlayer, Fakes
from fake_plays import SERVER, fake_case, fake_op
from mmrepro.base.errors import UsageError
from mmrepro.campaign.campaign import Campaign
from mmrepro.failure.documents.upgrade import Block, OptionSeen, Outcome, Side, Upgrade
from mmrepro.reports.documents import keep, kind_of, render
from mmrepro.reports.upgrade import KIND
from mmrepro.runs.changes import LOOKS, METRICS, changes, difference, thresholds
from mmrepro.runs.judge import Deadlines
from mmrepro.runs.play.options import Measuring
from mmrepro.search.upgrade.options import UpgradeCommand
from mmrepro.search.upgrade.session import Upgrading
from mmrepro.traffic.case.files import write_case
from mmrepro.traffic.case.sending import Played
from mmrepro.traffic.evidence import ChoiceSeen

NEWER = SERVER.model_copy(update={"release": "0.24.0"})
TIMES = ("ttft", "itl", "tpot", "latency")


class Measures(FakePlayer):
    """``slower``: the new side, by so much; ``error``: why nothing is measured;
    ``takes_s``: a play of all of the traffic."""

    takes_s = 0.0
    paces = (10.0, 10.5)
    """Milliseconds of the fixed computation, in turn."""

    def __init__(
        self, slower: float = 0.0, error: str = "", noise: float = 0.002
    ) -> None:
        super().__init__(lambda case: {op.id: "200" for op in case.operations})
        self.slower, self.error, self.noise = slower, error, noise
        self.firsts: list[str] = []

    def play(self, *rest: Any, **more: Any) -> Played:
        played = super().play(*rest, **more)
        time.sleep(self.takes_s)
        for request in played.evidence.requests:
            answer = ChoiceSeen(
                index=0, text="yes", finish_reason="stop", tokens=["yes"]
            )
            request.text, request.choices = "yes", [answer]
            request.tokens, request.logprobs = ["yes"], [-0.1]
            request.finish_reason = "stop"
            answer.logprobs = [-0.1]
        return played

    def measure(self, wanted: Measuring, folder: Path) -> Block:
        self.firsts.append(wanted.new.release)
        if self.error:
            return Block(index=wanted.index, first="old", error=self.error)
        drift = self.noise * math.sin(wanted.index * 2.4)
        found = {name: math.log1p(self.slower) + drift for name in TIMES}
        found["throughput"] = -found["itl"]
        old = dict.fromkeys(found, 0.02)
        new = {name: 0.02 * math.exp(change) for name, change in found.items()}
        spread = {"itl": ([0.01, 0.02, 0.03], [0.01, 0.021, 0.04])}
        pace = self.paces[wanted.index % len(self.paces)]
        return Block(
            index=wanted.index,
            first="old",
            changes=found,
            old=old,
            new=new,
            spread=spread,
            pace=pace,
        )


class FakedUpgrading(Fakes, Upgrading):
    def listed_options(self, side: Side) -> list[OptionSeen]:
        return [OptionSeen(name="--cache", value="N")]


def compared(
    tmp_path: Path, player: FakePlayer, **options: Any
) -> tuple[Upgrade, Path]:
    traffic = tmp_path / "traffic"
    write_case(fake_case([fake_op(f"r{n}") for n in range(3)]), traffic)
    given = {"server": SERVER, "new_server": NEWER, "out": tmp_path / "u", **options}
    session = FakedUpgrading(
        UpgradeCommand(traffic=traffic, **given),
        write=lambda made, folder: keep(KIND, made, folder),
    )
    session.player = player
    made = session.execute()
    return made, session.folder


def told(made: Upgrade) -> dict[str, Any]:
    return {d.metric: d for d in made.differences if d.metric}


def test_a_slower_side_is_found_at_the_first_look(tmp_path: Path) -> None:
    made, folder = compared(tmp_path, Measures(0.05))
    assert made.exit_code == 1
    assert len(made.blocks) == LOOKS[0]
    assert told(made)["itl"].matters
    assert told(made)["itl"].statement.startswith("slower by 5 % (")
    assert kind_of(folder) is KIND
    assert KIND.load(folder) == made


def test_the_same_twice_has_no_difference(tmp_path: Path) -> None:
    made, _ = compared(tmp_path, Measures())
    assert made.exit_code == 0
    assert {d.outcome for d in told(made).values()} == {Outcome.NONE}
    assert not made.limits
    noisier, _ = compared(tmp_path / "noisier", Measures(noise=0.02))
    assert len(noisier.blocks) < LOOKS[-1]
    assert told(noisier) == stated(noisier, last=False), (
        "half of the error is of the last look"
    )


def test_what_is_too_noisy_exits_with_3_when_all_looks_are_over(tmp_path: Path) -> None:
    made, _ = compared(tmp_path, Measures(noise=0.5))
    assert made.exit_code == 3
    assert len(made.blocks) == LOOKS[-1]
    assert "too noisy to tell" in told(made)["tpot"].statement
    assert told(made) == stated(made, last=True)


def test_a_machine_whose_speed_varies_is_told(tmp_path: Path) -> None:
    player = Measures()
    player.paces = (10.0, 15.0)
    made, _ = compared(tmp_path, player)
    assert made.limits == [
        "the machine's own speed varied: a fixed computation took 10.0 to 15.0 ms from "
        "block to block, without a tenth of them at each end"
    ]


def stated(made: Upgrade, *, last: bool) -> dict[str, Any]:
    found = changes(made.blocks, thresholds([]), made.confidence, last=last)
    return {one.metric: one for one in map(difference, found)}


def test_blocks_that_measure_nothing_end_it(tmp_path: Path) -> None:
    made, _ = compared(tmp_path, Measures(error="a server did not start: no"))
    assert len(made.blocks) == 3
    assert made.exit_code == 3
    assert "nothing more was measured: a server did not start: no" in made.limits
    untold = next(d for d in made.differences if d.subject == "times")
    assert untold.statement == "a server did not start: no"


def test_a_side_that_does_not_start_is_not_measured(tmp_path: Path) -> None:
    player = Measures()
    player.engine = lambda case: (
        {NO_START: ""}
        if case.server == NEWER
        else {op.id: "200" for op in case.operations}
    )
    made, _ = compared(tmp_path, player)
    assert made.exit_code == 1
    assert not made.blocks
    assert any(d.matters and d.area == "start" for d in made.differences)


def within(
    tmp_path: Path, asked_s: float, budget_s: float | None, takes_s: float
) -> Upgrade:
    """A comparison that is asked to take ``asked_s``, and is stopped after
    ``budget_s``."""
    traffic = tmp_path / "traffic"
    write_case(fake_case([fake_op("r0")]), traffic)
    sides = {"server": SERVER, "new_server": NEWER}
    options = UpgradeCommand(
        traffic=traffic, out=tmp_path / "u", budget_s=asked_s, **sides
    )
    session = FakedUpgrading(options, write=lambda made, folder: None)
    session.player = player = Measures()
    player.takes_s = takes_s
    return Campaign(session, session.local_places(), budget_s=budget_s).execute()


def test_the_time_is_over(tmp_path: Path) -> None:
    made = within(tmp_path, 1800.0, 0.0, 0.0)
    assert any("--budget" in one for one in made.limits)
    assert made.exit_code == 3


@pytest.mark.parametrize(("asked_s", "runs"), [(600.0, 4), (0.1, 2)])
def test_plays_that_take_more_than_a_sixth_of_the_time_are_made_once(
    tmp_path: Path, asked_s: float, runs: int
) -> None:
    made = within(tmp_path, asked_s, None, 0.03)
    assert len(made.runs) == runs
    assert {run.side for run in made.runs} == {"old", "new"}
    assert any("played once" in one for one in made.limits) is (runs == 2)
    assert made.exit_code == 0


@pytest.mark.parametrize("player", [Measures(0.05), Measures(), Measures(noise=0.5)])
def test_its_reports(player: Measures, tmp_path: Path) -> None:
    made, folder = compared(tmp_path, player)
    page = KIND.compose(made)
    assert 0 < len(page.card) <= 12
    text = render(KIND, made, "md")
    for one in made.differences:
        assert one.statement in text
    html = render(KIND, made, "html", folder)
    assert html.count("<svg") >= 2
    suite = ElementTree.fromstring(render(KIND, made, "junit"))
    cases = list(suite.iter("testcase"))
    assert len(cases) == len(made.differences)
    assert bool(list(suite.iter("failure"))) is (made.exit_code == 1)
    assert bool(list(suite.iter("error"))) is (made.exit_code == 3)


# -------------------------------------------------------------------------- its options


def asked(**options: Any) -> UpgradeCommand:
    return UpgradeCommand(traffic=Path("night.har"), engine="vllm", **options)


@pytest.mark.parametrize(
    ("options", "sides"),
    [
        ({"old": "0.32.0", "new": "0.33.0"}, ("0.32.0", "0.33.0")),
        ({"old": "0.32.0"}, ("0.32.0", "0.32.0")),
        ({"old": "0.32.0", "new_tree": "x"}, ("0.32.0", "")),
        ({"old": "0.33.0", "tree": "x"}, ("", "0.33.0")),
        ({"tree": "x", "new_tree": "y"}, ("", "")),
    ],
)
def test_the_sides(options: dict[str, str], sides: tuple[str, str]) -> None:
    assert asked(**options).sides() == sides


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"old": "0.32.0", "new": "0.33.0", "tree": "x"},
        {"old": "0.32.0", "new": "0.33.0", "new_tree": "x"},
        {"old": "0.32.0", "tree": "x", "new_tree": "y"},
    ],
)
def test_sides_that_are_missing_or_given_twice(options: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        asked(**options).sides()


def test_settings_of_both_sides_and_of_one() -> None:
    both = asked(server_args=("--a",), server_words="--b 2", env=("X=1",))
    assert both.asked == both.asked_new
    assert both.asked["args"] == ["--a", "--b", "2"]
    other = replace(both, new_server_words="--c", new_env=("Y=2",))
    assert other.asked == both.asked
    assert other.asked_new["args"] == ["--a", "--c"]
    assert other.asked_new["env"] == {"X": "1", "Y": "2"}


def test_the_command_that_repeats_it_names_both_servers() -> None:
    newer = NEWER.model_copy(update={"args": ["--cache", "20"], "env": {"X": "1"}})
    line = replace(asked(old="0.23.0"), server=SERVER, new_server=newer).command_line()
    assert line.startswith("mmrepro upgrade 0.23.0 0.24.0 ")
    for part in ("'--server=--cache 10'", "'--new-server=--cache 20'", "--new-env=X=1"):
        assert part in line


def test_every_metric_has_words_of_its_own() -> None:
    assert len({metric.words for metric in METRICS.values()}) == len(METRICS)


class SlowToStart(Measures):
    """Its first server takes longer than the whole comparison may."""

    def calibrate(self) -> Deadlines:
        found = super().calibrate()
        return Deadlines(answer_s=30 * 100.0, suspect_s=1.0, rule=found.rule)


def test_traffic_that_takes_longer_than_the_budget_is_not_played(
    tmp_path: Path,
) -> None:
    traffic = tmp_path / "traffic"
    write_case(fake_case([fake_op("r0")]), traffic)
    options = UpgradeCommand(
        traffic=traffic,
        out=tmp_path / "u",
        budget_s=40.0,
        server=SERVER,
        new_server=NEWER,
    )
    session = FakedUpgrading(options, write=lambda made, folder: None)
    session.player = SlowToStart()
    made = Campaign(session, session.local_places(), budget_s=40.0).execute()
    assert made.exit_code == 3
    assert made.runs == []
    [text] = made.limits
    assert text.startswith("playing 1 request on both sides takes about 3 min 20 s")


def test_a_first_block_that_cannot_end_in_time_is_not_begun(tmp_path: Path) -> None:
    """Each side measures for 6 s at least."""
    made = within(tmp_path, 11.0, 11.0, takes_s=0.0)
    assert made.blocks == []
    assert any("the time budget (--budget) ended" in text for text in made.limits)
