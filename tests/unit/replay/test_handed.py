"""The script of a finding is run before it is handed out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mmrepro.base.box import NoBox
from mmrepro.base.errors import NotConfirmed
from mmrepro.search.replay import handed
from mmrepro.search.replay.handed import run_by_hand
from mmrepro.traffic.capture import ClientRun, ClientWanted
from mmrepro.traffic.case import ServerWanted

BAD = ServerWanted(engine="vllm", release="0.23.0")


class _Played:
    """Runs no server: what a script gives on each release is written down."""

    codes: dict[str, list[int]]
    asked: list[str]
    ran = True

    def __init__(self, server: ServerWanted, **more: Any) -> None:
        assert more["boxed"], "a stranger may have chosen the requests"
        self.release = server.release

    def __enter__(self) -> _Played:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def record(self, wanted: ClientWanted, folder: Path) -> tuple[None, ClientRun]:
        assert (wanted.folder / wanted.command[1]).read_text() == "the script"
        self.asked.append(self.release)
        code = self.codes[self.release].pop(0)
        return None, ClientRun(code=code, output="it said so\n", ran=self.ran)


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> type[_Played]:
    made = type("Played", (_Played,), {"asked": [], "codes": {}})
    monkeypatch.setattr(handed, "Player", made)
    monkeypatch.setattr(handed, "existing", lambda spec: object())
    monkeypatch.setattr(handed, "require_box", lambda without: None)
    return made


def test_it_fails_where_the_failure_is_and_not_where_it_is_not(
    played: type[_Played],
) -> None:
    played.codes = {"0.23.0": [1], "0.32.0": [0]}
    said = run_by_hand("the script", BAD, "0.32.0", str)
    assert said.endswith(
        "with vllm 0.23.0, the script shows the failure; with 0.32.0 it does not."
    )
    assert played.asked == ["0.23.0", "0.32.0"]


@pytest.mark.parametrize("codes", [{"0.23.0": [0]}, {"0.23.0": [1], "0.32.0": [1]}])
def test_one_that_tells_nothing_apart_is_not_handed_out(
    played: type[_Played], codes: dict[str, list[int]]
) -> None:
    played.codes = codes
    with pytest.raises(NotConfirmed, match="it said so"):
        run_by_hand("the script", BAD, "0.32.0" if len(codes) > 1 else "", str)


def test_what_comes_and_goes_is_tried_again(played: type[_Played]) -> None:
    played.codes = {"0.23.0": [0, 1]}
    said = run_by_hand("the script", BAD, "", str, always=False)
    assert "no release without it was named" in said


def test_a_server_that_does_not_start_confirms_nothing(played: type[_Played]) -> None:
    played.codes, played.ran = {"0.23.0": [0]}, False
    with pytest.raises(NotConfirmed, match="does not start"):
        run_by_hand("the script", BAD, "", str)


def test_without_its_environment_it_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handed, "existing", lambda spec: None)
    assert run_by_hand("the script", BAD, "", str) == ""


def test_without_a_box_it_is_not_run(
    played: type[_Played], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(without: str) -> None:
        raise NoBox("there is none")

    monkeypatch.setattr(handed, "require_box", refuse)
    assert "there is no box here" in run_by_hand("the script", BAD, "", str)
    assert played.asked == []
