"""minivllm as a process of its own, without torch."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from mmrepro.engines import get_engine
from mmrepro.engines.base import SERVED_MODEL
from mmrepro.engines.models.qwen import TinyQwen3
from mmrepro.engines.supervise import answers, free_port
from mmrepro.probes.base import Probe, run_probe
from mmrepro.probes.data import ProbeData
from mmrepro.reproducers import reproducer_path
from mmrepro.traffic import Traffic
from mmrepro.traffic.evidence.recorder import Recorder
from mmrepro.traffic.pictures import noise

ENGINE = get_engine("minivllm")
MODEL = TinyQwen3()


class Server:
    """``minivllm.server --paper`` as a process of its own."""

    def __init__(
        self, model: Path, folder: Path, *options: str, **variables: str
    ) -> None:
        self.folder, self.port = folder, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = folder / "engine.log"
        command = [
            sys.executable,
            "-m",
            "minivllm.server",
            "--paper",
            "--model",
            str(model),
        ]
        command += [
            "--served-model-name",
            SERVED_MODEL,
            "--port",
            str(self.port),
            *options,
        ]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                cwd=reproducer_path("minivllm").parent,
                env=os.environ | variables,
                stdout=log,
                stderr=log,
            )
        while not answers(self.url + ENGINE.ready_path):
            assert self.process.poll() is None, self.log.read_text()

    def statuses(
        self, *requests: tuple[str, int | None], deadline_s: float = 10
    ) -> list[object]:
        """What (text, image or None) are answered with, one after another; "hung":
        nothing."""

        async def run() -> list[object]:
            traffic = Traffic(self.url, SERVED_MODEL, Recorder(self.folder))
            found: list[object] = []
            for text, number in requests:
                images = (
                    [] if number is None else [noise("x", number, MODEL.image_size())]
                )
                record = await traffic.chat(
                    "x", text=text, images=images, deadline_s=deadline_s
                )
                found.append("hung" if record.timed_out else record.status)
            await traffic.close()
            return found

        return asyncio.run(run())

    def probe(self, probe: Probe[ProbeData], seconds: float = 10) -> ProbeData:
        result = run_probe(probe, self.folder, seconds)
        assert result.ok, result.reason
        assert result.data is not None
        return result.data


Start = Callable[..., Server]


def servers(folder: Path, models: Path) -> Iterator[Start]:
    """What starts servers with given options, in ``folder``; they end with the
    generator."""
    model = MODEL.write(models)
    started: list[Server] = []

    def start(*options: str, **variables: str) -> Server:
        started.append(Server(model, folder, *options, **variables))
        return started[-1]

    yield start
    for server in started:
        server.process.kill()
        server.process.wait(10)
