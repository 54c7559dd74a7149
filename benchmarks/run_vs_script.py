"""The whole main job against a plain shell script that does the same by hand.

Usage:  python benchmarks/run_vs_script.py [--rounds 3] [--release 0.23.0]

All use the same cached environment and the same tiny model, in turn, in one process:
the script, a single run, and a run with a fork server kept (`mmrepro env warm start`, whose
imports are not counted).
Printed: seconds of each, and the ratios round by round (the targets are at most 0.5 and
0.35)."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mmrepro.base.machine.files import cache_root
from mmrepro.base.processes import shm_names
from mmrepro.engines.environments.build import ensure
from mmrepro.engines.environments.spec import vllm_spec
from mmrepro.engines.models import TinyQwen2VL
from mmrepro.engines.supervise import free_port
from mmrepro.probes.stacks import find_py_spy
from mmrepro.traffic.pictures import noise

SCRIPT = Path(__file__).with_name("ghost_key_plain.sh")


def write_bodies(folder: Path) -> None:
    """The scenario's requests, in order, as files for curl."""
    size = TinyQwen2VL().image_size()
    requests = [("gate-1", 11, "hi"), ("gate-1b", 11, "hi"), ("gate-2", 12, "hi")]
    requests += [("X-long", 777, "a " * 949), ("X-short", 777, "hi")]
    requests += [(f"fill-{i}", 1000 + i, "hi") for i in range(1, 31)]
    for number, (name, seed, text) in enumerate(requests):
        image = {
            "type": "image_url",
            "image_url": {"url": noise(name, seed, size).data_url},
        }
        body = {
            "model": "tiny",
            "max_tokens": 4,
            "messages": [
                {"role": "user", "content": [image, {"type": "text", "text": text}]}
            ],
        }
        (folder / f"{number:02d}-{name}.json").write_text(json.dumps(body))


def timed(what: str, command: list[str], warm: Path) -> float:
    """Seconds that ``command`` takes; kept parents are in ``warm``."""
    variables = {**os.environ, "MMREPRO_WARM_DIR": str(warm)}
    began = time.monotonic()
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=variables
    )
    seconds = time.monotonic() - began
    print(f"  {seconds:6.1f} s  exit {done.returncode}  {what}", flush=True)
    if "--verbose" in sys.argv or done.returncode not in (0,):
        print(done.stdout[-1500:], done.stderr[-500:])
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--release", default="0.23.0")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    environment = ensure(vllm_spec(options.release, "cpu"), progress=print)
    model = TinyQwen2VL().write(cache_root() / "models")
    mmrepro = [sys.executable, "-m", "mmrepro"]
    seconds: dict[str, list[float]] = {
        name: [] for name in ("plain script", "run", "warm run")
    }
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "bodies").mkdir()
        write_bodies(folder / "bodies")
        start = [
            *mmrepro,
            "env",
            "warm",
            "start",
            "ghost-key-eviction",
            "--release",
            options.release,
        ]
        timed("the fork server's imports", start, folder / "warm")
        for number in range(1, options.rounds + 1):
            print(f"round {number}")
            script = [
                "sh",
                str(SCRIPT),
                str(environment.python),
                str(find_py_spy()),
                str(model),
                str(free_port()),
                str(folder / "bodies"),
                str(folder / f"log-{number}"),
            ]
            before = shm_names()
            seconds["plain script"].append(timed("plain script", script, folder))
            for name in shm_names() - before:  # the script ends its server with SIGKILL
                (Path("/dev/shm") / name).unlink(missing_ok=True)
            command = [
                *mmrepro,
                "run",
                "ghost-key-eviction",
                "--release",
                options.release,
            ]
            for what, warm in (("run", "none"), ("warm run", "warm")):
                out = str(folder / f"{what} {number}")
                seconds[what].append(
                    timed(what, [*command, "--out", out], folder / warm)
                )
        timed(
            "the fork server's end", [*mmrepro, "env", "warm", "stop"], folder / "warm"
        )
    theirs = seconds["plain script"]
    for what, ours in seconds.items():
        ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
        rounds = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        print(
            f"{what:13} median {statistics.median(ours):6.1f} s   "
            f"x script {statistics.median(ratios):5.2f}   rounds: {rounds}"
        )


if __name__ == "__main__":
    main()
