"""``pip install mmrepro`` alone: what the core does without the extra ``run``, and what the wheel
holds."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest
from mmrepro.cli import RUN_MODULES

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EVIDENCE = ROOT / "tests/evidence/ghost-key-eviction-0.23.0.zip"
WITHOUT = """
import sys
for name in {modules}:
    sys.modules[name] = None
from mmrepro.cli import main
sys.argv = ["mmrepro", *sys.argv[1:]]
main()
"""


def core(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """``mmrepro`` where the modules of the extra cannot be imported."""
    code = WITHOUT.format(modules=(*RUN_MODULES, "ray"))
    command = [sys.executable, "-c", code, *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("demo", "--print"), 0),
        (("judge", str(EVIDENCE)), 0),
        (("report", str(EVIDENCE), "--format", "html"), 0),
        (("find", "Expected a cached item"), 0),
        (("logs", str(ROOT / "tests/unit/test_core.py")), 3),
        (("why", str(ROOT / "tests/unit/test_core.py")), 3),
        (("diagnose", "http://127.0.0.1:1"), 1),
        (("watch", "http://127.0.0.1:1", "--once"), 1),
        (("list",), 0),
        (("show", "ghost-key-eviction"), 0),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_the_core_needs_no_extra(tmp_path: Path, words: tuple[str, ...], code: int) -> None:
    ran = core(tmp_path, *words)
    assert (ran.returncode, ran.stderr) == (code, "")


@pytest.mark.parametrize(
    "words", ["replay x.har --engine vllm", "fuzz minivllm --budget 1m", "new odd --engine vllm"]
)
def test_a_missing_extra_is_one_sentence_with_the_line_to_type(tmp_path: Path, words: str) -> None:
    ran = core(tmp_path, *words.split())
    assert ran.returncode in (2, 4)
    assert ran.stderr.splitlines()[-1] == "Next: pip install 'mmrepro[run]'"
    assert len(ran.stderr.splitlines()) == 2


def test_the_modules_of_the_extra_are_those_of_its_packages() -> None:
    packages = {
        line.partition(">")[0] for line in PROJECT["project"]["optional-dependencies"]["run"]
    }
    assert {{"PIL": "pillow"}.get(name, name) for name in RUN_MODULES} == packages


def test_the_wheel_holds_each_data_file() -> None:
    """An editable install has them all; a wheel has what package-data names."""
    setup = PROJECT["tool"]["setuptools"]
    folders = setup["package-dir"]
    held = []
    for package, patterns in setup["package-data"].items():
        root = next(
            p for p in sorted(folders, key=len, reverse=True) if f"{package}.".startswith(f"{p}.")
        )
        below = package.removeprefix(root).replace(".", "/")
        held += [f"{folders[root]}{below}/{pattern}" for pattern in patterns]
    listed = subprocess.run(
        ["git", "ls-files", *folders.values()], cwd=ROOT, capture_output=True, text=True, check=True
    )
    data = [name for name in listed.stdout.split() if not name.endswith((".py", "README.md"))]
    assert len(data) > 15
    assert not [name for name in data if not any(fnmatch(name, pattern) for pattern in held)]
