"""How fast is the logs probe, measured against ``grep -c`` on the same file?

    python benchmarks/log_scan.py [--mib 200] [--repeat 3]

Writes a synthetic vLLM log (three processes, uvicorn lines, few errors) to a temporary
folder, as the server does and as collectors keep it, and prints a table. Best of
``--repeat`` runs each, the file in the page cache for all of them. Seconds are
processor time, grep's included: what runs beside them does not count."""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from mmrepro.probes.log_lines import Pattern
from mmrepro.probes.logs import scan

PATTERNS: dict[str, Pattern] = {
    "desync": r"AssertionError: Expected a cached item for mm_hash=(?P<hash>\w+)",
    "dead": r"EngineDeadError|EngineCore encountered (?:a|an) (?:fatal|issue)",
    "waiting": r"waiting for work",
}
ERRORS = "ERROR|CRITICAL|Traceback"  # what the probe always looks for besides
PROGRESS = r"Avg prompt throughput: [0-9.]+ tokens/s"


STAMP = "2026-11-24T18:12:17.123456789Z"
KEPT: dict[str, Callable[[str], str]] = {
    "plain": str,
    "coloured": str,
    "docker -t": lambda line: f"{STAMP} {line}",
    "compose, two services": lambda line: f"engine-{1 + len(line) % 2}  | {line}",
    "docker json-file": lambda line: json.dumps(
        {"log": f"{line}\n", "stream": "stderr", "time": STAMP}
    ),
}


def write_log(
    path: Path, mib: int, colours: bool, keep: Callable[[str], str] = str
) -> None:
    """About 100 bytes a line, one error in 20 000 lines, a few lines that are not
    UTF-8."""
    chance = random.Random(7)
    on, off = ("\x1b[1;36m", "\x1b[0;0m") if colours else ("", "")
    core, server = f"{on}(EngineCore pid=3302){off} ", f"{on}(APIServer pid=3100){off} "
    kinds = [
        core
        + "DEBUG 11-21 02:44:01 [v1/core/sched/scheduler.py:{n}] step {n}: 3 scheduled",
        core
        + (
            "INFO 11-21 02:44:01 [v1/engine/core.py:{n}] EngineCore loop "
            "active, step {n}."
        ),
        server
        + (
            "INFO 11-21 02:44:02 [v1/engine/async_llm.py:{n}] Added request "
            "chatcmpl-{n}abc."
        ),
        server
        + 'INFO:     127.0.0.1:{n} - "POST /v1/chat/completions HTTP/1.1" 200 OK',
        server
        + (
            "INFO 11-21 02:44:03 [loggers.py:{n}] Avg prompt throughput: {n}.5 "
            "tokens/s, x"
        ),
    ]
    rare = core + (
        "ERROR 11-21 02:51:52 [v1/engine/core.py:1616] AssertionError: "
        "Expected a cached "
    )
    with path.open("wb") as file:
        while file.tell() < mib << 20:
            lines = [
                chance.choices(kinds, (40, 30, 15, 14, 1))[0].format(
                    n=chance.randrange(9999)
                )
                for _ in range(20_000)
            ]
            lines[777] = rare + "item for mm_hash=0ab4"
            file.write(
                ("\n".join(map(keep, lines)) + "\n").encode()
                + b"(EngineCore pid=3302) \xff\xfe\n"
            )


def best_of(repeat: int, action: Callable[[], object]) -> float:
    times = []
    for _ in range(repeat):
        before = os.times()
        action()
        times.append(sum(os.times()[:4]) - sum(before[:4]))
    return min(times)


def grep(path: Path, *arguments: str, locale: str = "C.UTF-8") -> None:
    subprocess.run(
        ["grep", "-a", "-c", *arguments, str(path)],
        stdout=subprocess.PIPE,  # grep stops at its first match when it sees /dev/null
        env={**os.environ, "LC_ALL": locale},
        check=True,
    )


def probe(path: Path) -> None:
    with path.open("rb", buffering=0) as stream:
        scan(stream, PATTERNS, PROGRESS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=200)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    expressions = [
        a for p in (*PATTERNS.values(), PROGRESS, ERRORS) for a in ("-e", str(p))
    ]
    expressions = [e.replace("?:", "").replace("?P<hash>", "") for e in expressions]
    with tempfile.TemporaryDirectory(prefix="mmrepro-bench-") as folder:
        for kind, keep in KEPT.items():
            path = Path(folder) / "server.log"
            write_log(path, options.mib, kind == "coloured", keep)
            mib = path.stat().st_size / 2**20
            rows = {
                "grep -c one text": lambda p=path: grep(p, "Expected a cached item"),
                "grep -c -E the same patterns": lambda p=path: grep(
                    p, "-E", *expressions
                ),
                "logs probe": lambda p=path: probe(p),
            }
            print(f"\n{mib:.0f} MiB, {kind}")
            print(f"{'':30} {'seconds':>8} {'MiB/s':>8} {'x grep':>7}")
            base = 0.0
            for name, action in rows.items():
                seconds = best_of(options.repeat, action)
                base = base or seconds
                print(
                    f"{name:30} {seconds:8.3f} {mib / seconds:8.0f} "
                    f"{seconds / base:7.1f}"
                )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"\npeak memory of this process: {peak:.0f} MiB (writing the log included)")


if __name__ == "__main__":
    main()
