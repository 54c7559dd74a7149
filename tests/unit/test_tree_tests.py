"""An engine's own tests on a tree: what is red, green and untestable, by its cause."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mmrepro.reproducers import reproducer_path
from mmrepro.runs import TreeTestState, UntestableCause, tree_tests
from mmrepro.runs.tree_tests import judged, summed, unpack_tests

RED, GREEN, UNTESTABLE = (
    TreeTestState.RED,
    TreeTestState.GREEN,
    TreeTestState.UNTESTABLE,
)


def phase(state: str, *raised: tuple[str, str], when: str = "call") -> dict[str, Any]:
    chain = []
    for kind, said in raised:
        where = "torch/cuda/__init__.py" if "Torch" in said else "tests/test_a.py"
        chain.append({"type": kind, "message": said, "frames": [f"/x/{where}:1:f"]})
    return {"test": "t", "when": when, "state": state, "text": "", "chain": chain}


@pytest.mark.parametrize(
    ("raised", "cause"),
    [
        ([("builtins.AssertionError", "assert 1 == 2")], None),
        ([("builtins.KeyError", "'block'")], None),
        ([("builtins.TypeError", "got an unexpected keyword argument 'x'")], None),
        # What was compared decides nothing, whatever words are in it.
        ([("builtins.AssertionError", "assert 'CUDA driver' == ''")], None),
        ([("builtins.RuntimeError", "No CUDA GPUs are available")], "gpu"),
        (
            [("builtins.AssertionError", "Torch not compiled with CUDA enabled")],
            "gpu",
        ),
        (
            [
                ("builtins.OSError", "It looks like the name is not valid"),
                ("huggingface_hub.errors.LocalEntryNotFoundError", "offline mode"),
            ],
            "hub",
        ),
        (
            [
                (
                    "pydantic_core.ValidationError",
                    "1 validation error: Invalid repository ID or local directory",
                )
            ],
            "hub",
        ),
        ([("builtins.ModuleNotFoundError", "No module named 'mteb'")], "package"),
        (
            [("builtins.ModuleNotFoundError", "No module named 'vllm.new_thing'")],
            "absent",
        ),
        (
            [("builtins.ImportError", "cannot import name 'f' from 'vllm.v1' (x.py)")],
            "absent",
        ),
        (
            [("builtins.AttributeError", "module 'vllm.v1' has no attribute 'f'")],
            "absent",
        ),
        (
            [
                (
                    "builtins.AttributeError",
                    "<module 'vllm.v1' from 'x.py'> does not have the attribute 'f'",
                )
            ],
            "absent",
        ),
        ([("builtins.AttributeError", "'NoneType' object has no attribute 'f'")], None),
        (
            [("builtins.AttributeError", "'_OpNamespace' '_C' object has no 'f'")],
            "operator",
        ),
        (
            [("_pytest.outcomes.Failed", "Timeout (>60.0s) from pytest-timeout.")],
            "late",
        ),
    ],
)
def test_why_a_failed_test_says_nothing(
    raised: list[tuple[str, str]], cause: str | None
) -> None:
    seen = judged([phase("passed", when="setup"), phase("failed", *raised)], "vllm")
    assert seen.cause == cause
    assert seen.state is (RED if cause is None else UNTESTABLE)


def test_an_attribute_that_the_engine_itself_asks_for_in_vain_is_its_fault() -> None:
    failed = phase(
        "failed", ("x.AttributeError", "module 'vllm.v1' has no attribute 'f'")
    )
    failed["chain"][0]["frames"] = ["/site-packages/vllm/v1/core.py:3:step"]
    assert judged([failed], "vllm").state is RED


def test_skipped_is_not_green() -> None:
    assert judged([phase("skipped", when="setup")], "vllm").state is UNTESTABLE
    assert judged([phase("passed")], "vllm").state is GREEN
    collect = judged([phase("failed", ("x.SyntaxError", ""), when="collect")], "vllm")
    assert collect.cause is UntestableCause.COLLECTION


def test_all_tests_of_a_tree() -> None:
    red = judged([phase("failed", ("builtins.KeyError", "x"))], "vllm")
    green = judged([phase("passed")], "vllm").model_copy(update={"test": "g"})
    skipped = judged([phase("skipped")], "vllm").model_copy(update={"test": "s"})
    assert summed("1", [green, red, skipped], 1.0).state is RED
    assert summed("1", [green, skipped], 1.0).state is GREEN
    assert summed("1", [skipped], 1.0).cause is UntestableCause.SKIPPED
    assert summed("1", [], 1.0).cause is UntestableCause.NONE
    made = summed("1", [green, red, skipped], 1.0, only=["g"])
    assert (made.state, made.red) == (GREEN, {"t"})
    assert made.counts == "1 red, 1 green, 1 untestable"


TEST = """\
import pytest
from thing import VALUE

