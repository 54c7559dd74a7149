"""CUDA's core dump of a GPU on request: a fake process that owns a pipe, and a fake
cuda-gdb.

Real ones, on a GPU: docs/lab/gpu.md.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from mmrepro.probes import gpu_core
from mmrepro.probes.base import ProbeStatus, run_probe
from mmrepro.probes.data import GpuCoreData
from mmrepro.probes.gpu_core import GpuCoreProbe, Pipe, kernels, pipe_of

FAKE = """
import os, sys
pid = os.getpid()
os.mkfifo(f"corepipe.cuda.fake-host.{pid}")
print("ready", flush=True)
with open(f"corepipe.cuda.fake-host.{pid}", "rb") as pipe:
    pipe.read(1)
    if sys.argv[1] == "dumps":
        with open(f"core_17_fake-host_{pid}.nvcudmp", "wb") as dump:
            dump.write(b"x" * 4096)
    sys.stdin.read()
"""
RECORDED = """\
Opening GPU coredump: core_17_vm_811.nvcudmp
[Current focus set to CUDA kernel 0, grid 2, block (0,0,0), thread (0,0,0), device 0]
#0  0x00007f5c877a0fb0 in at::cuda::(anonymous namespace)::spin_kernel(long)<<<(1,1,1),(1,1,1)>>> ()
  Kernel Parent Dev Grid Status            SMs Mask GridDim BlockDim Invocation
*      0      -   0    2 Active 0x00100000000000000 (1,1,1)  (1,1,1) at::cuda::spin_kernel()
"""
"""What cuda-gdb 13.0 prints on an H200, the masks and the name shortened."""
GDB = f"#!/bin/sh\ncat <<'END'\n{RECORDED}END\n"


@pytest.fixture
def fake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[int]:
    env = dict(os.environ, **getattr(request, "param", {gpu_core.ENABLE: "1"}))
    command = [sys.executable, "-c", FAKE, "dumps"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process.pid
        process.kill()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gpu_core, "QUIET_S", 0.1)
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "cuda-gdb").write_text(GDB)
    (tools / "cuda-gdb").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")


def test_the_kernel_of_a_dump(fake: int, tmp_path: Path) -> None:
    pipe = pipe_of(fake)
    assert pipe is not None
    data = run_probe(GpuCoreProbe(fake, pipe), tmp_path / "e", 20).data
    assert isinstance(data, GpuCoreData)
    assert (data.bytes, data.kernels) == (4096, ["at::cuda::spin_kernel()"])
    assert Path(data.file).parent == tmp_path


def test_the_pipe_as_driver_580_names_it(fake: int, tmp_path: Path) -> None:
    (tmp_path / f"corepipe.cuda.fake-host.{fake}").rename(
        tmp_path / f"corepipe_vm_{fake}"
    )
    pipe = pipe_of(fake)
    assert pipe is not None
    assert pipe.path.name == f"corepipe_vm_{fake}"


@pytest.mark.parametrize("fake", [{gpu_core.ENABLE: "0"}, {}], indirect=True)
def test_a_process_that_was_not_started_for_it(fake: int) -> None:
    assert pipe_of(fake) is None


@pytest.mark.parametrize(
    "fake",
    [{gpu_core.ENABLE: "1", "CUDA_COREDUMP_PIPE": "other.%p"}],
    indirect=True,
)
def test_the_pipe_has_the_name_that_its_process_gave_it(
    fake: int, tmp_path: Path
) -> None:
    assert pipe_of(fake) is None
    (tmp_path / f"other.{fake}").write_text("no pipe")
    assert pipe_of(fake) is None
    (tmp_path / f"other.{fake}").unlink()
    os.mkfifo(tmp_path / f"other.{fake}")
    pipe = pipe_of(fake)
    assert pipe is not None
    assert pipe.path == tmp_path / f"other.{fake}"
    nobody = run_probe(GpuCoreProbe(fake, pipe), tmp_path / "e", 5)
    assert nobody.status is ProbeStatus.UNAVAILABLE
    assert "No such device" in nobody.reason


def test_a_file_is_never_written_to(tmp_path: Path) -> None:
    file = tmp_path / "pipe"
    file.write_text("kept")
    result = run_probe(
        GpuCoreProbe(1, Pipe(file, (tmp_path, "*.dump"))), tmp_path / "e", 5
    )
    assert (result.status, file.read_text()) == (ProbeStatus.UNAVAILABLE, "kept")


def test_no_dump_comes_of_it(fake: int, tmp_path: Path) -> None:
    pipe = pipe_of(fake)
    assert pipe is not None
    late = run_probe(
        GpuCoreProbe(fake, Pipe(pipe.path, (tmp_path, "another.*"))),
        tmp_path / "e",
        1.0,
    )
    assert late.status is ProbeStatus.TIMED_OUT
    assert "no dump was written" in late.reason


def test_a_table_without_kernels() -> None:
    assert kernels("No CUDA kernels.\n") == []
    assert kernels("  Kernel GridDim Invocation\nwarning: 3 symbols\n") == []
