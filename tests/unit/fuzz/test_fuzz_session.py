"""A session from start to end, on fake servers."""

import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import made_up_fuzz
import pytest
from fake_player import NO_START, FakePlayer
from fake_plays import BUCKET, OTHER
from fuzz_sessions import (
    Answers,
    Clock,
    ended_once,
    fuzzing,
    hangs_on,
    leaves,
    server,
    several,
    well,
)
from mmrepro.base.errors import InfrastructureError, UsageError
from mmrepro.base.records import Fidelity, StandIn
from mmrepro.engines.dialects import dialect_of
from mmrepro.engines.features import feature
from mmrepro.failure.documents import INCIDENT_FILE, EngineFacts
from mmrepro.failure.documents.replay import EPISODES_FILE
from mmrepro.search.fuzz import knowledge
from mmrepro.search.fuzz.options import FuzzProfile
from mmrepro.search.fuzz.steering import Switch
from mmrepro.search.oracle.judged import OracleReport
from mmrepro.search.oracle.near_ties import TokenAnswer
from mmrepro.search.replay.store import STUCK, Named, note_server
from mmrepro.traffic.case.files import read_case
from mmrepro.traffic.case.model import Case
from mmrepro.traffic.case.sending import Played
from simple_incident import incident


def test_nothing_is_found_where_nothing_is_wrong(tmp_path: Path, clock: Clock) -> None:
    session, states = fuzzing(tmp_path, FakePlayer(well, clock), budget_s=600.0)
    fuzz = session.execute()
    assert (fuzz.state, fuzz.exit_code, fuzz.found, fuzz.once) == (
        "complete",
        0,
        [],
        [],
    )
    assert fuzz.episodes[0].kind == "learning"
    assert [e.number for e in fuzz.episodes] == list(range(len(fuzz.episodes)))
    assert 500 < fuzz.elapsed_s <= 620
    assert {e.kind for e in fuzz.episodes} == {"learning", "mixed", "steady", "many"}
    assert fuzz.starts == sum(e.starts for e in fuzz.episodes)
    assert len(states) > len(fuzz.episodes)
    assert ended_once(tmp_path)
    assert not list((tmp_path / "fuzz").glob("e0*")), "nothing was pursued"
    cases = sorted((tmp_path / "fuzz" / "episodes").glob("*/case.json"))
    assert len(cases) == len(fuzz.episodes), "each can be played again"
    assert not list((tmp_path / "fuzz" / "episodes").glob("*/play"))


@pytest.mark.parametrize("seed", [1, 2])
def test_a_hang_is_found_and_shrunk_to_what_matters(
    tmp_path: Path, clock: Clock, seed: int
) -> None:
    engine = hangs_on(leaves, several)
    session, _ = fuzzing(tmp_path, FakePlayer(engine, clock), seed=seed, budget_s=800.0)
    fuzz = session.execute()
    assert fuzz.exit_code == 1
    (found,) = fuzz.found
    finding = found.finding
    assert (finding.bucket, finding.confirmed, finding.shrunk) == (BUCKET, True, True)
    assert finding.requests <= 2
    left, _ = read_case(tmp_path / "fuzz" / found.folder)
    assert engine(left)[left.operations[-1].id] == STUCK
    assert found.folder == f"e{found.episode:04d}/f1"
    assert fuzz.episodes[found.episode].pursued == found.replay
    later = [
        e for e in fuzz.episodes if e.number > found.episode and BUCKET in e.buckets
    ]
    assert not any(e.pursued for e in later), "it is known by then"
    assert Switch.LEAVE in session.known.episodes.less, "and less often sent"


def test_the_episode_goes_on_after_an_error_and_both_are_found(
    tmp_path: Path, clock: Clock
) -> None:
    hang = hangs_on(several)

    def engine(case: Case) -> dict[str, str]:
        answers = hang(case)
        return {
            op.id: "500" if op.leave and answers[op.id] == "200" else answers[op.id]
            for op in case.operations
        }

    session, _ = fuzzing(tmp_path, FakePlayer(engine, clock), budget_s=900.0)
    fuzz = session.execute()
    assert {found.finding.bucket for found in fuzz.found} == {BUCKET, OTHER}
    assert all(found.finding.requests == 1 for found in fuzz.found)


