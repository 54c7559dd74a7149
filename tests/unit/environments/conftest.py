import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_uv import FakeProcess
from mmrepro.engines.environments import resolving, uv
from mmrepro.engines.environments.wheelhouse import own
from toy_index import write

HERE = Path(__file__).parent


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder, and no setting of the machine's own."""
    root = tmp_path / "cache"
    resolving._refusal.cache_clear()
    monkeypatch.setenv("MMREPRO_CACHE_DIR", str(root))
    for name in ("MMREPRO_TORCH_INDEX", "FAKE_UV_MODE"):
        monkeypatch.delenv(name, raising=False)
    return root


@pytest.fixture
def fake_uv(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The fake uv in place of the real one; gives the file with one line a call.

    It answers in this process: a start of Python for each call was most of what these
    tests took."""
    log = tmp_path / "calls"
    log.touch()
    monkeypatch.setenv("FAKE_UV_LOG", str(log))
    monkeypatch.setattr(uv, "uv_binary", lambda: "fake-uv")
    in_process = SimpleNamespace(**vars(subprocess) | {"Popen": FakeProcess})
    monkeypatch.setattr(uv, "subprocess", in_process)
    return log


@pytest.fixture
def fake_uv_program(
    fake_uv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """The fake uv as a program, for what is about processes; gives the same file."""
    program = tmp_path / "fake-uv"
    program.write_text(f"#!{sys.executable} -IS\n" + (HERE / "fake_uv.py").read_text())
    program.chmod(0o755)
    monkeypatch.setenv("FAKE_UV", str(program))
    monkeypatch.setattr(uv, "uv_binary", lambda: str(program))
    monkeypatch.setattr(uv, "subprocess", subprocess)
    return fake_uv


@pytest.fixture(scope="module")
def small_mmrepro() -> Iterator[None]:
    """A tiny wheel for mmrepro's own ones, which would come from the real index."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(own, "own_requirements", lambda target: [])
        patch.setattr(own, "own_wheel", lambda into: write(into, "mmrepro", "0.1.0"))
        patch.setenv("MMREPRO_TORCH_INDEX", "package")
        yield


Builder = Callable[[], "subprocess.Popen[str]"]


@pytest.fixture
def builder(fake_uv_program: Path) -> Iterator[Builder]:
    """Starts processes that build the same environment; ends what is left of them."""
    started: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, str(HERE / "builder.py")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
