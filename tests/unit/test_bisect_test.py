"""A test of the engine's own tree as what a bisection runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from mmrepro.base.errors import UsageError
from mmrepro.campaign import TrialOptions
from mmrepro.campaign.bisect import (
    TESTS_FILE,
    BisectCommand,
    BisectRunCommand,
    UpstreamSubject,
    newest_end,
)
from mmrepro.cli import test_tree as test_tree_module
from mmrepro.cli.app import app
from mmrepro.failure.documents import Cell, Lost
from mmrepro.failure.signature import Outcome
from mmrepro.runs import UpstreamRun, UpstreamState, UpstreamTest
from mmrepro.runs.tree_tests import summed
from typer.testing import CliRunner

TEST = "tests/v1/test_a.py::test_x"
LABEL = "0.27.1.dev0+gf1e921b6d.srcee376483f675.on.0.27.1"


def seen(state: str, cause: str | None = None) -> UpstreamRun:
    test = UpstreamTest.model_validate(
        {"test": TEST, "state": state, "cause": cause, "why": f"it is {state}"}
    )
    return summed(LABEL, [test], 2.0)


@pytest.mark.parametrize(
    ("made", "outcome"),
    [
        (seen("red"), Outcome.REPRODUCED),
        (seen("green"), Outcome.NOT_REPRODUCED),
        (seen("untestable", "gpu"), Outcome.INCONCLUSIVE),
        (seen("untestable", "skipped"), Outcome.INCONCLUSIVE),
    ],
)
def test_the_verdict_is_that_of_the_document(
    tmp_path: Path, made: UpstreamRun, outcome: Outcome
) -> None:
    (tmp_path / TESTS_FILE).write_text(made.model_dump_json())
    making = UpstreamSubject((TEST,), tmp_path, "HEAD").making()
    found = making.outcome(tmp_path, 0, "")
    assert found["outcome"] is outcome
    if made.cause:
        assert str(found["explanation"]).startswith(f"untestable ({made.cause.value})")


def test_without_a_document_nothing_is_known(tmp_path: Path) -> None:
    making = UpstreamSubject((TEST,), tmp_path).making()
    assert making.outcome(tmp_path, 4, "no disk")["lost"] is Lost.INFRASTRUCTURE
    assert making.outcome(tmp_path, 2, "no such test")["lost"] is Lost.USAGE


def test_the_command_of_a_commit(tmp_path: Path) -> None:
    making = UpstreamSubject((TEST,), tmp_path, "HEAD").making()
    cell = Cell(scenario="test-1", engine="vllm", device="cpu", release=LABEL)
    made = making.command(cell, TrialOptions(timeout_s=90.0))
    assert made.tree == f"{tmp_path}@f1e921b6d"
    line = made.command_line()
    for words in ("test-tree", TEST, "--test-from HEAD", f"--release {LABEL}"):
        assert words in line
    released = Cell(scenario="test-1", engine="vllm", device="cpu", release="0.23.0")
    with pytest.raises(UsageError, match=r"and 0\.23\.0 is a release"):
        making.command(released, TrialOptions())


def test_the_file_is_that_of_the_newer_end() -> None:
    clone = Path("x")
    for find, ends, newer in (
        ("fixed", {"good": "v2"}, "v2"),
        ("introduced", {"bad": "v3", "good": "v1"}, "v3"),
        ("fixed", {}, "HEAD"),
        ("both", {"bad": "v1"}, "HEAD"),
    ):
        asked = BisectCommand(test=(TEST,), clone=clone, find=find, **ends)  # type: ignore[arg-type]
        assert newest_end(asked) == newer
    asked = BisectCommand(test=(TEST,), clone=clone, newer="abc")
    assert newest_end(asked) == "abc"
    assert f"--test {TEST}" in asked.command_line()
    with pytest.raises(UsageError, match="a test of a tree"):
        BisectCommand(test=(TEST,))
    assert BisectRunCommand(test=(TEST,)).source == "."


def test_what_is_bisected_is_one_of_both(tmp_path: Path) -> None:
    for words in (
        ["bisect", "ghost-key-eviction", "--test", TEST, "--source", str(tmp_path)],
        ["bisect-run", "ghost-key-eviction", "--test", TEST],
        ["bisect"],
        ["bisect-run"],
    ):
        done = CliRunner().invoke(app, words)
        assert isinstance(done.exception, UsageError), words
        assert "--test" in f"{done.exception} {done.exception.hint}"


@pytest.mark.parametrize(
    ("state", "code"), [("green", 0), ("red", 1), ("untestable", 3)]
)
def test_one_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, code: int
) -> None:
    monkeypatch.setattr(test_tree_module, "tested", lambda asked: seen(state))
    out = tmp_path / "out"
    done = CliRunner().invoke(app, ["test-tree", TEST, "--out", str(out), "--json"])
    assert done.exit_code == code
    kept = json.loads((out / TESTS_FILE).read_text())
    assert kept["state"] == json.loads(done.stdout)["state"] == UpstreamState(state)
