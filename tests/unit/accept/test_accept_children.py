"""Real children: what they print is kept, a late one is ended, an environment is built
once."""

import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from matrix_nights import FakeTrials
from mmrepro.base.machine.files import Device
from mmrepro.campaign import provisions
from mmrepro.campaign.accept import running
from mmrepro.campaign.accept.judging import (
    Child,
    Ended,
    Judged,
    Needs,
    Part,
    Step,
    broken_off,
)
from mmrepro.campaign.accept.running import StepRun
from mmrepro.campaign.provisions import Provisions
from mmrepro.campaign.trial import TrialOptions, spawn_program
from mmrepro.campaign.work import Began, Here
from mmrepro.failure.documents.acceptance import StepRecord
from mmrepro.failure.signature import Outcome

VLLM, MINIVLLM = Needs("vllm", "0.23.0"), Needs("minivllm", "0.1")


class Environment:
    python = Path(sys.executable)


def a_place(say: Any = None) -> Here:
    trials = FakeTrials(lambda cell, index: Outcome.REPRODUCED)
    return Here(trials, Provisions(TrialOptions(), None, say), clock=lambda: 0.0)


def carried_out(
    folder: Path,
    child: Child,
    here: Here,
    limit_s: float = 60.0,
    until: float = 1000.0,
    device: Device = "cpu",
) -> tuple[StepRecord, list[Ended]]:
    """The step's record, and what its judge was given."""
    judged: list[Ended] = []

    def judge(ended: Ended) -> Judged:
        judged.append(ended)
        return broken_off("it", "")

    before = Step("before", "before", child, judge, 1.0, limit_s)
    step = Step("it", "it", child, judge, 1.0, limit_s)
    part = Part("part", "", (before, step))
    order = StepRun(
        Began("part/it", 1), part, step, device, {"CUDA_VISIBLE_DEVICES": "3"}, until
    )
    *_, record = order.carry_out(here, folder)
    assert isinstance(record, StepRecord)
    return record, judged


def run(folder: Path, child: Child, limit_s: float = 60.0) -> Ended:
    return carried_out(folder, child, a_place(), limit_s)[1][0]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A reproducer of our own, from its code."""

    def made(code: str) -> Child:
        file = tmp_path / "reproducer.py"
        file.write_text(code)
        monkeypatch.setattr(Child, "file", property(lambda self: file))
        monkeypatch.setattr(running, "existing", lambda spec: Environment)
        return Child(("reproducer.py",), (MINIVLLM,), script=True)

    return made


def test_what_a_child_prints_is_kept_and_read(tmp_path: Path) -> None:
    ended = run(tmp_path, Child(("check",), device_option=False))
    assert ended.exit_code in (0, 4)
    assert ended.document["parts"]
    assert (tmp_path / "part/it.out").is_file()


def test_a_script_gets_the_device_and_the_gpu_that_is_taken(
    tmp_path: Path, script: Any
) -> None:
    code = (
        "import json, os, sys\n"
        "print(json.dumps({'words': sys.argv[1:], 'gpu': "
        "os.environ['CUDA_VISIBLE_DEVICES']}))\n"
        "sys.exit('last words')\n"
    )
    ended = run(tmp_path, script(code))
    assert ended.document == {"words": ["--device", "cpu", "--json"], "gpu": "3"}
    assert ended.exit_code == 1
    assert ended.words == "last words"


@pytest.mark.parametrize("printed", ["", "{", "[1]", "all well"])
def test_what_is_no_document_is_none(tmp_path: Path, script: Any, printed: str) -> None:
    assert run(tmp_path, script(f"print({printed!r})")).document == {}


def test_a_late_child_is_ended(tmp_path: Path, script: Any) -> None:
    began = time.monotonic()
    ended = run(tmp_path, script("import time; time.sleep(600)"), limit_s=0.5)
    assert ended.exit_code is None
    assert time.monotonic() - began < 20


def test_a_child_that_is_stopped_is_ended_and_leaves_no_record(
    tmp_path: Path, script: Any
) -> None:
    here = a_place()
    child = script("import time; print('{}', flush=True); time.sleep(600)")
    before = {process.pid for process in psutil.Process().children()}
    caught: list[BaseException] = []

    def work() -> None:
        try:
            carried_out(tmp_path, child, here)
        except KeyboardInterrupt as error:
            caught.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    printed = tmp_path / "part/it.out"
    while not (printed.is_file() and printed.read_text()):
        assert thread.is_alive()
        time.sleep(0.01)
    here.stop()
    thread.join(20)
    assert caught
    assert {process.pid for process in psutil.Process().children()} <= before


def test_a_step_sees_what_those_before_it_printed(tmp_path: Path, script: Any) -> None:
    (tmp_path / "part").mkdir()
    (tmp_path / "part/before.out").write_text('{"masks": []}')
    assert run(tmp_path, script("")).before == {"before": {"masks": []}}


# ------------------------------------------------------------------ environments


class Builder:
    """In the place of ``mmrepro env create``: ends with an exit code and words on
    stderr."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, code: int, words: str = ""
    ) -> None:
        self.asked: list[str] = []
        self.there: set[str] = set()
        self.said: list[str] = []
        for module in (running, provisions):
            monkeypatch.setattr(module, "existing", self.existing)
        monkeypatch.setattr(provisions, "spawn", self.spawn)
        self.code, self.words = code, words
        self.here = a_place(self.said.append)

    def existing(self, spec: Any) -> Any:
        return Environment if spec.engine in self.there else None

    def spawn(
        self, words: Sequence[str], variables: dict[str, str], **more: Any
    ) -> Any:
        self.asked.append(" ".join(words))
        if not self.code:
            self.there.add(words[2])
        code = f"import sys; sys.stderr.write({self.words!r}); sys.exit({self.code})"
        return spawn_program([sys.executable, "-c", code], variables, **more)

    def get(
        self,
        folder: Path,
        *needs: Needs,
        until: float = 1000.0,
        device: Device = "cuda",
    ) -> StepRecord:
        child = Child(("device_trial.py",), needs, script=True)
        return carried_out(folder, child, self.here, 60.0, until, device)[0]


