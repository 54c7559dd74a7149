"""For every test."""

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

try:
    from hypothesis import settings
except (
    ModuleNotFoundError
):  # tests/minivllm/test_cuda.py runs wherever torch and pytest are
    settings = None

# For tests/unit/plugin: pytest, run by a test.
pytest_plugins = ["pytester"]

# A shell that starts something in the background makes it ignore SIGINT, and children
# inherit
# that: the tests that send Ctrl-C would then wait for nothing.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Without .pyc files each of the hundreds of commands that the tests start compiles half
# a second of Python first.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Typer's runner makes all commands anew for each call: a tenth of a second, hundreds of
# times.
with contextlib.suppress(ModuleNotFoundError, AttributeError):
    import typer.testing

    typer.testing._get_command = functools.cache(typer.testing._get_command)

# How long an example takes says nothing here: engines may be running beside the tests.
# The same examples each time: a run fails for what it changed. The others draw new
# ones.
if settings is not None:
    settings.register_profile(
        "mmrepro", deadline=None, max_examples=20, derandomize=True
    )
    settings.register_profile("nightly", deadline=None, max_examples=200)
    settings.register_profile("thorough", deadline=None, max_examples=1000)
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "mmrepro"))

# Hypothesis also draws constants of all modules that are imported: a file alone would
# get other examples than among others, and a change of any constant would change them.
# To gather them takes a tenth of the time of collecting the tests.
if settings is not None and settings.default.derandomize:
    with contextlib.suppress(ImportError, AttributeError):
        from hypothesis.internal.conjecture import providers

        providers._get_local_constants = lambda: providers._local_constants


@pytest.fixture(scope="session")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tests/pack, installed where nothing else is.

    From a copy: a build leaves files beside its sources. Without isolation and offline:
    the build backend is here already."""
    source = tmp_path_factory.mktemp("pack") / "source"
    shutil.copytree(Path(__file__).parent / "pack", source)
    target = source.parent / "site"
    subprocess.run(
        [
            sys.executable,
            "-m",
            "uv",
            "pip",
            "install",
            "--quiet",
            "--offline",
            "--no-deps",
            "--no-build-isolation",
            "--python",
            sys.executable,
            "--target",
            str(target),
            str(source),
        ],
        check=True,
    )
    return target


@pytest.fixture
def by_conditions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evidence is judged by its conditions alone: a change of it need not fit the
    rest."""
    monkeypatch.setattr(
        "mmrepro.runs.judge.held", lambda evidence, facts: ({}, evidence)
    )
