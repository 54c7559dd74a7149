"""Stalls of real engines beside a watch: after how many seconds does it end /live, and
does its evidence say afterwards what a live look says?

    python benchmarks/stalls.py FOLDER                 # all that FOLDER does not have yet
    python benchmarks/stalls.py FOLDER minivllm rust   # of these servers
    python benchmarks/stalls.py FOLDER --table         # what it has, in Markdown

A stall is a known hang (``--ghost-key`` of minivllm, the scenario ghost-key-eviction of
vLLM), a stand-in's wedge in one process, or SIGSTOP. Seconds count from the first request
that waits: a client's, sent as soon as the fault is there. FOLDER/stalls.jsonl has a line
for each; a run goes on where the last one ended. A stall beside which this machine was
short of processors, by the watch or a record, is counted apart and brought about again by
the next run: there a watch is to say that it cannot tell."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "tests/engine"), str(HERE)]
os.environ.setdefault("MMREPRO_START_MODE", "cold")

import ranks  # noqa: E402
from live_server import serving, trigger  # noqa: E402
from mmrepro.failure.documents import Diagnosis  # noqa: E402
from mmrepro.failure.signature.live_server import LATENESS  # noqa: E402
from mmrepro.live.diagnose.fall import diagnose_fall, read_fall  # noqa: E402
from mmrepro.live.diagnose.options import DiagnoseCommand  # noqa: E402
from mmrepro.live.diagnose.session import diagnose  # noqa: E402
from mmrepro.scenario import Scenario  # noqa: E402
from mmrepro.scenario.registry import load_scenario  # noqa: E402
from pod_days_record import chat, post  # noqa: E402
from ranks import Fault  # noqa: E402
from record_ranks import (  # noqa: E402
    RUST,
    Case,
    Server,
    end_servers_at_sigterm,
    served,
)

WITHIN_S = 30.0
MOST_S = 150.0
"""A watch that has not ended /live by then has missed the stall."""
LIVE_S = 120.0
"""For a server that goes on, until the watch beside it says so."""
INTERVAL_S = 10.0
CLIENT_S = 60.0
ONE_CORE = (
    Fault("python", "EngineCore"),
    Fault("spin", "EngineCore"),
    Fault("lock", "EngineCore"),
    Fault("c", "EngineCore"),
    Fault("stop", "EngineCore"),
    Fault("python", "EngineCore", busy=True),
    Fault("c-without-gil", "EngineCore", busy=True),
)
RUST_ENV = {"VLLM_USE_RUST_FRONTEND": "1"}
WEDGED = {
    "vllm-0.23.0": (Case("vllm-0.23.0", release="0.23.0", options=()), ONE_CORE),
    "vllm-0.33.0": (Case("vllm-0.33.0", release="0.33.0", options=()), ONE_CORE),
    "rust": (
        replace(ranks.SERVERS["rust"].case, env=RUST_ENV),
        (
            Fault("stop", RUST),
            Fault("python", "EngineCore"),
            Fault("c", "EngineCore"),
            Fault("spin", "EngineCore", busy=True),
            Fault("python", "Worker"),
        ),
    ),
    "tp2": (
        Case("tp2"),
        (
            Fault("python", "Worker_TP1"),
            Fault("stop", "Worker_TP0"),
            Fault("lock", "EngineCore"),
            Fault("c", "Worker_TP1", busy=True),
        ),
    ),
    "sglang": (
        Case("sglang", engine="sglang", release="0.5.23", options=(), model="text"),
        (
            Fault("python", "scheduler"),
            Fault("c", "scheduler"),
            Fault("lock", "scheduler"),
            Fault("stop", "scheduler"),
            Fault("spin", "scheduler", busy=True),
        ),
    ),
}
"""Servers that go on after a stall: each is started once."""
KNOWN = {
    "minivllm": ("minivllm", "0.1", 14),
    "minivllm-stopped": ("minivllm", "0.1", 6),
    "vllm-0.23.0-known": ("vllm", "0.23.0", 2),
}
"""Servers that a known hang ends: engine, release, and how many."""


@dataclass(frozen=True)
class Stall:
    """One stall, and what became of it.

    Attributes:
        seconds: from the first request that waits to the end of /live; None: never.
        short: whether the watch or a record says that this machine was short of
            processors.
        live: what a live look says; after: what ``diagnose DIR`` says of the evidence.
        load: the machine's load average when it began.
    """

    server: str
    fault: str
    number: int
    seconds: float | None
    short: bool
    live: str
    after: str
    complete: bool
    load: float
    checks: tuple[str, ...] = ()

    @property
    def in_time(self) -> bool:
        return self.seconds is not None and self.seconds <= WITHIN_S

    @property
    def named_alike(self) -> bool:
        return self.complete and self.live == self.after

    @property
    def key(self) -> tuple[str, str, int]:
        return self.server, self.fault, self.number


@dataclass
class Watched:
    """A watch beside one server."""

    url: str
    log: Path
    port: int
    captures: Path
    events: list[dict[str, Any]]

    def falls(self) -> list[Path]:
        return sorted(self.captures.glob("fall-*/"))

    def wait(self, path: str, status: int, most_s: float) -> float | None:
        """Seconds until ``path`` has this status; None: not in time."""
        began = time.monotonic()
        while time.monotonic() - began < most_s:
            if ranks.status(self.port, path) == status:
                return time.monotonic() - began
            time.sleep(0.1)
        return None


@contextlib.contextmanager
def watching(url: str, log: Path) -> Iterator[Watched]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="mmrepro-run-") as folder:
        words = ["--interval", f"{INTERVAL_S:g}", "--http", str(port)]
        words += ["--capture", folder, "--log", str(log), "--max-incidents", "100"]
        with ranks.watching(url, *words) as events:
            made = Watched(url, log, port, Path(folder), events)
            if made.wait("/ready", 200, LIVE_S) is None:
                raise TimeoutError(f"{url} was never ready: {events[-3:]}")
            yield made


def judged(
    watch: Watched, server: str, fault: str, number: int, hurt: Callable[[], None]
) -> Stall:
    """Bring a stall about and measure it."""
    load = os.getloadavg()[0]
    before = set(watch.falls())
    first = len(watch.events)
    hurt()
    body = chat(3, 4)
    client = threading.Thread(
        target=post,
        args=(watch.url, "/v1/chat/completions", body, CLIENT_S),
        daemon=True,
    )
    client.start()
    seconds = watch.wait("/live", 503, MOST_S)
    live = diagnose(
        DiagnoseCommand(
            url=watch.url, logs=(watch.log,), out=watch.captures / f"live-{first}"
        )
    )
    folder = captured(watch, before)
    short = LATENESS in live.incident.evidence.facts
    after, complete = "no evidence", False
    if folder is not None:
        record = read_fall(folder)
        complete = record.complete
        short = short or LATENESS in record.evidence.facts
        after = named(diagnose_fall(folder))
    events = watch.events[first:]
    checks = tuple(event["text"] for event in events if event["event"] == "check")
    short = short or any("short of processors" in check for check in checks)
    return Stall(
        server,
        fault,
        number,
        None if seconds is None else round(seconds, 1),
        short,
        named(live.diagnosis),
        after,
        complete,
        round(load, 1),
        checks,
    )


def captured(watch: Watched, before: set[Path]) -> Path | None:
    """The evidence of this fall, when it is whole."""
    until = time.monotonic() + LIVE_S
    folder = None
    while time.monotonic() < until:
        for folder in set(watch.falls()) - before:
            with contextlib.suppress(OSError, ValueError):
                if read_fall(folder).complete:
                    return folder
        time.sleep(0.5)
    return folder


def named(found: Diagnosis) -> str:
    """What a diagnosis names: the known failure, the state, the process."""
    known = ", ".join(sorted({match.scenario for match in found.found}))
    return f"{known or '-'}; {found.state.value}; {found.assessment.process or '-'}"


# ------------------------------------------------------------------ servers


def wedges(
    name: str, case: Case, faults: Sequence[Fault], done: set[tuple[str, str, int]]
) -> Iterator[Stall]:
    """Stalls of a server that goes on after each of them."""
    left = [fault for fault in faults if (name, fault.name, 0) not in done]
    if not left:
        return
    with served(case) as server:
        server.ask()
        server.ask()
        with watching(server.url, server.folder / "server.log") as watch:
            for fault in sorted(left, key=lambda fault: fault.busy):
                yield wedged(name, server, fault, watch)


def wedged(name: str, server: Server, fault: Fault, watch: Watched) -> Stall:
    if fault.busy and not server.clients:
        server.load(1)
    pids: list[int] = []
    stall = judged(
        watch,
        name,
        fault.name,
        0,
        lambda: pids.append(server.hurt(fault.deed, fault.role)),
    )
    ranks.undone(server, fault, pids[0])
    watch.wait("/ready", 200, LIVE_S)
    return stall


def known_hangs(name: str, done: set[tuple[str, str, int]]) -> Iterator[Stall]:
    """Stalls of servers that each end with theirs."""
    engine, release, count = KNOWN[name]
    scenario = hang_of(engine)
    stops = name.endswith("stopped")
    fault = "stop, idle" if stops else scenario.variant or scenario.name
    for number in range(count):
        if (name, fault, number) in done:
            continue
        with (
            tempfile.TemporaryDirectory(prefix="mmrepro-run-") as folder,
            serving(
                engine,
                release,
                scenario.model,
                Path(folder),
                *scenario.server_args,
                max_model_len=scenario.max_model_len,
                within_s=600,
            ) as server,
        ):
            post(server.url, "/v1/chat/completions", chat(3, 2))

            def hurt(server: Any = server, folder: str = folder) -> None:
                if stops:
                    os.kill(server.pid, ranks.ranks.SIGNALS["stop"])
                else:
                    trigger(scenario, server.url, Path(folder))

            with watching(server.url, server.log) as watch:
                yield judged(watch, name, fault, number, hurt)


def hang_of(engine: str) -> Scenario:
    if engine == "vllm":
        return load_scenario("ghost-key-eviction")
    variants = load_scenario("borrowed-faults").variants
    return next(v for v in variants if v.variant == "ghost-key-lru")


# ------------------------------------------------------------------ the command


def known(file: Path) -> list[Stall]:
    if not file.exists():
        return []
    stalls = []
    for line in file.read_text().splitlines():
        fields = json.loads(line)
        stalls.append(Stall(**(fields | {"checks": tuple(fields["checks"])})))
    return stalls


def table(stalls: Sequence[Stall]) -> str:
    """Rows by server and fault."""
    lines = [
        "| server | fault | stalls | /live fell after, s | evidence and live look say |",
        "|---|---|---|---|---|",
    ]
    groups: dict[tuple[str, str], list[Stall]] = {}
    for stall in stalls:
        if not stall.short:
            groups.setdefault((stall.server, stall.fault), []).append(stall)
    for (server, fault), rows in groups.items():
        seconds = [row.seconds for row in rows if row.seconds is not None]
        span = f"{min(seconds)} to {max(seconds)}" if seconds else "never"
        if len(seconds) == 1:
            span = f"{seconds[0]}"
        alike = sum(row.named_alike for row in rows)
        says = ", ".join(
            f"`{text}`" for text, _ in Counter(row.live for row in rows).most_common()
        )
        lines.append(
            f"| {server} | {fault} | {len(rows)} | {span} | "
            f"{alike} of {len(rows)} alike: {says} |"
        )
    return "\n".join(lines)


def summary(stalls: Sequence[Stall]) -> str:
    lines = []
    for short in (False, True):
        some = [stall for stall in stalls if stall.short is short]
        where = "beside a machine short of processors" if short else "judged"
        in_time = sum(stall.in_time for stall in some)
        fell = sum(stall.seconds is not None for stall in some)
        alike = sum(stall.named_alike for stall in some)
        loads = sorted(stall.load for stall in some) or [0.0]
        lines.append(
            f"{len(some)} stalls {where}: {in_time} within {WITHIN_S:.0f} s, {fell} "
            f"within {MOST_S:.0f} s, {alike} named alike; load {loads[0]} to {loads[-1]}"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("servers", nargs="*", default=[*KNOWN, *WEDGED])
    parser.add_argument("--table", action="store_true")
    asked = parser.parse_intermixed_args()
    end_servers_at_sigterm()
    asked.folder.mkdir(parents=True, exist_ok=True)
    file = asked.folder / "stalls.jsonl"
    for name in asked.servers if not asked.table else ():
        done = {stall.key for stall in known(file) if not stall.short}
        some = known_hangs(name, done) if name in KNOWN else ()
        if name in WEDGED:
            some = wedges(name, *WEDGED[name], done)
        for stall in some:
            with file.open("a") as out:
                out.write(json.dumps(asdict(stall)) + "\n")
            mark = "right" if stall.in_time and stall.named_alike else "WRONG"
            print(
                f"{stall.server:18} {stall.fault:28} {stall.seconds} s {mark} "
                f"{stall.live} | {stall.after}{' (short)' if stall.short else ''}",
                flush=True,
            )
    stalls = known(file)
    print(table(stalls) if asked.table else "")
    print(summary(stalls))
    return 0


if __name__ == "__main__":
    sys.exit(main())
