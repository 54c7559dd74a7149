"""A whole minivllm process without torch, hung as vLLM hangs, under the harness's own
probes."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from mmrepro.engines import get_engine
from mmrepro.engines.base import SERVED_MODEL
from mmrepro.probes.base import run_probe
from mmrepro.probes.data import (
    HttpData,
    InferenceData,
    LogsData,
    MetricsData,
    StacksData,
)
from mmrepro.probes.http import HttpProbe, InferenceProbe
from mmrepro.probes.logs import LogsProbe
from mmrepro.probes.metrics import MetricsProbe
from mmrepro.probes.processes import role_from_title
from mmrepro.probes.stacks import StacksProbe
from mmrepro.reproducers import reproducer_path
from paper_server import Start, servers

ENGINE = get_engine("minivllm")


@pytest.fixture
def start(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    yield from servers(tmp_path, tmp_path_factory.getbasetemp() / "models")


def test_a_ghost_hangs_it_as_it_hangs_vllm(start: Start) -> None:
    server = start("--fault", "ghost-key-lru", "--mm-cache-tokens", "130")
    sent = (("hi", None), ("a" * 2100, 1), ("hi", 1), ("hi", 2), ("hi", 3))
    assert server.statuses(*sent) == [200, 400, 500, 200, 200]
    assert server.statuses(("hi", 4), deadline_s=0.5) == ["hung"]
    health = server.probe(HttpProbe(server.url, ENGINE.endpoints))
    assert isinstance(health, HttpData)
    assert {answer.status for answer in health.answers} == {200}
    inference = server.probe(InferenceProbe(server.url, SERVED_MODEL, 0.5))
    assert isinstance(inference, InferenceData)
    assert not inference.answered
    metrics = server.probe(MetricsProbe(server.url))
    assert isinstance(metrics, MetricsData)
    assert [metrics.total(ENGINE.metrics[n][0]) for n in ("running", "waiting")] == [
        0,
        0,
    ]
    assert metrics.total(ENGINE.metrics["finished"][0]) == 3
    logs = server.probe(
        LogsProbe(server.log, ENGINE.log_patterns, ENGINE.progress_pattern)
    )
    assert isinstance(logs, LogsData)
    assert logs.match_counts["added-request"] == 6, "what was refused was not added"
    assert logs.match_counts["fault-on"] == 1
    comm = Path(f"/proc/{server.process.pid}/comm").read_text().strip()
    assert role_from_title(comm, "") == ENGINE.core_role
    stacks = run_probe(StacksProbe([server.process.pid], samples=2), server.folder, 20)
    if stacks.ok:  # else py-spy may not look here
        assert isinstance(stacks.data, StacksData)
        threads = [
            thread for sample in stacks.data.samples for thread in sample.threads
        ]
        functions = [frame.function for thread in threads for frame in thread.frames]
        assert any("ImageCache.put" in function for function in functions)


def test_a_fault_that_chance_left_off_is_told(start: Start) -> None:
    server = start("--fault", "ghost-key-lru", "--fault-probability=0")
    logs = server.probe(
        LogsProbe(server.log, ENGINE.log_patterns, ENGINE.progress_pattern)
    )
    assert isinstance(logs, LogsData)
    assert logs.match_counts["fault-on"] == 0
    assert (
        "fault ghost-key-lru is off: its probability is 0\n" in server.log.read_text()
    )


def test_it_ends_cleanly_on_ctrl_c_and_without_a_model(
    start: Start, tmp_path: Path
) -> None:
    import signal

    server = start()
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(10) == 0
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "minivllm.server",
            "--paper",
            "--model",
            str(tmp_path / "none"),
        ],
        cwd=reproducer_path("minivllm").parent,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1
    assert "No such file" in done.stderr.splitlines()[-1]
