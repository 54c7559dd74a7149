"""Ways to hang or to lose one process of a real server of several: is each diagnosed
rightly?

Usage:  uv run python benchmarks/ranks.py                      # all servers, half an hour
        uv run python benchmarks/ranks.py tp2 pp2              # these
        uv run python benchmarks/ranks.py --list
        uv run python benchmarks/ranks.py --table FILE         # rows in Markdown besides

A server is started once for all faults that end again (a wedge of
``record_ranks.WEDGE``, a stop), and once for each that does not (a kill, an exit, an
exception). Between two of them it answers. A row has what was done, the state, the
process and the frame that ``mmrepro diagnose`` names, and whether each is right. A
state that says "cannot tell" is no false one. Exit code: 1 where one row is false, or
less than 23 of 24 are right."""

from __future__ import annotations

import argparse
import json
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests/evidence"))

import record_ranks as ranks  # noqa: E402
from mmrepro.engines.base import SERVED_MODEL  # noqa: E402
from mmrepro.failure.documents.diagnosis import (  # noqa: E402
    COULD_NOT_TELL,
    Diagnosis,
    LiveClass,
    ServerState,
)
from mmrepro.failure.documents.fleet import Fleet, FleetState  # noqa: E402
from mmrepro.live.diagnose.options import DiagnoseCommand  # noqa: E402
from mmrepro.live.diagnose.session import diagnose  # noqa: E402
from mmrepro.live.diagnose.titles import labels  # noqa: E402
from mmrepro.live.fleet.session import look as fleet  # noqa: E402
from mmrepro.reproducers import reproducer_path  # noqa: E402
from record import packed  # noqa: E402
from record_ranks import RUST, Case, Server, served  # noqa: E402

S = ServerState
WEDGES = ("python", "spin", "c", "c-without-gil", "lock", "read")
STUCK = frozenset({S.FROZEN_PYTHON, S.FROZEN_NATIVE, S.BLOCKED_ON_LOCK, S.WORKER_STUCK})
ENDED = frozenset({S.RANK_LOST, S.PART_DEAD, S.DEAD})
GREEN = frozenset({S.HEALTHY, S.NOT_READY})
DEAF = "deaf"
"""A request with a temperature that vllm-rs lets through, and that ends the thread with
which the engine's core takes requests (vllm#47494)."""
SHOWN = {RUST: "RustFrontend"}
"""What a program is called in a diagnosis."""
ONE_EACH = (SHOWN[RUST], "EngineCore", "Worker")
"""Processes that a server of one rank has once: who names another one is wrong."""
RIGHT = 23 / 24
READY_S = 600.0
STAND_IN_S = 2.0
"""Until a new process has imported its stand-in: a signal before that ends it."""
LOAD = 2
RECORD: list[bool] = []
"""Not empty: what several servers show is packed into ``tests/evidence/ranks``."""

KEEP: list[Path] = []
"""A folder for the log and the evidence of each fault; empty: they are not kept."""


@dataclass(frozen=True)
class Fault:
    """``role``: of the process; ``front``: the one that was started. ``busy``: while
    requests run; ``starting``: before any is taken."""

    deed: str
    role: str
    busy: bool = False
    starting: bool = False

    @property
    def ends(self) -> bool:
        """Whether the server goes on after it."""
        again = self.deed in WEDGES or self.deed == "stop"
        return again and not self.starting

    @property
    def name(self) -> str:
        when = "stepping" if self.busy else "idle"
        if self.starting:
            when = "starting"
        return f"{self.deed} {self.role}, {when}"

    @property
    def states(self) -> frozenset[ServerState]:
        """Those that are right."""
        if self.deed == "stop":
            return frozenset({S.STOPPED})
        if self.deed == DEAF:
            return frozenset({S.NOT_RECEIVING})
        if self.deed in WEDGES and self.starting:
            # A start stands still by itself as well: that it does, and where, is right.
            return STUCK | {S.NOT_READY}
        if self.deed in WEDGES:
            return frozenset({S.FRONT_FROZEN}) if self.role == "front" else STUCK
        # A rank that raises alone leaves the others in a collective operation.
        return ENDED | {S.RANK_DIVERGED} if self.deed == "raise" else ENDED


