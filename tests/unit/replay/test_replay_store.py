"""Plays on disk: what ended is never played again, whatever a kill leaves behind."""

import json
from pathlib import Path

import pytest
from fake_player import FakePlayer, replaying
from fake_plays import SERVER, FakeGhostKey
from made_up_plays import answer, case_of, operation, picture, played, refused
from mmrepro.base.errors import BadIncident, UsageError
from mmrepro.base.machine.journal import SessionJournal
from mmrepro.failure.documents.replay import VERDICTS_FILE, PlayFacts
from mmrepro.runs.judge import Deadlines
from mmrepro.search.oracle.judged import OracleReport
from mmrepro.search.replay.folder import CaseHead
from mmrepro.search.replay.store import (
    VERDICTS,
    AttemptBegan,
    AttemptEnded,
    Observation,
    answers_of,
    observation_of,
)
from mmrepro.traffic.case.files import case_digest
from test_shrink import ghost_trace

HEAD = CaseHead(
    mmrepro_version="1", id="abc", case="d" * 64, decides={"--time": "fast"}
)
HERE = Path(__file__).parent


def seen(number: int) -> Observation:
    facts = PlayFacts(
        number=number, what="a play", requests=3, state="ended", buckets=["b"]
    )
    return Observation(play=facts, answers={"r1": "200"}, folder=f"plays/{number:04d}")


def journal(folder: Path, head: CaseHead = HEAD) -> SessionJournal:
    return SessionJournal(VERDICTS, folder, head)


def digest(number: int) -> str:
    return f"{number:064d}"


def ended(number: int, of: Observation | None = None) -> AttemptEnded:
    return AttemptEnded(
        number=number,
        digest=digest(number),
        how="shrink",
        index=1,
        seen=of or seen(number),
    )


def in_it(journal: SessionJournal) -> set[str]:
    """Of the attempts that had ended in earlier calls: their digests."""
    return {line.digest for line in journal.kept if isinstance(line, AttemptEnded)}


def test_what_ended_is_there_again_and_what_only_began_is_not(tmp_path: Path) -> None:
    with journal(tmp_path) as first:
        for number in (1, 2):
            began = {
                "digest": digest(number),
                "how": "shrink",
                "index": 1,
                "requests": 3,
            }
            first.append(AttemptBegan(number=number, what="a play", **began))  # type: ignore[arg-type]
        first.append(ended(1))
        limits = Deadlines(6.0, 2.4, "a rule")
        told = {
            "answer_s": limits.answer_s,
            "suspect_s": limits.suspect_s,
            "rule": limits.rule,
        }
        measured = AttemptEnded(
            number=3, digest="", how="calibration", index=1, seen=seen(3), **told
        )  # type: ignore[arg-type]
        first.append(measured)
    with journal(tmp_path) as again:
        assert again.kept[-2:] == [ended(1), measured]
        assert again.kept[-1].deadlines == limits
        assert in_it(again) == {digest(1), ""}
        with pytest.raises(UsageError, match="ended twice"):
            again.append(ended(1, seen(9)))


@pytest.mark.parametrize("torn", [b"{", b'{"kind": "ended", "number": 7', b"x" * 5000])
def test_a_torn_last_line_is_cut_off(tmp_path: Path, torn: bytes) -> None:
    with journal(tmp_path) as first:
        first.append(ended(1))
    with (tmp_path / VERDICTS_FILE).open("ab") as file:
        file.write(torn)
    with journal(tmp_path) as again:
        again.append(ended(2))
    with journal(tmp_path) as third:
        assert in_it(third) == {digest(1), digest(2)}


def test_a_line_that_somebody_changed_is_refused(tmp_path: Path) -> None:
    with journal(tmp_path) as first:
        first.append(ended(1))
        first.append(ended(2))
    file = tmp_path / VERDICTS_FILE
    texts = file.read_text().splitlines()
    file.write_text("\n".join([texts[0], texts[1][:40], texts[2]]) + "\n")
    with pytest.raises(BadIncident, match="line 2"):
        journal(tmp_path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"case": "e" * 64}, "another case"),
        ({"mmrepro_version": "2"}, "made by mmrepro 1, this is 2"),
        ({"decides": {"--time": "real"}}, "another --time: fast"),
    ],
)
def test_of_something_else_it_says_so_in_a_sentence(
    tmp_path: Path, change: dict[str, object], said: str
) -> None:
    with journal(tmp_path):
        pass
    before = (tmp_path / VERDICTS_FILE).read_bytes()
    with pytest.raises(UsageError, match=said) as raised:
        journal(tmp_path, HEAD.model_copy(update=change))
    assert raised.value.hint
    assert (tmp_path / VERDICTS_FILE).read_bytes() == before


@pytest.mark.parametrize("text", ["", "{}\n", "[1]\n", '{"kind": "began"}\n', "\xff\n"])
def test_what_is_no_replay_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / VERDICTS_FILE).write_text(text)
    if not text:  # nothing was written yet: it begins
        with journal(tmp_path) as first:
            assert not first.kept
        return
    with pytest.raises(UsageError, match="can go on with"):
        journal(tmp_path)


def test_a_newer_store_is_refused(tmp_path: Path) -> None:
    newer = HEAD.model_dump(mode="json") | {"version": 9}
    (tmp_path / VERDICTS_FILE).write_text(json.dumps(newer) + "\n")
    with pytest.raises(UsageError, match="can go on with"):
        journal(tmp_path)


