"""Hostile command lines: does any end in a traceback, an unknown exit code, minutes or
gigabytes?

Usage: python benchmarks/hardening/command_lines.py [--lines 10000] [--processes 500]
                                                     [--seed 1] [--share 0.1]

Commands and options come from mmrepro's own tree, values from hostile pools. Most lines
run in forked children of this process, in which `main` is called again and again, so
that what grows is seen and told by command; the others are processes of their own,
behind streams that are full, closed or narrow. All of it writes below one temporary
folder alone (Landlock), in a network of its own that leads nowhere, with an empty
cache: no engine can be built or started. Exit 1: a bound was broken."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import random
import resource
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import psutil
from _confined import confine
from hardening._lines import Lines, furnish
from hardening.common import apart, loopback_up
from mmrepro.base.errors import ExitCode
from mmrepro.campaign.bisect.once import GitCode

LIMIT_S, KILL_S = 10.0, 100.0
WAITING_S = {("diagnose",): 20.0, ("matrix", "run"): 25.0}
"""Of commands that are asked to wait: a request's deadline of 15 s and what is beside
it; a night, each cell of which fails after a second or two, since nothing can be built
here."""
MEMORY_KIB, ADDRESSES = 1 << 20, 4 << 30
BATCH = 250
HUGE = "huge"
IN_PROCESS = "in-process"
STREAMS = {
    "pipes": "",
    "ascii": "PYTHONIOENCODING=ascii",
    "C": "LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0",
    "latin-1": "PYTHONIOENCODING=latin-1",
    "full": "> /dev/full",
    "full stderr": "2> /dev/full",
    "closed": ">&-",
    "closed stderr": "2>&-",
    "none": "<&- >&- 2>&-",
    "reader left": "| true",
    "narrow": "COLUMNS=1 TERM=dumb",
    "coloured": "FORCE_COLOR=1 COLUMNS=20",
}


@dataclass
class Ran:
    """One command line. ``growth_kib``: what the process kept; ``peak_kib``: its most
    while it ran, as far as that was more than before. ``seconds``: in one process,
    without those in which it had no processor; where a line is a process of its own,
    its start and all waits count, so no limit holds but ``KILL_S``."""

    line: list[str]
    code: int | None
    seconds: float
    peak_kib: int = 0
    growth_kib: int = 0
    said: str = ""
    how: str = IN_PROCESS

    @property
    def limit_s(self) -> float:
        if self.how != IN_PROCESS:
            return KILL_S
        waiting = (
            s for words, s in WAITING_S.items() if (*self.line[: len(words)],) == words
        )
        return next(waiting, LIMIT_S)

    def broken(self) -> list[str]:
        found = []
        if "Traceback (most recent" in self.said or "Exception ignored" in self.said:
            found.append("traceback")
        if "bug of mmrepro" in self.said:
            found.append("bug")
        git = {*GitCode} if self.line[:1] == ["bisect-run"] else set()
        if self.code not in {*ExitCode, *git}:
            found.append(f"exit code {self.code}")
        if self.seconds > self.limit_s:
            found.append(f"over {self.limit_s:.0f} s")
        if self.peak_kib > MEMORY_KIB:
            found.append("over 1 GiB")
        return found


# ---------------------------------------------------------------- in one process


def no_processor() -> float:
    """Seconds that this thread was ready to run and did not: a busy machine, not a slow
    line."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except OSError:  # a kernel that does not count them
        return 0.0