def test_what_was_seen_once_is_told_and_not_counted(
    tmp_path: Path, clock: Clock
) -> None:
    player, titles = FakePlayer(well), list[str]()

    def before(number: int, case: Case) -> None:
        clock(number, case)
        first = case.title.startswith("episode 2") and case.title not in titles
        titles.append(case.title)
        player.engine = hangs_on(lambda _: True) if first else well

    player.before = before
    session, _ = fuzzing(tmp_path, player, budget_s=400.0)
    fuzz = session.execute()
    assert (fuzz.exit_code, fuzz.found) == (3, [])
    assert [one.sighting.bucket for one in fuzz.once] == [BUCKET]
    assert fuzz.once[0].episode > 0
    kept = tmp_path / "fuzz" / "episodes" / f"{fuzz.once[0].episode:04d}"
    assert (kept / "play").is_dir(), "its evidence stays"


def test_what_is_never_seen_again_is_left_alone_after_three_episodes(
    tmp_path: Path, clock: Clock
) -> None:
    seen: set[int] = set()

    def engine(case: Case) -> dict[str, str]:
        """Each case fails the first time only."""
        digest = hash(case.model_dump_json())
        new = digest not in seen and case.title.startswith("episode")
        seen.add(digest)
        return hangs_on(lambda _: True)(case) if new else well(case)

    session, _ = fuzzing(tmp_path, FakePlayer(engine, clock), budget_s=800.0)
    fuzz = session.execute()
    assert fuzz.found == []
    assert len([e for e in fuzz.episodes if e.pursued]) == knowledge.TRIES


def test_the_budget_is_kept_while_something_is_pursued(
    tmp_path: Path, clock: Clock
) -> None:
    session, _ = fuzzing(
        tmp_path, FakePlayer(hangs_on(leaves, several), clock), seed=1, budget_s=90.0
    )
    fuzz = session.execute()
    assert fuzz.elapsed_s <= 90 + 2 * clock.play_s
    assert [found.finding.shrunk for found in fuzz.found] in ([], [False])


def test_a_server_that_does_not_start_is_a_finding_and_the_end(
    tmp_path: Path, clock: Clock
) -> None:
    player = FakePlayer(lambda _: {NO_START: ""}, clock)
    session, _ = fuzzing(tmp_path, player)
    fuzz = session.execute()
    assert [found.finding.finding_class for found in fuzz.found] == ["start-failure"]
    assert len(fuzz.episodes) == 1
    assert any("does not start" in limit for limit in fuzz.limits)


@pytest.mark.parametrize(
    "wrong",
    [
        [{Switch.NGRAM}],
        [{Switch.NGRAM}, {Switch.DRAFT}],
        [{Switch.LORA, Switch.CHUNKS}],
    ],
    ids=["a feature", "two of them", "two together"],
)
def test_what_the_server_does_not_start_with_is_left_out_and_the_session_goes_on(
    tmp_path: Path, clock: Clock, wrong: list[set[Switch]]
) -> None:
    only = {one: {*feature("vllm", one).args} for one in dialect_of("vllm").features}
    usual = Counter(word for words in only.values() for word in words)
    needed = [
        {min(w for w in only[one] if usual[w] == 1) for one in group} for group in wrong
    ]

    def starts(args: list[str]) -> bool:
        return not any(words <= {*args} for words in needed)

    session, _ = fuzzing(
        tmp_path,
        FakePlayer(
            lambda case: well(case) if starts(case.server.args) else {NO_START: ""},
            clock,
        ),
        server=server(profile=FuzzProfile.MODERN),
        profile=FuzzProfile.MODERN,
        budget_s=2400.0,
    )
    fuzz = session.execute()
    (found,) = fuzz.found
    assert found.finding.finding_class == "start-failure"
    assert len(fuzz.episodes) > 40
    assert fuzz.elapsed_s > 2000
    assert {*session.known.episodes.apart} == {frozenset(group) for group in wrong}
    failed = [episode for episode in fuzz.episodes if episode.state == "start-failed"]
    assert len(failed) <= 3 * len(wrong)
    later = [episode for episode in fuzz.episodes if episode.number > failed[-1].number]
    assert len(later) > 20
    for group in wrong:
        assert not any({*map(str, group)} <= {*episode.switches} for episode in later)
        for one in group if len(group) > 1 else ():
            assert any(one in episode.switches for episode in later), (
                "alone it is still tried"
            )
    assert [limit for limit in fuzz.limits if limit.endswith(knowledge.UNFIT)]


