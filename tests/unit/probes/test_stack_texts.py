"""Stacks as text: real dumps of real processes, and whatever else a file may hold."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from mmrepro.probes import stack_texts
from mmrepro.probes.stack_texts import MAX_SAMPLES, read_stacks, short
from mmrepro.probes.stacks import find_py_spy, parse_processes

DUMPS = Path(__file__).parent / "dumps"
CRASH = """
import ctypes, faulthandler, threading, time
faulthandler.enable()
threading.Thread(target=lambda: time.sleep(60), daemon=True).start()
time.sleep(0.1)
def inner(): ctypes.string_at(0)
def outer(): inner()
outer()
"""
WATCHED = """
import faulthandler, sys, threading, time
inside = threading.Event()
def check_loop(file):
    inside.wait()
    for number in (1, 2, 3):
        head = f"{sys.argv[2]}Call stack dump #{number} at {time.ctime()}"
        file.write(head + " due to feed timeout\\n\\n")
        file.flush()
        faulthandler.dump_traceback(file=file, all_threads=True)
        file.write("\\n" + "=" * 64 + "\\n")
        time.sleep(0.05)
def get_response():
    inside.set()
    thread.join()
def run_busy_loop(): get_response()
with open(sys.argv[1], "a") as file:
    thread = threading.Thread(target=check_loop, args=(file,))
    thread.start()
    run_busy_loop()
"""


def lines(name: str) -> list[str]:
    return (DUMPS / name).read_text().split("\n")


def py_spy(pid: int, *options: str) -> str:
    command = [str(find_py_spy()), "dump", "--pid", str(pid), *options]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def functions(sample, thread: str) -> list[str]:
    return [f.name for t in sample.threads if t.name == thread for f in t.frames]


def test_what_py_spy_prints_of_a_live_process_is_read_back(start_victim):
    victim = start_victim("blocked")
    text = py_spy(victim.pid, "--locals")
    found = read_stacks(text.split("\n"))
    [sample] = found.samples
    assert found.whole
    assert found.used == found.lines
    assert (sample.pid, sample.tool) == (victim.pid, "py-spy")
    [process] = parse_processes(py_spy(victim.pid, "--locals", "--json"))
    assert process.pid == victim.pid
    told = {(t.tid, t.name, t.active, t.owns_gil) for t in sample.threads}
    assert told == {(t.tid, t.name, t.active, t.owns_gil) for t in process.threads}
    by_tid = {t.tid: t for t in process.threads}
    for thread in sample.threads:
        asked = by_tid[thread.tid]
        assert [(f.function, f.file, f.line) for f in thread.frames] == [
            (f.function, f.file, f.line) for f in asked.frames
        ]
        assert [set(f.locals) for f in thread.frames] == [
            set(f.locals) for f in asked.frames
        ]


def test_processes_one_after_the_other_are_each_read():
    found = read_stacks(lines("ghost-all.txt"))
    assert [s.pid for s in found.samples] == [16289, 18569, 19354, 18568]
    assert [s.title.split()[0] for s in found.samples][1:3] == [
        "VLLM::EngineCore",
        "VLLM::Worker",
    ]
    assert found.used == found.lines - 4  # the lines of dashes after each


def test_native_frames_have_a_file_and_no_line():
    [sample] = read_stacks(lines("ghost-core-3-native.txt")).samples
    main = next(t for t in sample.threads if t.name == "MainThread")
    native = [f for f in main.frames if ".so" in f.file]
    assert native
    assert all(f.line == 0 for f in native)
    assert "run_busy_loop" in {f.name for f in main.frames}


def test_a_local_that_looks_like_a_frame_is_none():
    text = """Process 7: x
Python v3.12.1 (/usr/bin/python3)

Thread 7 (idle): "MainThread"
    wait (a.py:1)
        Arguments:
            self: <Thing at 0x7f>
        Locals:
            text: fake (b.py:2)
            other: 3
    run (c.py:3)
