"""Nights on a real Ray cluster, its nodes on this machine: what is lost, killed,
stopped."""

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from live import COMMAND, wait_for
from mmrepro.failure.documents.ledger import Lost, NightState
from mmrepro.history.ledger import NightRuns, read
from mmrepro.runs.starter import IDLE_VARIABLE, ROOT_VARIABLE
from uv import find_uv_bin

pytestmark = pytest.mark.engine

HERE = Path(__file__).parent
ENDED_S = 30
MOST_EATEN = 8 * 2**30
"""Bytes of memory that a test takes: a large machine is not filled for it."""


class ACluster:
    def __init__(self, folder: Path, *arguments: str) -> None:
        self.labels: set[str] = set()
        self.mark = f"{ROOT_VARIABLE}={folder / 'warm'}".encode()
        name, _, value = self.mark.decode().partition("=")
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "ray_cluster.py"), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(folder / "cluster.log").open("w"),
            text=True,
            env={
                **os.environ,
                name: value,
                IDLE_VARIABLE: "0",
                "RAY_MARK": "of a cluster",
            },
        )
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().strip()
        assert self.address, (folder / "cluster.log").read_text()

    def of(self, *labels: str) -> None:
        """It has these machines now, and no others."""
        for label in sorted(self.labels ^ set(labels)):
            self._tell("add" if label in labels else "remove", label)
        self.labels = set(labels)

    def remove(self, label: str) -> None:
        self._tell("remove", label)
        self.labels.remove(label)

    def _tell(self, what: str, label: str) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{what} {label}\n")
        self._process.stdin.flush()
        while (line := self._process.stdout.readline().strip()) != "done":
            assert line or self._process.poll() is None

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)

    def run_processes(self) -> list[psutil.Process]:
        """What runs started on its nodes: Ray's own processes have variables of
        Ray's."""
        found = []
        for process in psutil.process_iter():
            try:
                variables = (
                    Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
                )
                if process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
                    continue
            except (OSError, psutil.Error):
                continue
            if self.mark in variables and not any(
                v.startswith(b"RAY_") for v in variables
            ):
                found.append(process)
        return found

    def nothing_is_left(self) -> None:
        wait_for(
            lambda: not self.run_processes(),
            ENDED_S,
            "the end of all that runs started",
        )


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ACluster]:
    one = ACluster(tmp_path_factory.mktemp("cluster"))
    try:
        yield one
    finally:
        one.close()


# ---------------------------------------------------------------- cells that sleep


class Sleeping:
    """A night of them, as it is under way.

    Typed under `uv run`, where Ray has ways of its own, which are to be off.
    """

    def __init__(
        self,
        cluster: ACluster,
        folder: Path,
        night: str,
        machines: int,
        cells: int,
        seconds: float,
        *more: str,
    ) -> None:
        self.folder, self._night = folder, "bisect" if "bisect" in more else night
        self.marked = folder / "marks" / night
        self.marked.mkdir(parents=True, exist_ok=True)
        self.journal = folder / ("nights" if self._night == night else night)
        arguments = ["--out", str(self.journal), "--marks", str(self.marked)]
        arguments += ["--machines", str(machines), "--cells", str(cells)]
        self._process = subprocess.Popen(
            [
                find_uv_bin(),
                "run",
                "--no-project",
                sys.executable,
                str(HERE / "ray_night.py"),
                cluster.address,
                night,
                *arguments,
                "--seconds",
                str(seconds),
                *more,
            ],
            stdout=subprocess.PIPE,
            text=True,
        )

    def marks(self) -> list[dict[str, Any]]:
        """What the runs left as they began."""
        names = [p for p in sorted(self.marked.iterdir()) if not p.name.startswith(".")]
        return [json.loads(path.read_bytes()) for path in names]

    def stuck(self) -> dict[str, Any]:
        """Wait for the run that is to be, and its mark."""
        wait_for(
            lambda: self._stuck() or self._process.poll() is not None, 60, "a stuck run"
        )
        assert self._stuck(), self._process.communicate()[0]
        return self._stuck()[0]

    def _stuck(self) -> list[dict[str, Any]]:
        return [m for m in self.marks() if m["stuck"]]

    def end(self) -> dict[str, float]:
        out, _ = self._process.communicate(timeout=120)
        assert self._process.returncode == 0, out
        told = dict(json.loads(out.splitlines()[-1]))
        assert told["own_python"], "Ray made an environment of its own"
        return told

    @property
    def runs(self) -> NightRuns:
        return read(self.journal).night(self._night)

    def nothing_was_lost_or_run_twice(self, cells: int) -> list[str]:
        """What the runs lost, by the ledger; all cells are whole, by the ledger and by
        marks.

        ``cells``: of the plan; 0: as many as it took.
        """
        runs = self.runs
        assert runs.night.state is NightState.COMPLETE
        if cells:
            assert len(runs.planned) == cells
            conclusive = Counter(a.cell for a in runs.attempts if a.outcome is not None)
            assert conclusive == dict.fromkeys(runs.planned, 1)
        indexes = Counter((a.cell, a.index) for a in runs.attempts)
        assert set(indexes.values()) == {1}
        started = Counter((mark["cell"], mark["index"]) for mark in self.marks())
        assert set(started.values()) == {1}, "by what the runs themselves left"
        assert set(started) <= set(indexes)
        for attempt in runs.attempts:
            if attempt.outcome is not None:
                file = self.journal / attempt.incident / "incident.json"
                told = json.loads(file.read_bytes())
                assert (told["cell"], told["index"]) == (attempt.cell, attempt.index)
                assert attempt.key == "exit code 3"
        assert {a.lost for a in runs.attempts} <= {None, Lost.INFRASTRUCTURE}
        return [a.error for a in runs.attempts if a.lost]


