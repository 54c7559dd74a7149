"""Hostile bug reports: does reading one end in a traceback, a bug, a GiB or twenty
seconds?

Usage:  python benchmarks/hardening/issues.py [--share 0.1] [--seed 1] [--only N]

400 reports of a grammar (_reports.py), each within the 65,536 characters of GitHub, are
given to `mmrepro repro ISSUE.md`, which ends where it would start a server or a client.
Each runs in a forked child, in a network of its own where the kernel allows it. Counted
is what a user sees: the seconds until the end, and the largest process, the reader's
child included. Exit 1: a bound was broken."""

from __future__ import annotations

import argparse
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parent))
from _reports import Reports
from common import apart, loopback_up

COUNT = 400
LIMIT_S, LIMIT_MIB, HUNG_S = 20.0, 1024, 120
ADDRESSES = 6 << 30
EXPECTED = frozenset({0, 2})
BUG, TRACEBACK, UNREAD = (
    "bug of mmrepro",
    "Traceback (most recent call last)",
    "cannot be read: ",
)
"""UNREAD: of a report; an exception that nobody expected stands behind it."""
LIMIT_WORDS = (
    "takes too long",
    "too much memory",
    "nested too deep",
    "memory or depth",
    "too much.",
)


@dataclass(frozen=True)
class ReadReport:
    """What became of one report."""

    number: int
    code: int
    seconds: float
    mib: int
    errors: str

    @property
    def wrong(self) -> list[str]:
        found = [word for word in (BUG, TRACEBACK) if word in self.errors]
        if f"The report {UNREAD}" in self.errors:
            found.append("an exception that nobody expected")
        if self.code not in EXPECTED:
            found.append(f"exit {self.code}")
        if self.seconds > LIMIT_S:
            found.append(f"{self.seconds:.1f} s")
        if self.mib > LIMIT_MIB:
            found.append(f"{self.mib} MiB")
        return found


def read(number: int, folder: Path) -> ReadReport:
    text = Reports(random.Random(f"{ARGS.seed}:{number}")).report()
    (folder / "issue.md").write_bytes(text.encode("utf-8", "surrogatepass"))
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        repro(folder)
    _, status, used = os.wait4(child, 0)
    seconds = time.monotonic() - began
    errors = (folder / "stderr").read_text(errors="replace")
    code = os.waitstatus_to_exitcode(status)
    return ReadReport(number, code, seconds, used.ru_maxrss >> 10, errors)


def repro(folder: Path) -> NoReturn:
    """The command itself, as a user types it."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
    signal.alarm(HUNG_S)
    os.chdir(folder)
    for stream, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(
            os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), stream
        )
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
    sys.argv = [
        "mmrepro",
        "repro",
        "issue.md",
        "--release",
        "0.12.0",
        "--out",
        "played",
    ]
    from mmrepro.cli import main

    code: Any = 0
    try:
        main()
    except SystemExit as ended:
        code = ended.code
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(int(code or 0))


def start_nothing() -> None:
    """`repro` reads its report and ends; what it imports is there before a child is
    forked."""
    from mmrepro.cli import replay
    from mmrepro.search.repro.report import asked_for

    def conduct(*_: object, **__: object) -> None:
        print("The report is read.")

    assert asked_for is not None
    replay.conduct_search = conduct


def main() -> int:
    began = time.monotonic()
    step = round(1 / ARGS.share)
    wanted = [n for n in range(1, COUNT + 1) if n % step == 0]
    place = Path(tempfile.mkdtemp(prefix="mmrepro-issues-"))
    os.environ.update(
        MMREPRO_CACHE_DIR=str(place / "cache"), NO_COLOR="1", TMPDIR=str(place)
    )
    os.environ.pop("MMREPRO_DEBUG", None)
    start_nothing()
    reports = []
    for number in [ARGS.only] if ARGS.only else wanted:
        folder = place / str(number)
        folder.mkdir()
        report = read(number, folder)
        reports.append(report)
        if report.wrong:
            print(
                (
                    f"{number}: {', '.join(report.wrong)}\n    "
                    f"{report.errors.strip()[-400:]}"
                ),
                flush=True,
            )
        if not ARGS.only:
            shutil.rmtree(folder)
    if ARGS.only:
        print(f"kept in {place / str(ARGS.only)}:\n{reports[0]}")
    else:
        shutil.rmtree(place)
    summary(reports, time.monotonic() - began)
    return 1 if any(report.wrong for report in reports) else 0


def summary(reports: list[ReadReport], seconds: float) -> None:
    counts = {
        "tracebacks": sum(TRACEBACK in report.errors for report in reports),
        "bugs": sum(BUG in report.errors for report in reports),
        f"over {LIMIT_S:.0f} s": sum(report.seconds > LIMIT_S for report in reports),
        f"over {LIMIT_MIB} MiB": sum(report.mib > LIMIT_MIB for report in reports),
    }
    print(
        f"{len(reports)} reports: "
        f"{', '.join(f'{n} {what}' for what, n in counts.items())}"
    )
    codes = Counter(report.code for report in reports)
    limits = sum(any(word in r.errors for word in LIMIT_WORDS) for r in reports)
    print(
        f"exit codes {dict(sorted(codes.items()))}; {limits} refused by a limit; the "
        f"slowest took {max(r.seconds for r in reports):.1f} s, the largest "
        f"{max(r.mib for r in reports)} MiB; in {seconds:.0f} s"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--share", type=float, default=1.0, help="of the reports that are read"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--only", type=int, help="read this one alone, and keep its folder"
    )
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    ARGS = parser.parse_args()
    if not ARGS.inside and (prefix := apart()):
        words = [*prefix, sys.executable, __file__, *sys.argv[1:], "--inside"]
        sys.exit(subprocess.run(words, check=False).returncode)
    if ARGS.inside:
        loopback_up()
    sys.exit(main())
