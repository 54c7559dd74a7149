"""Real py-spy dumps of real victims."""

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from mmrepro.base import processes
from mmrepro.probes import stacks
from mmrepro.probes.base import ProbeStatus, run_probe
from mmrepro.probes.data import StackSample
from mmrepro.probes.stacks import PySpyDump, SampleOutcome, StacksProbe, parse_dump

LOCAL_REPR_LIMIT = 200


def in_popitem(samples: Sequence[StackSample]) -> bool:
    frames = [frame for s in samples for t in s.threads for frame in t.frames]
    return any(frame.function.endswith("popitem") for frame in frames)


def test_names_the_spinning_function_its_thread_and_its_locals(start_victim, evidence):
    victim = start_victim("spinning")
    result = run_probe(
        StacksProbe([victim.pid], samples=3), evidence, 10, phase="check"
    )
    assert result.status is ProbeStatus.OK, result.reason
    assert len(result.data.samples) == 3
    holders = []
    for sample in result.data.samples:
        thread = next(t for t in sample.threads if t.name == "process_input_sockets")
        innermost = thread.frames[0]
        assert innermost.function.endswith("popitem")
        assert thread.active
        holders.append(thread.owns_gil)
        assert innermost.line > 0
        assert {"self", "needle", "count"} <= set(innermost.locals)
        assert len(innermost.locals["needle"]) <= LOCAL_REPR_LIMIT
    # Not in every sample: the GIL changes hands for a moment, and the process was not
    # paused.
    assert any(holders)
    assert result.raw == [f"check-stacks-{victim.pid}-0{n}.json" for n in range(3)]
    assert isinstance(json.loads((evidence / result.raw[0]).read_text()), list)


def test_a_blocked_thread_is_not_active(start_victim, evidence):
    victim = start_victim("blocked")
    result = run_probe(StacksProbe([victim.pid], samples=2), evidence, 10)
    main = [t for s in result.data.samples for t in s.threads if t.name == "MainThread"]
    assert main[-1].frames[0].function == "wait_for_ever"
    assert not main[-1].active
    assert not main[-1].owns_gil


def test_locals_can_be_left_out(start_victim, evidence):
    victim = start_victim("spinning")
    result = run_probe(StacksProbe([victim.pid], samples=1, locals=False), evidence, 10)
    assert not any(f.locals for t in result.data.samples[0].threads for f in t.frames)


def test_until_ends_the_sampling_early_but_not_before_min_samples(
    start_victim, evidence
):
    victim = start_victim("spinning")
    probe = StacksProbe([victim.pid], samples=50, until=in_popitem, min_samples=2)
    assert len(run_probe(probe, evidence, 20).data.samples) == 2


def test_what_no_sample_shows_is_looked_for_with_pauses(start_victim, evidence):
    victim = start_victim("spinning")
    probe = StacksProbe(
        [victim.pid], samples=3, interval_s=0, until=lambda _: False, pausing=2
    )
    samples = run_probe(probe, evidence, 20).data.samples
    assert [s.blocking for s in samples[-2:]] == [True, True]
    assert len(samples) == 5
    assert processes.stat(victim.pid).state not in ("T", "t")


@pytest.mark.parametrize("quiet", [{"until": None}, {"blocking_fallback": False}])
def test_nothing_is_paused_for_nothing(start_victim, evidence, quiet):
    victim = start_victim("blocked")
    arguments = {"until": lambda _: False, "pausing": 2, "samples": 3, **quiet}
    samples = run_probe(
        StacksProbe([victim.pid], **arguments), evidence, 20
    ).data.samples
    assert [s.blocking for s in samples] == [False] * 3


def test_a_process_that_is_gone_is_said_to_be_gone(start_victim, evidence):
    victim = start_victim("blocked")
    victim.kill()
    victim.wait()
    result = run_probe(StacksProbe([victim.pid]), evidence, 5)
    assert result.status is ProbeStatus.UNAVAILABLE
    assert "does not exist" in result.reason


