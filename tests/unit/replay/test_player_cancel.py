"""A player that is told to end breaks off what it starts, in whatever thread."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from fake_plays import SERVER
from mmrepro.base.errors import EngineStartError, InfrastructureError
from mmrepro.runs.judge import Deadlines
from mmrepro.runs.play.options import PlayOptions
from mmrepro.runs.play.player import Player
from mmrepro.traffic.case import Case, PlayState


def test_a_start_in_another_thread_is_broken_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, ended = threading.Event(), list[type[BaseException]]()

    def never_ready(*_: object) -> Any:
        begun.set()
        while True:
            time.sleep(0.01)

    player = Player(SERVER, folder=tmp_path)
    monkeypatch.setattr(player, "_start", never_ready)

    def start() -> None:
        try:
            player._started(None, None, None, None)  # type: ignore[arg-type]
        except BaseException as error:
            ended.append(type(error))

    thread = threading.Thread(target=start)
    thread.start()
    assert begun.wait(20)
    player.cancel()
    thread.join(20)
    assert ended == [KeyboardInterrupt]
    with pytest.raises(KeyboardInterrupt):
        player._started(None, None, None, None)  # type: ignore[arg-type]


def test_a_thread_that_starts_nothing_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    player, starting = Player(SERVER, folder=tmp_path), list[set[int]]()
    monkeypatch.setattr(
        player, "_start", lambda *_: starting.append(set(player._starting))
    )
    player._started(None, None, None, None)  # type: ignore[arg-type]
    assert starting == [{threading.get_ident()}]
    assert player._starting == set()
    player.cancel()


@pytest.mark.parametrize("needs_fit", [True, False])
def test_code_that_a_tree_lacks_is_an_error_or_a_failed_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, needs_fit: bool
) -> None:
    lack = "The tree imports orjson, which 0.32.0 does not have."
    player = Player(SERVER, folder=tmp_path)

    def fails(scenario: Any, options: Any, resolved: Any, journal: Any) -> Any:
        player._environments[resolved] = None  # type: ignore[assignment]
        raise EngineStartError("The server did not start.")

    monkeypatch.setattr(player, "_started", fails)
    monkeypatch.setattr("mmrepro.runs.play.player.lent_misfit_in", lambda *_: lack)
    case = Case(server=SERVER, operations=[])
    options = PlayOptions(Deadlines(1.0, 1.0), needs_fit=needs_fit)
    if needs_fit:
        with pytest.raises(InfrastructureError, match="imports orjson"):
            player.play(case, None, options, tmp_path / "play")
    else:
        played = player.play(case, None, options, tmp_path / "play")
        assert played.state is PlayState.START_FAILED
