"""Broken starts of real engines: does ``mmrepro why`` name the cause of each?"""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "broken_starts.py"
CHEAP = ("vllm-unknown-argument", "lmdeploy-unknown-argument", "minivllm-no-weights")
"""They end before a model is loaded."""


def names(folder: Path, only: list[str]) -> str:
    words = [sys.executable, str(SCRIPT), "--record", str(folder), "--only", *only]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.parametrize("case", CHEAP)
def test_a_start_that_is_refused_at_once(tmp_path: Path, case: str) -> None:
    assert names(tmp_path, [case]).count("| yes |") == 1


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.parametrize("engine", ["vllm", "sglang", "lmdeploy", "minivllm"])
def test_every_broken_start_of_an_engine(tmp_path: Path, engine: str) -> None:
    rows = names(tmp_path, [engine]).splitlines()
    assert rows
    assert all(row.endswith("| yes |") for row in rows)
