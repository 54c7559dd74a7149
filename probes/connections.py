"""Who is connected to a server's port, by the kernel's tables of TCP sockets.

Columns as in proc_net_tcp.txt of the kernel's documentation.

Alone::

    from mmrepro.probes.base import run_probe
    from mmrepro.probes.connections import ConnectionsProbe
    result = run_probe(ConnectionsProbe(8000), Path("evidence"), 3)
    print(result.data.clients)
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from mmrepro.probes.base import Probe, RawSink, Subject, Unavailable
from mmrepro.probes.data import ConnectionsData

LISTEN, ESTABLISHED, CLOSE_WAIT = "0A", "01", "08"


@dataclass(frozen=True)
class Socket:
    """A row; addresses in hexadecimal, as the kernel prints them."""

    address: str
    port: int
    peer_port: int
    state: str
    unread: int
    uid: int
    inode: int


def rows(table: str) -> Iterator[Socket]:
    """The sockets of a /proc/net/tcp or tcp6; lines that are none are skipped."""
    for line in table.splitlines():
        fields = line.split()
        try:
            address, _, port = fields[1].partition(":")
            peer = int(fields[2].partition(":")[2], 16)
            unread = int(fields[4].partition(":")[2], 16)
            uid, inode = int(fields[7]), int(fields[9])
            yield Socket(address, int(port, 16), peer, fields[3], unread, uid, inode)
        except (IndexError, ValueError):
            continue


class ConnectionsProbe(Probe[ConnectionsData]):
    """Connections to ``port`` in the network namespace of process ``pid``; those that this process
    holds itself are left out."""

    name = "connections"
    needs = "url"

    @classmethod
    def on(cls, subject: Subject) -> Self:
        return cls(urlsplit(subject.url).port or 80, subject.pid or "self")

    def __init__(self, port: int, pid: int | str = "self") -> None:
        self.port = port
        self.pid = pid

    def collect(self, sink: RawSink, deadline: float) -> ConnectionsData:
        """Raises Unavailable where no table can be read, or the port is none of that namespace."""
        there = list(_table(self.pid))
        if not any(s.port == self.port and s.state == LISTEN for s in there):
            raise Unavailable(f"nothing is seen to listen on port {self.port} there")
        own = _own_ports()
        clients = [s for s in there if s.port == self.port and s.peer_port not in own]
        connected = [s for s in clients if s.state == ESTABLISHED]
        return ConnectionsData(
            port=self.port,
            clients=len(connected),
            unread=sum(s.unread > 0 for s in connected),
            left=sum(s.state == CLOSE_WAIT for s in clients),
        )


def _table(pid: int | str) -> Iterator[Socket]:
    read = 0
    for name in ("tcp", "tcp6"):
        try:
            text = Path(f"/proc/{pid}/net/{name}").read_text(encoding="ascii", errors="replace")
        except OSError:
            continue
        read += 1
        yield from rows(text)
    if not read:
        raise Unavailable(f"the TCP sockets of process {pid} cannot be read")


def _own_ports() -> set[int]:
    """Local ports of this process's sockets; one that was opened meanwhile is among them."""
    inodes = set()
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        try:
            link = os.readlink(f"/proc/self/fd/{name}")  # noqa: PTH115
        except OSError:
            continue
        if link.startswith("socket:["):
            inodes.add(int(link[8:-1]))
    return {s.port for s in _table("self") if s.inode in inodes}
