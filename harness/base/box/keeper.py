"""Keeps a box from outside: starts it, bounds it, connects to it, and ends all of it.

Runs as ``python -I keeper.py LIFELINE``, a process apart from mmrepro: bubblewrap dies
with the thread that started it (``--die-with-parent``), and mmrepro's threads come and
go. LIFELINE is a descriptor of a socket to mmrepro. Its first line is the
:class:`KeeperOrder`; each further line is a port that mmrepro wants to reach in the
box; its end, however mmrepro ended, is the end of the box. Lines back are events:
``{"event": "exposed"}``, ``{"event": "over", "why": …}``.

The box has this process's standard streams. This process exits as bubblewrap does.

Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __package__:
    from mmrepro.base import processes
    from mmrepro.base.box import inside
else:  # run as a script: no package is imported
    sys.path[:0] = [str(folder) for folder in Path(__file__).resolve().parents[:2]]
    import inside  # type: ignore[import-not-found,no-redef]
    import processes  # type: ignore[import-not-found,no-redef]

    del sys.path[:2]

_WATCH_S = 0.05
"""How often files are counted, which is cheap; memory and processes are every fourth
time. What a box can do meanwhile is the machine's to bear."""
_CGROUPS = Path("/sys/fs/cgroup")
_MEMORY_FIRST = "memory.limit_in_bytes"
"""The file with the bound of memory, in the first version of cgroups."""
_COUNTED_EACH = 4
_FOLDERS = ("tmp", "box", "dev/shm")
REMOVAL_S = 5.0
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class KeeperOrder:
    """The first line.

    Attributes:
        command: bubblewrap's.
        descriptors: open files for it; closed here once it has started.
        folders: removed at the end, with all that is in them.
        door: path of the Unix socket that the box answers at; "": none.
        memory: bytes that its processes may hold together.
        files_in_memory: bytes that files in its temporary folders may take besides.
        processes: that there may be, threads included.
        inodes: files that its temporary folders may hold.
    """

    command: list[str]
    descriptors: list[int]
    folders: list[str]
    door: str
    memory: int
    files_in_memory: int
    processes: int
    inodes: int


class _Keeper:
    def __init__(self, order: KeeperOrder, lifeline: socket.socket) -> None:
        self.order = order
        self.lifeline = lifeline
        self.cgroups = _Cgroups(order)
        self.listeners: list[socket.socket] = []
        self.root: Path | None = None
        self.watched = 0
        inside.LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        # A Ctrl-C of the terminal is mmrepro's to answer.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self.box = subprocess.Popen(
            order.command,
            env={},  # all in the box read that of its process 1
            pass_fds=order.descriptors,
            start_new_session=True,
            preexec_fn=self.cgroups.join,
        )
        for descriptor in order.descriptors:
            os.close(descriptor)

    def run(self) -> int:
        """Wait for the end of the box or of mmrepro. Returns the box's exit code."""
        pending = b""
        while self.box.poll() is None:
            ready, _, _ = select.select([self.lifeline], [], [], _WATCH_S)
            if ready:
                data = self.lifeline.recv(4096)
                if not data:
                    break
                *lines, pending = (pending + data).split(b"\n")
                for line in lines:
                    self.expose(int(line))
            if why := self.exceeds():
                self.say("over", why=why)
                break
        return self.end()

    def end(self) -> int:
        """End every process of the box. bubblewrap's death is the death of its process
        1, and the kernel ends all others of its pid namespace with that one."""
        for listener in self.listeners:
            listener.close()
        if self.box.poll() is None:
            self.box.kill()
        code = self.box.wait()
        # What bubblewrap leaves becomes this process's child: it has ended once there
        # is none.
        deadline = time.monotonic() + REMOVAL_S
        with contextlib.suppress(ChildProcessError):
            while time.monotonic() < deadline:
                if not os.waitpid(-1, os.WNOHANG)[0]:
                    time.sleep(0.005)
        self.cgroups.remove()
        return 128 - code if code < 0 else code

    def exceeds(self) -> str:
        """What the box has too much of; "": nothing."""
        if self.files_in_memory() > self.order.inodes:
            return f"it made more than {self.order.inodes} files"
        # The kernel counts, and has refused or killed where it counts.
        if self.cgroups.bound_all:
            return self.cgroups.exceeded(self.order)
        self.watched += 1
        if self.watched % _COUNTED_EACH:
            return ""
        held = shared = tasks = 0
        pids = processes.descendants(self.box.pid)
        for pid in pids:
            status = processes.read(pid, "status")
            held += _field_kib(status, b"RssAnon:") * 1024
            shared += _field_kib(status, b"RssShmem:") * 1024
            tasks += _field_kib(status, b"Threads:")
        if tasks > self.order.processes:
            return _too_many(self.order)
        most = self.order.memory
        # Files in memory have a bound of their own; what is beyond has no name, and
        # nothing else bounds it.
        named = self.order.files_in_memory
        if held + shared > most + named:
            # Each process counts a shared page as its own, so now by its share.
            shared = sum(_share_of_shared(pid) for pid in pids)
        beyond = max(0, shared - named)
        return _too_much(self.order) if held + beyond > most else ""

    def files_in_memory(self) -> int:
        """How many files the box's temporary folders hold: a tmpfs bounds their bytes
        alone.

        The folders are mount points in a root that the box cannot write, so that no
        link stands in their place."""
        if self.root is None:
            self.root = self.find_root()
        made = 0
        if self.root is not None:
            with contextlib.suppress(OSError):
                for folder in _FOLDERS:
                    system = os.statvfs(self.root / folder)
                    made += system.f_files - system.f_ffree
        return made

    def find_root(self) -> Path | None:
        """The box's root, as one of its processes has it; None: it is not built yet."""
        for pid in processes.descendants(self.box.pid):
            root = Path(f"/proc/{pid}/root")
            with contextlib.suppress(OSError):
                if (root / "box").is_dir() and not (root / "tmp").samefile("/tmp"):  # noqa: S108
                    return root
        return None

    def expose(self, port: int) -> None:
        """Connect ``port`` of this machine's loopback with the same port of the
        box's."""
        try:
            listener = socket.create_server(("127.0.0.1", port), backlog=128)
        except OSError as error:
            self.say("exposed", port=port, why=str(error.strerror))
            return
        self.listeners.append(listener)
        preface = f"{port}\n".encode()
        relay = inside.Relay(
            listener, lambda _: inside.onward(self.order.door, preface)
        )
        threading.Thread(target=relay.accept, daemon=True).start()
        self.say("exposed", port=port, why="")

    def say(self, event: str, **facts: Any) -> None:
        with contextlib.suppress(OSError):
            self.lifeline.sendall(
                json.dumps({"event": event, **facts}).encode() + b"\n"
            )


