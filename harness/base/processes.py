"""Processes, their threads, files and TCP sockets: the one reader of /proc.

No read raises for a process that goes away meanwhile. Standard library only: the
supervisor and a fork server load this file under an engine's interpreter, which need
not have psutil. Measured on a tree of 62 processes, psutil takes 20 times as long to
walk it and 12 times as long to read its states and times; it has no thread states, wait
channels, or sockets of another network namespace."""

from __future__ import annotations

import ipaddress
import os
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

SHM = "/dev/shm/"  # noqa: S108 - it is looked at, nothing is created there
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
MAX_BYTES = 1 << 20
MAPS_BYTES = _TABLE_BYTES = 16 << 20
LISTEN, ESTABLISHED, CLOSE_WAIT = "0A", "01", "08"

# /proc/PID/stat as man proc_pid_stat numbers it, less the pid and the name before the
# last ")".
_STATE, _PPID, _UTIME, _STIME, _THREADS, _STARTTIME, _RSS = 0, 1, 11, 12, 17, 19, 21


class Stat(NamedTuple):
    """One line of /proc/PID/stat or /proc/PID/task/TID/stat; times in clock ticks."""

    pid: int
    name: str
    state: str
    ppid: int
    user_ticks: int
    system_ticks: int
    threads: int
    start_ticks: int
    rss_bytes: int

    @property
    def ended(self) -> bool:
        """Whether it only waits to be reaped."""
        return self.state in ("Z", "X")


class Thread(NamedTuple):
    """A thread's stat, how long it waited for a core, and its context switches."""

    stat: Stat
    queued_s: float
    voluntary: int
    involuntary: int


class Socket(NamedTuple):
    """A row of /proc/net/tcp or tcp6 (proc_net_tcp.txt of the kernel's
    documentation)."""

    words: str
    """The local address in hexadecimal: 32-bit words in the host's own byte order."""
    port: int
    peer_port: int
    state: str
    unread: int
    uid: int
    inode: int

    @property
    def address(self) -> str:
        """For people, an IPv4 address as such in either table; empty where the words
        are none."""
        try:
            raw = bytes.fromhex(self.words)
            words = struct.unpack(f">{len(raw) // 4}I", raw)
            found = ipaddress.ip_address(
                b"".join(struct.pack("=I", word) for word in words)
            )
        except (ValueError, struct.error):
            return ""
        return str(getattr(found, "ipv4_mapped", None) or found)


# ---------------------------------------------------------------- reading


def pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208


def read(pid: int | str, name: str, limit: int = MAX_BYTES) -> bytes:
    """The first ``limit`` bytes of ``/proc/PID/name``; empty when it cannot be read."""
    try:
        handle = os.open(f"/proc/{pid}/{name}", os.O_RDONLY)  # a third of open()'s time
    except OSError:
        return b""
    parts, left = [], limit
    try:
        # The kernel may hand out a page at a time: only an empty answer is the end.
        while left and (part := os.read(handle, min(left, 65536))):
            parts.append(part)
            left -= len(part)
    except OSError:
        return b""  # it ended while it was read
    finally:
        os.close(handle)
    return b"".join(parts)


def link(pid: int | str, name: str) -> str:
    """Return what ``/proc/PID/name`` leads to; empty when that cannot be read."""
    try:
        return os.readlink(f"/proc/{pid}/{name}")  # noqa: PTH115
    except OSError:
        return ""


def files(pid: int | str) -> Iterator[tuple[int, str]]:
    """Each file descriptor, and what it leads to.

    Raises:
        OSError: the process is gone, or is not ours to look into.
    """
    for number in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208
        try:
            target = os.readlink(f"/proc/{pid}/fd/{number}")  # noqa: PTH115
        except PermissionError:
            raise
        except OSError:
            continue  # closed meanwhile
        yield int(number), target


def owner(pid: int) -> int | None:
    """Return the user whose process it is; None: it is gone."""
    try:
        return os.stat(f"/proc/{pid}").st_uid  # noqa: PTH116
    except OSError:
        return None


def memory_cgroup(pid: int) -> str:
    """Return the path of its memory controller's group, of either hierarchy
    (cgroups(7)); "": not known."""
    unified = ""
    for line in read(pid, "cgroup").decode("utf-8", "replace").splitlines():
        _, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if not colon:
            continue
        if "memory" in controllers.split(","):
            return path
        # The line of cgroups v2 names no controllers.
        if not controllers:
            unified = path
    return unified


