"""A bisection over real releases: the neighbours of a boundary that is known."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from live import COMMAND
from mmrepro.history.ledger import read

pytestmark = pytest.mark.engine

SIDES = {"0.23.0": "reproduced", "0.24.0": "not-reproduced"}


@pytest.mark.slow
def test_the_release_that_fixed_the_ghost_key(tmp_path: Path) -> None:
    folder = tmp_path / "bisection"

    def bisect(*more: str) -> tuple[int, dict[str, Any], str]:
        typed = (
            "bisect ghost-key-eviction --find fixed --bad 0.23.0 --good 0.24.0 "
            "--device cpu"
        )
        done = subprocess.run(
            [*COMMAND, *typed.split(), "--json", *more, "--out", str(folder)],
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout), done.stderr

    code, document, told = bisect()
    assert code == 0, told
    fixed = document["fixed"]
    assert (fixed["first_good"], fixed["between"]) == ("0.24.0", ["0.23.0", "0.24.0"])
    assert (fixed["verified"], fixed["after"]) == (True, "good")
    (night,) = read(folder).nights
    seen = {
        planned.cell.release: [a.outcome for a in night.attempts_of(name)]
        for name, planned in night.planned.items()
    }
    assert seen == {release: [outcome] * 2 for release, outcome in SIDES.items()}, (
        "each side twice"
    )
    assert fixed["runs"] == 4
    for attempt in night.attempts:
        assert (folder / attempt.incident / "report.html").is_file()

    code, again, _ = bisect("--resume")
    assert (code, again["fixed"]) == (0, fixed)
    (resumed,) = read(folder).nights
    assert resumed.attempts == night.attempts, "no run was repeated"
