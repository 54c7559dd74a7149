"""What tests/tests_for.py picks for the last commits, and for those that broke a test.

    uv run python benchmarks/affected.py [--commits 20] [--costs FILE...]

It looks at a clone of this repository, at each commit in turn, and picks by what that
commit changed: by imports, texts and data files, without a record of testmon's. With
files of `pytest --costs` it adds up processor time: the fast tier's of all that is
picked, and the slow tier's of test files that changed themselves, as the command runs
them. `BROKE` are commits after which a test failed, in CI or until the next commit of
tests alone. docs/lab/ci.md has the table."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))
import tests_for

ROOT = Path(__file__).resolve().parent.parent
BROKE = {
    "aaef0882": ("diagnose/test_incident.py", "diagnose/test_look.py"),
    "c61054d5": ("test_find.py",),
    "1208cd37": ("test_bisect_apart.py",),
    "7b9650a2": ("test_cli.py", "test_cli_words.py"),
    "e4f1f906": ("diagnose/test_look.py",),
    "0b38d4a0": ("diagnose/test_general.py",),
    "e5569ded": ("test_cli_logs.py",),
    "27342d94": ("upgrade/test_upgrade_session.py",),
}
"""The first two made CI fail; the others were mended by a later commit of tests."""


Costs = dict[str, dict[str, float]]
"""By test file, the processor seconds of its tests."""


@dataclass
class Picked:
    """What one commit changed, and the test files that are picked for it."""

    changed: int
    tests: list[str]
    seconds: float


class History:
    """A clone in which each commit is looked at."""

    def __init__(self, folder: Path, costs: Costs) -> None:
        self.clone = folder / "clone"
        self.costs = costs
        self.slow = slow_tests()
        git("clone", "--quiet", "--shared", str(ROOT), str(self.clone), of=folder)

    def picked(self, commit: str) -> Picked:
        """Check a commit out, and pick by what it changed."""
        git("checkout", "--quiet", "--detach", commit, of=self.clone)
        tests_for.ROOT = self.clone
        tests_for.UNIT = self.clone / "tests" / "unit"
        caches = (tests_for.packages, tests_for.sources)
        for cached in (*caches, tests_for.names_in, tests_for.words_in):
            cached.cache_clear()
        names = git("diff", "--name-only", f"{commit}^", commit, of=self.clone)
        files = [self.clone / name for name in names]
        tests = tests_for.tests_of(files)
        seconds = sum(self._seconds(test, test in files) for test in tests)
        named = sorted(str(test.relative_to(tests_for.UNIT)) for test in tests)
        return Picked(len(files), named, seconds)

    def _seconds(self, test_file: Path, own: bool) -> float:
        name = test_file.relative_to(self.clone).as_posix()
        seconds = 0.0
        for test, cost in self.costs.get(name, {}).items():
            if own or test.partition("[")[0] not in self.slow:
                seconds += cost
        return seconds


def git(*words: str, of: Path) -> list[str]:
    """Return the lines that git prints in a folder."""
    done = subprocess.run(
        ["git", *words], cwd=of, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def slow_tests() -> set[str]:
    """Return the tests of the slow tier, as they are today."""
    text = (ROOT / "tests" / "unit" / "slow_tests.txt").read_text()
    return set(text.splitlines())


def costs_of(files: list[Path]) -> Costs:
    """Read what tests took; of several files the least, since neighbours add."""
    costs: Costs = {}
    for file in files:
        for line in file.read_text().splitlines():
            entry = json.loads(line)
            if entry["kind"] != "test":
                continue
            test, seconds = entry["name"], entry["seconds"]
            own = costs.setdefault(test.partition("::")[0], {})
            own[test] = min(seconds, own.get(test, seconds))
    return costs


def main() -> None:
    """Print the tables of the last commits, and of those that broke a test."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--commits", type=int, default=20)
    parser.add_argument("--revision", default="main")
    parser.add_argument("--costs", type=Path, nargs="*", default=[])
    options = parser.parse_args()
    costs = costs_of(options.costs)
    words = ["log", "--no-merges", f"-{options.commits}", "--format=%h"]
    commits = git(*words, options.revision, of=ROOT)
    with tempfile.TemporaryDirectory(prefix="affected-") as folder:
        history = History(Path(folder), costs)
        print("| commit | files changed | test files | processor seconds |")
        print("|---|---|---|---|")
        found = []
        for commit in commits:
            picked = history.picked(commit)
            found.append(picked)
            seconds = f"{picked.seconds:.0f}" if costs else ""
            print(f"| {commit} | {picked.changed} | {len(picked.tests)} | {seconds} |")
        files = statistics.median(len(picked.tests) for picked in found)
        middle = statistics.median(picked.seconds for picked in found)
        print(f"| median | | {files:g} | {f'{middle:.0f}' if costs else ''} |")

        print("\n| commit | broke | picked |\n|---|---|---|")
        for commit, broken in BROKE.items():
            picked = history.picked(commit)
            for test in broken:
                there = "yes" if test in picked.tests else "no"
                print(f"| {commit} | {test} | {there} |")


if __name__ == "__main__":
    main()
