"""What the kernel says: who lives, who was stopped by whom, who was killed."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from mmrepro.engines import ENGINES
from mmrepro.failure.signature.live_server import CORE_ALIVE
from mmrepro.live.diagnose import kernel
from mmrepro.live.diagnose.discover import ServerTarget
from mmrepro.live.diagnose.kernel import Kill
from mmrepro.probes.data import LogLine, LogsData
from mmrepro.traffic.evidence import Evidence
from seen import CORE, FRONT, evidence as evidence_of, target


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
        (
            {"processes": [], "root_pid": None, "listening": False, "place": "remote"},
            None,
        ),
    ],
)
def test_a_core_without_a_title_is_not_dead(
    facts: dict[str, Any], lives: bool | None
) -> None:
    assert kernel.core_lives(ServerTarget(target(**facts))) is lives


def test_a_core_that_was_seen_and_is_not_any_more_is_dead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    killed = Kill(
        CORE, "VLLM::EngineCor", 5.0, "", "Killed process 1764 (VLLM::EngineCor)"
    )
    monkeypatch.setattr(kernel, "oom_kills", lambda: [killed])
    evidence = Evidence()
    found = ServerTarget(target(states="S"), titled={(CORE, 100): "VLLM::EngineCore"})
    kernel.note_kernel(found, evidence)
    assert evidence.facts == {}
    kernel.note_kernel(ServerTarget(target()), evidence)
    assert evidence.facts == {CORE_ALIVE: True}
    kernel.note_kernel(found, evidence)
    assert evidence.facts == {CORE_ALIVE: False, "oom": killed.words}
    kernel.note_kernel(ServerTarget(target(states="S")), evidence)
    assert evidence.facts[CORE_ALIVE] is False


def test_exit_codes_and_tracers_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "oom_kills", list)
    monkeypatch.setattr(kernel, "exit_code", {CORE: 9, FRONT: None}.get)
    monkeypatch.setattr(kernel.processes, "tracer", {CORE: 77}.get)
    evidence = Evidence()
    kernel.note_kernel(ServerTarget(target(states="ZZ")), evidence)
    assert evidence.facts == {f"exit:{CORE}": 9, CORE_ALIVE: False}
    evidence = Evidence()
    kernel.note_kernel(ServerTarget(target(states="tt")), evidence)
    assert evidence.facts == {f"tracer:{CORE}": 77, CORE_ALIVE: True}
    evidence = Evidence()
    kernel.note_kernel(ServerTarget(target(states="TS")), evidence)
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
    monkeypatch.setattr(kernel.processes, "read", lambda pid, name: raw)
    assert kernel.exit_code(7) == code


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


HEAP = "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,"


def test_the_kills_of_the_oom_killer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second as this machine's kernel (5.10) wrote it."""
    plain = b"3,1,1000000,-;Out of memory: Killed process 12 (python3) total-vm:1kB"
    where = (
        f"3,2,2000000,-;{HEAP}task_memcg=/a/b,task=VLLM::Worker,pid=13,uid=0".encode()
    )
    group = (
        b"3,3,2500000,-;Memory cgroup out of memory: Killed process 13 "
        b"(VLLM::Worker) total-vm"
    )
    old = b"3,4,3000000,-;Killed process 14 (my) program), UID 0, total-vm:1kB"
    closed = records(
        monkeypatch, b"6,1,1,-;eth0: up", plain, where, group, old, b"6,9,1,-;\xff"
    )
    assert kernel.oom_kills() == [
        Kill(12, "python3", 1.0, "", "Out of memory: Killed process 12 (python3)"),
        Kill(
            13,
            "VLLM::Worker",
            2.5,
            "/a/b",
            "Memory cgroup out of memory: Killed process 13 (VLLM::Worker)",
        ),
        Kill(14, "my) program", 3.0, "", "Killed process 14 (my) program)"),
    ]
    assert closed == [99]
    records(monkeypatch, b"6,1,1,-;eth0: up")
    assert kernel.oom_kills() == []


