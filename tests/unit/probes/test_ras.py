"""NCCL's RAS service: its two forms, and everything else that may listen on its port.

``ras/`` was recorded: NCCL 2.28.9 of torch 2.11.0, three ranks on one H200
(``benchmarks/nccl_ras.py``). ``JSON`` and ``TEXT`` are made up, in the form of NCCL's
user guide ("RAS") and of src/ras/client_support.cc: the fields of 2.29, the lines of
2.24."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from mmrepro.probes import ras
from mmrepro.probes.base import ProbeStatus, run_probe
from mmrepro.probes.data import ProbeResult, RasData


def rank(number: int, pid: int, reduced: int) -> dict[str, Any]:
    return {
        "rank": number,
        "host": "127.0.0.1",
        "pid": pid,
        "cuda_dev": number,
        "nvml_dev": number,
        "status": {
            "init_state": 0,
            "async_error": 0,
            "finalize_called": False,
            "destroy_flag": False,
            "abort_flag": False,
        },
        "collective_counts": {"Broadcast": 0, "AllGather": 3, "AllReduce": reduced},
    }


def document(
    *ranks: dict[str, Any], missing: tuple[dict[str, Any], ...] = ()
) -> dict[str, Any]:
    return {
        "nccl_version": "2.29.1",
        "cuda_runtime_version": 13000,
        "cuda_driver_version": 13000,
        "timestamp": "2026-11-26 01:06:53",
        "communicators_count": 1,
        "communicators": [
            {
                "hash": "0xae94423cfbb2ef4a",
                "secondary_hash": "0x1:0x2",
                "size": 3,
                "ranks_count": len(ranks),
                "missing_ranks_count": len(missing),
                "ranks": list(ranks),
                "missing_ranks": list(missing),
            },
        ],
        "ras": {"collection_time_sec": 0.0, "timeouts_count": 0},
    }


GONE = {
    "rank": 2,
    "host": "127.0.0.1",
    "pid": 73,
    "cuda_dev": 2,
    "nvml_dev": 2,
    "status": {"unresponsive": True, "considered_dead": False},
}
JSON = json.dumps(document(rank(0, 71, 6650), rank(1, 72, 6649), missing=(GONE,)))
TEXT = """NCCL version 2.24.3 compiled with CUDA 12.6

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         1         8         8         8   RUNNING  MISMATCH

Errors
======

INCOMPLETE
  Missing communicator data from 1 job process
  Process 79 on node 127.0.0.1 managing GPU 7

Warnings
========

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different collective operation counts
  6 ranks have launched up to operation 6650
  1 rank has launched up to operation 6649
  Rank 3 -- GPU 3 managed by process 75 on node 127.0.0.1
