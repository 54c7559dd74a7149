"""What a kill leaves behind, at random moments of a run: of mmrepro, its supervisor,
its group.

Usage:  python benchmarks/hardening/kills.py [--kills 100] [--seed 1] [--share 0.1]
            [--run mm-prefill-contract] [--jobs 2]

Each time `mmrepro run` is started (cold, fork or warm in turn), and killed by KILL,
TERM, HUP or INT a moment after something was seen of it: its folder, its engine, the
engine's port, a request. Ten seconds later no process of it, no listening port, no
entry of /dev/shm and no temporary folder may be there, and its incident, if it has come
to have one, can be read. Each run has processes, network and /dev/shm of its own where
the kernel allows it; elsewhere let nothing run beside this. Exit 1: something was left,
or an incident cannot be read."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from hardening.common import apart, loopback_up
from mmrepro.base import processes

LIMIT_S, PATIENCE_S = 60.0, 120.0
MODES = ("cold", "fork", "warm")
SIGNALS = ("KILL", "TERM", "HUP", "INT")
WHOM = ("mmrepro", "supervisor", "group")
SEEN = ("nothing", "folder", "engine", "port", "request")
"""What there is of a run before the kill."""
UNREADABLE = "unreadable"
APART = ("--mount", "--pid", "--fork", "--mount-proc")
PORT, FORK = b"--port", b"fork_server.main()"


@dataclass(frozen=True)
class Kill:
    """``whom`` gets ``sent``, ``after_s`` seconds after ``seen``, of a run in
    ``mode``."""

    mode: str
    sent: str
    whom: str
    seen: str
    after_s: float


@dataclass
class Outcome:
    code: int | None
    gone_s: float
    left: list[str]
    incident: str
    """Its state; "none": there is none yet; or why it cannot be read."""

    @property
    def sound(self) -> bool:
        return not self.left and not self.incident.startswith(UNREADABLE)


class Run:
    """A run of mmrepro, and what there is of it."""

    def __init__(self, scenario: str, kill: Kill, folder: Path) -> None:
        self.mark = f"kills-{uuid.uuid4().hex}"
        self.ports, self.shm = listening(), processes.shm_names()
        self.out, self.tmp = folder / "incident", folder / "tmp"
        self.tmp.mkdir()
        command = [
            sys.executable,
            "-m",
            "mmrepro",
            "run",
            scenario,
            "--start-mode",
            kill.mode,
        ]
        self.process = subprocess.Popen(
            [*command, "--out", str(self.out)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "MMREPRO_KILLS": self.mark, "TMPDIR": str(self.tmp)},
            start_new_session=True,
        )

    def engine(self) -> int:
        """Its first process; 0: there is none yet."""
        ours = marked(self.mark)
        told = [pid for pid in ours if PORT in processes.read(pid, "cmdline")]
        if first := next((pid for pid in told if parent_of(pid) not in told), 0):
            return first
        # Fork server, guardian, supervisor, engine: all have the first one's command
        # line.
        forks = {pid for pid in ours if FORK in processes.read(pid, "cmdline")}
        above = {pid: parent_of(parent_of(parent_of(pid))) for pid in forks}
        return next(
            (
                p
                for p in forks
                if above[p] in forks and parent_of(above[p]) not in forks
            ),
            0,
        )

    def seen(self, what: str) -> bool:
        log = self.out / "evidence/engine.log"
        looks: dict[str, Callable[[], object]] = {
            "nothing": lambda: True,
            "folder": (self.out / "incident.json").exists,
            "engine": self.engine,
            "port": lambda: listening() - self.ports,
            "request": lambda: log.exists() and b"POST" in log.read_bytes(),
        }
        return bool(looks[what]())

    def left(self) -> list[str]:
        found = [processes.label(pid) for pid in marked(self.mark)]
        found += [f"/dev/shm/{name}" for name in processes.shm_names() - self.shm]
        found += [f"{path.name} in TMPDIR" for path in self.tmp.glob("mmr-*")]
        return found + [f"port {address}" for address in listening() - self.ports]


def marked(mark: str) -> list[int]:
    """Living processes whose environment holds ``mark``, but this one."""
    found = [
        pid
        for pid in processes.pids()
        if mark.encode() in processes.read(pid, "environ")
    ]
    return [pid for pid in found if pid != os.getpid() and processes.alive(pid)]


def parent_of(pid: int) -> int:
    found = processes.stat(pid)
    return found.ppid if found else 0


def listening() -> set[str]:
    """Local addresses of all listening TCP sockets of this network."""
    known = processes.sockets() or []
    return {f"{s.address}:{s.port}" for s in known if s.state == processes.LISTEN}


def trial(scenario: str, kill: Kill, folder: Path) -> Outcome:
    run = Run(scenario, kill, folder)
    began = time.monotonic()

    def until(condition: Callable[[], object]) -> None:
        while run.process.poll() is None and time.monotonic() - began < PATIENCE_S:
            if condition():
                return
            time.sleep(0.02)

    until(lambda: run.seen(kill.seen))
    if kill.whom == "supervisor":
        until(run.engine)
    time.sleep(kill.after_s)
    victim = run.process.pid
    if kill.whom == "supervisor" and (engine := run.engine()):
        victim = parent_of(engine)
    number = signal.Signals[f"SIG{kill.sent}"]
    with contextlib.suppress(ProcessLookupError):
        (os.killpg if kill.whom == "group" else os.kill)(victim, number)
    killed = time.monotonic()
    while (left := run.left()) and time.monotonic() - killed < LIMIT_S:
        run.process.poll()  # a zombie is no process, but it has a name
        time.sleep(0.05)
    gone = time.monotonic() - killed
    if run.process.poll() is None:
        os.killpg(run.process.pid, signal.SIGKILL)
    return Outcome(run.process.wait(), round(gone, 2), left, state_of(run.out))


def state_of(folder: Path) -> str:
    from mmrepro.base.errors import MmreproError
    from mmrepro.reports import load
    from mmrepro.reports.documents import render
    from mmrepro.reports.incident import KIND

    if not folder.exists():
        return "none"
    try:
        loaded = load(folder)
        render(KIND, loaded, "md")
    except MmreproError as error:
        return (
            f"{UNREADABLE}: {error.message} "
            f"({', '.join(p.name for p in folder.iterdir())})"
        )
    return str(loaded.state)


def inside(order: str) -> int:
    """One trial, in namespaces of its own: what it left ends with this process."""
    said = json.loads(order)
    if said["apart"]:
        loopback_up()
        subprocess.run(["mount", "-t", "tmpfs", "shm", "/dev/shm"], check=True)
    outcome = trial(said["run"], Kill(**said["kill"]), Path(said["folder"]))
    print(json.dumps(asdict(outcome)))
    return 0


def tried(scenario: str, kill: Kill, prefix: list[str]) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="kill-") as folder:
        order = {
            "run": scenario,
            "kill": asdict(kill),
            "folder": folder,
            "apart": bool(prefix),
        }
        done = subprocess.run(
            [*prefix, sys.executable, __file__, "--inside", json.dumps(order)],
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return Outcome(**json.loads(done.stdout))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--run", default="mm-prefill-contract")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.inside:
        return inside(asked.inside)
    prefix = apart(*APART)
    chance = random.Random(asked.seed)
    number = round(asked.kills * asked.share)
    kills = [
        Kill(
            MODES[n % 3],
            SIGNALS[n % 4],
            chance.choice(WHOM),
            chance.choice(SEEN),
            chance.random(),
        )
        for n in range(number)
    ]
    began = time.monotonic()
    print(
        f"seed {asked.seed}; "
        f"{'namespaces of their own' if prefix else 'nothing of their own'}"
    )
    outcomes: list[Outcome] = []
    with ThreadPoolExecutor(asked.jobs if prefix else 1) as pool:
        for kill, one in zip(
            kills, pool.map(lambda k: tried(asked.run, k, prefix), kills), strict=True
        ):
            outcomes.append(one)
            print(
                f"{len(outcomes):3}  {kill.mode:4} {kill.sent:4} to {kill.whom:10} "
                f"{kill.after_s:.2f} s after {kill.seen:7}  gone after "
                f"{one.gone_s:5.2f} s, exit {one.code}, incident {one.incident}; left: "
                f"{one.left or 'nothing'}",
                flush=True,
            )
    unsound = sum(not one.sound for one in outcomes)
    states = Counter(one.incident.partition(":")[0] for one in outcomes)
    print(
        f"{number} kills in {time.monotonic() - began:.0f} s: {unsound} left something "
        "or an unreadable incident; slowest gone after "
        f"{max(one.gone_s for one in outcomes):.1f} s; incidents: "
        f"{', '.join(f'{n} {state}' for state, n in states.most_common())}"
    )
    return int(unsound > 0)


if __name__ == "__main__":
    sys.exit(main())
