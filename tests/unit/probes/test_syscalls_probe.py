"""Spinning told from blocked, on real processes and by properties of the decision."""

import os
import shutil
import signal
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st
from mmrepro.base import processes
from mmrepro.probes import syscalls
from mmrepro.probes.base import ProbeStatus, run_probe
from mmrepro.probes.processes import wait_until
from mmrepro.probes.syscalls import (
    ENOUGH_S,
    Load,
    StraceRefused,
    SyscallsProbe,
    judge,
    parse_table,
    syscall_name,
    waiting_threads,
)
from probe_victims import cpu_s

needs_strace = pytest.mark.skipif(
    shutil.which("strace") is None, reason="strace is not installed"
)
METHODS = [
    pytest.param(True, marks=needs_strace, id="strace"),
    pytest.param(False, id="proc"),
]

WINDOWS_S = (0.5, 1, 2, 4, 8, 16)
"""Each is longer than the one before: a victim on a busy machine has a small share."""


def collect(pid: int, evidence, use_strace: bool, window_s: float = 0.5):
    result = run_probe(
        SyscallsProbe(pid, window_s, use_strace), evidence, window_s + 10
    )
    assert result.status is ProbeStatus.OK, result.reason
    return result.data


def collect_while_it_runs(pid: int, evidence, use_strace: bool):
    """Watch it for longer until it had some time on a core, however small its share.

    Thirty clock ticks: of ten, the one that met it in the kernel would already be a
    tenth of its user time."""
    for window_s in WINDOWS_S:
        before = cpu_s(pid)
        data = collect(pid, evidence, use_strace, window_s)
        if cpu_s(pid) - before >= 10 * ENOUGH_S:
            break
    return data


def assert_runs_untraced(pid: int) -> None:
    assert processes.tracer(pid) == 0
    assert processes.stat(pid).state in "RSD"


@pytest.mark.parametrize("use_strace", METHODS)
def test_a_spinning_process_spins_in_user_space(start_victim, evidence, use_strace):
    victim = start_victim("spinning")
    # Its main thread gets to its read only once the spinning thread lends it the GIL.
    assert wait_until(
        lambda: [*waiting_threads(victim.pid)[2].values()] == ["read"], 10
    )
    data = collect_while_it_runs(victim.pid, evidence, use_strace)
    assert data.verdict == "spinning-in-user-space", data.why
    assert data.method == ("strace" if use_strace else "proc")
    assert data.user_pct > 10 * data.system_pct
    assert data.waiting_in == {"read": 1}
    assert_runs_untraced(victim.pid)


@pytest.mark.parametrize("use_strace", METHODS)
def test_a_blocked_process_is_blocked_and_not_spinning(
    start_victim, evidence, use_strace
):
    victim = start_victim("blocked")
    data = collect(victim.pid, evidence, use_strace)
    assert data.verdict == "blocked", data.why
    assert data.waiting_in == {"futex": 1, "read": 1}
    assert_runs_untraced(victim.pid)


@needs_strace
def test_calls_are_counted_by_name(start_victim, evidence):
    victim = start_victim("calling")
    # How many it makes in half a second is up to its share of a processor: 17 were seen.
    for window_s in WINDOWS_S:
        data = collect(victim.pid, evidence, use_strace=True, window_s=window_s)
        stats = {name: n for name, n in data.counts.items() if "stat" in name}
        if sum(stats.values()) > 200:
            break
    assert sum(stats.values()) > 200
    assert data.total == sum(data.counts.values())
    assert data.verdict in ("working", "busy-in-kernel"), data.why
    assert_runs_untraced(victim.pid)


def test_calls_without_end_are_not_spinning_even_uncounted(start_victim, evidence):
    victim = start_victim("calling")
    assert (
        collect(victim.pid, evidence, use_strace=False).verdict
        != "spinning-in-user-space"
    )


@needs_strace
def test_a_stubborn_strace_is_ended_and_the_target_runs_on(
    start_victim, evidence, tmp_path, monkeypatch
):
    victim = start_victim("blocked")
    # -I 4: strace blocks SIGINT and SIGTERM. Only SIGKILL ends it, and then it writes
    # no table.
    real = shutil.which("strace")
    stubborn = tmp_path / "strace"
    stubborn.write_text(f'#!/bin/sh\nexec {real} -I 4 "$@"\n')
    stubborn.chmod(0o755)
    monkeypatch.setattr(syscalls, "DETACH_S", 0.2)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    data = collect(victim.pid, evidence, use_strace=True, window_s=0.2)
    assert (data.method, data.total) == ("proc", None)
    assert "was killed" in data.why
    assert_runs_untraced(victim.pid)


