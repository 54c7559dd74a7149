"""Which hop is wrong: real gateways before two servers, and twelve faults.

    python benchmarks/chain.py FOLDER           # FOLDER/<name>/bin has the gateways
    python benchmarks/chain.py FOLDER --real vllm       # before minivllm and vLLM
    python benchmarks/chain.py FOLDER --real minivllm   # before two of minivllm

The gateways are the programs of the package index, started as people start them. The
servers behind them are FAKE, so that each fault is one of one server alone; with
``--real`` they are real engines in the state of each fault."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from _chain_servers import RealWorker, real_workers
from mmrepro.live.diagnose.options import DiagnoseCommand
from mmrepro.live.fleet.through import look_through

DEADLINE_S = 4.0
REAL_DEADLINE_S = 10.0
"""Real engines share two cores."""
SLOW_S = 3.0
START_S = 400.0
"""LiteLLM imports for minutes on a busy machine."""


class FakeWorker:
    """A FAKE OpenAI server, whose ``mode`` is changed while it runs."""

    def __init__(self) -> None:
        worker = self
        self.mode = "well"
        self.number = 0

        class Answers(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if worker.mode == "half-open":
                    time.sleep(60)
                elif worker.mode == "html":
                    self._send(200, b"<html>another program</html>", "text/html")
                elif self.path == "/v1/models":
                    name = "other" if worker.mode == "model" else "tiny"
                    rows = [{"id": name, "object": "model", "owned_by": "vllm"}]
                    self._send(
                        200, json.dumps({"object": "list", "data": rows}).encode()
                    )
                elif self.path in ("/health", "/"):
                    self._send(200, b"")
                else:
                    self._send(404, b"{}")

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                mode = worker.mode
                if mode in ("hung", "half-open"):
                    time.sleep(60)
                elif mode == "500":
                    self._send(500, b'{"error": {"message": "CUDA error"}}')
                elif mode == "401":
                    self._send(401, b'{"error": {"message": "no key"}}')
                elif mode == "html":
                    self._send(404, b"<html>not found</html>", "text/html")
                elif mode == "model":
                    self._send(404, b'{"error": {"message": "no such model"}}')
                else:
                    time.sleep(SLOW_S if mode == "slow" else 0.0)
                    self._send(200, worker.completion())

            def _send(
                self, status: int, body: bytes, kind: str = "application/json"
            ) -> None:
                with contextlib.suppress(OSError):
                    self.send_response(status)
                    self.send_header("Content-Type", kind)
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self._handler = Answers
        self._server: ThreadingHTTPServer | None = None
        self.port = 0
        self.listen()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def has(self, mode: str) -> bool:
        """Whether it can be in this mode."""
        return True

    def completion(self) -> bytes:
        self.number += 1
        return json.dumps(
            {
                "id": f"chatcmpl-{self.port}-{self.number}",
                "object": "chat.completion",
                "created": int(time.time()),
                "model": "tiny",
                "choices": [
                    {
                        "index": 0,
                        "message": {"role": "assistant", "content": "OK"},
                        "finish_reason": "stop",
                    }
                ],
                "usage": {
                    "prompt_tokens": 3,
                    "completion_tokens": 1,
                    "total_tokens": 4,
                },
            }
        ).encode()

    def listen(self) -> None:
        if self._server is None:
            server = ThreadingHTTPServer(("127.0.0.1", self.port), self._handler)
            server.daemon_threads = True
            self.port = server.server_port
            self._server = server
            threading.Thread(target=server.serve_forever, daemon=True).start()

    def die(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None


@dataclass(frozen=True)
class Gateway:
    """How a gateway is started.

    Attributes:
        command: of its folder, the port and the servers' addresses.
        ready: its endpoint that is 200 when it serves.
    """

    name: str
    command: Callable[[Path, int, Sequence[str]], list[str]]
    ready: str = "/readiness"
    env: tuple[tuple[str, str], ...] = ()


def _sglang(folder: Path, port: int, workers: Sequence[str]) -> list[str]:
    python = folder / "sglang-router/bin/python"
    return [
        str(python),
        "-m",
        "sglang_router.launch_router",
        "--worker-urls",
        *workers,
        "--port",
        str(port),
        "--prometheus-port",
        str(free_port()),
    ]


def _smg(folder: Path, port: int, workers: Sequence[str]) -> list[str]:
    words = [str(folder / "smg/bin/smg"), "launch", "--worker-urls", *workers]
    return [*words, "--port", str(port), "--prometheus-port", str(free_port())]


def _vllm(folder: Path, port: int, workers: Sequence[str]) -> list[str]:
    words = [str(folder / "vllm-router/bin/vllm-router"), "--worker-urls", *workers]
    return [*words, "--port", str(port), "--prometheus-port", str(free_port())]


def _litellm(folder: Path, port: int, workers: Sequence[str]) -> list[str]:
    models = []
    for url in workers:
        parameters = {
            "model": "openai/tiny",
            "api_base": f"{url}/v1",
            "api_key": "none",
        }
        models.append({"model_name": "tiny", "litellm_params": parameters})
    config = Path(tempfile.mkdtemp(prefix="chain-")) / "litellm.yaml"
    config.write_text(json.dumps({"model_list": models}))
    program = str(folder / "litellm/bin/litellm")
    return [program, "--config", str(config), "--port", str(port)]


GATEWAYS = (
    Gateway("sglang-router", _sglang),
    Gateway("smg", _smg),
    Gateway("vllm-router", _vllm),
    Gateway(
        "litellm",
        _litellm,
        "/health/liveliness",
        (
            ("LITELLM_LOCAL_MODEL_COST_MAP", "True"),
            ("LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY", "true"),
        ),
    ),
)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextlib.contextmanager
def running(
    gateway: Gateway, folder: Path, workers: Sequence[str]
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    port = free_port()
    log = Path(tempfile.mkdtemp(prefix="chain-")) / f"{gateway.name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            gateway.command(folder, port, workers),
            stdout=output,
            stderr=output,
            env={**os.environ, **dict(gateway.env)},
            start_new_session=True,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        until = time.monotonic() + START_S
        while not _ready(url + gateway.ready) or not _ready(url + "/v1/models"):
            if time.monotonic() > until or process.poll() is not None:
                raise TimeoutError(f"{gateway.name} does not start: {log}")
            time.sleep(0.5)
        yield url, process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGCONT)
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=3) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


FAULTS = (
    "none",
    "dead",
    "hung",
    "half-open",
    "500",
    "401",
    "slow",
    "html",
    "model",
    "both dead",
    "both hung",
    "gateway stopped",
    "gateway killed",
)
"""Of the second of two servers, of both, or of the gateway. "dead" is that of a server
that is registered still."""


Worker = FakeWorker | RealWorker


def inject(
    fault: str, workers: Sequence[Worker], process: subprocess.Popen[bytes]
) -> list[str]:
    """Bring a fault about; the hops that are to be named: g is the gateway."""
    if fault == "gateway stopped":
        os.killpg(process.pid, signal.SIGSTOP)
        return ["g"]
    if fault == "gateway killed":
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return ["g"]
    both, _, kind = fault.rpartition(" ")
    wrong = list(workers) if both else [workers[1]]
    for worker in wrong if kind != "none" else ():
        if kind == "dead":
            worker.die()
        worker.mode = kind
    return [] if kind == "none" else [worker.url for worker in wrong]


def _can(fault: str, workers: Sequence[Worker]) -> bool:
    """Whether there is a server in this state."""
    kind = fault.rpartition(" ")[2]
    if fault.startswith("gateway") or kind == "none":
        return True
    return all(worker.has(kind) for worker in workers)


def judge(
    gateway: Gateway,
    folder: Path,
    workers: Sequence[Worker],
    faults: Sequence[str] = FAULTS,
) -> Iterator[dict[str, Any]]:
    is_real = isinstance(workers[0], RealWorker)
    deadline_s = REAL_DEADLINE_S if is_real else DEADLINE_S
    addresses = [worker.url for worker in workers]
    with running(gateway, folder, addresses) as (url, process):
        for fault in faults:
            if not _can(fault, workers):
                continue
            expected = inject(fault, workers, process)
            expected = [url if hop == "g" else hop for hop in expected]
            asked = DiagnoseCommand(url=url, deadline_s=deadline_s, through=True)
            chain = look_through(asked)
            named = sorted(chain.at)
            yield {
                "gateway": gateway.name,
                "fault": fault,
                "right": named == sorted(expected) and not chain.between,
                "false": bool(set(named) - set(expected)),
                "sentence": chain.sentence,
            }
            for worker in workers:
                worker.mode = "well"
                worker.listen()
            # A router takes a server back after some answers of its health check.
            time.sleep(1.0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="one gateway")
    parser.add_argument("--faults", nargs="+", default=FAULTS, metavar="FAULT")
    parser.add_argument("--real", choices=("minivllm", "vllm"), default="")
    asked = parser.parse_args()
    fakes = contextlib.nullcontext([FakeWorker(), FakeWorker()])
    with real_workers(asked.real) if asked.real else fakes as workers:
        return _judge_all(asked, workers)


def _judge_all(asked: argparse.Namespace, workers: Sequence[Worker]) -> int:
    rows = []
    for gateway in GATEWAYS:
        if asked.only and asked.only != gateway.name:
            continue
        try:
            for row in judge(gateway, asked.folder, workers, asked.faults):
                rows.append(row)
                mark = "right" if row["right"] else "WRONG"
                print(
                    f"{row['gateway']:14} {row['fault']:16} {mark}  {row['sentence']}"
                )
                sys.stdout.flush()
        except (OSError, TimeoutError) as error:
            print(f"{gateway.name:14} could not run: {error}")
    faulty = [row for row in rows if row["fault"] != "none"]
    right = sum(row["right"] for row in faulty)
    false = sum(row["false"] for row in rows)
    print(f"{right} of {len(faulty)} faults at the right hop, {false} false")
    return 0 if rows and right >= 0.9 * len(faulty) and not false else 1


if __name__ == "__main__":
    sys.exit(main())
