"""Two servers that get the same requests: what they answer otherwise is found, made as
small as it goes, and asked once more of fresh ones."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from fake_player import FakePlayer, Fakes
from fake_plays import SERVER
from mmrepro.base.errors import InfrastructureError, UsageError
from mmrepro.cli import replay
from mmrepro.failure.documents.replay import Fuzz
from mmrepro.reports.documents import keep
from mmrepro.reports.fuzz import KIND, sides
from mmrepro.search.fuzz import against
from mmrepro.search.fuzz.against import Comparing
from mmrepro.search.fuzz.fields import features_of, field_requests, smaller
from mmrepro.search.fuzz.options import FuzzCommand
from mmrepro.search.fuzz.pairs import PAIRS
from mmrepro.search.fuzz.server import other_side
from mmrepro.traffic.case import CHAT, Case, Operation
from mmrepro.traffic.case.sending import Played, PlayState

OTHER = SERVER.model_copy(update={"args": ["--other"]})


class TwoSides(FakePlayer):
    """Servers whose answers ``status`` gives, for a request and whether it is the other
    side's."""

    def __init__(self, status: Any) -> None:
        super().__init__(lambda case: {})
        self.status = status

    def play(self, case: Any, *rest: Any, **more: Any) -> Played:
        other = "--other" in case.server.args
        self.engine = lambda asked: {
            op.id: str(self.status(op, other)) for op in asked.operations
        }
        played = super().play(case, *rest, **more)
        for op in case.operations:
            status = int(self.status(op, other))
            error = {"error": {"message": "no", "type": "bad", "code": status}}
            said = {"id": op.id, "choices": []} if status == 200 else error
            played.bodies[op.id] = json.dumps(said)
        return played


class FakedComparing(Fakes, Comparing):
    pass


def compared(tmp_path: Path, status: Any, **options: Any) -> Fuzz:
    given = {
        "server": SERVER,
        "other": OTHER,
        "budget_s": 600.0,
        "repeat": 2,
        **options,
    }
    session = FakedComparing(
        FuzzCommand(engine="vllm", out=tmp_path / "f", against="--other", **given),
        write=lambda made, folder: keep(KIND, made, folder),
    )
    session.player = TwoSides(status)
    # One episode of each kind is enough of a server that answers at once.
    session.episodes_at_most = 4
    return session.execute()


def is_fatal(op: Operation) -> bool:
    """Whether it is the one kind of request that a FAKE engine does not survive."""
    return op.path == CHAT and op.parameters.get("min_p") == 1.5


def test_a_session_that_goes_on_keeps_the_deadlines_that_it_measured(
    tmp_path: Path,
) -> None:
    compared(tmp_path, refuses_top_k, repeat=1)
    options = {"server": SERVER, "other": OTHER, "against": "--other", "repeat": 1}
    session = FakedComparing(
        FuzzCommand(engine="vllm", resume=tmp_path / "f", budget_s=900.0, **options),
        write=lambda made, folder: keep(KIND, made, folder),
    )
    player = session.player = TwoSides(refuses_top_k)
    session.episodes_at_most = 4
    made = session.execute()
    assert player.calibrated == 0
    assert made.differences


def refuses_top_k(op: Operation, other: bool) -> int:
    return 400 if other and op.parameters.get("top_k") == -2 else 200


def test_a_refused_field_is_found_made_small_and_confirmed(tmp_path: Path) -> None:
    made = compared(tmp_path, refuses_top_k)
    assert made.exit_code == 1
    found = {(d.field, d.what, *d.features) for d in made.differences}
    assert ("status", "200 → 400", "top_k=-2") in found
    assert all(d.shrunk and d.confirmed for d in made.differences)
    body = made.differences[0].request["body"]
    assert isinstance(body, dict)
    assert body["top_k"] == -2
    assert "top_k=-2" in repr(KIND.compose(made))


def test_the_same_twice_has_no_difference(tmp_path: Path) -> None:
    made = compared(tmp_path, lambda op, _: 400 if "n" in op.parameters else 200)
    assert made.differences == []
    assert made.exit_code == 0


def test_two_refusals_differ_in_their_status_alone(tmp_path: Path) -> None:
    def refuses(op: Operation, other: bool) -> int:
        if op.parameters.get("top_k") != -2:
            return 200
        return 404 if other else 400

    made = compared(tmp_path, refuses)
    assert {(d.field, d.what) for d in made.differences} == {("status", "400 → 404")}


