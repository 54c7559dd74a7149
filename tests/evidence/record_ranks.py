"""Real servers of several processes, broken in one way each, diagnosed, and packed.

Usage:  uv run python tests/evidence/record_ranks.py            # what is missing
        uv run python tests/evidence/record_ranks.py NAME…      # these, anew
        uv run python tests/evidence/record_ranks.py --list

Each case starts a server on the loopback interface, lets it answer, does one thing to one of its
processes, and runs ``mmrepro diagnose`` on it. ``ranks/NAME.zip`` is the diagnosis with its
evidence, less local variables, raw files and the metrics that no rule reads. A table with state,
rank and frame of each is printed. ``tests/unit/diagnose/test_ranks_recorded.py`` judges them again.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil
import record
from mmrepro.engines import ENGINES
from mmrepro.engines.environments.build import existing
from mmrepro.engines.models.tiny import TINY
from mmrepro.failure.documents import Incident
from mmrepro.live.diagnose.options import DiagnoseCommand
from mmrepro.live.diagnose.session import Diagnosed, diagnose
from mmrepro.probes.data import HttpData, MetricsData, StacksData

RANKS: Final = record.HERE / "ranks"
READY_S: Final = 900.0
WEDGE: Final = """
import signal, time
def _wedge(signum, frame):
    kind = open({kind!r}).read().strip()
    if kind == "python":
        while True: time.sleep(3600)
    if kind == "spin":
        while True: pass
    if kind == "c":
        import ctypes
        while True: ctypes.PyDLL(None).pause()
    if kind == "c-without-gil":
        import ctypes
        while True: ctypes.CDLL(None).pause()
    if kind == "c-spin":
        import re
        re.match("(a+)+$", "a" * 60 + "b")
    if kind == "lock":
                lock = threading.Lock()
        lock.acquire()
        lock.acquire()
    if kind == "raise":
        raise RuntimeError("raised on purpose")
try:
    signal.signal(signal.SIGUSR2, _wedge)
except Exception:
    pass
"""
"""sitecustomize of every process of the server: SIGUSR2 does what a file says."""


@dataclass(frozen=True)
class Case:
    """``deed``: a wedge, ``stop``, ``kill``, or nothing; ``role``: of the process it is done to."""

    name: str
    deed: str = ""
    role: str = ""
    busy: bool = False
    fresh: bool = False
    release: str = "0.32.0"
    engine: str = "vllm"
    options: tuple[str, ...] = ("--tensor-parallel-size", "2")
    model: str = "qwen2-vl"
    wait_s: float = 1.0


def _cases() -> Iterator[Case]:
    yield Case("tp2-idle")
    yield Case("tp2-first-request", fresh=True)
    yield Case("tp2-busy", busy=True)
    for deed in ("python", "spin", "c", "c-without-gil", "c-spin", "lock", "stop", "kill"):
        yield Case(f"tp2-{deed}", deed, "Worker_TP1")
    yield Case("tp2-python-rank-0", "python", "Worker_TP0")
    for deed in ("python", "c", "stop", "kill", "raise"):
        yield Case(f"tp2-{deed}-busy", deed, "Worker_TP1", busy=True)
    yield Case("tp2-core", "python", "EngineCore")
    for name, role in (("0", "Worker_PP0"), ("1", "Worker_PP1")):
        options = ("--pipeline-parallel-size", "2")
        yield Case(f"pp2-python-{name}", "python", role, options=options, model="text")
    yield Case("pp2-idle", options=("--pipeline-parallel-size", "2"), model="text")
    data = ("--data-parallel-size", "2")
    yield Case("dp2-idle", options=data)
    yield Case("dp2-python", "python", "EngineCore_DP1", options=data)
    yield Case("dp2-kill", "kill", "EngineCore_DP1", options=data, wait_s=4.0)
    for deed in ("", "python", "stop"):
        name = f"tp2-0.23-{deed or 'idle'}"
        yield Case(name, deed, "Worker_TP1" if deed else "", release="0.23.0")


CASES: Final = {case.name: case for case in _cases()}


@dataclass
class Server:
    process: subprocess.Popen[bytes] | None
    url: str
    folder: Path
    clients: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def ask(self, tokens: int = 8, timeout_s: float = 120.0) -> str:
        body = {
            "model": "m",
            "messages": [{"role": "user", "content": "hello"}],
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
        }
        request = urllib.request.Request(
            f"{self.url}/v1/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            return str(answer.read()[:200])

    def load(self, clients: int = 2) -> None:
        """Clients that ask again and again, in a process of their own: a diagnosis does not count
        the connections of its own one."""
        for _ in range(clients):
            command = [sys.executable, __file__, "--client", self.url]
            self.clients.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))
        time.sleep(2.0)

    def pid_of(self, role: str) -> int:
        assert self.process is not None
        return next(
            child.pid
            for child in psutil.Process(self.process.pid).children(recursive=True)
            if f"::{role}" in " ".join(child.cmdline())
        )

    def hurt(self, deed: str, role: str) -> None:
        (self.folder / "kind").write_text(deed)
        signals = {"stop": signal.SIGSTOP, "kill": signal.SIGKILL}
        os.kill(self.pid_of(role), signals.get(deed, signal.SIGUSR2))


@contextmanager
def served(case: Case) -> Iterator[Server]:
    engine = ENGINES[case.engine]
    environment = existing(engine.environment_spec(case.release, "cpu"))
    if environment is None:
        raise SystemExit(f"no environment of {case.engine} {case.release}: mmrepro env build")
    with tempfile.TemporaryDirectory(prefix="mmrepro-run-") as temporary:
        folder = Path(temporary)
        (folder / "sitecustomize.py").write_text(WEDGE.format(kind=str(folder / "kind")))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        model = TINY[case.model].write(folder)
        settings = {
            "PYTHONPATH": str(folder), "VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind", "HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1",
            "VLLM_NO_USAGE_STATS": "1", "VLLM_HOST_IP": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo",
        }  # fmt: skip
        if not case.fresh:
            settings["TORCHDYNAMO_DISABLE"] = "1"  # the first request compiles for seconds
        command = [
            str(environment.python), "-m", engine.module, "--model", str(model),
            "--served-model-name", "m", "--host", "127.0.0.1", "--port", str(port),
            "--max-model-len", "2048", "--max-num-seqs", "8", "--enforce-eager", *case.options,
        ]  # fmt: skip
        with (folder / "server.log").open("wb") as log:
            process = subprocess.Popen(
                command, env=os.environ | settings, stdout=log, stderr=log, cwd=folder
            )
        server = None
        try:
            server = Server(process, f"http://127.0.0.1:{port}", folder)
            _ready(server)
            yield server
        finally:
            for client in server.clients if server else []:
                _end(client)
            _end(process)


def _ready(server: Server) -> None:
    end = time.monotonic() + READY_S
    while time.monotonic() < end:
        if server.process is not None and server.process.poll() is not None:
            raise SystemExit((server.folder / "server.log").read_text()[-3000:])
        with suppress(OSError), urllib.request.urlopen(f"{server.url}/health", timeout=5):
            return
        time.sleep(1.0)
    raise SystemExit("the server was not ready in time")


def _end(process: subprocess.Popen[bytes]) -> None:
    """The server and its processes, and no others."""
    with suppress(psutil.Error):
        root = psutil.Process(process.pid)
        for one in [*root.children(recursive=True), root]:
            with suppress(psutil.Error):
                one.kill()
    process.wait(timeout=30)


def look(case: Case, out: Path) -> Diagnosed:
    """The diagnosis of a server to which the case's deed was done."""
    with served(case) as server:
        if not case.fresh:
            server.ask()
            server.ask()
        if case.busy:
            server.load()
        if case.deed:
            server.hurt(case.deed, case.role)
            time.sleep(case.wait_s)
        logs = (server.folder / "server.log",)
        return diagnose(DiagnoseCommand(url=server.url, out=out, logs=logs))


