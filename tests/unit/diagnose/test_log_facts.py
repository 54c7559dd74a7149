"""The facts of a log: command, topology, the failing frame, ties, what came after; and
the block for a report."""

from pathlib import Path

import pytest
from mmrepro.cli.app import app
from mmrepro.failure.documents import LogFacts, LoggedState
from mmrepro.live.diagnose.log_events import exit_words, of_another
from mmrepro.live.diagnose.log_reading import read_logs
from typer.testing import CliRunner

LORA = """\
[2026-03-09 08:31:02] server_args=ServerArgs(model_path='/models/m', tp_size=4, \
enable_lora=True, disaggregation_mode='decode', disaggregation_transfer_backend='nixl', \
attention_backend='fa3', port=30000)
[2026-03-09 08:40:10 TP0] Decode batch, #running-req: 2, #token: 512, token usage: 0.01, \
gen throughput (token/s): 71.9, #queue-req: 0
[2026-03-09 08:41:33 TP2] Scheduler hit an exception: Traceback (most recent call last):
  File "/s/python/sglang/srt/managers/scheduler.py", line 3120, in run_scheduler_process
    scheduler.event_loop_overlap()
  File "/s/python/sglang/srt/lora/lora_manager.py", line 411, in prepare_lora_batch
    weights = self.memory_pool.get(uid)
  File "/venv/lib/torch/nn/modules/module.py", line 12, in __getattr__
    raise KeyError(name)
KeyError: 'node_91'

[2026-03-09 08:41:33] Received sigquit from a child process. It usually means the child \
failed.
"""


def facts_of(tmp_path: Path, text: str) -> LogFacts:
    path = tmp_path / "server.log"
    path.write_text(text)
    facts = read_logs([path], alone=True).facts
    assert facts is not None
    return facts


def test_what_a_log_carries(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, LORA)
    assert facts.state == "dead"
    assert "--enable-lora" in facts.command
    assert facts.topology == [
        "TP 4",
        "the decode side of a pair",
        "transfers by nixl",
    ]
    assert facts.failure is not None
    assert facts.failure.lines == ["KeyError: 'node_91'"]
    assert (facts.failure.process, facts.failure.line) == ("TP2", 10)
    assert facts.failure.place == (
        "sglang/srt/lora/lora_manager.py:411 in prepare_lora_batch"
    ), "the innermost frame in the engine, not torch's"
    assert facts.failure.code == "weights = self.memory_pool.get(uid)"
    assert facts.ties == ["--enable-lora is set; the frame is lora/lora_manager.py"]
    assert "Received sigquit" in facts.after[-1]


def test_no_tie_without_its_option(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, LORA.replace("enable_lora=True", "enable_lora=False"))
    assert facts.ties == []


def test_a_message_of_several_lines_is_shown_whole(tmp_path: Path) -> None:
    at = "(Worker_TP1 pid=5) ERROR 11-20 10:00:00 [multiproc_executor.py:800]"
    facts = facts_of(
        tmp_path,
        f"{at} torch.distributed.DistBackendError: NCCL error, unhandled system error\n"
        f"{at} Last error:\n{at} Error while creating shared memory segment "
        "/dev/shm/nccl-abc (size 9637888)\n",
    )
    assert facts.failure is not None
    assert len(facts.failure.lines) == 3


@pytest.mark.parametrize(
    "line",
    [
        "(Worker_TP{} pid=5) INFO 11-20 10:00:00 [gpu_worker.py:80] the model is loaded",
        "(EngineCore_{} pid=5) INFO 11-20 10:00:00 [core.py:80] Initializing a V1 LLM",
        "[2026-11-20 10:00:00 TP{}] Load weight end. type=LlamaForCausalLM",
    ],
    ids=["workers", "cores", "sglang"],
)
def test_ranks_that_a_log_names_are_counted(tmp_path: Path, line: str) -> None:
    lines = [line.format(rank) for rank in (0, 1, 1, 2)]
    facts = facts_of(tmp_path, "\n".join(lines) + "\n")
    assert "3 ranks have lines" in facts.topology


