"""An engine's death that ends with exit code 0 is restarted by nobody who restarts on
failure (vllm#48966): all that see it say so."""

import os
from pathlib import Path

import pytest
from mmrepro.live.diagnose.log_reading import read_logs
from mmrepro.live.diagnose.starts import StartState, read_start
from mmrepro.live.watch import processes as watched
from mmrepro.live.watch.health import CheckOutcome
from mmrepro.probes.log_reader import LineReader
from test_watch_liveness import checker, fake_engine

SAYS = "Restart=on-failure"
HERE = Path(__file__).parent
DIED = """\
INFO:     Started server process [7]
INFO:     Application startup complete.
INFO 11-29 03:00:00 [loggers.py:257] Engine 000: Avg prompt throughput: 9.0 tokens/s, \
Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 0.1%
(EngineCore_DP0 pid=9) ERROR 11-29 03:00:01 [core.py:700] EngineCore encountered a \
fatal error.
(EngineCore_DP0 pid=9) ERROR 11-29 03:00:01 [core.py:700] Traceback (most recent call \
last):
(EngineCore_DP0 pid=9) ERROR 11-29 03:00:01 [core.py:700]   File \
"/usr/lib/python3/dist-packages/vllm/v1/engine/core.py", line 691, in run_engine_core
(EngineCore_DP0 pid=9) ERROR 11-29 03:00:01 [core.py:700]     \
engine_core.run_busy_loop()
(EngineCore_DP0 pid=9) ERROR 11-29 03:00:01 [core.py:700] RuntimeError: CUDA error: an \
illegal memory access was encountered
INFO:     Shutting down
INFO:     Waiting for application shutdown.
INFO:     Application shutdown complete.
"""
FINISHED = "INFO:     Finished server process [7]\n"


@pytest.mark.parametrize(("end", "said"), [(FINISHED, True), ("", False)])
def test_a_log_whose_front_shut_down_in_order_after_a_death(
    tmp_path: Path, end: str, said: bool
) -> None:
    log = tmp_path / "engine.log"
    log.write_text(DIED + end)
    cause = read_logs([log]).cause
    assert cause is not None
    assert cause.name == "gpu-fault"
    assert any(SAYS in advice for advice in cause.advice) is said


@pytest.mark.parametrize(("code", "said"), [(0, True), (1, False)])
def test_a_start_that_failed(code: int, said: bool) -> None:
    raw = (HERE / "starts" / "vllm-port-taken.log").read_bytes()
    found = read_start(LineReader().take(raw, last=True), exit_code=code, gone=True)
    assert found.state is StartState.FAILED
    assert found.cause is not None
    assert any(SAYS in advice for advice in found.cause.advice) is said


@pytest.mark.parametrize(("code", "said"), [(0, True), (1, False)])
def test_a_server_that_started_and_died(code: int, said: bool) -> None:
    lines = LineReader().take((DIED + FINISHED).encode(), last=True)
    found = read_start(lines, exit_code=code, gone=True)
    assert any(SAYS in note for note in found.notes) is said


@pytest.mark.parametrize(("code", "said"), [(0, True), (1, False), (None, False)])
def test_a_watch_whose_server_ended(
    monkeypatch: pytest.MonkeyPatch, code: int | None, said: bool
) -> None:
    with fake_engine("well") as (process, url), checker(url, 60.0) as made:
        assert made.check().verdict is CheckOutcome.OK
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        monkeypatch.setattr(watched, "exit_code", lambda _: code)
        found = made.check()
    assert found.verdict is CheckOutcome.FAILED
    assert (SAYS in found.why) is said