def _grid(
    deeds: Sequence[str],
    roles: Sequence[str],
    *,
    busy: bool = False,
    starting: bool = False,
) -> list[Fault]:
    return [Fault(deed, role, busy, starting) for role in roles for deed in deeds]


@dataclass(frozen=True)
class Way:
    """One way to serve, and what is done to it."""

    case: Case
    faults: tuple[Fault, ...]


PP = ranks.PP
DP = ("--data-parallel-size", "2")
TP = ("--tensor-parallel-size", "2")
_TWO = ("Worker_TP0", "Worker_TP1")
SERVERS = {
    "tp2": Way(
        Case("tp2"),
        (
            *_grid((*WEDGES, "stop"), _TWO),
            *_grid(("python", "c", "lock", "stop"), _TWO, busy=True),
            *_grid(("python", "c", "lock", "stop"), ("EngineCore",)),
            *_grid(("python", "stop"), ("EngineCore",), busy=True),
            *_grid(("python", "c", "stop"), ("front",)),
            *_grid(("kill",), (*_TWO, "EngineCore", "front")),
            *_grid(("exit", "raise"), ("Worker_TP1",)),
            *_grid(("kill", "raise"), ("Worker_TP0", "Worker_TP1"), busy=True),
        ),
    ),
    "pp2": Way(
        Case("pp2", options=PP, model="text"),
        (
            *_grid(("python", "c", "stop"), ("Worker_PP0", "Worker_PP1")),
            *_grid(("python", "stop"), ("Worker_PP0", "Worker_PP1"), busy=True),
            *_grid(("kill",), ("Worker_PP1",)),
            *_grid(("raise",), ("Worker_PP0",), busy=True),
        ),
    ),
    "dp2": Way(
        Case("dp2", options=DP, model="text"),
        (
            *_grid(("python", "c", "stop"), ("EngineCore_DP0", "EngineCore_DP1")),
            *_grid(("python", "stop"), ("EngineCore_DP1",), busy=True),
            *_grid(("python", "stop"), ("DPCoordinator",)),
            *_grid(("kill",), ("EngineCore_DP1", "DPCoordinator")),
            *_grid(("kill",), ("EngineCore_DP0",), busy=True),
        ),
    ),
    "pp2-0.23": Way(
        Case("pp2-0.23", release="0.23.0", options=PP, model="text"),
        (*_grid(("python",), ("Worker_PP0", "Worker_PP1")),),
    ),
    "sglang-tp2": Way(
        Case(
            "sglang-tp2", engine="sglang", release="0.5.23", options=("--tp-size", "2")
        ),
        (
            *_grid(("python", "c", "stop"), ("scheduler_TP0", "scheduler_TP1")),
            *_grid(("python",), ("scheduler_TP1", "detokenizer"), busy=True),
            *_grid(("kill",), ("scheduler_TP0", "scheduler_TP1", "detokenizer")),
        ),
    ),
    "rust": Way(
        Case(
            "rust",
            release="0.23.0",
            options=(),
            model="qwen3-text",
            env={"VLLM_USE_RUST_FRONTEND": "1"},
        ),
        (
            *_grid(("stop",), (RUST, "EngineCore", "Worker", "front")),
            *_grid(("stop",), (RUST, "Worker"), busy=True),
            *_grid(("python", "c", "lock"), ("EngineCore",)),
            *_grid(("python", "c-without-gil", "spin"), ("EngineCore",), busy=True),
            *_grid(("python", "c-without-gil"), ("Worker",)),
            *_grid(("python", "c"), ("Worker",), busy=True),
            # A limit of its memory does not reach it: its allocator has reserved 1 GiB.
            # Rust ends by SIGABRT where an allocation fails.
            *_grid(("end", "kill", "abort"), (RUST,)),
            *_grid(("end", "kill"), (RUST,), busy=True),
            *_grid(("end", "kill", "raise", "memory", DEAF), ("EngineCore",)),
            *_grid(("kill", "exit"), ("EngineCore",), busy=True),
            *_grid(("exit", "raise", "memory"), ("Worker",)),
            *_grid(("kill",), ("Worker",), busy=True),
            *_grid(("end",), ("front",)),
            *_grid(("kill",), (RUST, "EngineCore", "Worker"), starting=True),
            *_grid(("stop",), ("EngineCore",), starting=True),
            *_grid(("python",), ("Worker",), starting=True),
        ),
    ),
    # The HTTP server is threads in Rust inside the scheduler's process.
    "sglang-rust": Way(
        Case(
            "sglang-rust",
            engine="sglang",
            release="0.5.23",
            options=(),
            model="text",
            env={"SGLANG_RUST_SERVER": "1"},
        ),
        (
            *_grid(("stop", "python", "c", "lock"), ("scheduler",)),
            *_grid(("stop", "python", "c-without-gil"), ("scheduler",), busy=True),
            *_grid(("kill", "exit", "raise"), ("scheduler",)),
        ),
    ),
    "tp2-0.23": Way(
        Case("tp2-0.23", release="0.23.0", options=TP),
        (
            *_grid(("python", "c", "stop"), _TWO),
            *_grid(("python",), _TWO, busy=True),
            *_grid(("kill",), _TWO),
        ),
    ),
}


