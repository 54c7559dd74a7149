"""A fork server: it has imported an engine once and forks a server for each start.

Runs under the engine's interpreter, in a folder of its own, and reads a
:class:`ForkServerOrder` from standard input. It imports, looks whether what it became
can be forked, writes ``facts.json``, and listens on the Unix socket ``socket``. Each
connection becomes a guardian and a supervisor (supervisor.py), which forks the engine
in turn, so that a forked server is owned and ended as any other is. A guardian of its
own, forked before the imports, ends it and removes its folder when the owner is gone,
however that ended.

Standard library only; never a thread.
"""

from __future__ import annotations

import contextlib
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
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG
from typing import NoReturn

if __package__:
    from mmrepro.base import processes
    from mmrepro.engines.supervise import forked, supervisor
    from mmrepro.engines.supervise.supervisor import (
        ForkServerFacts,
        ForkServerOrder,
        LaunchOrder,
    )
else:  # run under the engine's interpreter, its neighbours beside it
    import forked  # type: ignore[import-not-found,no-redef]
    import supervisor  # type: ignore[import-not-found,no-redef]
    from supervisor import (  # type: ignore[no-redef]
        ForkServerFacts,
        ForkServerOrder,
        LaunchOrder,
    )

    processes = supervisor.processes

_FORK_SAFE = ("jemalloc_bg_thd",)
"""Names of threads that may run while the process forks. jemalloc's purging thread,
which Arrow starts, is stopped before a fork and marked as ended in the child
(src/background_thread.c, background_thread_postfork_child)."""
_JOINED_S = 1.0
_POLL_S = 0.5
_LOG_S = 10.0


class _RunEngine(BaseException):
    """Raised in a forked engine's process, to leave the supervisor's frames behind."""

    def __init__(self, order: LaunchOrder) -> None:
        super().__init__()
        self.order = order


@dataclass(frozen=True)
class _Forked:
    pid: int


# ---------------------------------------------------------------- the fork server


def main() -> None:
    order = ForkServerOrder(**json.loads(supervisor.first_line()))
    guardian, pipe = _guard(owned=not order.idle_s)
    facts = ForkServerFacts(
        pid := os.getpid(), processes.born(pid), order.label, order.idle_s
    )
    began = time.monotonic()
    preload(order, facts)
    forked.close_nvml()
    facts.imports_s = round(time.monotonic() - began, 3)
    _settle()
    ours = {pipe, order.listener, order.facts_fd}
    opened = {
        number: what
        for number, what in forked.open_files().items()
        if number not in ours
    }
    _inspect(facts, opened, guardian)
    if facts.refused:
        facts.write(order.facts_fd)
        forked.finish(0)
    if order.boxed:
        listener = socket.socket(fileno=order.listener)
    else:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(supervisor.SOCKET)
        listener.listen(16)
    facts.write(order.facts_fd)
    try:
        serve(listener, facts, set(opened), order)
    except _RunEngine as engine:
        launched = engine.order
    else:
        forked.finish(0)
    forked.fork_instead_of_spawn()
    entry = launched.entry
    assert entry is not None
    forked.run_as_main(entry.module, entry.arguments, entry.path)


def _guard(*, owned: bool) -> tuple[int, int]:
    """Fork the guardian, which waits for the end of whoever holds the other end of a
    pipe.

    That is the owner, who holds our standard input's; if not ``owned``, it is this
    process alone. Returns the guardian's pid and our end, which no child may have; -1
    if it is the owner's."""
    reader, writer = (os.dup(0), -1) if owned else os.pipe()
    parent, folder = os.getpid(), Path.cwd()
    if pid := os.fork():
        os.close(reader)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        return pid, writer
    supervisor.stand_aside()
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


def preload(order: ForkServerOrder, facts: ForkServerFacts) -> None:
    """Import the engine, and forget its main module, so that it is run as if for the
    first time."""
    sys.path[:0] = order.path
    for name in (order.module, *order.preload):
        try:
            importlib.import_module(name)
        except Exception as error:
            facts.missing.append(name)
            if name == order.module:
                facts.refused = (
                    f"{name} cannot be imported: {type(error).__name__}: {error}"
                )
                break
    sys.modules.pop(order.module, None)
    del sys.path[: len(order.path)]


def _settle() -> None:
    """Before the first fork: nothing is left to be written twice, collected, or found
    again."""
    with contextlib.suppress(ImportError):
        # It finds its room in front of the variables, which a forked server has
        # elsewhere.
        importlib.import_module("setproctitle").getproctitle()
    sys.stdout.flush()
    sys.stderr.flush()
    gc.collect()
    gc.freeze()  # the collector's marks would copy every page into each child


