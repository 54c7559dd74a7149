"""Files beside a log: known by their contents, in whatever a collector wrapped them."""

import gzip
import subprocess
import sys
from pathlib import Path

import pytest
from backports import zstd
from hypothesis import given, settings, strategies as st
from mmrepro.probes.data import DumpKind, GpuData, MetricsData, StacksData
from mmrepro.probes.dumps import kind_of, read_dump, stacks_in_log
from mmrepro.probes.gpu_texts import parse_nvidia_smi

DUMPS = Path(__file__).parent / "dumps"
KINDS = {
    "ghost-core-1.txt": DumpKind.PY_SPY,
    "ghost-core-2-locals.txt": DumpKind.PY_SPY,
    "ghost-core-3-native.txt": DumpKind.PY_SPY,
    "ghost-core-4.json": DumpKind.PY_SPY,
    "ghost-all.txt": DumpKind.PY_SPY,
    "ghost-core-gdb.txt": DumpKind.GDB,
    "gdb-bt.txt": DumpKind.GDB,
    "gdb-py-bt.txt": DumpKind.GDB,
    "ghost-metrics.txt": DumpKind.METRICS,
    "nvidia-smi.txt": DumpKind.NVIDIA_SMI,
    "nvidia-smi-q.txt": DumpKind.NVIDIA_SMI,
    "sglang-0.5.17.pkl": DumpKind.REQUESTS,
    "sglang-0.5.23.pkl": DumpKind.REQUESTS,
}
SGLANG_LOG = """\
[2026-11-26 00:10:00 TP0] Decode batch. #running-req: 1, #token: 10, token usage: 0.01
[2026-11-26 00:15:00 TP0] Pyspy dump for PID 18569 (py-spy dump --native --pid 18569):
{dump}
[2026-11-26 00:15:00 TP0] Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)
"""
"""As sglang/srt/utils/cudacore_pyspy_dump_utils.py and utils/watchdog.py of 0.5.23
print it."""


def text(name: str) -> str:
    return (DUMPS / name).read_text()


@pytest.mark.parametrize(("name", "kind"), KINDS.items())
def test_a_file_is_known_by_its_contents(tmp_path, name, kind):
    file = tmp_path / "anything"
    file.write_bytes((DUMPS / name).read_bytes())
    assert kind_of(file) is kind
    dump = read_dump(file)
    assert dump.data is not None, dump.error


def stamped(lines: list[str], prefix: str) -> bytes:
    return "\n".join(prefix + line for line in lines).encode()


WRAPPED = {
    "as it is": lambda t: t.encode(),
    "crlf": lambda t: t.replace("\n", "\r\n").encode(),
    "utf-8 with a mark": lambda t: b"\xef\xbb\xbf" + t.encode(),
    "utf-16": lambda t: t.encode("utf-16"),
    "gzip": lambda t: gzip.compress(t.encode()),
    "zstd": lambda t: zstd.compress(t.encode()),
    "docker -t": lambda t: stamped(t.split("\n"), "2026-11-26T00:10:00.123456789Z "),
    "compose": lambda t: stamped(t.split("\n"), "vllm-1  | "),
    "quoted": lambda t: stamped(t.split("\n"), "> "),
    "colours": lambda t: (
        t.replace("Process ", "Process \x1b[1;33m")
        .replace("Thread ", "Thread \x1b[1m\x1b[33m")
        .replace(" (idle)", "\x1b[0m (idle)")
        .encode()
    ),
}


@pytest.mark.parametrize("wrapping", WRAPPED)
@pytest.mark.parametrize("name", ["ghost-core-1.txt", "ghost-all.txt", "gdb-py-bt.txt"])
def test_a_wrapped_dump_reads_the_same(tmp_path, name, wrapping):
    file = tmp_path / "dump"
    file.write_bytes(WRAPPED[wrapping](text(name)))
    assert kind_of(file) is KINDS[name]
    wrapped, plain = read_dump(file).data, read_dump(DUMPS / name).data
    assert isinstance(wrapped, StacksData)
    assert isinstance(plain, StacksData)
    assert [(s.pid, s.threads) for s in wrapped.samples] == [
        (s.pid, s.threads) for s in plain.samples
    ]


@pytest.mark.parametrize(
    "other",
    [
        "",
        "\n\n",
        "INFO 11-26 00:00:00 [core.py:1] a line\n" * 50,
        "# a page\n\nwith text\n",
        "[]",
        "[1, 2]",
        '{"a": 1}',
        "a, b\n1, 2\n",
        "Thread 1 is idle\nProcess 2 too\n",
        'Traceback (most recent call last):\n  File "x", line 1, in y\nValueError: z\n',
    ],
)
def test_what_is_no_dump_is_none(tmp_path, other):
    file = tmp_path / "x"
    file.write_text(other)
    assert kind_of(file) is None
    assert stacks_in_log(file) is None


