"""Answers beside two references: the one in the server's own number format is nobody's
failure."""

from typing import Any, cast

import pytest
from fake_plays import fake_case, fake_op
from mmrepro.base.records import FindingClass
from mmrepro.engines import get_engine
from mmrepro.failure.documents.replay import Sighting
from mmrepro.search.oracle.judged import OracleReport
from mmrepro.search.replay import silent
from mmrepro.search.replay.attempts import Attempts
from mmrepro.search.replay.silent import Silent
from mmrepro.search.replay.store import AttemptWanted
from mmrepro.traffic.case.model import Case, ServerWanted
from mmrepro.traffic.case.sending import Played, PlayState

SERVER = ServerWanted(
    engine="sglang", release="0.5.6", args=["--chunked-prefill-size=512"]
)


class FakePlays:
    """Judges what it plays, as :class:`Attempts` does; ``said`` names the play."""

    def __init__(self, case: Case) -> None:
        self.case, self.blocks = case, 0
        self.silent = Silent(cast("Attempts", self), get_engine("sglang"), None)
        self.played: list[tuple[str, list[str]]] = []

    def play(self, wanted: AttemptWanted) -> Any:
        dtype = "--dtype=float32" in wanted.case.server.args
        plain = "--disable-radix-cache" in wanted.case.server.args
        said = "float32" if dtype else "plain" if plain else "as it is"
        made = Played(state=PlayState.ENDED, said=said)
        judged = self.silent.judge(wanted.case, made)
        self.played.append((said, [one.bucket for one in judged.sightings]))
        return made

    def whole(self, seen: Played) -> Played:
        return seen


@pytest.fixture
def plays(monkeypatch: pytest.MonkeyPatch) -> FakePlays:
    """Each server answers otherwise than every other one."""

    def differs(case: Case, played: Played, reference: Played) -> OracleReport:
        same = played.said == reference.said
        wrong = Sighting(
            finding_class=FindingClass.WRONG_ANSWER,
            bucket="wrong",
            said="x",
            operations=["r1"],
        )
        return OracleReport(sightings=[] if same else [wrong])

    monkeypatch.setattr(silent, "compare_with_reference", differs)
    case = fake_case([fake_op("r1"), fake_op("r2")])
    return FakePlays(case.model_copy(update={"server": SERVER}))


def test_a_reference_is_not_held_against_the_other_one(plays: FakePlays) -> None:
    assert plays.silent.compare(plays.case) is not None
    assert plays.played == [("float32", []), ("plain", []), ("as it is", ["wrong"])]


def test_the_second_reference_is_played_once(plays: FakePlays) -> None:
    plays.silent.compare(plays.case)
    again = plays.silent.judge(
        plays.case, Played(state=PlayState.ENDED, said="as it is")
    )
    assert [one.bucket for one in again.sightings] == ["wrong"]
    rounded = plays.silent.judge(
        plays.case, Played(state=PlayState.ENDED, said="plain")
    )
    assert rounded.sightings == [], "what the server's own format answers is no failure"
    assert [said for said, _ in plays.played] == ["float32", "plain", "as it is"]


def test_where_the_float32_reference_agrees_no_second_one_is_played(
    plays: FakePlays,
) -> None:
    plays.silent.reference = Played(state=PlayState.ENDED, said="as it is")
    judged = plays.silent.judge(
        plays.case, Played(state=PlayState.ENDED, said="as it is")
    )
    assert (judged.sightings, plays.played) == ([], [])
