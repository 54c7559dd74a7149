#!/usr/bin/env python3
"""Runs the unit tests that a change needs: ``python tests/tests_for.py [REVISION]``.

The change is what differs from REVISION (where this branch left main): committed or
not, and files that git does not know yet. Three things pick tests:

- a changed test file, and the tests that use a changed helper, fixture or data file;
- a direct import: a test file that names a changed module, or its scenario; and the
  four files that read the whole package;
- what ran: pytest-testmon keeps which functions each test ran (``.testmondata``). It
  sees through every import, and neither into child processes nor into data files.

Without that file the first two pick alone; ``--record`` makes it: all tests once.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
UNIT = ROOT / "tests" / "unit"
DATA = ROOT / ".testmondata"
PYTEST = [sys.executable, "-m", "pytest", "-q", "-n", "2"]
WHOLE = (
    "test_closure.py",
    "test_engine_folders.py",
    "test_house.py",
    "test_run_key.py",
)
"""They read the whole package, and name none of its modules: any of them may break
what they hold. Together they take some seconds."""
NOTHING_COLLECTED = 5
"""Exit code of pytest where each test was deselected."""


def main() -> int:
    """Print and run what the change needs; return pytest's exit code."""
    given = options()
    if given.record:
        return run("--testmon-noselect", str(UNIT))

    since = given.since or left_main()
    changed = changed_files(since)
    own, others = split(tests_of(changed), changed)
    recorded = DATA.exists() and importlib.util.find_spec("testmon") is not None
    print(f"{len(changed)} changed files since {since[:12]}; tests that changed:")
    print("".join(f"  {file}\n" for file in own), end="")
    print("and tests that name what changed (slow ones run in CI, or with -m slow):")
    print("".join(f"  {file}\n" for file in others), end="", flush=True)
    if given.list:
        return 0

    kept = ["--testmon-noselect"] if recorded else []
    codes = []
    if own:
        # Who changes a slow test wants to see it pass.
        codes.append(run(*kept, "-m", "not nightly", *own))
    if others:
        codes.append(run(*kept, *others))
    if recorded:
        print("and what ran a changed function before:", flush=True)
        # By itself testmon selects nothing where `-m` is given, as in pyproject.toml.
        codes.append(run("--testmon-forceselect", str(UNIT)))
    else:
        print(
            "What runs it from further away is known after, once: "
            "uv run --group affected python tests/tests_for.py --record"
        )
    return max((code for code in codes if code != NOTHING_COLLECTED), default=0)


def run(*words: str) -> int:
    """Run pytest and return its exit code."""
    return subprocess.call([*PYTEST, *words], cwd=ROOT)


def split(tests: set[Path], changed: list[Path]) -> tuple[list[str], list[str]]:
    """Return the test files that changed themselves, and the others."""
    own = sorted(str(test.relative_to(ROOT)) for test in tests.intersection(changed))
    others = sorted(str(test.relative_to(ROOT)) for test in tests.difference(changed))
    return own, others


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument(
        "since", nargs="?", metavar="REVISION", help="the change begins after it"
    )
    parser.add_argument("--list", action="store_true", help="run nothing")
    parser.add_argument("--record", action="store_true", help="run all, keep what ran")
    return parser.parse_args()


# ------------------------------------------------------------------ the change


