"""What dumps tell: no more than they hold."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path

import pytest
from mmrepro.base.records import Moment
from mmrepro.cli.app import app
from mmrepro.failure.documents.cause import CauseClass, Certainty
from mmrepro.failure.documents.dumps import Resemblance
from mmrepro.live.diagnose import dumps
from mmrepro.live.diagnose.log_reading import read_logs
from mmrepro.live.diagnose.match import all_scenarios
from mmrepro.probes.base import ProbeStatus
from mmrepro.probes.data import DumpKind, ProbeResult, StacksData
from mmrepro.probes.dumps import read_dump
from mmrepro.reports.logs import compose_logs
from mmrepro.reports.terminal import print_page
from mmrepro.scenario import LiveFacts
from mmrepro.traffic.evidence import Evidence
from rich.console import Console
from typer.testing import CliRunner

DUMPS = Path(__file__).parents[1] / "probes" / "dumps"
EVIDENCE = Path(__file__).parents[2] / "evidence"
GHOST = "ghost-key-eviction"


@pytest.fixture(scope="module")
def scenarios():
    return all_scenarios()


def told(*names: str, **more: str) -> dumps.DumpReading:
    return dumps.read([read_dump(DUMPS / name) for name in names], **more)


def screen(reading) -> str:
    console = Console(width=100, force_terminal=False, no_color=True)
    with console.capture() as captured:
        print_page(compose_logs(reading), console)
    return captured.get()


# ------------------------------------------------------------------ stacks


def test_one_dump_of_a_hung_engine_names_the_place_and_leaves_the_rest_open():
    found = told("ghost-all.txt")
    core = found.processes[0]
    assert (found.engine, core.role, core.pid, core.samples) == (
        "vllm",
        "EngineCore",
        18569,
        1,
    )
    assert core.stays is None
    assert "get_and_update_item" in core.sentence
    assert "stands" not in core.sentence
    assert {p.role for p in found.processes} >= {"APIServer", "EngineCore", "Worker"}
    [failure] = found.failures
    assert (failure.scenario, failure.fit) == (GHOST, Resemblance.IF_IT_STAYS)
    assert any("whether it stays" in text for text in found.unseen)


def test_three_dumps_show_that_it_stays_there():
    found = told("ghost-core-1.txt", "ghost-core-2-locals.txt", "ghost-core-4.json")
    [core] = found.processes
    assert (core.samples, core.stays) == (3, True)
    assert "is stuck in" in core.sentence
    [failure] = found.failures
    assert (failure.scenario, failure.fit) == (GHOST, Resemblance.STANDS_THERE)


def test_a_copy_of_a_dump_is_no_second_sample(tmp_path):
    copies = [
        shutil.copy(DUMPS / "ghost-core-1.txt", tmp_path / f"{n}.txt") for n in range(3)
    ]
    found = dumps.read([read_dump(Path(copy)) for copy in copies])
    assert [p.samples for p in found.processes] == [1]
    assert found.processes[0].stays is None


def test_an_idle_engine_is_no_failure():
    found = told("ghost-healthy-core.txt")
    assert found.failures == []
    assert "waits there" in found.processes[0].sentence


def test_a_release_that_cannot_fail_so_is_not_named():
    assert told("ghost-all.txt", release="0.24.0").failures == []
    assert told("ghost-all.txt", release="0.23.0").failures != []


def test_gdb_does_not_say_what_runs():
    found = told("ghost-core-gdb.txt")
    [core] = found.processes
    assert (core.tool, core.running, core.role) == ("gdb", None, "EngineCor")


def test_a_wait_for_the_gpu_is_called_one(tmp_path):
    file = tmp_path / "x"
    file.write_text(
        "Process 212: VLLM::EngineCore\nPython v3.12.13 (/usr/bin/python3.12)\n\n"
        'Thread 212 (active): "MainThread"\n    cuEventSynchronize '
        "(libcuda.so.580.126.09)\n"
        "    _to_list (vllm/v1/worker/gpu_model_runner.py:6120)\n"
    )
    found = dumps.read([read_dump(file)])
    assert found.processes[0].sentence.endswith("which waits for the GPU.")


def stacks_of(name: str) -> tuple[str, str, list[StacksData]]:
    with zipfile.ZipFile(EVIDENCE / f"{name}.zip") as archive:
        incident = json.loads(archive.read("incident.json"))
    data = [p["data"] for p in incident["evidence"]["probes"] if p.get("data")]
    found = [StacksData.model_validate(d) for d in data if d["kind"] == "stacks"]
    return incident["engine"]["name"], incident["engine"]["release"], found


@pytest.mark.parametrize(
    ("recorded", "expected"),
    [
        ("ghost-key-eviction-0.23.0", {GHOST}),
        ("ghost-key-eviction-0.23.0-on-a-gpu", {GHOST}),
        ("encoder-cache-overflow-0.11.0", {"encoder-cache-overflow"}),
        ("ghost-key-eviction-0.24.0", set()),
        ("ghost-key-eviction-flip-refusal", set()),
        ("capacity-never-0.23.0", set()),
        ("grammar-backend-latch-0.23.0", set()),
        ("mm-cache-desync-0.24.0", set()),
        ("caller-hash-0.5.23", set()),
    ],
)
def test_single_samples_of_recorded_servers_name_their_own_failure_alone(
    scenarios, recorded, expected
):
    engine, release, found = stacks_of(recorded)
    live, named, samples = LiveFacts(engine, release), set(), 0
    for data in found:
        for sample in [s for s in data.samples if s.threads][:3]:
            samples += 1
            result = ProbeResult(
                probe="stacks",
                phase="check",
                status=ProbeStatus.OK,
                started=Moment.now(),
                seconds=0.0,
                data=StacksData(samples=[sample]),
            )
            fitting = dumps.failures(scenarios, Evidence(probes=[result]), live)
            assert {f.fit for f in fitting} <= {Resemblance.IF_IT_STAYS}
            named |= {f.scenario for f in fitting}
    assert samples
    assert named == expected


# -------------------------------------------------------------- metrics, GPUs, requests


def test_metrics_alone_are_numbers_and_no_verdict():
    found = told("ghost-metrics.txt")
    assert found.counts == [
        "0 running, 0 waiting, KV cache 0 % used, 1,168 prompt tokens, 8 tokens "
        "generated, 6 requests finished"
    ]
    assert found.failures == []
    assert "idle" not in found.model_dump_json()
    assert any("a second time" in text for text in found.unseen)


def test_counters_that_moved_are_in_their_order_whatever_the_files_order():
    found = told("ghost-metrics.txt", "healthy-metrics.txt")
    assert found.unseen == []
    assert len(found.counts) == 2


def test_two_readings_that_are_alike_are_one(tmp_path):
    text = (DUMPS / "ghost-metrics.txt").read_text()
    again = tmp_path / "again.txt"
    again.write_text(text.replace("model_name", "model_name", 1) + "vllm:other 1.0\n")
    found = dumps.read([read_dump(DUMPS / "ghost-metrics.txt"), read_dump(again)])
    assert any("no counter moved" in text for text in found.unseen)
    assert found.failures == []


def test_data_parallel_engines_are_told_apart(tmp_path):
    file = tmp_path / "m"
    file.write_text(
        "".join(
            f'vllm:num_requests_running{{engine="{n}",model_name="m"}} {n}.0\n'
            for n in range(3)
        )
    )
    assert dumps.read([read_dump(file)]).counts == [
        f"engine {n}: {n} running" for n in range(3)
    ]


def test_gpus_and_requests_are_in_words():
    found = told("nvidia-smi.txt", "sglang-0.5.23.pkl")
    assert found.engine == "sglang"
    assert found.counts[0].startswith(
        "GPU 0, 100 % busy, 72.3 GiB of 79.6 GiB used, by VLLM"
    )
    assert "3 requests, 2 of them not finished when it was written" in found.counts
    assert any("stop_token_ids [999999]" in text for text in found.counts)
    assert "secret prompt" not in found.model_dump_json()


# --------------------------------------------------------- mmrepro logs, diagnose --log


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ghost-all.txt", DumpKind.PY_SPY),
        ("ghost-metrics.txt", DumpKind.METRICS),
        ("nvidia-smi.txt", DumpKind.NVIDIA_SMI),
        ("sglang-0.5.17.pkl", DumpKind.REQUESTS),
    ],
)
def test_a_dump_alone_is_no_log_and_is_answered(name, kind):
    reading = read_logs([DUMPS / name])
    assert reading.cause.name is CauseClass.NOT_A_LOG
    assert reading.exit_code == 3, "undecided: one sample shows no hang"
    assert [f.kind for f in reading.dumps.files] == [kind]
    log = reading.log
    assert (log.lines, log.bytes_read, log.skipped_bytes) == (0, 0, 0)
    shown = screen(reading)
    assert len(shown.splitlines()) <= 20
    assert name in shown


def test_last_words_name_the_cause(tmp_path):
    file = tmp_path / "x"
    file.write_text(
        "Fatal Python error: Segmentation fault\n\nCurrent thread 0x1 (most recent "
        "call first):\n"
        '  File "/x/vllm/v1/worker/gpu_model_runner.py", line 3 in execute_model\n'
        '  File "/x/vllm/v1/engine/core.py", line 3 in run_engine_core\n'
    )
    reading = read_logs([file])
    assert reading.cause.name is CauseClass.NATIVE_CRASH
    assert reading.cause.process == "EngineCore"
    assert "execute_model" in reading.cause.sentence


def test_a_watchdogs_dump_is_possibly_a_hang_until_it_stays(tmp_path):
    part = (
        "\nCall stack dump #1 at Thu Nov 26 00:34:48 2026 due to feed timeout\n\n"
        "Thread 0x1 (most recent call first):\n"
        '  File "/x/vllm/v1/executor/multiproc_executor.py", line 3 in get_response\n'
        '  File "/x/vllm/v1/engine/core.py", line 9 in run_busy_loop\n'
    )
    file = tmp_path / "VLLM_STACK_DUMP_for_engine_0_77.log"
    for times, sure in ((1, Certainty.POSSIBLE), (3, Certainty.LIKELY)):
        file.write_text(part * times)
        cause = read_logs([file]).cause
        assert (cause.name, cause.certainty) == (CauseClass.HANG, sure)


LOG = (
    "(EngineCore pid=18569) INFO 11-26 00:45:40 [core.py:112] Initializing a V1 LLM "
    "engine "
    "(v0.23.0) with config: model='/m'\n"
    "(APIServer pid=16289) INFO 11-26 00:47:45 [loggers.py:271] Engine 000: Avg prompt "
    "throughput: "
    "93.8 tokens/s, Avg generation throughput: 1.0 tokens/s, Running: 0 reqs, Waiting: "
    "0 reqs\n"
)


def test_dumps_beside_a_log_are_judged_with_its_release(tmp_path):
    log = tmp_path / "server.log"
    log.write_text(LOG)
    reading = read_logs([log, DUMPS / "ghost-all.txt", DUMPS / "ghost-metrics.txt"])
    assert reading.release == "0.23.0"
    assert [f.scenario for f in reading.dumps.failures] == [GHOST]
    assert reading.log.file == str(log)
    assert len(screen(reading).splitlines()) <= 24
    log.write_text(LOG.replace("0.23.0", "0.24.0"))
    assert read_logs([log, DUMPS / "ghost-all.txt"]).dumps.failures == []


def test_stacks_inside_a_log_are_read(tmp_path):
    log = tmp_path / "server.log"
    log.write_text(LOG + (DUMPS / "ghost-core-1.txt").read_text() + LOG)
    reading = read_logs([log])
    assert [p.pid for p in reading.dumps.processes] == [18569]
    log.write_text(LOG)
    assert read_logs([log]).dumps is None


def test_a_folder_with_logs_and_dumps(tmp_path):
    (tmp_path / "server.log").write_text(LOG)
    for name in ("ghost-all.txt", "sglang-0.5.23.pkl"):
        shutil.copy(DUMPS / name, tmp_path)
    reading = read_logs([tmp_path])
    assert {f.kind for f in reading.dumps.files} == {DumpKind.PY_SPY, DumpKind.REQUESTS}
    assert reading.log.file == str(tmp_path / "server.log")


def test_a_hostile_pickle_is_one_sentence_and_exit_3(tmp_path):
    file = tmp_path / "crash.pkl"
    file.write_bytes(b"\x80\x04cposix\nsystem\n(\x8c\x04trueutR.")
    done = CliRunner().invoke(app, ["logs", str(file)])
    assert done.exit_code == 3
    assert "it asks for posix.system, which was not done" in " ".join(
        done.output.split()
    )


def test_diagnose_takes_dumps_for_what_they_are(tmp_path, monkeypatch):
    # It would bound all later tests.
    monkeypatch.setattr("mmrepro.cli.live._bound", lambda: None)
    done = CliRunner().invoke(
        app,
        [
            "diagnose",
            "http://127.0.0.1:9",
            "--log",
            str(DUMPS / "ghost-all.txt"),
            "--json",
            "--out",
            str(tmp_path / "out"),
            "--deadline",
            "2",
        ],
    )
    found = json.loads(done.stdout)
    assert [f["scenario"] for f in found["dumps"]["failures"]] == [GHOST]
    assert found["assessment"]["state"] == "dead"
    assert found["target"]["logs"] == []