def test_one_writer(tmp_path: Path) -> None:
    with journal(tmp_path), pytest.raises(UsageError, match="Another mmrepro goes on"):
        journal(tmp_path)


def test_no_secret_is_kept(tmp_path: Path) -> None:
    secret = "sk-" + "a1" * 20
    told = seen(1).model_copy(update={"observed": {"r1": f"401 wrong key {secret}"}})
    with journal(tmp_path) as first:
        kept = first.append(ended(1, told))
    assert secret not in (tmp_path / VERDICTS_FILE).read_text()
    assert secret not in kept.seen.observed["r1"], (
        "this call sees what a later one will see"
    )


def test_a_resumed_folder_without_a_replay_is_refused(tmp_path: Path) -> None:
    case = ghost_trace(1)
    (tmp_path / "replay").mkdir()
    with pytest.raises(UsageError, match="no replay to go on with"):
        replaying(case, tmp_path, FakePlayer(FakeGhostKey(1000)), resume=True)


def test_a_folder_with_a_replay_is_not_begun_anew(tmp_path: Path) -> None:
    case = ghost_trace(1, 60)
    replaying(case, tmp_path, FakePlayer(FakeGhostKey(1000)))[0].execute()
    with pytest.raises(UsageError, match="already holds a replay") as raised:
        replaying(case, tmp_path, FakePlayer(FakeGhostKey(1000)))
    assert "--resume" in raised.value.hint


def test_another_server_is_not_gone_on_with(tmp_path: Path) -> None:
    case = ghost_trace(1, 60)
    replaying(case, tmp_path, FakePlayer(FakeGhostKey(1000)))[0].execute()
    server = SERVER.model_copy(update={"release": "0.24.0"})
    other, _ = replaying(
        case, tmp_path, FakePlayer(FakeGhostKey(1000)), resume=True, server=server
    )
    with pytest.raises(UsageError, match="another case"):
        other.execute()
    assert case_digest(case) != case_digest(case.model_copy(update={"server": server}))


@pytest.mark.parametrize(
    ("observed", "words"),
    [
        (
            '400 {"object":"error","message":"at most 32 tokens","code":400}',
            "400 at most 32 tokens",
        ),
        (
            '422 {"detail": "no \\"max_tokens\\"\\nat all"}',
            '422 no "max_tokens" at all',
        ),
        # The text that is shown of an answer is cut: its message may have no end.
        ('500 {"error": {"message": "the engine is de', "500 the engine is de"),
        (
            'the reply had "message": "a tool\'s"',
            'the reply had "message": "a tool\'s"',
        ),
        ("502 Bad Gateway", "502 Bad Gateway"),
    ],
)
def test_of_an_errors_json_an_answer_has_the_message(observed: str, words: str) -> None:
    shown = seen(1).model_copy(update={"observed": {"r1": observed}})
    (answer,) = answers_of(case_of([operation("r1")]), shown)
    assert answer.words == words


def test_each_request_of_a_play_has_what_came_of_it() -> None:
    """By whether it was sent, left, stuck, cut off, refused or answered."""
    ops = [operation(f"r{number}") for number in range(1, 9)]
    leaving = {"leave": "first-token"}
    ops[2], ops[3] = (op.model_copy(update=leaving) for op in ops[2:4])
    shown = [picture("a", (56, 112)), picture("b", (28, 28))]
    records = [
        answer(ops[0], 3.0, text="fine \n words", latency_s=0.25, images=shown),
        refused(ops[1], 400, at=2.0, error="too\nlong"),
        answer(ops[2], 2.0),
        refused(ops[3], 400, at=4.0, error="no"),
        answer(ops[4], 5.0, status=None, error="reset", text=""),
        answer(ops[5], 6.0, error="a broken stream"),
        answer(ops[6], 7.0, status=None, latency_s=2.04),
    ]
    facts = PlayFacts(number=1, what="a play", requests=8, state="")
    made = observation_of(
        case_of(ops), played(records, stuck=["r7"]), OracleReport(), facts
    )
    assert made.answers == {
        "r1": "200",
        "r2": "400",
        "r3": "left",
        "r4": "400",
        "r5": "broken",
        "r6": "broken",
        "r7": "stuck",
        "r8": "unsent",
    }
    assert made.observed == {
        "r1": "200 fine words",
        "r2": "400 too long",
        "r3": "left after first-token",
        "r4": "400 no",
        "r5": "no answer reset",
        "r6": "200 abcd",
        "r7": "no answer in 2.0 s",
        "r8": "not sent",
    }
    assert made.stuck == ["r7"]
    assert made.sent == ["r2", "r3", "r1", "r4", "r5", "r6", "r7"]
    assert made.times["r1"] == (1.0, 1.25)
    assert made.times["r7"] == (5.0, None)
    assert made.sizes == {"r1": "56x112 28x28"}
    answers = answers_of(case_of(ops), made)
    failing, sound = ["r5", "r6", "r7"], ["r1", "r2", "r3", "r4", "r8"]
    assert [answer.operation for answer in answers] == failing + sound
    took = {answer.operation: answer.seconds for answer in answers}
    assert (took["r6"], took["r7"], took["r8"]) == (1.0, None, None)
    assert took["r1"] == 0.25
