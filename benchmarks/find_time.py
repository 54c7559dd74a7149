"""How long does ``mmrepro find`` take, from the shell to the answer?

    python benchmarks/find_time.py [--repeat 15]

Prints the median and the worst of each question, wall and processor time. Run it on a
machine that does nothing else: what runs beside it counts. Exit 1: a median above 0.3
s."""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

BOUND_S = 0.3
QUESTIONS = (
    "Expected a cached item",
    "vllm#43941",
    "https://github.com/vllm-project/vllm/issues/43941",
    "image cache eviction never ends",
    "banana bread",
)
PROGRAM = Path(sys.executable).with_name("mmrepro")


def timed(question: str) -> tuple[float, float]:
    """Wall and processor seconds of one call."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.monotonic()
    subprocess.run([PROGRAM, "find", question], stdout=subprocess.DEVNULL, check=False)
    wall = time.monotonic() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--repeat", type=int, default=15)
    asked = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    slow = False
    for question in QUESTIONS:
        timed(question)  # files into the page cache
        walls, works = zip(*(timed(question) for _ in range(asked.repeat)), strict=True)
        median = statistics.median(walls)
        slow |= median > BOUND_S
        print(
            f"{median:.2f} s, worst {max(walls):.2f}, processor "
            f"{statistics.median(works):.2f}"
            f"  {question}"
        )
    return int(slow)


if __name__ == "__main__":
    raise SystemExit(main())