def git(*words: str) -> list[str]:
    """Return the lines that git prints."""
    done = subprocess.run(
        ["git", *words], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def left_main() -> str:
    """Return the commit where this branch left main."""
    return git("merge-base", "HEAD", "main")[0]


def changed_files(since: str) -> list[Path]:
    """Return the files that differ from a revision."""
    names = git("diff", "--name-only", since)
    names += git("ls-files", "--others", "--exclude-standard")
    return [ROOT / name for name in sorted(set(names))]


# ------------------------------------------------------------------ the tests


def tests_of(changed: Iterable[Path]) -> set[Path]:
    """Return the test files that change, or name something that did."""
    tests: set[Path] = set()
    for file in changed:
        if file.name == "conftest.py" and file.is_relative_to(UNIT):
            tests.update(file.parent.rglob("test_*.py"))
        elif file.suffix == ".py" and file.is_relative_to(UNIT):
            tests |= users_of(file)
        elif module := module_of(file):
            tests |= {test for test in test_files() if module in names_in(test)}
            scenarios = scenarios_of(module)
            tests |= {test for test in test_files() if scenarios & words_in(test)}
            tests.update(UNIT / name for name in WHOLE)
        else:
            tests |= readers_of(file)
    return {test for test in tests if test.exists()}


def users_of(file: Path) -> set[Path]:
    """Return a changed test file, or the tests that use a changed helper."""
    seen, new = {file}, {file}
    while new:
        stems = {helper.stem for helper in new}
        new = {user for user in sources() if names_in(user) & stems} - seen
        seen |= new
    return {user for user in seen if user.name.startswith("test_")}


def readers_of(file: Path) -> set[Path]:
    """Return the tests that name a file that is no module, or a folder of it."""
    folders = {folder.name for folder in file.relative_to(ROOT).parents}
    if package := package_of(file):
        # The package reads it; a name such as `engines` is in every second test.
        beside = {test for test in test_files() if package in names_in(test)}
        return beside | {test for test in test_files() if file.name in words_in(test)}
    names = {file.name, file.stem, *folders} - {"", "tests", "unit"}
    return {test for test in test_files() if names & words_in(test)}


def package_of(file: Path) -> str:
    """Return the package in whose folder a file lies; "" where it is none's."""
    return module_of(file.parent / "__init__.py")


def module_of(file: Path) -> str:
    """Return a module's dotted name; "" where a file is none of the packages'."""
    if file.suffix != ".py":
        return ""
    for package, folder in packages().items():
        if file.is_relative_to(ROOT / folder):
            parts = file.relative_to(ROOT / folder).with_suffix("").parts
            return ".".join([package, *parts]).removesuffix(".__init__")
    return ""


def scenarios_of(module: str) -> set[str]:
    """Return the scenarios that a module declares, or its package: a test asks the
    registry for them by name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    points: dict[str, str] = project["entry-points"]["mmrepro.scenarios"]
    found = set()
    for name, place in points.items():
        declares = place.partition(":")[0]
        if module == declares or module.startswith(f"{declares}."):
            found.add(name)
    return found


@cache
def packages() -> dict[str, str]:
    """Return the folder of each package of code: pyproject.toml maps them.

    docs/ is one of pages."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    folders: dict[str, str] = project["tool"]["setuptools"]["package-dir"]
    return {
        name: folder
        for name, folder in folders.items()
        if (ROOT / folder / "__init__.py").is_file()
    }


@cache
def sources() -> tuple[Path, ...]:
    """Return all Python files of tests/unit."""
    return tuple(sorted(UNIT.rglob("*.py")))


def test_files() -> list[Path]:
    """Return the files of tests/unit that hold tests."""
    return [file for file in sources() if file.name.startswith("test_")]


@cache
def names_in(file: Path) -> frozenset[str]:
    """Return the modules that a file imports, and the dotted names in its texts.

    A text is what a patch is given: "mmrepro.runs.judge.held" names its module too."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and is_dotted(node.value):
            names |= {node.value, node.value.rpartition(".")[0]}
    return frozenset(names)


def is_dotted(value: object) -> bool:
    """Tell whether a constant is the name of something in the package."""
    return isinstance(value, str) and value.startswith("mmrepro.") and " " not in value


@cache
def words_in(file: Path) -> frozenset[str]:
    """Return the texts of a file, and the parts of those that are paths."""
    words: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            words.update(node.value.split("/"))
    return frozenset(words)


if __name__ == "__main__":
    sys.exit(main())
