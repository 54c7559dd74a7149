"""What `kill -9` of mmrepro leaves behind in warm mode, at random moments of a run.

Usage:  python benchmarks/warm_kills.py [--kills 30] [--seed 1] [--scenario ghost-key-eviction]

Each time `mmrepro run --start-mode warm` is started with a parent of its own and killed after a
random part of the time that a whole run takes. Ten seconds later no process of the environment, no
listening port and no entry of /dev/shm may be there that was not there before. Exit 1: one was.
Run it with nothing else beside it that starts engines.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mmrepro.environments import ensure
from mmrepro.environments.store import used_by
from mmrepro.run.launch import target
from mmrepro.run.options import RunOptions
from mmrepro.scenario.registry import load_scenario
from mmrepro.supervise import procfs

LIMIT_S = 10.0


def listening() -> set[str]:
    """Local addresses of all listening TCP sockets of this machine."""
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                found.add(fields[1])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scenario", default="ghost-key-eviction")
    asked = parser.parse_args()
    environment = ensure(target(load_scenario(asked.scenario), RunOptions()), progress=print)
    moments = random.Random(asked.seed)
    command = [sys.executable, "-m", "mmrepro", "run", asked.scenario, "--start-mode", "warm"]
    shm, ports = procfs.shm_names(), listening()
    failed = 0

    def left() -> list[str]:
        found = [procfs.command(pid) for pid in used_by(environment.path)]
        found += [f"/dev/shm/{name}" for name in procfs.shm_names() - shm]
        return found + [f"port {address}" for address in listening() - ports]

    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        subprocess.run([*command, "--out", f"{folder}/whole"], capture_output=True, check=False)
        whole = time.monotonic() - began
        print(f"a whole run takes {whole:.1f} s; left after it: {left() or 'nothing'}")
        for number in range(1, asked.kills + 1):
            moment = moments.uniform(0.3, whole)
            process = subprocess.Popen(
                [*command, "--out", f"{folder}/{number}"],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            time.sleep(moment)
            living = len(used_by(environment.path))
            process.send_signal(signal.SIGKILL)
            process.wait()
            killed = time.monotonic()
            while (remains := left()) and time.monotonic() - killed < LIMIT_S:
                time.sleep(0.1)
            failed += bool(remains)
            print(
                f"{number:3}  killed after {moment:5.1f} s with {living} processes; gone after "
                f"{time.monotonic() - killed:4.1f} s; left: {remains or 'nothing'}",
                flush=True,
            )
    print(f"{asked.kills} kills, {failed} left something")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
