"""What is on the screen when a command has ended? Each in a terminal of 100 × 35.

Usage:  uv run --with pyte benchmarks/screens.py [--engine]

Every command that needs no engine runs in a pseudo-terminal whose screen is emulated
(pyte); its documents are a recorded run (tests/evidence) and the sample documents of
tests/unit/reports. With --engine, `run`, `ablate`, `replay` and `fuzz` also run for
real, on minivllm. A row says how many rows the command left, whether its last line is
the verdict, and which names were cut. Exit 1: more rows than a screen's part (20 for
what ends with a verdict, 35 for lists), a verdict that is not the last line, a name
that was cut, or an exit code that was not expected."""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
COLUMNS, ROWS = 100, 35
VERDICT_ROWS = 20
sys.path.insert(0, str(ROOT / "tests" / "unit" / "reports"))
sys.path[:0] = [str(ROOT / "tests" / "unit"), str(ROOT / "tests" / "unit" / "replay")]


@dataclass(frozen=True)
class Screen:
    """A command, the beginning of its last line (its verdict), and names that stand
    there whole."""

    words: tuple[str, ...]
    verdict: str = ""
    names: tuple[str, ...] = ()
    codes: tuple[int, ...] = (0,)

    @property
    def limit(self) -> int:
        return VERDICT_ROWS if self.verdict else ROWS


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--engine", action="store_true")
    asked = parser.parse_args()
    wrong = 0
    print("| command | rows | of at most | last line | wrong |")
    print("| --- | ---: | ---: | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        for screen in _screens(place, engine=asked.engine):
            wrong += _row(screen, place)
    return 1 if wrong else 0


def _row(screen: Screen, place: Path) -> int:
    lines, code = _run(screen.words, place)
    # A long name is wrapped at the edge.
    text = "".join(line.rstrip() for line in lines)
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    wrong = [f"{name} is not whole" for name in screen.names if name not in text]
    if len(lines) > screen.limit:
        wrong.append(f"{len(lines)} rows")
    if screen.verdict and screen.verdict not in "".join(lines[-2:]):
        wrong.append(f"the verdict {screen.verdict} is not the last line")
    if code not in screen.codes:
        wrong.append(f"exit {code}")
    shown = " ".join(word for word in screen.words if str(place) not in word)
    shown = shown.replace(f"{ROOT}/", "")
    last = last.replace(str(Path.home()), "~").replace(str(place), "DIR")
    print(
        f"| `{shown}` | {len(lines)} | {screen.limit} | {last[:60].replace('|', '/')} "
        f"| {'; '.join(wrong) or '–'} |",
        flush=True,
    )
    return len(wrong)


def _run(words: tuple[str, ...], place: Path) -> tuple[list[str], int]:
    """The rows that the command left on its terminal, blank ones at the ends apart; its
    code."""
    import pyte

    screen = pyte.HistoryScreen(COLUMNS, ROWS, history=5000, ratio=1.0)
    stream = pyte.ByteStream(screen)
    main_end, child_end = pty.openpty()
    fcntl.ioctl(child_end, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "", "LINES": ""}
    environment = {name: value for name, value in environment.items() if value}
    child = subprocess.Popen(
        [sys.executable, "-m", "mmrepro", *words],
        stdin=child_end,
        stdout=child_end,
        stderr=child_end,
        cwd=place,
        env=environment,
        close_fds=True,
    )
    os.close(child_end)
    while True:
        try:
            data = os.read(main_end, 65536)
        except OSError:  # the terminal's other end is closed
            break
        if not data:
            break
        stream.feed(data)
    os.close(main_end)
    code = child.wait()
    above = ["".join(row[n].data for n in range(COLUMNS)) for row in screen.history.top]
    rows = [*above, *screen.display]
    while rows and not rows[-1].strip():
        rows.pop()
    while rows and not rows[0].strip():
        rows.pop(0)
    return rows, code


def _screens(place: Path, *, engine: bool) -> Iterator[Screen]:
    incidents = place / "incidents"
    run = _unpacked(
        "ghost-key-eviction-0.23.0", incidents / "ghost-key-eviction-0.23.0"
    )
    ghost = ("ghost-key-eviction",)
    yield Screen(
        ("show", "ghost-key-eviction"), "GHOST-KEY-EVICTION", ("mmrepro run ghost-key",)
    )
    yield Screen(("list",), "", ("chunked-mm-prefill", ">=0.14.0, <0.24.0"))
    yield Screen(("list", "--alive"), "", ("abort-by-prefix",))
    yield Screen(("show", "--claims"), "", ("text-only-placeholder",))
    yield Screen(("show", "shape-alias", "--claims"), "", ("shape-alias:one-entry",))
    yield Screen(("incidents",), "", ghost)
    yield Screen(("report", "1", "--format", "text"), "REPRODUCED", ghost)
    yield Screen(("report", "last", "--format", "text"), "REPRODUCED", ghost)
    yield Screen(("judge", str(run)), "", ghost)
    yield Screen(("bundle", str(run), "--out", str(place / "out.zip"), "--force"))
    yield Screen(("open", "last", "--print"))
    yield Screen(("diagnose", "http://127.0.0.1:9"), "DEAD", (), (1,))
    yield Screen(("check",))
    yield Screen(("env", "list"))
    yield Screen(("env", "warm", "status"))
    dry = ("bisect", "ghost-key-eviction", "--dry-run")
    yield Screen(dry, "", ("0.24.0",))
    yield Screen(("ablate", "ghost-key-eviction", "--dry-run"), "", ("prefix-caching",))
    for kind, folder, verdict in _campaigns(place):
        yield Screen(("report", str(folder), "--format", "text"), verdict, (), (0,))
        del kind
    yield Screen(("run", "no-such-scenario"), "", (), (2,))
    yield from _readings(place)
    if engine:
        contract = "mm-prefill-contract:slot-mapping"
        yield Screen(("run", contract), "REPRODUCED", ("mm-prefill-contract",))
        yield Screen(
            ("run", contract, "--quiet"), "REPRODUCED", ("mm-prefill-contract",)
        )
        ablate = ("ablate", "mm-prefill-contract", "--variant", "slot-mapping")
        yield Screen(ablate, "WORKAROUND", (), (0, 1, 3))
        yield Screen(("fuzz", "minivllm", "--budget", "20s"), "", (), (0, 1, 3))


def _readings(place: Path) -> Iterator[Screen]:
    """What reads a text, a log, a start or a recording."""
    unit = ROOT / "tests" / "unit"
    log = str(unit / "starts" / "lmdeploy-port-taken.log")
    case = place / "case"
    from mmrepro.traffic.case.files import write_case
    from test_shrink import ghost_trace

    write_case(ghost_trace(1, 40), case)
    yield Screen(("demo", "--print"), "", ("ghost-key-eviction",))
    yield Screen(("find", "Expected a cached item"), "", ("mm-cache-desync",))
    yield Screen(("why", log), "FAILED", (), (1,))
    yield Screen(("logs", log), "", (), (0,))
    yield Screen(("capture", str(case), "--mooncake", str(place / "trace.jsonl")))
    yield Screen(("new", "odd-image", "--engine", "minivllm", "--out", str(place)))
    budget = (
        "kv-budget",
        "--free",
        "6784MiB",
        "--runtime",
        "5061MiB",
        "--block-bytes",
        "8388608",
    )
    yield Screen(
        (*budget, "--cache-max-entry-count", "0.1", "--need", "3446"), "", (), (0, 1)
    )
    yield Screen(
        ("matrix", "run", "--scenario", "borrowed-faults:kv-budget", "--dry-run")
    )
    yield Screen(("matrix", "history", str(ROOT / "docs" / "nightly")))
    yield Screen(("repro", "--engine", "vllm"), "", (), (2,))
    yield Screen(("upgrade", "0.32.0", "0.33.0"), "", (), (2,))


def _unpacked(name: str, folder: Path) -> Path:
    """A recorded run as a folder with its reports."""
    from mmrepro.reports import write_reports

    folder.mkdir(parents=True)
    with zipfile.ZipFile(ROOT / "tests" / "evidence" / f"{name}.zip") as archive:
        (folder / "incident.json").write_bytes(archive.read("incident.json"))
    (folder / "evidence").mkdir()
    write_reports(folder)
    return folder


def _campaigns(place: Path) -> Iterator[tuple[str, Path, str]]:
    """A sample of each kind of campaign, kept in a folder: its kind, the folder, its
    verdict."""
    from mmrepro.reports.documents import keep
    from test_kinds import KINDS

    for name, (kind, sample) in KINDS.items():
        folder = place / name
        folder.mkdir()
        document: Any = sample()
        keep(kind, document, folder)
        yield name, folder, kind.compose(document).badge.label.upper()
    ledger = ROOT / "docs" / "nightly"
    if (ledger / "ledger.jsonl").is_file():
        copy = place / "nightly"
        shutil.copytree(ledger, copy)
        yield "nightly", copy, ""


if __name__ == "__main__":
    sys.exit(main())
