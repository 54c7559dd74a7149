"""A scenario in a distribution of its own (tests/pack), run by its name."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from live import COMMAND

pytestmark = pytest.mark.engine


@pytest.mark.parametrize(
    ("arguments", "outcome"),
    [((), "reproduced"), (("--mitigation", "fix"), "not-reproduced")],
    ids=["fails", "fixed"],
)
def test_it_runs(
    packed: Path, tmp_path: Path, arguments: tuple[str, ...], outcome: str
) -> None:
    done = subprocess.run(
        [
            *COMMAND,
            "run",
            "odd-image",
            *arguments,
            "--json",
            "--out",
            str(tmp_path / "it"),
        ],
        env={**os.environ, "PYTHONPATH": str(packed)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["verdict"]["outcome"] == outcome
    assert document["command"].startswith("mmrepro run odd-image")
    assert document["left_behind"] == []
