"""Nothing false of crafted logs: no first word, no sure class, no known failure, no
advice of another platform."""

from pathlib import Path

import pytest
from crafted_logs import CraftedLog, crafted
from mmrepro.live.diagnose.log_reading import read_logs

LOGS = crafted()
SURE = ("certain", "likely")
QUIET = {"alive", "unknown", "not-a-log", "overloaded"}
FOREIGN = {
    "rocm": ("nvidia-smi", "xid", "CUDA_LAUNCH_BLOCKING", "npu-smi"),
    "npu": ("nvidia-smi", "xid", "CUDA_LAUNCH_BLOCKING", "rocm-smi"),
    "xpu": ("nvidia-smi", "xid", "CUDA_LAUNCH_BLOCKING", "rocm-smi"),
    "tpu": ("nvidia-smi", "xid", "CUDA_LAUNCH_BLOCKING", "rocm-smi"),
    "cuda": ("rocm-smi", "npu-smi", "xpu-smi"),
}


def test_there_are_many() -> None:
    assert len(LOGS) >= 150
    healthy = [log for log in LOGS if log.states <= {"alive", "one-request-failed"}]
    assert len(healthy) >= 40


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.name)
def test_nothing_false_is_said(log: CraftedLog, tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text(log.text)
    reading = read_logs([path], alone=True)
    cause, facts = reading.cause, reading.facts
    assert facts is not None
    assert facts.state.value in log.states, facts.sentence
    assert reading.known == []
    if cause.certainty.value in SURE:
        assert cause.name.value in log.allowed | QUIET, cause.sentence
    if log.platform:
        assert facts.platform == log.platform
        start = cause.start.advice if cause.start else []
        for advice in (*cause.advice, *start):
            assert not any(word in advice for word in FOREIGN[log.platform]), advice
