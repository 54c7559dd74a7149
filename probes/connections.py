"""Who is connected to a server's port, by the kernel's tables of TCP sockets.

Columns as in proc_net_tcp.txt of the kernel's documentation.

Alone::

    from mmrepro.probes.base import run_probe
    from mmrepro.probes.connections import ConnectionsProbe
    result = run_probe(ConnectionsProbe(8000), Path("evidence"), 3)
    print(result.data.clients)
"""

from __future__ import annotations

from typing import Self
from urllib.parse import urlsplit

import psutil
from mmrepro.base import processes
from mmrepro.base.processes import Socket
from mmrepro.probes.base import Probe, RawSink, Subject, Unavailable
from mmrepro.probes.data import ConnectionsData


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
        there = _table(self.pid)
        if not any(s.port == self.port and s.state == processes.LISTEN for s in there):
            raise Unavailable(f"nothing is seen to listen on port {self.port} there")
        # One that was opened meanwhile is among them.
        own = {s.laddr.port for s in psutil.Process().net_connections("tcp") if s.laddr}
        clients = [s for s in there if s.port == self.port and s.peer_port not in own]
        connected = [s for s in clients if s.state == processes.ESTABLISHED]
        return ConnectionsData(
            port=self.port,
            clients=len(connected),
            unread=sum(s.unread > 0 for s in connected),
            left=sum(s.state == processes.CLOSE_WAIT for s in clients),
        )


def _table(pid: int | str) -> list[Socket]:
    found = processes.sockets(pid)
    if found is None:
        raise Unavailable(f"the TCP sockets of process {pid} cannot be read")
    return found
