"""Real servers of several processes, broken in one way each, diagnosed, and packed.

Usage:  uv run python tests/evidence/record_ranks.py            # what is missing
        uv run python tests/evidence/record_ranks.py NAME…      # these, anew
        uv run python tests/evidence/record_ranks.py --list

Each case starts a server on the loopback interface, lets it answer, does one thing to
one of its processes, and runs ``mmrepro diagnose`` on it. ``ranks/NAME.zip`` is the
diagnosis with its evidence, less local variables, raw files and the metrics that no
rule reads. A table with state, rank and frame of each is printed.
``tests/unit/diagnose/test_ranks_recorded.py`` judges them again."""

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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil
import record
from mmrepro.engines import ENGINES, LaunchRequest
from mmrepro.engines.base import SERVED_MODEL
from mmrepro.engines.environments.build import existing
from mmrepro.engines.models.tiny import TINY
from mmrepro.engines.supervise import TMP_PLACEHOLDER
from mmrepro.failure.documents import Incident
from mmrepro.live.diagnose.options import DiagnoseCommand
from mmrepro.live.diagnose.session import Diagnosed, diagnose
from mmrepro.live.fleet.transfers import FAILED, LOCAL, PROMPTS
from mmrepro.probes.data import HttpData, MetricsData, StacksData
from mmrepro.reproducers import reproducer_path

RANKS: Final = record.HERE / "ranks"
PP: Final = ("--pipeline-parallel-size", "2")
BOOT: Final = reproducer_path("standins") / "boot"
READY_S: Final = 900.0
WEDGE: Final = """
import ctypes, os, signal, threading, time
_held, _on = threading.Lock(), []
_out, _in = os.pipe()
def _wedge(signum, frame):
    with open({folder!r} + "/kind") as file:
        kind = file.read().strip()
    if kind == "go":
        if "lock" in _on:
            _held.release()
        if "read" in _on:
            os.write(_in, b"x")
        _on.clear()
        return
    _on.append(kind)
    if kind == "python":
        while _on: time.sleep(0.5)
    if kind == "spin":
        while _on: pass
    if kind == "c":
        libc = ctypes.PyDLL(None)
        while _on: libc.pause()
    if kind == "c-without-gil":
        libc = ctypes.CDLL(None)
        while _on: libc.pause()
    if kind == "c-spin":
        import re
        re.match("(a+)+$", "a" * 60 + "b")
    if kind == "lock":
        _held.acquire()
        _held.acquire()
        _held.release()
    if kind == "read":
        os.read(_out, 1)
    if kind == "kernel":
        import torch
        torch.cuda._sleep(150_000_000_000)
        _on.clear()
    if kind == "exit":
        os._exit(3)
    if kind == "raise":
        raise RuntimeError("raised on purpose")
    if kind == "memory":
        bytearray(1 << 36)
try:
    signal.signal(signal.SIGUSR2, _wedge)
except ValueError:  # not the main thread
    pass
"""
"""A stand-in in every process of the server: SIGUSR2 does what a file says, and ends it
again where that says ``go``; ``c-spin``, ``exit``, ``raise`` and ``memory`` do not
end. ``kernel`` queues a kernel that takes a minute or more on the GPU, and returns."""
SIGNALS: Final = {
    "stop": signal.SIGSTOP,
    "kill": signal.SIGKILL,
    "end": signal.SIGTERM,
    "abort": signal.SIGABRT,
}
"""Deeds that need nothing in the process: it may be of another language."""
RUST: Final = "vllm-rs"
"""vLLM's Rust front end, by its program's name."""


@dataclass(frozen=True)
class Case:
    """``deed``: a wedge, ``stop``, ``kill``, or nothing; ``role``: of the process it is
    done to.
    ``paths``: the server imports from them. ``undo_s``: it ends after that many
    seconds, before the server is looked at; 0: it does not."""

    name: str
    deed: str = ""
    role: str = ""
    busy: bool = False
    fresh: bool = False
    release: str = "0.32.0"
    engine: str = "vllm"
    device: str = "cpu"
    options: tuple[str, ...] = ("--tensor-parallel-size", "2")
    model: str = "qwen2-vl"
    wait_s: float = 1.0
    paths: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    undo_s: float = 0.0


