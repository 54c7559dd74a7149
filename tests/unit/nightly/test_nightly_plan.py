"""What the plan of a night is refused for, before anything is planned."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / ".ci/nightly/plan.sh"


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"MACHINES": "0"}, "MACHINES is 0; it has to be a number from 1 to 99."),
        (
            {"IMAGE": "engine:1"},
            "'engine:1'; it has to end with @sha256: and a digest.",
        ),
        ({}, "python3 has no mmrepro here: . .venv/bin/activate"),
    ],
)
def test_one_sentence(tmp_path: Path, variables: dict[str, str], says: str) -> None:
    (tmp_path / "python3").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "python3").chmod(0o755)
    inherited = {k: v for k, v in os.environ.items() if k not in ("MACHINES", "IMAGE")}
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(
        [SCRIPT],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**inherited, **variables, "PATH": path},
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "plan").exists()


def test_a_length_of_time_that_is_none(tmp_path: Path) -> None:
    """Of a person who starts a night by hand: refused by the night's own command."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    night = SCRIPT.parents[2] / "docs/nightly/subset.toml"
    done = subprocess.run(
        [SCRIPT],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": path, "MAX_TIME": "soon", "NIGHT_FILE": str(night)},
    )
    assert done.returncode == 2
    assert "'soon' is not a length of time." in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "plan/night").exists()
