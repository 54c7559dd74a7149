"""Real children: what they print is kept, a late one is ended, an environment is built once."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from mmrepro.accept import provide, running
from mmrepro.accept.provide import Provider
from mmrepro.accept.running import Place
from mmrepro.accept.steps import Child, Ended, Needs
from mmrepro.campaign.child import spawn_program

VLLM, MINIVLLM = Needs("vllm", "0.23.0"), Needs("minivllm", "0.1")


def run(tmp_path: Path, child: Child, limit_s: float = 60.0) -> Ended:
    return running.run(
        child,
        "cpu",
        Place(tmp_path, "it"),
        python=Path(sys.executable),
        limit_s=limit_s,
        before={},
        variables={"CUDA_VISIBLE_DEVICES": "3"},
    )


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A reproducer of our own, from its code."""

    def made(code: str) -> Child:
        file = tmp_path / "reproducer.py"
        file.write_text(code)
        monkeypatch.setattr(Child, "file", property(lambda self: file))
        return Child(("reproducer.py",), script=True)

    return made


def test_what_a_child_prints_is_kept_and_read(tmp_path: Path) -> None:
    ended = run(tmp_path, Child(("check",), device_option=False))
    assert ended.exit_code in (0, 4)
    assert ended.document["parts"]
    assert (tmp_path / "it.out").is_file()


def test_a_script_gets_the_device_and_the_gpu_that_is_taken(tmp_path: Path, script: Any) -> None:
    code = (
        "import json, os, sys\n"
        "print(json.dumps({'words': sys.argv[1:], 'gpu': os.environ['CUDA_VISIBLE_DEVICES']}))\n"
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


def test_an_interrupted_child_is_ended(
    tmp_path: Path, script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        monkeypatch.undo()
        raise KeyboardInterrupt

    child = script("import time; time.sleep(600)")
    monkeypatch.setattr(subprocess.Popen, "wait", interrupted)
    before = {process.pid for process in psutil.Process().children()}
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, child)
    assert {process.pid for process in psutil.Process().children()} <= before


# ------------------------------------------------------------------ environments


class Builder:
    """In the place of ``mmrepro env create``: ends with an exit code and words on stderr."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, code: int, words: str = "") -> None:
        self.asked: list[str] = []
        self.variables: dict[str, str] = {}
        self.there: set[str] = set()
        monkeypatch.setattr(provide, "existing", self.existing)
        monkeypatch.setattr(provide, "spawn", self.spawn)
        self.code, self.words = code, words

    def existing(self, spec: Any) -> Any:
        class Environment:
            python = Path("/env") / spec.engine

        return Environment if spec.engine in self.there else None

    def spawn(self, words: Sequence[str], variables: dict[str, str], **more: Any) -> Any:
        self.asked.append(" ".join(words))
        self.variables = variables
        if not self.code:
            self.there.add(words[2])
        code = f"import sys; sys.stderr.write({self.words!r}); sys.exit({self.code})"
        return spawn_program([sys.executable, "-c", code], variables, **more)


def test_the_first_environment_that_is_there_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = Builder(monkeypatch, 4)
    builder.there = {"vllm"}
    assert Provider("cpu").get((MINIVLLM, VLLM), 0.0).python == Path("/env/vllm")
    assert builder.asked == []


def test_a_missing_one_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = Builder(monkeypatch, 0)
    assert Provider("cuda").get((VLLM,), 1000.0).python == Path("/env/vllm")
    assert builder.asked == ["env create vllm 0.23.0 --device cuda"]


def test_without_an_index_it_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UV_HTTP_TIMEOUT", raising=False)
    words = "building…\nThe package index could not be reached.\nNext: check the network\n"
    builder = Builder(monkeypatch, 4, words)
    provider = Provider("cuda")
    for _ in range(3):
        found = provider.get((VLLM,), 1000.0)
        assert found.python is None
        assert found.why_not == (
            "no environment of vllm 0.23.0 for cuda is here: The package index could not be "
            "reached."
        )
        assert not found.over_budget
    assert len(builder.asked) == 1
    assert builder.variables["UV_HTTP_TIMEOUT"] == "15", "it is to say so soon"


def test_what_cannot_be_built_in_time_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = Builder(monkeypatch, 0)
    found = Provider("cuda").get((VLLM,), 100.0)
    assert found.python is None
    assert found.over_budget
    assert found.why_not.startswith("the budget: ")
    assert builder.asked == []


def test_a_release_that_is_none_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    Builder(monkeypatch, 4, "It has none.")
    assert "minivllm" in Provider("cpu").get((Needs("minivllm", "9.9"),), 1000.0).why_not