def test_a_zombie_is_said_to_have_exited(start_victim, evidence):
    victim = start_victim("blocked")
    os.kill(victim.pid, signal.SIGKILL)
    os.waitid(os.P_PID, victim.pid, os.WEXITED | os.WNOWAIT)  # dead but not reaped
    result = run_probe(StacksProbe([victim.pid]), evidence, 5)
    assert result.status is ProbeStatus.UNAVAILABLE
    assert "has exited" in result.reason


def test_one_gone_process_does_not_spoil_the_others(start_victim, evidence):
    living, dead = start_victim("spinning"), start_victim("blocked")
    dead.kill()
    dead.wait()
    result = run_probe(StacksProbe([dead.pid, living.pid], samples=2), evidence, 10)
    assert result.ok
    assert [s.pid for s in result.data.samples if s.threads] == [living.pid] * 2
    assert [s.pid for s in result.data.samples if s.error] == [dead.pid]


def test_what_is_not_python_is_said_to_be_so(evidence):
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as cat:
        result = run_probe(StacksProbe([cat.pid]), evidence, 5)
    assert result.status is ProbeStatus.UNAVAILABLE
    assert "does not run Python" in result.reason


def test_an_interpreter_that_was_not_found_in_a_moment_is_looked_for_again(
    start_victim, evidence, tmp_path, monkeypatch
):
    """As py-spy said once of a vLLM that it had sampled before and that used a whole
    core."""
    victim = start_victim("blocked")
    once = tmp_path / "once"
    error = "Error: Failed to find a python interpreter in the .data section"
    program = f"""
import os, pathlib, sys
once = pathlib.Path({str(once)!r})
if not once.exists():
    once.touch()
    sys.exit({error!r})
os.execv({str(stacks.find_py_spy())!r}, ["py-spy", *sys.argv[1:]])"""
    script = fake_py_spy(tmp_path, program)
    monkeypatch.setattr(stacks, "find_py_spy", lambda: script)
    result = run_probe(StacksProbe([victim.pid], samples=1), evidence, 10)
    assert once.exists()
    assert result.ok, result.reason
    assert result.data.samples[0].threads


def test_a_stopped_process_is_sampled_and_left_stopped(start_victim, evidence):
    victim = start_victim("blocked")
    os.kill(victim.pid, signal.SIGSTOP)
    os.waitpid(victim.pid, os.WUNTRACED)
    result = run_probe(StacksProbe([victim.pid], samples=1), evidence, 10)
    assert result.ok, result.reason
    assert processes.stat(victim.pid).state == "T"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_a_denied_process_comes_with_how_to_allow_it(
    start_victim, evidence, monkeypatch
):
    victim = start_victim("blocked")
    # py-spy itself runs as nobody: from a place that nobody may read.
    folder = Path("/tmp") / f"mmrepro-test-{os.getpid()}"
    folder.mkdir(mode=0o755)
    try:
        real = shutil.copy(stacks.find_py_spy(), folder / "real")
        wrapper = folder / "py-spy"
        wrapper.write_text(
            f"#!{shutil.which('setpriv') and '/bin/sh'}\n"
            f'exec setpriv --reuid 65534 --regid 65534 --clear-groups {real} "$@"\n'
        )
        for file in (Path(real), wrapper):
            file.chmod(0o755)
        monkeypatch.setattr(stacks, "find_py_spy", lambda: wrapper)
        probe = StacksProbe([victim.pid])
        result = run_probe(probe, evidence, 10)
    finally:
        shutil.rmtree(folder)
    assert result.status is ProbeStatus.UNAVAILABLE
    for hint in (
        "CAP_SYS_PTRACE",
        "kernel.yama.ptrace_scope",
        "--cap-add SYS_PTRACE",
        "root",
    ):
        assert hint in result.reason
    assert list(result.data.denied) == [victim.pid]


