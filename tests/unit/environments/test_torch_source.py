"""Where torch comes from: PyTorch's CPU index where it answers, else the package
index."""

import contextlib
import socket
import sys
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from folder_index import served
from mmrepro.engines import spec_for
from mmrepro.engines.environments import resolving
from mmrepro.engines.environments.build import ensure, existing
from mmrepro.engines.environments.releases import Release
from mmrepro.engines.environments.resolving import (
    PACKAGE_INDEX,
    TorchSource,
    key_salt,
    unused,
)
from mmrepro.engines.environments.spec import EnvironmentSpec, vllm_spec
from mmrepro.engines.environments.uv import Distribution, Notice
from toy_index import write

SPEC = vllm_spec("0.23.0", "cpu")
VARIABLE = resolving.TORCH_INDEX_VARIABLE


@pytest.fixture
def elsewhere(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Puts an address of the test's own in the place of every index, and empties uv's
    cache.

    A server here answers when it has a processor.
    """
    monkeypatch.setattr(resolving, "ANSWER_S", 60)
    monkeypatch.setattr(resolving, "ASK_S", 100.0)
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    monkeypatch.delenv("UV_INDEX", raising=False)
    real = resolving._elsewhere

    def use(address: str) -> None:
        monkeypatch.setenv("UV_DEFAULT_INDEX", address)
        monkeypatch.setattr(resolving, "_elsewhere", lambda index: real(address))

    return use


def asked(spec: EnvironmentSpec = SPEC) -> tuple[TorchSource, list[str], float]:
    """The source, what was said, and how long it took."""
    lines: list[str] = []
    began = time.monotonic()
    source = resolving.torch_source(spec, sys.executable, lines.append)
    assert all(isinstance(line, Notice) for line in lines)
    return source, lines, time.monotonic() - began


def test_an_index_that_answers_is_taken(elsewhere, tmp_path: Path) -> None:
    write(tmp_path / "index" / "torch", "torch", "2.11.0+cpu")
    with served(tmp_path / "index") as address:
        elsewhere(address)
        source, lines, _ = asked()
    assert source.local
    assert source.variables["UV_INDEX"].startswith(address)
    assert [reason.value for reason in source.reasons] == ["CPU build"]
    assert lines == ["torch comes from PyTorch's CPU index, without CUDA's libraries"]
    again, _, _ = asked()  # the server is gone: it was asked once for this process
    assert again.local


def test_an_index_that_never_answers_is_left_after_two_seconds(
    elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolving, "ANSWER_S", 2)
    with socket.create_server(
        ("127.0.0.1", 0)
    ) as silent:  # accepts, by its backlog, and no more
        elsewhere(f"http://127.0.0.1:{silent.getsockname()[1]}")
        source, lines, seconds = asked()
    assert not source.local
    assert resolving.ANSWER_S <= seconds < 20 * resolving.ANSWER_S
    assert lines == [
        (
            "PyTorch's CPU index does not answer within 2 s: torch comes with CUDA's "
            "libraries"
        )
    ]
    assert [reason.value for reason in source.reasons] == ["CUDA build"]


def test_an_index_that_is_not_there_is_left_at_once(elsewhere) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    elsewhere(f"http://127.0.0.1:{port}")
    source, (line,), seconds = asked()
    assert not source.local
    assert seconds < resolving.ANSWER_S
    assert line.startswith("PyTorch's CPU index cannot be reached")


def test_an_index_that_answers_drop_by_drop_is_left(
    elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolving, "ASK_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:
        done = threading.Event()

        def drip() -> None:
            try:
                connection, _ = server.accept()
            except OSError:  # it was given up before it was asked
                return
            with connection, contextlib.suppress(OSError):
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n")
                connection.sendall(b"Content-Length: 1000000\r\n\r\n")
                for _ in range(600):
                    connection.sendall(b" ")
                    if done.wait(0.2):
                        break

        thread = threading.Thread(target=drip)
        thread.start()
        elsewhere(f"http://127.0.0.1:{server.getsockname()[1]}")
        source, _, seconds = asked()
        done.set()
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert not source.local
    assert seconds < 60  # it was ended, not waited for


def test_an_index_without_a_cpu_build_is_left(elsewhere, tmp_path: Path) -> None:
    write(tmp_path / "index" / "torch", "torch", "2.11.0")
    with served(tmp_path / "index") as address:
        elsewhere(address)
        source, (line,), _ = asked()
    assert not source.local
    assert "has no torch==2.11.0+cpu for this Python" in line


def test_nobody_is_asked_where_a_cpu_build_is_not_meant(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> str:
        pytest.fail("it was asked")

    monkeypatch.setattr(resolving, "_refusal", never)
    for spec in (vllm_spec("0.23.0", "cuda"), spec_for("sglang", "0.5.6", "cpu")):
        assert asked(spec)[:2] == (PACKAGE_INDEX, [])
    monkeypatch.setenv(VARIABLE, "package")
    assert asked()[:2] == (PACKAGE_INDEX, [])
    monkeypatch.setenv(VARIABLE, "official")
    assert "--torch-backend" in asked()[0].options
    assert asked(vllm_spec("0.23.0", "cuda"))[0] == PACKAGE_INDEX


def test_the_key_tells_only_of_an_index_that_was_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert key_salt() == ""
    for setting in ("auto", "package", " "):
        monkeypatch.setenv(VARIABLE, setting)
        assert key_salt() == ""
    monkeypatch.setenv(VARIABLE, "https://me:secret@torch.invalid/cpu")
    assert key_salt() == "https://***@torch.invalid/cpu"


def test_a_wheel_of_torch_itself_is_the_cpu_build(
    elsewhere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_for("minivllm", "0.1", "cpu")
    write(tmp_path / "index" / "torch", "torch", "2.11.0+cpu")
    wheel = Distribution(
        "torch-2.11.0-cp311-cp311-manylinux_2_28_x86_64.whl", None, "00"
    )
    day = datetime(2026, 6, 14, tzinfo=UTC)
    release = Release(sys.executable, wheel, day, day, [])
    with served(tmp_path / "index") as address:
        elsewhere(address)
        source, _, _ = asked(spec)
        source, built, found = resolving.cpu_build(source, spec, release, print)
    assert built.installed == "2.11.0+cpu"
    assert found.wheel.filename == "torch-2.11.0+cpu-py3-none-any.whl"
    assert len(found.wheel.sha256) == 64
    # So the folder's name is that of the spec as it was asked for.
    assert built.key() != spec.key()
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    lines: list[str] = []
    none = resolving.cpu_build(
        replace(source, variables={"UV_INDEX": address}), spec, release, lines.append
    )
    assert none == (replace(none[0], chosen=False), spec, release)
    assert "has no torch 2.11.0+cpu" in lines[0]


def test_a_build_with_the_cpu_index_is_found_without_it(
    fake_uv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_UV_MODE", "cpu-index")
    lines: list[str] = []
    made = ensure(SPEC, progress=lines.append)
    assert "torch==2.11.0+cpu" in made.packages
    assert "torch==2.11.0+cpu" in (made.path / "requirements.in").read_text()
    # VLLM asks for it without a pin.
    assert "triton" in (made.path / "overrides.in").read_text()
    assert "CPU build" in [note.value for note in made.notes]
    monkeypatch.setenv("FAKE_UV_MODE", "offline")
    fake_uv.write_text("")
    found = existing(SPEC)
    assert found is not None
    assert found.path == made.path
    assert fake_uv.read_text() == ""  # nobody was asked


def test_where_the_cpu_index_lacks_something_all_comes_from_the_package_index(
    fake_uv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_UV_MODE", "cpu-index-lacks")
    lines: list[str] = []
    made = ensure(SPEC, progress=lines.append)
    assert "torch==2.11.0" in made.packages
    assert any("lacks what this release asks for" in line for line in lines)
    assert [n.value for n in made.notes if n.name == "torch"] == ["CUDA build"]


def test_what_a_cpu_does_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def names(spec: EnvironmentSpec) -> set[str]:
        return {name for some, _ in unused(spec) for name in some}

    cuda_only = {
        "nvidia-cuda-nvrtc",
        "nvidia-cuda-nvrtc-cu12",
        "nvidia-cusolver",
        "nvidia-cusolver-cu12",
    }
    assert names(SPEC) == cuda_only | {"triton"}
    assert names(spec_for("sglang", "0.5.6", "cpu")) == cuda_only  # it imports triton
    assert names(vllm_spec("0.23.0", "cuda")) == set()