@dataclass(frozen=True)
class Row:
    server: str
    fault: str
    state: str
    process: str
    frame: str
    seconds: float
    state_right: bool
    rank_right: bool
    frame_right: bool | None
    told: bool
    sentence: str = ""

    @property
    def right(self) -> bool:
        return self.state_right and self.rank_right and self.frame_right is not False

    @property
    def verdict(self) -> str:
        if self.right:
            return "right"
        return "cannot tell" if not self.told else "FALSE"


def judged(server: str, fault: Fault, found: Diagnosis) -> Row:
    """What was named against what was done. A process that has ended may be named by
    its log; a line that names another rank as well names none."""
    assessment = found.assessment
    cause = found.cause
    gone = "nothing listens on port"  # the front is what listens
    front = next((p.role for p in found.target.processes), gone)
    role = front if fault.role == "front" else SHOWN.get(fault.role, fault.role)
    process = assessment.process or (cause.process if cause else "")
    lines = [process]
    if fault.states >= ENDED and not labels(process):
        lines += [assessment.sentence, *assessment.why]
        lines += [cause.sentence, *cause.why] if cause else []
    frames = [f.function for f in assessment.frames]
    if fault.deed in WEDGES and fault.starting:
        standing = [line for line in assessment.why if "_wedge" in line]
        lines += standing
        frames += ["_wedge"] * len(standing)
    rank_right = any(_names(line, role) for line in lines)
    if role in ONE_EACH and process in ONE_EACH and process != role:
        rank_right = False
    unknown = bool(labels(role)) and not rank_right and not labels(process)
    return Row(
        server,
        fault.name,
        found.state.value,
        process or "-",
        frames[0] if frames else "-",
        found.effect.seconds,
        found.state in fault.states,
        rank_right,
        ("_wedge" in frames) if fault.deed in WEDGES else None,
        found.state not in COULD_NOT_TELL and not unknown,
        "\n".join([assessment.sentence, *assessment.why]),
    )


def _names(line: str, role: str) -> bool:
    others = {n for n in re.findall(r"\w+", line) if labels(n) and n != role}
    others |= {n for n in re.findall(r"VllmWorker-\d+", line) if n != logged(role)}
    names = [name.lower() for name in (role, logged(role)) if name]
    return not others and any(name in line.lower() for name in names)


def logged(role: str) -> str:
    """``VllmWorker-1``: how vLLM's executor calls a worker of one group in its log
    (v1/executor/multiproc_executor.py)."""
    if role == "Worker":
        return "VllmWorker-0"
    return f"VllmWorker-{role[-1]}" if role.startswith("Worker_") else ""


