"""Hours of healthy real engines, each beside a watch: is one of them called dead, and
what does the watch cost?

    python benchmarks/watched_hours.py FOLDER --minutes 60 minivllm rust sglang
    python benchmarks/watched_hours.py FOLDER --table

All servers run at once, with little load: a few clients that ask and pause. With
``--canary`` the watch looks for other people's words besides. FOLDER/hours.jsonl gets a
line for each server at the end, also where the run is ended before."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "tests/engine"), str(HERE)]

import psutil  # noqa: E402
import ranks  # noqa: E402
from pod_days_record import chat, post  # noqa: E402
from record_ranks import Case, Server, served  # noqa: E402

RUST = {"VLLM_USE_RUST_FRONTEND": "1"}
MINI = Case("minivllm", engine="minivllm", release="0.1", options=(), model="qwen3")
SERVERS = {
    "minivllm": MINI,
    "minivllm-2": MINI,
    "minivllm-idle": MINI,
    "vllm-0.23.0": Case("vllm-0.23.0", release="0.23.0", options=()),
    "vllm-0.33.0": Case("vllm-0.33.0", release="0.33.0", options=()),
    "rust": ranks.SERVERS["rust"].case,
    "tp2": Case("tp2"),
    "sglang": Case(
        "sglang",
        engine="sglang",
        release="0.5.23",
        # Its scheduler spins else while nothing is asked.
        options=("--sleep-on-idle",),
        model="text",
    ),
}
CLIENTS = 3
PAUSE_S = 5.0
_ALARMS = ("contaminated", "unsteady")
SETTLED_S = 60.0
"""After which the start of a watch is over."""


@dataclass
class Hours:
    """What came of one server.

    Attributes:
        fell: events that say it is not live.
        alarms: events of the canary that tell of other people's words, or of greedy
            answers that differ.
        whole_pct: processor time of the watch in percent of a core, by /usr/bin/time.
        settled_pct: the same without its first minute.
    """

    server: str
    minutes: float
    checks: dict[str, int]
    answered: int
    fell: list[str]
    alarms: list[str]
    whole_pct: float
    settled_pct: float
    load: float
    canary: bool = False


@dataclass
class WatchedServer:
    """A watch beside one server, and the clients that ask it."""

    name: str
    server: Server
    folder: Path
    canary: bool
    stop: threading.Event
    answered: int = 0
    events: list[dict[str, Any]] = field(default_factory=list)
    settled: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        words = ["--interval", "10", "--http", "0", "--json"]
        words += ["--capture", str(self.folder / f"{self.name}-falls")]
        if self.canary:
            words.append("--canary")
        self._times = self.folder / f"{self.name}.time"
        self._began = time.monotonic()
        timed = ["/usr/bin/time", "-f", "%U %S %e", "-o", str(self._times)]
        watch = [sys.executable, "-m", "mmrepro", "watch", self.server.url, *words]
        self._timed = subprocess.Popen(
            [*timed, *watch],
            stdout=subprocess.PIPE,
            text=True,
            cwd=self.folder,
        )
        threading.Thread(target=self._read, daemon=True).start()
        if not self.name.endswith("idle"):
            for number in range(CLIENTS):
                threading.Thread(target=self._ask, args=(number,), daemon=True).start()

    def _read(self) -> None:
        with (self.folder / f"{self.name}.jsonl").open("w") as out:
            for line in self._timed.stdout or ():
                out.write(line)
                out.flush()
                if line.startswith("{"):
                    self.events.append(json.loads(line))

    def _ask(self, number: int) -> None:
        count = 0
        while not self.stop.wait(PAUSE_S):
            count += 1
            body = chat(5 + (7 * count + number) % 40, 8)
            status = post(self.server.url, "/v1/chat/completions", body, 60.0)
            self.answered += status == 200

    def note_cpu(self) -> None:
        """Remember the processor time of the watch once it has settled."""
        if self.settled is None and time.monotonic() - self._began > SETTLED_S:
            self.settled = time.monotonic(), self._cpu_s()

    def _watch(self) -> psutil.Process | None:
        with contextlib.suppress(psutil.Error):
            children = psutil.Process(self._timed.pid).children()
            return children[0] if children else None
        return None

    def _cpu_s(self) -> float:
        watch = self._watch()
        if watch is None:
            return 0.0
        times = watch.cpu_times()
        return times.user + times.system + times.children_user + times.children_system

    def end(self) -> Hours:
        """End the watch, and count."""
        minutes = (time.monotonic() - self._began) / 60.0
        settled = 0.0
        if self.settled is not None:
            since, cpu_s = self.settled
            settled = 100 * (self._cpu_s() - cpu_s) / (time.monotonic() - since)
        watch = self._watch()
        if watch is not None:
            watch.send_signal(signal.SIGTERM)
        self._timed.wait(timeout=60)
        last = self._times.read_text().splitlines()[-1]
        user, system, elapsed = map(float, last.split())
        checks = [e["text"] for e in self.events if e["event"] == "check"]
        words = Counter(text.partition(":")[0].partition(" ")[0] for text in checks)
        fell = [
            f"{event['event']}: {event['text']}"
            for event in self.events
            if event["event"] == "dead" or event.get("state") == "not-live"
        ]
        sung = [e["text"] for e in self.events if e["event"] == "canary"]
        return Hours(
            self.name,
            round(minutes, 1),
            dict(words),
            self.answered,
            fell,
            [text for text in sung if text.startswith(_ALARMS)],
            round(100 * (user + system) / elapsed, 3),
            round(settled, 3),
            round(os.getloadavg()[2], 1),
            self.canary,
        )


def run(
    names: Sequence[str], folder: Path, minutes: float, canary: bool
) -> Iterator[Hours]:
    """Serve them all at once for so long."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    with contextlib.ExitStack() as stack:
        watched = []
        for name in names:
            server = stack.enter_context(served(SERVERS[name]))
            server.ask()
            watched.append(WatchedServer(name, server, folder, canary, stop))
            print(f"{name} serves", flush=True)
        until = time.monotonic() + 60 * minutes
        while time.monotonic() < until and not stop.wait(1.0):
            for one in watched:
                one.note_cpu()
        stop.set()
        for one in watched:
            yield one.end()


def table(rows: Sequence[Hours]) -> str:
    lines = [
        "| server | hours | checks | requests beside them | not live | canary's alarms | "
        "the watch: % of a core, without its first minute | load |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        checks = ", ".join(f"{count} {name}" for name, count in row.checks.items())
        alarms = str(len(row.alarms)) if row.canary else "off"
        lines.append(
            f"| {row.server} | {row.minutes / 60:.2f} | {checks} | {row.answered} | "
            f"{len(row.fell)} | {alarms} | {row.whole_pct}, {row.settled_pct} | "
            f"{row.load} |"
        )
    hours = sum(row.minutes for row in rows) / 60
    return "\n".join([*lines, "", f"{hours:.1f} hours in all"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("servers", nargs="*", default=[])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--canary", action="store_true")
    parser.add_argument("--table", action="store_true")
    asked = parser.parse_intermixed_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    file = asked.folder / "hours.jsonl"
    names = [] if asked.table else asked.servers or list(SERVERS)
    for hours in run(names, asked.folder, asked.minutes, asked.canary):
        with file.open("a") as out:
            out.write(json.dumps(asdict(hours)) + "\n")
    lines = file.read_text().splitlines() if file.exists() else []
    rows = [Hours(**json.loads(line)) for line in lines]
    print(table(rows))
    return 1 if any(row.fell or row.alarms for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
