"""Wheelhouses of tiny wheels: uv itself resolves, from an index on the loopback."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from mmrepro.base.errors import EnvironmentBuildError, ExitCode, UsageError
from mmrepro.engines.environments.spec import EnvironmentSpec, vllm_spec
from mmrepro.engines.environments.wheelhouse import Made, check, make, make_target
from mmrepro.engines.environments.wheelhouse.model import Package, unneeded
from toy_index import LATE, ToyIndex, served

MIB = 1 << 20
PART = 2 * MIB
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
SPEC = EnvironmentSpec(
    engine="toy",
    release="1.0",
    device="cpu",
    project="toy-engine",
    dated_by="toy-engine",
)
OTHER = replace(SPEC, engine="other", project="other-engine", dated_by="other-engine")
TORCH_THERE = "torch==2.9.1+cu130\ntorchvision==0.24.1\nnvidia-cublas==13.0\n"


@pytest.fixture
def index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_mmrepro: None
) -> Iterator[ToyIndex]:
    made = ToyIndex()
    made.wheel(
        "toy-engine", "1.0", ["torch==2.9.1", "torchvision", "helper>=1", "kernels"]
    )
    made.wheel("other-engine", "1.0", ["helper", "more"])
    for torch, vision in (("2.8.0", "0.23.0"), ("2.9.1", "0.24.1")):
        made.wheel("torch", torch, ["nvidia-cublas>=12", "sympy"], ballast=64)
        made.wheel("torchvision", vision, [f"torch=={torch}"])
    made.wheel("nvidia-cublas", "12.0")
    made.wheel("nvidia-cublas", "13.0", uploaded=LATE)
    made.wheel("sympy", "1.0")
    made.wheel("helper", "1.0")
    made.wheel("helper", "2.0", uploaded=LATE)
    made.wheel("kernels", "1.0", ["only-kernels"], ballast=4 * MIB)
    made.wheel("only-kernels", "1.0")
    made.wheel("more", "1.0")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    monkeypatch.setenv("MMREPRO_CACHE_DIR", str(tmp_path / "cache"))
    with served(made) as address:
        monkeypatch.setenv("UV_DEFAULT_INDEX", address)
        yield made


def made_in(
    folder: Path,
    freeze: str = "",
    leave_out: Sequence[str] = (),
    *,
    spec: EnvironmentSpec = SPEC,
    dry_run: bool = False,
) -> Made:
    target = make_target(PYTHON, freeze=freeze)
    return make(
        spec, target, folder, leave_out=leave_out, max_part=PART, dry_run=dry_run
    )


def packages(made: Made, engine: str = "toy") -> dict[str, Package]:
    assert made.house is not None
    entry = next(one for one in made.house.engines if one.engine == engine)
    return {one.name: one for one in entry.packages}


def fetched(index: ToyIndex) -> set[str]:
    """Projects of which a file was downloaded."""
    names = [
        path.rpartition("/")[2] for path in index.asked if path.startswith("/files/")
    ]
    return {name.partition("-")[0] for name in names if not name.endswith(".metadata")}


def test_all_of_it_as_of_the_releases_day(index: ToyIndex, tmp_path: Path) -> None:
    folder = tmp_path / "house"
    made = made_in(folder)
    there = packages(made)
    assert {name: one.version for name, one in there.items()} == {
        "toy-engine": "1.0",
        "torch": "2.9.1",
        "torchvision": "0.24.1",
        "nvidia-cublas": "12.0",
        "sympy": "1.0",
        "helper": "1.0",
        "kernels": "1.0",
        "only-kernels": "1.0",
    }
    assert all(one.file and one.origin == "wheel" for one in there.values())
    house = check(folder)
    assert house == made.house
    kernels = next(file for file in house.files if file.name.startswith("kernels"))
    assert len(kernels.pieces) == 3
    for part in house.parts:
        inside = {path.name for path in (folder / part).iterdir()}
        assert {"wheelhouse.json", "install.py"} < inside
        assert sum(path.stat().st_size for path in (folder / part).iterdir()) <= PART
    assert not (folder / ".fetched").exists()
    assert "://" not in (folder / "wheelhouse.json").read_text()


def test_the_targets_torch_is_never_fetched(index: ToyIndex, tmp_path: Path) -> None:
    made = made_in(tmp_path / "house", TORCH_THERE + "helper==1.0\nunrelated==3\n")
    there = packages(made)
    assert {
        name: one.version for name, one in there.items() if one.origin == "host"
    } == {
        "torch": "2.9.1+cu130",
        "torchvision": "0.24.1",
        "nvidia-cublas": "13.0",  # younger than the release: it is what the target has
        "helper": "1.0",
    }
    assert there["sympy"].origin == "left-out"
    assert there["sympy"].why == "only what is not carried needs it"
    assert fetched(index) == {"toy_engine", "kernels", "only_kernels"}


def test_what_another_needs_as_well_is_carried_beside_the_targets_torch(
    index: ToyIndex, tmp_path: Path
) -> None:
    index.wheel("helper", "1.1", ["sympy"])
    assert packages(made_in(tmp_path / "house", TORCH_THERE))["sympy"].origin == "wheel"


def test_an_engine_that_is_torch_takes_the_targets(
    index: ToyIndex, tmp_path: Path
) -> None:
    spec = replace(
        SPEC,
        project="torch",
        version="2.9.1",
        dated_by="torch",
        requirements=("helper",),
    )
    made = made_in(tmp_path / "house", TORCH_THERE, spec=spec)
    there = packages(made)
    assert there["torch"].version == "2.9.1+cu130"
    assert {name for name, one in there.items() if one.file} == {"helper"}
    assert made.house is not None
    assert made.house.engines[0].wheel.origin == "the host's own installation"
    with pytest.raises(EnvironmentBuildError) as caught:
        made_in(tmp_path / "no", "torch==2.8.0+cu128\n", spec=spec)
    assert (
        caught.value.message
        == "toy 1.0 wants torch==2.9.1; the target has torch 2.8.0+cu128."
    )


@pytest.mark.parametrize(
    ("freeze", "sentence"),
    [
        (
            "torch==2.8.0+cu128\n",
            "toy 1.0 wants torch==2.9.1; the target has torch 2.8.0+cu128.",
        ),
        (
            "torch==2.9.1+cu130\ntorchvision==0.23.0\n",
            "The package index cannot give torch==2.9.1 torchvision==0.23.0, which the "
            f"target has, for Python {PYTHON}.",
        ),
        (
            "torch==2.10.0.dev20260101+cu130\n",
            "The package index cannot give torch==2.10.0.dev20260101, which the target "
            f"has, for Python {PYTHON}.",
        ),
    ],
)
def test_pins_that_clash_are_named(
    index: ToyIndex, tmp_path: Path, freeze: str, sentence: str
) -> None:
    with pytest.raises(EnvironmentBuildError) as caught:
        made_in(tmp_path / "house", freeze)
    assert caught.value.message == sentence
    assert caught.value.exit_code == ExitCode.INFRASTRUCTURE
    assert fetched(index) == set()


def test_a_clash_that_only_another_package_has(index: ToyIndex, tmp_path: Path) -> None:
    index.wheel("helper", "1.1", ["torch!=2.8.0"])
    spec = replace(SPEC, project="other-engine", dated_by="other-engine")
    index.wheel("other-engine", "1.0", ["torch", "helper==1.1"])
    with pytest.raises(EnvironmentBuildError) as caught:
        made_in(tmp_path / "house", "torch==2.8.0+cu128\n", spec=spec)
    assert caught.value.message == (
        "toy 1.0 resolves to torch==2.9.1; the target has torch 2.8.0+cu128."
    )


def test_what_is_left_out_takes_along_what_only_it_needs(
    index: ToyIndex, tmp_path: Path
) -> None:
    there = packages(made_in(tmp_path / "house", leave_out=["Kernels"]))
    assert (there["kernels"].why, there["kernels"].file) == ("left out by request", "")
    assert there["only-kernels"].why == "only what is not carried needs it"
    assert there["helper"].file
    assert "kernels" not in fetched(index)
    with pytest.raises(
        UsageError, match=r"does not require kernel, so it cannot be left out"
    ):
        made_in(tmp_path / "no", leave_out=["kernel"])


def test_what_is_not_needed_is_left_out_of_a_lean_one(
    index: ToyIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spare = {
        "kernels": "for others",
        "nothing-here": "of another release",
        "torch": "no",
    }
    monkeypatch.setattr(sys.modules[make.__module__], "unneeded", lambda spec: spare)
    target = make_target(PYTHON, freeze=TORCH_THERE)
    made = make(SPEC, target, tmp_path / "house", lean=True, max_part=PART)
    there = packages(made)
    assert (there["kernels"].origin, there["kernels"].why) == ("left-out", "for others")
    assert there["only-kernels"].origin == "left-out"
    assert there["torch"].origin == "host"


def test_the_table_of_what_is_not_needed() -> None:
    spare = unneeded(vllm_spec("0.23.0", "cuda"))
    assert "flashinfer-cubin" in spare
    assert all(spare.values())
    assert unneeded(vllm_spec("0.24.0", "cuda")) == spare
    assert (
        unneeded(vllm_spec("0.23.0", "cpu"))
        == unneeded(vllm_spec("0.32.0", "cuda"))
        == {}
    )


def test_a_second_engine_is_added_in_new_parts(index: ToyIndex, tmp_path: Path) -> None:
    folder = tmp_path / "house"
    first = made_in(folder)
    before = {p: p.read_bytes() for p in folder.glob("part-*/*")}
    index.asked.clear()
    second = made_in(folder, spec=OTHER)
    assert {p: p.read_bytes() for p in before} == before
    assert fetched(index) == {"other_engine", "more"}
    assert second.new_parts == [f"part-{len(first.new_parts) + 1:02d}"]
    assert second.house is not None
    assert [one.engine for one in second.house.engines] == ["toy", "other"]
    assert check(folder) == second.house
    again = made_in(folder, spec=OTHER)
    assert again.new_parts == []
    assert len(again.house.engines if again.house else []) == 2


def test_an_engine_whose_files_are_all_there_gets_a_part_that_names_it(
    index: ToyIndex, tmp_path: Path
) -> None:
    folder = tmp_path / "house"
    made_in(folder)
    added = made_in(folder, spec=replace(SPEC, device="cuda"))
    assert len(added.new_parts) == 1
    (folder / "wheelhouse.json").unlink()  # only parts are carried
    assert [one.device for one in check(folder).engines] == ["cpu", "cuda"]


def test_a_folder_that_is_for_something_else(index: ToyIndex, tmp_path: Path) -> None:
    folder = tmp_path / "house"
    made_in(folder)
    with pytest.raises(UsageError, match=r"is for Python .* not for this one"):
        made_in(folder, TORCH_THERE)
    full = tmp_path / "full"
    full.mkdir()
    (full / "thesis.txt").touch()
    with pytest.raises(UsageError, match="is not empty, and no wheelhouse"):
        made_in(full)


def test_a_dry_run_downloads_and_writes_nothing(
    index: ToyIndex, tmp_path: Path
) -> None:
    made = made_in(tmp_path / "house", dry_run=True)
    assert made.house is None
    sizes = {one.name: one.file.size for one in made.plan.packages if one.file}
    assert (sizes["kernels"] or 0) > 4 * MIB
    assert fetched(index) == set()
    assert not (tmp_path / "house").exists()


def test_an_index_without_metadata_files_and_sizes(
    index: ToyIndex, tmp_path: Path
) -> None:
    index.serves_metadata = False
    assert packages(made_in(tmp_path / "house"))["toy-engine"].file


def test_pure_source_is_built_here(index: ToyIndex, tmp_path: Path) -> None:
    del index.files["helper"]
    index.sdist("helper", "1.0")
    helper = packages(made_in(tmp_path / "house"))["helper"]
    assert (helper.origin, helper.file) == ("built", "helper-1.0-py3-none-any.whl")
    assert helper.why.startswith("built here from source ")


def test_source_that_must_be_compiled_is_refused(
    index: ToyIndex, tmp_path: Path
) -> None:
    del index.files["helper"]
    index.sdist("helper", "1.0", tag=f"cp{PYTHON.replace('.', '')}-abi3-linux_x86_64")
    with pytest.raises(
        EnvironmentBuildError, match=r"helper 1\.0 comes as source only, and must"
    ):
        made_in(tmp_path / "house")


def test_what_was_fetched_before_it_broke_off_is_not_fetched_again(
    index: ToyIndex, tmp_path: Path
) -> None:
    name = "kernels-1.0-py3-none-any.whl"
    content, uploaded = index.files["kernels"][name]
    # Not what its page announced.
    index.files["kernels"][name] = (
        content[:-1] + b"?",
        uploaded,
    )
    page = index.files.pop("kernels")
    index.files["kernels"] = {name: (content, uploaded)}
    honest = index.answer
    index.answer = lambda path: (  # type: ignore[method-assign]
        (page[name][0], "x") if path == f"/files/{name}" else honest(path)
    )
    with pytest.raises(
        EnvironmentBuildError, match=r"kernels-1\.0.* its SHA-256 differs"
    ):
        made_in(tmp_path / "house")
    assert (tmp_path / "house" / ".fetched" / "helper-1.0-py3-none-any.whl").exists()
    index.answer = honest  # type: ignore[method-assign]
    index.asked.clear()
    made_in(tmp_path / "house")
    assert "kernels" in fetched(index)
    assert "helper" not in fetched(index)


def test_parts_that_are_too_small(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="are too small"):
        make(SPEC, make_target(PYTHON), tmp_path, max_part=1000)


def test_another_python_than_the_release_wants(index: ToyIndex, tmp_path: Path) -> None:
    spec = replace(SPEC, python="3.9")
    with pytest.raises(
        UsageError, match=rf"toy 1\.0 wants Python 3\.9, not {PYTHON}\."
    ):
        made_in(tmp_path / "house", spec=spec)


def test_mmrepro_alone(index: ToyIndex, tmp_path: Path) -> None:
    """For a machine that only observes; an engine can be added afterwards."""
    house = tmp_path / "house"
    alone = make(None, make_target(PYTHON), house, max_part=PART)
    assert alone.plan is None
    assert check(house).engines == []
    assert "mmrepro" in {one.name for one in check(house).harness.packages}
    made_in(house)
    assert [one.engine for one in check(house).engines] == ["toy"]