"""
    [sample] = read_stacks(text.split("\n")).samples
    [thread] = sample.threads
    assert [f.function for f in thread.frames] == ["wait", "run"]
    assert thread.frames[0].locals["text"] == "fake (b.py:2)"


def test_lost_indentation_leaves_the_frames():
    text = "\n".join(line.strip() for line in lines("ghost-core-1.txt"))
    bare, [sample] = (
        read_stacks(lines("ghost-core-1.txt")).samples[0],
        read_stacks(text.split("\n")).samples,
    )
    assert [t.frames for t in sample.threads] == [t.frames for t in bare.threads]


def test_gdbs_threads_have_their_number_and_their_native_frames():
    [sample] = read_stacks(lines("ghost-core-gdb.txt")).samples
    assert (sample.pid, sample.tool, sample.title) == (18569, "gdb", "VLLM::EngineCor")
    assert [t.tid for t in sample.threads] == [20708, 20707, 18598, 18569]
    assert {t.active for t in sample.threads} == {None}
    main = sample.threads[-1]
    assert main.name == "MainThread"
    assert main.frames[0].function == "__futex_abstimed_wait_common64"


def test_gdbs_python_frames_are_joined_with_its_native_ones():
    found = read_stacks([*lines("gdb-bt.txt")[:-2], *lines("gdb-py-bt.txt")[16:]])
    [sample] = found.samples
    worker = next(t for t in sample.threads if t.frames[-1].file == "threading.py")
    names = [f.function for f in worker.frames]
    assert (
        names.index("__GI___clock_nanosleep")
        < names.index("worker")
        < names.index("_bootstrap")
    )
    alone = read_stacks(lines("gdb-py-bt.txt")).samples[0]
    assert functions(alone, "MainThread") == ["main", "<module>"]
    assert alone.pid == 15489


def test_lines_that_gdb_broke_are_one_frame():
    text = """Thread 1 (Thread 0x7f1 (LWP 44) "pt_main_thread"):
#0  0x00007f in cuEventSynchronize (hEvent=0x1,
    flags=2) at
    ../driver/event.c:12
#1  0x00007f in c10::cuda::synchronize(int) () from /opt/torch/lib/libc10_cuda.so
#2  0x00007f in eval (f=Frame 0x7f, for file /x/site-packages/vllm/w.py, line 7, in step (s=1))
    at ceval.c:1
