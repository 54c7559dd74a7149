"""Servers of real engines for chain.py, each in the state of one fault, and a relay that
leads a gateway's connections to the one that is wanted.

An address that a gateway has registered stays: it is a relay's, as that of a Kubernetes
Service is. What answers behind it is a real engine, or nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "tests/engine"), str(HERE)]
os.environ.setdefault("MMREPRO_START_MODE", "cold")

import psutil  # noqa: E402
from live import wait_for  # noqa: E402
from live_server import Server, answers, serving, trigger  # noqa: E402
from mmrepro.engines.supervise import free_port  # noqa: E402
from mmrepro.scenario import Scenario  # noqa: E402
from mmrepro.scenario.registry import load_scenario  # noqa: E402
from pod_days_record import chat, post  # noqa: E402

VLLM = "0.23.0"
SLOW_S = 3.0
"""For which the relay holds back each answer of a slow server."""
KEY = "sk-0123456789abcdef"


class RealWorker:
    """An address behind which one of several servers answers.

    Attributes:
        mode: whose connections are taken from now on; what is open is closed.
    """

    def __init__(self, targets: Mapping[str, int]) -> None:
        self._targets = dict(targets)
        self._mode = "well"
        self._open: set[socket.socket] = set()
        self._listener: socket.socket | None = None
        self._lock = threading.Lock()
        self.port = 0
        self.listen()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def has(self, mode: str) -> bool:
        """Whether it can be in this mode; any can refuse connections."""
        return mode == "dead" or mode in self._targets

    @property
    def mode(self) -> str:
        return self._mode

    @mode.setter
    def mode(self, mode: str) -> None:
        self._mode = mode
        self._close_all()

    def listen(self) -> None:
        if self._listener is not None:
            return
        listener = socket.create_server(("127.0.0.1", self.port), backlog=64)
        self.port = listener.getsockname()[1]
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def die(self) -> None:
        """Refuse connections from now on."""
        listener, self._listener = self._listener, None
        if listener is not None:
            # A close alone leaves a thread that waits in accept().
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        self._close_all()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._lead, args=(client,), daemon=True).start()

    def _lead(self, client: socket.socket) -> None:
        try:
            address = "127.0.0.1", self._targets.get(self._mode, 0)
            server = socket.create_connection(address, 10.0)
        except OSError:
            client.close()
            return
        server.settimeout(None)
        with self._lock:
            self._open |= {client, server}
        slow_s = SLOW_S if self._mode == "slow" else 0.0
        for pair in ((client, server, 0.0), (server, client, slow_s)):
            threading.Thread(target=self._pump, args=pair, daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, held_s: float) -> None:
        """Hand on what comes, and hold it back where nothing was for a while: that is
        the beginning of an answer."""
        last = 0.0
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if time.monotonic() - last > held_s / 2:
                    time.sleep(held_s)
                sink.sendall(data)
                last = time.monotonic()
        self._close(source)
        self._close(sink)

    def _close(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.discard(connection)
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        connection.close()

    def _close_all(self) -> None:
        with self._lock:
            connections = list(self._open)
        for connection in connections:
            self._close(connection)


def port_of(server: Server) -> int:
    port = urlsplit(server.url).port
    assert port is not None
    return port


@contextlib.contextmanager
def real_workers(engine: str) -> Iterator[list[RealWorker]]:
    """Two workers: the first is minivllm's, the second ``engine``'s as long as it is
    well. Only vLLM has a key, for which it answers 401."""
    with contextlib.ExitStack() as stack:
        pool = Pool(stack)
        bad = {
            "half-open": pool.stopped(),
            "500": pool.failing(),
            "html": pool.another_program(),
            "model": pool.another_model(),
        }
        if engine == "vllm":
            bad["401"] = port_of(pool.start("vllm", None, "--api-key", KEY))
        first = {"well": port_of(pool.start("minivllm", None)), "hung": pool.hung()}
        second = {"well": port_of(pool.start(engine, None)), "hung": pool.hung()}
        for some in (first, second):
            some["slow"] = some["well"]
        yield [RealWorker(bad | first), RealWorker(bad | second)]


class Pool:
    """Servers that end with ``stack``."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self._folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="mmrepro-chain-"))
        )
        self._count = 0

    def start(self, engine: str, scenario: Scenario | None, *options: str) -> Server:
        self._count += 1
        if scenario is None:
            scenario = _variant("ghost-key-lru")
            if engine == "vllm":
                scenario = load_scenario("ghost-key-eviction")
        else:
            options = (*scenario.server_args, *options)
        server = self._stack.enter_context(
            serving(
                engine,
                VLLM if engine == "vllm" else "0.1",
                scenario.model,
                self._folder / str(self._count),
                *options,
                max_model_len=scenario.max_model_len,
                within_s=600,
            )
        )
        print(f"server {self._count}: {engine} {' '.join(options)}", flush=True)
        return server

    def hung(self) -> int:
        """minivllm in its known hang."""
        ghost = _variant("ghost-key-lru")
        server = self.start("minivllm", ghost)
        trigger(ghost, server.url, self._folder)
        return port_of(server)

    def failing(self) -> int:
        """minivllm whose engine has met an exception: 500 for every request."""
        plugin = HERE / "planted" / "dead_engine.py"
        server = self.start("minivllm", None, "--plugin", str(plugin))
        for _ in range(2):
            status = post(server.url, "/v1/chat/completions", chat(3, 8))
        if status != 500:
            raise RuntimeError(f"the failing server answers {status}")
        return port_of(server)

    def stopped(self) -> int:
        """minivllm that takes connections, by the kernel, and nothing else."""
        server = self.start("minivllm", None)
        os.kill(server.pid, signal.SIGSTOP)
        self._stack.callback(os.kill, server.pid, signal.SIGCONT)
        return port_of(server)

    def another_program(self) -> int:
        """Python's own HTTP server, on the port that the gateway believes to be the
        engine's."""
        port = free_port()
        self._run([sys.executable, "-m", "http.server", str(port)])
        return port

    def another_model(self) -> int:
        """minivllm that serves its model under another name."""
        twin = psutil.Process(self.start("minivllm", None).pid)
        command, port = twin.cmdline(), free_port()
        command[command.index("--served-model-name") + 1] = "other"
        command[command.index("--port") + 1] = str(port)
        self._run(command, twin.environ())
        url = f"http://127.0.0.1:{port}/v1/models"
        wait_for(lambda: answers(url), 300, "a server of another model")
        return port

    def _run(self, command: list[str], env: Mapping[str, str] | None = None) -> None:
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL}
        quiet["stderr"] = subprocess.DEVNULL
        process = subprocess.Popen(command, cwd=self._folder, env=env, **quiet)
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)


def _variant(name: str) -> Scenario:
    variants = load_scenario("borrowed-faults").variants
    return next(variant for variant in variants if variant.variant == name)