def environ(pid: int) -> dict[str, str]:
    """Return the variables that it was started with; {}: closed to us, or it has
    ended."""
    words = read(pid, "environ").decode("utf-8", "replace").split("\0")
    return dict(word.split("=", 1) for word in words if "=" in word)


def field(pid: int | str, name: str) -> list[bytes]:
    """Return the words of one line of ``/proc/PID/status``; none where it has no such
    line."""
    return _words(read(pid, "status"), name)


def _words(status: bytes, name: str) -> list[bytes]:
    # A name that a line begins with: others may end with the same letters.
    _, _, behind = (b"\n" + status).partition(b"\n%s:" % name.encode())
    line, _, _ = behind.partition(b"\n")
    return line.split()


def _number(status: bytes, name: str) -> int:
    """Return the number of a line; 0 where there is no such line."""
    return sum(int(word) for word in _words(status, name))


def tracer(pid: int) -> int:
    """Return the process that traces ``pid``; 0 when none does."""
    return _number(read(pid, "status"), "TracerPid")


def parse_stat(content: bytes) -> Stat | None:
    """Read a stat line; None for anything else. The name may itself hold blanks and
    parentheses."""
    opening = content.find(b"(")
    closing = content.rfind(b")")
    if opening < 0 or closing < opening:
        return None
    fields = content[closing + 1 :].split(None, _RSS + 1)
    try:
        return Stat(
            pid=int(content[:opening]),
            name=content[opening + 1 : closing].decode("utf-8", "replace"),
            state=fields[_STATE].decode("ascii", "replace"),
            ppid=int(fields[_PPID]),
            user_ticks=int(fields[_UTIME]),
            system_ticks=int(fields[_STIME]),
            threads=int(fields[_THREADS]),
            start_ticks=int(fields[_STARTTIME]),
            rss_bytes=int(fields[_RSS]) * _PAGE_BYTES,
        )
    except (ValueError, IndexError):
        return None


def stat(pid: int | str, tid: int | None = None) -> Stat | None:
    """Read the state of a process, or of one of its threads; None if there is no such
    one."""
    return parse_stat(read(pid, "stat" if tid is None else f"task/{tid}/stat"))


def alive(pid: int, start: int | None = None) -> bool:
    """Whether the process runs: a zombie does not, nor does a later one with the same
    id."""
    now = stat(pid)
    if now is None or now.ended:
        return False
    return start is None or start == now.start_ticks


def born(pid: int) -> int:
    """Return its start time in clock ticks since boot; 0: it is gone."""
    now = stat(pid)
    return now.start_ticks if now else 0


def now_ticks() -> int:
    """Return the clock ticks since boot, as start times are."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * TICKS_PER_S)


def arguments(pid: int) -> list[str]:
    """Return the command line's words; empty ones are left out."""
    raw = read(pid, "cmdline", 65536)
    return [word.decode("utf-8", "replace") for word in raw.split(b"\0") if word]


def cmdline(pid: int) -> str:
    """Return its arguments joined by blanks, cut at 2000 characters; a title set by
    setproctitle as it is."""
    content = read(pid, "cmdline", 16384)
    return content.replace(b"\0", b" ").decode("utf-8", "replace").strip()[:2000]


def name(pid: int) -> str:
    """Return its name, which the kernel cuts at 15 characters."""
    return read(pid, "comm").decode("utf-8", "replace").strip()


def label(pid: int) -> str:
    """Return its id and command, for a message."""
    return f"{pid} {cmdline(pid)[:120] or name(pid)}"


# ---------------------------------------------------------------- which processes


def table() -> dict[int, Stat]:
    """Read every process, zombies too."""
    stats: dict[int, Stat] = {}
    for pid in pids():
        now = stat(pid)
        if now is not None:  # None: it ended after it was listed
            stats[pid] = now
    return stats