def test_what_a_fresh_pair_does_not_show_is_not_confirmed(tmp_path: Path) -> None:
    seen: set[str] = set()

    def once(op: Operation, other: bool) -> int:
        chance = other and op.id.startswith("r") and op.parameters.get("top_k") == -2
        seen.add(op.id)
        return 400 if chance else 200

    made = compared(tmp_path, once, shrink=False)
    assert made.differences
    assert not any(d.confirmed for d in made.differences)
    assert made.exit_code == 3


def test_a_request_has_one_thing_fewer_each_time() -> None:
    random = Random(1)
    for op in field_requests(random):
        for candidate in smaller(op):
            assert len(features_of(candidate)) < len(features_of(op)), op


def test_the_same_seed_asks_the_same() -> None:
    assert field_requests(Random(3)) == field_requests(Random(3))
    plain = field_requests(Random(3))[0]
    assert (plain.path, features_of(plain)) == (CHAT, [])


def test_messages_that_are_none_are_asked_too() -> None:
    odd = field_requests(Random(1), count=10_000)
    roles = set()
    for op in odd:
        for message in op.parameters.get("messages", []):
            roles.add(message.get("role"))
    assert {"system", "developer", "nobody"} <= roles


@pytest.mark.parametrize(
    ("asked", "args", "release"),
    [
        ({"server_args": ("{feature:front-rust}",)}, "{feature:front-rust}", "0.23.0"),
        ({"release": "0.24.0"}, "10", "0.24.0"),
    ],
)
def test_the_other_side_is_the_first_but_for_what_is_said(
    asked: dict[str, Any], args: str, release: str
) -> None:
    first = FuzzCommand(engine="vllm", server=SERVER)
    second = other_side(first, FuzzCommand(engine="vllm", **asked))
    assert second.args[-1] == args
    assert second.release == release


def test_a_side_that_does_not_start_is_no_difference(tmp_path: Path) -> None:
    class NoOther(TwoSides):
        def play(self, case: Any, *rest: Any, **more: Any) -> Played:
            if "--other" not in case.server.args:
                return super().play(case, *rest, **more)
            return Played(state=PlayState.START_FAILED, said="it has no --other")

    session = FakedComparing(
        FuzzCommand(engine="vllm", out=tmp_path / "f", server=SERVER, other=OTHER),
        write=lambda made, folder: keep(KIND, made, folder),
    )
    session.player = NoOther(lambda op, other: 200)
    with pytest.raises(InfrastructureError, match="it has no --other"):
        session.execute()
    assert session.fuzz.differences == []


def test_a_request_that_ends_one_side_leaves_the_others_to_be_shrunk(
    tmp_path: Path,
) -> None:
    class Fragile(TwoSides):
        def play(self, case: Any, *rest: Any, **more: Any) -> Played:
            played = super().play(case, *rest, **more)
            for place, op in enumerate(case.operations):
                fatal = is_fatal(op)
                if fatal and "--other" in case.server.args:
                    played.state, played.said = PlayState.DIED, "it ended"
                    del played.evidence.requests[place:]
                    break
            return played

    session = FakedComparing(
        FuzzCommand(
            engine="vllm",
            out=tmp_path / "f",
            server=SERVER,
            other=OTHER,
            budget_s=600.0,
            repeat=1,
        ),
        write=lambda made, folder: keep(KIND, made, folder),
    )
    session.player = Fragile(refuses_top_k)
    session.episodes_at_most = 8
    made = session.execute()
    by_field = {d.field: d for d in made.differences}
    assert by_field["server"].features == ["min_p=1.5"]
    assert by_field["status"].shrunk
    # It is asked last of a fresh pair, so that the pair can show the others as well.
    assert {field: d.confirmed for field, d in by_field.items()} == {
        "server": True,
        "status": True,
    }