"""


class Service:
    """Answers one client. ``drip``: seconds between two bytes of the report."""

    def __init__(
        self,
        report: bytes,
        *,
        greeting: bytes = b"SERVER PROTOCOL 2\n",
        old: bool = False,
        drip: float = 0.0,
        keeps_open: bool = False,
    ) -> None:
        self.report, self.greeting, self.old = report, greeting, old
        self.drip, self.keeps_open = drip, keeps_open
        self.commands: list[str] = []
        self.done = threading.Event()

    def serve(self, listener: socket.socket) -> bool:
        """Whether a client came."""
        try:
            client, _ = listener.accept()
        except OSError:
            return False
        with suppress(OSError), client, client.makefile("rb") as lines:
            for line in lines:
                command = line.decode("latin-1").strip()
                self.commands.append(command)
                if command.startswith("CLIENT PROTOCOL"):
                    client.sendall(self.greeting)
                elif command.startswith("SET FORMAT"):
                    client.sendall(b"ERROR: Unknown command\n" if self.old else b"OK\n")
                elif command.endswith("STATUS"):
                    self._send(client)
                    break
                else:
                    client.sendall(b"OK\n")
        return True

    def _send(self, client: socket.socket) -> None:
        if not self.drip:
            client.sendall(self.report)
        else:
            for byte in self.report:
                if self.done.wait(self.drip):
                    return
                client.sendall(bytes([byte]))
        if self.keeps_open:
            self.done.wait(10)


@contextmanager
def served(*services: Service) -> Iterator[int]:
    """One client each; the last one serves all that come after."""
    ended = threading.Event()

    def serve(listener: socket.socket) -> None:
        left = [*services]
        while not ended.is_set():
            if left[0].serve(listener) and len(left) > 1:
                left.pop(0)

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(4)
        listener.settimeout(0.2)
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        ended.set()
        for service in services:
            service.done.set()
        thread.join(10)


def asked(service: Service, folder: Path) -> ProbeResult[RasData]:
    with served(service) as port:
        return run_probe(ras.RasProbe(port), folder, 2.5)


# ------------------------------------------------------------------ what it says


def test_the_json_report(tmp_path: Path) -> None:
    service = Service(JSON.encode())
    result = asked(service, tmp_path)
    data = result.data
    assert data is not None, result.reason
    assert (data.form, data.protocol, data.nccl) == ("json", 2, "2.29.1")
    assert data.sizes == {"0xae94423cfbb2ef4a": 3}
    assert [
        (r.rank, r.pid, r.counts.get("AllReduce"), r.missing) for r in data.ranks
    ] == [
        (0, 71, 6650, False),
        (1, 72, 6649, False),
        (2, 73, None, True),
    ]
    assert (data.ranks[2].unresponsive, data.ranks[2].dead) == (True, False)
    assert (tmp_path / result.raw[0]).read_text() == JSON


def test_only_commands_that_change_nothing_are_sent(tmp_path: Path) -> None:
    service = Service(JSON.encode())
    asked(service, tmp_path)
    assert service.commands == [
        "CLIENT PROTOCOL 2",
        "TIMEOUT 1",
        "SET FORMAT json",
        "VERBOSE STATUS",
    ]


def test_an_older_service_answers_in_words(tmp_path: Path) -> None:
    data = asked(
        Service(TEXT.encode(), old=True, greeting=b"SERVER PROTOCOL 1\n"), tmp_path
    ).data
    assert data is not None
    assert (data.form, data.protocol, data.nccl) == ("text", 1, "2.24.3")
    assert data.launched == {"27a079b828ff1a75 all": {6650: 6, 6649: 1}}
    assert [(r.rank, r.pid, r.counts) for r in data.ranks] == [(3, 75, {"all": 6649})]
    assert data.lost_pids == [79]
    assert data.troubles[0] == "INCOMPLETE"


# ------------------------------------------------------------------ of a real one

RECORDED = Path(__file__).parent / "ras"


def recorded(name: str, form: str) -> str:
    return (RECORDED / f"{name}.{form}").read_text()


def test_ranks_that_have_all_launched_the_same() -> None:
    data = ras.read_json(recorded("healthy", "json"))
    assert (data.nccl, [*data.sizes.values()]) == ("2.28.9", [3])
    assert [r.counts["AllReduce"] for r in data.ranks] == [3, 3, 3]
    words = ras.read_text(recorded("healthy", "txt"))
    assert (words.nccl, words.ranks, words.launched) == ("2.28.9", [], {})


def test_the_rank_that_never_entered() -> None:
    data = ras.read_json(recorded("absent", "json"))
    assert [(r.rank, r.counts["AllReduce"]) for r in data.ranks] == [
        (0, 4),
        (1, 3),
        (2, 4),
    ]
    words = ras.read_text(recorded("absent", "txt"))
    (late,) = words.ranks
    assert (late.rank, late.counts, late.missing) == (1, {"AllReduce": 3}, False)
    assert late.pid == data.ranks[1].pid
    (launched,) = words.launched.items()
    assert launched == (f"{late.communicator} AllReduce", {4: 2, 3: 1})


def test_a_killed_rank_makes_the_json_unreadable_and_the_words_are_asked_for(
    tmp_path: Path,
) -> None:
    with pytest.raises(json.JSONDecodeError):
        ras.read_json(recorded("killed", "json"))
    first = Service(recorded("killed", "json").encode())
    second = Service(recorded("killed", "txt").encode())
    with served(first, second) as port:
        result = run_probe(ras.RasProbe(port), tmp_path, 2.5)
    data = result.data
    assert data is not None, result.reason
    assert second.commands == ["CLIENT PROTOCOL 2", "TIMEOUT 1", "VERBOSE STATUS"]
    (lost,) = data.ranks
    assert (data.form, data.protocol, lost.rank, lost.missing) == ("text", 2, 2, True)
    assert data.lost_pids == [lost.pid]
    assert any(
        line.startswith("Rank 0 reported Remote process error")
        for line in data.troubles
    )
    assert len(result.raw) == 2


# ------------------------------------------------------------------ what is none


@pytest.mark.parametrize(
    "service",
    [
        Service(b"", greeting=b"HTTP/1.1 400 Bad Request\r\n\r\n"),
        Service(b"", greeting=b"SSH-2.0-OpenSSH_9.6\n"),
        Service(b"", greeting=b"\x00" * 2000),
        Service(b"", greeting=b"SERVER PROTOCOL \n"),
        Service(b""),
        Service(JSON[:-40].encode()),
        Service(b"[" * 100_000),
        Service(b'{"communicators": 3}'),
        Service(b'{"nccl_version": "2", "communicators": [3]}'),
        Service(JSON.replace("6650", '"many"').encode()),
        Service(JSON.replace("6650", "true").encode()),
        Service(JSON.replace("6650", "9" * 40).encode()),
        Service(b"\xff" * 1000, old=True),
        Service(TEXT[:40].encode(), old=True),
    ],
)
def test_anything_else_is_no_report(service: Service, tmp_path: Path) -> None:
    result = asked(service, tmp_path)
    assert (result.status, result.data) == (ProbeStatus.UNAVAILABLE, None)
    assert result.reason


@pytest.mark.parametrize(
    "service",
    [
        Service(b"", greeting=b""),
        Service(JSON.encode(), keeps_open=True),
        Service(JSON.encode(), drip=0.05),
    ],
)
def test_it_takes_two_seconds_at_most(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here 0.2 of the two, and the service would hold it for 30."""
    assert ras.MOST_S == 2
    monkeypatch.setattr(ras, "MOST_S", 0.2)
    began = time.monotonic()
    with served(service) as port:
        result = run_probe(ras.RasProbe(port), tmp_path, 30.0)
    assert result.status is ProbeStatus.TIMED_OUT
    assert time.monotonic() - began < 20


def test_nobody_listens(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        result = run_probe(ras.RasProbe(taken.getsockname()[1]), tmp_path, 2)
    assert result.status is ProbeStatus.UNAVAILABLE


def test_a_report_of_endless_ranks_is_refused() -> None:
    many = document(*[rank(n, n, 1) for n in range(ras.MAX_RANKS + 1)])
    with pytest.raises(ValueError, match="too many"):
        ras.read_json(json.dumps(many))


@given(st.text(max_size=300))
def test_no_text_breaks_the_reader(text: str) -> None:
    data = ras.read_text("Communicators\n" + text)
    assert data.form == "text"


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda c: (
            st.lists(c, max_size=3)
            | st.dictionaries(
                st.sampled_from(["communicators", "ranks", "status", "hash", "pid"]), c
            )
        ),
        max_leaves=12,
    )
)
def test_no_document_breaks_the_reader(value: Any) -> None:
    try:
        ras.read_json(json.dumps({"communicators": [value], "nccl_version": ""}))
    except ValueError:
        return
