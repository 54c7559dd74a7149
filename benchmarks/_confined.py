"""Where mutants.py tries a mutant: a copy of the tree, and a process that cannot leave
it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
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
        self, tests: list[str], limit_s: float, measure: bool = False
    ) -> dict[str, Any]:
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        order = {"tests": tests, "limit_s": limit_s, "measure": measure}
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
        order = json.loads(line)
        started = time.monotonic()
        child = os.fork()
        if not child:
            _try(folder, order)
        code, seconds, last = None, 0.0, started
        while code is None and seconds < order["limit_s"]:
            done, status = os.waitpid(child, os.WNOHANG)
            code = os.waitstatus_to_exitcode(status) if done else None
            time.sleep(0.01)
            now = time.monotonic()
            # More: both were stopped.
            seconds, last = (
                seconds + min(now - last, 1.0),
                now,
            )
        _end_children()
        answer: dict[str, Any] = {"code": code, "seconds": seconds, "known": {}}
        known = folder / "known.json"
        if order["measure"] and code is not None and known.is_file():
            answer["known"] = json.loads(known.read_text())
        answer["tail"] = (folder / "output.txt").read_text(errors="replace")[-3000:]
        for name in ("home", "tmp"):
            shutil.rmtree(folder / name, ignore_errors=True)
            (folder / name).mkdir()
        print(json.dumps(answer), flush=True)


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
    import resource

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
        how = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not nightly"]
        if order["measure"]:
            (folder / "known.json").unlink(missing_ok=True)
            watch = Watch(folder)
            code = int(pytest.main([*how, *order["tests"]], plugins=[watch]))
            (folder / "known.json").write_text(json.dumps(watch.ended()))
        else:
            code = int(pytest.main([*how, "-x", *order["tests"]]))
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
        self.failing: set[str] = set()

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
        if report.failed:
            self.failing.add(name)

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
        return {"seconds": self.seconds, "failing": sorted(self.failing)}


def without_row(test: str) -> str:
    """Return a test's name without its parameters, and without pytest's `(call)`."""
    return test.partition("[")[0].partition(" (")[0]


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
