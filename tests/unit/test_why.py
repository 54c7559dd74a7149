"""``mmrepro why``: a log, or a command that is started, watched and ended."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import in_process
import pytest
from mmrepro.base import processes
from mmrepro.cli.app import app
from mmrepro.live.diagnose import starts
from typer.testing import CliRunner

MMREPRO = [sys.executable, "-m", "mmrepro"]
UP = "INFO:     Application startup complete."
SERVER = """
import http.server, sys
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def log_message(self, *_): pass
server = http.server.HTTPServer(("127.0.0.1", int(sys.argv[2])), Answer)
print("loading", flush=True)
server.serve_forever()
"""
# A child in a session of its own, which only a supervisor finds.
PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                         start_new_session=True)
print("child", child.pid, flush=True)
time.sleep(600)
"""


def command(code: str, *words: str) -> list[str]:
    return [sys.executable, "-c", code, *words]


def why(folder: Path, *words: str, child: list[str] = []) -> tuple[int, dict[str, Any]]:  # noqa: B006
    log = ["--log", str(folder / "start.log")] if child else []
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        code, out, error = in_process.mmrepro(
            "why", "--json", *log, *words, *(["--", *child] if child else [])
        )
    assert out, error
    return code, json.loads(out)


def test_a_command_that_ends_with_a_known_cause(tmp_path: Path) -> None:
    code, answer = why(tmp_path, child=command("import zebra_stripes"))
    assert (code, answer["state"]) == (1, "failed")
    assert answer["cause"]["class"] == "failed-start"
    assert answer["cause"]["start"]["name"] == "missing-module"
    assert answer["ended_with"] == 1
    assert "zebra_stripes" in (tmp_path / "start.log").read_text()


def test_a_command_that_ends_without_a_known_cause(tmp_path: Path) -> None:
    code, answer = why(tmp_path, child=command("raise LookupError('stripes')"))
    assert (code, answer["state"], answer["cause"]) == (3, "failed", None)
    assert "LookupError: stripes" in answer["sentence"]


def test_a_command_that_is_killed(tmp_path: Path) -> None:
    child = command("import os; print('loading', flush=True); os.kill(os.getpid(), 9)")
    code, answer = why(tmp_path, child=child)
    assert (code, answer["cause"]["start"]["name"]) == (1, "killed-while-loading")


def test_a_ready_line_is_ready_and_the_server_is_ended(tmp_path: Path) -> None:
    child = command(
        f"import time; print({UP!r}, flush=True); time.sleep(600)", str(tmp_path)
    )
    code, answer = why(tmp_path, "--engine", "vllm", child=child)
    assert (code, answer["state"], answer["pid"]) == (0, "ready", None)
    assert not _running(tmp_path)


def test_an_answer_on_its_own_port_is_ready(tmp_path: Path, free: int) -> None:
    child = command(SERVER, "--port", str(free))
    code, answer = why(tmp_path, "--engine", "vllm", child=child)
    assert (code, answer["state"]) == (0, "ready")
    assert answer["url"] == f"http://127.0.0.1:{free}"
    assert answer["sentence"].endswith(f" at {answer['url']}.")


def test_the_answer_of_another_server_on_its_port_is_not(
    tmp_path: Path, free: int
) -> None:
    other = subprocess.Popen(
        command(SERVER, "--port", str(free)), stdout=subprocess.PIPE
    )
    try:
        assert other.stdout is not None
        other.stdout.readline()
        code, answer = why(
            tmp_path, "--engine", "vllm", child=command(SERVER, "--port", str(free))
        )
    finally:
        other.kill()
        other.wait()
    assert (code, answer["cause"]["start"]["name"]) == (1, "port-taken")


def test_keep_leaves_it_running(tmp_path: Path) -> None:
    child = command(
        f"import time; print({UP!r}, flush=True); time.sleep(600)", str(tmp_path)
    )
    code, answer = why(tmp_path, "--engine", "vllm", "--keep", child=child)
    assert (code, answer["state"]) == (0, "ready")
    assert _running(tmp_path)
    os.kill(answer["pid"], signal.SIGTERM)
    _until(lambda: not _running(tmp_path))