def test_addresses_and_keys_are_shown_here_and_not_in_a_report(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text(
        LORA.replace(
            "KeyError: 'node_91'", "RuntimeError: no route to 10.20.30.40:29500"
        )
    )
    shown = CliRunner().invoke(app, ["logs", str(path)]).output
    assert "10.20.30.40:29500" in shown
    issue = CliRunner().invoke(app, ["logs", str(path), "--issue"]).output
    assert "10.20.30.40" not in issue
    for head in ("### Environment", "### Command", "### First exception", "check_env"):
        assert head in issue
    assert "--model-path /models/m --tp-size 4 --enable-lora" in issue


def test_a_client_s_words_are_shown_nowhere(tmp_path: Path) -> None:
    prompt = "my secret garden has seven gnomes"
    path = tmp_path / "server.log"
    path.write_text(
        LORA.replace(
            "[2026-03-09 08:41:33 TP2]",
            "[2026-03-09 08:41:30] Receive: obj=GenerateReqInput(rid='7a', "
            f"text='{prompt}', sampling_params={{}})\n[2026-03-09 08:41:33 TP2]",
            1,
        )
    )
    for more in ([], ["--full"], ["--issue"], ["--json"]):
        output = CliRunner().invoke(app, ["logs", str(path), *more]).output
        assert "gnomes" not in output.replace("\n", " "), more


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("worker exited with exit code 136", "SIGFPE"),
        ("subprocess exit code: -11", "SIGSEGV"),
        ("exit code 1", ""),
        ("exit code 300", ""),
    ],
)
def test_exit_codes_are_named(text: str, words: str) -> None:
    assert words in exit_words(text)
    assert bool(exit_words(text)) is bool(words)


@pytest.mark.parametrize(
    ("text", "another"),
    [
        ("Out of memory: Killed process 9 (chrome) total-vm:1kB", True),
        ("Out of memory: Killed process 9 (VLLM::EngineCor) total-vm:1kB", False),
        ("Out of memory: Killed process 44 (chrome) total-vm:1kB", False),
        ("nginx.service: Main process exited, code=killed, status=9/KILL", True),
        ("vllm.service: Main process exited, code=killed, status=9/KILL", False),
        ("qwen.service: Main process exited, code=killed, status=9/KILL", False),
        ("NVRM: Xid (PCI:0000:3b:00): 31, pid=4511, name=Xorg, Ch 8", True),
        ("NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.", False),
    ],
)
def test_whose_line_it_is(text: str, another: bool) -> None:
    assert of_another(text, {44}, {"qwen"}) is another


@pytest.mark.parametrize(
    ("said", "sure"),
    [
        ("No available memory for the cache blocks. Try to increase it", True),
        ("[Errno 98] Address already in use", True),
        ("WorkerProc hit an exception.", False),
        ("TypeError: 'NoneType' object is not iterable", False),
    ],
)
def test_find_knows_the_table_of_starts(said: str, sure: bool) -> None:
    done = CliRunner().invoke(app, ["find", said])
    assert (done.exit_code == 0) is sure, done.output


# vLLM 0.23.0, recorded: SIGTERM while it works. Its front end then meets the end of the
# core that it ended itself.
_FRONT = "(APIServer pid=6325)"
_ERROR = f"{_FRONT} ERROR 11-29 05:47:32 [v1/engine/async_llm.py:704]"
SHUT_DOWN = f"""\
{_FRONT} INFO 11-29 05:47:30 [loggers.py:271] Engine 000: Avg prompt throughput: 9.0 \
tokens/s, Avg generation throughput: 4.0 tokens/s, Running: 1 reqs, Waiting: 0 reqs, \
GPU KV cache usage: 0.1%, Prefix cache hit rate: 0.0%
{_FRONT} INFO 11-29 05:47:32 [launcher.py:100] [shutdown] API server: shutdown triggered
{_FRONT} INFO:     Shutting down
{_ERROR} AsyncLLM output_handler failed.
{_ERROR} Traceback (most recent call last):
{_ERROR}   File "/x/vllm/v1/engine/core_client.py", line 1046, in get_output_async
{_ERROR}     raise self._format_exception(outputs) from None
{_ERROR} vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. \
See stack trace (above) for the root cause.
{_FRONT} INFO:     Application shutdown complete.
"""


def test_a_server_that_was_told_to_go_is_shut_down(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, SHUT_DOWN)
    assert facts.state is LoggedState.SHUT_DOWN
    assert facts.failure is None
    shown = CliRunner().invoke(app, ["logs", str(tmp_path / "server.log")])
    assert shown.exit_code == 0
    assert shown.output.startswith("SHUT DOWN")
    assert "EngineDeadError" not in shown.output
    died = SHUT_DOWN.replace("[shutdown] API server: shutdown triggered", "ok")
    died = died.replace(f"{_FRONT} INFO:     Shutting down\n", "")
    assert facts_of(tmp_path, died).state is LoggedState.DEAD
    taken = (
        f"{_FRONT} ERROR 11-29 05:47:31 [x.py:1] [Errno 98] address already in use\n"
    )
    refused = SHUT_DOWN.replace(f"{_FRONT} INFO 11-29 05:47:32", taken + _FRONT, 1)
    assert facts_of(tmp_path, refused).state is not LoggedState.SHUT_DOWN
