"""A replay from start to end, on fake servers."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from fake_player import NO_START, NOW, FakePlayer, FlakyEngine, replaying
from fake_plays import (
    BUCKET,
    OTHER,
    SERVER,
    FakeGhostKey,
    answered_until,
    fake_case,
    fake_op,
)
from grids import grid
from mmrepro.base.errors import InfrastructureError, UsageError
from mmrepro.base.records import FindingClass
from mmrepro.failure.documents.replay import VERDICTS_FILE
from mmrepro.reports.replay import seconds
from mmrepro.runs.play.observing import blocks
from mmrepro.search.oracle.judge import LEAST_STEP, quiescence
from mmrepro.search.replay.options import ReplayCommand
from mmrepro.search.replay.store import BLOCKS, STUCK, Named, Observation
from mmrepro.traffic.case.files import read_case
from mmrepro.traffic.case.model import Case
from mmrepro.traffic.case.sending import Played, Reading
from test_shrink import ghost_trace, planted


def lines(folder: Path) -> list[dict[str, object]]:
    text = (folder / "replay" / VERDICTS_FILE).read_text()
    return [json.loads(line) for line in text.splitlines()]


def ended_once(folder: Path) -> bool:
    keys = Counter(
        (line["digest"], line["how"], line["index"])
        for line in lines(folder)
        if line["kind"] == "ended"
    )
    return max(keys.values()) == 1


@pytest.mark.parametrize("jobs", [1, 2])
def test_the_ghost_key_in_forty_starts(tmp_path: Path, jobs: int) -> None:
    case = ghost_trace(3)
    player = FakePlayer(FakeGhostKey(1000))
    session, states = replaying(case, tmp_path, player, jobs=jobs)
    replay = session.execute()
    assert replay.state == "complete"
    assert replay.exit_code == 1
    assert (
        len(replay.plays)
        == player.plays + player.calibrated
        <= 40 * (1 + (jobs > 1) / 2)
    )
    hang, error = replay.findings
    assert (hang.finding_class, error.finding_class) == (
        FindingClass.HANG,
        FindingClass.SERVER_ERROR,
    )
    assert hang.confirmed
    assert hang.shrunk
    assert hang.requests <= 15
    assert (hang.rate.failed, hang.rate.plays) == (3, 3)
    assert (error.requests, error.requests_before, error.shrunk) == (2, 200, True)
    assert [told.operation for told in error.expectations] == list(error.observed)[1:]
    for finding in replay.findings:
        left, _ = read_case(session.dir / finding.case_file)
        assert [op.id for op in left.operations] == list(finding.observed)
        answers = set(player.engine(left).values())
        assert (STUCK if finding is hang else "500") in answers
        told = {needed.what for needed in finding.needed}
        assert told >= set(finding.observed), "each request that is left matters"
    assert len(states) > len(replay.plays)
    assert ended_once(tmp_path)


def test_nothing_is_found_where_nothing_is_wrong(tmp_path: Path) -> None:
    case = fake_case([fake_op(f"r{n}") for n in range(5)])
    session, _ = replaying(
        case, tmp_path, FakePlayer(lambda c: answered_until(c, None))
    )
    replay = session.execute()
    assert (replay.exit_code, replay.findings, replay.unconfirmed) == (0, [], [])
    told = [play.what for play in replay.plays]
    assert told[:8] == ["deadlines", "the whole case", *6 * ["the whole case, again"]]
    assert len(told) == 10, "and the reference, and what is held against it"


def test_traffic_that_takes_minutes_is_not_played_again_for_nothing(
    tmp_path: Path,
) -> None:
    class FakeSlow(FakePlayer):
        def play(self, *args: Any, **more: Any) -> Played:
            return super().play(*args, **more).model_copy(update={"seconds": 70.0})

    case = fake_case([fake_op(f"r{n}") for n in range(5)])
    session, _ = replaying(case, tmp_path, FakeSlow(lambda c: answered_until(c, None)))
    told = [play.what for play in session.execute().plays]
    assert told[:3] == ["deadlines", "the whole case", "the whole case, again"]
    assert len(told) == 5


class FakeLeak(FakePlayer):
    """Each request with a picture leaves a thread behind; blocks are cut as a player
    does."""

    def play(
        self, case: Case, contents: Path | None, options: Any, folder: Path, **more: Any
    ) -> Played:
        made = super().play(case, contents, options, folder, **more)
        threads, ends = 20, []
        for block in blocks(case.operations, options.blocks) if options.blocks else ():
            threads += sum(bool(op.images) for op in block)
            ends.append(Reading(mono=NOW.mono, threads=threads, files=9, rss_bytes=1))
        idle = Reading(mono=NOW.mono)
        return made.model_copy(update={"before": idle, "after": idle, "blocks": ends})


def test_a_leak_that_only_blocks_show_is_found_and_shrunk_in_blocks(
    tmp_path: Path,
) -> None:
    ops = [fake_op(f"r{n}", *["p"] * (n % 2)) for n in range(96)]
    player = FakeLeak(lambda c: answered_until(c, None))
    session, _ = replaying(
        fake_case(ops, {"p": 28}), tmp_path, player, judge=quiescence
    )
    replay = session.execute()
    (finding,) = replay.findings
    assert (finding.bucket, finding.confirmed) == ("residue/threads", True)
    left, _ = read_case(session.dir / finding.case_file)
    assert all(op.images for op in left.operations), "the others leave nothing"
    least = LEAST_STEP * (BLOCKS - 1) + 1
    assert (len(left.operations), finding.shrunk) == (least, True)
    assert not any("blocks" in text for text in replay.unseen), "the second play saw it"
    assert ended_once(tmp_path)


def test_seen_once_is_told_and_not_counted(tmp_path: Path) -> None:
    case, test = planted([2, 5], [0] * 8)
    player = FakePlayer(lambda c: {op.id: "200" for op in c.operations})
    player.before = lambda number, _: setattr(
        player,
        "engine",
        test.engine if number == 1 else lambda c: answered_until(c, None),
    )
    session, _ = replaying(case, tmp_path, player)
    replay = session.execute()
    assert replay.exit_code == 3
    assert [one.bucket for one in replay.unconfirmed] == [BUCKET]
    assert replay.findings == []


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_what_comes_and_goes_has_a_rate_with_an_interval(
    tmp_path: Path, seed: int
) -> None:
    case, test = planted([2, 5, 11], [0, 0, 3, 0, 0, 1, 0, 0, 0, 2, 0, 1])
    player = FakePlayer(FlakyEngine(test.engine, 0.5, seed))
    session, states = replaying(case, tmp_path, player, budget=120)
    replay = session.execute()
    (finding,) = replay.findings
    assert finding.confirmed
    assert finding.rate.low < 0.5 < finding.rate.high <= 1
    if finding.rate.failed < finding.rate.plays:
        assert finding.rate.plays >= 8
        assert any("it comes and goes" in limit for limit in finding.limits)
    assert any("options are all kept" in limit for limit in finding.limits)
    assert len(finding.observed) <= 6, "about as few as without chance"
    assert "deterministic" not in "".join(states).lower()
    left, _ = read_case(session.dir / finding.case_file)
    assert STUCK in test.engine(left).values(), "what is left can fail"


def test_a_small_budget_is_kept_and_what_was_not_tried_is_told(tmp_path: Path) -> None:
    case = ghost_trace(3)
    for budget in (5, 8, 12, 17, 23):
        folder = tmp_path / str(budget)
        player = FakePlayer(FakeGhostKey(1000))
        session, _ = replaying(case, folder, player, budget=budget)
        replay = session.execute()
        assert player.plays + player.calibrated <= budget
        assert replay.exit_code == 1
        hang = replay.findings[0]
        left, _ = read_case(session.dir / hang.case_file)
        assert STUCK in player.engine(left).values()
        assert hang.shrunk or any("--budget" in limit for limit in hang.limits)


def test_without_shrinking_the_case_is_left_as_it_is(tmp_path: Path) -> None:
    case = ghost_trace(3, 60)
    player = FakePlayer(FakeGhostKey(1000))
    session, _ = replaying(case, tmp_path, player, shrink=False)
    replay = session.execute()
    assert {f.requests for f in replay.findings} == {60}
    assert not any(f.shrunk for f in replay.findings)
    assert all(f.confirmed for f in replay.findings)


class _Killed(BaseException):
    """As a kill: nothing is caught on the way but what says so."""


STOPS = [(0, 1), (1, 1), (5, 1), (17, 1), (30, 1), (24, 2)]


@pytest.mark.parametrize(("stop", "jobs"), grid(STOPS, always=[(24, 2)]))
def test_interrupted_it_goes_on_and_repeats_no_play(
    tmp_path: Path, stop: int, jobs: int
) -> None:
    case = ghost_trace(7)
    player = FakePlayer(FakeGhostKey(1000))
    whole, _ = replaying(case, tmp_path / "whole", player, jobs=jobs)
    wanted = whole.execute()

    def before(number: int, _case: Case) -> None:
        if number > stop:
            raise KeyboardInterrupt

    first = FakePlayer(FakeGhostKey(1000), before)
    session, states = replaying(case, tmp_path, first, jobs=jobs)
    with pytest.raises(KeyboardInterrupt):
        session.execute()
    assert json.loads(states[-1])["state"] == "interrupted"
    assert f"--resume {session.dir}" in json.loads(states[-1])["failure"]
    second = FakePlayer(FakeGhostKey(1000))
    again, _ = replaying(case, tmp_path, second, resume=True, jobs=jobs)
    replay = again.execute()
    ended = sum(line["kind"] == "ended" for line in lines(tmp_path))
    assert ended == len(wanted.plays)
    assert second.plays <= len(wanted.plays) - stop
    assert second.calibrated == 0
    assert told(replay) == told(wanted)
    assert ended_once(tmp_path)
    third = FakePlayer(FakeGhostKey(1000))
    kept = replaying(case, tmp_path, third, resume=True)[0].execute()
    assert (third.plays, third.calibrated) == (0, 0)
    assert (
        seconds(kept)
        > kept.kept_s
        == pytest.approx(sum(play.seconds for play in kept.plays))
    )
    assert kept.kept_s >= len(kept.plays) - 1, (
        "each took a second, and the deadlines none"
    )


def told(replay: object) -> object:
    """What a replay says, without times, names and folders."""
    data = json.loads(replay.model_dump_json())  # type: ignore[attr-defined]
    for finding in data["findings"]:
        finding.pop("seconds")
    return data["findings"], data["plays"], data["limits"], data["unconfirmed"]


def test_a_play_that_tells_nothing_is_made_once_more(tmp_path: Path) -> None:
    case, test = planted([1], [0, 0, 0])
    failed: list[int] = []

    def before(number: int, _case: Case) -> None:
        if number in (2, 6):
            failed.append(number)
            raise InfrastructureError("the machine is full")

    session, _ = replaying(case, tmp_path, FakePlayer(test.engine, before))
    replay = session.execute()
    assert failed == [2, 6]
    assert replay.findings[0].confirmed
    assert [play.error for play in replay.plays].count("the machine is full") == 2


def test_a_machine_that_cannot_play_ends_it_and_it_can_go_on(tmp_path: Path) -> None:
    case, test = planted([1], [0, 0, 0])

    def before(number: int, _case: Case) -> None:
        if number > 3:
            raise InfrastructureError("the machine is full")

    session, states = replaying(case, tmp_path, FakePlayer(test.engine, before))
    with pytest.raises(InfrastructureError):
        session.execute()
    assert json.loads(states[-1])["state"] == "failed"
    again, _ = replaying(case, tmp_path, FakePlayer(test.engine), resume=True)
    assert again.execute().findings[0].confirmed
    assert ended_once(tmp_path)


def hang_known(
    bucket: str, seen: Observation, case: Case, result: object
) -> Observation:
    known = "ghost-key-eviction" if bucket == BUCKET else None
    return seen.model_copy(
        update={"named": Named(bucket=bucket, known=known, why="a fake")}
    )


def test_a_known_fatal_failure_is_kept_away_to_see_what_it_hides(
    tmp_path: Path,
) -> None:
    """Behind the hang, where no play of the whole case comes, a request fails."""
    ops = [fake_op(f"r{n}") for n in range(12)]

    def engine(case: Case) -> dict[str, str]:
        mitigated = case.server.mitigation
        assert mitigated in ("", "ghost-key-eviction/disable-mm-cache")
        answers = answered_until(case, None if mitigated else "r4")
        if mitigated and "r9" in answers:
            answers["r9"] = "500"
        return answers

    session, _ = replaying(
        fake_case(ops), tmp_path, FakePlayer(engine), name=hang_known
    )
    replay = session.execute()
    hang, error = replay.findings
    assert (hang.known, error.known) == ("ghost-key-eviction", None)
    assert (hang.server.mitigation, error.server.mitigation) == (
        "",
        "ghost-key-eviction/disable-mm-cache",
    )
    assert [list(f.observed) for f in (hang, error)] == [["r4"], ["r9"]]
    assert any(
        "ghost-key-eviction/disable-mm-cache on" in limit for limit in error.limits
    )
    assert (hang.limits, error.bucket) == ([], OTHER)
    assert replay.exit_code == 1


def test_a_known_failure_alone_is_no_unknown_one(tmp_path: Path) -> None:
    case, test = planted([1], [0, 0, 0])

    def engine(c: Case) -> dict[str, str]:
        return answered_until(c, None) if c.server.mitigation else test.engine(c)

    session, _ = replaying(case, tmp_path, FakePlayer(engine), name=hang_known)
    replay = session.execute()
    assert replay.exit_code == 1, "a failure that is known is a problem as well"
    assert [f.known for f in replay.findings] == ["ghost-key-eviction"]


def test_what_the_same_requests_show_besides_is_no_further_finding(
    tmp_path: Path,
) -> None:
    """Nor does it get the name of the first."""

    def engine(case: Case) -> dict[str, str]:
        ids = [op.id for op in case.operations]
        both = {"r2", "r5"} <= set(ids)
        return {
            id: STUCK
            if both and id == "r5"
            else "500"
            if both and id == "r2"
            else "200"
            for id in ids
        }

    ops = [fake_op(f"r{n}") for n in range(8)]
    session, _ = replaying(
        fake_case(ops), tmp_path, FakePlayer(engine), name=hang_known
    )
    replay = session.execute()
    (hang,) = replay.findings
    assert list(hang.observed) == ["r2", "r5"]
    assert hang.also == ["server-error: it fails"]
    assert not (session.dir / "f2").exists()


def test_a_server_that_does_not_start_needs_no_request(tmp_path: Path) -> None:
    ops = [fake_op(f"r{n}") for n in range(6)]
    args = ["--cache", "10", "--broken", "--more=3"]
    server = SERVER.model_copy(update={"args": args})
    case = fake_case(ops).model_copy(update={"server": server})

    def engine(c: Case) -> dict[str, str]:
        return (
            {NO_START: ""} if "--broken" in c.server.args else answered_until(c, None)
        )

    session, _ = replaying(case, tmp_path, FakePlayer(engine), server=server)
    (finding,) = session.execute().findings
    assert finding.finding_class is FindingClass.START_FAILURE
    assert (finding.requests, finding.requests_before) == (0, 6)
    assert (finding.confirmed, finding.shrunk) == (True, True)
    assert finding.server.args == ["--broken"]
    assert [needed.what for needed in finding.needed] == ["--broken"]


def test_a_start_that_fails_for_want_of_an_option_left_out_is_no_finding(
    tmp_path: Path,
) -> None:
    server = SERVER.model_copy(
        update={"args": ["--adapters", "--adapter-names", "--other"]}
    )
    case = fake_case([fake_op(f"r{n}") for n in range(4)]).model_copy(
        update={"server": server}
    )
    refused = []

    def engine(c: Case) -> dict[str, str]:
        if "--adapter-names" in c.server.args and "--adapters" not in c.server.args:
            refused.append(c.server.args)
            return {NO_START: ""}
        both = {"r1", "r3"} <= {
            op.id for op in c.operations
        } and "--adapters" in c.server.args
        return answered_until(c, "r3" if both else None)

    session, _ = replaying(case, tmp_path, FakePlayer(engine), server=server)
    replay = session.execute()
    assert refused, "it was tried"
    assert [one.finding_class for one in replay.findings] == [FindingClass.HANG]
    assert replay.findings[0].server.args == ["--adapters"]
    assert replay.unconfirmed == []


def test_options_that_make_no_sense_are_refused() -> None:
    case = fake_case([fake_op("r1")])
    file = Path("night.har")
    for wrong in ({"repeat": 0}, {"budget": 4}, {"out": file, "resume": file}):
        with pytest.raises(UsageError) as raised:
            ReplayCommand(file=file, server=case.server, **wrong)  # type: ignore[arg-type]
        assert raised.value.hint


def test_the_command_names_the_whole_server() -> None:
    server = fake_case([fake_op("r1")]).server
    options = ReplayCommand(
        file=Path("a b.har"), server=server, budget=60, shrink=False
    )
    assert options.command_line(resume=Path("replays/x")) == (
        "mmrepro replay 'a b.har' --engine vllm --release 0.23.0 --model qwen2-vl "
        "--max-model-len 2048 --server-arg=--cache --server-arg=10 --no-shrink "
        "--resume replays/x --budget 60"
    )
