"""Environments out of a wheelhouse: uv itself builds them, and nobody is asked for
anything."""

import json
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from grids import grid
from mmrepro.base.errors import (
    EnvironmentBuildError,
    ExitCode,
    MmreproError,
    UsageError,
)
from mmrepro.base.machine.files import environments_root
from mmrepro.engines.environments.build import ensure, existing
from mmrepro.engines.environments.spec import Environment, EnvironmentSpec
from mmrepro.engines.environments.store import read_manifest
from mmrepro.engines.environments.uv import uv_binary
from mmrepro.engines.environments.wheelhouse import make, make_target
from mmrepro.engines.environments.wheelhouse.carried import CarriedBuild
from toy_index import ToyIndex, served, wheel_of, write

MIB = 1 << 20
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
SPEC = EnvironmentSpec(
    engine="toy",
    release="1.0",
    device="cpu",
    project="toy-engine",
    dated_by="toy-engine",
    dist_aliases=("toy==1.0+cpu",),
)


@dataclass
class Air:
    """A wheelhouse in ``house``, and the machine's Python ``host``, in a virtual
    environment."""

    house: Path
    host: Path

    def build(
        self, spec: EnvironmentSpec = SPEC, *, see_host: bool = False
    ) -> Environment:
        return ensure(
            spec,
            wheelhouse=self.house,
            python=str(self.host),
            system_site_packages=see_host,
        )


def host_python(folder: Path, **packages: str) -> Path:
    """A virtual environment with such packages; its interpreter."""
    wheels = folder / "wheels"
    wheels.mkdir(parents=True)
    files = [str(write(wheels, name, version)) for name, version in packages.items()]
    venv = folder / "venv"
    run(uv_binary(), "venv", "-q", "--python", sys.executable, str(venv))
    python = venv / "bin" / "python"
    run(
        uv_binary(),
        "pip",
        "install",
        "-q",
        "--offline",
        "--no-deps",
        "--python",
        python,
        *files,
    )
    return python


def run(*command: object) -> str:
    words = [str(word) for word in command]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, small_mmrepro: None) -> Path:
    """A wheelhouse, made with an index that is no longer there."""
    folder = tmp_path_factory.mktemp("made")
    index = ToyIndex()
    index.wheel("toy-engine", "1.0", ["torch==2.9.1", "helper", "kernels"])
    index.wheel("torch", "2.9.1", ["numbers"])
    index.wheel("numbers", "1.0")
    index.wheel("helper", "1.0")
    index.wheel("kernels", "1.0", ballast=4 * MIB)
    freeze = "torch==2.9.1+cu130\nhelper==9.9\n"
    with pytest.MonkeyPatch.context() as patch, served(index) as address:
        patch.setenv("UV_CACHE_DIR", str(folder / "uv"))
        patch.setenv("UV_DEFAULT_INDEX", address)
        make(
            SPEC, make_target(PYTHON, freeze=freeze), folder / "house", max_part=2 * MIB
        )
    return folder / "house"


@pytest.fixture
def air(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Air:
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    monkeypatch.setenv("MMREPRO_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9")  # nobody answers there
    host = host_python(tmp_path / "host", torch="2.9.1+cu130", helper="9.9")
    return Air(Path(shutil.copytree(made, tmp_path / "house")), host)


def left_over() -> list[str]:
    root = environments_root()
    return (
        [p.name for p in root.iterdir() if p.name != ".locks"] if root.exists() else []
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "interpreter"), [(PYTHON, sys.executable), ("3.99", "3.99")]
)
def test_this_interpreter_is_taken_only_where_the_wheels_are_for_it(
    air: Air, tmp_path: Path, target: str, interpreter: str
) -> None:
    file = air.house / "wheelhouse.json"
    document = json.loads(file.read_text())
    document["target"]["python"] = target
    file.write_text(json.dumps(document))
    build = CarriedBuild(
        SPEC,
        tmp_path / "environment",
        lambda _: None,
        wheelhouse=air.house,
        python="",
        system_site_packages=False,
    )
    assert build.interpreter == interpreter