def ghost_key(bucket: str, seen: Any, case: Case, result: object) -> Any:
    named = Named(bucket=bucket, known="ghost-key-eviction", why="all of it is met")
    return seen.model_copy(update={"named": named})


def test_a_known_failure_is_named_and_kept_away_from_then_on(
    tmp_path: Path, clock: Clock
) -> None:
    hang = hangs_on(several)
    engine: Answers = lambda case: well(case) if case.server.mitigation else hang(case)  # noqa: E731
    player = FakePlayer(engine, clock)
    wanted = server().model_copy(update={"release": "0.23.0"})
    session, _ = fuzzing(
        tmp_path, player, name=ghost_key, server=wanted, budget_s=900.0
    )
    fuzz = session.execute()
    (found,) = fuzz.found
    assert (found.finding.known, fuzz.exit_code) == ("ghost-key-eviction", 0)
    (limit,) = fuzz.limits
    assert "with the mitigation ghost-key-eviction/" in limit
    last, _ = read_case(
        tmp_path / "fuzz" / "episodes" / f"{len(fuzz.episodes) - 1:04d}"
    )
    assert last.server.mitigation.startswith("ghost-key-eviction/")


def test_blind_names_nothing(tmp_path: Path, clock: Clock) -> None:
    player = FakePlayer(hangs_on(several), clock)
    session, _ = fuzzing(tmp_path, player, name=ghost_key, blind=True, budget_s=900.0)
    fuzz = session.execute()
    (found,) = fuzz.found
    assert (found.finding.known, fuzz.exit_code) == (None, 1)
    assert "--blind" in found.finding.known_why


