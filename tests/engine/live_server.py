"""A real engine's server for tests that look at one from outside, and traffic for
it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from live import COMMAND, wait_for
from mmrepro.base.machine.files import cache_root, detect_device
from mmrepro.engines import LaunchRequest, get_engine
from mmrepro.engines.base import SERVED_MODEL
from mmrepro.engines.environments.build import ensure
from mmrepro.engines.models import TinyModel
from mmrepro.engines.supervise import free_port
from mmrepro.runs.options import StartMode
from mmrepro.runs.starter import MODE_VARIABLE, Starter
from mmrepro.scenario import Scenario
from mmrepro.traffic import Traffic
from mmrepro.traffic.drive import Drive
from mmrepro.traffic.evidence.recorder import Recorder


@dataclass(frozen=True)
class Server:
    url: str
    pid: int
    log: Path


@contextmanager
def serving(
    engine_name: str,
    release: str,
    model: TinyModel,
    folder: Path,
    *server_args: str,
    max_model_len: int = 2048,
    env: Mapping[str, str] | None = None,
    mode: StartMode | None = None,
    within_s: float = 180,
) -> Iterator[Server]:
    """The engine's server, ready; ended afterwards, whatever happened to it meanwhile.

    Its log is ``folder``'s engine.log; what is there already stays. A warm fork has its
    fork server's command line in /proc; who looks from outside needs the engine's own.
    """
    if mode is None:
        mode = StartMode(os.environ[MODE_VARIABLE])
        mode = StartMode.FORK if mode is StartMode.WARM else mode
    engine = get_engine(engine_name)
    environment = ensure(engine.environment_spec(release, detect_device()))
    port = free_port()
    plan = engine.plan(
        LaunchRequest(
            environment=environment,
            model=model.write(cache_root() / "models"),
            port=port,
            max_model_len=max_model_len,
            server_args=server_args,
            server_env=env or {},
        )
    )
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "engine.log"
    with Starter(mode) as starter:
        process, _ = starter.start(
            plan, environment, starter.mode, cwd=folder, log=log, grace_s=2.0
        )
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for(
            lambda: answers(url + engine.ready_path) or process.exit_code is not None,
            within_s,
            "ready",
        )
        assert process.exit_code is None, log.read_text(errors="replace")[-3000:]
        yield Server(url, process.engine_pid, log)
    finally:
        process.stop(1.0)


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return answer.status == 200
    except OSError:
        return False


def ask(
    url: str,
    text: str = "hello",
    max_tokens: int = 8,
    timeout: float = 60.0,
    key: str = "",
) -> dict[str, Any]:
    """One chat completion. Raises OSError when it fails or takes too long."""
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": max_tokens,
        "temperature": 0,
    }
    request = urllib.request.Request(
        f"{url}/v1/chat/completions",
        json.dumps(body).encode(),
        {
            "Content-Type": "application/json",
            **({"Authorization": f"Bearer {key}"} if key else {}),
        },
    )
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        return json.loads(answer.read())


def trigger(scenario: Scenario, url: str, folder: Path) -> None:
    """What ``mmrepro run`` sends after its gate; an unanswered request is given up
    soon."""

    async def drive() -> None:
        recorder = Recorder(folder)
        traffic = Traffic(url, SERVED_MODEL, recorder)
        size = scenario.model.image_size()
        hands = Drive(traffic, recorder, size, scenario.max_model_len, "0.1")
        hands.deadline_s, hands.suspect_s = 5.0, 2.0
        try:
            await scenario.trigger(hands)
            await hands.collect()
        finally:
            await traffic.close()

    asyncio.run(drive())


class Load:
    """``clients`` threads that ask without a break; ``done`` counts what was
    answered."""

    def __init__(
        self, url: str, clients: int, max_tokens: int = 16, timeout: float = 60.0
    ) -> None:
        self.done = 0
        self._stop = threading.Event()
        self._url, self._tokens, self._timeout = url, max_tokens, timeout
        self._threads = [
            threading.Thread(target=self._run, args=(n,), daemon=True)
            for n in range(clients)
        ]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(self._timeout)

    def _run(self, number: int) -> None:
        count = 0
        while not self._stop.is_set():
            count += 1
            try:
                ask(
                    self._url,
                    f"client {number} asks {count}",
                    self._tokens,
                    self._timeout,
                )
                self.done += 1
            except OSError:
                time.sleep(0.05)


@dataclass(frozen=True)
class Told:
    """What one ``mmrepro diagnose … --json`` said."""

    exit_code: int
    document: dict[str, Any]
    seconds: float
    stderr: str

    @property
    def state(self) -> str:
        return self.document["assessment"]["state"]

    def fit(self, scenario: str, variant: str | None = None) -> str:
        return next(
            m["fit"]
            for m in self.document["matches"]
            if m["scenario"] == scenario and variant in (None, m["variant"])
        )

    @property
    def found(self) -> list[str]:
        fits = ("match", "likely")
        return [m["scenario"] for m in self.document["matches"] if m["fit"] in fits]


def diagnose(
    url: str,
    *arguments: str,
    cwd: Path,
    prefix: Sequence[str] = (),
    timeout: float = 60,
) -> Told:
    started = time.monotonic()
    done = subprocess.run(
        [*prefix, *COMMAND, "diagnose", url, "--json", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=cwd,
    )
    seconds = time.monotonic() - started
    assert done.returncode in (0, 1, 3), done.stderr
    return Told(done.returncode, json.loads(done.stdout), seconds, done.stderr)