def test_value():
    assert VALUE == 2

@pytest.mark.skip(reason="it needs a GPU")
def test_skipped():
    pass

def test_raises():
    try:
        {}["a"]
    except KeyError as error:
        raise OSError("not found") from error
"""


def reported(sides: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lines of JSON that the runner writes of these trees."""
    tools = str(Path(pytest.__file__).parents[1])
    order = {"tools": tools, "preload": ["json", "not_there"], "sides": sides}
    reading, writing = os.pipe()
    runner = reproducer_path("run_tests.py")
    done = subprocess.run(
        [sys.executable, str(runner), str(writing), json.dumps(order)],
        pass_fds=(writing,),
        capture_output=True,
        timeout=120,
    )
    os.close(writing)
    with os.fdopen(reading) as stream:
        lines = [json.loads(line) for line in stream]
    assert done.returncode == 0, done.stderr
    return lines


QUIET = ["-q", "-p", "no:cacheprovider"]
LATE = """\
import signal, subprocess, time

def test_quick():
    pass

def test_late():
    signal.setitimer(signal.ITIMER_REAL, 300)  # as pytest-timeout does
    subprocess.Popen(["sleep", "20"])
    time.sleep(20)
"""


def test_tests_of_a_tree_that_never_end_are_ended(tmp_path: Path) -> None:
    """Also where pytest-timeout has set the alarm of the process for one test."""
    sides = []
    for number, text in enumerate((LATE, "def test_it():\n    pass\n")):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "test_it.py").write_text(text)
        side = {
            "python": sys.executable,
            "site": str(folder),
            "folder": str(folder),
            "engine": "thing",
            "limit_s": 4,
            "arguments": [*QUIET, "."],
        }
        sides.append(side)
    lines = reported(sides)
    ends = [line["code"] for line in lines if line["kind"] == "ended"]
    assert ends == [-signal.SIGALRM, 0]
    seen = {test.test: test.state for test in tree_tests._seen(lines, "thing")}
    assert seen["test_it.py::test_quick"] is GREEN


ORDERED = """\
import time

def test_long():
    time.sleep(20)

def test_mended():
    assert {}
"""


def test_what_was_red_before_runs_first_on_the_side_that_mends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # each box has its own
    sides = []
    texts = ORDERED.format(False).replace("20", "0"), ORDERED.format(True)
    for number, text in enumerate(texts):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "test_it.py").write_text(text)
        side = {
            "python": sys.executable,
            "site": str(folder),
            "folder": str(folder),
            "engine": "thing",
            "limit_s": 4,
            "red_first": bool(number),
            "arguments": [*QUIET, "."],
        }
        sides.append(side)
    lines = reported(sides)
    before, after = ([x for x in lines if x["side"] == number] for number in (0, 1))
    mended = "test_it.py::test_mended"
    assert {t.test: t.state for t in tree_tests._seen(before, "thing")}[mended] is RED
    assert {t.test: t.state for t in tree_tests._seen(after, "thing")}[mended] is GREEN


NEW_NAMES = """\
import pytest
from thing import VALUE, new_function
from thing.new_module import NewClass

def helper(value):
    return new_function(value)

@pytest.fixture
def made():
    return NewClass()

def test_old():
    assert VALUE == 2

def test_new():
    assert new_function(1) == 1

def test_by_helper():
    with pytest.raises(ImportError):
        helper(1)

def test_by_fixture(made):
    assert made is not None

@pytest.mark.parametrize("made_by", [NewClass])
def test_by_parameter(made_by):
    assert made_by is not None

def test_own_import():
    from thing import new_function as again

class TestClass:
    def test_in_a_class(self, value: "NewClass | None" = None):
        assert not isinstance(VALUE, NewClass)
"""
BROKEN = """\
from thing.broken import VALUE

def test_it():
    pass
"""