KINDS = {"matrix": 10, "bisect": 0, "search": 10}
"""Each kind of campaign, and its cells; 0: as many as it takes."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_two_machines_take_half_as_long(
    cluster: ACluster, tmp_path: Path, kind: str
) -> None:
    # Long enough that what else the machine does counts for little.
    cells, seconds = KINDS[kind], 2.0
    cluster.of("alpha")
    one = Sleeping(cluster, tmp_path, "one", 1, cells, seconds, "--kind", kind)
    alone = one.end()
    assert one.nothing_was_lost_or_run_twice(cells) == []
    assert alone["seconds"] >= len(one.runs.attempts) * seconds, "or nothing has slept"
    cluster.of("alpha", "beta")
    efficiency = 0.0
    # Something else may want the processor for a while: that slows one of them.
    for name in ("two", "again"):
        if efficiency < 0.9:
            two = Sleeping(cluster, tmp_path, name, 2, cells, seconds, "--kind", kind)
            both = two.end()
            assert two.nothing_was_lost_or_run_twice(cells) == []
            assert {a.machine for a in two.runs.attempts} == {"alpha", "beta"}
            assert len(two.runs.attempts) == len(one.runs.attempts)
            efficiency = alone["seconds"] / (2 * both["seconds"])
            print(
                f"{kind}: {len(one.runs.attempts)} runs, one {alone['seconds']:.2f} s, "
                f"two {both['seconds']:.2f} s, {efficiency:.3f}"
            )
    assert efficiency >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "cells", "stuck"),
    [("matrix", 12, "cell-0"), ("bisect", 0, "0.10.0"), ("search", 12, "cell-2")],
)
def test_a_node_that_dies(
    cluster: ACluster, tmp_path: Path, kind: str, cells: int, stuck: str
) -> None:
    cluster.of("alpha", "beta", "gamma")
    night = Sleeping(
        cluster, tmp_path, "n", 3, cells, 1.0, "--stuck", stuck, "--kind", kind
    )
    one = night.stuck()
    wait_for(lambda: len(night.marks()) >= 4, 60, "runs on the others")
    cluster.remove(one["machine"])
    wait_for(lambda: not alive(one["child"]), ENDED_S, "the end of its run")
    night.end()
    lost = night.nothing_was_lost_or_run_twice(cells)
    assert lost == [f"The machine {one['machine']} died, or left the cluster."]
    machines = {a.machine for a in night.runs.attempts}
    assert len(machines - {one["machine"]}) == 2, (
        "two sides of a bisection keep two busy"
    )
    if kind == "bisect":
        found = json.loads((night.journal / "bisection.json").read_bytes())
        assert found["introduced"]["first_bad"] == "0.10.0"
        assert found["fixed"]["first_good"] == "0.31.0"
        assert found["state"] == "complete"
    cluster.nothing_is_left()


def test_a_worker_that_is_killed(cluster: ACluster, tmp_path: Path) -> None:
    cluster.of("alpha", "beta")
    night = Sleeping(cluster, tmp_path, "n", 2, 8, 1.0, "--stuck", "cell-0")
    stuck = night.stuck()
    wait_for(lambda: len(night.marks()) >= 3, 60, "runs on the other")
    os.kill(stuck["worker"], signal.SIGKILL)
    wait_for(lambda: not alive(stuck["child"]), ENDED_S, "the end of its run")
    night.end()
    machine = stuck["machine"]
    lost = night.nothing_was_lost_or_run_twice(8)
    assert lost == [f"The worker on {machine} was killed or died."]
    workers = {mark["worker"] for mark in night.marks() if mark["machine"] == machine}
    assert len(workers) == 2, "the machine was used again"
    cluster.nothing_is_left()


@pytest.mark.slow
def test_out_of_memory_and_exit_codes_under_the_subreaper(tmp_path: Path) -> None:
    """With Ray's subreaper on every child seems to end with 0, without our help."""
    memory = psutil.virtual_memory()
    # Twice as far as the limit: what ran before may still be giving memory back.
    limit, eaten = 0.15 + memory.percent / 100, int(0.3 * memory.total)
    eats = limit < 0.7 and eaten <= MOST_EATEN and not memory_is_bounded()
    more = ["--stuck", "cell-0", "--eaten", str(eaten)] if eats else []
    cluster = ACluster(tmp_path, f"{limit:.3f}" if eats else "0.95")
    try:
        cluster.of("alpha")
        night = Sleeping(cluster, tmp_path, "n", 1, 2, 0.1, *more)
        assert night.end()["untouched"] == 0, "there is nothing to be put right"
        lost = night.nothing_was_lost_or_run_twice(2)
        if not eats:
            assert not lost
            pytest.skip(
                "exit codes were seen; Ray's memory limit was not, with this memory"
            )
        assert lost == [
            "The machine alpha ran out of memory, and Ray killed the worker there."
        ]
        assert [a.role for a in night.runs.attempts] == ["planned", "retry", "planned"]
        variables = night.stuck()["variables"]
        assert not [
            v for v in variables if v.startswith("RAY_") or v == "OMP_NUM_THREADS"
        ]
        cluster.nothing_is_left()
    finally:
        cluster.close()


