"""``mmrepro accept`` on a CPU, with minivllm: killed in the middle, gone on with, told
once."""

import json
import os
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest
from live import COMMAND

pytestmark = pytest.mark.engine

PARTS = ("--only", "check", "--only", "minivllm")
STEPS = 11
"""Of these parts those that a CPU runs."""


def start(folder: Path, *more: str) -> subprocess.Popen[bytes]:
    command = [*COMMAND, "accept", "--device", "cpu", "--budget", "10m", *PARTS]
    return subprocess.Popen(
        [*command, "--out", str(folder), *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def starts(folder: Path) -> Counter[str]:
    try:
        lines = (folder / "starts.jsonl").read_text().splitlines()
    except OSError:
        return Counter()
    return Counter(json.loads(line)["step"] for line in lines)


def whole(folder: Path) -> set[str]:
    """Steps whose record is there."""
    found = {
        path.stem
        for part in ("check", "minivllm")
        for path in folder.glob(f"{part}/*.json")
    }
    return found - {"result"}


def engines(folder: Path) -> list[int]:
    """Processes that serve for a run in ``folder``."""
    found = []
    for process in psutil.process_iter(["cmdline", "cwd"]):
        words = " ".join(process.info["cmdline"] or ())
        if (
            "minivllm.server" in words
            and str(folder) in f"{words} {process.info['cwd']}"
        ):
            found.append(process.pid)
    return found


@pytest.mark.slow
def test_killed_and_gone_on_with_nothing_is_run_twice(tmp_path: Path) -> None:
    folder = tmp_path / "accepted"
    killed = start(folder)
    in_flight = "warmup-sequence"
    deadline = time.monotonic() + 300
    while not (starts(folder)[in_flight] and engines(folder)):
        assert killed.poll() is None, killed.communicate()
        assert time.monotonic() < deadline, starts(folder)
        time.sleep(0.05)
    written = (folder / "minivllm/slot-mapping.json").stat().st_mtime_ns
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate()
    done = whole(folder)
    assert "machine" in done
    assert in_flight not in done
    while engines(folder):
        assert time.monotonic() < deadline, (
            "an engine outlived the command that started it"
        )
        time.sleep(0.05)
    assert (folder / "summary.md").is_file(), "what was whole is told already"

    resumed = start(folder, "--resume", "--json")
    told, errors = resumed.communicate(timeout=600)
    assert resumed.returncode == 0, errors.decode()
    ran = starts(folder)
    assert ran == Counter(dict.fromkeys(ran, 1) | {in_flight: 2}), (
        "one was killed, none repeated"
    )
    assert len(ran) == STEPS
    assert written == (folder / "minivllm/slot-mapping.json").stat().st_mtime_ns
    summary = json.loads(told)
    assert summary == json.loads((folder / "summary.json").read_text())
    steps = [step for part in summary["parts"] for step in part["steps"]]
    assert {step["step"] for step in steps if step["exit_code"] is not None} == set(ran)
    assert not {row["status"] for step in steps for row in step["rows"]} & {
        "failed",
        "broken-off",
    }
    for step in steps:
        if step["incident"]:
            assert (folder / step["incident"] / "report.md").is_file()
    text = (folder / "summary.md").read_text()
    assert text.count("reproduced: every condition") == 9
    assert not [
        x
        for x in text.splitlines()
        if str(tmp_path) in x and not x.endswith("--resume")
    ]

    again = start(folder)
    again.communicate(timeout=60)
    assert again.returncode == 0
    assert starts(folder) == ran, "and a third command runs nothing"


def test_ended_by_a_signal_it_says_how_to_go_on(tmp_path: Path) -> None:
    folder = tmp_path / "accepted"
    running = start(folder)
    deadline = time.monotonic() + 300
    while not engines(folder):
        assert running.poll() is None, running.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    running.send_signal(signal.SIGTERM)
    _, errors = running.communicate(timeout=60)
    assert running.returncode == 130
    (again,) = (
        line
        for line in errors.decode().splitlines()
        if line.startswith("to resume, run:")
    )
    assert again.startswith("to resume, run: mmrepro accept ")
    for words in (
        "--device cpu",
        "--only check",
        "--only minivllm",
        f"--out {folder}",
        "--resume",
    ):
        assert words in again
    assert not engines(folder), "the engine is ended with the command"


def test_without_a_gpu_it_says_so_and_what_to_do(tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "accept", "--device", "cuda", "--out", str(tmp_path / "it")],
        capture_output=True,
        text=True,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        timeout=60,
    )
    assert done.returncode == 4
    assert done.stderr.count("\n") == 2, done.stderr
    assert "\nNext: " in done.stderr
    assert not (tmp_path / "it").exists()