def _field_kib(status: bytes, name: bytes) -> int:
    """The number behind ``name`` in /proc/PID/status; 0: there is none."""
    words = status.partition(b"\n" + name)[2].split(None, 1)
    return int(words[0]) if words else 0


def _share_of_shared(pid: int) -> int:
    """A process's part of the memory that it shares with others, in bytes."""
    rollup = processes.read(pid, "smaps_rollup")
    return _field_kib(rollup, b"Pss_Shmem:") * 1024


def _too_many(order: KeeperOrder) -> str:
    return f"it had more than {order.processes} processes and threads"


def _too_much(order: KeeperOrder) -> str:
    return f"it held more than {order.memory >> 20} MiB of memory"


# ------------------------------------------------------------------------------ cgroups


class _Cgroups:
    """Groups of the kernel's that bound a box's memory and processes, of either
    hierarchy, where mmrepro may make them (cgroups(7)).

    Where it may not, the limits of each process and the watch above are what there is.

    Attributes:
        bound_all: whether memory and processes are both bounded.
    """

    def __init__(self, order: KeeperOrder) -> None:
        name = f"mmrepro-box-{os.getpid()}"
        memory = order.memory + order.files_in_memory
        if (_CGROUPS / "cgroup.controllers").is_file():
            bounds = [
                (_CGROUPS / name, "memory.max", memory),
                (_CGROUPS / name, "pids.max", order.processes),
            ]
        else:
            own = _own_groups()
            bounds = [
                (
                    _CGROUPS / "memory" / own.get("memory", "") / name,
                    _MEMORY_FIRST,
                    memory,
                ),
                (
                    _CGROUPS / "pids" / own.get("pids", "") / name,
                    "pids.max",
                    order.processes,
                ),
            ]
        self.folders: list[Path] = []
        bound = 0
        for folder, file, value in bounds:
            try:
                folder.mkdir(exist_ok=True)
            except OSError:
                continue
            if folder not in self.folders:
                self.folders.append(folder)
            with contextlib.suppress(OSError):  # a controller that is not enabled here
                (folder / file).write_text(str(value))
                bound += 1
        self.bound_all = bound == len(bounds)

    def join(self) -> None:
        """Enter them: called in the child, before it becomes bubblewrap."""
        for folder in self.folders:
            with contextlib.suppress(OSError):
                (folder / "cgroup.procs").write_text("0")

    def exceeded(self, order: KeeperOrder) -> str:
        """What the kernel had to refuse or to kill for; "": nothing."""
        for folder in self.folders:
            if self._count(folder / "pids.events", "max"):
                return _too_many(order)
            for file in ("memory.events", "memory.oom_control"):
                if self._count(folder / file, "oom_kill"):
                    return _too_much(order)
        return ""

    def remove(self) -> None:
        """Remove them once the kernel has let their last process go."""
        deadline = time.monotonic() + REMOVAL_S
        for folder in self.folders:
            while folder.exists() and time.monotonic() < deadline:
                with contextlib.suppress(OSError):
                    folder.rmdir()
                    break
                time.sleep(0.01)

    @staticmethod
    def _count(file: Path, name: str) -> int:
        """The number behind ``name`` in a file of counters; 0: there is none."""
        try:
            rows = [line.split() for line in file.read_text().splitlines()]
        except OSError:
            return 0
        return next(
            (int(row[1]) for row in rows if row[:1] == [name] and len(row) > 1), 0
        )


def _own_groups() -> dict[str, str]:
    """{controller: path of this process's group} of the first hierarchy: a box stays
    within what bounds mmrepro itself."""
    groups: dict[str, str] = {}
    for line in (
        processes.read("self", "cgroup").decode("utf-8", "replace").splitlines()
    ):
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            groups[controller] = path.lstrip("/")
    return groups


def main() -> int:
    lifeline = socket.socket(fileno=int(sys.argv[1]))
    lifeline.set_inheritable(False)
    first = lifeline.makefile("rb", buffering=0).readline()
    if not first:
        return 1  # mmrepro ended before it gave its order
    order = KeeperOrder(**json.loads(first))
    try:
        return _Keeper(order, lifeline).run()
    finally:
        for folder in order.folders:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
