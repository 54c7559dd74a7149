"""Where mutants.py tries a mutant: a copy of the tree, and a process that cannot leave
it."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
QUIET = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not nightly")
NO_TESTS = 5
"""pytest's exit code where nothing was collected."""
ENDLESS_S = 180
"""A test that takes longer has no end. None takes more than some seconds on an idle
machine; this one need not be idle."""
SHARED = "what fixtures run"
COVERAGE = """
[run]
data_file = {data}
include = {site}/**
parallel = true
context = ${{PYTEST_CURRENT_TEST-}}
"""
"""pytest names the test that runs in this variable, and a command that the test starts
inherits it: so its lines are known to be that test's."""
CHILD_STARTS = """import os

if "COVERAGE_PROCESS_START" in os.environ:
    import coverage

    coverage.process_startup()
"""


@dataclass
class Outcome:
    """What came of an order.

    Attributes:
        code: pytest's exit code, below 0 a signal; None: a test had no end.
        test: which failed, or ran last.
        seconds: processor time, of commands that tests started too.
        stopped: the limit on that was reached before the last test.
        known: of a measurement.
    """

    code: int | None
    test: str
    seconds: float
    stopped: bool
    known: dict[str, Any]
    tail: str

    @property
    def passed(self) -> bool:
        return self.stopped or self.code in (0, NO_TESTS)