def test_what_is_asked_of_a_lost_engine_says_nothing(tmp_path: Path) -> None:
    class Loses(TwoSides):
        def play(self, case: Any, *rest: Any, **more: Any) -> Played:
            lost = False
            fatal: set[str] = set()
            for op in case.operations:
                lost = lost or is_fatal(op)
                if lost and "--other" in case.server.args:
                    fatal.add(op.id)
            self.status = lambda op, other: 500 if op.id in fatal else 200
            return super().play(case, *rest, **more)

    session = FakedComparing(
        FuzzCommand(
            engine="vllm",
            out=tmp_path / "f",
            server=SERVER,
            other=OTHER,
            budget_s=600.0,
            repeat=1,
            shrink=False,
        ),
        write=lambda made, folder: keep(KIND, made, folder),
    )
    session.player = Loses(None)
    session.episodes_at_most = 8
    made = session.execute()
    (difference,) = made.differences
    assert difference.field == "server"
    assert "min_p=1.5" in difference.features
    assert difference.confirmed


def test_a_lost_engine_whose_front_still_refuses_requests_is_lost(
    tmp_path: Path,
) -> None:
    lost: list[bool] = []

    def status(op: Operation, other: bool) -> int:
        """The front end of a side refuses top_k before it asks its engine."""
        if "top_k" in op.parameters:
            return 400
        if other and is_fatal(op):
            lost.append(True)
        return 500 if other and lost else 200

    class InOrder(TwoSides):
        """Answers in the order of the requests, each once."""

        def play(self, case: Any, *rest: Any, **more: Any) -> Played:
            other = "--other" in case.server.args
            lost.clear()
            answers = {op.id: status(op, other) for op in case.operations}
            self.status = lambda op, _: answers[op.id]
            return super().play(case, *rest, **more)

    session = FakedComparing(
        FuzzCommand(
            engine="vllm",
            out=tmp_path / "f",
            server=SERVER,
            other=OTHER,
            budget_s=600.0,
            repeat=1,
            shrink=False,
        ),
        write=lambda made, folder: keep(KIND, made, folder),
    )
    session.player = InOrder(None)
    session.episodes_at_most = 8
    made = session.execute()
    (difference,) = made.differences
    assert difference.field == "server"
    assert "min_p=1.5" in difference.features
    assert difference.confirmed


def test_a_request_with_a_picture_is_shrunk_and_confirmed(tmp_path: Path) -> None:
    made = compared(
        tmp_path, lambda op, other: 500 if other and op.images else 200, repeat=1
    )
    (difference,) = made.differences
    assert difference.what == "200 → 500"
    assert difference.confirmed


def test_the_request_that_hangs_one_side_is_the_one_without_a_whole_answer(
    tmp_path: Path,
) -> None:
    class Hangs(TwoSides):
        def play(self, case: Any, *rest: Any, **more: Any) -> Played:
            played = super().play(case, *rest, **more)
            for place, op in enumerate(case.operations):
                stuck = is_fatal(op)
                if stuck and "--other" in case.server.args:
                    played.state, played.said = PlayState.HUNG, "nothing came"
                    # Its stream had begun.
                    played.evidence.requests[place].timed_out = True
                    del played.evidence.requests[place + 1 :]
                    break
            return played

    session = FakedComparing(
        FuzzCommand(
            engine="vllm",
            out=tmp_path / "f",
            server=SERVER,
            other=OTHER,
            budget_s=600.0,
            repeat=1,
        ),
        write=lambda made, folder: keep(KIND, made, folder),
    )
    session.player = Hangs(lambda op, other: 200)
    session.episodes_at_most = 8
    (difference,) = session.execute().differences
    assert difference.what == "NEW hung"
    assert difference.features == ["min_p=1.5"]


def test_the_words_of_the_other_side_are_options_of_the_command() -> None:
    asked = FuzzCommand(engine="vllm", server=SERVER, against="--front rust")
    assert replay._other_side(asked).args[-1] == "{feature:front-rust}"
    newer = FuzzCommand(engine="vllm", server=SERVER, against="0.24.0 --env A=B")
    assert (newer_side := replay._other_side(newer)).release == "0.24.0"
    assert newer_side.env == {"A": "B"}
    wrong = FuzzCommand(engine="vllm", server=SERVER, against="--no-such-option")
    with pytest.raises(UsageError, match="--no-such-option"):
        replay._other_side(wrong)


