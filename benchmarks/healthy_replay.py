"""Does a sound engine get a clean bill? Recorded traffic, played and judged by every
oracle.

Usage: python benchmarks/healthy_replay.py [--minutes 30] [--engine vllm] [--release
        0.23.0] python benchmarks/healthy_replay.py --write traffic.har --requests 2000

Seeded traffic (text, pictures, streams, aborts, several choices, prompts that are too
long), eight requests at a time, is played on fresh servers with default options, a
round after the other until the time is over. Each round is judged by the oracles of one
play, and its answers are held against the reference's. Printed: requests, near-ties,
and what any oracle has against it. Exit 1: anything.

--write: the same traffic as mitmproxy would have recorded it, for `mmrepro replay
FILE`."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from mmrepro.engines import get_engine
from mmrepro.runs.play.options import PlayOptions
from mmrepro.runs.play.player import Player
from mmrepro.search.oracle.comparison import compare_with_reference
from mmrepro.search.oracle.judge import judge
from mmrepro.search.oracle.judged import OracleReport
from mmrepro.search.oracle.reference import comparable, reference_case
from mmrepro.traffic.case.model import ServerWanted
from mmrepro.traffic.case.sending import PlayState

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "engine"))
from traces import as_har, healthy_trace

CONCURRENCY = 8


def round_of(
    player: Player, seed: int, requests: int, blocks: int, folder: Path
) -> OracleReport:
    """What every oracle says of one round."""
    case = healthy_trace(seed, requests, CONCURRENCY, player.server)
    engine = get_engine(case.server.engine)
    parts = []
    for name, played_case in (("as it is", case), ("greedy", comparable(case))):
        played = player.play(
            played_case, None, PlayOptions(blocks=blocks), folder / name
        )
        parts.append(judge(played_case, played, engine=engine))
        if played.state is not PlayState.ENDED:
            print(f"{name}: {played.state}: {played.said}")
        for cause in played.causes:
            print(f"{name}: the log says: {cause}")
    alone = player.play(
        reference_case(case, engine), None, PlayOptions(), folder / "reference"
    )
    return OracleReport.of([*parts, compare_with_reference(played_case, played, alone)])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument(
        "--requests", type=int, default=400, help="of a round, or of the file"
    )
    parser.add_argument("--engine", default="vllm")
    parser.add_argument("--release", default="0.23.0")
    parser.add_argument("--model", default="qwen2-vl")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--server-arg", action="append", default=[], metavar="ARG")
    parser.add_argument(
        "--blocks", type=int, default=4, help="readings of the idle server between"
    )
    parser.add_argument("--write", type=Path, metavar="FILE")
    options = parser.parse_args()
    server = ServerWanted(
        engine=options.engine,
        release=options.release,
        model=options.model,
        args=options.server_arg,
    )
    if options.write:
        case = healthy_trace(options.seed, options.requests, CONCURRENCY, server)
        options.write.write_bytes(as_har(case))
        return 0
    began, total, seen = time.monotonic(), OracleReport(), Counter[str]()
    with (
        tempfile.TemporaryDirectory() as folder,
        Player(server, folder=Path(folder)) as player,
    ):
        seed = options.seed
        while time.monotonic() - began < options.minutes * 60:
            round_dir = Path(folder) / f"round-{seed}"
            judged = round_of(player, seed, options.requests, options.blocks, round_dir)
            total = OracleReport.of([total, judged])
            seen.update(str(sighting.finding_class) for sighting in judged.sightings)
            for sighting in judged.sightings:
                print(f"round {seed}: {sighting.bucket}: {sighting.said}", flush=True)
            minutes = (time.monotonic() - began) / 60
            rounds = seed - options.seed + 1
            print(
                f"{minutes:.1f} min: {rounds * options.requests} requests", flush=True
            )
            seed += 1
    for what, number in sorted(total.counted.items()):
        print(f"{number:7} {what}")
    for sentence in total.unseen:
        print(sentence)
    print(f"sightings: {sum(seen.values())} {dict(seen) or ''}")
    return 1 if seen else 0


if __name__ == "__main__":
    sys.exit(main())