def _cases() -> Iterator[Case]:
    yield Case("tp2-idle")
    yield Case("tp2-first-request", fresh=True)
    yield Case("tp2-busy", busy=True)
    for deed in (
        "python",
        "spin",
        "c",
        "c-without-gil",
        "c-spin",
        "lock",
        "stop",
        "kill",
    ):
        yield Case(f"tp2-{deed}", deed, "Worker_TP1")
    yield Case("tp2-python-rank-0", "python", "Worker_TP0")
    for deed in ("python", "c", "stop", "kill", "raise"):
        yield Case(f"tp2-{deed}-busy", deed, "Worker_TP1", busy=True)
    yield Case("tp2-core", "python", "EngineCore")
    beats = {"VLLM_RINGBUFFER_WARNING_INTERVAL": "1"}
    yield Case(
        "tp2-heartbeat", "python", "Worker_TP1", busy=True, env=beats, undo_s=5.0
    )
    for name, role in (("0", "Worker_PP0"), ("1", "Worker_PP1")):
        yield Case(f"pp2-python-{name}", "python", role, options=PP, model="text")
    yield Case("pp2-idle", options=PP, model="text")
    data = ("--data-parallel-size", "2")
    yield Case("dp2-idle", options=data, model="text")
    yield Case("dp2-python", "python", "EngineCore_DP1", options=data, model="text")
    yield Case(
        "dp2-kill", "kill", "EngineCore_DP1", options=data, model="text", wait_s=4.0
    )
    for deed in ("", "python", "stop"):
        name = f"tp2-0.23-{deed or 'idle'}"
        yield Case(name, deed, "Worker_TP1" if deed else "", release="0.23.0")


CASES: Final = {case.name: case for case in _cases()}


@dataclass
class Server:
    process: subprocess.Popen[bytes] | None
    url: str
    folder: Path
    ready: str = "/health"
    clients: list[subprocess.Popen[bytes]] = field(default_factory=list)
    family: dict[int, psutil.Process] = field(default_factory=dict)

    def ask(self, tokens: int = 8, timeout_s: float = 120.0) -> str:
        body = {
            "model": SERVED_MODEL,
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

    def ask_badly(self) -> None:
        """Ask for a temperature below 0."""
        body = {"model": SERVED_MODEL, "prompt": "a", "temperature": -1.5}
        request = urllib.request.Request(
            f"{self.url}/v1/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with suppress(OSError):
            urllib.request.urlopen(request, timeout=5).close()

    def load(self, clients: int = 2) -> None:
        """Clients that ask again and again, in a process of their own: a diagnosis does
        not count the connections of its own one."""
        for _ in range(clients):
            command = [sys.executable, __file__, "--client", self.url]
            self.clients.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))
        time.sleep(2.0)

    def unload(self) -> None:
        """End the clients; what they asked for goes on for a moment."""
        for client in self.clients:
            client.kill()
            client.wait()
        self.clients.clear()

    def pid_of(self, role: str) -> int:
        """By its title or its program; ``front``: the one that was started, which
        serves HTTP where no other program does.

        Raises:
            LookupError: there is none, or none any more.
        """
        assert self.process is not None
        self.note()
        if role == "front":
            return self.process.pid
        for pid, process in self.family.items():
            with suppress(psutil.Error):
                titled = f"::{role}" in " ".join(process.cmdline())
                if process.is_running() and (titled or process.name() == role):
                    return pid
        raise LookupError(f"the server has no process {role}")

    def note(self) -> None:
        """Its processes: those of a front that is killed belong to it no more."""
        assert self.process is not None
        with suppress(psutil.Error):
            root = psutil.Process(self.process.pid)
            self.family |= {
                one.pid: one for one in [root, *root.children(recursive=True)]
            }

    def end(self) -> None:
        self.note()
        for client in self.clients:
            with suppress(psutil.Error):
                psutil.Process(client.pid).kill()
        for process in self.family.values():
            with suppress(psutil.Error):
                process.kill()
        if self.process is not None:
            self.process.wait(timeout=30)

    def hurt(self, deed: str, role: str) -> int:
        pid = self.pid_of(role)
        (self.folder / "kind").write_text(deed)
        if deed == "memory":
            # What it has it keeps: the next larger piece of memory is refused.
            size = psutil.Process(pid).memory_info().vms
            psutil.Process(pid).rlimit(psutil.RLIMIT_AS, (size, size))
        os.kill(pid, SIGNALS.get(deed, signal.SIGUSR2))
        return pid

    def heal(self, deed: str, pid: int) -> None:
        (self.folder / "kind").write_text("go")
        os.kill(pid, signal.SIGCONT if deed == "stop" else signal.SIGUSR2)