def look(server: Server, name: str = "", **more: object) -> Diagnosis:
    """The diagnosis; ``name``: of the copy of the log and the evidence, with
    ``--keep``."""
    if KEEP and name:
        out = KEEP[0] / name.replace(" ", "-").replace(",", "")
        shutil.rmtree(out, ignore_errors=True)
        logs = (server.folder / "server.log",)
        kept = diagnose(DiagnoseCommand(url=server.url, out=out, logs=logs))
        shutil.copy(logs[0], out / "whole.log")
        return kept.diagnosis
    with tempfile.TemporaryDirectory(prefix="mmrepro-run-") as scratch:
        logs = (server.folder / "server.log",)
        asked = DiagnoseCommand(url=server.url, out=Path(scratch) / "d", logs=logs)
        return diagnose(replace(asked, **more)).diagnosis  # type: ignore[arg-type]


def done(server: Server, fault: Fault) -> int:
    if fault.deed == DEAF:
        server.ask_badly()
        return server.pid_of(fault.role)
    pid = server.hurt(fault.deed, fault.role)
    time.sleep(1.0 if fault.ends else 4.0)
    # An exception in a callback of C code is printed, and ignored.
    if fault.deed == "raise":
        log = (server.folder / "server.log").read_text(errors="replace")
        _, ignored, after = log.rpartition("Exception ignored")
        if "raised on purpose" not in log or (
            ignored and "raised on purpose" in after[:4000]
        ):
            return done(server, fault)
    return pid


def undone(server: Server, fault: Fault, pid: int) -> None:
    server.heal(fault.deed, pid)
    end = time.monotonic() + READY_S
    while True:
        try:
            server.ask(timeout_s=10)
            return
        except OSError:
            if time.monotonic() > end:
                raise


def rows(name: str, one: Way) -> Iterator[Row]:
    again = sorted((f for f in one.faults if f.ends), key=lambda f: f.busy)
    if again:
        with served(one.case) as server:
            server.ask()
            server.ask()
            for fault in again:
                if fault.busy and not server.clients:
                    server.load(LOAD)
                pid = done(server, fault)
                yield judged(name, fault, look(server, fault.name))
                undone(server, fault, pid)
    for fault in [f for f in one.faults if not f.ends]:
        begun = ranks.started if fault.starting else served
        with begun(one.case) as server:
            if fault.starting:
                _appears(server, fault.role)
            else:
                server.ask()
                server.ask()
            if fault.busy:
                server.load(LOAD)
            done(server, fault)
            yield judged(name, fault, look(server, fault.name))


def _appears(server: Server, role: str) -> None:
    """Wait until the process is there and has the stand-in, before requests are
    taken."""
    end = time.monotonic() + READY_S
    while time.monotonic() < end:
        with suppress(LookupError):
            server.pid_of(role)
            time.sleep(STAND_IN_S)
            return
        time.sleep(0.2)
    raise SystemExit(f"no process {role} appeared")


# ------------------------------------------------------------------ healthy ones


def healthy(name: str, one: Way) -> Iterator[tuple[str, Diagnosis]]:
    """Looks at a server that has nothing: while it starts, idle, and under load."""
    with ranks.started(one.case) as server:
        while not ranks.answers(server):
            yield f"{name} starting", look(server)
        for _ in range(8):
            yield f"{name} idle", look(server)
        server.load(LOAD)
        for _ in range(8):
            yield f"{name} under load", look(server)


# ------------------------------------------------------------------ several servers


def transfer(kind: str, role: str) -> Case:
    """Half of a pair whose KV connector is ``_pd_connector.py``."""
    config = {
        "kv_connector": "Planted",
        "kv_connector_module_path": "_pd_connector",
        "kv_role": role,
        "kv_connector_extra_config": {"kind": kind},
    }
    options = ("--kv-transfer-config", json.dumps(config))
    paths = (str(HERE), str(reproducer_path("standins") / "lost_transfer"))
    return Case(f"{role}-{kind}", options=options, model="text", paths=paths)


