"""What a worker does with an order, without Ray."""

import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from fake_player import FakePlayer
from fake_plays import SERVER, fake_case, fake_op
from filelock import FileLock
from matrix_nights import FakeProvisions, FakeTrials, planned
from mmrepro.base.machine.files import CACHE_VARIABLE
from mmrepro.campaign.cluster import remote
from mmrepro.campaign.cluster.remote import (
    Engines,
    Greeting,
    Parcel,
    Said,
    carry_out,
    greet,
    unpacked,
    with_incident,
)
from mmrepro.campaign.schedule import groups_of
from mmrepro.campaign.trial import TrialOptions, Trials
from mmrepro.campaign.work import CellsUntilWhole, StartedRun, Workplace
from mmrepro.failure.documents.ledger import Attempt, Cell, Lost
from mmrepro.failure.signature import Outcome
from mmrepro.runs.play.options import Servers
from mmrepro.runs.play.players import Players
from mmrepro.search.replay.attempts import CaseResult, CaseRun

CELLS = [planned(name, "0.1") for name in ("a", "b")]
ORDER = CellsUntilWhole("n1", groups_of(CELLS)[0], {}, {}, {}, repeat=1, confirm=1)


@pytest.fixture(autouse=True)
def as_in_a_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder below the cache; signals are as before afterwards."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    # What the worker was started with is this test's own.
    monkeypatch.setattr(remote, "started_with", lambda: dict(os.environ))
    before = signal.getsignal(signal.SIGCHLD)
    yield tmp_path / "cache" / remote.FOLDER
    signal.signal(signal.SIGCHLD, before)


@dataclass
class FakeOutfit:
    made: FakeTrials
    provided: FakeProvisions
    machines: list[str]

    def here(
        self, machine: str, campaign: str, say: Callable[[str], None]
    ) -> Workplace:
        self.machines.append(machine)
        say(f"fetching for {campaign}")
        return Workplace(self.made, self.provided, machine)


def outfit(**more: object) -> FakeOutfit:
    return FakeOutfit(
        FakeTrials(lambda cell, index: Outcome.REPRODUCED, **more),  # type: ignore[arg-type]
        FakeProvisions(),
        [],
    )


def test_each_run_is_told_and_its_incident_comes_before_its_attempt(
    as_in_a_worker: Path, tmp_path: Path
) -> None:
    one = outfit()
    sent = list(carry_out(ORDER, one, "alpha"))
    assert sent.pop(0) == Said("fetching for n1")
    assert [type(item) for item in sent] == [StartedRun, Parcel, Attempt] * 2
    assert one.machines == ["alpha"]
    assert one.provided.told[0] == "expect 1"
    parcel = sent[1]
    assert isinstance(parcel, Parcel)
    unpacked(parcel.data, tmp_path / "here")
    assert [p.name for p in (tmp_path / "here").iterdir()] == ["whole"]
    assert [p for p in as_in_a_worker.iterdir() if p.is_dir()] == []


def test_a_run_finds_none_of_rays_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_JOB_ID", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    seen: list[dict[str, str]] = []
    one = outfit(during=lambda cell, index: seen.append(dict(os.environ)))
    list(carry_out(ORDER, one, "alpha"))
    assert len(seen) == 2
    assert not [name for name in seen[0] if name.startswith("RAY_")]
    assert seen[0].get("CUDA_VISIBLE_DEVICES", "") == ""
    assert os.environ["RAY_JOB_ID"] == "1", "Ray's own again"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "2"


@pytest.mark.parametrize("how", ["closed", "interrupted"])
def test_what_is_in_progress_is_ended_when_ray_cancels(
    as_in_a_worker: Path, how: str
) -> None:
    begun, ended = threading.Event(), threading.Event()

    def during(cell: Cell, index: int) -> None:
        begun.set()
        assert ended.wait(20)

    class Ending(FakeTrials):
        def stop(self) -> None:
            super().stop()
            ended.set()

    one = FakeOutfit(
        Ending(lambda cell, index: Outcome.REPRODUCED, during), FakeProvisions(), []
    )
    working = carry_out(ORDER, one, "alpha")
    assert isinstance(next(working), Said)
    assert isinstance(next(working), StartedRun)
    assert begun.wait(20)
    if how == "closed":
        working.close()
    else:
        # As Ray does it: raised between two instructions of the main thread, which
        # waits here.
        threading.Timer(0.1, signal.raise_signal, [signal.SIGINT]).start()
        with pytest.raises(KeyboardInterrupt):
            next(working)
    assert one.made.stopped
    assert "stop" in one.provided.told
    assert one.made.made == [], "the run did not end by itself"
    assert [p for p in as_in_a_worker.iterdir() if p.is_dir()] == []
    assert not [t for t in threading.enumerate() if t.name == "mmrepro-order"]