def test_it_is_built_and_found_by_a_plain_run(air: Air) -> None:
    assert existing(SPEC) is None
    made = air.build()
    assert not made.reused
    found = existing(SPEC)
    assert found is not None
    assert found.path == made.path
    assert ensure(SPEC).reused
    assert not (made.path / "wheels").exists()
    manifest = read_manifest(made.path)
    assert manifest is not None
    assert (manifest.source, manifest.host_packages) == (
        "wheelhouse",
        ["torch==2.9.1+cu130"],
    )
    assert manifest.packages == [
        "helper==1.0",
        "kernels==1.0",
        "torch==2.9.1+cu130",
        "toy-engine==1.0",
    ]
    assert manifest.resolved_until == "2026-06-02T00:00:00+00:00"
    assert (made.site_packages / "toy-1.0+cpu.dist-info").is_dir()
    notes = {note.name: (note.value, note.why) for note in made.notes}
    assert notes["packages of the host"][0] == "torch 2.9.1+cu130"
    assert notes["packages left out"] == (
        "numbers 1.0",
        "only what is not carried needs it",
    )
    lock = made.lock_file.read_text()
    assert "# of the host: torch==2.9.1+cu130" in lock
    assert lock.count("--hash=sha256:") == 3


def test_its_own_packages_come_before_the_hosts(air: Air) -> None:
    """The host's Python is one of a virtual environment: its packages, not those of its
    base."""
    made = air.build()
    script = (
        "import helper, torch, toy_engine, json; from importlib.metadata import "
        "version; print(json.dumps([helper.VERSION, version('helper'), torch.VERSION, "
        "torch.__file__]))"
    )
    helper, listed, torch, where = json.loads(run(made.python, "-c", script))
    assert (helper, listed, torch) == ("1.0", "1.0", "2.9.1+cu130")
    assert Path(where).is_relative_to(air.host.parent.parent)


def test_pth_files_of_the_host_count_as_well(air: Air) -> None:
    beside = air.host.parents[2] / "beside"
    beside.mkdir()
    (beside / "editable_there.py").write_text("HERE = 1\n")
    next(air.host.parents[1].glob("lib/*/site-packages")).joinpath("x.pth").write_text(
        f"{beside}\n"
    )
    made = air.build()
    assert (
        run(made.python, "-c", "import editable_there; print(editable_there.HERE)")
        == "1\n"
    )