def remote(server: Server, prompt: str, timeout_s: float) -> None:
    """A request as a router sends it to a decode server: its prompt was computed
    elsewhere."""
    body = {
        "model": SERVED_MODEL,
        "prompt": prompt,
        "max_tokens": 4,
        "kv_transfer_params": {"do_remote_prefill": True},
    }
    request = urllib.request.Request(
        f"{server.url}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with (
        suppress(OSError),
        urllib.request.urlopen(request, timeout=timeout_s) as answer,
    ):
        answer.read()


def together(first: Server, second: Server, name: str = "") -> Fleet:
    """The look at both; ``name``: of the recordings, ``pd-NAME-1`` and
    ``pd-NAME-2``."""
    with tempfile.TemporaryDirectory(prefix="mmrepro-run-") as scratch:
        asked = DiagnoseCommand(
            url=first.url, more=(second.url,), out=Path(scratch) / "f"
        )
        looked = fleet(asked)
        for n, one in enumerate(looked.diagnosed if name and RECORD else (), 1):
            packed(
                ranks.trimmed(one.incident), target=ranks.RANKS / f"pd-{name}-{n}.zip"
            )
        return looked.fleet


def unasked(decode: Server) -> tuple[str, bool, str]:
    """The decode server alone, without a request of ours, which it would answer."""
    with tempfile.TemporaryDirectory(prefix="mmrepro-run-") as scratch:
        logs = (decode.folder / "server.log",)
        asked = DiagnoseCommand(
            url=decode.url, out=Path(scratch) / "d", logs=logs, request=False
        )
        found = diagnose(asked)
        if RECORD:
            packed(
                ranks.trimmed(found.incident),
                target=ranks.RANKS / "pd-decode-unasked.zip",
            )
    named = [one.name for one in found.diagnosis.classes]
    right = LiveClass.TRANSFER_STUCK in named
    return (
        "the decode server alone, unasked",
        right,
        f"{found.diagnosis.state}: {named}",
    )


def pairs() -> Iterator[tuple[str, bool, str]]:
    """What was done to one of two real servers, whether it was named, and what was
    said."""

    def row(
        what: str, found: Fleet, state: FleetState, named: str
    ) -> tuple[str, bool, str]:
        right = found.state is state and named.removeprefix("http://") in found.sentence
        return what, right, f"{found.state.value}: {found.sentence}"

    with (
        served(transfer("never", "kv_producer")) as prefill,
        served(transfer("never", "kv_consumer")) as decode,
    ):
        for one in (prefill, decode):
            one.ask()
        yield row(
            "a pair, nothing done", together(prefill, decode), FleetState.ALL_WELL, ""
        )
        asked = threading.Thread(
            target=remote, args=(decode, "a b c " * 40, 300), daemon=True
        )
        asked.start()
        time.sleep(1.0)
        stands = FleetState.TRANSFER_STANDS
        found = together(prefill, decode, "never")
        yield row("its KV cache never arrives", found, stands, decode.url)
        yield unasked(decode)
        pid = done(prefill, fault := Fault("python", "EngineCore"))
        found = together(prefill, decode, "wedged")
        fault_at = f"{prefill.url} is at fault"
        yield row("and its prefill server is wedged", found, stands, fault_at)
        undone(prefill, fault, pid)
    with (
        served(transfer("local", "kv_consumer")) as local,
        served(transfer("arrives", "kv_consumer")) as decode,
    ):
        for n in range(12):
            remote(local, f"{n} b c " * 40, 60)
            remote(decode, f"{n} b c " * 40, 60)
        found = together(local, decode, "local")
        yield row("one prefills locally", found, FleetState.PREFILLS_LOCALLY, local.url)
        done(decode, Fault("python", "EngineCore"))
        found = together(local, decode)
        yield row("the other one is wedged", found, FleetState.ODD_ONE_OUT, decode.url)


# ------------------------------------------------------------------ watched

