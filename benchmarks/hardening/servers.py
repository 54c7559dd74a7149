"""Hostile servers against ``diagnose`` and ``watch``: crashes, time, memory, and what
was claimed.

Each is a FAKE on loopback (fakes.py), in a process of its own. One diagnosis and six
checks of a watch are made of it, in another process, whose memory is measured. A
watch's clock is simulated: its checks follow each other at once and count as
``APART_S`` apart.

    uv run python benchmarks/hardening/servers.py                 # 200 of them
    uv run python benchmarks/hardening/servers.py --share 0.1     # as CI does
    uv run python benchmarks/hardening/servers.py --only "gzip bomb" --seed 7
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import random
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from urllib.parse import quote

sys.path.insert(0, str(Path(__file__).parent))

import mmrepro.reports
from fakes import KINDS, WHERE, Kind
from mmrepro.base.machine.host import Lateness
from mmrepro.failure.documents.diagnosis import ServerState as S
from mmrepro.live.diagnose.options import DiagnoseCommand
from mmrepro.live.diagnose.session import diagnose
from mmrepro.live.watch.checker import Checker
from mmrepro.live.watch.health import Check, CheckOutcome, Health
from mmrepro.live.watch.loop import watch_of
from mmrepro.live.watch.options import WatchCommand
from mmrepro.live.watch.server import state

COUNT = 200
DEADLINE_S = 2.0
"""Of a diagnosis; it may take ``BESIDE_S`` more."""
BESIDE_S = 5.0
WORK_S = 10.0
"""Processor time of a diagnosis, its report and the checks beside it: 1 s on a machine
of 2025."""
QUIET = 0.1
"""Part of its time for which a diagnosis may wait for a processor: else its time says
nothing."""
MEMORY_MB = 512
CHECKS = 6
CHECK_DEADLINE_S = 0.5
APART_S = 15.0
KEY = "sk-planted/0123456789+abcdef"

MILD = {S.UNKNOWN, S.UNREACHABLE, S.NO_FAULT_SEEN}
NEVER = {S.DEAD, S.PART_DEAD, S.STOPPED, S.STARVED, S.BLOCKED_ON_LOCK, S.NOT_RECEIVING}
NEVER |= {S.FROZEN_PYTHON, S.FROZEN_NATIVE}
"""No process of a fake ends, stops, computes or is an engine: none of these can have
been seen."""


@dataclass(frozen=True)
class Hostile:
    kind: str
    where: str
    seed: int


@dataclass
class Row:
    """What came of one; ``seconds``: what the diagnosis waited for, without
    ``worked_s``, the time on a processor; ``faults``: what must not be; ``lateness``:
    of the machine."""

    state: str = ""
    seconds: float = 0.0
    worked_s: float = 0.0
    lateness: float = 0.0
    memory_mb: float = 0.0
    verdicts: list[str] = field(default_factory=list)
    live: bool = True
    faults: list[str] = field(default_factory=list)


def main() -> int:
    options = arguments()
    picked = plan(max(1, round(COUNT * options.share)), options.seed, options.only)
    began = time.monotonic()
    rows = list(run_all(picked, options.jobs, options.verbose))
    for at in [n for n, (_, row) in enumerate(rows) if late(row)]:
        # Eight at once share the processors: only one that is late alone, too, is late
        # by itself.
        (again,) = run_all([rows[at][0]], 1, options.verbose)
        rows[at] = again
        if late(again[1]):
            again[1].faults.append(f"diagnose waited {again[1].seconds:.1f} s, alone")
    states = Counter(row.state for _, row in rows)
    verdicts = Counter(v for _, row in rows for v in row.verdicts)
    broken = [(hostile, fault) for hostile, row in rows for fault in row.faults]
    print(f"{len(rows)} hostile servers (FAKES), seed {options.seed}")
    print(f"diagnoses   {', '.join(f'{n} {s}' for s, n in states.most_common())}")
    print(f"checks      {', '.join(f'{n} {v}' for v, n in verdicts.most_common())}")
    print(
        f"not live    {sum(not row.live for _, row in rows)}, after a silence of 60 s "
        "or more"
    )
    timed = [row.seconds for _, row in rows if row.lateness <= QUIET]
    print(
        f"waited      {max(timed, default=0):.1f} s at most, of "
        f"{DEADLINE_S + BESIDE_S:.0f}"
    )
    worked = max((row.worked_s for _, row in rows), default=0.0)
    print(f"computed    {worked:.1f} s at most, of {WORK_S:.0f}")
    if len(timed) < len(rows):
        print(
            f"not timed   {len(rows) - len(timed)}: this machine was short of "
            "processors"
        )
    print(
        f"memory      {max(row.memory_mb for _, row in rows):.0f} MB at most, of "
        f"{MEMORY_MB}"
    )
    print(f"faults      {len(broken)}")
    for hostile, fault in broken:
        print(f"  {hostile.kind!r}, {hostile.where}, seed {hostile.seed}: {fault}")
    print(f"took        {time.monotonic() - began:.0f} s")
    return 1 if broken else 0


def late(row: Row) -> bool:
    return row.lateness <= QUIET and row.seconds > DEADLINE_S + BESIDE_S


def plan(count: int, seed: int, only: str) -> list[Hostile]:
    """Every kind as often as any other, anywhere; where all is hostile twice as
    often."""
    rng = random.Random(seed)
    kinds = [only] if only else rng.sample(sorted(KINDS), len(KINDS))
    names = (kinds[n % len(kinds)] for n in range(count))
    return [
        Hostile(name, rng.choice(("all", *WHERE)), rng.randrange(1 << 16))
        for name in names
    ]


def run_all(
    picked: list[Hostile], jobs: int, verbose: bool
) -> Iterator[tuple[Hostile, Row]]:
    """Each in a process forked from this one, which has everything imported; ``jobs``
    at once."""
    context = multiprocessing.get_context("fork")
    left = list(reversed(picked))
    running: dict[Connection, tuple[Hostile, multiprocessing.process.BaseProcess]] = {}
    while left or running:
        while left and len(running) < jobs:
            hostile = left.pop()
            mine, theirs = context.Pipe(duplex=False)
            process = context.Process(target=work, args=(hostile, theirs))
            process.start()
            theirs.close()
            running[mine] = hostile, process
        for ready in wait(list(running)):
            assert isinstance(ready, Connection)
            hostile, process = running.pop(ready)
            row = Row(faults=["its process ended without a word"])
            with contextlib.suppress(EOFError):
                row = ready.recv()
            process.join()
            if verbose:
                print(hostile, row, flush=True)
            yield hostile, row


def work(hostile: Hostile, out: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (4 << 30, 4 << 30))
    row = Row()
    here = str(Path(__file__).with_name("fakes.py"))
    command = [
        sys.executable,
        "-S",
        here,
        hostile.kind,
        hostile.where,
        str(hostile.seed),
    ]
    with (
        tempfile.TemporaryDirectory(prefix="mmrepro-hostile-") as folder,
        subprocess.Popen(command, stdout=subprocess.PIPE) as fake,
    ):
        try:
            assert fake.stdout is not None
            url = f"http://127.0.0.1:{int(fake.stdout.readline())}"
            beside = threading.Thread(target=guarded, args=(watched, url, hostile, row))
            beside.start()
            guarded(diagnosed, url, hostile, row, Path(folder))
            beside.join()
        finally:
            fake.kill()
    row.memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if row.memory_mb > MEMORY_MB:
        row.faults.append(f"{row.memory_mb:.0f} MB of memory")
    out.send(row)


def guarded(
    step: Callable[..., None], url: str, hostile: Hostile, row: Row, *more: object
) -> None:
    try:
        step(url, hostile, row, *more)
    except Exception as error:
        row.faults.append(f"{step.__name__}: {type(error).__name__}: {error}"[:300])


def diagnosed(url: str, hostile: Hostile, row: Row, folder: Path) -> None:
    options = DiagnoseCommand(
        url=url,
        deadline_s=DEADLINE_S,
        samples=3,
        headers={"Authorization": f"Bearer {KEY}"},
        out=folder / "kept",
    )
    began, worked = time.monotonic(), time.process_time()
    with Lateness() as lateness:
        found = diagnose(options)
        assert found.folder is not None
        mmrepro.reports.write_reports(found.folder)
    row.worked_s = time.process_time() - worked
    row.seconds, row.lateness = time.monotonic() - began - row.worked_s, lateness.share
    row.state = found.diagnosis.state.value
    if row.worked_s > WORK_S:
        row.faults.append(f"diagnose computed for {row.worked_s:.1f} s")
    if found.diagnosis.found:
        row.faults.append(
            f"a known failure was found: {found.diagnosis.found[0].scenario}"
        )
    failed = [text for text in found.diagnosis.unseen if "mmrepro failed" in text]
    row.faults += [*failed, *too_strong(found.diagnosis.state, hostile)]
    for file in found.folder.rglob("*"):
        if file.is_file() and leaks(file.read_bytes()):
            row.faults.append(f"the key is in {file.name}")


def too_strong(state: S, hostile: Hostile) -> list[str]:
    """What was claimed, where it is more than such a server shows."""
    kind, where = KINDS[hostile.kind], hostile.where
    allowed = set(S) - NEVER
    answered = where not in ("all", "completion") or kind.sound
    if answered and where in ("metrics", "completion"):
        allowed = {S.HEALTHY, S.SLOW}
    if not answered:
        allowed -= {S.HEALTHY}
    if not (kind.silent and where == "all"):
        allowed -= {S.FRONT_FROZEN}
    if not kind.silent:
        allowed -= {S.FROZEN}
    if hostile.kind == "mutated":  # what came of the change, nobody knows
        allowed = set(S) - NEVER
    return [] if state in allowed | MILD else [f"{state.value} is more than it shows"]


def watched(url: str, hostile: Hostile, row: Row) -> None:
    told: list[str] = []
    health = Health(failures=2, grace_s=0.0)
    watch = watch_of(
        WatchCommand(
            url=url,
            http="9400",
            deadline_s=CHECK_DEADLINE_S,
            headers={"Authorization": f"Bearer {KEY}"},
        ),
        health,
        listener=lambda _, text: told.append(text),
    )
    assert isinstance(watch.checker, Checker)
    watch.checker = simulated = Simulated(watch.checker)
    for _ in range(CHECKS):
        watch._step()
    simulated.checker.close()
    row.verdicts = [
        verdict.value for verdict, n in watch.counts.items() for _ in range(n)
    ]
    row.live = health.live
    if leaks((json.dumps(state(watch)) + " ".join(told)).encode()):
        row.faults.append("the watch shows the key")
    silent = watch.counts[CheckOutcome.SILENT] * APART_S >= health.stall_s
    if not health.live and not (
        silent and may_be_silent(KINDS[hostile.kind], hostile.where)
    ):
        row.faults.append(f"not live: {row.verdicts}")
    if watch.counts[CheckOutcome.FAILED]:
        row.faults.append("a process was called ended or standing")


@dataclass
class Simulated:
    """A checker whose clock makes ``apart_s`` of what passes between two checks."""

    checker: Checker
    apart_s: float = APART_S
    now: float = 0.0

    def check(self) -> Check:
        made = self.checker.check()
        self.now += self.apart_s
        return Check(made.verdict, self.now, made.seconds, made.why)


def may_be_silent(kind: Kind, where: str) -> bool:
    """No counter moves in any of them; a completion that does not come in time is a
    silence."""
    return where in ("all", "completion") and not kind.sound


def leaks(data: bytes) -> bool:
    forms = (KEY, json.dumps(KEY)[1:-1], quote(KEY, safe=""), quote(KEY))
    return any(form.encode() in data for form in forms)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--share", type=float, default=1.0, help="part of them that is run"
    )
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=8, help="how many at once")
    parser.add_argument("--only", default="", help="one kind, at every place")
    parser.add_argument("--verbose", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
