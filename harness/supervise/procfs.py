"""Reading /proc: who descends from whom, who carries a marker, who maps which shared memory.

Standard library only, and every read may fail: processes end while they are looked at.
"""

from __future__ import annotations

import os
from pathlib import Path

SHM = "/dev/shm/"  # noqa: S108 - it is looked at, nothing is created there


def pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208


def read(pid: int, name: str, limit: int = 1 << 20) -> bytes:
    """Contents of ``/proc/PID/name``; empty when it cannot be read."""
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:  # noqa: PTH123
            return file.read(limit)
    except OSError:
        return b""


def stat(pid: int) -> tuple[str, int, int] | None:
    """(state, parent pid, start time in clock ticks after boot); None if there is no such one."""
    raw = read(pid, "stat")
    if not raw:
        return None
    fields = raw[raw.rfind(b")") + 2 :].split()
    return fields[0].decode(), int(fields[1]), int(fields[19])


def alive(pid: int, start: int | None = None) -> bool:
    """Whether the process runs: a zombie does not, nor does a later one with the same id."""
    status = stat(pid)
    return status is not None and status[0] not in "ZX" and (start is None or status[2] == start)


def command(pid: int) -> str:
    text = read(pid, "cmdline", 4096).replace(b"\0", b" ").decode("utf-8", "replace").strip()
    return f"{pid} {text[:120]}" if text else f"{pid} {read(pid, 'comm').decode().strip()}"


def descendants(root: int) -> dict[int, int]:
    """{pid: start time} of all living descendants of ``root``, without itself."""
    parents: dict[int, tuple[int, int]] = {}
    for pid in pids():
        status = stat(pid)
        if status is not None and status[0] not in "ZX":
            parents[pid] = status[1], status[2]
    living: dict[int, int] = {}
    frontier = {root}
    while frontier:
        children = {p for p, (ppid, _) in parents.items() if ppid in frontier} - {root}
        frontier = children - living.keys()
        living.update({p: parents[p][1] for p in frontier})
    return living


def marked(marker: str) -> dict[int, int]:
    """{pid: start time} of every process whose environment holds ``marker``, but this one."""
    needle = marker.encode()
    carriers = {}
    for pid in pids():
        if pid != os.getpid() and needle in read(pid, "environ"):
            status = stat(pid)
            if status is not None and status[0] not in "ZX":
                carriers[pid] = status[2]
    return carriers


def shared_memory(pid: int) -> set[str]:
    """Entries of /dev/shm that the process maps or holds open, by full path.

    Compared by inode: glibc makes a semaphore under a passing name and links it to its final one,
    so that /proc/PID/maps knows only a name that is deleted.
    """
    inodes = set()
    for line in read(pid, "maps", 16 << 20).splitlines():
        if SHM.encode() in line:
            inodes.add(int(line.split(None, 5)[4]))
    try:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            if str(link.readlink()).startswith(SHM):
                inodes.add(link.stat().st_ino)
    except OSError:
        pass  # gone, or another user's
    if not inodes:
        return set()
    try:
        with os.scandir(SHM) as entries:
            return {entry.path for entry in entries if entry.inode() in inodes}
    except OSError:
        return set()


def shm_names() -> set[str]:
    """Names directly below /dev/shm."""
    try:
        return set(os.listdir(SHM))  # noqa: PTH208
    except OSError:
        return set()


def shm_name(entry: str) -> str:
    """The name directly below /dev/shm that the full path ``entry`` belongs to."""
    return entry.removeprefix(SHM).split("/")[0]