def test_a_stopped_process_is_blocked_and_left_stopped(start_victim, evidence):
    victim = start_victim("spinning")
    os.kill(victim.pid, signal.SIGSTOP)
    os.waitpid(victim.pid, os.WUNTRACED)
    data = collect(victim.pid, evidence, use_strace=False, window_s=0.2)
    assert data.verdict == "blocked"
    assert "stopped" in data.why
    assert processes.stat(victim.pid).state == "T"


def test_a_refused_strace_falls_back_to_proc_and_says_so(
    start_victim, evidence, monkeypatch
):
    victim = start_victim("blocked")

    def refuse(pid, window_s):
        raise StraceRefused("strace may not trace it")

    monkeypatch.setattr("mmrepro.probes.syscalls.count_calls", refuse)
    data = collect(victim.pid, evidence, use_strace=True, window_s=0.2)
    assert data.method == "proc"
    assert data.verdict == "blocked"
    assert "strace may not trace it" in data.why


@needs_strace
def test_strace_says_why_it_was_refused(start_victim, tmp_path, monkeypatch):
    victim = start_victim("blocked")
    refused = tmp_path / "strace"
    refused.write_text(
        "#!/bin/sh\necho 'strace: attach: ptrace(PTRACE_SEIZE, 1): Operation not "
        "permitted' >&2\n"
        "exit 1\n"
    )
    refused.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(StraceRefused, match="CAP_SYS_PTRACE"):
        syscalls.count_calls(victim.pid, 0.2)


def test_a_gone_process_is_unavailable(start_victim, evidence):
    victim = start_victim("blocked")
    victim.kill()
    victim.wait()
    result = run_probe(SyscallsProbe(victim.pid), evidence, 8)
    assert result.status is ProbeStatus.UNAVAILABLE
    assert "does not exist" in result.reason


TABLE = """\
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 98.10    0.001234          10       123         3 futex
  1.90    0.000010           0        20           epoll_wait
------ ----------- ----------- --------- --------- ----------------
100.00    0.001244           8       143         3 total
"""


def test_the_strace_table_is_read():
    assert parse_table(TABLE) == {"futex": 123, "epoll_wait": 20}
    assert parse_table("") == {}


@given(st.text() | st.lists(st.sampled_from(TABLE.splitlines())).map("\n".join))
def test_any_table_is_read_without_raising(text):
    assert all(calls >= 0 for calls in parse_table(text).values())


pct = st.floats(0, 800)
rate = st.floats(0, 1e6)
counts = st.integers(0, 50)
loads = st.builds(
    Load,
    user_pct=pct,
    system_pct=pct,
    busiest_user_pct=pct,
    busiest_system_pct=pct,
    queued_pct=st.floats(0, 100),
    switches_per_s=rate,
    threads=counts,
    asleep=counts,
    stopped=counts,
    calls_per_s=st.none() | rate,
    lock_calls_per_s=rate,
)


def thread_at(tid, ticks, switches=0):
    stat = processes.Stat(tid, "t", "S", 1, ticks, 0, 2, 0, 0)
    return processes.Thread(stat, 0.0, switches, 0)


def test_the_busiest_thread_is_the_one_whose_calls_are_counted():
    before = {tid: thread_at(tid, 0) for tid in (8, 9)}
    after = {8: thread_at(8, 1, 7), 9: thread_at(9, 90, 3)}
    load = syscalls._measure(before, after, 1.0, 0, 0)
    assert (load.busiest_tid, load.switches_per_s) == (9, 3.0)
    assert load.busiest_user_pct > 80
    idle = syscalls._measure(before, before, 1.0, 2, 0)
    assert (idle.busiest_tid, idle.switches_per_s, idle.asleep) == (0, 0.0, 2)


@given(loads)
def test_the_verdict_always_has_its_reasons(load):
    verdict, why = judge(load)
    assert f"{load.user_pct:.0f} %" in why
    if verdict == "spinning-in-user-space":
        assert load.busiest_user_pct / 100 * load.seconds >= ENOUGH_S
        assert load.busiest_system_pct < load.busiest_user_pct
        assert load.busiest_user_pct + load.queued_pct >= 70
    if verdict == "blocked":
        assert load.stopped == load.threads or load.user_pct + load.system_pct < 5
    if verdict == "busy-in-kernel":
        assert load.system_pct > load.user_pct


