"""What a wheelhouse holds besides engines: mmrepro's own wheel, and the script that
installs it."""

import ast
import io
import sys
import zipfile
from collections.abc import Sequence
from importlib.metadata import PathDistribution
from pathlib import Path
from types import SimpleNamespace

import pytest
from mmrepro.base.errors import UsageError
from mmrepro.base.installed import checkout_folder
from mmrepro.engines.environments.releases import best_wheel
from mmrepro.engines.environments.uv import UvFailed, release_files, run_uv
from mmrepro.engines.environments.wheelhouse import install, make_target, own
from mmrepro.engines.environments.wheelhouse.model import have_of
from toy_index import wheel_of


def test_the_script_needs_nothing_but_the_standard_library() -> None:
    tree = ast.parse(Path(install.__file__).read_text())
    imported = {
        name.partition(".")[0]
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert imported <= sys.stdlib_module_names | {"__future__"}
    assert "argparse" in imported


def test_an_installed_mmrepro_is_packed_into_the_wheel_that_it_came_from(
    tmp_path: Path,
) -> None:
    content, _ = wheel_of("mmrepro", "0.1.0", ["typer", 'x; extra == "gpu"'])
    wheels, site = tmp_path / "wheels", tmp_path / "site"
    wheels.mkdir()
    (wheels / "mmrepro-0.1.0-py3-none-any.whl").write_bytes(content)
    install_into(site, wheels)
    (site / "mmrepro" / "__pycache__").mkdir()
    (site / "mmrepro" / "__pycache__" / "left.cpython-311.pyc").touch()
    installed = PathDistribution(site / "mmrepro-0.1.0.dist-info")
    again = tmp_path / "again"
    again.mkdir()
    made = own._packed(installed, again)
    assert made.name == "mmrepro-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(io.BytesIO(content)) as before, zipfile.ZipFile(made) as after:
        assert set(after.namelist()) == set(before.namelist())
        for name in before.namelist():
            if not name.endswith("RECORD"):
                assert after.read(name) == before.read(name)
    install_into(tmp_path / "site-2", again)  # uv checks its RECORD
    assert made.read_bytes() == own._packed(installed, tmp_path).read_bytes()


def install_into(site: Path, wheels: Path) -> None:
    arguments = [
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        "--offline",
        "--no-cache",
    ]
    run_uv([*arguments, "--target", str(site), "--find-links", str(wheels), "mmrepro"])


def test_the_sources_of_its_wheel_are_there() -> None:
    checkout = checkout_folder()
    assert checkout is not None
    sources = own._sources(checkout)
    assert {
        "harness",
        "scenarios",
        "probes",
        "reproducers",
        "reports",
        "LICENSE",
    } <= set(sources)
    assert all((checkout / one).exists() for one in sources)
    needed = own._requirements(checkout)
    assert any(one.startswith("uv") for one in needed)
    assert any(one.startswith("py-spy") for one in needed)
    assert any(one.startswith("nvidia-ml-py") for one in needed)


# ---------------------------------------------------------------------- the target


def test_lists_of_what_a_target_has() -> None:
    assert have_of(
        "# made there\n"
        "torch==2.11.0+cu130\n"
        "Flash_Attn == 2.8.3\n"
        "-e git+ssh://somewhere#egg=mine\n"
        "vision @ file:///tmp/torchvision-0.26.0%2Bcu130-cp312-cp312-linux_x86_64.whl\n"
        "ours @ file:///tmp/ours\n"
        "odd==not a version\n"
        "numpy==2.5.2 # pinned\n"
    ) == {
        "torch": "2.11.0+cu130",
        "flash-attn": "2.8.3",
        "vision": "0.26.0+cu130",
        "numpy": "2.5.2",
    }
    assert have_of("") == {}
    with pytest.raises(UsageError, match="names no package"):
        have_of("Package Version\n------- -------\ntorch   2.11.0\n")


@pytest.mark.parametrize(
    ("python", "platform", "words"),
    [
        ("3", "", "is no version of Python"),
        ("3.12.1", "", "is no version of Python"),
        ("3.12", "windows", "is no platform"),
        ("3.12", "x86_64-unknown-linux-gnu", "is no platform"),
    ],
)
def test_a_target_that_is_none(python: str, platform: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make_target(python, platform)


@pytest.mark.parametrize(
    "asked", [(3, 4, 7, 10), pytest.param(range(11), marks=pytest.mark.nightly)]
)
def test_the_wheel_that_an_installer_there_would_take(
    tmp_path: Path, asked: Sequence[int]
) -> None:
    """From a folder as index (`--find-links`): uv names what fits, the best of it is
    carried."""
    tags = [
        "cp313-cp313-manylinux_2_17_x86_64",  # another Python
        "cp312-cp312-manylinux_2_34_x86_64",  # a newer glibc
        "cp312-cp312-macosx_11_0_arm64",
        "cp312-cp312-musllinux_1_2_x86_64",
        "py3-none-any",
        "cp38-abi3-manylinux2014_x86_64.manylinux_2_17_x86_64",
        "cp39-abi3-manylinux2014_x86_64.manylinux_2_17_x86_64",
        "cp311-abi3-manylinux2014_x86_64.manylinux_2_17_x86_64",
        "cp312-cp312-manylinux2014_x86_64",
        "cp312-cp312-manylinux_2_28_x86_64",
        "2-cp312-cp312-manylinux_2_28_x86_64",  # built again
    ]
    options = ("--no-index", "--find-links", str(tmp_path))

    def taken() -> str | None:
        try:
            found = release_files(
                "x==1.0+cu129",
                "3.12",
                platform="x86_64-manylinux_2_28",
                options=options,
            )
        except UvFailed:
            return None
        return best_wheel(found.wheels).filename

    for number, tag in enumerate(tags):
        name = f"x-1.0+cu129-{tag}.whl"
        (tmp_path / name).write_bytes(wheel_of("x", "1.0+cu129", (), tag=tag)[0])
        if number in asked:
            assert taken() == (name if number > 3 else None)


def test_an_installed_mmrepro_needs_what_runs_engines_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    needed = [
        "typer>=0.26",
        "zstd; python_version < '3.14'",
        'uv>=0.9; extra == "run"',
        "pillow; python_version > '3' and extra == 'run'",
        'ray; extra == "cluster"',
    ]
    monkeypatch.setattr(own, "_installed", lambda: SimpleNamespace(requires=needed))
    assert own._requirements(None) == [
        "typer>=0.26",
        "zstd; python_version < '3.14'",
        "uv>=0.9",
        "pillow; python_version > '3'",
    ]
    here = own._requirements(checkout_folder())
    assert {one.partition(">")[0] for one in here} >= {"typer", "uv", "greenlet"}