def test_torn_reads_are_retried_then_one_sample_pauses(
    start_victim, evidence, monkeypatch
):
    victim = start_victim("blocked")
    calls: list[bool] = []

    def torn_unless_blocking(
        py_spy, pid, *, blocking, with_locals, timeout_s, native=False
    ):
        calls.append(blocking)
        if not blocking:
            return PySpyDump(SampleOutcome.TORN, [], b"", "Bad address")
        return real(
            py_spy, pid, blocking=True, with_locals=with_locals, timeout_s=timeout_s
        )

    real = stacks.dump
    monkeypatch.setattr(stacks, "dump", torn_unless_blocking)
    result = run_probe(StacksProbe([victim.pid], samples=1), evidence, 10)
    assert calls == [False, False, False, False, True]
    assert result.data.samples[0].blocking
    assert result.data.samples[0].threads
    calls.clear()
    result = run_probe(
        StacksProbe([victim.pid], 1, blocking_fallback=False), evidence, 10
    )
    assert True not in calls
    assert "Bad address" in result.reason


def fake_py_spy(folder: Path, code: str) -> Path:
    script = folder / "py-spy"
    script.write_text(f"#!{sys.executable}\n{code}\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return script


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import sys\nwhile True: sys.stdout.write('[' * 65536)", "no sample in time"),
        ("print('garbage')", "unreadable py-spy output"),
        ("print('[' * 100000)", "unreadable py-spy output"),
        ("import sys; sys.exit('boom')", "boom"),
    ],
)
def test_a_misbehaving_py_spy_is_bounded(
    start_victim, evidence, tmp_path, monkeypatch, code, reason
):
    victim = start_victim("blocked")
    monkeypatch.setattr(stacks, "find_py_spy", lambda: fake_py_spy(tmp_path, code))
    monkeypatch.setattr(stacks, "MAX_JSON_BYTES", 1 << 20)
    result = run_probe(
        StacksProbe([victim.pid], 1, blocking_fallback=False), evidence, 10
    )
    assert result.status is ProbeStatus.UNAVAILABLE
    assert reason in result.reason


def test_a_py_spy_that_hangs_is_ended_at_the_deadline(
    start_victim, evidence, tmp_path, monkeypatch
):
    victim = start_victim("blocked")
    hang = fake_py_spy(tmp_path, "import signal; signal.pause()")
    monkeypatch.setattr(stacks, "find_py_spy", lambda: hang)
    started = time.monotonic()
    result = run_probe(StacksProbe([victim.pid]), evidence, 1)
    assert result.status is ProbeStatus.TIMED_OUT
    assert time.monotonic() - started < 60


def test_without_py_spy_it_is_unavailable(evidence, monkeypatch):
    monkeypatch.setattr(stacks, "find_py_spy", lambda: None)
    assert "not installed" in run_probe(StacksProbe([os.getpid()]), evidence, 1).reason


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner)
    ),
    max_leaves=10,
)
frames = st.fixed_dictionaries(
    {"name": json_values, "line": json_values, "short_filename": json_values},
    optional={
        "locals": st.lists(
            st.dictionaries(st.sampled_from(["name", "repr"]), json_values)
        )
    },
)
threads = st.fixed_dictionaries(
    {
        "active": json_values,
        "owns_gil": json_values,
        "frames": st.lists(frames, max_size=3),
    },
    optional={
        "thread_name": st.just("\ud800") | json_values,
        "os_thread_id": json_values,
    },
)


@given(st.lists(threads, max_size=3) | json_values)
def test_any_json_is_read_or_refused(document):
    try:
        found = parse_dump(json.dumps(document).encode())
    except ValueError:
        return
    for thread in found:
        thread.model_dump_json()


def test_frames_and_locals_are_bounded():
    variable = {"name": "v", "repr": "r" * 1000}
    frame = {
        "name": "f" * 5000,
        "line": 1,
        "filename": "x.py",
        "locals": [{**variable, "name": f"v{n}"} for n in range(99)],
    }
    thread = {"active": True, "owns_gil": False, "frames": [frame] * 300}
    (found,) = parse_dump(json.dumps([thread]).encode())
    assert len(found.frames) == stacks.MAX_FRAMES
    assert len(found.frames[0].locals) == stacks.MAX_LOCALS
    assert max(map(len, found.frames[0].locals.values())) == LOCAL_REPR_LIMIT
