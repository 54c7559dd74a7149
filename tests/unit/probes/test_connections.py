"""Who is connected to a port, by the kernel's tables."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from mmrepro.base import processes
from mmrepro.base.processes import rows
from mmrepro.probes.base import ProbeStatus, Subject, run_probe
from mmrepro.probes.data import ConnectionsData
from mmrepro.probes.processes import ConnectionsProbe

HEAD = (
    "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when "
    "retrnsmt   uid  timeout"
)
TABLE = f"""\
{HEAD} inode
   0: 0100007F:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1
   1: 0100007F:1F40 0100007F:D431 01 00000000:00000000 00:00000000 00000000     0        0 2 1
   2: 0100007F:1F40 0100007F:D432 01 00000000:0000004D 00:00000000 00000000     0        0 3 1
   3: 0100007F:1F40 0100007F:D433 08 00000000:00000001 00:00000000 00000000     0        0 4 1
   4: 0100007F:1F40 0100007F:D434 06 00000000:00000000 00:00000000 00000000     0        0 0 1
   5: 0100007F:D431 0100007F:1F40 01 00000000:00000000 00:00000000 00000000     0        0 5 1
   6: 0100007F:1F41 0100007F:D435 01 00000000:00000000 00:00000000 00000000     0        0 6 1
no row at all
   7: zz
"""


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        made.listen()
        yield made


def test_rows_are_read_and_others_skipped() -> None:
    assert [(s.port, s.state, s.unread) for s in rows(TABLE)][:3] == [
        (8000, "0A", 0),
        (8000, "01", 0),
        (8000, "01", 0x4D),
    ]
    assert len(list(rows(TABLE))) == 7


def test_clients_are_counted_by_what_state_they_are_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own: list[SimpleNamespace] = []
    monkeypatch.setattr(
        processes, "sockets", lambda pid: list(rows(TABLE)) if pid == 7 else None
    )
    monkeypatch.setattr(psutil.Process, "net_connections", lambda self, kind: own)
    found = run_probe(ConnectionsProbe(8000, 7), tmp_path, 5)
    assert found.data == ConnectionsData(port=8000, clients=2, unread=1, left=1)
    own += [
        SimpleNamespace(laddr=()),
        SimpleNamespace(laddr=SimpleNamespace(port=0xD431)),
    ]
    ours = run_probe(ConnectionsProbe(8000, 7), tmp_path, 5)
    assert ours.data == ConnectionsData(port=8000, clients=1, unread=1, left=1)


def test_our_own_connections_are_left_out(
    listener: socket.socket, tmp_path: Path
) -> None:
    port = listener.getsockname()[1]
    probe = ConnectionsProbe.on(Subject(url=f"http://127.0.0.1:{port}"))
    with socket.create_connection(("127.0.0.1", port)):
        assert run_probe(probe, tmp_path, 5).data == ConnectionsData(
            port=port, clients=0
        )


def test_another_process_is_a_client(listener: socket.socket, tmp_path: Path) -> None:
    port = listener.getsockname()[1]
    code = (
        "import socket, sys; s = socket.create_connection(('127.0.0.1', "
        "int(sys.argv[1]))); "
    )
    code += "s.send(b'GET /'); print('sent', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-S", "-c", code, str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as client:
        assert client.stdout is not None
        client.stdout.readline()
        found = run_probe(ConnectionsProbe(port), tmp_path, 5)
        client.kill()
    assert found.data == ConnectionsData(port=port, clients=1, unread=1)


def test_where_nobody_listens_nothing_is_said(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        found = run_probe(ConnectionsProbe(free.getsockname()[1]), tmp_path, 5)
    assert (found.status, found.data) == (ProbeStatus.UNAVAILABLE, None)
    gone = run_probe(ConnectionsProbe(1, 2**22 + 1), tmp_path, 5)
    assert "cannot be read" in gone.reason