def tree(
    root: int, also: Sequence[int] = (), among: dict[int, Stat] | None = None
) -> list[int]:
    """Return ``root``, ``also`` and all their descendants, zombies too, parents before
    children; those of one parent in the order of their start.

    Args:
        among: the processes that are looked at; all of them by default.
    """
    among = table() if among is None else among
    children: dict[int, list[int]] = {}
    for pid in sorted(among, key=lambda pid: (among[pid].start_ticks, pid)):
        children.setdefault(among[pid].ppid, []).append(pid)

    # A table that is read while processes come and go may hold a circle.
    in_order: dict[int, None] = {}
    todo = [pid for pid in (root, *also) if pid in among]
    while todo:
        pid = todo.pop(0)
        if pid not in in_order:
            in_order[pid] = None
            todo += children.get(pid, ())
    return list(in_order)


def descendants(root: int) -> dict[int, int]:
    """Return {pid: start time} of all living descendants of ``root``, without
    itself."""
    living: dict[int, Stat] = {}
    for pid, now in table().items():
        if not now.ended or pid == root:
            living[pid] = now
    starts = {pid: living[pid].start_ticks for pid in tree(root, among=living)}
    starts.pop(root, None)
    return starts


# ---------------------------------------------------------------- threads


def thread_ids(pid: int) -> list[int]:
    try:
        return sorted(int(name) for name in os.listdir(f"/proc/{pid}/task"))  # noqa: PTH208
    except OSError:
        return []


def threads(pid: int, limit: int = 4096) -> dict[int, Thread]:
    """Read every thread of ``pid``; those that end while we read are left out."""
    by_tid: dict[int, Thread] = {}
    for tid in thread_ids(pid)[:limit]:
        now = stat(pid, tid)
        if now is None:
            continue
        # schedstat: nanoseconds on a core, nanoseconds runnable but without one, time
        # slices.
        schedule = read(pid, f"task/{tid}/schedstat").split()
        queued_ns = int(schedule[1]) if len(schedule) >= 2 else 0
        status = read(pid, f"task/{tid}/status")
        voluntary = _number(status, "voluntary_ctxt_switches")
        involuntary = _number(status, "nonvoluntary_ctxt_switches")
        by_tid[tid] = Thread(now, queued_ns / 1e9, voluntary, involuntary)
    return by_tid


# ---------------------------------------------------------------- shared memory


def shared_memory(pid: int) -> set[str]:
    """Return the entries of /dev/shm that the process maps or holds open, by full path.

    Compared by inode: glibc makes a semaphore under a passing name and links it to its
    final one, so that /proc/PID/maps knows only a name that is deleted."""
    inodes: set[int] = set()
    for line in read(pid, "maps", MAPS_BYTES).splitlines():
        if SHM.encode() in line:
            inodes.add(int(line.split(None, 5)[4]))
    try:
        for number, target in files(pid):
            if target.startswith(SHM):
                inodes.add(os.stat(f"/proc/{pid}/fd/{number}").st_ino)  # noqa: PTH116
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


# ---------------------------------------------------------------- TCP sockets


def rows(text: str) -> Iterator[Socket]:
    """The sockets of a /proc/net/tcp or tcp6; lines that are none are skipped."""
    for line in text.splitlines():
        fields = line.split()
        try:
            words, _, port = fields[1].partition(":")
            peer = int(fields[2].partition(":")[2], 16)
            unread = int(fields[4].partition(":")[2], 16)
            uid, inode = int(fields[7]), int(fields[9])
            yield Socket(words, int(port, 16), peer, fields[3], unread, uid, inode)
        except (IndexError, ValueError):
            continue


def sockets(pid: int | str = "self") -> list[Socket] | None:
    """Read the TCP sockets in the network namespace of ``pid``; None: no table can be
    read."""
    texts = [read(pid, f"net/{name}", _TABLE_BYTES) for name in ("tcp", "tcp6")]
    if not any(texts):
        return None
    sockets: list[Socket] = []
    for text in texts:
        sockets += rows(text.decode("ascii", "replace"))
    return sockets


def holders(inodes: Iterable[int]) -> tuple[list[int], int]:
    """Return the processes that hold one of the sockets, and how many processes could
    not be looked into."""
    wanted = {f"socket:[{inode}]" for inode in inodes}
    holding: list[int] = []
    closed = 0
    for pid in pids():
        try:
            if any(target in wanted for _, target in files(pid)):
                holding.append(pid)
        except OSError:
            # One that has ended meanwhile holds nothing any more.
            closed += stat(pid) is not None
    return holding, closed
