"""What episodes showed: how long it is pursued, and taken up again, on fake servers."""

import json
from pathlib import Path

import pytest
from fake_player import FakePlayer
from fuzz_sessions import (
    Clock,
    Killed,
    ended_once,
    episodes,
    fails_on,
    fuzzing,
    hangs_on,
    leaves,
    several,
    third,
    well,
)
from grids import grid
from mmrepro.runs.judge import Deadlines
from mmrepro.search.fuzz import knowledge, minimisations
from mmrepro.search.fuzz.steering import Switch
from mmrepro.search.replay.store import STUCK
from mmrepro.traffic.case.files import read_case
from mmrepro.traffic.case.model import Case


@pytest.mark.parametrize("budget_s", grid([50.0, 80.0, 120.0], always=[80.0]))
def test_what_time_did_not_allow_is_taken_up_again(
    tmp_path: Path, clock: Clock, budget_s: float
) -> None:
    engine = hangs_on(leaves, several)
    short, _ = fuzzing(tmp_path, FakePlayer(engine, clock), seed=1, budget_s=budget_s)
    before = short.execute()
    assert not any(found.finding.shrunk for found in before.found)
    longer, _ = fuzzing(
        tmp_path, FakePlayer(engine, clock), resume=True, seed=1, budget_s=1000.0
    )
    fuzz = longer.execute()
    (found,) = fuzz.found
    assert (found.finding.confirmed, found.finding.shrunk, fuzz.once) == (
        True,
        True,
        [],
    )
    assert ended_once(tmp_path)


