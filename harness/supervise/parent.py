"""A warm parent: it has imported an engine once and forks a server for each start.

Runs under the engine's interpreter (``python -c COMMAND FOLDER ROOM``), in a folder of its own, and
reads a :class:`ParentOrder` from standard input. It imports, looks whether what it became can be
forked, writes ``facts.json``, and listens on the Unix socket ``socket``. Each connection becomes a
supervisor (supervisor.py) that forks the engine in turn, so that a server of a warm parent is owned
and ended as any other is. A guardian, forked before the imports, ends the parent and removes its
folder when the owner is gone, however that ended.

Standard library only; never a thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import random
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path
from stat import S_ISREG
from typing import NoReturn

if __package__:
    from mmrepro.base import processes
    from mmrepro.supervise import forked, supervisor
    from mmrepro.supervise.protocol import MARKER_VARIABLE, LaunchOrder
else:  # run under the engine's interpreter, its neighbours beside it
    import forked  # type: ignore[import-not-found,no-redef]
    import supervisor  # type: ignore[import-not-found,no-redef]
    from protocol import MARKER_VARIABLE, LaunchOrder  # type: ignore[import-not-found,no-redef]

    processes = supervisor.processes

COMMAND = (
    "import sys; sys.path.insert(0, sys.argv[1]); import parent; del sys.path[0]; parent.main()"
)
ROOM = 16384
"""Bytes kept free on the command line: a server's own is shown there instead (``show_as``)."""
SOCKET, FACTS, LOG = "socket", "facts.json", "parent.log"
FORK_SAFE = ("openblas", "jemalloc_bg_thd")
"""Libraries, or a thread's own name, whose threads may run while the process forks: both have
pthread_atfork handlers. OpenBLAS ends its pool before a fork and makes it anew after it
(driver/others/blas_server.c); jemalloc's purging thread, which Arrow starts, is stopped before and
marked as ended in the child (src/background_thread.c, background_thread_postfork_child)."""
POLL_S = 0.5


@dataclass(frozen=True)
class ParentOrder:
    """The first line that a parent reads.

    ``module`` is what its servers run; ``preload`` what is imported besides, as far as the release
    has it; ``idle_s``: it ends when nothing was started for so long; 0: with its owner, who holds
    its standard input open.
    """

    module: str
    preload: list[str]
    path: list[str] = field(default_factory=list)
    idle_s: float = 0.0

    def to_line(self) -> str:
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def from_line(cls, line: str) -> ParentOrder:
        return cls(**json.loads(line))


@dataclass
class ParentFacts:
    """What became of a parent. ``refused``: why nothing can be forked from it; "" where it can.

    Attributes:
        imports_s: seconds that the imports took.
        memory_bytes: its proportional share of memory (PSS) after them.
        threads: library that owns it: number of threads, its own first one apart.
        files: what is open besides the standard streams.
        missing: modules that the release does not have, or that could not be imported.
        served: servers that were forked.
    """

    pid: int
    imports_s: float = 0.0
    memory_bytes: int = 0
    threads: dict[str, int] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    served: int = 0
    refused: str = ""

    def write(self) -> None:
        """Into the working directory, whole or not at all."""
        temporary = Path(FACTS + ".tmp")
        temporary.write_text(json.dumps(asdict(self)), encoding="utf-8")
        temporary.replace(FACTS)


class Engine(BaseException):
    """Raised in a forked engine's process, to leave the supervisor's frames behind."""

    def __init__(self, order: LaunchOrder) -> None:
        super().__init__()
        self.order = order


@dataclass(frozen=True)
class Forked:
    pid: int


# ---------------------------------------------------------------- the parent


def main() -> None:
    order = ParentOrder.from_line(supervisor.first_line())
    guardian, pipe = guard(owned=not order.idle_s)
    facts = ParentFacts(os.getpid())
    began = time.monotonic()
    preload(order, facts)
    forked.close_nvml()
    facts.imports_s = round(time.monotonic() - began, 3)
    settle()
    opened = {number: what for number, what in forked.open_files().items() if number != pipe}
    inspect(facts, opened, guardian)
    if facts.refused:
        facts.write()
        forked.finish(0)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(SOCKET)
    listener.listen(16)
    facts.write()
    try:
        serve(listener, facts, set(opened), order.idle_s)
    except Engine as engine:
        launched = engine.order
    else:
        forked.finish(0)
    forked.fork_instead_of_spawn()
    assert launched.entry is not None
    forked.run_as_main(launched.entry)


