"""`.ci/run`: what it runs, that a failure fails it, and that its shards are all of it."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STUB = """#!/bin/bash
# A FAKE of Python with uv: it fails where it is told to.
echo "ran: $*"
if [[ -n "$FAILS" && "$*" == *"$FAILS"* ]]; then echo "all of its output"; exit 3; fi
"""
FILES = [f"tests/engine/test_{name}.py" for name in "abcdefg"]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The script, beside stubs of what it calls."""
    for name in (*FILES, "benchmarks/x.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci")
    for name in ("bin/python3", ".ci/core", ".ci/hardening"):
        program = tmp_path / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(STUB)
        program.chmod(0o755)
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "--all"], cwd=tmp_path, check=True)
    return tmp_path


def run(checkout: Path, *words: str, fails: str = "") -> tuple[int, str]:
    """Return the exit code of `.ci/run` and all that it prints."""
    path = f"{checkout / 'bin'}:{os.environ['PATH']}"
    done = subprocess.run(
        [checkout / ".ci" / "run", *words],
        env={**os.environ, "PATH": path, "FAILS": fails},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    return done.returncode, done.stdout


def test_each_step_prints_its_seconds(checkout: Path) -> None:
    code, printed = run(checkout)
    assert code == 0, printed
    steps = [line for line in printed.splitlines() if line.startswith("== ")]
    assert [line.partition(":")[0].removeprefix("== ") for line in steps] == [
        "environment",
        "environment of types",
        "ruff check",
        "ruff format",
        "workflows and scripts",
        "weight",
        "mypy",
        "import contracts",
        "mypy, callers",
        "mypy, examples of the docs",
        "docs",
        "wheel alone",
        "lint, types and docs together",
        "tests/unit",
        "tests/engine, 1/1",
        "tests/unit, slow",
    ]
    assert all(line.endswith(" s") for line in steps)


@pytest.mark.parametrize(
    ("fails", "later"),
    [
        ("ruff format", False),
        ("lint-imports", False),
        ("mkdocs", False),
        ("sync", False),
        ("15 tests/unit", True),
        ("slow and not nightly", True),
        ("25 tests/engine", True),
    ],
)
def test_a_failure_fails_it_and_is_printed_whole(
    checkout: Path, fails: str, later: bool
) -> None:
    code, printed = run(checkout, fails=fails)
    assert code == 1
    assert "all of its output" in printed
    assert "FAILED" in printed
    assert ("== tests/engine" in printed) is later


def test_shards_are_all_files_each_once(checkout: Path) -> None:
    found: list[str] = []
    for shard in ("1/3", "2/3", "3/3"):
        code, printed = run(checkout, "engine", shard)
        assert code == 0
        (line,) = [line for line in printed.splitlines() if " pytest " in line]
        found += [word for word in line.split() if word.startswith("tests/engine/")]
    assert sorted(found) == FILES


def test_another_word_is_refused(checkout: Path) -> None:
    code, printed = run(checkout, "tests")
    assert (code, "usage: .ci/run [checks" in printed) == (2, True)
