"""A whole minivllm process without torch, hung as vLLM hangs, under the harness's own probes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from mmrepro.engines import get_engine
from mmrepro.engines.base import SERVED_MODEL
from mmrepro.evidence.recorder import Recorder
from mmrepro.models import TinyQwen3
from mmrepro.probes.base import Probe, ProbeData, run_probe
from mmrepro.probes.data import HttpData, InferenceData, LogsData, MetricsData, StacksData
from mmrepro.probes.http import HttpProbe
from mmrepro.probes.inference import InferenceProbe
from mmrepro.probes.logs import LogsProbe
from mmrepro.probes.metrics import MetricsProbe
from mmrepro.probes.processes import role_from_title
from mmrepro.probes.stacks import StacksProbe
from mmrepro.reproducers import reproducer_path
from mmrepro.supervise import free_port
from mmrepro.supervise.readiness import answers
from mmrepro.traffic import Traffic
from mmrepro.traffic.pictures import noise

ENGINE = get_engine("minivllm")
MODEL = TinyQwen3()
Start = Callable[..., "Server"]


class Server:
    """``minivllm.server --paper`` as a process of its own."""

    def __init__(self, model: Path, folder: Path, *options: str) -> None:
        self.folder, self.port = folder, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = folder / "engine.log"
        command = [sys.executable, "-m", "minivllm.server", "--paper", "--model", str(model)]
        command += ["--served-model-name", SERVED_MODEL, "--port", str(self.port), *options]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, cwd=reproducer_path("minivllm").parent, stdout=log, stderr=log
            )
        while not answers(self.url + ENGINE.ready_path):
            assert self.process.poll() is None, self.log.read_text()

    def statuses(self, *requests: tuple[str, int | None], deadline_s: float = 10) -> list[object]:
        """What (text, image or None) are answered with, one after another; "hung": nothing."""

        async def run() -> list[object]:
            traffic = Traffic(self.url, SERVED_MODEL, Recorder(self.folder))
            found: list[object] = []
            for text, number in requests:
                images = [] if number is None else [noise("x", number, MODEL.image_size())]
                record = await traffic.chat("x", text=text, images=images, deadline_s=deadline_s)
                found.append("hung" if record.timed_out else record.status)
            await traffic.close()
            return found

        return asyncio.run(run())

    def probe(self, probe: Probe[ProbeData], seconds: float = 10) -> ProbeData:
        result = run_probe(probe, self.folder, seconds)
        assert result.ok, result.reason
        assert result.data is not None
        return result.data


@pytest.fixture
def start(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    model = MODEL.write(tmp_path_factory.getbasetemp() / "models")
    started: list[Server] = []

    def run(*options: str) -> Server:
        started.append(Server(model, tmp_path, *options))
        return started[-1]

    yield run
    for server in started:
        server.process.kill()
        server.process.wait(10)


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
    assert [metrics.total(ENGINE.metrics[n][0]) for n in ("running", "waiting")] == [0, 0]
    assert metrics.total(ENGINE.metrics["finished"][0]) == 3
    logs = server.probe(LogsProbe(server.log, ENGINE.log_patterns, ENGINE.progress_pattern))
    assert isinstance(logs, LogsData)
    assert logs.match_counts["added-request"] == 6, "what was refused was not added"
    assert logs.match_counts["fault-on"] == 1
    comm = Path(f"/proc/{server.process.pid}/comm").read_text().strip()
    assert role_from_title(comm, "") == ENGINE.core_role
    stacks = run_probe(StacksProbe([server.process.pid], samples=2), server.folder, 20)
    if stacks.ok:  # else py-spy may not look here
        assert isinstance(stacks.data, StacksData)
        threads = [thread for sample in stacks.data.samples for thread in sample.threads]
        functions = [frame.function for thread in threads for frame in thread.frames]
        assert any("ImageCache.put" in function for function in functions)


def test_a_fault_that_chance_left_off_is_told(start: Start) -> None:
    server = start("--fault", "ghost-key-lru", "--fault-probability=0")
    logs = server.probe(LogsProbe(server.log, ENGINE.log_patterns, ENGINE.progress_pattern))
    assert isinstance(logs, LogsData)
    assert logs.match_counts["fault-on"] == 0
    assert "fault ghost-key-lru is off: its probability is 0\n" in server.log.read_text()


def test_it_ends_cleanly_on_ctrl_c_and_without_a_model(start: Start, tmp_path: Path) -> None:
    import signal

    server = start()
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(10) == 0
    done = subprocess.run(
        [sys.executable, "-m", "minivllm.server", "--paper", "--model", str(tmp_path / "none")],
        cwd=reproducer_path("minivllm").parent,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1
    assert "No such file" in done.stderr.splitlines()[-1]