def test_a_start_that_stands_still_hangs_and_its_stacks_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starts, "QUIET_S", 0.5)
    monkeypatch.chdir(tmp_path)
    code = (
        "import time\ndef stripes():\n    time.sleep(600)\nprint('x', "
        "flush=True)\nstripes()"
    )
    words = ["why", "--json", "--log", "x.log", "--deadline", "4", "--", *command(code)]
    done = CliRunner().invoke(app, words)
    answer = json.loads(done.stdout)
    assert (done.exit_code, answer["state"]) == (1, "stuck")
    assert answer["cause"]["start"]["name"] == "hang-at-start"
    assert any("stripes" in line for line in answer["cause"]["why"])


def test_a_start_that_failed_and_does_not_end_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starts, "QUIET_S", 0.5)
    monkeypatch.chdir(tmp_path)
    code = "import time; print('MemoryError', flush=True); time.sleep(600)"
    words = [
        "why",
        "--json",
        "--log",
        "x.log",
        "--deadline",
        "300",
        "--",
        *command(code),
    ]
    done = CliRunner().invoke(app, words)
    answer = json.loads(done.stdout)
    assert (done.exit_code, answer["state"]) == (1, "failed")
    assert answer["cause"]["start"]["name"] == "out-of-host-memory"
    assert answer["seconds"] < 60


def test_a_start_that_works_at_the_deadline_is_only_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starts, "QUIET_S", 0.5)
    monkeypatch.chdir(tmp_path)
    code = "print('x', flush=True)\nwhile True: pass"
    words = ["why", "--json", "--log", "x.log", "--deadline", "3", "--", *command(code)]
    done = CliRunner().invoke(app, words)
    answer = json.loads(done.stdout)
    assert (done.exit_code, answer["state"], answer["cause"]) == (3, "starting", None)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_command_and_all_that_it_started(
    tmp_path: Path, number: int
) -> None:
    log = tmp_path / "start.log"
    ours = subprocess.Popen(
        [*MMREPRO, "why", "--log", str(log), "--", *command(PARENT)],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    _until(lambda: log.exists() and "child" in log.read_text())
    child = int(log.read_text().split()[1])
    assert processes.alive(child)
    ours.send_signal(number)
    ours.communicate(timeout=60)
    assert ours.returncode == 130
    _until(lambda: not processes.alive(child))


def test_a_log_and_its_screen(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("ModuleNotFoundError: No module named 'cv2'\n")
    done = CliRunner().invoke(app, ["why", str(log)])
    assert done.exit_code == 1
    shown = done.stdout.strip().splitlines()
    assert len(shown) <= 20
    assert shown[-1].startswith("FAILED  The Python module cv2 is not installed.")
    assert "opencv-python-headless" in done.stdout


def test_logs_of_which_nothing_can_be_told(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("loading\n")
    code, answer = why(tmp_path, str(log))
    assert (code, answer["state"]) == (3, "unknown")
    log.write_text(UP + "\n")
    code, answer = why(tmp_path, str(log))
    assert (code, answer["state"]) == (0, "ready")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "Pass a start-up log"),
        (["x.log", "--", "true"], "Pass a start-up log"),
        (["none.log"], "none.log cannot be read"),
        (["--", "zebra-that-is-no-program"], "There is no program"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    words: list[str], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, said = in_process.mmrepro("why", *words)
    assert code == 2
    assert text in said
    assert len(said.splitlines()) <= 2


@pytest.fixture
def free() -> int:
    from mmrepro.engines.supervise import free_port

    return free_port()


def _running(folder: Path) -> bool:
    """Whether a process has that argument, which no other run of these tests has."""
    return any(str(folder) in processes.arguments(pid) for pid in processes.pids())


def _until(holds: Any) -> None:
    end = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)
