"""How often is a slower engine found, and how often is one found that is none?

    python benchmarks/upgrade.py [--nothing 60] [--slower 5 2] [--runs 20] [--budget 5m] [--out DIR]

``mmrepro upgrade`` on minivllm, in turn: against itself; against itself with each token
delayed by 5 %, and by 2 % (``planted/upgrade_server.py``), each so many times.
``results.jsonl`` in ``--out`` has a line for each comparison as soon as it ends; what
is there is not run again. The table says in how many nothing was found (exit 0), a
difference that matters (1), or nothing could be told (3), and the median interval of
the time between tokens at saturation. A comparison needs two quiet
cores: several can run side by side, each under ``taskset`` and with an ``--out`` of its
own. Where the machine's own speed varied by more than 15 %, or others took a quarter of
a core in a block, it stands in a line apart, and does not count. Each side has a fork
server of its own, as two releases have, also where nothing is planted. ``--raw`` keeps
the times of single requests beside the results, to compare estimators."""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from mmrepro.failure.documents.upgrade import Block
from mmrepro.search.upgrade.session import UNEVEN, paces
from mmrepro.traffic.case.files import write_case
from mmrepro.traffic.case.model import Case, Message, Operation, ServerWanted

PLUGIN = Path(__file__).absolute().parent / "planted" / "upgrade_server.py"
METRICS = (
    "ttft",
    "itl",
    "tpot",
    "latency",
    "throughput",
    "itl-saturated",
    "latency-saturated",
)
TOKENS = "itl-saturated"
OTHERS = 0.25
"""Cores that others may take in a block of a quiet machine."""
KEPT = """\
import os, pickle
from mmrepro.cli import main
from mmrepro.runs.play import measuring

plain = measuring.note_changes


def note_changes(made, old, new):
    plain(made, old, new)
    with open(os.environ["RAW_TIMES"], "ab") as file:
        pickle.dump((made, old, new), file)


measuring.note_changes = note_changes
main()
"""
"""Of ``--raw``: mmrepro, with the samples of each block written down."""


def traffic(folder: Path, requests: int = 24) -> Path:
    """Streamed chats, some beside each other."""
    chance = random.Random(48)
    words = [
        "the",
        "cache",
        "of",
        "a",
        "block",
        "holds",
        "keys",
        "and",
        "values",
        "for",
        "tokens",
    ]
    operations = [
        Operation(
            id=f"r{i + 1}",
            messages=[
                Message(role="user", content=" ".join(chance.choices(words, k=12)))
            ],
            parameters={
                "max_tokens": 32,
                "temperature": 0,
                "ignore_eos": True,
                "stream_options": {"include_usage": True},
            },
            stream=True,
            at_s=i * 0.075,
        )
        for i in range(requests)
    ]
    server = ServerWanted(engine="minivllm", release="0.1", model="qwen3")
    return write_case(Case(server=server, operations=operations), folder)


def compared(delay: float, seed: int, case: Path, asked: argparse.Namespace) -> dict:
    """A comparison against a side whose tokens take longer by that share; 0: the
    same."""
    folder = asked.out / f"{delay:.2f}-{seed}"
    program = ["-c", KEPT] if asked.raw else ["-m", "mmrepro"]
    command = [
        sys.executable,
        *program,
        "upgrade",
        "0.1",
        "0.1",
        "--device",
        asked.device,
        "--engine",
        "minivllm",
        "--traffic",
        str(case),
        "--seed",
        str(seed),
        "--budget",
        asked.budget,
        "--out",
        str(folder),
        "--yes",
        "--new-env",
        "PLANT=slower",
        "--new-env",
        f"DELAY={delay}",
    ]
    if delay:
        command += ["--new-server", f"--plugin {PLUGIN}"]
    env = {**os.environ, "RAW_TIMES": str(asked.out / f"{delay:.2f}-{seed}.pickle")}
    began = time.monotonic()
    ended = subprocess.run(
        command, capture_output=True, text=True, check=False, env=env
    )
    file = folder / "upgrade.json"
    if not file.is_file():
        raise SystemExit(f"{ended.stdout[-2000:]}{ended.stderr[-3000:]}")
    document = json.loads(file.read_text())
    found = {
        one["metric"]: one
        for one in document["differences"]
        if one["metric"] in METRICS
    }
    blocks = [Block.model_validate(one) for one in document["blocks"]]
    fast, slow = paces(blocks)
    others = max((block.noise for block in blocks), default=0.0)
    return {
        "quiet": slow <= UNEVEN * fast and others <= OTHERS,
        "uneven": round(slow / fast - 1, 3) if fast else 0.0,
        "others": others,
        "delay": delay,
        "seed": seed,
        "exit": ended.returncode,
        "seconds": round(time.monotonic() - began, 1),
        "blocks": len(blocks),
        "found": {
            name: [one["outcome"], one["matters"], one["interval"], one["statement"]]
            for name, one in found.items()
        },
        "matter": [one["subject"] for one in document["differences"] if one["matters"]],
        "differ": [
            one["subject"]
            for one in document["differences"]
            if one["outcome"] == "difference"
        ],
    }


