"""``mmrepro env wheelhouse`` and ``env create --wheelhouse`` as they are typed."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import in_process
import pytest
from mmrepro.base.errors import ExitCode
from mmrepro.cli.app import app
from mmrepro.engines.environments.spec import MINIVLLM_REQUIREMENTS, TORCH
from toy_index import ToyIndex, served

PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"


def wheelhouse(into: Path, *more: str) -> None:
    where = ("--into", str(into), "--python", PYTHON, "--device", "cpu")
    words = ["env", "wheelhouse", "minivllm", "0.1", *where, *more]
    app(words, prog_name="mmrepro", standalone_mode=False)


@pytest.fixture
def index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_mmrepro: None
) -> Iterator[ToyIndex]:
    """With all that minivllm wants, an empty wheel each."""
    made = ToyIndex()
    made.wheel("torch", TORCH, ["sympy"])
    made.wheel("sympy", "1.14")
    for line in MINIVLLM_REQUIREMENTS:
        name, _, version = line.partition("==")
        made.wheel(name, version or "1.0")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    with served(made) as address:
        monkeypatch.setenv("UV_DEFAULT_INDEX", address)
        yield made


def test_a_dry_run_as_one_document(
    index: ToyIndex, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    have = tmp_path / "freeze.txt"
    have.write_text(f"torch=={TORCH}+cu130\nnumpy==1.0\n")
    wheelhouse(tmp_path / "h", "--have", str(have), "--dry-run", "--json")
    document = json.loads(capsys.readouterr().out)
    assert document["wheelhouse"] is None
    packages = {one["name"]: one for one in document["packages"]}
    assert packages["torch"]["version"] == f"{TORCH}+cu130"
    assert (packages["torch"]["origin"], packages["torch"]["bytes"]) == ("host", 0)
    assert packages["numpy"]["origin"] == "host"
    assert packages["transformers"]["origin"] == "wheel"
    assert packages["transformers"]["bytes"] > 100


def test_what_it_prints(
    index: ToyIndex, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wheelhouse(tmp_path / "h", "--leave-out", "pytest")
    out = capsys.readouterr().out
    assert "8 packages of minivllm 0.1" in out
    assert "not carried, left out by request: pytest 1.0" in out
    assert "9 wheels, 0.0 MB in 1 part (new: part-01); joined again and whole" in out
    assert "there: python3 h/part-01/install.py" in out
    script = tmp_path / "h" / "part-01" / "install.py"
    done = subprocess.run(
        [sys.executable, "-I", str(script), "--check"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "9 files in 1 part: all whole\n"


def test_the_script_by_itself_says_what_is_wrong(
    index: ToyIndex, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    house = tmp_path / "h"
    wheelhouse(house)
    (house / "part-01" / "numpy-1.0-py3-none-any.whl").write_bytes(b"?")
    for words, told in (
        (
            ["--check"],
            "install.py: part-01/numpy-1.0-py3-none-any.whl has 1 bytes instead of ",
        ),
        (["--into", str(tmp_path / "venv")], "install.py: the wheelhouse has no uv."),
        (["--into", str(house)], f"install.py: {house} exists already; remove it"),
    ):
        done = subprocess.run(
            [sys.executable, "-I", str(house / "part-01" / "install.py"), *words],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == ExitCode.INFRASTRUCTURE
        assert done.stderr.startswith(told)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["h", "uv"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            [
                "wheelhouse",
                "vllm",
                "0.23.0",
                "--python",
                "3.12",
                "--into",
                "h",
                "--max-part",
                "9",
            ],
            "Parts of 9 bytes are too small.\nNext: --max-part 2MiB\n",
        ),
        (
            ["create", "vllm", "0.23.0", "--python", "python3"],
            "--python and --system-site-packages are for --wheelhouse.\n",
        ),
    ],
)
def test_wrong_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = in_process.mmrepro("env", *arguments)
    assert code == ExitCode.USAGE
    assert err.startswith(told)
    assert list(tmp_path.iterdir()) == []