def test_a_kernel_log_that_is_closed_to_us(monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(path: str, flags: int) -> int:
        assert path == "/dev/kmsg"
        assert flags == os.O_RDONLY | os.O_NONBLOCK
        raise PermissionError(path)

    monkeypatch.setattr(os, "open", closed)
    assert kernel.oom_kills() == []


def test_an_endless_kernel_log_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kernel.MAX_RECORDS == 20_000
    monkeypatch.setattr(kernel, "MAX_RECORDS", 2)
    lines = [b"x", b"x", b"3,1,1,-;Killed process 12 (python3)"]
    records(monkeypatch, *lines)
    assert kernel.oom_kills() == []


# ------------------------------------------------------------------ whose it was


BEGAN_S, GROUP = 1000.0, "/kubepods/pod1"


def killed(pid: int, name: str, at_s: float = 2000.0, cgroup: str = GROUP) -> Kill:
    return Kill(pid, name, at_s, cgroup, f"Killed process {pid} ({name})")


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> ServerTarget:
    """A server of front, core and two workers, all of which were seen; nobody lives but
    the front."""
    began = int(BEGAN_S * kernel.processes.TICKS_PER_S)
    front = kernel.processes.Stat(FRONT, "python3", "S", 1, 0, 0, 1, began, 0)
    monkeypatch.setattr(kernel.processes, "stat", {FRONT: front}.get)
    monkeypatch.setattr(kernel.processes, "memory_cgroup", {FRONT: GROUP}.get)
    return ServerTarget(
        target(states="SZ"), ENGINES["vllm"], titled={(CORE, began): "VLLM::EngineCore"}
    )


@pytest.mark.parametrize(
    ("kill", "words"),
    [
        (killed(CORE, "VLLM::EngineCor"), "Killed process 1764 (VLLM::EngineCor)"),
        (killed(CORE, "python3"), "Killed process 1764 (python3)"),
        (killed(CORE, "VLLM::EngineCor", 990.0), ""),  # one that had its number before
        (killed(99, "python3"), ""),
        (killed(99, "chrome"), ""),
        (killed(99, "sglang::schedul"), ""),
        (
            killed(99, "VLLM::Worker_TP"),
            "Killed process 99 (VLLM::Worker_TP), by its name a process of this engine",
        ),
        (killed(99, "VLLM::Worker_TP", 990.0), ""),
        (killed(99, "VLLM::Worker_TP", cgroup="/kubepods/pod2"), ""),
        (killed(99, "VLLM::Worker_TP", cgroup=""), ""),
        (killed(99, "VLLM::DPCoordin"), ""),
    ],
)
def test_only_a_kill_of_this_server_is_quoted(
    here: ServerTarget, kill: Kill, words: str
) -> None:
    assert kernel.oom_kill(here, Evidence(), [kill]) == words
    later = killed(7, "chrome", 3000.0)
    assert kernel.oom_kill(here, Evidence(), [kill, later]) == words


def test_a_process_that_lives_was_not_killed(here: ServerTarget) -> None:
    here.titled[FRONT, int(BEGAN_S * kernel.processes.TICKS_PER_S)] = "python3"
    assert kernel.oom_kill(here, Evidence(), [killed(FRONT, "python3")]) == ""


@pytest.mark.parametrize(
    ("process", "kill", "quoted"),
    [
        ("EngineCore pid=19", killed(19, "VLLM::EngineCor"), True),
        ("Worker_TP1 pid=19", killed(19, "VLLM::Worker_TP"), True),
        ("Worker_TP1 pid=19", killed(19, "VLLM::EngineCor"), False),
        ("EngineCore pid=19", killed(20, "VLLM::EngineCor"), False),
        ("EngineCore pid=19", killed(19, "chrome", 1.0), False),
        ("", killed(19, "VLLM::EngineCor"), False),
    ],
)
def test_of_a_server_that_is_gone_the_log_has_the_number(
    process: str, kill: Kill, quoted: bool, tmp_path: Path
) -> None:
    gone = target(processes=[], root_pid=None, listening=False)
    evidence = logged(tmp_path, process)
    assert (
        bool(kernel.oom_kill(ServerTarget(gone, ENGINES["vllm"]), evidence, [kill]))
        is quoted
    )


def test_a_front_without_a_title_ends_its_log(tmp_path: Path) -> None:
    gone = ServerTarget(
        target(processes=[], root_pid=None, listening=False), ENGINES["vllm"]
    )
    now_s = kernel.processes.now_ticks() / kernel.processes.TICKS_PER_S
    for seconds_ago, quoted in ((5.0, True), (600.0, False)):
        kill = killed(18, "python3", now_s - seconds_ago)
        found = kernel.oom_kill(gone, logged(tmp_path, "APIServer pid=18"), [kill])
        assert bool(found) is quoted


def logged(folder: Path, process: str) -> Evidence:
    log = folder / "server.log"
    log.write_text("x")
    line = LogLine(number=1, text="x", process=process)
    return evidence_of(
        LogsData(file=str(log), bytes_read=1, lines=1, last_by_process={process: line})
    )


@pytest.mark.parametrize(
    ("lines", "path"),
    [
        (b"4:memory:/a/b\n0::/\n", "/a/b"),
        (b"4:cpu,memory:/a/b\n0::/c\n", "/a/b"),
        (b"0::/user.slice/x:y.scope\n", "/user.slice/x:y.scope"),
        (b"", ""),
    ],
)
def test_the_memory_cgroup(
    monkeypatch: pytest.MonkeyPatch, lines: bytes, path: str
) -> None:
    monkeypatch.setattr(kernel.processes, "read", lambda pid, name: lines)
    assert kernel.processes.memory_cgroup(7) == path