def test_without_a_list_the_host_is_seen_only_where_it_is_asked_for(
    air: Air, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = ToyIndex()
    index.wheel("toy-engine", "1.0", ["helper"])
    index.wheel("helper", "1.0")
    air.house = tmp_path / "other"
    with served(index) as address:
        monkeypatch.setenv("UV_DEFAULT_INDEX", address)
        make(SPEC, make_target(PYTHON), air.house, max_part=2 * MIB)
    made = air.build()
    look = ("-c", "import importlib.util as u; print(u.find_spec('torch') is not None)")
    assert run(made.python, *look) == "False\n"
    monkeypatch.setenv("MMREPRO_CACHE_DIR", str(tmp_path / "cache-2"))
    assert run(air.build(see_host=True).python, *look) == "True\n"


@pytest.mark.parametrize("flat", grid([False, True], always=[True]))
def test_wheels_with_local_versions(
    air: Air, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flat: bool
) -> None:
    """As indexes of CUDA builds have them, and folders of wheels: carried, or built as
    ever."""
    python = f"cp{PYTHON.replace('.', '')}"
    tag = f"{python}-{python}-manylinux_2_28_{platform.machine()}"
    index = ToyIndex()
    index.wheel("toy-engine", "1.0+cu129", ["torch==2.9.1"], tag=tag)
    index.wheel("torch", "2.9.1+cu129", tag=tag, ballast=3 * MIB)
    # A folder gives no upload times.
    spec = replace(SPEC, cutoff="2026-06-02T00:00:00+00:00")
    air.house = tmp_path / "other"
    if flat:
        for name, (content, _) in (n for f in index.files.values() for n in f.items()):
            (tmp_path / name).write_bytes(content)
        index.files.clear()
        monkeypatch.setenv("UV_FIND_LINKS", str(tmp_path))
    with served(index) as address:
        monkeypatch.setenv("UV_DEFAULT_INDEX", address)
        make(spec, make_target(PYTHON), air.house, max_part=2 * MIB)
        from_index = ensure(spec)
    monkeypatch.delenv("UV_FIND_LINKS", raising=False)
    monkeypatch.setenv("MMREPRO_CACHE_DIR", str(tmp_path / "cache-2"))
    carried = air.build(spec)
    for made in (from_index, carried):
        assert made.packages == ["torch==2.9.1+cu129", "toy-engine==1.0+cu129"]
        script = "import torch, toy_engine; print(torch.VERSION, toy_engine.VERSION)"
        assert run(made.python, "-c", script) == "2.9.1+cu129 1.0+cu129\n"


def fails(air: Air, spec: EnvironmentSpec = SPEC) -> MmreproError:
    with pytest.raises(MmreproError) as caught:
        air.build(spec)
    assert left_over() == []
    return caught.value


def test_a_host_that_has_something_else(air: Air, tmp_path: Path) -> None:
    air.host = host_python(tmp_path / "host-2", torch="2.8.0+cu128")
    error = fails(air)
    assert isinstance(error, EnvironmentBuildError)
    assert error.message == (
        "This wheelhouse is for a machine with torch 2.9.1+cu130; "
        f"{air.host} has torch 2.8.0+cu128."
    )
    air.host = host_python(tmp_path / "host-3", helper="1.0")
    assert fails(air).message.endswith(f"{air.host} has torch not at all.")
    air.host = tmp_path / "nowhere" / "python"
    assert fails(air).message.endswith(f"{air.host} is none that works here.")


def test_a_machine_that_is_another(air: Air) -> None:
    document = json.loads((air.house / "wheelhouse.json").read_text())
    for key, value, words in (
        ("python", "3.99", f"with Python 3.99; {air.host} is {PYTHON}."),
        ("platform", "x86_64-manylinux_2_999", "with glibc 2.999; this machine has 2."),
        (
            "platform",
            "riscv64-manylinux_2_17",
            "with riscv64-manylinux_2_17; this machine is ",
        ),
    ):
        changed = {**document, "made": "2099-01-01T00:00:00Z"}
        changed["target"] = {**document["target"], key: value}
        (air.house / "wheelhouse.json").write_text(json.dumps(changed))
        assert words in fails(air).message


def test_what_is_damaged_on_the_way(air: Air) -> None:
    """In the words of install.py: test_wheelhouse_pack.py has them all."""
    victim = next(air.house.glob("part-*/kernels-*.002"))
    part, bad = victim.parent.name, "The wheelhouse cannot be used: "
    victim.write_bytes(b"\0" + victim.read_bytes()[1:])
    error = fails(air)
    assert error.exit_code == ExitCode.INFRASTRUCTURE
    assert (
        error.message == f"{bad}{part}/{victim.name} is damaged: its SHA-256 differs."
    )
    assert "install.py --check" in error.hint
    shutil.rmtree(victim.parent)
    assert fails(air).message == f"{bad}{part} of 3 parts is missing."


def test_an_engine_that_it_does_not_hold(air: Air) -> None:
    error = fails(air, replace(SPEC, release="2.0"))
    assert isinstance(error, UsageError)
    assert error.message == "The wheelhouse holds toy 1.0 (cpu); not toy 2.0 (cpu)."


def test_no_wheelhouse_at_all(air: Air, tmp_path: Path) -> None:
    air.house = tmp_path / "empty"
    air.house.mkdir()
    assert "is no wheelhouse" in fails(air).message


def test_a_manifest_of_another_version(air: Air) -> None:
    for path in air.house.glob("**/wheelhouse.json"):
        path.write_text(path.read_text().replace('"cutoff"', '"bound"'))
    assert "cannot be read by this version" in fails(air).message


def test_requirements_that_were_asked_for_in_another_way_are_noted(air: Air) -> None:
    made = air.build(replace(SPEC, requirements=("helper>=1",)))
    note = next(note for note in made.notes if note.name == "requirements")
    assert note.value == SPEC.key()


def test_a_torch_that_misses_a_library_is_said(air: Air) -> None:
    torch = next(air.host.parents[1].glob("lib/*/site-packages/torch/__init__.py"))
    torch.unlink()  # it is a hard link into uv's cache
    torch.write_text(
        "raise ImportError('libnone.so.9: cannot open shared object file: No such "
        "file')\n"
    )
    assert "does not load without libnone.so.9" in fails(air).message


def test_wheel_of_gives_the_same_bytes() -> None:
    """What the tests of adding rely on."""
    assert wheel_of("a", "1", ()) == wheel_of("a", "1", ())
