"""What ``mmrepro diagnose`` takes from a server under load: throughput with and without
it.

Starts a real server, keeps it busy with a fixed number of clients, and alternates
windows of equal
length: in every other one, diagnoses follow each other without a break: far more than
anybody does. Alternating keeps the machine's own noise out of the comparison; what
counts is the mean of the pairs' ratios, with the interval that a bootstrap gives it.

    uv run python benchmarks/diagnose_load.py --engine vllm --pairs 8
    uv run python benchmarks/diagnose_load.py --server-cores 0 --other-cores 1   # a core is free
"""

from __future__ import annotations

import argparse
import os
import random
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
from mmrepro.engines.models import TinyQwen2VL
from mmrepro.engines.models.qwen import TinyQwen3

ENGINES = {"vllm": ("0.23.0", TinyQwen2VL()), "minivllm": ("0.1", TinyQwen3())}
COMMAND = [sys.executable, "-m", "mmrepro", "diagnose"]


def main() -> None:
    options = arguments()
    release, model = ENGINES[options.engine]
    pin(options.server_cores)  # the server inherits it
    with (
        tempfile.TemporaryDirectory(prefix="mmrepro-bench-") as folder,
        serving(options.engine, release, model, Path(folder) / "server") as server,
    ):
        pin(options.other_cores)
        ask(server.url)
        with Load(server.url, options.clients, max_tokens=options.tokens) as load:
            time.sleep(5)
            measure(load, server.url, Path(folder), options)


def measure(load: Load, url: str, folder: Path, options: argparse.Namespace) -> None:
    ratios: list[float] = []
    costs: list[float] = []
    print(
        f"{options.engine}, {options.clients} clients, windows of {options.window:g} s"
    )
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
    mean = statistics.mean(ratios)
    low, high = interval(ratios)
    print(f"median ratio {statistics.median(ratios):.3f}, mean {mean:.3f}")
    print(
        f"mean loss {loss(mean):.1f} %, 95 % interval {loss(high):.1f} to "
        f"{loss(low):.1f} %"
    )
    cost, cores = statistics.median(costs), os.cpu_count() or 1
    print(f"CPU of one diagnosis, start-up included: {cost:.2f} s, of {cores} cores")


def pin(cores: str) -> None:
    """Run this process, and what it starts from now on, on ``cores`` (``0,1``); "": as
    it is."""
    if cores:
        os.sched_setaffinity(0, {int(core) for core in cores.split(",")})


def loss(ratio: float) -> float:
    return 100 - 100 * ratio


def interval(ratios: list[float], rounds: int = 10_000) -> tuple[float, float]:
    """The middle 95 % of the means of ``rounds`` samples with replacement
    (bootstrap)."""
    draw = random.Random(0)
    means = sorted(
        statistics.mean(draw.choices(ratios, k=len(ratios))) for _ in range(rounds)
    )
    return means[round(0.025 * rounds)], means[round(0.975 * rounds) - 1]


def cpu_of_children() -> float:
    """CPU seconds of the diagnoses that have ended; the server is another process's
    child."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def diagnose_for(url: str, folder: Path, seconds: float, every: float) -> int:
    """Diagnoses for ``seconds``, one at most each ``every`` seconds; all must come out
    healthy."""
    end, count = time.monotonic() + seconds, 0
    # Bytecode is kept, as it is on a user's machine.
    environment = {
        k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"
    }
    environment["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")
    stop = threading.Event()
    while not count or time.monotonic() < end - 4:
        begun = time.monotonic()
        done = subprocess.run(
            [*COMMAND, url, "--json"],
            cwd=folder,
            env=environment,
            capture_output=True,
        )
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
    parser.add_argument(
        "--every", type=float, default=0.0, help="seconds between two diagnoses"
    )
    parser.add_argument(
        "--server-cores", default="", help="pin the server to them, e.g. 0"
    )
    parser.add_argument(
        "--other-cores", default="", help="the same for clients and diagnoses"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
