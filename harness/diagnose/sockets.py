"""From a host and port to the processes that listen there, through /proc alone.

The kernel lists listening sockets by inode for each network namespace (/proc/PID/net/tcp, columns
as in proc_net_tcp.txt of the kernel's documentation); who holds an inode stands in /proc/PID/fd.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import psutil
from mmrepro.probes.connections import LISTEN, rows
from mmrepro.supervise import procfs


@dataclass(frozen=True)
class Listener:
    address: str
    port: int
    uid: int
    inode: int


def parse_listeners(table: str) -> list[Listener]:
    """The listening sockets of a /proc/net/tcp or tcp6; lines that are none are skipped."""
    sockets = []
    for row in rows(table):
        if row.state == LISTEN:
            with contextlib.suppress(ValueError):
                address = _address(row.address)
                sockets.append(Listener(address, row.port, row.uid, row.inode))
    return sockets


def _address(hexadecimal: str) -> str:
    """An address as the kernel prints it: 32-bit words in the host's own byte order."""
    raw = bytes.fromhex(hexadecimal)
    words = struct.unpack(f">{len(raw) // 4}I", raw)
    return str(ipaddress.ip_address(b"".join(struct.pack("=I", word) for word in words)))


def listeners(port: int, pid: int | str = "self") -> list[Listener]:
    """Sockets that listen on ``port`` in the network namespace of ``pid``."""
    listening = []
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            table = Path(f"/proc/{pid}/net/{name}").read_text(encoding="ascii", errors="replace")
            listening += [s for s in parse_listeners(table) if s.port == port]
    return listening


def owners(inodes: Iterable[int]) -> tuple[list[int], int]:
    """Processes that hold one of the sockets, and how many processes could not be looked into."""
    wanted = {f"socket:[{inode}]" for inode in inodes}
    pids, closed = [], 0
    for pid in procfs.pids():
        try:
            names = os.listdir(f"/proc/{pid}/fd")  # noqa: PTH208
        except OSError:
            closed += procfs.stat(pid) is not None
            continue
        for name in names:
            try:
                if os.readlink(f"/proc/{pid}/fd/{name}") in wanted:  # noqa: PTH115
                    pids.append(pid)
                    break
            except PermissionError:
                closed += 1
                break
            except OSError:
                continue
    return pids, closed


def addresses(host: str) -> list[str]:
    """What ``host`` resolves to; empty when it does not."""
    try:
        entries = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return list(dict.fromkeys(str(entry[4][0]).partition("%")[0] for entry in entries))


def is_ours(address: str) -> bool:
    """Whether an address belongs to this network namespace."""
    parsed = ipaddress.ip_address(address)
    if parsed.is_loopback or parsed.is_unspecified:
        return True
    return any(
        entry.address.partition("%")[0] == address
        for entries in psutil.net_if_addrs().values()
        for entry in entries
    )


def namespace_with(address: str) -> int | None:
    """A process in another network namespace that owns ``address``: a container's, seen from its
    host. Needs the right to look into it."""
    seen = {_namespace("self")}
    for pid in procfs.pids():
        namespace = _namespace(pid)
        if not namespace or namespace in seen:
            continue
        seen.add(namespace)
        if owns(procfs.read(pid, "net/fib_trie").decode("ascii", "replace"), address):
            return pid
    return None


def owns(fib_trie: str, address: str) -> bool:
    """Whether a namespace's /proc/net/fib_trie has ``address`` as one of its own."""
    lines = [line.strip() for line in fib_trie.splitlines()]
    return any(
        line == f"|-- {address}" and following.startswith("/32 host LOCAL")
        for line, following in pairwise(lines)
    )


def _namespace(pid: int | str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/net")  # noqa: PTH115
    except OSError:
        return ""
