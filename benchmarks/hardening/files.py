"""Broken archives, JSON and logs: does any end in a traceback, half a GiB or twenty
seconds?

Usage: python benchmarks/hardening/files.py [--share 0.1] [--seed 1] [--jobs 2] [--kind
                                                K] [--only N]

5,000 files and folders, made of recorded runs, replays, ledgers, logs and recordings,
each broken by a seed of its own and given to a command that reads such. Each runs in a
forked child with limits of memory, file size and time, in a temporary folder and a
network of its own (where the kernel allows it); `replay` ends where it would start a
server. Of each the peak of its memory (with the 100 MiB that mmrepro's imports take)
and its seconds of CPU are measured: whatever else runs on the machine is not counted.
Exit 1: a bound was broken."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
import zipfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parent))
from _kinds import KINDS, seeds
from common import apart, loopback_up

LIMIT_S, LIMIT_MIB, CPU_S, HUNG_S = 20.0, 512, 60, 600
ADDRESSES, FILE_BYTES = 4 << 30, 1 << 30
EXPECTED = frozenset({0, 1, 2, 3, 4})
GITS = frozenset({125, 128})
"""Of ``bisect-run``: what git takes for a tree that cannot be tested, and for its own
end."""
BUGS = ("bug of mmrepro", "Traceback (most recent call last)")


@dataclass(frozen=True)
class Ended:
    """What became of one command. ``code``: negative is a signal."""

    number: int
    kind: str
    argv: list[str]
    code: int
    mib: int
    seconds: float
    wrong: str

    @property
    def bad(self) -> str:
        if self.wrong:
            return self.wrong
        if self.mib > LIMIT_MIB:
            return f"{self.mib} MiB"
        return f"{self.seconds:.1f} s of CPU" if self.seconds > LIMIT_S else ""


# ---------------------------------------------------------------------- one command


def child(number: int, kind: str, folder: Path, place: Path) -> NoReturn:
    """Makes the files in a process of its own, so that this one's memory is the
    command's."""
    argv_file = folder.parent / f"{number}.argv"
    maker = os.fork()
    if maker == 0:
        rng = random.Random(f"{ARGS.seed}:{number}")
        argv_file.write_text(json.dumps(KINDS[kind][0](rng, folder, seeds(place))))
        os._exit(0)
    if os.waitpid(maker, 0)[1]:
        os._exit(77)
    began = time.process_time()
    for name, limit in (
        (resource.RLIMIT_AS, ADDRESSES),
        (resource.RLIMIT_FSIZE, FILE_BYTES),
        (resource.RLIMIT_CPU, CPU_S),
    ):
        resource.setrlimit(name, (limit, limit))
    signal.setitimer(signal.ITIMER_REAL, HUNG_S)
    os.chdir(folder)
    spoken = folder.parent / "stdin"
    os.dup2(os.open(spoken if spoken.exists() else os.devnull, os.O_RDONLY), 0)
    for stream in (1, 2):
        handle = os.open(
            folder.parent / f"{number}.{stream}", os.O_WRONLY | os.O_CREAT, 0o600
        )
        os.dup2(handle, stream)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
    sys.argv = ["mmrepro", *json.loads(argv_file.read_text())]
    from mmrepro.cli import main

    try:
        main()
        code: Any = 0
    except SystemExit as ended:
        code = ended.code
    sys.stdout.flush()
    sys.stderr.flush()
    status = Path("/proc/self/status").read_text()
    peak = int(status.partition("VmHWM:")[2].split()[0])
    told = {"code": int(code or 0), "kib": peak, "s": time.process_time() - began}
    (folder.parent / f"{number}.told").write_text(json.dumps(told))
    os._exit(0)


def ended(number: int, kind: str, folder: Path, status: int) -> Ended:
    """Reads what the child left, and looks at what its command printed and wrote."""
    held = folder.parent
    argv = json.loads((held / f"{number}.argv").read_text())
    errors = (held / f"{number}.2").read_text(errors="replace")
    printed = (held / f"{number}.1").read_bytes()
    if os.waitstatus_to_exitcode(status):
        code = os.waitstatus_to_exitcode(status)
        hung = -code in (signal.SIGALRM, signal.SIGXCPU)
        return Ended(
            number, kind, argv, code, 0, 0, "hung" if hung else f"ended by {-code}"
        )
    told = json.loads((held / f"{number}.told").read_text())
    wrong = ""
    gits = GITS if argv[0] == "bisect-run" else frozenset[int]()
    if told["code"] not in EXPECTED | gits or any(bug in errors for bug in BUGS):
        wrong = f"exit {told['code']}: {errors.strip().splitlines()[-2:]}"
    elif b"\x1b" in printed or "\x1b" in errors:
        wrong = "an escape reached the terminal"
    elif out := {path.name for path in held.iterdir()} - {
        folder.name,
        "stdin",
        *_own(number),
    }:
        wrong = f"it wrote beside its folder: {sorted(out)}"
    elif argv[0] == "bundle" and (folder / "x.zip").exists():
        with zipfile.ZipFile(folder / "x.zip") as archive:
            names = archive.namelist()
        if len(set(names)) < len(names) or any(
            ".." in n.split("/") or n[:1] == "/" for n in names
        ):
            wrong = "two members of one name, or one that leads out"
    return Ended(number, kind, argv, told["code"], told["kib"] >> 10, told["s"], wrong)


