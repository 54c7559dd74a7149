"""Runs of the real thing, each made once a session and looked at by several tests."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from live import COMMAND, Finished, Running, RunOnce
from mmrepro.starter import IDLE_VARIABLE, MODE_VARIABLE, ROOT_VARIABLE
from mmrepro.supervise.warm import kept_parents


@pytest.fixture(scope="session", autouse=True)
def one_engine_at_a_time() -> None:
    if os.environ.get("PYTEST_XDIST_WORKER"):
        pytest.fail("engines are run one at a time: give -n with tests/unit only", pytrace=False)


WARM_ROOT = Path(tempfile.gettempdir()) / f"mmrepro-tests-{os.getpid()}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Around each test of this folder and its fixtures: all commands share warm parents.
    MMREPRO_START_MODE=cold in the environment runs the same tests cold. pytest asks every
    conftest it has loaded, whatever folder the test is of."""
    if not item.path.is_relative_to(Path(__file__).parent):
        return (yield)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ROOT_VARIABLE, str(WARM_ROOT))
        patch.setenv(IDLE_VARIABLE, "300")
        patch.setenv(MODE_VARIABLE, os.environ.get(MODE_VARIABLE, "warm"))
        return (yield)


@pytest.fixture(scope="session", autouse=True)
def warm_parents() -> Iterator[None]:
    """End those of this session; after a killed one they end by themselves."""
    yield
    for parent in kept_parents(WARM_ROOT):
        parent.end()
    shutil.rmtree(WARM_ROOT, ignore_errors=True)


@pytest.fixture(scope="session")
def run_once(tmp_path_factory: pytest.TempPathFactory) -> RunOnce:
    """``run_once("ghost-key-eviction", "--release", "0.24.0")``; equal arguments share one run."""
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
            done[arguments] = Finished(
                finished.returncode, finished.stdout, finished.stderr, folder
            )
        return done[arguments]

    return run


@pytest.fixture
def start_run(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """Start ``mmrepro run`` in the background; ended after the test, whatever happened."""
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