ONE = Case("minivllm", engine="minivllm", release="0.1", options=(), model="qwen3")
STARTED = {
    "minivllm": (ONE, 40, 2, 5.0),
    "tp2-starts": (SERVERS["tp2"].case, 10, 4, 10.0),
}
"""Servers that are watched from their start on: how many, the interval, and the seconds
that each is idle and then asked."""
STRETCHES = (0, 0, 1, 1, 2, 2, 4, 4, 8, 8)
"""Clients of one server of tensor parallel 2, for a watch of each."""


@contextmanager
def watching(url: str, *words: str) -> Iterator[list[dict[str, Any]]]:
    """Events of a ``mmrepro watch`` as they come, until the end of the block."""
    command = [
        sys.executable,
        "-m",
        "mmrepro",
        "watch",
        url,
        "--json",
        "--no-diagnose",
        *words,
    ]
    events: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="mmrepro-run-") as scratch:
        ran = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=scratch)

        def read() -> None:
            for line in ran.stdout or ():
                if line.startswith("{"):
                    events.append(json.loads(line))

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        try:
            yield events
        finally:
            ran.terminate()
            ran.wait(timeout=60)
            reader.join(timeout=10)


def stretch(events: Sequence[dict[str, Any]]) -> tuple[bool, str]:
    """Whether liveness stayed, and what was checked."""
    dead = [e for e in events if e["event"] == "dead" or e["state"] == "not-live"]
    checks = [
        e["text"].partition(":")[0].partition(" ")[0]
        for e in events
        if e["event"] == "check"
    ]
    states = list(dict.fromkeys(e["state"] for e in events))
    counts = ", ".join(f"{n} {name}" for name, n in Counter(checks).items())
    return not dead and bool(checks), f"{counts}; {' > '.join(states)}"


def watches(names: Sequence[str], only: str) -> Iterator[tuple[str, bool, str]]:
    """Watches of healthy servers from their start on: 40 of minivllm and ten of tensor
    parallel 2, each of its own server; ten of one such server under different load.
    Then two wedges of that.

    Args:
        only: expression of the stretches' names.
    """
    for name in [one for one in STARTED if one in names or not names]:
        case, count, interval_s, seconds = STARTED[name]
        for n in range(count):
            words = ("--interval", str(interval_s))
            with ranks.started(case) as server, watching(server.url, *words) as events:
                ranks.ready(server)
                time.sleep(seconds)
                server.load(1 + n % 3)
                time.sleep(seconds)
            yield f"{name} {n + 1}, idle, then {1 + n % 3} clients", *stretch(events)
    if names and "tp2" not in names:
        return
    with ranks.started(SERVERS["tp2"].case) as server:
        for n, clients in enumerate(STRETCHES):
            if not re.search(only, f"{clients} clients"):
                continue
            server.load(clients - len(server.clients))
            with watching(server.url, "--interval", "4") as events:
                ranks.ready(server)
                time.sleep(25.0)
                end = time.monotonic() + 60.0
                while (
                    sum(e["event"] == "check" for e in events) < 3
                    and time.monotonic() < end
                ):
                    time.sleep(1.0)
            began = "from its start, " if not n else ""
            yield f"tp2 {n + 1}, {began}{clients} clients", *stretch(events)
        server.unload()
        ranks.ready(server)
        server.ask()
        for busy in (False, True):
            if busy:
                server.load(LOAD)
            yield wedged(server, Fault("python", "Worker_TP1", busy=busy), 10.0)