def test_tests_that_do_not_use_what_the_tree_lacks_still_run(tmp_path: Path) -> None:
    package = tmp_path / "site" / "thing"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("VALUE = 1\n")
    (package / "broken.py").write_text("import thing.lost\nVALUE = 1\n")
    folder = tmp_path / "tests"
    folder.mkdir()
    (folder / "test_new.py").write_text(NEW_NAMES)
    (folder / "test_broken.py").write_text(BROKEN)
    side = {
        "python": sys.executable,
        "site": str(package.parent),
        "folder": str(folder),
        "engine": "thing",
        "limit_s": 60,
        "arguments": [*QUIET, "--continue-on-collection-errors", "."],
    }
    lines = reported([side])
    seen = {test.test: test for test in tree_tests._seen(lines, "thing")}
    assert seen.pop("test_new.py::test_old").state is RED
    # An engine whose own import fails is no tree that lacks what a test asks for.
    assert seen.pop("test_broken.py").test
    assert len(seen) == 6
    for test in seen.values():
        assert (test.state, test.cause) == (UNTESTABLE, UntestableCause.ABSENT), test


def test_two_trees_in_one_process_each(tmp_path: Path) -> None:
    sides = []
    for number in (1, 2):
        site = tmp_path / f"site{number}"
        folder = tmp_path / f"tests{number}"
        site.mkdir()
        folder.mkdir()
        (site / "thing.py").write_text(f"VALUE = {number}\n")
        (folder / "test_it.py").write_text(TEST)
        side = {
            "python": sys.executable,
            "site": str(site),
            "folder": str(folder),
            "engine": "thing",
            "limit_s": 60,
            "arguments": [*QUIET, "test_it.py"],
        }
        sides.append(side)
    lines = reported(sides)
    for number, state in ((0, "failed"), (1, "passed")):
        own = [line for line in lines if line["side"] == number]
        calls = {
            line["test"].rpartition(":")[2]: line
            for line in own
            if line["kind"] == "phase" and line["when"] == "call"
        }
        assert calls["test_value"]["state"] == state
        assert "test_skipped" not in calls
        chain = calls["test_raises"]["chain"]
        assert [one["type"] for one in chain] == [
            "builtins.OSError",
            "builtins.KeyError",
        ]
        assert own[-1]["kind"] == "ended"


def test_the_tests_of_a_commit_with_those_of_its_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "somebody")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "somebody@example.com")
    clone = tmp_path / "clone"
    (clone / "tests" / "v1").mkdir(parents=True)

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(clone), *words],
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    git("init", "-q")
    (clone / "tests" / "utils.py").write_text("old\n")
    (clone / "tests" / "v1" / "test_a.py").write_text("old\n")
    (clone / "pyproject.toml").write_text("[tool]\n")
    (clone / "examples").mkdir()
    (clone / "examples" / "chat.jinja").write_text("{{ x }}\n")
    git("add", "-A")
    git("commit", "-qm", "parent")
    (clone / "tests" / "utils.py").write_text("new\n")
    (clone / "tests" / "v1" / "test_a.py").write_text("new\n")
    (clone / "tests" / "v1" / "test_b.py").write_text("new\n")
    git("add", "-A")
    git("commit", "-qm", "fix")

    files = ["tests/v1/test_a.py", "tests/v1/test_b.py"]
    folder = tmp_path / "out"
    taken = unpack_tests(clone, "HEAD~1", folder, newer="HEAD", files=files)
    assert taken == files
    assert (folder / "tests/utils.py").read_text() == "old\n"
    assert (folder / "tests/v1/test_a.py").read_text() == "new\n"
    assert (folder / "tests/v1/test_b.py").read_text() == "new\n"
    assert (folder / "pyproject.toml").exists()
    assert (folder / "examples/chat.jinja").exists(), "tests read such templates"
    assert unpack_tests(clone, "HEAD", tmp_path / "o2", newer="HEAD", files=files) == []


@pytest.mark.parametrize(
    ("left_s", "ends", "expected"),
    [
        (600.0, "closes", ([{"kind": "begins", "test": "t"}], False)),
        (600.0, "box", ([{"kind": "begins", "test": "t"}], False)),
        (-1.0, "", ([], True)),
    ],
    ids=["they end", "the box ends", "they are late"],
)
def test_what_tests_write_is_read_to_their_end(
    left_s: float, ends: str, expected: tuple[list[dict[str, str]], bool]
) -> None:
    reading, writing = os.pipe()
    os.write(writing, b'{"kind": "begins", "test": "t"}\n{"kind": "ph')
    if ends == "closes":
        os.close(writing)
    box = SimpleNamespace(poll=lambda: 0 if ends == "box" else None)
    try:
        deadline = time.monotonic() + left_s
        assert tree_tests._lines_until(reading, deadline, box) == expected  # type: ignore[arg-type]
    finally:
        os.close(reading)
        if ends != "closes":
            os.close(writing)