def test_what_needs_more_rounds_leaves_the_others_shrunk(tmp_path: Path) -> None:
    def refuses(op: Operation, other: bool) -> int:
        asked = op.parameters
        bad = asked.get("min_p") == 1.5 or asked.get("seed") == -1
        return 400 if other and bad else 200

    made = compared(tmp_path, refuses, repeat=1)
    features = {tuple(d.features) for d in made.differences if d.field == "status"}
    assert {("min_p=1.5",), ("seed=-1",)} <= features
    assert all(d.shrunk for d in made.differences)


class Slow(TwoSides):
    """Each play takes that long of the session's clock."""

    def __init__(self, status: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(status)
        self.seconds = 0.0
        monkeypatch.setattr(against.time, "monotonic", lambda: self.seconds)

    def play(self, case: Any, *rest: Any, **more: Any) -> Played:
        self.seconds += 50.0
        return super().play(case, *rest, **more)


def test_time_is_left_to_confirm_and_more_time_shrinks_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def session(budget_s: float, **place: Any) -> FakedComparing:
        made = FakedComparing(
            FuzzCommand(
                engine="vllm",
                server=SERVER,
                other=OTHER,
                budget_s=budget_s,
                repeat=2,
                **place,
            ),
            write=lambda fuzz, folder: keep(KIND, fuzz, folder),
        )
        made.player = Slow(refuses_top_k, monkeypatch)
        return made

    # A pair takes 100 seconds: one episode, then the pairs that confirm.
    short = session(300.0, out=tmp_path / "f").execute()
    assert short.differences
    assert all(d.confirmed and d.pairs == 2 for d in short.differences)
    assert not any(d.shrunk for d in short.differences)
    # Another episode would leave no time to shrink what the first one showed.
    enough = session(500.0, out=tmp_path / "g").execute()
    assert len(enough.episodes) == 1
    assert all(d.shrunk and d.confirmed for d in enough.differences)
    longer = session(2000.0, resume=tmp_path / "f").execute()
    assert all(d.confirmed and d.shrunk for d in longer.differences)


def test_while_nothing_differs_most_of_the_time_goes_to_episodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def episodes(name: str, status: Any) -> int:
        command = FuzzCommand(
            engine="vllm",
            out=tmp_path / name,
            server=SERVER,
            other=OTHER,
            budget_s=2000.0,
            repeat=1,
        )
        session = FakedComparing(command, write=lambda fuzz, folder: None)
        session.player = Slow(status, monkeypatch)
        return len(session.execute().episodes)

    # A pair takes 100 seconds.
    assert episodes("same", lambda op, other: 200) == 16
    assert episodes("other", refuses_top_k) == 9


def pairs_in(folder: Path) -> int:
    lines = (folder / PAIRS.file).read_text().splitlines()
    return sum(json.loads(line)["kind"] == "pair" for line in lines)


def test_a_session_that_is_cut_short_goes_on_and_plays_no_pair_again(
    tmp_path: Path,
) -> None:
    def session(**place: Any) -> FakedComparing:
        made = FakedComparing(
            FuzzCommand(
                engine="vllm",
                server=SERVER,
                other=OTHER,
                budget_s=600.0,
                repeat=1,
                **place,
            ),
            write=lambda fuzz, folder: keep(KIND, fuzz, folder),
        )
        made.player = TwoSides(refuses_top_k)
        made.episodes_at_most = 4
        return made

    def interrupt(number: int, case: Case) -> None:
        if number == 5:
            raise KeyboardInterrupt

    cut = session(out=tmp_path / "f")
    cut.player.before = interrupt
    with pytest.raises(KeyboardInterrupt):
        cut.execute()
    assert cut.fuzz.state == "interrupted"
    ended = pairs_in(tmp_path / "f")
    assert ended

    again = session(resume=tmp_path / "f")
    made = again.execute()
    assert again.player.calibrated == 0
    assert again.player.plays == 2 * (pairs_in(tmp_path / "f") - ended)
    assert made.starts == 2 * pairs_in(tmp_path / "f")
    assert ("200 → 400", ["top_k=-2"]) in [
        (d.what, d.features) for d in made.differences
    ]
    assert all(difference.confirmed for difference in made.differences)


def test_a_side_is_called_by_what_a_person_types() -> None:
    rust = SERVER.model_copy(update={"args": [*SERVER.args, "{feature:front-rust}"]})
    old, new = sides(SERVER, rust)
    assert (old, new) == ("vllm 0.23.0", "vllm 0.23.0 with --front rust")
