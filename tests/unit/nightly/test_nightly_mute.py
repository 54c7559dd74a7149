"""`.ci/nightly/mute.sh`: what an engine wrote is shown, and is no command to GitHub's
runner."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from github_runner import commands_in

SCRIPT = Path(__file__).parents[3] / ".ci" / "nightly" / "mute.sh"
WORDS = """  ::add-mask::a
::set-output name=x::y
log ##[add-path]/tmp
::stop-commands::mine
::mine::
"""
ENGINE = f"""
import sys
for stream in (sys.stdout, sys.stderr):
    stream.write({WORDS!r})
    stream.write("::error::the last line has no end")
    stream.flush()
sys.exit(3)
"""


def run(monkeypatch: pytest.MonkeyPatch, actions: str) -> tuple[int, list[str], str]:
    monkeypatch.setenv("GITHUB_ACTIONS", actions)
    done = subprocess.run(
        [SCRIPT, sys.executable, "-c", ENGINE], capture_output=True, text=True
    )
    return done.returncode, done.stdout.splitlines(), done.stderr


def test_nothing_in_its_output_is_obeyed_and_what_comes_after_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code, lines, errors = run(monkeypatch, "true")
    assert (code, errors) == (3, "")
    assert lines.count("::set-output name=x::y") == 2, "all of it is shown"
    assert [c.data for c in commands_in([*lines, "::error::ours"])] == ["ours"]
    assert len(commands_in(WORDS.splitlines())) == 3, "which without it is obeyed"


def test_nobody_can_guess_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (run(monkeypatch, "true")[1][0] for _ in range(2))
    assert first != second
    assert len(first.removeprefix("::stop-commands::")) == 32


def test_elsewhere_it_just_runs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    code, lines, errors = run(monkeypatch, "")
    assert (code, lines[-1]) == (3, "::error::the last line has no end")
    assert lines == errors.splitlines()