def wedged(server: Server, fault: Fault, interval_s: float) -> tuple[str, bool, str]:
    """After how many seconds a watch with its default thresholds says so at /ready and
    /live: by its documentation within two intervals."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ("--interval", f"{interval_s:g}", "--http", str(port))
    with watching(server.url, *words) as events:
        while status(port, "/ready") != 200:
            time.sleep(0.2)
        pid = server.hurt(fault.deed, fault.role)
        at = time.monotonic()
        fell: dict[str, float] = {}
        while len(fell) < 2 and time.monotonic() - at < 20 * interval_s:
            for path in ("/ready", "/live"):
                if path not in fell and status(port, path) == 503:
                    fell[path] = time.monotonic() - at
            time.sleep(0.1)
        checks = [e["text"] for e in events if e["event"] == "check"][-2:]
    undone(server, fault, pid)
    right = len(fell) == 2 and fell["/ready"] <= fell["/live"] <= 2 * interval_s
    told = ", ".join(f"{path} after {seconds:.1f} s" for path, seconds in fell.items())
    return f"tp2, {fault.name}", right, f"{told}; {' | '.join(checks)}"


def status(port: int, path: str) -> int:
    try:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{port}{path}", timeout=5
        ) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def _told(some: Iterator[tuple[str, bool, str]]) -> int:
    found = []
    for what, right, text in some:
        found.append(right)
        print(f"{what:<36} {'right' if right else 'FALSE':<6} {text}", flush=True)
    print(f"{sum(found)} of {len(found)} right")
    return 0 if all(found) else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="SERVER", help="all of them")
    parser.add_argument("--list", action="store_true")
    parser.add_argument(
        "--only", metavar="REGEX", default="", help="faults whose name has it"
    )
    parser.add_argument(
        "--healthy", action="store_true", help="only looks at healthy servers"
    )
    parser.add_argument(
        "--pairs", action="store_true", help="only several servers in one look"
    )
    parser.add_argument(
        "--watch", action="store_true", help="only watches: 50 of healthy servers"
    )
    parser.add_argument(
        "--record", action="store_true", help="with --pairs: keep the evidence"
    )
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="the log and evidence of each fault"
    )
    parser.add_argument("--table", type=Path, metavar="FILE")
    given = parser.parse_args()
    ranks.end_servers_at_sigterm()
    names = [name for name in given.names if name in SERVERS] or list(SERVERS)
    chosen = {
        name: replace(
            SERVERS[name],
            faults=tuple(
                f for f in SERVERS[name].faults if re.search(given.only, f.name)
            ),
        )
        for name in names
    }
    if given.list:
        print(
            *(f"{name}: {f.name}" for name, one in chosen.items() for f in one.faults),
            sep="\n",
        )
        return 0
    if given.healthy:
        return _healthy(chosen)
    KEEP.extend([given.keep] if given.keep else [])
    RECORD.extend([True] * given.record)
    if given.pairs or given.watch:
        return _told(pairs() if given.pairs else watches(given.names, given.only))
    found: list[Row] = []
    for name, one in chosen.items():
        for row in rows(name, one):
            found.append(row)
            print(
                f"{row.server:<9} {row.fault:<36} {row.state:<22} {row.process:<16} "
                f"{row.frame:<24} {row.seconds:5.1f} s  {row.verdict}",
                flush=True,
            )
            if not row.right:
                print(row.sentence, file=sys.stderr, flush=True)
            if given.table is not None:
                given.table.write_text(table(found))
    right = sum(row.right for row in found)
    false = [row for row in found if row.verdict == "FALSE"]
    print(f"{right} of {len(found)} right, {len(false)} false")
    return 0 if not false and right >= RIGHT * len(found) else 1


def _healthy(chosen: dict[str, Way]) -> int:
    states: list[tuple[str, ServerState]] = []
    for name, one in chosen.items():
        for what, found in healthy(name, one):
            states.append((what, found.state))
            told = "" if found.state in GREEN else found.assessment.sentence
            print(f"{what:<24} {found.state.value:<12} {told}", flush=True)
    good = sum(state in GREEN for _, state in states)
    print(f"{good} of {len(states)} healthy or not ready")
    return 0 if good == len(states) else 1


def table(found: Sequence[Row]) -> str:
    heads = (
        "| server | what was done | state | process | frame | seconds | |\n|"
        + 7 * "---|"
    )
    lines = [
        f"| {r.server} | {r.fault} | `{r.state}` | {r.process} | `{r.frame}` | "
        f"{r.seconds:.1f} | {r.verdict} |"
        for r in found
    ]
    return "\n".join([heads, *lines]) + "\n"


if __name__ == "__main__":
    sys.exit(main())