def serve(
    listener: socket.socket,
    facts: ForkServerFacts,
    inherited: set[int],
    order: ForkServerOrder,
) -> None:
    """Fork a guardian for each connection, until nothing was asked for ``idle_s``
    seconds."""
    used = time.monotonic()
    while not order.idle_s or time.monotonic() - used < order.idle_s:
        _reap()
        ready, _, _ = select.select([listener], [], [], _POLL_S)
        if not ready:
            continue
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.detach()
            log = _received_log(connection) if order.boxed else -1
            supervise(connection.detach(), inherited, log)
        connection.close()
        used = time.monotonic()
        facts.served += 1
        facts.write(order.facts_fd)


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


# ---------------------------------------------------------------- what is forked


def _received_log(connection: socket.socket) -> int:
    """The open file for the server's output: it comes before the order, with one byte
    of data."""
    connection.settimeout(_LOG_S)
    _, descriptors, _, _ = socket.recv_fds(connection, 1, 1)
    connection.settimeout(None)
    if not descriptors:
        os._exit(1)
    return descriptors[0]


def supervise(connection: int, inherited: set[int], log: int = -1) -> NoReturn:
    """Be guardian and supervisor of one server; ``connection``: the socket of orders
    and events.

    ``log``: the open file for the server's output; -1: the order has its path.

    Raises:
        Engine: in the process that it forks for the engine.
    """
    os.setsid()
    for stream in (0, 1):
        os.dup2(connection, stream)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    _close_all_but(inherited | {log})

    def launch(order: LaunchOrder, log: int) -> _Forked:
        pid = os.fork()
        if pid == 0:
            try:
                become(order, log, inherited)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            raise _RunEngine(order)
        return _Forked(pid)

    try:
        supervisor.main(launch, log)
    except _RunEngine:
        raise
    except BaseException:
        os._exit(1)
    os._exit(0)


def become(order: LaunchOrder, log: int, inherited: set[int]) -> None:
    """Make this process what a newly started one would be, but for its command line:
    session, streams, folder, variables, random numbers."""
    os.setsid()
    supervisor.die_with_parent()
    forked.default_signals()
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    _close_all_but(inherited)  # above all the pipe whose end the guardian waits for
    os.chdir(order.cwd)
    os.environ.clear()
    os.environ.update(order.env)
    tempfile.tempdir = None
    _reseed()
    forked.tell_stand_ins()


def _reseed() -> None:
    """Random numbers of its own where a new process has them; torch's are the same in
    every new process, and are set back to that."""
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    if "torch" in sys.modules:
        generator = sys.modules["torch"].default_generator
        generator.manual_seed(generator.initial_seed())


def _close_all_but(kept: set[int]) -> None:
    for number in forked.open_files():
        if number not in kept:
            os.close(number)


# ---------------------------------------------------------------- may it be forked?


def _inspect(facts: ForkServerFacts, opened: dict[int, str], guardian: int) -> None:
    """Fill in ``facts``; ``refused`` where a fork would share or lack something."""
    rollup = processes.read(os.getpid(), "smaps_rollup").decode()
    pss = [line.split()[1] for line in rollup.splitlines() if line.startswith("Pss:")]
    facts.memory_bytes = int(pss[0]) * 1024 if pss else 0
    facts.threads = threads()
    facts.files = sorted(opened.values())
    reasons = [
        f"its imports started {count} threads of unknown use, called {name!r}"
        for name, count in facts.threads.items()
        if name not in _FORK_SAFE
    ]
    facts.cold = bool(reasons)
    reasons += [
        f"its imports opened {what}"
        for n, what in opened.items()
        if not _harmless(n, what)
    ]
    children = processes.descendants(os.getpid()).keys() - {guardian}
    reasons += [
        f"its imports started process {processes.label(pid)}" for pid in children
    ]
    if forked.cuda_initialised():
        reasons.append("its imports initialised CUDA")
    facts.refused = facts.refused or "; ".join(reasons)


def _harmless(number: int, what: str) -> bool:
    """Files that can only be read, and an eventfd: with no thread behind it, it stands
    for nothing (SGLang 0.5.23 makes a ZeroMQ context without a socket as it is
    imported)."""
    if what in (os.devnull, "/dev/urandom", "anon_inode:[eventfd]"):
        return True
    flags = (
        processes.read(os.getpid(), f"fdinfo/{number}").partition(b"flags:")[2].split()
    )
    read_only = bool(flags) and int(flags[0], 8) & os.O_ACCMODE == os.O_RDONLY
    return read_only and S_ISREG(os.fstat(number).st_mode)


def threads() -> dict[str, int]:
    """{name: number of threads} after a fork, the main thread apart.

    A library with fork handlers may end its threads for a fork and start them again
    when it needs
    them: OpenBLAS does (driver/others/blas_server.c). What a first fork leaves, no
    handler ends."""
    if (pid := os.fork()) == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    deadline = time.monotonic() + _JOINED_S
    while True:
        tasks = processes.threads(os.getpid())
        tasks.pop(os.getpid(), None)
        found = Counter(task.stat.name for task in tasks.values())
        # A thread that was joined is listed for a moment longer.
        if found.keys() <= {*_FORK_SAFE} or time.monotonic() > deadline:
            return dict(found)
        time.sleep(0.01)
