"""A watch beside a real server that is driven into a real hang."""

import json
import os
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request
from datetime import datetime
from pathlib import Path

import psutil
import pytest
from live import COMMAND, listening, processes_in, wait_for
from live_server import serving, trigger
from mmrepro.live.watch.checker import Checker
from mmrepro.live.watch.health import Check, CheckOutcome, Health
from mmrepro.scenario.registry import load_scenario

pytestmark = pytest.mark.engine
INTERVAL_S = 5.0


def test_a_hang_and_a_death_end_liveness_and_a_new_start_is_waited_for(tmp_path: Path):
    """On minivllm, whose switched-on fault hangs it as vLLM's does."""
    ghost = next(
        v
        for v in load_scenario("borrowed-faults").variants
        if v.variant == "ghost-key-lru"
    )
    options = (*ghost.server_args, "--paper")
    health = Health(failures=2, grace_s=60.0, started=time.monotonic())
    with serving(
        "minivllm", "0.1", ghost.model, tmp_path / "server", *options
    ) as server:
        checker = Checker(server.url, 4.0)
        for _ in range(2):
            health.observe(checker.check())
        assert health.ready, health.last
        trigger(ghost, server.url, tmp_path)
        seen: list[Check] = []

        def dead() -> bool:
            seen.append(checker.check())
            health.observe(seen[-1])
            return not health.live

        wait_for(dead, 60, "the end of its liveness")
        assert [c.verdict for c in seen[-2:]] == [CheckOutcome.FAILED] * 2
        # The loop's own function, or the property of a picture that its condition
        # reads.
        assert re.search(
            r"EngineCore stands still \((ImageCache\.|Image\.tokens )", seen[-1].why
        )
        others = [c.why for c in seen if c.verdict is not CheckOutcome.FAILED]
        assert all("short of processors" in why for why in others)
        psutil.Process(server.pid).kill()
        wait_for(lambda: not psutil.pid_exists(server.pid), 10, "its end")
        assert (
            f"process {server.pid}, which answered before, has ended"
            in checker.check().why
        )
    checker.close()


def status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def port_in(folder: Path) -> int | None:
    try:
        command = json.loads((folder / "incident.json").read_text())["engine"][
            "command"
        ]
        return int(command[command.index("--port") + 1])
    except (OSError, ValueError):
        return None


@pytest.mark.slow
def test_live_turns_to_503_within_two_intervals_of_the_hang_and_not_before(
    start_run, tmp_path
):
    run = start_run("ghost-key-eviction", "--keep-server")
    port = wait_for(
        lambda: port_in(run.folder), 120, "the server's port in the incident"
    )
    # No hang before the watch has seen it healthy.
    run.process.send_signal(signal.SIGSTOP)
    command = [
        *COMMAND,
        "watch",
        f"http://127.0.0.1:{port}",
        "--interval",
        str(INTERVAL_S),
    ]
    command += ["--http", "127.0.0.1:0", "--json", "--out", str(tmp_path / "kept")]
    watch = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        first = json.loads(watch.stdout.readline())
        address = "http://" + first["text"].rpartition(" ")[2]
        seen: list[tuple[float, int]] = []

        def dead() -> bool:
            seen.append((time.time(), status(address + "/live")))
            return seen[-1][1] == 503

        def ready() -> bool:
            assert not dead(), "a server that starts is alive"
            return status(address + "/ready") == 200

        wait_for(ready, 180, "/ready turns to 200")
        run.process.send_signal(signal.SIGCONT)
        wait_for(dead, 180, "/live turns to 503")
        out, _ = run.process.communicate(timeout=120)
        document = json.loads(out)
        assert status(address + "/ready") == 503
        hung = next(r for r in document["evidence"]["requests"] if r["timed_out"])
        began = datetime.fromisoformat(hung["sent"]["wall"]).timestamp()
        turned = seen[-1][0]
        assert all(code == 200 for at, code in seen[:-1])
        assert began < turned <= began + 2 * INTERVAL_S + 0.5  # our own polling apart

        def diagnosis() -> str:
            with urllib.request.urlopen(address + "/", timeout=5) as answer:
                return json.loads(answer.read())["diagnosis"] or ""

        assert "ghost-key-eviction" in wait_for(diagnosis, 60, "a diagnosis")
        kept = list((tmp_path / "kept").iterdir())
        assert [(folder / "report.html").is_file() for folder in kept] == [True]
        with urllib.request.urlopen(address + "/metrics", timeout=5) as answer:
            assert "mmrepro_watch_live 0.0" in answer.read().decode()
    finally:
        run.process.send_signal(signal.SIGCONT)
        watch.send_signal(signal.SIGTERM)
        assert watch.wait(30) == 130
        # Else the run ends its server when it is ended.
        if run.process.poll() is not None:
            for pid in processes_in(run.folder):
                os.kill(pid, signal.SIGTERM)
            wait_for(lambda: not listening(port), 30, "the server ends")