@given(loads, st.floats(2000, 1e6))
def test_many_calls_are_never_spinning_nor_blocked_unless_stopped(load, calls):
    verdict, _ = judge(
        replace(load, calls_per_s=calls + load.lock_calls_per_s, stopped=-1)
    )
    assert verdict in ("working", "busy-in-kernel")


@given(loads)
def test_an_idle_process_is_never_spinning(load):
    idle = replace(load, user_pct=1.0, system_pct=1.0, busiest_user_pct=1.0)
    assert judge(idle)[0] != "spinning-in-user-space"


REPORT = Load(136.0, 1.0, 100.0, 0.5, 0.0, 3.0, threads=30, asleep=29, stopped=0)


def test_the_bug_reports_numbers_are_spinning():
    """vllm#43941: EngineCore at 136 % CPU, 8 futex calls in 3 s."""
    seen = replace(REPORT, calls_per_s=8 / 3, lock_calls_per_s=8 / 3)
    assert judge(seen)[0] == "spinning-in-user-space"


def test_threads_queueing_for_the_gil_do_not_hide_a_spin():
    contended = replace(REPORT, calls_per_s=650.0, lock_calls_per_s=640.0)
    assert judge(contended)[0] == "spinning-in-user-space"


def test_polling_threads_beside_it_do_not_hide_a_spin():
    """vLLM 0.14.0 idles with some 1200 epoll_wait a second, hung or not."""
    polled = replace(REPORT, calls_per_s=1231.0)
    assert judge(polled)[0] == "working"
    assert (
        judge(replace(polled, busiest_calls_per_s=0.0))[0] == "spinning-in-user-space"
    )
    assert judge(replace(polled, busiest_calls_per_s=900.0))[0] == "working"


@needs_strace
def test_the_busiest_thread_is_counted_alone_where_others_poll(start_victim, evidence):
    victim = start_victim("spinning-beside-a-poller")
    for _ in range(20):
        data = collect_while_it_runs(victim.pid, evidence, use_strace=True)
        assert data.verdict == "spinning-in-user-space", data.why
        # The other one polled often enough to be doubted.
        if "of its busiest thread" in data.why:
            break
    else:
        pytest.fail(f"it never polled: {data.why}")
    assert_runs_untraced(victim.pid)


def test_half_a_core_on_a_crowded_machine_is_still_spinning():
    crowded = replace(REPORT, user_pct=50.0, busiest_user_pct=50.0, queued_pct=49.0)
    assert judge(crowded)[0] == "spinning-in-user-space"
    sleepy = replace(crowded, queued_pct=0.0)
    assert judge(sleepy)[0] == "unclear"


def starved(share: float, **more: float) -> Load:
    """The report's process with ``share`` of the core that its busiest thread asks
    for."""
    pct = 100 * share
    return replace(
        REPORT,
        **{"user_pct": pct, "busiest_user_pct": pct, "busiest_system_pct": 0.0},
        **{"queued_pct": 100 - pct, "switches_per_s": 3 * share, **more},
    )


@pytest.mark.parametrize("share", [0.5, 0.09, 0.04, 0.015])
def test_a_small_share_of_a_core_changes_no_verdict(share):
    assert judge(starved(share))[0] == "spinning-in-user-space"
    # Rates are those of the time on a core: a thread that works makes calls in that
    # time only.
    for rates in ({"switches_per_s": 120 * share}, {"calls_per_s": 250 * share}):
        assert judge(starved(share, **rates))[0] != "spinning-in-user-space"
    alone = {"calls_per_s": 1231.0, "busiest_calls_per_s": 250 * share}
    assert judge(starved(share, **alone))[0] == "working"
    assert (
        judge(starved(share, seconds=ENOUGH_S / share * 0.9))[0]
        != "spinning-in-user-space"
    )


def test_system_calls_have_names():
    assert syscall_name(202, "x86_64") == "futex"
    assert syscall_name(98, "aarch64") == "futex"
    assert syscall_name(9999, "x86_64") == "syscall_9999"
    assert syscall_name(1, "riscv64") == "syscall_1"
