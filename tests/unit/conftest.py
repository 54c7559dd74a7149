"""For every test of what runs without an engine."""

import gc
import os
import shutil
import signal
import tempfile
from pathlib import Path
from typing import Any

import costs
import pytest

# What a killed process wrote is in the kernel: only a machine that stops loses what was
# not waited for, and no test stops one. Thousands of lines of journals are written
# here, 5 ms each.
os.fsync = lambda _file: None  # type: ignore[assignment]

# No test reads what its user has built or downloaded: it would say something else on
# another machine. A folder for each worker, and for the commands that it starts.
CACHE = Path(tempfile.gettempdir()) / f"mmrepro-unit-{os.getpid()}"
os.environ["MMREPRO_CACHE_DIR"] = str(CACHE)

# Commands on screens are those of an installed mmrepro, also where `uv run` starts
# these tests.
os.environ.pop("UV_RUN_RECURSION_DEPTH", None)

# A shell that starts these tests in the background has Ctrl-C ignored, and what they
# start inherits that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# BLAS starts a thread for each processor, and they wait for each other by spinning: the
# small matrices of these tests take three times the processor time then.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Fourteen thousand tests are a million objects, which the collector would look through
# again and again: a quarter of the time that it takes to collect them.
gc.disable()


SLOW_TESTS = costs.slow_tests()


def pytest_addoption(parser: pytest.Parser) -> None:
    costs.add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    costs.register(config)


def pytest_pycollect_makeitem(
    collector: pytest.Collector, name: str, obj: object
) -> list[pytest.Item] | None:
    """Make no item of a test that is left out; None: as pytest does."""
    test = f"{collector.nodeid}::{name}"
    left_out = costs.is_left_out(collector.config, SLOW_TESTS, test, obj)
    return [] if left_out else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark before `-m` selects."""
    costs.mark_slow(items)


def pytest_unconfigure() -> None:
    shutil.rmtree(CACHE, ignore_errors=True)


def pytest_collection_finish() -> None:
    """What was collected stays to the end, and is looked through no more."""
    gc.freeze()
    gc.enable()
    gc.set_threshold(50_000, 20, 50)


@pytest.fixture(scope="session")
def a_box() -> None:
    """Skip where no box can be made. One is made to see, which is too long for the
    collecting of tests."""
    from mmrepro.base.box.box import _why_none

    if why := _why_none():
        pytest.skip(f"no box here: {why}")


@pytest.fixture
def fixed_git(monkeypatch: pytest.MonkeyPatch) -> None:
    """Git without its user's settings, by one author of one moment: equal commits have
    equal ids."""
    for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"):
        monkeypatch.setenv(name, os.devnull)
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "somebody")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "somebody@example.com")
        monkeypatch.setenv(f"GIT_{role}_DATE", "2026-07-15T12:00:00+00:00")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With -n, the tests of a file go to one worker: what they share is made once."""
    from xdist.scheduler import LoadFileScheduling

    return (
        LoadFileScheduling(config, log) if config.getoption("dist") == "load" else None
    )