@pytest.fixture
def hasty(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Clock:
    """What an episode showed is confirmed, and there it ends."""
    monkeypatch.setattr(minimisations, "PURSUIT", 6)
    return clock


def test_what_was_not_shrunk_to_its_end_is_taken_up_again_in_the_second_half(
    tmp_path: Path, hasty: Clock
) -> None:
    player = FakePlayer(hangs_on(leaves, several), hasty)
    short, _ = fuzzing(tmp_path / "short", player, seed=1, budget_s=600.0, shrink=False)
    assert not any(found.finding.shrunk for found in short.execute().found)
    session, _ = fuzzing(tmp_path, player, seed=1, budget_s=1500.0)
    fuzz = session.execute()
    (found,) = fuzz.found
    assert (found.id, found.finding.confirmed, found.finding.shrunk) == (
        "F1",
        True,
        True,
    )
    assert found.finding.requests <= 2 < found.finding.requests_before
    lines = episodes(tmp_path)
    (pursued,) = [line for line in lines if line["kind"] == "pursued"]
    (finished,) = [line for line in lines if line["kind"] == "finished"]
    assert finished["of"] == f"{pursued['replay']}/f1"
    assert found.folder == f"{pursued['replay']}-f1/f1"
    assert finished["elapsed_s"] > 750 > pursued["elapsed_s"]
    left, _ = read_case(tmp_path / "fuzz" / found.folder)
    assert hangs_on(leaves, several)(left)[left.operations[-1].id] == STUCK
    assert Switch.LEAVE in session.known.episodes.less
    assert fuzz.starts == sum(e.starts for e in fuzz.episodes) + sum(
        len(json.loads(file.read_text())["plays"])
        for file in (tmp_path / "fuzz").glob("e*/replay.json")
    ) + sum(line["starts"] for line in lines if line["kind"] == "led")


@pytest.mark.nightly
@pytest.mark.parametrize("later", [1, 9])
def test_killed_while_it_is_taken_up_again_nothing_is_done_twice(
    tmp_path: Path, hasty: Clock, later: int
) -> None:
    engine = hangs_on(leaves, several)
    whole, _ = fuzzing(
        tmp_path / "whole", FakePlayer(engine, hasty), seed=1, budget_s=1000.0
    )
    (wanted,) = whole.execute().found
    taken_up: list[int] = []

    def kill(number: int, case: Case) -> None:
        hasty(number, case)
        if list((tmp_path / "fuzz").glob("e*-f1")):
            taken_up.append(number)
        if len(taken_up) == later:
            raise Killed

    begun, _ = fuzzing(tmp_path, FakePlayer(engine, kill), seed=1, budget_s=1000.0)
    with pytest.raises(Killed):
        begun.execute()
    again, _ = fuzzing(
        tmp_path, FakePlayer(engine, hasty), resume=True, seed=1, budget_s=1000.0
    )
    (found,) = again.execute().found
    assert ended_once(tmp_path)
    assert (found.finding.requests, found.finding.shrunk) == (
        wanted.finding.requests,
        True,
    )
    assert (found.id, found.folder) == (wanted.id, wanted.folder)


def test_what_cannot_be_shrunk_in_that_time_stays_as_it_was_and_is_not_tried_for_ever(
    tmp_path: Path, hasty: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(minimisations, "FINISH", 5)
    player = FakePlayer(hangs_on(leaves, several), hasty)
    session, _ = fuzzing(tmp_path, player, seed=1, budget_s=1000.0)
    fuzz = session.execute()
    (found,) = fuzz.found
    assert (found.finding.confirmed, found.finding.shrunk) == (True, False)
    finished = [line for line in episodes(tmp_path) if line["kind"] == "finished"]
    assert 1 <= len(finished) <= knowledge.AGAINS


@pytest.mark.parametrize(
    ("measured", "hangs", "used"),
    [
        ([23.0, 6.0], True, 6.0),
        ([23.0, 40.0], True, 23.0),
        ([8.0], True, 8.0),
        ([23.0], False, 23.0),
    ],
)
def test_a_deadline_of_a_busy_moment_is_measured_again_before_a_hang_is_pursued(
    tmp_path: Path, clock: Clock, measured: list[float], hangs: bool, used: float
) -> None:
    class Busy(FakePlayer):
        def calibrate(self) -> Deadlines:
            return Deadlines(measured.pop(0), 2.4)

    def fails(case: Case) -> dict[str, str]:
        return {op.id: "500" if several(op) else "200" for op in case.operations}

    engine = hangs_on(leaves, several) if hangs else fails
    session, _ = fuzzing(tmp_path, Busy(engine, clock), seed=1, budget_s=600.0)
    fuzz = session.execute()
    assert fuzz.found
    assert measured == []
    replay = json.loads(
        (tmp_path / "fuzz" / fuzz.found[0].replay / "replay.json").read_text()
    )
    assert replay["deadline_s"] == used


def test_what_was_shrunk_for_as_long_as_it_may_take_is_confirmed_all_the_same(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(minimisations, "LESSER_S", 16.0)
    monkeypatch.setattr(minimisations, "LESSER_SHARE", 0.0)

    def slow(number: int, case: Case) -> None:
        """A play of what is left takes longer than the plays by which time is
        reserved."""
        clock.now += 5.0 if len(case.operations) == 1 else 1.0

    session, _ = fuzzing(
        tmp_path, FakePlayer(fails_on(several), slow), seed=1, budget_s=40.0
    )
    (found,) = session.execute().found
    assert (found.finding.rate.failed, found.finding.rate.plays) == (3, 3)
    assert found.finding.confirmed


@pytest.mark.parametrize("since", grid(range(90, 98), always=[97]))
def test_what_the_last_episode_showed_is_confirmed_in_a_twentieth_more(
    tmp_path: Path, clock: Clock, since: int
) -> None:
    clock.play_s = 1.0

    def engine(case: Case) -> dict[str, str]:
        return (fails_on(third) if clock.now > 1000 + since else well)(case)

    session, _ = fuzzing(tmp_path, FakePlayer(engine, clock), seed=1, budget_s=100.0)
    fuzz = session.execute()
    assert fuzz.elapsed_s <= 105
    assert [found.finding.confirmed for found in fuzz.found] == [True]
