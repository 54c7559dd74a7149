"""Nothing of a run is left behind, whatever ends the harness."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.request
from pathlib import Path

import pytest
from live import left_of, listening, processes_in, shared_memory, wait_for

pytestmark = pytest.mark.engine
GHOST = "ghost-key-eviction"


def assert_nothing_left(
    folder: Path, shm_before: set[str], seconds: float, port: int | None = None
) -> None:
    """Within ``seconds``: no process, no shared memory, and nobody listens on ``port``.

    The port is waited for too: the threads of a killed process close its sockets after its first
    thread is gone from sight.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        left = left_of(folder, shm_before)
        if port is not None and listening(port):
            left.append(f"port {port}")
        if not left:
            return
        time.sleep(0.1)
    raise AssertionError(left)


def port_of(folder: Path) -> int:
    command = json.loads((folder / "incident.json").read_text())["engine"]["command"]
    return int(command[command.index("--port") + 1])


@pytest.mark.parametrize("moment", ["start", "hang"])
def test_kill_9_leaves_nothing(start_run, moment):
    shm_before = shared_memory()
    run = start_run(GHOST)
    if moment == "start":
        run.wait_for_event("Initializing a V1 LLM engine")
    else:
        run.wait_for_event("Expected a cached item")
        # The hang: EngineCore's last word is old while a request waits.
        wait_for(lambda: any(run.folder.glob("evidence/check-stacks-*")), 120, "stacks of the hang")
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


def test_a_kept_server_hangs_on_and_ends_with_its_pid(start_run):
    shm_before = shared_memory()
    run = start_run(GHOST, "--keep-server")
    stdout, stderr = run.process.communicate(timeout=300)
    assert run.process.returncode == 0, stderr
    document = json.loads(stdout)
    server = document["server"]
    assert document["verdict"]["outcome"] == "reproduced"
    with urllib.request.urlopen(server["url"] + "/health", timeout=5) as answer:
        assert answer.status == 200
    assert processes_in(run.folder)
    os.kill(server["pid"], signal.SIGTERM)
    port = int(server["url"].rpartition(":")[2])
    assert_nothing_left(run.folder, shm_before, 20, port)
