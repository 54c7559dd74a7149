"""What is an echo of a failure is called one, and what follows from a failure is no
cause of it."""

from pathlib import Path

import pytest
from mmrepro.engines.starts import Asked, StartFault, start_cause
from mmrepro.failure.documents.cause import LogReading
from mmrepro.live.diagnose.log_reading import read_logs
from mmrepro.probes.log_reader import LineReader
from mmrepro.reports.logs import fact_rows

FRONT = "(APIServer pid=71) ERROR 03-09 08:41:34 [async_llm.py:704] "
DEAD = (
    "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See "
    "stack trace (above) for the root cause."
)
ECHO = (
    f"{FRONT}AsyncLLM output_handler failed.\n{FRONT}Traceback (most recent call last):\n"
    f'{FRONT}  File "/v/vllm/v1/engine/core_client.py", line 7, in get_output_async\n'
    f"{FRONT}    raise self._format_exception(outputs) from None\n{FRONT}{DEAD}\n"
)
WORKED = (
    "(APIServer pid=71) INFO 03-09 08:40:10 [loggers.py:259] Engine 000: Avg prompt "
    "throughput: 310.4 tokens/s, Avg generation throughput: 88.1 tokens/s, Running: 3 "
    "reqs, Waiting: 0 reqs, GPU KV cache usage: 12.1%, Prefix cache hit rate: 4.0%\n"
)
BELOW_CUDAS = (
    "(EngineCore pid=90) ERROR 03-09 08:41:34 [core.py:1233] CUDA kernel errors might "
    "be asynchronously reported at some other API call, so the stacktrace below might "
    "be incorrect.\n(EngineCore pid=90) ERROR 03-09 08:41:34 [core.py:1233] For "
    "debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "server.log"


def read(log: Path, text: str) -> LogReading:
    log.write_text(text)
    return read_logs([log], alone=True)


def answer(log: Path, text: str) -> tuple[str, str]:
    cause = read(log, text).cause
    return cause.name.value, cause.certainty.value


@pytest.mark.parametrize("cut", [0, 2, 3, 4])
def test_a_paste_of_the_echo_alone(log: Path, cut: int) -> None:
    """However much of its head is missing."""
    reading = read(log, "".join(ECHO.splitlines(keepends=True)[cut:]))
    found, facts = reading.cause, reading.facts
    assert (found.name.value, found.certainty.value) == ("unknown", "possible")
    assert "logged before" in found.sentence
    assert found.exception == DEAD
    assert facts is not None
    assert (facts.state, facts.echo) == ("dead", True)
    assert facts.fetch.startswith("grep -n")
    assert facts.fetch in found.advice[0]


@pytest.mark.parametrize(
    ("before", "command"),
    [
        ("[pod/qwen-0/engine] ", "kubectl logs --previous qwen-0 -c engine"),
        ("Nov 20 10:00:00 gpu7 vllm[41]: ", "journalctl -u vllm -b --no-pager"),
        ("engine-1  | ", "docker compose logs --no-log-prefix engine"),
        ("2026-11-20T10:00:00.123Z stderr F ", "kubectl logs --previous POD"),
        (
            "(RayWorkerWrapper pid=9, ip=10.0.0.7) ",
            "ssh 10.0.0.7 'tail -n 200 /tmp/ray/session_latest/logs/worker-*-9.err'",
        ),
    ],
)
def test_the_command_that_gets_the_cause_is_of_the_wrapping(
    log: Path, before: str, command: str
) -> None:
    text = "".join(f"{before}{line}" for line in ECHO.splitlines(keepends=True))
    facts = read(log, text).facts
    assert facts is not None
    assert facts.echo
    assert facts.fetch.startswith(command)


def test_a_server_whose_work_was_seen_died_without_a_word(log: Path) -> None:
    assert answer(log, WORKED + ECHO) == ("died-without-a-word", "likely")


@pytest.mark.parametrize(
    "echo", [ECHO, f"{FRONT}AsyncLLM output_handler failed.\n", ""]
)
def test_what_stands_below_an_error_of_a_gpu(log: Path, echo: str) -> None:
    assert answer(log, BELOW_CUDAS + echo) == ("gpu-fault", "possible")


def test_of_a_server_that_works_nothing_is_the_first_to_fail(log: Path) -> None:
    found = read(log, WORKED * 2)
    assert found.cause.name.value == "alive"
    assert found.facts is not None
    assert found.facts.state == "alive"
    assert {name for name, _ in fact_rows(found.facts, "vllm", "")} == {"server"}


def test_unknown_errors_are_shown(log: Path) -> None:
    line = (
        "(EngineCore pid=6) ERROR 03-09 08:41:34 [core.py:9] Invocation of x failed\n"
    )
    found = read(log, line).cause
    assert found.name.value == "unknown"
    assert "Invocation of x failed" in found.sentence


STARTED = (
    "[2026-03-09 08:31:02] server_args=ServerArgs(model_path='m', enable_lora=True)\n"
    "[2026-03-09 08:31:09 TP1] Load weight begin. avail mem=70.10 GB\n"
    "[2026-03-09 08:31:11 TP1] Scheduler hit an exception: Traceback (most recent call "
    "last):\n"
    '  File "/s/sglang/srt/managers/scheduler.py", line 31, in run_scheduler_process\n'
    "    scheduler = Scheduler(\n"
    '  File "/s/sglang/srt/lora/mem_pool.py", line 7, in get_tensor\n'
    "    return buffers[name][layer]\n"
    "KeyError: 'proj'\n"
)


def test_no_request_is_blamed_for_a_start(log: Path) -> None:
    found = read(log, STARTED).cause
    assert found.name.value == "failed-start"
    assert "request" not in " ".join([found.sentence, *found.why])


def test_what_an_engine_kills_itself_was_not_killed_from_outside() -> None:
    ends = (
        "[2026-03-09 08:31:12] Received sigquit from a child process. It usually means "
        "the child failed.\nKilled\n"
    )
    lines = LineReader().take((STARTED + ends).encode(), last=True)
    assert start_cause(lines, Asked("sglang")) is None
    killed = LineReader().take(b"[2026-03-09 08:31:02] loading\nKilled\n", last=True)
    alone = start_cause(killed, Asked("sglang"))
    assert alone is not None
    assert alone.fault is StartFault.KILLED


def test_settings_that_are_cut_hide_nothing(log: Path) -> None:
    text = (
        "[2026-03-09 08:31:02] server_args={'model_path': 'm', 'tokenizer_pa\n"
        '  File "/s/sglang/srt/managers/detokenizer_manager.py", line 5, in bind\n'
        "zmq.error.ZMQError: Address already in use (addr='tcp://127.0.0.1:29')\n"
        "[2026-03-09 08:31:05] Received sigquit from a child process.\n"
        "RuntimeError: sglang subprocess exited with code -9 before reporting ready\n"
    )
    found = read(log, text).cause
    assert found.start is not None
    assert str(found.start.name) == "port-taken"


def test_kserve(log: Path) -> None:
    head = "2026-03-09 07:28:0{}.488 1 kserve {} [__main__.py:load():2] {}\n"
    text = head.format(4, "INFO", "Loading generative model") + head.format(
        6, "ERROR", "Failed to start model server: integer division or modulo by zero"
    )
    assert answer(log, text)[0] == "failed-start"


def test_errors_after_the_last_work_are_no_sign_of_life(log: Path) -> None:
    who = "(Worker_TP0 pid=35) ERROR 03-09 08:41:33 [multiproc_executor.py:880] "
    cut = f'{who}  File "/v/vllm/attention.py", line 310, in build\n{who}    assert not d, (\n'
    found = read(log, WORKED + cut).cause
    assert (found.name.value, found.process) == ("unknown", "Worker_TP0 pid=35")
    # What a front logs of one request ends nothing.
    of_request = cut.replace("Worker_TP0 pid=35", "APIServer pid=71")
    assert answer(log, WORKED + of_request)[0] == "alive"
