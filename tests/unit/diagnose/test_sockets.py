"""Who listens, and whose address it is, on a made-up /proc."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from mmrepro.base import processes
from mmrepro.base.processes import Stat
from mmrepro.live.diagnose import discover
from mmrepro.live.diagnose.listeners import ListenerAnswers
from test_discover import TABLE, TABLE6

Links = Mapping[str, str | Exception]


def its_links(monkeypatch: pytest.MonkeyPatch, links: Links) -> None:
    """What /proc's links lead to; the processes are those that have any."""

    def readlink(path: str) -> str:
        to = links.get(path, FileNotFoundError(path))
        if isinstance(to, Exception):
            raise to
        return to

    def listdir(folder: str) -> list[str]:
        if isinstance(denied := links.get(folder), Exception):
            raise denied
        return [p.rpartition("/")[2] for p in links if p.startswith(f"{folder}/")]

    pids = dict.fromkeys(
        int(p.split("/")[2]) for p in links if p.split("/")[2].isdigit()
    )
    monkeypatch.setattr(processes, "pids", lambda: list(pids))
    changed = {**vars(os), "readlink": readlink, "listdir": listdir}
    monkeypatch.setattr(processes, "os", SimpleNamespace(**changed))


def test_listeners_of_both_families_on_the_port(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tables = {
        ("self", "net/tcp"): TABLE,
        ("self", "net/tcp6"): TABLE6,
        (7, "net/tcp6"): TABLE6,
    }
    monkeypatch.setattr(
        processes, "read", lambda pid, name, limit: tables.get((pid, name), "").encode()
    )
    assert [s.inode for s in discover.listeners(8080)] == [4711, 4712, 99]
    assert [s.inode for s in discover.listeners(8080, 7)] == [99]
    assert discover.listeners(8081) == discover.listeners(8079) == []


def test_holders_are_all_that_hold_one_of_the_sockets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    links: dict[str, str | Exception] = {
        "/proc/3/fd/0": "/dev/null",
        "/proc/4/fd": PermissionError(),
        "/proc/5/fd/0": FileNotFoundError(),
        "/proc/5/fd/1": "socket:[70]",
        "/proc/5/fd/2": "socket:[71]",
        "/proc/6/fd/0": PermissionError(),
        "/proc/6/fd/1": PermissionError(),
        "/proc/7/fd": FileNotFoundError(),
        "/proc/8/fd/0": "socket:[72]",
        "/proc/9/fd/4": "socket:[71]",
        "/proc/10/fd": PermissionError(),
    }
    its_links(monkeypatch, links)
    monkeypatch.setattr(
        processes,
        "stat",
        lambda pid: None if pid == 7 else Stat(pid, "n", "S", 1, 0, 0, 1, 0, 0),
    )
    assert processes.holders([70, 71]) == ([5, 9], 3)
    assert processes.holders([70]) == ([5], 3)
    assert processes.holders([]) == ([], 3)


def test_the_namespace_of_a_container_is_found_behind_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spaces = {
        3: "",
        4: "net:[1]",
        5: "net:[2]",
        6: "net:[2]",
        7: "net:[1]",
        8: "net:[3]",
    }
    links: dict[str, str | Exception] = {"/proc/self/ns/net": "net:[1]"}
    for pid, space in spaces.items():
        links[f"/proc/{pid}/ns/net"] = space or PermissionError()
    its_links(monkeypatch, links)
    asked: list[int] = []

    def read(pid: int, name: str) -> bytes:
        asked.append(pid)
        assert name == "net/fib_trie"
        own = {4: "10.0.0.4", 5: "10.0.0.5", 6: "10.0.0.6", 8: "10.0.0.8"}.get(
            pid, "10.0.0.9"
        )
        return f"|-- {own}\n   /32 host LOCAL\n".encode()

    monkeypatch.setattr(processes, "read", read)
    assert discover.namespace_with("10.0.0.8") == 8
    assert asked == [5, 8], "each other namespace once, and not our own"
    assert discover.namespace_with("10.0.0.5") == 5
    assert discover.namespace_with("10.0.0.4") is None


def test_addresses_of_a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolved(host: str, port: None, **more: Any) -> list[Any]:
        if host == "none":
            raise socket.gaierror
        if host == "x" * 64:
            raise UnicodeError
        found = ("10.0.0.5", "fe80::1%eth0", "10.0.0.5")
        return [(0, 0, 0, "", (one, 0)) for one in found]

    monkeypatch.setattr(discover.socket, "getaddrinfo", resolved)
    assert discover.addresses("host") == ["10.0.0.5", "fe80::1"]
    assert discover.addresses("none") == discover.addresses("x" * 64) == []


def test_an_address_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = {
        "lo": ["127.0.0.1"],
        "eth0": ["02:42:ac:11:00:02", "10.0.0.5", "fe80::1%eth0"],
    }
    made = {
        name: [SimpleNamespace(address=a) for a in told] for name, told in cards.items()
    }
    monkeypatch.setattr(discover.psutil, "net_if_addrs", lambda: made)
    for own in (
        "10.0.0.5",
        "fe80::1",
        "127.0.0.1",
        "127.0.0.9",
        "::1",
        "0.0.0.0",
        "::",
    ):
        assert discover.is_ours(own)
    assert not discover.is_ours("10.0.0.6")
    assert not discover.is_ours("fe80::2")


@pytest.mark.parametrize(
    ("silent", "one_is"), [(0, False), (1, True), (11, True), (12, False)]
)
def test_where_all_connections_are_silent_it_is_no_single_listener(
    silent: int, one_is: bool
) -> None:
    assert ListenerAnswers(sockets=2, asked=12, silent=silent).one_is_silent is one_is
