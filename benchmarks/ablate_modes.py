"""A whole `mmrepro ablate` from nothing, cold and warm: its time and its table.

Usage: python benchmarks/ablate_modes.py [--scenario ghost-key-eviction] [--modes
    cold,warm]

Each mode runs every cell anew (`--fresh`), one after the other. Exit 1: the tables
differ."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from typing import Any


def ablate(scenario: str, mode: str, out: str) -> tuple[float, dict[str, Any]]:
    command = [sys.executable, "-m", "mmrepro", "ablate", scenario, "--fresh", "--json"]
    began = time.monotonic()
    done = subprocess.run(
        [*command, "--start-mode", mode, "--out", out],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in (0, 1, 3):
        raise SystemExit(done.stderr)
    return time.monotonic() - began, json.loads(done.stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scenario", default="ghost-key-eviction")
    parser.add_argument("--modes", default="cold,warm")
    asked = parser.parse_args()
    tables, seconds = [], []
    for mode in asked.modes.split(","):
        with tempfile.TemporaryDirectory() as folder:
            taken, found = ablate(asked.scenario, mode, f"{folder}/it")
        seconds.append(taken)
        classes = {f["name"]: f["factor_class"] for f in found["factors"]}
        tables.append((classes, sorted(" + ".join(c["flips"]) for c in found["cures"])))
        modes = {run["start_mode"] for cell in found["cells"] for run in cell["runs"]}
        print(
            f"{mode:5} {taken:6.0f} s  x {taken / seconds[0]:.2f}  "
            f"{len(found['cells'])} cells, "
            f"started {', '.join(sorted(modes))}",
            flush=True,
        )
        print(f"      {classes}\n      cures: {tables[-1][1]}", flush=True)
    alike = all(table == tables[0] for table in tables)
    print("one table" if alike else "the tables differ")
    return int(not alike)


if __name__ == "__main__":
    sys.exit(main())