def worker(lines: list[list[str]], folder: Path, pipe: int) -> None:
    """In a forked child: run ``lines`` one after another; never returns."""
    from mmrepro.cli import main

    os.setsid()
    cwd = folder / f"worker-{os.getpid()}"
    cwd.mkdir()
    furnish(cwd, folder / HUGE)
    output = os.open(cwd / ".said", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number in (1, 2):
        os.dup2(output, number)
    for line in lines:
        os.chdir(cwd)
        os.ftruncate(output, 0)
        os.lseek(output, 0, os.SEEK_SET)
        os.write(pipe, b'"began"\n')
        before, highest, code, escaped = memory("VmRSS"), memory("VmHWM"), None, ""
        began = time.monotonic() - no_processor()
        sys.argv = ["mmrepro", *line]
        try:
            main()
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 0
        except BaseException as error:
            escaped = (
                f"Traceback (most recent call last): {type(error).__name__}: {error}"
            )
        seconds = time.monotonic() - no_processor() - began
        os.chdir(cwd)
        size = os.fstat(output).st_size
        said = (
            os.pread(output, 4000, max(0, size - 4000)).decode(errors="replace")
            + escaped
        )
        after, peak = memory("VmRSS"), memory("VmHWM")
        ran = Ran(
            line, code, seconds, peak if peak > highest else after, after - before, said
        )
        os.write(pipe, json.dumps(asdict(ran)).encode() + b"\n")
    os._exit(0)


def memory(name: str) -> int:
    """KiB of this process."""
    text = Path("/proc/self/status").read_text()
    return int(text.partition(f"{name}:")[2].split()[0])


@dataclass
class Worker:
    lines: list[list[str]]
    folder: Path
    pid: int = 0
    pipe: int = -1
    began: float = 0.0
    held: bytes = b""
    done: list[Ran] = field(default_factory=list)

    def start(self) -> None:
        self.pipe, theirs = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            try:
                worker(self.lines[len(self.done) :], self.folder, theirs)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        os.close(theirs)
        self.began, self.held = time.monotonic(), b""

    def read(self) -> bool:
        """Take what it said; False once it has ended."""
        data = os.read(self.pipe, 1 << 20)
        *whole, self.held = (self.held + data).split(b"\n")
        for text in whole:
            said = json.loads(text)
            self.began = time.monotonic()
            if said != "began":
                self.done.append(Ran(**said))
        return bool(data)

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.pipe)
        shutil.rmtree(self.folder / f"worker-{self.pid}", ignore_errors=True)


def in_process(lines: list[list[str]], folder: Path, at_once: int) -> list[Ran]:
    """All of ``lines``, in children that are replaced after each batch, and if they
    hang or die."""
    waiting = [
        Worker(lines[n : n + BATCH], folder) for n in range(0, len(lines), BATCH)
    ]
    running: list[Worker] = []
    ended: list[Ran] = []
    while waiting or running:
        while waiting and len(running) < at_once:
            running.append(waiting.pop(0))
            running[-1].start()
        ready, _, _ = select.select([one.pipe for one in running], [], [], 0.2)
        for one in list(running):
            alive = one.read() if one.pipe in ready else True
            late = time.monotonic() - one.began > KILL_S
            if alive and not late:
                continue
            one.end()
            running.remove(one)
            _end_orphans({other.pid for other in running})
            if len(one.done) < len(one.lines):
                line = one.lines[len(one.done)]
                said = "it hangs" if late else "the process died"
                one.done.append(
                    Ran(line, None, time.monotonic() - one.began, said=said)
                )
            if len(one.done) < len(one.lines):
                waiting.insert(0, one)
            else:
                ended += one.done
    return ended


def _end_orphans(ours: set[int]) -> None:
    """What an ended worker left has become a child of this process."""
    for child in psutil.Process().children():
        if child.pid not in ours:
            child.kill()
            child.wait()


# --------------------------------------------------------------- processes of their own


def process(number: int, line: list[str], how: str, folder: Path) -> Ran:
    """``line`` as a shell runs it, behind the streams called ``how``."""
    cwd = folder / f"process-{number}"
    cwd.mkdir()
    furnish(cwd, folder / HUGE)
    around = STREAMS[how]
    before, after = (
        ("", around) if around[:1] in ("<", ">", "|", "2", "") else (around, "")
    )
    script = f'{before} "$@" {after}; exit "${{PIPESTATUS[0]}}"'
    began = time.monotonic()
    child = subprocess.Popen(
        ["bash", "-c", script, "_", sys.executable, "-m", "mmrepro", *line],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=cwd,
        start_new_session=True,
    )
    try:
        said, _ = child.communicate(timeout=KILL_S)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        said, _ = child.communicate()
    shutil.rmtree(cwd, ignore_errors=True)
    text = said[-4000:].decode(errors="replace")
    return Ran(line, child.returncode, time.monotonic() - began, said=text, how=how)


# ---------------------------------------------------------- where nothing can be harmed


