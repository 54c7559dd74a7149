"""How the plugin runs cells: interrupted from outside, and beside others."""

import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import plugin_fakes
import pytest
from matrix_nights import FakeProvisions
from mmrepro.campaign.schedule import groups_of
from mmrepro.campaign.trial import TrialOptions
from mmrepro.failure.documents.ledger import Cell, Planned
from mmrepro.failure.signature import Outcome
from mmrepro.pytest_plugin import running

CELL = Cell(
    scenario="ghost-key-eviction", engine="vllm", release="0.23.0", device="cpu"
)
PLANNED = Planned(night="n", cell=CELL, expected=Outcome.REPRODUCED)
(GROUP,) = groups_of([PLANNED])


class Late(Exception):
    """As of pytest-timeout: raised in the main thread, by a signal."""


class Endless(plugin_fakes.RecordingTrials):
    """Its first run lasts until it is stopped, and has a signal sent at its
    beginning."""

    first = True

    def __init__(self, options: TrialOptions) -> None:
        super().__init__(options, {"0.23.0": ["reproduced"]})
        self._released = threading.Event()

    def run(self, *arguments: Any, **named: Any) -> Any:
        if type(self).first:
            type(self).first = False
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
            assert self._released.wait(30), "nobody stopped it"
        return super().run(*arguments, **named)

    def stop(self) -> None:
        super().stop()
        self._released.set()


@pytest.fixture
def late() -> Iterator[None]:
    def handler(*_: object) -> None:
        raise Late

    before = signal.signal(signal.SIGUSR1, handler)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.usefixtures("late")
def test_what_interrupts_a_run_ends_it_and_the_next_one_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made: list[Endless] = []
    provided: list[FakeProvisions] = []

    def trials(options: TrialOptions) -> Endless:
        made.append(Endless(options))
        return made[-1]

    def provisions(*_: object) -> FakeProvisions:
        provided.append(FakeProvisions())
        return provided[-1]

    monkeypatch.setattr(Endless, "first", True)
    monkeypatch.setattr(running, "Trials", trials)
    monkeypatch.setattr(running, "Provisions", provisions)
    runs = running.Runs(running.How(tmp_path, "n", TrialOptions()))
    with pytest.raises(Late):
        runs.run(GROUP, PLANNED)
    assert made[0].stopped
    assert provided[0].told[-1] == "done 0.23.0"
    assert "stop" in provided[0].told
    (attempt,) = runs.run(GROUP, PLANNED)
    assert attempt.outcome is Outcome.REPRODUCED
    assert len(made) == len(provided) == 2
    assert "stop" not in provided[1].told
    runs.close()
    assert provided[1].told[-3:] == ["stop", "cold", "done 0.23.0"]


@pytest.mark.parametrize("count", [1, 2])
def test_turns(tmp_path: Path, count: int) -> None:
    entered = threading.Event()

    def enter() -> None:
        with running.turn(tmp_path, count):
            entered.set()

    other = threading.Thread(target=enter)
    with running.turn(tmp_path, count):
        other.start()
        assert entered.wait(10 if count == 2 else 3 * running.POLL_S) is (count == 2)
    other.join(10)
    assert entered.is_set()