def test_answers_are_held_against_a_reference_and_what_differs_is_pursued(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong answer shows itself beside the plain server's only."""
    plain = "--mm-cache-tokens=0"

    class Answering(FakePlayer):
        def play(self, case: Case, *more: Any, **named: Any) -> Played:
            made = super().play(case, *more, **named)
            for op, record in zip(case.operations, made.evidence.requests, strict=True):
                wrong = op.stream and plain not in case.server.args
                record.text = "no" if wrong else "yes"
                record.completion_tokens, record.prompt_tokens = 1, 10
                record.finish_reason = "length"
            return made

    def answers(record: Any) -> list[TokenAnswer]:
        return [TokenAnswer(record.text, whole=True)]

    monkeypatch.setattr("mmrepro.search.oracle.near_ties.answers", answers)
    quiet = lambda case, played, engine: OracleReport()  # noqa: E731
    session, _ = fuzzing(
        tmp_path,
        Answering(well, clock),
        judge=quiet,
        server=server("minivllm"),
        budget_s=800.0,
    )
    fuzz = session.execute()
    assert [found.finding.finding_class for found in fuzz.found] == ["wrong-answer"]
    (found,) = fuzz.found
    left, _ = read_case(tmp_path / "fuzz" / found.folder)
    assert [op.stream for op in left.operations] == [True]
    assert fuzz.episodes[found.episode].compared


def test_only_the_same_session_is_gone_on_with(tmp_path: Path, clock: Clock) -> None:
    begun, _ = fuzzing(tmp_path, FakePlayer(well, clock), budget_s=100.0)
    begun.execute()
    other, _ = fuzzing(tmp_path, FakePlayer(well, clock), resume=True, seed=9)
    with pytest.raises(UsageError, match="begun with another --seed: 0"):
        other.execute()
    with pytest.raises(UsageError, match="holds no session"):
        fuzzing(tmp_path / "nowhere", FakePlayer(well), resume=True)
    with pytest.raises(UsageError, match="already holds a session"):
        fuzzing(tmp_path, FakePlayer(well, clock))


def test_a_torn_last_line_costs_nothing(tmp_path: Path, clock: Clock) -> None:
    begun, _ = fuzzing(tmp_path, FakePlayer(well, clock), budget_s=100.0)
    number = len(begun.execute().episodes)
    lines = tmp_path / "fuzz" / EPISODES_FILE
    lines.write_bytes(lines.read_bytes() + b'{"kind": "en')
    again, _ = fuzzing(tmp_path, FakePlayer(well, clock), resume=True, budget_s=160.0)
    assert len(again.execute().episodes) > number
    assert ended_once(tmp_path)


def test_a_machine_that_is_out_of_order_ends_it_and_nothing_is_lost(
    tmp_path: Path, clock: Clock
) -> None:
    def broken(number: int, case: Case) -> None:
        clock(number, case)
        if case.title.startswith("episode 2"):
            raise InfrastructureError("The disk is full.")

    session, states = fuzzing(tmp_path, FakePlayer(well, broken))
    with pytest.raises(InfrastructureError):
        session.execute()
    assert session.fuzz.state == "failed"
    assert session.fuzz.failure == "The disk is full."
    assert len(session.fuzz.episodes) == 2
    assert json.loads(states[-1])["failure"] == "The disk is full."


def test_an_interrupt_says_how_to_go_on(tmp_path: Path, clock: Clock) -> None:
    def interrupt(number: int, case: Case) -> None:
        if number == 3:
            raise KeyboardInterrupt

    session, _ = fuzzing(tmp_path, FakePlayer(well, interrupt))
    with pytest.raises(KeyboardInterrupt):
        session.execute()
    assert session.fuzz.state == "interrupted"
    assert f"--resume {tmp_path / 'fuzz'}" in session.fuzz.failure


def test_on_two_places_episodes_go_on_while_one_is_pursued(tmp_path: Path) -> None:
    """An attempt of the pursuit waits until a further episode has begun."""
    further = threading.Event()

    class Waiting(FakePlayer):
        def play(
            self,
            case: Case,
            contents: Path | None,
            options: Any,
            folder: Path,
            **more: Any,
        ) -> Played:
            place = folder.relative_to(tmp_path / "fuzz").parts
            if place[0] == "e0002":
                assert further.wait(20)
            elif int(place[1]) > 2:
                further.set()
            return super().play(case, contents, options, folder, **more)

    def engine(case: Case) -> dict[str, str]:
        return {NO_START: ""} if case.title.startswith("episode 2") else well(case)

    session, _ = fuzzing(tmp_path, Waiting(engine), jobs=2)
    fuzz = session.execute()
    assert [found.finding.finding_class for found in fuzz.found] == ["start-failure"]
    numbers = [episode.number for episode in fuzz.episodes]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) > 3
    assert ended_once(tmp_path)


def test_what_stands_in_on_any_of_its_servers_is_told(tmp_path: Path) -> None:
    def play(name: str, *stand_ins: str) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        stood = [
            StandIn(name=one, replaces="r", why="w", loaded=len(name))
            for one in stand_ins
        ]
        fidelity = Fidelity.CPU_STAND_IN if stood else Fidelity.CPU
        engine = EngineFacts(name="vllm", release="0.23.0", start_mode=name)
        made = incident(stand_ins=stood, fidelity=fidelity, engine=engine)
        (folder / INCIDENT_FILE).write_text(made.model_dump_json())
        return folder

    document = made_up_fuzz.fuzz(start_mode="", stand_ins=[])
    note_server(document, [tmp_path / "none", play("cold"), play("never read", "x")])
    assert (document.fidelity, document.stand_ins) == (Fidelity.CPU, [])
    note_server(document, [play("warm", "a")])
    note_server(document, [play("later", "a", "b")])
    note_server(document, [play("last")])
    assert [one.name for one in document.stand_ins] == ["a", "b"]
    assert (document.fidelity, document.start_mode) == (Fidelity.CPU_STAND_IN, "cold")
