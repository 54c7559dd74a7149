"""From a host and port to the sockets that listen there, in our network namespace or another."""

from __future__ import annotations

import ipaddress
import socket
from itertools import pairwise

import psutil
from mmrepro.base import processes
from mmrepro.base.processes import Socket


def listeners(port: int, pid: int | str = "self") -> list[Socket]:
    """Sockets that listen on ``port`` in the network namespace of ``pid``."""
    known = processes.sockets(pid) or []
    return [s for s in known if s.port == port and s.state == processes.LISTEN]


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
    seen = {processes.link("self", "ns/net")}
    for pid in processes.pids():
        namespace = processes.link(pid, "ns/net")
        if not namespace or namespace in seen:
            continue
        seen.add(namespace)
        if owns(processes.read(pid, "net/fib_trie").decode("ascii", "replace"), address):
            return pid
    return None


def owns(fib_trie: str, address: str) -> bool:
    """Whether a namespace's /proc/net/fib_trie has ``address`` as one of its own."""
    lines = [line.strip() for line in fib_trie.splitlines()]
    return any(
        line == f"|-- {address}" and following.startswith("/32 host LOCAL")
        for line, following in pairwise(lines)
    )