def table(results: list[dict]) -> Iterator[str]:
    heads = "".join(
        f"{head:>8}" for head in ("exit 0", "exit 1", "exit 3", "blocks", "s")
    )
    yield f"{'delay':>6}{'of':>5}{heads}  between tokens"
    for loud, delay in sorted({(not one["quiet"], one["delay"]) for one in results}):
        some = [
            one for one in results if (not one["quiet"], one["delay"]) == (loud, delay)
        ]
        exits = [sum(one["exit"] == code for one in some) for code in (0, 1, 3)]
        blocks = statistics.median(one["blocks"] for one in some)
        seconds = statistics.median(one["seconds"] for one in some)
        ends = [one["found"][TOKENS][2] for one in some if TOKENS in one["found"]]
        span = (
            [statistics.median(end[side] for end in ends) for side in (0, 1)]
            if ends
            else []
        )
        words = f"{span[0]:+.1%} to {span[1]:+.1%}" if span else ""
        counts = "".join(f"{count:8}" for count in exits)
        words += ", not quiet" if loud else ""
        yield f"{delay:6.0%}{len(some):5}{counts}{blocks:8.0f}{seconds:8.0f}  {words}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("upgrade-benchmark"))
    parser.add_argument("--nothing", type=int, default=60, metavar="N")
    parser.add_argument(
        "--slower", type=float, nargs="*", default=[5, 2], metavar="PERCENT"
    )
    parser.add_argument("--runs", type=int, default=20, help="of each of --slower")
    parser.add_argument("--budget", default="5m")
    parser.add_argument("--seed", type=int, default=0, help="of the first of each kind")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--raw", action="store_true")
    asked = parser.parse_args()
    case = traffic(asked.out / "traffic")
    file = asked.out / "results.jsonl"
    results = [json.loads(line) for line in file.open()] if file.is_file() else []
    made = {(one["delay"], one["seed"]) for one in results}
    wanted = [(0.0, asked.seed + n) for n in range(asked.nothing)]
    wanted += [
        (slow / 100, asked.seed + n) for n in range(asked.runs) for slow in asked.slower
    ]
    for delay, seed in sorted(wanted, key=lambda one: one[1]):
        if (delay, seed) in made:
            continue
        one = compared(delay, seed, case, asked)
        with file.open("a") as lines:
            lines.write(json.dumps(one) + "\n")
        results.append(one)
        said = {
            name: one["found"][name][3]
            for name in (TOKENS, "throughput")
            if name in one["found"]
        }
        words = (
            f"exit {one['exit']}, {one['blocks']} blocks, uneven {one['uneven']:.0%}"
        )
        print(f"{delay:.0%} {seed}: {words}, {said}", flush=True)
    print("\n".join(table(results)))
    same = [one for one in results if one["quiet"] and one["delay"] == 0]
    slower = [one for one in results if one["quiet"] and one["delay"] == 0.05]
    good = sum(one["exit"] == 0 for one in same) >= 0.95 * len(same)
    good = good and not any(one["matter"] for one in same)
    return not (good and sum(one["exit"] == 1 for one in slower) >= 0.95 * len(slower))


if __name__ == "__main__":
    raise SystemExit(main())