def memory_is_bounded() -> bool:
    """This process may not have all of the machine's memory: then the kernel would be
    first."""
    try:
        return Path("/sys/fs/cgroup/memory.max").read_text().strip() != "max"
    except OSError:
        return False


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


# ---------------------------------------------------------------- real cells

CELL = [
    "--scenario=borrowed-faults:kv-budget",
    "--releases=0.1",
    "--device=cpu",
    "--start-mode=fork",
]
"""A warm fork would hide the engine's command line, by which it is found here."""


class Real:
    """`mmrepro matrix run --ray`, as it is under way."""

    def __init__(self, cluster: ACluster, folder: Path, *arguments: str) -> None:
        self.folder, self._cluster = folder, cluster
        self.process = subprocess.Popen(
            [
                *COMMAND,
                "matrix",
                "run",
                *arguments,
                "--ray",
                cluster.address,
                "--out",
                str(folder),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def engine_runs(self, number: int) -> psutil.Process:
        """Wait until run ``number`` of its cell has an engine; the run's own
        process."""

        def there() -> bool:
            assert self.process.poll() is None, self.process.communicate()
            return self._run(number) is not None and bool(self._engines())

        wait_for(there, 120, "an engine")
        found = self._run(number)
        assert found is not None
        return found

    def _run(self, number: int) -> psutil.Process | None:
        for process in self._cluster.run_processes():
            words = _words(process)
            if (
                "mmrepro" in words
                and "run" in words
                and any(f"run-{number}" in w for w in words)
            ):
                return process
        return None

    def _engines(self) -> list[psutil.Process]:
        return [p for p in self._cluster.run_processes() if "--port" in _words(p)]

    def end(self) -> tuple[int, str]:
        out, _ = self.process.communicate(timeout=200)
        return self.process.returncode, out


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def judged(folder: Path) -> int:
    return subprocess.run(
        [*COMMAND, "judge", str(folder)], capture_output=True
    ).returncode


@pytest.mark.slow
def test_a_real_run_whose_worker_is_killed(cluster: ACluster, tmp_path: Path) -> None:
    folder = tmp_path / "nights"
    cluster.of("alpha")
    real = Real(cluster, folder, *CELL)
    worker = real.engine_runs(1).parent()
    assert worker is not None
    before = {p.pid for p in cluster.run_processes()}
    worker.kill()
    wait_for(
        lambda: not before & {p.pid for p in cluster.run_processes()},
        ENDED_S,
        "the end of its run",
    )
    code, out = real.end()
    assert code == 0, out
    runs = read(folder).newest
    assert runs is not None
    first, second = runs.attempts
    assert (first.lost, first.index, first.role) == (Lost.INFRASTRUCTURE, 1, "planned")
    assert (second.outcome, second.index, second.role) == ("reproduced", 2, "retry")
    assert second.machine == "alpha"
    assert (folder / second.incident / "evidence").is_dir()
    assert judged(folder / second.incident) == 0
    cluster.nothing_is_left()
    host = cluster.address.rpartition(":")[0]
    assert host not in (folder / "ledger.jsonl").read_text()


@pytest.mark.slow
def test_ctrl_c_ends_the_runs_and_resume_goes_on(
    cluster: ACluster, tmp_path: Path
) -> None:
    folder = tmp_path / "nights"
    cluster.of("alpha")
    real = Real(cluster, folder, *CELL)
    real.engine_runs(1)
    real.process.terminate()
    code, out = real.end()
    assert code == 130, out
    assert re.search("to resume, run: mmrepro matrix run .*--resume", out), out
    cluster.nothing_is_left()
    runs = read(folder).newest
    assert runs is not None
    assert (runs.attempts, runs.night.state) == ([], NightState.INTERRUPTED)
    code, out = Real(cluster, folder, "--resume").end()
    assert code == 0, out
    runs = read(folder).newest
    assert runs is not None
    assert [(a.index, a.outcome) for a in runs.attempts] == [(1, "reproduced")]
    cluster.nothing_is_left()


def test_no_engine_is_left_when_the_command_is_killed(
    cluster: ACluster, tmp_path: Path
) -> None:
    cluster.of("alpha")
    real = Real(cluster, tmp_path / "nights", *CELL)
    real.engine_runs(1)
    real.process.kill()
    cluster.nothing_is_left()
    assert read(tmp_path / "nights").newest is not None
    real.end()
