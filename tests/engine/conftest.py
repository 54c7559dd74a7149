"""Runs of the real thing, each made once a session and looked at by several tests."""

from __future__ import annotations

import contextlib
import os
import queue
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from live import COMMAND, Finished, Running, RunOnce, need_python
from mmrepro.base.errors import EnvironmentBuildError
from mmrepro.engines.supervise.warm import kept_fork_servers
from mmrepro.runs.starter import IDLE_VARIABLE, MODE_VARIABLE, ROOT_VARIABLE


@pytest.fixture(scope="session", autouse=True)
def one_engine_at_a_time() -> None:
    if os.environ.get("PYTEST_XDIST_WORKER"):
        pytest.fail(
            "engines are run one at a time: give -n with tests/unit only", pytrace=False
        )


WARM_ROOT = Path(tempfile.gettempdir()) / f"mmrepro-tests-{os.getpid()}"
IDLE_S = "600"
MODE = os.environ.get(MODE_VARIABLE, "warm")
"""MMREPRO_START_MODE=cold in the environment runs the same tests cold."""


def variables() -> dict[str, str]:
    """What every command of these tests gets: all share fork servers."""
    return {ROOT_VARIABLE: str(WARM_ROOT), IDLE_VARIABLE: IDLE_S, MODE_VARIABLE: MODE}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Around each test of this folder and its fixtures. pytest asks every conftest that
    it has loaded, whatever folder the test is of."""
    if not item.path.is_relative_to(Path(__file__).parent):
        return (yield)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables().items():
            patch.setenv(name, value)
        return (yield)


@pytest.fixture(scope="session", autouse=True)
def warm_parents() -> Iterator[Ahead]:
    """End those of this session; after a killed one they end by themselves."""
    ahead = Ahead()
    if MODE == "warm":
        ahead.start()
    yield ahead
    ahead.end()
    for parent in kept_fork_servers(WARM_ROOT):
        parent.end()
    shutil.rmtree(WARM_ROOT, ignore_errors=True)


@pytest.fixture(autouse=True)
def reached(request: pytest.FixtureRequest, warm_parents: Ahead) -> None:
    warm_parents.reached(request.node)


class Ahead(threading.Thread):
    """Imports engines that later tests start, one at a time, beside tests that leave a
    core idle: ``@pytest.mark.meanwhile("SCENARIO --release …")``. Not beside others:
    where the gate's answers are slow, a hang must last longer. And not too many: six
    are kept, the least recently used goes. A test that needs one that is being imported
    waits for it."""

    def __init__(self) -> None:
        super().__init__(name="imports ahead", daemon=True)
        self._asked: list[str] = []
        self._queue: queue.SimpleQueue[str] = queue.SimpleQueue()

    def run(self) -> None:
        environment = {**os.environ, **variables()}
        while engine := self._queue.get():
            command = [
                *COMMAND,
                "env",
                "warm",
                "start",
                *shlex.split(engine),
                "--idle",
                IDLE_S,
            ]
            subprocess.run(command, env=environment, capture_output=True, check=False)

    def reached(self, item: pytest.Item) -> None:
        for mark in item.iter_markers("meanwhile"):
            for engine in mark.args:
                if engine not in self._asked:
                    self._asked.append(engine)
                    self._queue.put(engine)

    def end(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                self._queue.get_nowait()
        self._queue.put("")
        if self.is_alive():
            self.join()


def skipped_without_python() -> Iterator[None]:
    try:
        return (yield)
    except EnvironmentBuildError as error:
        need_python(error.message)
        raise


pytest_runtest_setup = pytest.hookimpl(wrapper=True)(skipped_without_python)
pytest_runtest_call = pytest.hookimpl(wrapper=True)(skipped_without_python)


@pytest.fixture(scope="session")
def run_once(tmp_path_factory: pytest.TempPathFactory) -> RunOnce:
    """``run_once("ghost-key-eviction", "--release", "0.24.0")``; equal arguments share
    one run."""
    done: dict[tuple[str, ...], Finished] = {}

    def run(*arguments: str) -> Finished:
        if arguments not in done:
            folder = tmp_path_factory.mktemp("incident") / "it"
            finished = subprocess.run(
                [*COMMAND, "run", *arguments, "--json", "--out", str(folder)],
                capture_output=True,
                text=True,
                timeout=900,
            )
            need_python(finished.stderr)
            done[arguments] = Finished(
                finished.returncode, finished.stdout, finished.stderr, folder
            )
        return done[arguments]

    return run


@pytest.fixture
def start_run(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """Start ``mmrepro run`` in the background; ended after the test, whatever
    happened."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> Running:
        folder = tmp_path / f"run-{len(started)}"
        process = subprocess.Popen(
            [*COMMAND, "run", *arguments, "--json", "--out", str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return Running(process, folder)

    yield start
    for process in started:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGTERM)
        process.communicate(timeout=60)
