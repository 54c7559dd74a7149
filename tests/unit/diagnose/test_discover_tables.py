"""From a URL to the server behind it, on a made-up process table: each branch at its
edge."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from mmrepro.base import processes
from mmrepro.base.processes import Socket, Stat
from mmrepro.engines import ENGINES
from mmrepro.engines.supervise.warm import FORK_SERVER
from mmrepro.live.diagnose import discover
from mmrepro.live.diagnose.discover import ServerTarget
from seen import target

VLLM = "python -m vllm.entrypoints.openai.api_server"
SGLANG = "python -m sglang.launch_server"
URL = "http://127.0.0.1:8000"


@dataclass
class Table:
    """Processes: pid to (parent, command), and what else /proc tells of them."""

    processes: dict[int, tuple[int, str]] = field(default_factory=dict)
    uids: dict[int, int] = field(default_factory=dict)
    files: dict[tuple[int, str], bytes] = field(default_factory=dict)
    states: dict[int, str] = field(default_factory=dict)


def its_os(monkeypatch: pytest.MonkeyPatch, **changed: Any) -> None:
    """In ``discover`` alone: pytest needs its own."""
    monkeypatch.setattr(discover, "os", SimpleNamespace(**{**vars(os), **changed}))


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Table:
    made = Table()

    def stat(pid: int) -> Stat | None:
        if pid not in made.processes:
            return None
        state, parent = made.states.get(pid, "S"), made.processes[pid][0]
        return Stat(pid, f"n{pid}", state, parent, 0, 0, 1, 0, 0)

    def read(pid: int, name: str, limit: int = 1 << 20) -> bytes:
        return made.files.get((pid, name), b"")[:limit]

    monkeypatch.setattr(processes, "stat", stat)
    monkeypatch.setattr(processes, "pids", lambda: list(made.processes))
    monkeypatch.setattr(processes, "read", read)
    monkeypatch.setattr(processes, "owner", lambda pid: made.uids.get(pid))
    monkeypatch.setattr(
        processes, "arguments", lambda pid: made.processes.get(pid, (0, ""))[1].split()
    )
    monkeypatch.setattr(
        processes, "tree", lambda root: [p for p in made.processes if p >= root]
    )
    monkeypatch.setattr(processes, "cmdline", lambda pid: made.processes[pid][1])
    return made


# ---------------------------------------------------------------- who listens


def listening(
    monkeypatch: pytest.MonkeyPatch,
    *found: str,
    owners: Any = ([], 0),
    ours: bool = True,
    inside: int | None = None,
) -> list[Any]:
    asked: list[Any] = []

    def listeners(port: int, namespace: Any) -> list[Socket]:
        asked.append((port, namespace))
        packed = [ipaddress.ip_address(a).packed for a in found]
        swapped = [[p[at : at + 4][::-1] for at in range(0, len(p), 4)] for p in packed]
        words = [b"".join(one).hex() for one in swapped]  # of a little-endian machine
        return [Socket(w, port, 0, "0A", 0, 1000, 70 + n) for n, w in enumerate(words)]

    def owned(inodes: Any) -> Any:
        asked.append(list(inodes))
        return owners

    monkeypatch.setattr(discover, "addresses", lambda host: ["127.0.0.1"])
    monkeypatch.setattr(discover, "is_ours", lambda address: ours)
    monkeypatch.setattr(discover, "namespace_with", lambda address: inside)
    monkeypatch.setattr(discover, "listeners", listeners)
    monkeypatch.setattr(processes, "holders", owned)
    return asked


def test_the_owner_of_the_listening_socket(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.processes = {5: (1, VLLM), 7: (5, "VLLM::EngineCore")}
    asked = listening(monkeypatch, "0.0.0.0", "10.0.0.1", owners=([5, 7], 3))
    found = discover.find(f"{URL}/v1")
    facts = found.facts
    assert asked == [(8000, "self"), [70]]
    assert (facts.place, facts.listening, facts.root_pid, facts.port) == (
        "local",
        True,
        5,
        8000,
    )
    assert (facts.found_by, facts.url) == ("it listens on port 8000", URL)
    assert [p.pid for p in facts.processes] == [5, 7]
    assert (found.unseen, found.given) == ([], False)
    # Bound to no address of the host: any that listens on the port.
    asked = listening(monkeypatch, "10.0.0.1", "10.0.0.2", owners=([5], 0))
    assert discover.find(URL).facts.root_pid == 5
    assert asked[1] == [70, 71]


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::", "::ffff:127.0.0.1"])
def test_a_socket_bound_to_the_host_or_to_all(
    address: str, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = listening(monkeypatch, "10.0.0.1", address)
    discover.find(URL)
    assert asked[1] == [71]


def test_a_container_is_looked_into_by_its_namespace(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.processes = {5: (1, VLLM)}
    asked = listening(monkeypatch, "127.0.0.1", owners=([5], 0), ours=False, inside=77)
    assert discover.find(URL).facts.place == "container"
    assert asked[0] == (8000, 77)
    listening(monkeypatch, owners=([5], 0), ours=False)
    far = discover.find(URL)
    assert (far.facts.place, far.facts.listening, far.facts.root_pid) == (
        "remote",
        None,
        None,
    )
    assert "127.0.0.1 is not an address of this machine" in far.unseen[0]


def test_a_pid_namespace_below_ours_is_a_container(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.processes = {5: (1, VLLM)}
    listening(monkeypatch, "127.0.0.1", owners=([5], 0))
    for status, inner, place in (
        (b"Name:\tx\nNSpid:\t5\t1\n", 1, "container"),
        (b"Name:\tx\nNSpid:\t5\t3\t2\n", 2, "container"),
        (b"Name:\tx\nNSpid:\t5\n", None, "local"),
        (b"Name:\tx\n", None, "local"),
    ):
        table.files[5, "status"] = status
        facts = discover.find(URL).facts
        assert (facts.processes[0].inner_pid, facts.place) == (inner, place)


def test_a_socket_whose_owner_is_hidden(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    listening(monkeypatch, "127.0.0.1", owners=([], 9))
    hidden = discover.find(URL)
    assert (hidden.facts.listening, hidden.facts.root_pid) == (True, None)
    assert hidden.unseen == [
        "who listens on port 8000 cannot be seen from here (9 processes are closed): "
        "run mmrepro as root, or as the server's own user, or give --pid"
    ]
    table.processes, table.uids = {5: (1, f"{VLLM} --port 8000")}, {5: 1000}
    named = discover.find(URL)
    assert named.facts.root_pid == 5
    assert named.facts.found_by == "its command line names port 8000"
    assert (
        "taken by its command line. To be sure: run mmrepro as root" in named.unseen[0]
    )


def test_a_socket_of_another_pid_namespace(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    listening(monkeypatch, "127.0.0.1")
    found = discover.find(URL)
    assert (found.facts.listening, found.facts.root_pid) == (True, None)
    assert (
        "no process of this pid namespace holds the socket on port 8000"
        in found.unseen[0]
    )
    listening(monkeypatch)
    assert discover.find(URL).facts.listening is False
    assert discover.find(URL).unseen == []


def test_a_process_that_the_user_names(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.processes = {5: (1, VLLM), 7: (5, "x")}
    listening(monkeypatch, "127.0.0.1", owners=([5], 0))
    named = discover.find(URL, 7)
    assert (named.given, named.facts.root_pid, named.facts.place) == (True, 7, "local")
    assert named.facts.found_by == "given with --pid"
    listening(monkeypatch, ours=False)
    assert discover.find(URL, 7).facts.place == "local"
    listening(monkeypatch, ours=False, inside=77)
    assert discover.find(URL, 7).facts.place == "container"


# ---------------------------------------------------------------- the topmost process


@pytest.mark.parametrize(
    ("processes", "pids", "top"),
    [
        ({5: (1, VLLM)}, [5], 5),
        ({5: (1, VLLM), 7: (5, "VLLM::x")}, [7, 5], 5),
        ({4: (1, "gunicorn"), 5: (4, "gunicorn")}, [5, 4], 4),
        ({4: (1, "bash"), 5: (4, VLLM)}, [5], 5),
        ({4: (1, f"{VLLM} a"), 5: (4, VLLM)}, [5], 4),
        ({3: (1, f"{VLLM} a"), 4: (3, f"{VLLM} a"), 5: (4, VLLM)}, [5], 3),
        ({4: (1, SGLANG), 5: (4, VLLM)}, [5], 5),
        ({4: (1, "gunicorn"), 5: (4, "gunicorn")}, [5], 5),
        ({1: (0, VLLM), 5: (1, VLLM)}, [5], 5),
        ({2: (1, VLLM), 5: (2, VLLM)}, [5], 2),
        ({}, [5], 5),
        ({}, [5, 9, 7], 5),
        ({9: (1, "x")}, [5, 9], 9),
        ({5: (6, VLLM), 6: (5, VLLM)}, [5, 6], 5),
    ],
)
def test_the_topmost_process_of_an_engine(
    processes: dict[int, tuple[int, str]], pids: list[int], top: int, table: Table
) -> None:
    table.processes = processes
    assert discover._topmost(pids) == top


def test_a_climb_ends(table: Table) -> None:
    table.processes = {n: (n - 1, VLLM) for n in range(2, 40)}
    assert discover._topmost([39]) == 39 - discover.MAX_CLIMB
    assert (discover.MAX_CLIMB, discover.MAX_PROCESSES) == (16, 256)
    assert discover.ROUGH_S == 2.0


@pytest.mark.parametrize(
    ("commands", "found"),
    [
        ({5: "serve --port 8000"}, 5),
        ({5: "serve --server-port 8000"}, 5),
        ({5: "serve --port=8000"}, 5),
        ({5: "serve --server-port=8000"}, 5),
        ({5: "serve port 8000"}, None),
        ({5: "serve port=8000"}, None),
        ({5: "serve --port 80000"}, None),
        ({5: "serve --report 8001"}, None),
        ({5: "serve --ports 8000"}, None),
        ({5: "proxy --port 8000", 7: f"{VLLM} --port 8000"}, 7),
        ({5: "a --port 8000", 7: "b --port 8000"}, 5),
        ({5: VLLM}, 5),
        ({5: VLLM, 7: SGLANG}, None),
        ({5: VLLM, 7: "proxy --port 8000"}, 7),
        ({5: "bash"}, None),
        ({}, None),
    ],
)
def test_by_its_command_where_sockets_are_hidden(
    commands: dict[int, str], found: int | None, table: Table
) -> None:
    table.processes = {pid: (1, command) for pid, command in commands.items()}
    table.uids = dict.fromkeys(commands, 1000)
    assert discover._by_command(8000, {1000}) == found


def test_another_users_processes_are_not_taken(table: Table) -> None:
    table.processes = dict.fromkeys((3, 5, 7), (1, f"{VLLM} --port 8000"))
    table.uids = {5: 0, 7: 1000}  # 3 has ended meanwhile
    assert discover._by_command(8000, {1000}) == 7
    table.processes = {5: (1, f"{VLLM} a"), 7: (5, VLLM)}
    table.uids = {5: 1000, 7: 1000}
    assert discover._by_command(8000, {1000}) == 5  # one server


# ---------------------------------------------------------------- processes, engine


def test_processes_that_end_while_they_are_looked_at(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = ServerTarget(target(root_pid=5), ENGINES["vllm"])
    table.processes = {5: (1, VLLM), 7: (5, "VLLM::EngineCore")}
    table.states = {7: "Z"}
    discover.refresh(found)
    told = [(p.pid, p.ppid, p.name, p.state) for p in found.facts.processes]
    assert told == [(5, 1, "n5", "S"), (7, 5, "n7", "Z")]
    assert [p.role for p in found.facts.processes] == ["APIServer", "EngineCore"]
    assert found.facts.command == VLLM.split()
    del table.processes[5]
    discover.refresh(found)
    assert [p.pid for p in found.facts.processes] == [7]
    # 5 ended after this list.
    monkeypatch.setattr(processes, "tree", lambda root: [5, 7])
    discover.refresh(found)
    assert [p.pid for p in found.facts.processes] == [7]
    untouched = ServerTarget(target(root_pid=None))
    discover.refresh(untouched)
    assert len(untouched.facts.processes) == 2


def test_many_processes_are_cut_short(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discover, "MAX_PROCESSES", 2)
    table.processes = {5: (1, VLLM), 6: (5, "a"), 7: (5, "b")}
    found = ServerTarget(target(root_pid=5))
    discover.refresh(found)
    assert len(found.facts.processes) == 2


def test_the_engine_with_more_reasons_is_taken(table: Table) -> None:
    table.processes = {5: (1, VLLM)}
    found = ServerTarget(
        target(root_pid=5, command=VLLM.split(), engine="", processes=[])
    )
    discover.name_engine(found, frozenset({"vllm:num_requests_running"}))
    assert found.facts.engine == "vllm"
    assert len(found.facts.engine_because) == 2
    assert (found.facts.core_role, found.facts.processes[0].role) == (
        "EngineCore",
        "APIServer",
    )
    proxy = ServerTarget(target(root_pid=5, command=["nginx"], engine="", processes=[]))
    table.processes = {5: (1, "nginx")}
    discover.name_engine(proxy, frozenset({"vllm:num_requests_running"}))
    assert (proxy.facts.engine, proxy.facts.root_pid, proxy.facts.found_by) == (
        "vllm",
        None,
        "",
    )
    assert (proxy.facts.command, proxy.facts.processes) == ([], [])
    assert (
        "who listens on port 8000 is no vllm (nginx), a proxy perhaps"
        in proxy.unseen[0]
    )
    chosen = ServerTarget(target(root_pid=None, command=[], engine="", processes=[]))
    discover.name_engine(chosen, frozenset(), "sglang")
    assert chosen.facts.engine_because == ["given with --engine"]
    assert (chosen.facts.engine, chosen.facts.core_role) == ("sglang", "scheduler")
    unknown = ServerTarget(target(root_pid=None, command=[], engine="", processes=[]))
    discover.name_engine(unknown, frozenset({"x"}))
    assert (unknown.engine, unknown.facts.engine) == (None, "")
    assert "the engine was not recognised" in unknown.unseen[0]


def test_titles_of_kernel_names_serve_where_there_is_no_command(table: Table) -> None:
    table.processes, table.files = {5: (1, "")}, {(5, "comm"): b"VLLM::EngineCor\n"}
    assert discover._title(5) == "VLLM::EngineCor"
    table.processes = {5: (1, VLLM)}
    assert discover._title(5) == VLLM


def test_words_of_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        processes, "read", lambda pid, name, limit: b"a\0b c\0\0\0\xff\0\0"
    )
    assert processes.arguments(5) == ["a", "b c", "\ufffd"]


@pytest.mark.parametrize(
    ("commands", "found"),
    [
        ({5: f"{VLLM} --port 8000"}, 5),
        ({5: f"{VLLM} --port 8000", 7: f"{VLLM} --port 8001"}, 5),
        ({5: "proxy --port 8000"}, None),
        ({5: VLLM}, None),
        ({5: f"{VLLM} bench serve --port 8000"}, None),
        ({}, None),
    ],
)
def test_an_engine_that_is_to_listen_there_is_on_its_way(
    commands: dict[int, str], found: int | None, table: Table
) -> None:
    """A real server of two ranks that was starting was called dead."""
    table.processes = {pid: (1, command) for pid, command in commands.items()}
    target = discover.find("http://127.0.0.1:8000")
    assert (target.facts.root_pid, target.facts.listening) == (found, False)
    if found:
        assert "where nothing listens" in target.facts.found_by


@pytest.mark.parametrize("typed", [(), ("--mm-cache-tokens", "40")])
def test_a_fork_has_the_options_that_it_was_started_with(
    table: Table, monkeypatch: pytest.MonkeyPatch, typed: tuple[str, ...]
) -> None:
    monkeypatch.setattr(
        processes, "arguments", lambda _: ["python", "-c", FORK_SERVER, "minivllm"]
    )
    table.processes = {5: (1, "python")}
    found = discover.find(URL, pid=5, typed=typed)
    assert found.facts.command == [*typed], "a fork shows its fork server's own"
