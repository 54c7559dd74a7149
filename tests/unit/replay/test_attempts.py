"""Orders of attempts: what goes to another machine, and what is beside what."""

import hashlib
import pickle
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_player import FakePlayer, replaying
from fake_plays import SERVER, answered_until, fake_case, fake_op
from mmrepro.base.errors import InfrastructureError
from mmrepro.campaign.provisions import Provisions
from mmrepro.campaign.trial import TrialOptions, Trials
from mmrepro.campaign.work import StartedRun, Workplace
from mmrepro.runs.judge import Deadlines
from mmrepro.runs.play.options import PlayOptions, Servers
from mmrepro.runs.play.players import Players
from mmrepro.search.replay.attempts import CaseResult, CaseRun
from mmrepro.search.replay.store import LiveLook
from mmrepro.traffic.case.files import read_content, write_case
from mmrepro.traffic.case.model import Case, Content
from mmrepro.traffic.case.sending import Played

PNG = b"the bytes of an image"
IMAGE = Content(sha256=hashlib.sha256(PNG).hexdigest())


def here(player: FakePlayer) -> Workplace:
    options = TrialOptions()
    players = Players(make=lambda *_: player)
    return Workplace(Trials(options), Provisions(options), "alpha", players=players)


def order(folder: Path) -> CaseRun:
    case = Case(server=SERVER, images={"x": IMAGE}, operations=[fake_op("r1", "x")])
    write_case(case, folder, {IMAGE.sha256: PNG})
    options = PlayOptions(Deadlines(6.0, 2.4))
    return CaseRun(
        "whole/1",
        "whole",
        Servers(SERVER),
        "plays/0001",
        case=case,
        contents=folder,
        options=options,
    )


def test_an_attempt_on_another_machine_has_the_images(tmp_path: Path) -> None:
    class Reading(FakePlayer):
        def play(
            self,
            case: Case,
            contents: Path | None,
            options: object,
            folder: Path,
            **more: Any,
        ) -> Played:
            assert read_content("x", IMAGE, contents) == PNG
            assert folder == tmp_path / "there" / "plays" / "0001"
            return super().play(case, contents, options, folder, **more)

    sent = pickle.dumps(order(tmp_path / "here"))
    (tmp_path / "here").rename(tmp_path / "gone")
    there = pickle.loads(sent)
    player = Reading(lambda case: answered_until(case, None))
    began, made = there.carry_out(here(player), tmp_path / "there")
    assert isinstance(began, StartedRun)
    assert isinstance(made, CaseResult)
    assert (made.id, made.place, made.machine) == ("whole/1", "plays/0001", "alpha")
    assert there.files(made) == str(there.folder(began)) == "plays/0001"


@pytest.mark.parametrize("wanted", [True, False])
def test_a_living_server_is_looked_at_where_that_is_asked_for(
    tmp_path: Path, wanted: bool
) -> None:
    class Living(FakePlayer):
        def play(self, *given: Any, on_look: Any, **more: Any) -> Played:
            assert (on_look is not None) == wanted
            if wanted:
                on_look("http://127.0.0.1:1", 7, tmp_path / "server.log")
            return super().play(*given, on_look=on_look, **more)

    def look(url: str, pid: int, log: Path) -> LiveLook:
        return LiveLook(matches=[], why=f"{url} {pid} {log.name}")

    player = Living(lambda case: answered_until(case, None))
    asked = replace(order(tmp_path), look=look if wanted else None)
    _began, made = asked.carry_out(here(player), tmp_path)
    assert isinstance(made, CaseResult)
    assert made.looked.why == ("http://127.0.0.1:1 7 server.log" if wanted else "")


def test_what_says_nothing_of_the_engine_is_tried_twice_and_no_third_time(
    tmp_path: Path,
) -> None:
    def full(number: int, _case: Case) -> None:
        raise InfrastructureError("the machine is full")

    player = FakePlayer(lambda case: answered_until(case, None), full)
    with pytest.raises(InfrastructureError):
        list(order(tmp_path).carry_out(here(player), tmp_path))
    assert player.plays == 2


def test_a_player_that_is_stopped_begins_nothing(tmp_path: Path) -> None:
    player = FakePlayer(lambda case: answered_until(case, None))
    place = here(player)
    place.players.stop()
    with pytest.raises(KeyboardInterrupt):
        list(order(tmp_path).carry_out(place, tmp_path))
    assert player.plays == 0


def test_candidates_of_a_shrink_are_tried_beside_each_other(tmp_path: Path) -> None:
    """One of two begins before the other one has ended."""
    both, begun = threading.Event(), [0]

    def meet(number: int, _case: Case) -> None:
        if number > 4:  # the whole case, and that three times again
            begun[0] += 1
            if begun[0] == 2:
                both.set()
            both.wait(20)

    def engine(case: Case) -> dict[str, str]:
        needed = {"r0", "r1", "r2"} <= {op.id for op in case.operations}
        return answered_until(case, "r2" if needed else None)

    case = fake_case([fake_op(f"r{n}") for n in range(3)])
    session, _ = replaying(case, tmp_path, FakePlayer(engine, meet), jobs=2)
    (finding,) = session.execute().findings
    assert (finding.requests, finding.shrunk) == (3, True)
    assert both.is_set()
