"""Nothing of a run is left behind, whatever ends the harness."""

import json
import os
import signal
from pathlib import Path

import pytest
from grids import grid
from live import assert_nothing_left, processes_in, shared_memory, wait_for

pytestmark = pytest.mark.engine
GHOST = "ghost-key-eviction"


def port_of(folder: Path) -> int:
    command = json.loads((folder / "incident.json").read_text())["engine"]["command"]
    return int(command[command.index("--port") + 1])


@pytest.mark.parametrize("moment", grid(["start", "hang"], always=["start"]))
def test_kill_9_leaves_nothing(start_run, moment):
    shm_before = shared_memory()
    run = start_run(GHOST)
    if moment == "start":
        run.wait_for_event("Initializing a V1 LLM engine")
    else:
        run.wait_for_event("Expected a cached item")
        # The hang: EngineCore's last word is old while a request waits.
        wait_for(
            lambda: any(run.folder.glob("evidence/check-stacks-*")),
            120,
            "stacks of the hang",
        )
    assert processes_in(run.folder)
    os.kill(run.process.pid, signal.SIGKILL)
    run.process.wait(10)
    port = port_of(run.folder) if moment == "hang" else None
    assert_nothing_left(run.folder, shm_before, 10, port)


def test_ctrl_c_leaves_a_readable_partial_incident(start_run):
    shm_before = shared_memory()
    run = start_run(GHOST)
    run.wait_for_event("Initializing a V1 LLM engine")
    os.kill(run.process.pid, signal.SIGINT)
    _, stderr = run.process.communicate(timeout=60)
    assert run.process.returncode == 130
    assert "Traceback" not in stderr
    assert str(run.folder) in stderr
    incident = json.loads((run.folder / "incident.json").read_text())
    assert incident["state"] == "interrupted"
    assert incident["verdict"] is None
    assert "nterrupted" in (run.folder / "report.md").read_text()
    assert_nothing_left(run.folder, shm_before, 1)
