"""What the kernel says: who lives, who was stopped by whom, who was killed."""

from __future__ import annotations

import errno
import os
from typing import Any

import pytest
from mmrepro.failure.signature.live_server import CORE_ALIVE
from mmrepro.live.diagnose import session
from mmrepro.live.diagnose.discover import Target
from mmrepro.traffic.evidence import Evidence
from seen import CORE, FRONT, target


@pytest.mark.parametrize(
    ("facts", "lives"),
    [
        ({"states": "SS"}, True),
        ({"states": "ZS"}, True),
        ({"states": "SZ"}, False),
        ({"states": "SX"}, False),
        ({"states": "S"}, None),
        ({"states": "S", "core_role": ""}, None),
        ({"states": "Z"}, False),
        ({"processes": []}, False),
        ({"processes": [], "root_pid": None, "listening": False}, False),
        ({"processes": [], "root_pid": None, "listening": True}, None),
        ({"processes": [], "root_pid": None, "listening": None}, None),
        ({"processes": [], "root_pid": None, "listening": False, "place": "remote"}, None),
    ],
)
def test_a_core_without_a_title_is_not_dead(facts: dict[str, Any], lives: bool | None) -> None:
    assert session.core_lives(Target(target(**facts))) is lives


def test_a_core_that_was_seen_and_is_not_any_more_is_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "last_oom_kill", lambda: "Killed process 1764 (python)")
    evidence = Evidence()
    session.note_kernel(Target(target(states="S")), evidence)
    assert evidence.facts == {}
    session.note_kernel(Target(target()), evidence)
    assert evidence.facts == {CORE_ALIVE: True}
    session.note_kernel(Target(target(states="S")), evidence)
    assert evidence.facts == {CORE_ALIVE: False, "oom": "Killed process 1764 (python)"}
    session.note_kernel(Target(target(states="S")), evidence)
    assert evidence.facts[CORE_ALIVE] is False


def test_exit_codes_and_tracers_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "last_oom_kill", lambda: "")
    monkeypatch.setattr(session, "exit_code", {CORE: 9, FRONT: None}.get)
    monkeypatch.setattr(session.processes, "tracer", {CORE: 77}.get)
    evidence = Evidence()
    session.note_kernel(Target(target(states="ZZ")), evidence)
    assert evidence.facts == {f"exit:{CORE}": 9, CORE_ALIVE: False}
    evidence = Evidence()
    session.note_kernel(Target(target(states="tt")), evidence)
    assert evidence.facts == {f"tracer:{CORE}": 77, CORE_ALIVE: True}
    evidence = Evidence()
    session.note_kernel(Target(target(states="TS")), evidence)
    assert evidence.facts == {CORE_ALIVE: True}


@pytest.mark.parametrize(
    ("state", "after", "code"),
    [
        (b"Z", 50, 9),
        (b"X", 50, 9),
        (b"S", 50, None),
        (b"Z", 49, None),
        (b"Z", 0, None),
    ],
)
def test_the_exit_status_is_the_52nd_field(
    monkeypatch: pytest.MonkeyPatch, state: bytes, after: int, code: int | None
) -> None:
    """proc_pid_stat(5); a name may hold parentheses and blanks."""
    fields = [state, *(b"%d" % n for n in range(1, 49)), b"9"]
    raw = b"7 (a) Z b) " + b" ".join(fields[:after]) + b"\n"
    monkeypatch.setattr(session.processes, "read", lambda pid, name: raw)
    assert session.exit_code(7) == code


def records(monkeypatch: pytest.MonkeyPatch, *lines: bytes) -> list[int]:
    closed: list[int] = []
    left = list(lines)

    def read(handle: int, size: int) -> bytes:
        assert (handle, size) == (99, 8192)
        if not left:
            raise OSError(errno.EAGAIN, "no more")
        return left.pop(0)

    monkeypatch.setattr(os, "open", lambda path, flags: 99)
    monkeypatch.setattr(os, "read", read)
    monkeypatch.setattr(os, "close", closed.append)
    return closed


def test_the_last_word_of_the_oom_killer(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = b"3,1,1,-;Out of memory: Killed process 12 (python3) total-vm:1kB"
    group = b"3,2,1,-;Memory cgroup out of memory: Killed process 13 (VLLM::Engine) total-vm"
    closed = records(monkeypatch, b"6,1,1,-;eth0: up", plain, group, b"6,9,1,-;\xffeth0: up")
    assert session.last_oom_kill() == (
        "Memory cgroup out of memory: Killed process 13 (VLLM::Engine)"
    )
    assert closed == [99]
    records(monkeypatch, b"6,1,1,-;eth0: up")
    assert session.last_oom_kill() == ""


def test_a_kernel_log_that_is_closed_to_us(monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(path: str, flags: int) -> int:
        assert path == "/dev/kmsg"
        assert flags == os.O_RDONLY | os.O_NONBLOCK
        raise PermissionError(path)

    monkeypatch.setattr(os, "open", closed)
    assert session.last_oom_kill() == ""


def test_an_endless_kernel_log_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    assert session.MAX_RECORDS == 20_000
    monkeypatch.setattr(session, "MAX_RECORDS", 2)
    lines = [b"x", b"x", b"Killed process 12 (python3)"]
    records(monkeypatch, *lines)
    assert session.last_oom_kill() == ""