class Place:
    """A copy of the working tree, the package as it is installed, and a process that
    runs tests."""

    def __init__(self, folder: Path, memory_gib: int) -> None:
        self.folder = folder
        self.tree, self.site = folder / "tree", folder / "site"
        shutil.rmtree(folder, ignore_errors=True)
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        out = subprocess.run(
            listed, cwd=ROOT, check=True, capture_output=True, text=True
        ).stdout
        for name in filter(None, out.split("\0")):
            if (ROOT / name).is_file():
                (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.tree / name)
        self.packages = packages()
        for package, source in self.packages.items():
            target = self.site / package.replace(".", "/")
            shutil.copytree(self.tree / source, target, dirs_exist_ok=True)
        subprocess.run(
            [sys.executable, "-m", "compileall", "-q", str(self.site)], check=False
        )
        (self.site / "sitecustomize.py").write_text(CHILD_STARTS)
        (folder / "coveragerc").write_text(
            COVERAGE.format(site=self.site, data=folder / "contexts" / "lines")
        )
        for name in ("home", "tmp"):
            (folder / name).mkdir()
        env = {
            **{k: os.environ[k] for k in ("PATH", "LANG", "LC_ALL") if k in os.environ},
            "HOME": str(folder / "home"),
            "TMPDIR": str(folder / "tmp"),
            "PYTHONPATH": str(self.site),
            "MMREPRO_MUTANTS_GIB": str(memory_gib),
        }
        self.server = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), str(folder)],
            cwd=self.tree,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(
        self,
        tests: list[str],
        *,
        most_s: float,
        without: Iterable[str] = (),
        options: Iterable[str] = (),
    ) -> Outcome:
        """Run tests until the first fails, or they took so much processor time."""
        words = [*QUIET, "-x", *options, *tests]
        words += [f"--deselect={test}" for test in without]
        return Outcome(**self._ordered(words, most_s, measure=False))

    def measure(self, test_file: str, most_s: float) -> Outcome:
        """Run a file of tests, with coverage's contexts: below the folder are `lines`
        then, and what else is known is in the answer."""
        return Outcome(**self._ordered([*QUIET, test_file], most_s, measure=True))

    def _ordered(
        self, words: list[str], most_s: float, measure: bool
    ) -> dict[str, Any]:
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        order = {"words": words, "most_s": most_s, "measure": measure}
        self.server.stdin.write(json.dumps(order) + "\n")
        self.server.stdin.flush()
        answer: dict[str, Any] = json.loads(self.server.stdout.readline())
        return answer

    def installed(self, file: str) -> Path:
        """Where ``file`` of the tree is imported from."""
        inner = max(
            (s for s in self.packages.values() if file.startswith(s + "/")), key=len
        )
        package = next(p for p, s in self.packages.items() if s == inner)
        return self.site / package.replace(".", "/") / file[len(inner) + 1 :]

    def write(self, file: str, text: str) -> None:
        """Also where tests read the source. Of two texts of a second a .pyc could not
        tell."""
        for path in (self.installed(file), self.tree / file):
            path.write_text(text)
            for old in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
                old.unlink()

    def close(self) -> None:
        assert self.server.stdin is not None
        self.server.stdin.close()
        self.server.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def packages() -> dict[str, str]:
    """Top packages and their folders, as pyproject.toml maps them."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    mapped: dict[str, str] = table["package-dir"]
    return mapped


def serve(folder: Path) -> None:
    """In a process of its own: a child for each order, which imports the mutated code
    anew."""
    import ctypes
    import importlib

    for name in (
        "pytest",
        "hypothesis",
        "numpy",
        "pydantic",
        "httpx2",
        "typer.testing",
        "rich",
        "jinja2",
        "PIL.Image",
        "tokenizers",
        "hyperscan",
        "psutil",
        "prometheus_client",
        "packaging",
        "filelock",
        "platformdirs",
        "coverage",
    ):
        importlib.import_module(name)
    assert not [name for name in sys.modules if name.startswith("mmrepro")]
    # PR_SET_CHILD_SUBREAPER: what a child leaves is ours.
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
    for line in sys.stdin:
        print(json.dumps(asdict(_carried_out(folder, json.loads(line)))), flush=True)


def _carried_out(folder: Path, order: dict[str, Any]) -> Outcome:
    progress = folder / "progress.json"
    progress.write_text(json.dumps({"test": "", "seconds": 0.0, "stopped": False}))
    child = os.fork()
    if not child:
        _try(folder, order)
    code, last, waited, moved = None, time.monotonic(), 0.0, 0.0
    while code is None and waited < ENDLESS_S:
        done, status = os.waitpid(child, os.WNOHANG)
        code = os.waitstatus_to_exitcode(status) if done else None
        time.sleep(0.01)
        # A longer pause: this process was stopped too.
        now = time.monotonic()
        waited, last = waited + min(now - last, 1.0), now
        if moved != progress.stat().st_mtime:
            waited, moved = 0.0, progress.stat().st_mtime
    _end_children()
    known = folder / "known.json"
    measured = order["measure"] and code is not None and known.is_file()
    outcome = Outcome(
        code=code,
        known=json.loads(known.read_text()) if measured else {},
        tail=(folder / "output.txt").read_text(errors="replace")[-3000:],
        **json.loads(progress.read_text()),
    )
    for name in ("home", "tmp"):
        shutil.rmtree(folder / name, ignore_errors=True)
        (folder / name).mkdir()
    return outcome


def _end_children() -> None:
    import psutil

    left = psutil.Process().children(recursive=True)
    for process in left:
        process.kill()
    while True:
        try:
            os.wait()
        except ChildProcessError:
            return


def _try(folder: Path, order: dict[str, Any]) -> None:
    """In the child: never returns."""
    os.setsid()
    output = os.open(folder / "output.txt", os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
    for number in (1, 2):
        os.dup2(output, number)
    code = 99
    try:
        limit = int(os.environ["MMREPRO_MUTANTS_GIB"]) << 30
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 28, 1 << 28))
        confine(folder)
        # A loop without an end in a collection or a fixture.
        seconds = int(order["most_s"]) + ENDLESS_S
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        progress = Progress(folder / "progress.json", order["most_s"])
        plugins: list[object] = [progress]
        if order["measure"]:
            (folder / "known.json").unlink(missing_ok=True)
            watch = Watch(folder)
            plugins.append(watch)
        code = int(pytest.main(order["words"], plugins=plugins))
        if order["measure"]:
            (folder / "known.json").write_text(json.dumps(watch.ended()))
        progress.write()
    finally:
        sys.stdout.flush()
        os._exit(code)


def confine(folder: Path, *devices: str) -> None:
    """By Landlock: from here on this process and its children write below ``folder``
    alone (and to ``devices``), and signal nobody else. Raises OSError where the kernel
    cannot."""
    import ctypes
    import struct

    libc = ctypes.CDLL(None, use_errno=True)

    def call(number: int, *arguments: Any) -> int:
        result: int = libc.syscall(number, *arguments)
        if result < 0:
            raise OSError(ctypes.get_errno(), "Landlock")
        return result

    write_file, rights, scope_signal = (
        1 << 1,
        (1 << 1 | 0x1FF0 | 1 << 13 | 1 << 14),
        1 << 1,
    )
    ruleset = call(
        444, struct.pack("QQQ", rights, 0, scope_signal), ctypes.c_size_t(24), 0
    )
    writable = (Path(name) for name in (os.devnull, *devices))
    for path, allowed in (
        (folder, rights),
        *((device, write_file) for device in writable),
    ):
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        call(445, ruleset, 1, struct.pack("=Qi", allowed, place), 0)
        os.close(place)
    libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    call(446, ruleset, 0)


class Progress:
    """A pytest plugin: which test runs or failed, and none begins after the limit."""

    def __init__(self, file: Path, most_s: float) -> None:
        self.file, self.most_s = file, most_s
        self.test, self.failed, self.stopped = "", False, False

    def write(self) -> None:
        """Say how far it came: in one step, since it may be killed at any moment."""
        told = {"test": self.test, "seconds": spent(), "stopped": self.stopped}
        new = self.file.with_suffix(".new")
        new.write_text(json.dumps(told))
        new.replace(self.file)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        if not self.failed:
            self.test = nodeid
        self.write()

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed and not self.failed:
            self.test, self.failed = report.nodeid, True

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and not self.failed:
            self.test, self.failed = report.nodeid, True

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_teardown(self, item: pytest.Item, nextitem: object) -> None:
        over = nextitem is not None and spent() > self.most_s
        if over and not self.failed:
            item.session.shouldstop = "the limit is reached"
            self.stopped = True


def spent() -> float:
    """Return the processor time of this process and of its children that ended."""
    usages = [
        resource.getrusage(resource.RUSAGE_SELF),
        resource.getrusage(resource.RUSAGE_CHILDREN),
    ]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


class Watch:
    """A pytest plugin: which lines of the package each test runs, and how long it
    takes.

    What fixtures run counts for every test of the file: one makes what all use."""

    def __init__(self, folder: Path) -> None:
        import coverage

        self.folder = folder / "contexts"
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        config = str(folder / "coveragerc")
        os.environ["COVERAGE_PROCESS_START"] = config
        self.coverage = coverage.Coverage(config_file=config)
        self.coverage.start()
        self.seconds: dict[str, float] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        self.coverage.switch_context(SHARED)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> None:
        self.coverage.switch_context(without_row(item.nodeid))

    def pytest_runtest_teardown(self) -> None:
        self.coverage.switch_context("")

    def pytest_runtest_logreport(self, report: Any) -> None:
        name = without_row(report.nodeid)
        self.seconds[name] = self.seconds.get(name, 0.0) + report.duration

    def ended(self) -> dict[str, Any]:
        """Write what ran into one file of coverage's; return what else is known."""
        import coverage

        self.coverage.stop()
        self.coverage.save()
        together = coverage.Coverage(
            data_file=str(self.folder.parent / "lines"), config_file=False
        )
        together.combine([str(self.folder)])
        together.save()
        return {"seconds": self.seconds}


def without_row(test: str) -> str:
    """Return a test's name without its parameters, and without pytest's `(call)`."""
    return test.partition("[")[0].partition(" (")[0]


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
