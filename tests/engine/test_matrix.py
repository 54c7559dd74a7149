"""A night of three cells, killed in its middle and gone on with."""

import json
import os
import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from live import COMMAND, children, wait_for
from mmrepro.failure.documents.ledger import NightState
from mmrepro.history.ledger import read
from mmrepro.runs.starter import IDLE_VARIABLE, ROOT_VARIABLE

pytestmark = pytest.mark.engine

FAULTS = ("ghost-key-lru", "kv-budget", "pad-value-key")
CELLS = [f"--scenario=borrowed-faults:{name}" for name in FAULTS]
CELLS += ["--releases", "0.1", "--device", "cpu"]
ENDED_S = 15


@pytest.mark.slow
def test_a_night_that_was_killed_is_gone_on_with(tmp_path: Path) -> None:
    folder = tmp_path / "nights"
    variables = {
        **os.environ,
        ROOT_VARIABLE: str(tmp_path / "warm"),
        IDLE_VARIABLE: "0",
    }

    def matrix(*arguments: str) -> tuple[int, dict[str, Any], str]:
        done = subprocess.run(
            [*COMMAND, "matrix", "run", *arguments, "--out", str(folder), "--json"],
            capture_output=True,
            text=True,
            timeout=300,
            env=variables,
        )
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout), done.stderr

    def attempts() -> int:
        ledger = folder / "ledger.jsonl"
        return ledger.read_text().count('"kind": "attempt"') if ledger.exists() else 0

    killed = subprocess.Popen(
        [*COMMAND, "matrix", "run", *CELLS, "--out", str(folder)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=variables,
    )
    try:
        wait_for(
            lambda: killed.poll() is not None or attempts(), 300, "the first attempt"
        )
        logs = "incidents/*/*kv-budget*/run-1/evidence/engine.log"

        def second() -> list[Path]:
            return list(folder.glob(logs))

        wait_for(lambda: killed.poll() is not None or second(), 60, "the second engine")
        assert killed.poll() is None, "it was to be killed in its middle"
    finally:
        killed.send_signal(signal.SIGKILL)
        killed.wait()
    wait_for(lambda: not children(variables), ENDED_S, "the end of all that it started")
    before = read(folder).newest
    assert before is not None
    assert before.night.state is NightState.RUNNING
    assert len(before.attempts) == 1

    code, document, told = matrix("--resume")
    assert code == 0, told
    assert [c["state"] for c in document["cells"]] == ["reproduced"] * 3
    runs = read(folder).nights
    assert len(runs) == 1
    assert Counter(a.cell for a in runs[0].attempts) == dict.fromkeys(
        runs[0].planned, 1
    )
    assert runs[0].night.state is NightState.COMPLETE
    assert {a.start_mode for a in runs[0].attempts} == {"warm"}
    for attempt in runs[0].attempts:
        assert (folder / attempt.incident / "incident.json").is_file()
    assert (folder / "dashboard.html").is_file()

    content = (folder / "ledger.jsonl").read_bytes()
    for again in (CELLS, ["--resume"]):
        code, document, _ = matrix(*again)
        assert (code, document["run"]["idle"]) == (0, True)
    assert (folder / "ledger.jsonl").read_bytes() == content
    wait_for(lambda: not children(variables), ENDED_S, "the end of all that it started")