def settle(folder: Path) -> None:
    for name in ("home", "cache", "tmp", "uv"):
        (folder / name).mkdir()
    unroutable = dict.fromkeys(
        ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), "http://127.0.0.1:9"
    )
    os.environ.update(
        unroutable,
        HOME=str(folder / "home"),
        TMPDIR=str(folder / "tmp"),
        XDG_CACHE_HOME=str(folder / "cache"),
        MMREPRO_CACHE_DIR=str(folder / "cache"),
        UV_CACHE_DIR=str(folder / "uv"),
        UV_OFFLINE="1",
        PYTHONDONTWRITEBYTECODE="1",
    )
    for name in (
        "MMREPRO_DEBUG",
        "MMREPRO_START_MODE",
        "MMREPRO_WARM_DIR",
        "MMREPRO_WARM_IDLE",
    ):
        os.environ.pop(name, None)
    tempfile.tempdir = None
    with (folder / HUGE).open("wb") as huge:
        huge.truncate(1 << 40)
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 28, 1 << 28))
    # PR_SET_CHILD_SUBREAPER: what a line leaves is ours.
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)


def report(ran: list[Ran], began: float) -> int:
    growth: Counter[str] = Counter()
    peaks: Counter[str] = Counter()
    for one in ran:
        grouped = one.line[:1] in (["matrix"], ["env"])
        depth = 3 if one.line[:2] == ["env", "warm"] else 2 if grouped else 1
        name = " ".join(one.line[:depth])
        growth[name] += one.growth_kib >> 10
        peaks[name] = max(peaks[name], one.peak_kib >> 10)
    inside = sum(one.how == IN_PROCESS for one in ran)
    seconds = time.monotonic() - began
    codes = sorted(Counter(str(one.code) for one in ran).items())
    slow = sorted(ran, key=lambda one: -one.seconds)[:3]
    print(f"{inside} lines in-process, {len(ran) - inside} processes, {seconds:.0f} s")
    print("exit codes  ", ", ".join(f"{code}: {number}" for code, number in codes))
    print(
        "slowest     ",
        ", ".join(f"{shown(one)[:60]} {one.seconds:.1f} s" for one in slow),
    )
    print(
        "grew most   ",
        ", ".join(f"{name} {mib} MiB" for name, mib in growth.most_common(3)),
    )
    print(
        "highest peak",
        ", ".join(f"{name} {mib} MiB" for name, mib in peaks.most_common(3)),
    )
    broken = [(one, what) for one in ran if (what := one.broken())]
    for one, what in broken:
        print(
            f"\n{', '.join(what)}  ({one.how}, {one.seconds:.1f} s, "
            f"{one.peak_kib >> 10} MiB)"
        )
        print(f"  mmrepro {shown(one)}")
        print(
            "\n".join(
                f"    {line[:200]}" for line in one.said.strip().splitlines()[-8:]
            )
        )
    print(f"\n{len(broken)} of {len(ran)} lines broke a bound")
    return int(bool(broken))


def shown(one: Ran) -> str:
    return shlex.join(word[:120] for word in one.line)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lines", type=int, default=10_000)
    parser.add_argument("--processes", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    sys.stdout.reconfigure(errors="backslashreplace", line_buffering=True)
    prefix = [] if asked.inside else apart()
    if prefix:
        os.execvp(prefix[0], [*prefix, sys.executable, *sys.argv, "--inside"])
    if asked.inside:
        loopback_up()
    with tempfile.TemporaryDirectory() as folder:
        child = os.fork()  # it can never leave the folder again, so it cannot remove it
        if not child:
            code = 1
            try:
                code = confined(asked, Path(folder))
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(code)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def confined(asked: argparse.Namespace, folder: Path) -> int:
    began = time.monotonic()
    settle(folder)
    (folder / "names").mkdir()
    maker = Lines(asked.seed, furnish(folder / "names", folder / HUGE))
    lines = [maker.line() for _ in range(round(asked.lines * asked.share))]
    own = [maker.line() for _ in range(round(asked.processes * asked.share))]
    hows = random.Random(asked.seed).choices([*STREAMS], k=len(own))
    writes = "confined"
    try:
        confine(folder, "/dev/full")
    except OSError as error:
        writes = f"not confined ({error.strerror})"
    network = "of its own" if asked.inside else "unroutable"
    print(f"seed {asked.seed}; network {network}; writes {writes}")
    ran = in_process(lines, folder, asked.jobs)
    # A busy machine makes a line slow that is not: it counts only if it is so by itself
    # as well.
    again = [one.line for one in ran if one.seconds > one.limit_s]
    ran = [one for one in ran if one.seconds <= one.limit_s]
    ran += in_process(again, folder, 1)
    with ThreadPoolExecutor(asked.jobs) as pool:
        numbers = range(len(own))
        ran += pool.map(lambda n: process(n, own[n], hows[n], folder), numbers)
    return report(ran, began)


if __name__ == "__main__":
    sys.exit(main())
