"""A commit as a case, a patch as a commit, and the command that looks for a boundary."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from made_up_fuzz import fuzz as made_up_fuzz
from mmrepro import campaign
from mmrepro.base.errors import InfrastructureError, UsageError
from mmrepro.campaign.bisect import clone as bisect_clone, commit_of_release
from mmrepro.cli.app import app
from mmrepro.cli.repro import at_the_reported_release, bisect_words, with_commits
from mmrepro.engines.environments import patched_clone
from mmrepro.failure.documents.replay import (
    AimedChange,
    AimedFunction,
    SideDifference,
)
from mmrepro.runs import CommitReading, CommitResult, change_of, commits, read_commit
from mmrepro.runs.commits import compared, touched_by
from mmrepro.runs.tree_tests import UpstreamRun, UpstreamTest, summed
from mmrepro.search.repro.options import ReproCommand
from typer.testing import CliRunner

CODE = """\
class Scheduler:
    def step(self):
        return 1


def free():
    return None
"""


@pytest.fixture
def clone(tmp_path: Path, fixed_git: None) -> Path:
    folder = tmp_path / "clone"
    for name, text in {
        "vllm/__init__.py": "",
        "vllm/v1/core.py": CODE,
        "csrc/a.cu": "1\n",
        "tests/utils.py": "",
        "tests/v1/test_core.py": "old\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    git(folder, "init", "-q", "-b", "main")
    commit(folder, "first")
    (folder / "vllm/v1/core.py").write_text(CODE.replace("return 1", "return 2"))
    (folder / "csrc/a.cu").write_text("2\n")
    (folder / "tests/v1/test_core.py").write_text("new\n")
    (folder / "tests/utils.py").write_text("X = 1\n")
    commit(folder, "fix")
    return folder


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def commit(folder: Path, subject: str) -> None:
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", subject)


def test_what_a_commit_touches(clone: Path) -> None:
    change = change_of(clone, "HEAD")
    assert change.engine == "vllm"
    assert change.product == ("vllm/v1/core.py",)
    assert change.compiled == ("csrc/a.cu",)
    assert change.tests == ("tests/utils.py", "tests/v1/test_core.py")
    assert change.test_files == ["tests/v1/test_core.py"]
    assert touched_by(clone, change) == ["vllm/v1/core.py: step"]
    with pytest.raises(UsageError, match="HEAD~1 has no parent"):
        change_of(clone, "HEAD~1")


def run_of(**states: str) -> UpstreamRun:
    tests = []
    for name, state in states.items():
        state, _, cause = state.partition(":")
        facts: dict[str, Any] = {"test": name, "state": state, "why": state}
        facts["cause"] = cause or None
        tests.append(UpstreamTest.model_validate(facts))
    return summed("tree", tests, 1.0)


@pytest.mark.parametrize(
    ("after", "before", "result"),
    [
        ({"a": "green", "b": "green"}, {"a": "red", "b": "green"}, "turned"),
        ({"a": "green"}, {"a": "green"}, "same"),
        # What is red on both sides says nothing of the commit.
        ({"a": "red", "b": "green"}, {"a": "red", "b": "green"}, "same"),
        ({"a": "red"}, {"a": "red"}, "untestable"),
        ({"a": "untestable:hub"}, {"a": "untestable:hub"}, "untestable"),
        ({"a": "green"}, {"f": "untestable:absent"}, "absent"),
        ({"a": "green"}, {"a": "untestable:skipped"}, "untestable"),
        (
            {"a": "untestable:gpu", "b": "green"},
            {"a": "red", "b": "green"},
            "untestable",
        ),
    ],
)
def test_only_red_before_and_green_after_speaks_for_it(
    after: dict[str, str], before: dict[str, str], result: str
) -> None:
    found, why = compared(run_of(**after), run_of(**before))
    assert found == CommitResult(result)
    assert ("none of its tests is red" in why) is (
        result == "same" and "red" not in before.values()
    )


def test_a_commit_without_tests_starts_nothing(
    clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (clone / "vllm/v1/core.py").write_text(CODE)
    commit(clone, "back")
    monkeypatch.setattr(commits, "resolve_source", None)
    assert read_commit(clone, "HEAD").result is CommitResult.NONE


@pytest.mark.parametrize(("result", "code"), [("turned", 0), ("same", 3)])
def test_the_exit_code_of_a_commit(
    clone: Path, monkeypatch: pytest.MonkeyPatch, result: str, code: int
) -> None:
    def reading(place: Path, rev: str, **how: Any) -> CommitReading:
        assert (place, rev) == (clone, "HEAD~0")
        return CommitReading(
            engine="vllm",
            commit="a" * 40,
            parent="b" * 40,
            product=["vllm/v1/core.py"],
            compiled=["csrc/a.cu"],
            tests=[],
            functions=["vllm/v1/core.py: step"],
            result=CommitResult(result),
            why="why",
            turned=["tests/v1/test_core.py::t"] if code == 0 else [],
        )

    monkeypatch.setattr(commits, "read_commit", reading)
    done = CliRunner().invoke(app, ["commit", f"{clone}@HEAD~0"])
    assert done.exit_code == code
    assert "touches vllm/v1/core.py: step" in done.stdout
    assert "csrc/a.cu" in done.stdout


@pytest.mark.parametrize(("shown", "code"), [(2, 0), (1, 3)])
def test_generated_requests_speak_for_a_commit_where_each_pair_shows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: int, code: int
) -> None:
    """A FAKE session in place of the child that would start servers."""
    made = CommitReading(
        engine="vllm",
        commit="a" * 40,
        parent="b" * 40,
        product=["vllm/a.py"],
        compiled=[],
        tests=[],
        functions=["vllm/a.py: check"],
        kernels="0.24.0",
        result=CommitResult.NONE,
        why="why",
    )
    difference = SideDifference(
        id="d1",
        field="status",
        what="500 → 400",
        statement="r5: NEW answers 400 where OLD answers 500.",
        request={"method": "POST", "path": "/v1/completions", "body": {"n": 0}},
        episode=1,
        pairs=2,
        shown=shown,
    )
    functions = [
        AimedFunction(file="vllm/a.py", name="check", lines=3, entered=True, reached=2),
        AimedFunction(file="vllm/b.py", name="unseen", lines=1, missed="7"),
    ]
    asked: list[list[str]] = []

    def spawned(words: list[str], *_: Any, **how: Any) -> Any:
        asked.append(words)
        folder = Path(words[words.index("--out") + 1])
        folder.mkdir(parents=True)
        aim = AimedChange(files=["vllm/a.py"], functions=functions)
        session = made_up_fuzz(aim=aim, differences=[difference])
        (folder / "fuzz.json").write_text(session.model_dump_json())
        return SimpleNamespace(wait=lambda: 1)

    monkeypatch.setattr(commits, "read_commit", lambda *_, **how: made)
    monkeypatch.setattr(campaign, "spawn", spawned)
    words = ["commit", f"{tmp_path}@HEAD", "--fuzz", "5m", "--out", f"{tmp_path}/o"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == code, done.output
    (words,) = asked
    assert words[words.index("--source") + 1] == f"{tmp_path}@{'b' * 40}"
    other = words[words.index("--against") + 1]
    assert other == f"--source {tmp_path}@{'a' * 40} --kernels 0.24.0"
    for part in (
        "2 of 4 lines",
        "no request ran vllm/b.py:7",
        "/v1/completions",
        '{"n": 0}',
    ):
        assert part in done.stdout
    kept = json.loads((tmp_path / "o/commit.json").read_text())
    assert kept["differences"][0]["shown"] == shown


def test_a_session_of_requests_without_a_result_is_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clone: Path
) -> None:
    monkeypatch.setattr(commits, "resolve_source", None)
    monkeypatch.setattr(
        campaign, "spawn", lambda *_, **how: SimpleNamespace(wait=lambda: 4)
    )
    (clone / "vllm/v1/core.py").write_text(CODE)
    commit(clone, "back")
    done = CliRunner().invoke(app, ["commit", str(clone), "--fuzz", "5m"])
    assert isinstance(done.exception, InfrastructureError)
    assert "without a result (exit code 4)" in str(done.exception)


def test_a_patch_is_a_commit_of_another_clone(clone: Path, tmp_path: Path) -> None:
    (clone / "vllm/v1/core.py").write_text(CODE.replace("return 1", "return 3"))
    patch = tmp_path / "fix.diff"
    patch.write_text(git(clone, "diff"))
    git(clone, "checkout", "-q", "--", ".")
    before = {path: path.stat().st_mtime_ns for path in (clone / ".git").rglob("*")}
    with patched_clone(clone, "HEAD", patch) as (folder, sha):
        assert "return 3" in git(folder, "show", f"{sha}:vllm/v1/core.py")
    assert not folder.exists()
    now = {path: path.stat().st_mtime_ns for path in (clone / ".git").rglob("*")}
    assert now == before

    for text, why in (
        (patch.read_text().replace("return 2", "return 9"), "does not apply to HEAD"),
        ("no patch\n", "does not apply to HEAD"),
    ):
        patch.write_text(text)
        with (
            pytest.raises(UsageError, match=why),
            patched_clone(clone, "HEAD", patch),
        ):
            pass
    with (
        pytest.raises(UsageError, match="cannot be read"),
        patched_clone(clone, "HEAD", tmp_path / "none.diff"),
    ):
        pass


def test_both_sides_are_searched_where_later_commits_are_known(clone: Path) -> None:
    head, first = git(clone, "rev-parse", "HEAD", "HEAD~1").split()
    words = bisect_words(clone, "", Path("f1"), "")
    assert words[words.index("--find") + 1] == "introduced"
    assert words[words.index("--bad") + 1] == head
    assert words[words.index("--good") + 1] == first
    words = bisect_words(clone, "HEAD~1", Path("f1"), "v1")
    assert words[words.index("--find") + 1] == "both"
    assert words[words.index("--good") + 1] == "v1"
    # The fix alone: the older commits are not tried.
    words = bisect_words(clone, "HEAD~1", Path("f1"), "v1", "fixed")
    assert words[words.index("--find") :] == [
        *("--find", "fixed", "--bad", first, "--good", head)
    ]
    words = bisect_words(clone, "", Path("f1"), "v1", "fixed")
    assert words[words.index("--find") + 1] == "introduced"


def test_a_release_left_the_main_line_at_its_tags_base_or_by_its_day(
    clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fix, first = git(clone, "rev-parse", "HEAD", "HEAD~1").split()
    git(clone, "checkout", "-q", "-b", "releases/v0.9", first)
    (clone / "vllm/__init__.py").write_text("VERSION = 9\n")
    commit(clone, "only on the release's branch")
    git(clone, "tag", "v0.9.0")
    git(clone, "checkout", "-q", "main")
    assert commit_of_release(clone, "vllm", "0.9.0", "cpu") == first

    made = datetime.fromisoformat(git(clone, "log", "-1", "--format=%cI").strip())
    between, after = made + timedelta(days=7), made + timedelta(days=100)
    releases = [
        SimpleNamespace(version="1.0", uploaded=between),
        SimpleNamespace(version="2.0", uploaded=after),
    ]
    monkeypatch.setattr(bisect_clone, "own_releases", lambda *_: releases)
    # All commits are later than the first was cut, and earlier than the second.
    for release in ("1.0", "2.0", "3.0"):
        with pytest.raises(UsageError, match=f"no commit of vllm {release}"):
            commit_of_release(clone, "vllm", release, "cpu")

    monkeypatch.setenv("GIT_COMMITTER_DATE", (made + timedelta(days=5)).isoformat())
    (clone / "csrc/a.cu").write_text("3\n")
    commit(clone, "later")
    releases[0].uploaded = made + timedelta(days=10)
    assert commit_of_release(clone, "vllm", "1.0", "cpu") == fix


def test_a_bisection_begins_at_the_release_that_the_report_names(
    clone: Path, tmp_path: Path
) -> None:
    head, first = git(clone, "rev-parse", "HEAD", "HEAD~1").split()
    git(clone, "tag", "v0.9.0", first)
    report = tmp_path / "issue.md"
    report.write_text("```\nvllm serve Qwen/Qwen3-0.6B\n```\nvLLM version: 0.9.0\n")
    asked = ReproCommand(file=report, bisect=True, tree=str(clone))
    assert at_the_reported_release(asked).tree == f"{clone}@{first}"
    chosen = replace(asked, tree=f"{clone}@{head}")
    assert at_the_reported_release(chosen) == chosen
    report.write_text("```\nvllm serve Qwen/Qwen3-0.6B\n```\n")
    assert at_the_reported_release(asked) == asked


def test_what_needs_a_clone_says_so(tmp_path: Path) -> None:
    patch = tmp_path / "x.diff"
    for asked in ({"test_patch": patch}, {"bisect": True}):
        with pytest.raises(UsageError, match="needs a git clone"):
            ReproCommand(**asked)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="both say what is compared"):
        ReproCommand(test_patch=patch, fixed="newest", tree="x")


def test_a_comment_has_its_commits_behind_the_verdict() -> None:
    text = with_commits("**Reproduced** on 1.\n\n- `r1`\n", ["- fixed: abc", "- x: y"])
    verdict = "**Reproduced** on 1.\n\n"
    assert text == f"{verdict}By commit:\n\n- fixed: abc\n- x: y\n\n- `r1`\n"