def test_what_cannot_be_opened_is_none(tmp_path):
    assert kind_of(tmp_path / "absent") is None
    assert kind_of(tmp_path) is None
    (tmp_path / "broken.gz").write_bytes(b"\x1f\x8bnot gzip at all")
    assert kind_of(tmp_path / "broken.gz") is None


@pytest.mark.parametrize("prefix", ["", "2026-11-26T00:15:00.1Z ", "sglang-1  | "])
def test_a_py_spy_dump_inside_sglangs_log(tmp_path, prefix):
    log = SGLANG_LOG.format(dump=text("ghost-core-3-native.txt"))
    busy = "\n".join(log.split("\n")[:1] * 100 + log.split("\n"))
    file = tmp_path / "server.log"
    file.write_text("\n".join(prefix + line for line in busy.split("\n")))
    assert kind_of(file) is None
    found = stacks_in_log(file)
    assert found is not None
    [sample] = found.samples
    [alone] = read_dump(DUMPS / "ghost-core-3-native.txt").data.samples
    assert (sample.pid, sample.threads) == (alone.pid, alone.threads)


def test_a_few_lines_of_a_log_around_a_dump_make_it_a_log(tmp_path):
    """As threads show it: the watchdog's lines and what py-spy printed between them."""
    file = tmp_path / "excerpt"
    file.write_text(SGLANG_LOG.format(dump=text("ghost-all.txt")))
    assert kind_of(file) is None
    assert len(stacks_in_log(file).samples) == 4


def test_stacks_far_inside_a_long_log_and_across_its_blocks(tmp_path):
    """The title of a process may stand in another megabyte than its threads."""
    line = "INFO 11-26 00:00:00 [core.py:1] nothing of note\n"
    dump = text("ghost-core-1.txt").rstrip() + "\n"
    for spare in (20, 400, 2000):
        file = tmp_path / "server.log"
        file.write_text(
            "x" * ((1 << 20) - spare - 1) + "\n" + dump + line * 40000 + dump
        )
        found = stacks_in_log(file)
        assert [s.pid for s in found.samples] == [18569, 18569]
        assert {len(s.threads) for s in found.samples} == {5}


def test_last_words_carry_the_process_that_marks_its_lines(tmp_path):
    words = [
        "Fatal Python error: Aborted",
        "",
        "Thread 0x07f56245b86c0 (most recent call first):",
        '  File "/opt/vllm/site-packages/vllm/x.py", line 3 in waits',
    ]
    file = tmp_path / "server.log"
    file.write_text("".join(f"(Worker_TP1 pid=77) {line}\n" for line in words))
    [sample] = (stacks_in_log(file) or read_dump(file).data).samples
    assert (sample.pid, sample.title, sample.reason) == (77, "Worker_TP1", "Aborted")


def test_what_a_client_wrote_is_no_stack(tmp_path):
    prompt = (
        'Process 5: x\\nPython v3.1\\n\\nThread 5 (active): \\"a\\"\\n    f (x.py:1)'
    )
    line = (
        "INFO 11-26 00:00:00 [logger.py:39] Received request a: prompt: '{}', "
        "params: x\n"
    )
    file = tmp_path / "server.log"
    file.write_text(line.format(prompt) + line.format(prompt.replace("\\n", "\n")))
    assert stacks_in_log(file) is None


def test_the_name_of_a_watchdogs_file_says_whose_it_is(tmp_path):
    dump = (
        "\n>>> Call stack dump #1 at Thu Nov 26 00:34:48 2026 due to feed timeout\n\n"
        'Thread 0x1 (most recent call first):\n  File "/x/vllm/v1/engine/core.py", '
        "line 3 in step\n"
    )
    for name, title in (
        ("engine_0", "VLLM::EngineCore_0"),
        ("worker_3", "VLLM::Worker_3"),
    ):
        file = tmp_path / f"VLLM_STACK_DUMP_for_{name}_4711.log"
        file.write_text(dump)
        assert kind_of(file) is DumpKind.WATCHDOG
        [sample] = read_dump(file).data.samples
        assert (sample.pid, sample.title) == (4711, title)
        assert sample.taken.wall.isoformat().startswith("2026-11-26T00:34:48")


def test_metrics_of_a_real_vllm_are_read():
    data = read_dump(DUMPS / "ghost-metrics.txt").data
    assert isinstance(data, MetricsData)
    assert data.total("vllm:num_requests_running") == 0
    assert data.total("vllm:generation_tokens_total") == 8