def test_what_fails_there_is_raised_here() -> None:
    def during(cell: Cell, index: int) -> None:
        raise OSError(28, "No space left on device")

    working = carry_out(ORDER, outfit(during=during), "alpha")
    assert isinstance(next(working), Said)
    assert isinstance(next(working), StartedRun)
    with pytest.raises(OSError, match="No space"):
        next(working)


def test_what_killed_workers_left_goes_and_what_others_use_stays(
    as_in_a_worker: Path,
) -> None:
    dead, used = as_in_a_worker / "dead", as_in_a_worker / "used"
    for folder in (dead, used):
        (folder / "incidents").mkdir(parents=True)
    with FileLock(used / remote.LOCK):
        list(carry_out(ORDER, outfit(), "alpha"))
        assert used.exists()
    assert not dead.exists()


def test_an_incident_that_cannot_be_sent_makes_a_lost_run(tmp_path: Path) -> None:
    trials = FakeTrials(lambda cell, index: Outcome.REPRODUCED)
    run = {"night": "n1", "index": 1, "role": "planned"}
    done = trials.run(CELLS[0].cell, tmp_path / "i" / "run-1", tmp_path, **run)  # type: ignore[arg-type]
    (tmp_path / done.incident / "large").write_bytes(b"")
    os.truncate(tmp_path / done.incident / "large", 2**30)  # takes no room on the disk
    (told,) = with_incident(done, ORDER, tmp_path)
    assert isinstance(told, Attempt)
    assert (told.lost, told.outcome, told.incident) == (Lost.INFRASTRUCTURE, None, "")
    assert "1 GiB" in told.error
    assert (told.cell, told.index, told.created) == (done.cell, 1, done.created)
    assert not (tmp_path / done.incident).exists()


def test_a_greeting_tells_code_apart(tmp_path: Path) -> None:
    own = tmp_path / "mine.py"
    source = Path(next(iter(__import__("mmrepro.scenarios").scenarios.__path__)))
    own.write_text((source / "mm_prefill_contract.py").read_text())
    first = Greeting.model_validate_json(
        greet(["borrowed-faults", str(own), "no-such"])
    )
    assert first.code["mmrepro"]
    assert first.code["borrowed-faults"]
    assert first.code[str(own)]
    assert first.code["no-such"] == ""
    own.write_text(own.read_text() + "\n")
    child = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from mmrepro.campaign.cluster.remote import greet; "
            "print(greet(sys.argv[1:]))",
            "borrowed-faults",
            str(own),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    second = Greeting.model_validate_json(child.stdout)
    assert second.code[str(own)] != first.code[str(own)]
    assert second.code["borrowed-faults"] == first.code["borrowed-faults"]


def test_each_machine_keeps_its_own_bound_of_the_disk(as_in_a_worker: Path) -> None:
    as_in_a_worker.mkdir(parents=True)
    engines = Engines(TrialOptions(), disk=10**9)
    here = engines.here("alpha", "n1", print)
    assert (as_in_a_worker / "disk-n1.json").is_file()
    assert isinstance(here.trials, Trials)
    assert (here.machine, here.trials.options.machine) == ("alpha", "alpha")


def test_an_attempt_at_a_case_is_made_there_and_its_files_come_before_its_result(
    as_in_a_worker: Path, tmp_path: Path
) -> None:
    player = FakePlayer(lambda case: {op.id: "200" for op in case.operations})

    class Replays(FakeOutfit):
        def here(self, machine: str, *more: Any) -> Workplace:
            players = Players(make=lambda *_: player)
            return replace(super().here(machine, *more), players=players)

    case = fake_case([fake_op("r1")])
    order = CaseRun("whole/1", "whole", Servers(SERVER), "plays/0001", case, tmp_path)
    one = Replays(**vars(outfit()))
    sent = list(carry_out(pickle.loads(pickle.dumps(order)), one, "alpha"))
    began, parcel, made = sent[-3:]
    assert began == order.began
    assert isinstance(parcel, Parcel)
    assert isinstance(made, CaseResult)
    assert (made.place, made.machine, player.plays) == ("plays/0001", "alpha", 1)
    assert made.played is not None