def guard(*, owned: bool) -> tuple[int, int]:
    """Fork the guardian, which waits for the end of whoever holds the other end of a pipe.

    That is the owner, who holds our standard input's; if not ``owned``, it is this process alone.
    Returns the guardian's pid and our end, which no child may have; -1 if it is the owner's.
    """
    reader, writer = (os.dup(0), -1) if owned else os.pipe()
    parent, folder = os.getpid(), Path.cwd()
    pid = os.fork()
    null = os.open(os.devnull, os.O_RDWR)
    if pid:
        os.dup2(null, 0)
        os.close(null)
        os.close(reader)
        return pid, writer
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    if writer >= 0:
        os.close(writer)
    while os.read(reader, 4096):
        pass
    if os.getppid() == parent:
        os.kill(parent, signal.SIGKILL)
    for _ in range(500):  # the parent may write into it until it is gone
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            break
        time.sleep(0.01)
    os._exit(0)


def preload(order: ParentOrder, facts: ParentFacts) -> None:
    """Import the engine, and forget its main module, so that it is run as if for the first time."""
    sys.path[:0] = order.path
    for name in (order.module, *order.preload):
        try:
            importlib.import_module(name)
        except Exception as error:
            facts.missing.append(name)
            if name == order.module:
                facts.refused = f"{name} cannot be imported: {type(error).__name__}: {error}"
                break
    sys.modules.pop(order.module, None)
    del sys.path[: len(order.path)]


def settle() -> None:
    """Before the first fork: nothing is left to be written twice, collected, or found again."""
    with contextlib.suppress(ImportError):  # it looks for argv once, and must see the real one
        importlib.import_module("setproctitle").getproctitle()
    sys.stdout.flush()
    sys.stderr.flush()
    gc.collect()
    gc.freeze()  # the collector's marks would copy every page of the parent into each child


def serve(listener: socket.socket, facts: ParentFacts, inherited: set[int], idle_s: float) -> None:
    """Fork a supervisor for each connection, until nothing was asked for ``idle_s`` seconds."""
    used = time.monotonic()
    while not idle_s or time.monotonic() - used < idle_s:
        reap()
        ready, _, _ = select.select([listener], [], [], POLL_S)
        if not ready:
            continue
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.detach()
            supervise(connection.detach(), inherited)
        connection.close()
        used = time.monotonic()
        facts.served += 1
        facts.write()


def reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


# ---------------------------------------------------------------- what is forked


def supervise(connection: int, inherited: set[int]) -> NoReturn:
    """Be the supervisor of one server: orders and events go over the socket ``connection``.

    Raises:
        Engine: in the process that it forks for the engine.
    """
    os.setsid()
    for stream in (0, 1):
        os.dup2(connection, stream)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    close_all_but(inherited)

    def launch(order: LaunchOrder, log: int) -> Forked:
        pid = os.fork()
        if pid == 0:
            try:
                become(order, log, inherited)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            raise Engine(order)
        return Forked(pid)

    try:
        supervisor.main(launch)
    except Engine:
        raise
    except BaseException:
        os._exit(1)
    os._exit(0)


def become(order: LaunchOrder, log: int, inherited: set[int]) -> None:
    """Make this process what a newly started one would be: session, streams, folder, variables,
    command line, random numbers."""
    os.setsid()
    supervisor.die_with_parent()
    forked.default_signals()
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    close_all_but(inherited)  # the supervisor's pipes above all: its guardian waits for their end
    os.chdir(order.cwd)
    os.environ.clear()
    os.environ.update(order.env)
    tempfile.tempdir = None
    show_as(order.argv, order.marker)
    reseed()
    forked.tell_stand_ins()


def show_as(argv: list[str], marker: str) -> None:
    """Let /proc tell this process's own command line and marker.

    Both are read from where the kernel laid the strings of ``exec``, which are the parent's. The
    variables there were replaced before: nobody reads those strings any more.
    """
    fields = processes.read(os.getpid(), "stat").rpartition(b")")[2].split()
    arguments, arguments_end, variables, variables_end = map(int, fields[45:49])
    if not 0 < arguments < arguments_end <= variables < variables_end:
        raise RuntimeError("the kernel does not tell where the command line is")
    room = arguments_end - arguments
    shown = b"".join(os.fsencode(word) + b"\0" for word in argv)[: room - 1]
    ctypes.memset(arguments, 0, room)
    ctypes.memmove(arguments, shown, len(shown))
    name = MARKER_VARIABLE.encode() + b"="
    before = ctypes.string_at(variables, variables_end - variables)
    start = before.find(name)
    value = marker.encode()
    if start < 0 or len(before[start:].split(b"\0", 1)[0]) != len(name) + len(value):
        raise RuntimeError("the parent was started without room for a marker")
    ctypes.memmove(variables + start + len(name), value, len(value))


