"""`nightly.py issues` with a fake `gh`: what it does, and what it leaves when `gh`
fails."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_nights import cell, night, written
from night_documents import Script

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / ".ci" / "nightly" / "nightly.py"
CELLS = [cell("0.23.0", f"ghost-{n}") for n in range(3)]
FINE, GONE = dict.fromkeys(CELLS, "r"), dict.fromkeys(CELLS, "l")


@pytest.fixture
def gh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], dict[str, Any]]:
    """The fake's state; it stands first on the PATH."""
    (tmp_path / "bin").mkdir()
    fake = tmp_path / "bin" / "gh"
    shutil.copy(Path(__file__).with_name("fake_gh.py"), fake)
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_GH", str(tmp_path / "gh.json"))
    monkeypatch.setenv("MMREPRO", f"{sys.executable} -m mmrepro")

    def state() -> dict[str, Any]:
        return json.loads((tmp_path / "gh.json").read_text())  # type: ignore[no-any-return]

    return state


@pytest.fixture
def run(script: Script) -> Callable[..., str]:
    """``nightly.py issues FOLDER …``: what it prints."""

    def call(folder: Path, *arguments: str, code: int = 0) -> str:
        ended, text = script("issues", folder, *arguments)
        assert ended == code, text
        return text

    return call


def open_of(state: dict[str, Any]) -> list[int]:
    return [one["number"] for one in state["issues"] if one["state"] == "OPEN"]


def test_they_are_opened_rewritten_and_closed(
    tmp_path: Path, gh: Callable[[], dict[str, Any]], run: Callable[..., str]
) -> None:
    two = [night(1, FINE), night(2, GONE)]
    lost = written(tmp_path / "two", *two, ago=0)
    said = run(lost, "--dry-run")
    assert said.count("would open: coverage lost: ghost-") == 3
    assert gh()["issues"] == gh()["labels"] == []

    said = run(lost, "--run-url", "https://github.com/o/r/actions/runs/1")
    assert said.count("open: coverage lost: ghost-") == 3
    assert open_of(gh()) == [1, 2, 3]
    first = gh()["issues"][0]["body"]
    assert "[The run that says so](<https://github.com/o/r/actions/runs/1>)" in first
    assert "**Night n2:** no verdict (lost, 1 × lost (infrastructure))" in first
    assert run(lost) == "nothing is to be done\n"

    third = written(tmp_path / "three", *two, night(3, {**GONE, CELLS[0]: "r"}), ago=0)
    said = run(third)
    assert said.splitlines()[0].startswith("close #1")
    assert (said.count("update #"), len(said.splitlines())) == (2, 3)
    state = gh()
    assert open_of(state) == [2, 3]
    assert [len(one["comments"]) for one in state["issues"]] == [1, 0, 0]
    assert "it has a verdict again" in state["issues"][0]["comments"][0]
    assert "**Night n3:** no verdict" in state["issues"][1]["body"]
    assert run(third) == "nothing is to be done\n"


@pytest.mark.parametrize("at", [2, 6])
def test_where_gh_fails_the_rest_is_left_and_the_next_night_heals(
    tmp_path: Path,
    gh: Callable[[], dict[str, Any]],
    run: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    at: int,
) -> None:
    """Calls: two lists, the labels and a new one, three issues."""
    folder = written(tmp_path / "two", night(1, FINE), night(2, GONE), ago=0)
    monkeypatch.setenv("FAKE_GH_FAILS", str(at))
    said = run(folder, code=4)
    assert "the rest is left undone: error connecting to api.github.com" in said
    assert len(gh()["calls"]) == at, "nothing is tried twice, nothing comes after it"
    assert len(gh()["issues"]) == max(0, at - 5)
    monkeypatch.delenv("FAKE_GH_FAILS")
    run(folder)
    assert open_of(gh()) == [1, 2, 3]


def test_only_so_many_are_opened_and_closed_by_hand_they_stay_closed(
    tmp_path: Path, gh: Callable[[], dict[str, Any]], run: Callable[..., str]
) -> None:
    folder = written(tmp_path / "two", night(1, FINE), night(2, GONE), ago=0)
    said = run(folder, "--max-new", "2")
    assert (
        "1 more are to be opened and wait for the next night: coverage lost: ghost-2"
        in said
    )
    state = gh()
    assert open_of(state) == [1, 2]
    state["issues"][1]["state"] = "CLOSED"
    (tmp_path / "gh.json").write_text(json.dumps(state))
    assert run(folder, "--max-new", "2").startswith("open: coverage lost: ghost-2")
    assert open_of(gh()) == [1, 3]


def test_a_night_that_is_missing_has_one(
    tmp_path: Path, gh: Callable[[], dict[str, Any]], run: Callable[..., str]
) -> None:
    folder = written(tmp_path / "old", night(1, FINE), ago=40)
    assert "open: night missing: none since n1" in run(folder)
    assert "and is complete; the next one was due on " in gh()["issues"][0]["body"]
    assert run(folder) == "nothing is to be done\n"


def test_its_token_is_not_handed_on(
    tmp_path: Path,
    gh: Callable[[], dict[str, Any]],
    run: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spy = tmp_path / "spy.py"
    spy.write_text(
        "import json, os, pathlib\n"
        "pathlib.Path(os.environ['FAKE_GH']).with_name('seen').write_text(' "
        "'.join(os.environ))\n"
        "names = ('nights', 'concerns', 'cells', 'events', 'notes', 'warning')\n"
        "print(json.dumps({name: [] for name in names}))\n"
    )
    monkeypatch.setenv("MMREPRO", f"{sys.executable} {spy}")
    monkeypatch.setenv("GH_TOKEN", "secret")
    monkeypatch.setenv("GITHUB_TOKEN", "secret")
    words = [sys.executable, str(SCRIPT), "issues", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    seen = (tmp_path / "seen").read_text().split()
    assert "FAKE_GH" in seen
    assert not {"GH_TOKEN", "GITHUB_TOKEN"} & set(seen)


def test_a_folder_without_a_ledger(
    tmp_path: Path, gh: Callable[[], dict[str, Any]], run: Callable[..., str]
) -> None:
    assert "holds no ledger.jsonl" in run(tmp_path, code=2)