def _own(number: int) -> set[str]:
    """What this program writes beside a folder."""
    return {f"{number}.{name}" for name in ("argv", "1", "2", "told")}


def warmed(place: Path) -> None:
    """Imports what the commands do, so that a fork has it, and keeps every server from
    starting."""
    # Two members of one name are made here.
    warnings.filterwarnings("ignore", "Duplicate name")
    from mmrepro.base.errors import EngineStartError
    from mmrepro.cli.app import app
    from mmrepro.runs.play.player import Player
    from typer.testing import CliRunner

    def no_server(*_: object, **__: object) -> NoReturn:
        raise EngineStartError("No server is started here.")

    Player.__init__ = no_server  # type: ignore[method-assign]
    rng = random.Random(0)
    here = Path.cwd()
    for number, (make, _) in enumerate(list(KINDS.values())[:-1]):
        folder = place / f"warm-{number}"
        folder.mkdir()
        os.chdir(folder)
        CliRunner().invoke(app, make(rng, folder, seeds(place)))
    os.chdir(here)


# ---------------------------------------------------------------------- all of them


@dataclass
class Row:
    count: int = 0
    codes: Counter[int] = field(default_factory=Counter)
    mib: int = 0
    seconds: float = 0.0
    bad: list[Ended] = field(default_factory=list)

    def take(self, one: Ended) -> None:
        self.count += 1
        self.codes[one.code] += 1
        self.mib, self.seconds = max(self.mib, one.mib), max(self.seconds, one.seconds)
        if one.bad:
            self.bad.append(one)


def run(wanted: list[tuple[int, str]], place: Path) -> dict[str, Row]:
    rows = {kind: Row() for kind in KINDS}
    running: dict[int, tuple[int, str]] = {}
    todo = iter(wanted)
    while True:
        while len(running) < ARGS.jobs and (following := next(todo, None)):
            number, kind = following
            folder = place / str(number) / "x"
            folder.mkdir(parents=True)
            pid = os.fork()
            if pid == 0:
                child(number, kind, folder, place)
            running[pid] = following
        if not running:
            return rows
        pid, status = os.wait()
        number, kind = running.pop(pid)
        rows[kind].take(one := ended(number, kind, place / str(number) / "x", status))
        if one.bad:
            print(
                f"{number} ({kind}): mmrepro {' '.join(one.argv)}\n    {one.bad}",
                flush=True,
            )
        if not ARGS.only:
            shutil.rmtree(place / str(number))


def planned(share: float) -> list[tuple[int, str]]:
    """By number and kind; the same numbers are the same files, whatever the share."""
    kinds = [kind for kind, (_, count) in KINDS.items() for _ in range(count)]
    step = round(1 / share)
    wanted = enumerate(kinds, 1)
    return [
        (n, k) for n, k in wanted if n % step == 0 and (not ARGS.kind or k in ARGS.kind)
    ]


def main() -> int:
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        place = Path(tempfile.mkdtemp(prefix="mmrepro-files-"))
        if not ARGS.only:
            stack.callback(shutil.rmtree, place)
        os.environ.update(
            MMREPRO_CACHE_DIR=str(place / "cache"), NO_COLOR="1", COLUMNS="120"
        )
        os.environ.pop("MMREPRO_DEBUG", None)
        os.environ["TMPDIR"] = str(place)
        warmed(place)
        wanted = planned(1 if ARGS.only else ARGS.share)
        rows = run([one for one in wanted if ARGS.only in (None, one[0])], place)
        if ARGS.only:
            print(f"kept in {place / str(ARGS.only)}")
    print(f"{'':20}{'files':>7}{'bad':>5}{'MiB':>6}{'s':>7}  exit codes")
    for kind, row in ((kind, row) for kind, row in rows.items() if row.count):
        codes = ", ".join(
            f"{code}: {count}" for code, count in sorted(row.codes.items())
        )
        print(
            f"{kind:20}{row.count:7}{len(row.bad):5}{row.mib:6}{row.seconds:7.2f}  "
            f"{codes}"
        )
    count, bad = (
        sum(row.count for row in rows.values()),
        sum(len(row.bad) for row in rows.values()),
    )
    print(f"{count} files, {bad} bad, in {time.monotonic() - began:.0f} s")
    return 1 if bad else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--share", type=float, default=1.0, help="of the files that are tried"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2, help="commands at a time")
    parser.add_argument("--kind", action="append", help="try only files of this kind")
    parser.add_argument(
        "--only", type=int, help="try this number alone, and keep its files"
    )
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    ARGS = parser.parse_args()
    if not ARGS.inside and (prefix := apart()):
        words = [*prefix, sys.executable, __file__, *sys.argv[1:], "--inside"]
        sys.exit(subprocess.run(words, check=False).returncode)
    if ARGS.inside:
        loopback_up()
    sys.exit(main())
