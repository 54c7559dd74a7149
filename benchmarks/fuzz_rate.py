"""How fast does `mmrepro fuzz` go, and how long until it meets what is known?

Usage:  python benchmarks/fuzz_rate.py [--only ghost-key …] [--seeds 5] [--budget 30m] [--out DIR]

For each target and each of the seeds 1 to N one session of the whole budget, nothing else beside.
Printed: requests a second and episodes a minute, both without what was spent on findings, and the
minutes until what the target names was first seen and then confirmed, seed by seed. Exit 1: of a
target fewer than two of three seeds met it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "engine"))
from live import COMMAND
from mmrepro.incident.fuzz import FUZZ_FILE, Fuzz


@dataclass(frozen=True)
class Target:
    """``classes`` and ``known``: what a finding must be; ``known`` "": whatever its name."""

    engine: str
    release: str
    classes: tuple[str, ...]
    known: str = ""
    more: tuple[str, ...] = ()

    def met(self, finding: dict[str, Any]) -> bool:
        named = not self.known or finding["known"] == self.known
        return finding["confirmed"] and finding["class"] in self.classes and named


TARGETS = {
    "ghost-key": Target("vllm", "0.23.0", ("hang",), more=("--blind",)),
    "desync": Target("vllm", "0.32.0", ("server-error", "protocol"), "mm-cache-desync"),
    "shape-alias": Target("sglang", "0.5.6", ("cache-bound",), "shape-alias"),
    "opaque-500": Target("lmdeploy", "0.6.4", ("server-error",)),
    "growth-crash": Target("lmdeploy", "0.6.4", ("death", "hang", "server-error")),
    "ghost-key-minivllm": Target(
        "minivllm",
        "0.1",
        ("hang",),
        more=("--blind", "--server-arg=--fault", "--server-arg=ghost-key-lru"),
    ),
}


def session(target: Target, seed: int, budget: str, out: Path) -> tuple[dict[str, Any], Fuzz]:
    """What one session printed, and its record."""
    command = [*COMMAND, "fuzz", target.engine, "--release", target.release, "--seed", str(seed)]
    command += ["--budget", budget, "--out", str(out), "--json", *target.more]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    told: dict[str, Any] = json.loads(done.stdout)
    return told, Fuzz.model_validate_json((out / FUZZ_FILE).read_bytes())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--budget", default="30m")
    parser.add_argument("--out", type=Path, help="keep everything in this folder")
    options = parser.parse_args()
    good = True
    with tempfile.TemporaryDirectory() as temporary:
        for name in options.only:
            target, minutes, rates = TARGETS[name], [], []
            for seed in range(1, options.seeds + 1):
                out = (options.out or Path(temporary)) / f"{name}-{seed}"
                told, fuzz = session(target, seed, options.budget, out)
                playing = max(1.0, fuzz.elapsed_s - fuzz.pursuing_s)
                rates.append((fuzz.requests / playing, len(fuzz.episodes) * 60 / playing))
                met = [f["after_s"] / 60 for f in told["findings"] if target.met(f)]
                minutes.append(min(met, default=None))
            requests, episodes = (sum(column) / len(rates) for column in zip(*rates, strict=True))
            met = [f"{one:.1f}" if one is not None else "never" for one in minutes]
            print(
                f"{name:20} {target.engine} {target.release}: {requests:.1f} requests a second, "
                f"{episodes:.1f} episodes a minute; first seen after {', '.join(met)} min",
                flush=True,
            )
            good = good and 3 * sum(one is not None for one in minutes) >= 2 * len(minutes)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
