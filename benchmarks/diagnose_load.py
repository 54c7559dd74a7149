"""What ``mmrepro diagnose`` takes from a server under load: throughput with and without it.

Starts a real server, keeps it busy with a fixed number of clients, and alternates windows of equal
length: in every other one, diagnoses follow each other without a break, which is far more than
anybody does. Alternating keeps the machine's own noise out of the comparison; the medians of the
pairs' ratios are what counts.

    uv run python benchmarks/diagnose_load.py --engine vllm --pairs 8
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "engine"))

from live_server import Load, ask, serving
from mmrepro.models import TinyQwen2VL, TinyQwen3

ENGINES = {"vllm": ("0.23.0", TinyQwen2VL()), "minivllm": ("0.1", TinyQwen3())}
COMMAND = [sys.executable, "-m", "mmrepro", "diagnose"]


def main() -> None:
    options = arguments()
    release, model = ENGINES[options.engine]
    with (
        tempfile.TemporaryDirectory(prefix="mmrepro-bench-") as folder,
        serving(options.engine, release, model, Path(folder) / "server") as server,
    ):
        ask(server.url)
        with Load(server.url, options.clients, max_tokens=options.tokens) as load:
            time.sleep(5)
            measure(load, server.url, Path(folder), options)


def measure(load: Load, url: str, folder: Path, options: argparse.Namespace) -> None:
    ratios: list[float] = []
    costs: list[float] = []
    print(f"{options.engine}, {options.clients} clients, windows of {options.window:g} s")
    print("pair   off answers/s   on answers/s   ratio   diagnoses")
    for pair in range(1, options.pairs + 1):
        # Off, on, then on, off: a slow drift of the machine favours neither.
        order = (False, True) if pair % 2 else (True, False)
        rates, count = {}, 0
        used = cpu_of_children()
        for on in order:
            before, started = load.done, time.monotonic()
            if on:
                count = diagnose_for(url, folder, options.window, options.every)
            time.sleep(max(0.0, options.window - (time.monotonic() - started)))
            rates[on] = (load.done - before) / (time.monotonic() - started)
        ratios.append(rates[True] / rates[False])
        costs.append((cpu_of_children() - used) / max(count, 1))
        said = f"{rates[False]:15.2f} {rates[True]:14.2f} {ratios[-1]:7.3f} {count:11d}"
        print(f"{pair:4d} {said}", flush=True)
    median = statistics.median(ratios)
    print(f"median ratio {median:.3f}, loss {100 - 100 * median:.1f} %")
    cost, cores = statistics.median(costs), os.cpu_count() or 1
    print(f"CPU of one diagnosis, start-up included: {cost:.2f} s, of {cores} cores")


def cpu_of_children() -> float:
    """CPU seconds of the diagnoses that have ended; the server is another process's child."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def diagnose_for(url: str, folder: Path, seconds: float, every: float) -> int:
    """Diagnoses for ``seconds``, one at most each ``every`` seconds; all must come out healthy."""
    end, count = time.monotonic() + seconds, 0
    stop = threading.Event()
    while time.monotonic() < end - 4:
        begun = time.monotonic()
        done = subprocess.run([*COMMAND, url, "--json"], cwd=folder, capture_output=True)
        assert done.returncode == 0, done.stdout[-2000:]
        count += 1
        stop.wait(max(0.0, min(end, begun + every) - time.monotonic()))
    return count


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", choices=ENGINES, default="vllm")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--window", type=float, default=20.0, help="seconds")
    parser.add_argument("--every", type=float, default=0.0, help="seconds between two diagnoses")
    return parser.parse_args()


if __name__ == "__main__":
    main()
