"""Whether a fork server wears out: starts in a row, a killed hung server among them.

Usage:  python benchmarks/warm_drift.py [--starts 20] [--release 0.23.0]

One parent of vLLM, kept. Each start is answered once and stopped; in the middle one,
`mmrepro run ghost-key-eviction` hangs its server and kills it. After each: the parent's
threads, open files, children and memory. Exit 1: after the last start they are others
than after the first. (Before the first fork OpenBLAS has threads in the parent; it ends
them for the fork.)"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mmrepro.base import processes
from mmrepro.engines.environments.build import ensure
from mmrepro.engines.supervise.warm import ForkServer
from mmrepro.runs.options import RunCommand, StartMode
from mmrepro.runs.start import ServerSpec, target
from mmrepro.runs.starter import IDLE_VARIABLE, ROOT_VARIABLE, Starter, fork_server_spec
from mmrepro.scenario.registry import load_scenario
from start_modes import Bench

MEMORY_SLACK = 16 << 20
"""Bytes by which the parent may grow: its Python heap, as it handles connections."""


def footprint(parent: ForkServer) -> tuple[int, int, int, int]:
    """(threads, open files, children besides its guardian, private and shared memory in
    bytes)."""
    folder = Path(f"/proc/{parent.pid}")
    deadline = time.monotonic() + 5
    while len(processes.descendants(parent.pid)) > 1 and time.monotonic() < deadline:
        time.sleep(0.05)
    return (
        len(list((folder / "task").iterdir())),
        len(list((folder / "fd").iterdir())),
        len(processes.descendants(parent.pid)) - 1,
        resident(parent.pid),
    )


def resident(pid: int) -> int:
    """Anonymous memory of a process in bytes: what it could have grown by."""
    lines = processes.read(pid, "status").decode().splitlines()
    return sum(
        int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon")
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--starts", type=int, default=20)
    parser.add_argument("--release", default="0.23.0")
    asked = parser.parse_args()
    scenario = load_scenario("ghost-key-eviction")
    options = RunCommand(release=asked.release)
    environment = ensure(target(scenario, options), progress=print)
    bench = Bench(scenario, options, environment)
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {ROOT_VARIABLE: folder, IDLE_VARIABLE: "300"}
        with Starter(StartMode.WARM) as starter:
            plan = ServerSpec(scenario, options, environment, bench.model).plan(1)
            starter.warm(plan, environment)
            parent = starter.parents.get(fork_server_spec(plan, environment))
        seen = [footprint(parent)]
        seconds = []
        print(f"before the first start: {seen[0][0]} threads, {seen[0][1]} files")
        print("start  seconds  threads  files  children  memory of the parent")
        try:
            for number in range(1, asked.starts + 1):
                began = time.monotonic()
                if number == asked.starts // 2:
                    what = hang(asked.release, Path(folder) / "hung")
                else:
                    what = f"answered {bench.start(starter, StartMode.WARM)[2]!r}"
                    seconds.append(time.monotonic() - began)
                seen.append(footprint(parent))
                threads, files, children, memory = seen[-1]
                print(
                    f"{number:5}  {time.monotonic() - began:7.2f}  {threads:7}  "
                    f"{files:5}  {children:8}  {memory / 2**20:8.1f} MiB  {what}",
                    flush=True,
                )
            served = parent.facts.served
        finally:
            parent.end()
    first, last = seen[1], seen[-1]
    grown = last[3] - first[3]
    alike = first[:3] == last[:3] and grown <= MEMORY_SLACK
    half = len(seconds) // 2
    early, late = (
        sum(seconds[:half]) / half,
        sum(seconds[half:]) / (len(seconds) - half),
    )
    print(
        f"served {served}; memory {grown / 2**20:+.1f} MiB; threads, files, children: "
        f"{last[:3]}"
    )
    print(f"mean of the first half {early:.2f} s, of the second {late:.2f} s")
    print("no drift" if alike else f"drift: {first} became {last}")
    return int(not alike)


def hang(release: str, out: Path) -> str:
    command = [
        sys.executable,
        "-m",
        "mmrepro",
        "run",
        "ghost-key-eviction",
        "--release",
        release,
    ]
    done = subprocess.run(
        [*command, "--start-mode", "warm", "--out", str(out)],
        capture_output=True,
        text=True,
        check=False,
    )
    said = next(
        (line for line in done.stdout.splitlines() if "REPRODUCED" in line),
        "no verdict",
    )
    return f"hung and killed: exit {done.returncode}, {said.strip()}"


if __name__ == "__main__":
    sys.exit(main())