"""
    [sample] = read_stacks(text.split("\n")).samples
    assert [(f.function, f.file, f.line) for f in sample.threads[0].frames] == [
        ("cuEventSynchronize", "../driver/event.c", 12),
        ("c10::cuda::synchronize(int)", "/opt/torch/lib/libc10_cuda.so", 0),
        ("step", "vllm/w.py", 7),
    ]


def test_the_last_words_of_a_process_that_crashes():
    ended = subprocess.run(
        [sys.executable, "-c", CRASH], capture_output=True, text=True
    )
    assert ended.returncode < 0
    [sample] = read_stacks(ended.stderr.split("\n")).samples
    assert (sample.tool, sample.reason) == ("faulthandler", "Segmentation fault")
    assert functions(sample, "MainThread") == [
        "string_at",
        "inner",
        "outer",
        "<module>",
    ]
    assert {t.active for t in sample.threads} == {None}


@pytest.mark.parametrize("before", ["", ">>> "])
def test_a_watchdogs_dumps_are_samples_of_one_process(tmp_path, before):
    """As vllm/utils/watch_dog.py writes them, in both forms of its pull request."""
    file = tmp_path / "dump.log"
    subprocess.run([sys.executable, "-c", WATCHED, str(file), before], check=True)
    found = read_stacks(file.read_text().split("\n"))
    assert found.whole
    assert [s.reason for s in found.samples] == ["feed timeout"] * 3
    assert len({s.pid for s in found.samples}) == 1
    assert all("get_response" in functions(s, "MainThread") for s in found.samples)


def test_stacks_between_a_logs_lines_are_found():
    log = [f"INFO 11-26 00:00:0{n} [core.py:1] ordinary line {n}" for n in range(9)]
    text = [
        *log,
        *lines("ghost-core-1.txt"),
        *log,
        "Fatal Python error: Aborted",
        "",
        "Thread 0x00007f56245b86c0 (most recent call first):",
        '  File "/opt/vllm/site-packages/vllm/x.py", line 3 in waits',
        *log,
    ]
    found = read_stacks(text)
    assert [(s.pid, s.tool) for s in found.samples] == [
        (18569, "py-spy"),
        (-1, "faulthandler"),
    ]
    assert not read_stacks([*log * 20, *text]).whole
    assert (
        found.samples[0].threads
        == read_stacks(lines("ghost-core-1.txt")).samples[0].threads
    )


@pytest.mark.parametrize(
    ("whole", "shown"),
    [
        (
            "/opt/x/lib/python3.12/site-packages/vllm/v1/engine/core.py",
            "vllm/v1/engine/core.py",
        ),
        ("/usr/lib/python3.12/threading.py", "threading.py"),
        ("/workspace/vllm/vllm/v1/engine/core.py", "vllm/v1/engine/core.py"),
        ("core.py", "core.py"),
    ],
)
def test_files_are_named_as_py_spy_names_them(whole, shown):
    assert short(whole) == shown


PARTS = sorted(
    {
        part
        for name in ("ghost-core-2-locals.txt", "gdb-bt.txt", "gdb-py-bt.txt")
        for part in lines(name)[:60]
    }
)
OTHERS = [
    "Fatal Python error: x",
    "Thread 0x1 (most recent call first):",
    "Current thread 0x2 (idle)",
    "Stack (most recent call first):",
    "Traceback (most recent call first):",
    "#0  x",
    "#1",
    "Thread 1 (LWP 1):",
    "Process 1:",
    "Python v3",
    "        Locals:",
    '  File "',
    "    at x:1",
    'Thread 1 (idle): "',
    "Current thread's C stack trace (most recent call first):",
    '  Binary file "/x", at y+0x1 [0x2]',
    "Call stack dump #1 at x due to y",
    "(gdb) ",
    "...",
]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from([*PARTS, *OTHERS]) | st.text(max_size=60), max_size=80))
def test_no_text_makes_it_fail_and_none_counts_twice(text):
    found = read_stacks(text)
    assert 0 <= found.used <= found.lines <= len(text)
    assert all(s.threads for s in found.samples)


def test_what_is_kept_is_bounded():
    one = ["Process 1: x", 'Thread 1 (idle): "a"', "    f (x.py:1)"]
    found = read_stacks(one * (MAX_SAMPLES + 50))
    assert len(found.samples) == MAX_SAMPLES
    deep = [
        *one[:2],
        *["    f (x.py:1)"] * 5000,
        "        Locals:",
        *["            a: b"] * 999,
    ]
    [sample] = read_stacks(deep).samples
    assert len(sample.threads[0].frames) <= 200


def test_a_huge_text_is_kept_in_part(monkeypatch):
    monkeypatch.setattr(stack_texts, "MAX_TOTAL", 50)
    text = lines("ghost-core-2-locals.txt")
    found = read_stacks(text)
    frames = [f for s in found.samples for t in s.threads for f in t.frames]
    assert len(frames) + sum(len(f.locals) for f in frames) == 50
    assert found.used == found.lines


def test_this_process_by_faulthandler_is_main_thread(tmp_path):
    import faulthandler

    done = threading.Event()
    other = threading.Thread(target=done.wait)
    other.start()
    with (tmp_path / "x.txt").open("w") as file:
        faulthandler.dump_traceback(file, all_threads=True)
    done.set()
    other.join()
    [sample] = read_stacks((tmp_path / "x.txt").read_text().split("\n")).samples
    assert len(sample.threads) >= 2
