"""The process tree and the CPU meter on real processes."""

import os
import signal
import time
from types import SimpleNamespace

import psutil
import pytest
from hypothesis import given, strategies as st
from mmrepro.base import processes
from mmrepro.probes import processes as probed
from mmrepro.probes.base import ProbeStatus, run_probe
from mmrepro.probes.processes import (
    CpuMeter,
    ProcessesProbe,
    role_from_title,
    wait_until,
)
from probe_victims import RAN_S, cpu_s, wait_until_it_ran


def test_a_spinning_process_uses_a_core_in_user_space(
    start_victim, evidence, monkeypatch
):
    victim = start_victim("spinning")
    clock = SimpleNamespace(
        monotonic=time.monotonic, sleep=lambda _: wait_until_it_ran(victim.pid)
    )
    monkeypatch.setattr(probed, "time", clock)
    result = run_probe(ProcessesProbe(victim.pid, window_s=0.5), evidence, 5)
    ran_s = cpu_s(victim.pid)
    monkeypatch.undo()
    assert result.status is ProbeStatus.OK, result.reason
    (use,) = result.data.processes
    used_s = use.user_pct / 100 * result.data.window_s
    rounded_s = 0.05 / 100 * result.data.window_s
    assert RAN_S * 0.8 <= used_s <= ran_s + rounded_s
    # A whole core, had others not used this machine.
    assert use.user_pct + use.queued_pct > 60
    assert use.system_pct < use.user_pct
    assert use.threads == 2
    assert use.busiest[0].user_pct > 0.8 * use.user_pct
    assert use.busiest[1].user_pct < 0.2 * use.user_pct
    assert use.rss_bytes > 1 << 20
    assert use.created_wall == pytest.approx(
        psutil.Process(victim.pid).create_time(), abs=1
    )
    assert (evidence / result.raw[0]).exists()


def test_a_blocked_process_sleeps(start_victim, evidence):
    victim = start_victim("blocked")
    (use,) = run_probe(ProcessesProbe(victim.pid, 0.3), evidence, 5).data.processes
    assert use.state == "S"
    assert use.cpu_pct < 10
    assert {thread.state for thread in use.busiest} == {"S"}


def test_children_and_their_roles(start_victim, evidence):
    victim = start_victim("parent")
    data = run_probe(ProcessesProbe(victim.pid, 0.1), evidence, 5).data
    assert [p.pid for p in data.processes] == [victim.pid, *sorted(victim.said)]
    by_pid = {p.pid: p for p in data.processes}
    assert by_pid[victim.said[0]].role == "EngineCore"
    assert by_pid[victim.said[1]].role == by_pid[victim.said[1]].name
    assert by_pid[victim.said[0]].ppid == victim.pid


def test_processes_outside_the_tree_are_found_when_named(start_victim, evidence):
    victim = start_victim("parent")
    root, stranger = victim.said
    alone = run_probe(ProcessesProbe(root, 0.1), evidence, 5).data
    assert [p.pid for p in alone.processes] == [root]
    both = run_probe(ProcessesProbe(root, 0.1, also=[stranger]), evidence, 5).data
    assert [p.pid for p in both.processes] == [root, stranger]


def test_a_process_that_ends_in_between_is_vanished(
    start_victim, evidence, monkeypatch
):
    victim = start_victim("parent")
    child = victim.said[1]

    def end_the_child(_seconds: float) -> None:
        os.kill(child, signal.SIGKILL)
        assert wait_until(lambda: not processes.alive(child), 5)

    monkeypatch.setattr("mmrepro.probes.processes.time.sleep", lambda s: None)
    probe = ProcessesProbe(victim.pid, 0.1)
    read_all, readings = probe._read_all, []

    def read_and_end_one():
        if readings:
            monkeypatch.undo()
            end_the_child(0)
        readings.append(read_all())
        if len(readings) == 2:
            readings[1].pop(child, None)  # a zombie until its parent reaps it
        return readings[-1]

    probe._read_all = read_and_end_one
    data = run_probe(probe, evidence, 5).data
    assert data.vanished == [child]
    assert child not in [p.pid for p in data.processes]


def test_nothing_there_is_unavailable(start_victim, evidence):
    victim = start_victim("blocked")
    victim.kill()
    victim.wait()
    result = run_probe(ProcessesProbe(victim.pid), evidence, 3)
    assert result.status is ProbeStatus.UNAVAILABLE
    assert "does not exist" in result.reason


def test_the_meter_tells_a_spinning_process_from_a_blocked_one(start_victim):
    spinning, blocked = start_victim("spinning"), start_victim("blocked")
    meter = CpuMeter(
        spinning.pid, also=[blocked.pid], role_of=lambda name, line: line[-60:]
    )
    roles = {processes.cmdline(pid)[-60:]: pid for pid in (spinning.pid, blocked.pid)}
    began = time.monotonic()
    first = meter.read()
    assert set(first) == set(roles)
    assert set(first.values()) == {0.0}
    wait_until_it_ran(spinning.pid)
    use = {roles[role]: pct for role, pct in meter.read().items()}
    shown = use[spinning.pid] + 0.05  # it is rounded
    assert shown / 100 * (time.monotonic() - began) >= RAN_S
    assert use[blocked.pid] < min(5, use[spinning.pid] / 2)


def test_the_meter_is_cheap_and_says_when_nothing_is_left(start_victim):
    victim = start_victim("parent")
    meter = CpuMeter(victim.pid)
    meter.read()
    started = time.process_time()
    for _ in range(100):
        meter.read()
    assert (time.process_time() - started) / 100 < 0.002
    victim.kill()
    victim.communicate()
    meter = CpuMeter(victim.pid)
    assert meter.read() == {}


@pytest.mark.parametrize(
    ("name", "cmdline", "role"),
    [
        ("VLLM::EngineCor", "VLLM::EngineCore", "EngineCore"),
        ("VLLM::EngineCor", "VLLM::EngineCore_DP0", "EngineCore_DP0"),
        ("VLLM::Worker_T", "", "Worker_T"),
        ("sglang::schedul", "sglang::scheduler_TP0", "scheduler_TP0"),
        ("python3", "python3 -m vllm.entrypoints.openai.api_server", "python3"),
        (
            "python3",
            "python3 -c from multiprocessing.resource_tracker import x",
            "resource_tracker",
        ),
    ],
)
def test_roles(name, cmdline, role):
    assert role_from_title(name, cmdline) == role


@given(st.binary(max_size=300))
def test_any_stat_line_is_read_or_refused(content):
    processes.parse_stat(content)


@given(st.text(max_size=15))
def test_a_name_with_blanks_and_parentheses_is_read(name):
    tail = " S 1 0 0 0 0 0 0 0 0 0 11 22 0 0 20 0 3 0 777 0 5 0\n"
    stat = processes.parse_stat(
        b"42 (" + name.encode("utf-8", "replace") + b")" + tail.encode()
    )
    assert (stat.pid, stat.state, stat.ppid, stat.threads) == (42, "S", 1, 3)
    assert (stat.user_ticks, stat.system_ticks, stat.start_ticks) == (11, 22, 777)
