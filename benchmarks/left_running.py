"""What `mmrepro diagnose` says of each failure of the catalogue whose server was left
running.

Usage: python benchmarks/left_running.py --out DIR [--only NAME[@RELEASE]]... [--table
    FILE.md]

Each scenario's server is left as its run left it (`mmrepro run NAME --keep-server`), or
its log where it is gone, looked at once as a stranger would (`mmrepro diagnose URL
--log LOG`), and ended. What is over when its client leaves has one that waits. Exit 1:
a run did not reproduce, or something else was named than the scenario."""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from mmrepro.scenarios.capacity_never import NEVER

NAMES = (
    "uuid-alias",
    "caller-hash",
    "abort-by-prefix",
    "top-logprobs-kill",
    "grammar-backend-latch",
    "stop-token-oov",
    "embeds-mrope",
    "capacity-never",
    "text-only-placeholder",
    "ghost-decode",
    "fake-bootstrap",
    "completions-session",
    "seeded-chunk",
)
HEAD = (
    "| left running | the server | `diagnose` | by name | by class |\n"
    "|---|---|---|---|---|\n"
)
END_S = 30.0
WAITING = {
    "capacity-never": {"model": "tiny", "prompt": [100] * NEVER, "max_tokens": 4}
}
"""Its request once more, to /v1/completions, while it is looked at."""


def mmrepro(*args: str) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, "-m", "mmrepro", *args, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    return done.returncode, json.loads(done.stdout or "{}")


@contextmanager
def left_running(run: dict[str, Any]) -> Iterator[bool]:
    """Whether it still runs; it is ended afterwards."""
    processes: list[psutil.Process] = []
    with contextlib.suppress(psutil.NoSuchProcess):
        server = psutil.Process(run["server"]["pid"])
        processes = [server, *server.children(recursive=True)]
    try:
        yield bool(processes) and processes[0].status() != psutil.STATUS_ZOMBIE
    finally:
        for process in processes[:1]:
            os.kill(process.pid, signal.SIGTERM)
        _, left = psutil.wait_procs(processes, timeout=END_S)
        for process in left:
            process.kill()


@contextmanager
def client(name: str, url: str) -> Iterator[None]:
    """The client that waits for an answer, where there is to be one."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"))
    try:
        if (body := WAITING.get(name)) is not None:
            said = {"Content-Type": "application/json"}
            connection.request("POST", "/v1/completions", json.dumps(body), said)
        yield
    finally:
        connection.close()


def looked_at(name: str, release: str, folder: Path) -> tuple[str, bool]:
    """A row of the table, and whether it is as it should be."""
    wanted = ("--release", release) if release else ()
    _, run = mmrepro(
        "run", name, *wanted, "--keep-server", "--out", str(folder / "run")
    )
    title = f"`{name}`, {run['engine']['name']} {run['engine']['release']}"
    if run["verdict"]["outcome"] != "reproduced":
        return (
            f"| {title} | not left: the run was {run['verdict']['outcome']} | | | |",
            False,
        )
    with left_running(run) as runs:
        log = folder / "run" / "evidence" / "engine.log"
        url = run["server"]["url"]
        with client(name, url):
            code, told = mmrepro(
                "diagnose", url, "--log", str(log), "--out", str(folder / "told")
            )
    fits = {m["scenario"]: m["fit"] for m in told["matches"] if m["fit"] != "not-this"}
    named = {of for of, fit in fits.items() if fit not in ("exposed", "inconclusive")}
    classes = [f"{c['name']} ({c['certainty']})" for c in told["classes"]]
    row = (
        f"| {title} | {'runs' if runs else 'gone'} | {told['assessment']['state']}, "
        f"exit {code} | "
        f"{', '.join(f'`{of}` {fits[of]}' for of in {*named, *fits.keys() & {name}}) or '–'} "
        f"| {', '.join(classes) or '–'} |"
    )
    return row, named <= {name} and bool(
        named or classes or fits.get(name) == "exposed"
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", action="append", metavar="NAME[@RELEASE]")
    parser.add_argument("--table", type=Path)
    args = parser.parse_args(argv)
    rows, fine = [], True
    for of in args.only or NAMES:
        name, _, release = of.partition("@")
        row, ok = looked_at(name, release, args.out / of)
        print(row, flush=True)
        rows.append(row)
        fine &= ok
    if args.table:
        args.table.write_text(HEAD + "\n".join(rows) + "\n", encoding="utf-8")
    return 0 if fine else 1


if __name__ == "__main__":
    raise SystemExit(main())