def test_the_first_environment_that_is_there_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = Builder(monkeypatch, 4)
    builder.there = {"vllm"}
    assert builder.get(tmp_path, MINIVLLM, VLLM, until=10.0).exit_code is not None
    assert builder.asked == []


def test_a_missing_one_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = Builder(monkeypatch, 0)
    assert builder.get(tmp_path, VLLM).exit_code is not None
    assert builder.asked == ["env create vllm 0.23.0 --device cuda"]
    assert builder.said == ["fetching vllm 0.23.0 (cuda)"]


def test_without_an_index_it_is_asked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (
        "building…\nThe package index could not be reached.\nNext: check the network\n"
    )
    builder = Builder(monkeypatch, 4, words)
    for _ in range(3):
        found = builder.get(tmp_path, VLLM)
        assert found.exit_code is None
        assert found.rows[0].seen == (
            "no environment of vllm 0.23.0 (cuda) is here: The package index could not "
            "be reached."
        )
        assert not found.over_budget
    assert len(builder.asked) == 1


def test_a_build_that_is_late_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = Builder(monkeypatch, 4)
    monkeypatch.setattr(running, "BUILD_ESTIMATE_S", 0.0)
    slow = [sys.executable, "-c", "import time; time.sleep(600)"]
    monkeypatch.setattr(
        provisions,
        "spawn",
        lambda words, variables, **more: spawn_program(slow, variables, **more),
    )
    found = builder.get(tmp_path, VLLM, until=0.5)
    assert "was not built within 0.50 s" in found.rows[0].seen


def test_what_cannot_be_built_in_time_is_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = Builder(monkeypatch, 0)
    found = builder.get(tmp_path, VLLM, until=100.0)
    assert found.over_budget
    assert found.rows[0].seen.startswith("the budget: ")
    assert builder.asked == []


def test_a_release_that_is_none_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = Builder(monkeypatch, 4, "It has none.")
    found = builder.get(tmp_path, Needs("minivllm", "9.9"), device="cpu")
    assert "minivllm" in found.rows[0].seen