def end_servers_at_sigterm() -> None:
    """Let SIGTERM, as ``timeout`` sends it, unwind this program: a server has no
    supervisor here, and its processes would live on without it."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


@contextmanager
def served(case: Case) -> Iterator[Server]:
    with started(case) as server:
        ready(server)
        yield server


@contextmanager
def started(case: Case) -> Iterator[Server]:
    """A server that is on its way."""
    engine = ENGINES[case.engine]
    environment = existing(engine.environment_spec(case.release, case.device))
    if environment is None:
        words = f"{case.engine} {case.release} --device {case.device}"
        raise SystemExit(f"there is no environment; next: mmrepro env create {words}")
    with tempfile.TemporaryDirectory(prefix="mmrepro-run-") as temporary:
        folder = Path(temporary)
        (folder / "standin.py").write_text(WEDGE.format(folder=str(folder)))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        model = TINY[case.model].write(folder)
        asked = LaunchRequest(
            environment, model, port, 2048, case.options, server_env=case.env
        )
        plan = engine.plan(asked)
        settings = {k: v for k, v in plan.env.items() if TMP_PLACEHOLDER not in v} | {
            "VLLM_LOGGING_LEVEL": "INFO",
            "PYTHONPATH": os.pathsep.join(
                filter(None, [str(BOOT), plan.env.get("PYTHONPATH"), *case.paths])
            ),
            "MMREPRO_STAND_INS": os.pathsep.join(
                filter(None, [plan.env.get("MMREPRO_STAND_INS"), str(folder)])
            ),
        }
        settings |= case.env
        if case.fresh:
            # The first request compiles for seconds.
            del settings["TORCHDYNAMO_DISABLE"]
        command = plan.argv
        with (folder / "server.log").open("wb") as log:
            process = subprocess.Popen(
                command, env=os.environ | settings, stdout=log, stderr=log, cwd=folder
            )
        ready = "/health" if case.engine == "vllm" else engine.ready_path
        server = Server(process, f"http://127.0.0.1:{port}", folder, ready)
        try:
            yield server
        finally:
            server.end()


def answers(server: Server) -> bool:
    with (
        suppress(OSError),
        urllib.request.urlopen(server.url + server.ready, timeout=5),
    ):
        return True
    return False


def ready(server: Server) -> None:
    end = time.monotonic() + READY_S
    while time.monotonic() < end:
        if server.process is not None and server.process.poll() is not None:
            raise SystemExit((server.folder / "server.log").read_text()[-3000:])
        if answers(server):
            return
        time.sleep(1.0)
    raise SystemExit("the server was not ready in time")


def look(case: Case, out: Path) -> Diagnosed:
    """The diagnosis of a server to which the case's deed was done."""
    with served(case) as server:
        if not case.fresh:
            server.ask()
            server.ask()
        if case.busy:
            server.load()
        if case.deed:
            pid = server.hurt(case.deed, case.role)
            time.sleep(case.undo_s or case.wait_s)
            if case.undo_s:
                server.heal(case.deed, pid)
                server.ask()
        logs = (server.folder / "server.log",)
        return diagnose(DiagnoseCommand(url=server.url, out=out, logs=logs))


def trimmed(incident: Incident) -> Incident:
    """Without what no rule of ranks reads."""
    names = {n for e in ENGINES.values() for some in e.metrics.values() for n in some}
    names |= {LOCAL[0], *PROMPTS, *FAILED}
    for result in incident.evidence.probes:
        result.raw = []
        data: Any = result.data
        if isinstance(data, StacksData):
            for sample in data.samples:
                for thread in sample.threads:
                    thread.frames = [
                        f.model_copy(update={"locals": {}}) for f in thread.frames
                    ]
        if isinstance(data, MetricsData):
            data.samples = [s for s in data.samples if s.name in names]
        if isinstance(data, HttpData):
            data.answers = [
                a.model_copy(update={"body": a.body[:200]}) for a in data.answers
            ]
    if incident.diagnosis is not None:
        incident.diagnosis.matches = []
    return incident


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="the missing ones")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--client", metavar="URL", help=argparse.SUPPRESS)
    given = parser.parse_args()
    end_servers_at_sigterm()
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
            except (
                OSError
            ) as error:  # the server answers no request: nothing can be done to it
                print(f"{name:<24} it does not serve: {error}", flush=True)
                continue
            told = found.diagnosis
            frame = (
                told.assessment.frames[0].function if told.assessment.frames else "-"
            )
            classes = ", ".join(one.name.value for one in told.classes) or "-"
            print(
                f"{name:<24} {told.state.value:<22} "
                f"{told.assessment.process or '-':<14} "
                f"{frame:<28} {told.effect.seconds:5.1f} s  {classes}",
                flush=True,
            )
            RANKS.mkdir(exist_ok=True)
            record.packed(trimmed(found.incident), target=RANKS / f"{name}.zip")
    return 0


if __name__ == "__main__":
    sys.exit(main())
