"""How fast does `mmrepro fuzz` go, and how long until it meets what is known?

Usage:  python benchmarks/fuzz_rate.py [--only ghost-key …] [--seeds 5] [--budget 30m] [--out DIR]

For each target and each of the seeds 1 to N one session of the whole budget, nothing else beside.
What --out holds is not run again, and what was broken off there goes on. Printed: requests a second
and episodes a minute, both without what was spent on findings, and seed by seed the minutes until
what the target names was first seen, and the requests that were left of it. Exit 1: of a target
fewer than two of three seeds met it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "engine"))
from live import COMMAND
from mmrepro.failure.documents.replay import FUZZ_FILE, Finding, Found, Fuzz


@dataclass(frozen=True)
class Target:
    """``classes`` and ``known``: what a finding must be; ``known`` "": whatever its name."""

    engine: str
    release: str
    classes: tuple[str, ...]
    known: str = ""
    more: tuple[str, ...] = ()

    @property
    def session(self) -> str:
        """The first target of the same command: one session tells of both."""
        wanted = (self.engine, self.release, self.more)
        return next(
            name for name, one in TARGETS.items() if (one.engine, one.release, one.more) == wanted
        )

    def met(self, finding: Finding) -> bool:
        named = not self.known or finding.known == self.known
        return finding.confirmed and finding.finding_class in self.classes and named


TARGETS = {
    "ghost-key": Target("vllm", "0.23.0", ("hang",), more=("--blind",)),
    "desync": Target("vllm", "0.32.0", ("server-error", "protocol"), "mm-cache-desync"),
    "shape-alias": Target("sglang", "0.5.6", ("cache-bound",), "shape-alias"),
    "opaque-500": Target("lmdeploy", "0.6.4", ("server-error",)),
    "growth-crash": Target("lmdeploy", "0.6.4", ("failing",)),
    "ghost-key-minivllm": Target(
        "minivllm",
        "0.1",
        ("hang",),
        more=("--blind", "--server-arg=--fault", "--server-arg=ghost-key-lru"),
    ),
}


def session(target: Target, seed: int, budget: str, out: Path) -> Fuzz:
    """Its record; of one that ``out`` holds, if that is complete."""
    file = out / FUZZ_FILE
    kept = Fuzz.model_validate_json(file.read_bytes()) if file.is_file() else None
    if kept is None or kept.state != "complete":
        command = [*COMMAND, "fuzz", target.engine]
        if kept is not None:
            command += ["--resume", str(out)]
        else:
            command += ["--release", target.release, "--seed", str(seed), "--budget", budget]
            command += ["--out", str(out), *target.more]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
    return Fuzz.model_validate_json(file.read_bytes())


def told(found: Found | None) -> str:
    if found is None:
        return "never"
    left = found.finding.requests
    return f"{found.after_s / 60:.1f} min ({left} request{'s' * (left != 1)})"


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
            target, rates = TARGETS[name], []
            met: list[Found | None] = []
            for seed in range(1, options.seeds + 1):
                out = (options.out or Path(temporary)) / f"{target.session}-{seed}"
                fuzz = session(target, seed, options.budget, out)
                playing = max(1.0, fuzz.elapsed_s - fuzz.pursuing_s)
                rates.append((fuzz.requests / playing, len(fuzz.episodes) * 60 / playing))
                found = (one for one in fuzz.found if target.met(one.finding))
                met.append(min(found, key=lambda one: one.after_s, default=None))
            requests, episodes = (sum(column) / len(rates) for column in zip(*rates, strict=True))
            print(
                f"{name:20} {target.engine} {target.release}: {requests:.1f} requests a second, "
                f"{episodes:.1f} episodes a minute; first seen after "
                f"{', '.join(map(told, met))}",
                flush=True,
            )
            good = good and 3 * sum(one is not None for one in met) >= 2 * len(met)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