def reseed() -> None:
    """Random numbers of its own where a new process has them; torch's are the same in every new
    process, and are set back to that."""
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    if "torch" in sys.modules:
        generator = sys.modules["torch"].default_generator
        generator.manual_seed(generator.initial_seed())


def close_all_but(kept: set[int]) -> None:
    for number in forked.open_files():
        if number not in kept:
            os.close(number)


# ---------------------------------------------------------------- may it be forked?


def inspect(facts: ParentFacts, opened: dict[int, str], guardian: int) -> None:
    """Fill in ``facts``; ``refused`` where a fork would share or lack something."""
    rollup = processes.read(os.getpid(), "smaps_rollup").decode()
    pss = [line.split()[1] for line in rollup.splitlines() if line.startswith("Pss:")]
    facts.memory_bytes = int(pss[0]) * 1024 if pss else 0
    facts.threads = threads()
    facts.files = sorted(opened.values())
    reasons = [
        f"its imports started {count} threads of {owner}"
        for owner, count in facts.threads.items()
        if not any(name in owner for name in FORK_SAFE)
    ]
    reasons += [
        f"its imports opened {what}" for n, what in opened.items() if not _harmless(n, what)
    ]
    children = processes.descendants(os.getpid()).keys() - {guardian}
    reasons += [f"its imports started process {processes.label(pid)}" for pid in children]
    if forked.cuda_initialised():
        reasons.append("its imports initialised CUDA")
    facts.refused = facts.refused or "; ".join(reasons)


def _harmless(number: int, what: str) -> bool:
    """Files that can only be read, and an eventfd: with no thread behind it, it stands for nothing
    (SGLang 0.5.23 makes a ZeroMQ context without a socket as it is imported)."""
    if what in (os.devnull, "/dev/urandom", "anon_inode:[eventfd]"):
        return True
    flags = processes.read(os.getpid(), f"fdinfo/{number}").partition(b"flags:")[2].split()
    read_only = bool(flags) and int(flags[0], 8) & os.O_ACCMODE == os.O_RDONLY
    return read_only and S_ISREG(os.fstat(number).st_mode)


def threads() -> dict[str, int]:
    """{library: number of its threads}, the main thread apart.

    A thread with a name of ``FORK_SAFE`` is told by it. Any other belongs to the libraries whose
    code its stack returns to, libc aside: the words of the stack that point into code, from its
    stack pointer on (/proc/PID/task/TID/syscall).
    """
    code, stacks = [], []
    for line in processes.read(os.getpid(), "maps", 64 << 20).decode().splitlines():
        fields = line.split(None, 5)
        low, high = (int(x, 16) for x in fields[0].split("-"))
        name = os.path.basename(fields[5]) if len(fields) > 5 else ""  # noqa: PTH119
        stacks.append((low, high))
        if "x" in fields[1] and name and not name.startswith(("libc.so", "libc-", "ld-", "[")):
            code.append((low, high, name))
    counts: dict[str, int] = {}
    for task in os.listdir("/proc/self/task"):  # noqa: PTH208
        if int(task) == os.getpid():
            continue
        words = processes.read(os.getpid(), f"task/{task}/syscall").split()
        owner = processes.read(os.getpid(), f"task/{task}/comm").decode(errors="replace").strip()
        if owner not in FORK_SAFE:
            owner = _owner(int(words[-2], 16), stacks, code) if len(words) > 2 else ""
        counts[owner or "an unknown library"] = counts.get(owner or "an unknown library", 0) + 1
    return counts


def _owner(pointer: int, stacks: list[tuple[int, int]], code: list[tuple[int, int, str]]) -> str:
    """The library named most often on the stack that ``pointer`` points to; "" if none is."""
    limit = next((high for low, high in stacks if low <= pointer < high), pointer)
    with open("/proc/self/mem", "rb", buffering=0) as memory:  # noqa: PTH123
        memory.seek(pointer)
        stack = memory.read(min(limit - pointer, 16384))
    seen: dict[str, int] = {}
    for start in range(0, len(stack) - 7, 8):
        address = int.from_bytes(stack[start : start + 8], sys.byteorder)
        for low, high, name in code:
            if low <= address < high:
                seen[name] = seen.get(name, 0) + 1
    return max(seen, key=lambda name: seen[name], default="")
