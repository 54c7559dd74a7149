"""From a night that hung to the requests that did it: starts, minutes, and does the
script hold?

Usage:  python benchmarks/replay_ghost_key.py --seed 1 [--anonymise] [--out DIR]

A vLLM 0.23.0 started by hand is asked 200 requests through mitmproxy (the recipe of
docs/capture.md), eight at a time; among them stands what makes it hang (vllm#43941).
Its clients give up after ten seconds. What was recorded is replayed from the HAR, and
from an OpenAI batch file of the same requests; each time ``reproduce.py`` is run
against servers started by hand, three of 0.23.0 and one of 0.24.0, which has the fix.
Exit 1: the hang was not found, took more than 15 requests, 40 starts or 6 minutes, or a
script did not hold."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "engine"))
from live import COMMAND
from live_server import serving
from mitmproxy_recording import HAR_NAME, recording
from mmrepro.base.records import FindingClass, without_head
from mmrepro.engines.base import SERVED_MODEL
from mmrepro.engines.models import TinyQwen2VL
from mmrepro.failure.documents.replay import Replay
from mmrepro.reports.replay import seconds
from mmrepro.runs.starter import MODE_VARIABLE
from mmrepro.traffic.case.bodies import body
from mmrepro.traffic.case.files import pictures
from mmrepro.traffic.case.model import Case, Operation
from recorded_traffic import ask, leave
from traces import as_batch, ghost_trace

RELEASES = {"0.23.0": (3, 1), "0.24.0": (1, 0)}
"""Servers started by hand, and what ``reproduce.py`` must exit with on each."""
PATIENCE_S = 10.0
MOST_REQUESTS, MOST_STARTS, MOST_S = 15, 40, 360.0


def send(case: Case, url: str, concurrency: int) -> Counter[str]:
    """All of it, ``concurrency`` at a time; what the clients saw."""
    made, futures = pictures(case, None), dict[str, Future[str]]()

    def one(op: Operation) -> str:
        for text in op.after:
            before, _, event = text.partition(".")
            if event == "end":
                futures[before].result()
        content = json.loads(body(op, made, SERVED_MODEL))
        try:
            if op.leave:
                leave(url, op.path, content, pieces=3)
                return "left"
            return str(ask(url, op.path, content, timeout_s=PATIENCE_S))
        except OSError as error:
            return type(error).__name__

    with ThreadPoolExecutor(concurrency) as pool:
        for op in case.operations:
            futures[op.id] = pool.submit(one, op)
    return Counter(future.result() for future in futures.values())


def record(case: Case, folder: Path) -> Path:
    """The HAR of ``case`` on a server that was started by hand."""
    with (
        serving(
            "vllm", case.server.release, TinyQwen2VL(), folder, *case.server.args
        ) as server,
        recording(server.url, folder) as url,
    ):
        seen = send(case, url, 8)
    print(f"{len(case.operations)} requests recorded: {dict(seen)}", flush=True)
    return folder / HAR_NAME


def replay(file: Path, case: Case, out: Path, *options: str) -> Replay:
    """The document that ``mmrepro replay --json`` prints."""
    server = [f"--server-arg={arg}" for arg in case.server.args]
    command = [
        *COMMAND,
        "replay",
        str(file),
        "--engine",
        "vllm",
        "--release",
        case.server.release,
    ]
    command += [*server, "--out", str(out), "--json", *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    return Replay.model_validate(without_head(json.loads(done.stdout)))


def holds(finding: Path, case: Case, folder: Path) -> bool:
    """Whether ``reproduce.py`` says of each server what it should."""
    right = True
    for release, (times, wanted) in RELEASES.items():
        codes = []
        for number in range(times):
            place = folder / f"{release}-{number}"
            with serving(
                "vllm", release, TinyQwen2VL(), place, *case.server.args
            ) as server:
                port = server.url.rpartition(":")[2]
                script = [
                    sys.executable,
                    "-I",
                    "-S",
                    str(finding / "reproduce.py"),
                    "--port",
                    port,
                ]
                codes.append(
                    subprocess.run(script, capture_output=True, check=False).returncode
                )
        print(
            f"  reproduce.py on vLLM {release}: exit {codes}, {wanted} is right",
            flush=True,
        )
        right = right and codes == [wanted] * times
    return right


def tried(name: str, file: Path, case: Case, folder: Path, *options: str) -> bool:
    """Replays ``file``, prints what came of it; whether all bounds held."""
    told = replay(file, case, folder / "replay", *options)
    starts, took = len(told.plays), seconds(told)
    hang = next(
        (f for f in told.findings if f.finding_class is FindingClass.HANG), None
    )
    if hang is None:
        print(f"{name}: no hang in {starts} starts", flush=True)
        return False
    needed = f"{hang.requests} of {hang.requests_before} requests, {hang.known}"
    print(f"{name}: hang: {needed}; in all {starts} starts, {took:.0f} s", flush=True)
    for other in told.findings:
        if other is not hang:
            print(
                f"  and {other.finding_class}: {other.requests} requests, {other.known}"
            )
    bounds = hang.requests <= MOST_REQUESTS and starts <= MOST_STARTS and took <= MOST_S
    return (
        holds(folder / "replay" / hang.folder, case, folder)
        and bounds
        and hang.confirmed
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--anonymise", action="store_true", help="other words and pictures, too"
    )
    parser.add_argument("--out", type=Path, help="keep everything in this folder")
    options = parser.parse_args()
    os.environ.setdefault(MODE_VARIABLE, "warm")
    case = ghost_trace(options.seed)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.out or Path(temporary)
        (folder / "recorded").mkdir(parents=True, exist_ok=True)
        har = record(case, folder / "recorded")
        batch = folder / "batch.jsonl"
        batch.write_bytes(as_batch(case))
        rows = [("HAR", har, ()), ("batch file", batch, ())]
        if options.anonymise:
            rows.append(("HAR, anonymised", har, ("--anonymise",)))
        held = [
            tried(name, file, case, folder / f"{number}", *more)
            for number, (name, file, more) in enumerate(rows, 1)
        ]
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