@pytest.mark.parametrize("name", ["nvidia-smi.txt", "nvidia-smi-q.txt"])
def test_nvidia_smi_in_its_two_long_forms(name):
    """The forms of driver 580; the numbers are made up."""
    data = read_dump(DUMPS / name).data
    assert isinstance(data, GpuData)
    first, second = data.devices
    assert first.driver == "580.126.09"
    assert first.cuda == "13.0"
    assert first.name == "NVIDIA H100 80GB HBM3"
    assert first.memory_used_bytes == 74023 << 20
    assert first.utilization_pct == [100]
    assert [(p.pid, p.name, p.used_bytes) for p in first.processes] == [
        (212, "VLLM::EngineCore", 74012 << 20)
    ]
    assert second.utilization_pct == [0]
    assert second.processes == []


def test_nvidia_smi_as_csv_and_as_a_list():
    rows = [
        "index, name, utilization.gpu [%], memory.used [MiB], memory.total [MiB]",
        "0, NVIDIA L4, 98 %, 700 MiB, 23034 MiB",
        "1, NVIDIA L4, [N/A], 4 MiB, 23034 MiB",
    ]
    first, second = parse_nvidia_smi(rows).devices
    assert (first.name, first.utilization_pct, first.memory_used_bytes) == (
        "NVIDIA L4",
        [98],
        700 << 20,
    )
    assert second.utilization_pct == []
    apps = ["pid, process_name, used_gpu_memory [MiB]", "15, VLLM::EngineCore, 340 MiB"]
    assert parse_nvidia_smi(apps).devices[0].processes[0].pid == 15
    [gpu] = parse_nvidia_smi(
        ["GPU 0: NVIDIA L4 (UUID: GPU-5428af19-1e82-a38c-ee42-cdd3ad745b7e)"]
    ).devices
    assert gpu.uuid == "GPU-5428af19"
    assert parse_nvidia_smi(["a, b", "1, 2"]) is None


def test_a_broken_row_hides_no_later_gpu():
    rows = [
        "0, NVIDIA L4, 1 %, 1 MiB, 1 MiB",  # above the header nothing has a meaning
        "index, name, utilization.gpu [%], memory.used [MiB], memory.total [MiB]",
        "0, NVIDIA L4, 98 %, 700 MiB, 23034 MiB",
        "Unable to determine the device handle for GPU 1",
        "2, NVIDIA L4, 7 %, 4 MiB, 23034 MiB",
    ]
    found = parse_nvidia_smi(rows).devices
    assert [(gpu.index, gpu.utilization_pct) for gpu in found] == [(0, [98]), (2, [7])]


@pytest.mark.parametrize(
    "text",
    [
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
        "Make sure that the latest NVIDIA driver is installed and running.\n",
        (
            "Failed to initialize NVML: Driver/library version mismatch\nNVML library "
            "version: 580.12\n"
        ),
        "Unable to determine the device handle for GPU 0000:19:00.0: Unknown Error\n",
        "No devices were found\n",
    ],
)
def test_what_nvidia_smi_prints_where_it_fails(tmp_path, text):
    file = tmp_path / "x"
    file.write_text(text)
    dump = read_dump(file)
    assert (dump.kind, dump.data) == (DumpKind.NVIDIA_SMI, None)
    assert text.splitlines()[0][:40] in dump.error
    file.write_text("INFO 11-26 00:00:00 [core.py:1] ordinary\n" * 40 + text)
    assert kind_of(file) is None


@pytest.mark.parametrize(
    "line",
    [
        'a{b="c}d"} 1',
        "a 1.5e-07 1700000000",
        'a_bucket{le="+Inf"} 3 # {trace_id="x"} 0.5',
        "a NaN",
        "a +Inf",
    ],
)
def test_every_form_of_a_sample_is_one(tmp_path, line):
    file = tmp_path / "m"
    file.write_text("HTTP/1.1 200 OK\n# TYPE a gauge\n" + f"{line}\n" * 4 + "# EOF\n")
    assert kind_of(file) is DumpKind.METRICS


SMI = [
    line
    for name in ("nvidia-smi.txt", "nvidia-smi-q.txt")
    for line in text(name).split("\n")
]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(SMI) | st.text(max_size=50), max_size=60))
def test_no_text_makes_the_reader_of_nvidia_smi_fail(lines):
    parse_nvidia_smi(lines)


@settings(max_examples=150, deadline=None)
@given(
    st.binary(max_size=400),
    st.sampled_from([b"", b"\x80\x04", b"[", b"\xff\xfe", b"\x1f\x8b"]),
)
def test_no_file_makes_it_fail(tmp_path_factory, raw, head):
    file = tmp_path_factory.mktemp("any") / "x"
    file.write_bytes(head + raw)
    kind = kind_of(file)
    if kind is not None and kind is not DumpKind.REQUESTS:
        read_dump(file, kind)
    stacks_in_log(file)


def test_reading_a_dump_imports_no_engine():
    code = (
        "import sys, mmrepro.probes.dumps; print([m for m in sys.modules if "
        "'engines' in m])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