def trimmed(incident: Incident) -> Incident:
    """Without what no rule of ranks reads."""
    names = {n for e in ENGINES.values() for some in e.metrics.values() for n in some}
    for result in incident.evidence.probes:
        result.raw = []
        data: Any = result.data
        if isinstance(data, StacksData):
            for sample in data.samples:
                for thread in sample.threads:
                    thread.frames = [f.model_copy(update={"locals": {}}) for f in thread.frames]
        if isinstance(data, MetricsData):
            data.samples = [s for s in data.samples if s.name in names]
        if isinstance(data, HttpData):
            data.answers = [a.model_copy(update={"body": a.body[:200]}) for a in data.answers]
    if incident.diagnosis is not None:
        incident.diagnosis.matches = []
    return incident


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="the missing ones")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--client", metavar="URL", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.client:
        with suppress(OSError):
            while True:
                Server(None, given.client, Path()).ask(400, 600)
        return 0
    if given.list:
        print(*CASES, sep="\n")
        return 0
    names = given.names or [n for n in CASES if not (RANKS / f"{n}.zip").exists()]
    for name in names:
        with tempfile.TemporaryDirectory(prefix="mmrepro-run-") as scratch:
            out = Path(scratch) / "incident"
            try:
                found = look(CASES[name], out)
            except OSError as error:  # the server answers no request: nothing can be done to it
                print(f"{name:<24} it does not serve: {error}", flush=True)
                continue
            told = found.diagnosis
            frame = told.assessment.frames[0].function if told.assessment.frames else "-"
            classes = ", ".join(one.name.value for one in told.classes) or "-"
            print(
                f"{name:<24} {told.state.value:<22} {told.assessment.process or '-':<14} "
                f"{frame:<28} {told.effect.seconds:5.1f} s  {classes}",
                flush=True,
            )
            RANKS.mkdir(exist_ok=True)
            record.packed(trimmed(found.incident), target=RANKS / f"{name}.zip")
    return 0


if __name__ == "__main__":
    sys.exit(main())
