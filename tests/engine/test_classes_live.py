"""Classes of failure on real servers: what one request does to a vLLM, and who is told
of it."""

import contextlib
import http.client
import json
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import pytest
from live import COMMAND, wait_for
from live_server import Server, Told, answers, ask, diagnose, serving
from mmrepro.engines.models import TinyQwen2VL
from mmrepro.engines.supervise import free_port

pytestmark = [pytest.mark.engine, pytest.mark.slow]
TINY = ("--num-gpu-blocks-override", "8")
"""7 of 128 tokens each can be had: 896 tokens (vllm#35541)."""
STORED = {"VLLM_ENABLE_RESPONSES_API_STORE": "1"}


def post(server: Server, path: str, **body: Any) -> int:
    """The status. Raises OSError or HTTPException where the server leaves."""
    request = urllib.request.Request(
        f"{server.url}{path}",
        json.dumps({"model": "tiny", **body}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.status


def classes(told: Told) -> dict[str, str]:
    return {c["name"]: c["certainty"] for c in told.document["classes"]}


def test_work_in_the_background_and_then_a_request_that_kills(tmp_path: Path):
    with serving(
        "vllm", "0.23.0", TinyQwen2VL(), tmp_path / "it", env=STORED
    ) as server:
        ask(server.url)
        told: list[Told] = []

        def alone() -> bool:
            for _ in range(4):  # some end early
                assert (
                    post(
                        server,
                        "/v1/responses",
                        input="hello",
                        background=True,
                        store=True,
                        max_output_tokens=1500,
                        temperature=1.0,
                    )
                    == 200
                )
            told.append(diagnose(server.url, "--no-request", cwd=tmp_path, timeout=300))
            return "work-without-clients" in classes(told[-1])

        wait_for(alone, 180, "work for nobody")
        assert classes(told[-1]) == {"work-without-clients": "likely"}
        assert {name for one in told for name in classes(one)} == {
            "work-without-clients"
        }
        assert told[-1].exit_code == 0
        with contextlib.suppress(OSError, http.client.HTTPException):
            post(
                server,
                "/v1/chat/completions",
                messages=[{"role": "user", "content": "hi"}],
                stop_token_ids=[1151935],
                min_tokens=1,
            )
        wait_for(lambda: not psutil.pid_exists(server.pid), 60, "its end")
        dead = diagnose(server.url, "--log", str(server.log), cwd=tmp_path)
    assert (dead.exit_code, dead.state) == (1, "dead")
    assert classes(dead) == {"killed-by-input": "certain"}
    sentence = dead.document["classes"][0]["sentence"]
    assert (
        "by its field stop_token_ids: IndexError: index 1151935 is out of bounds"
        in sentence
    )


def test_a_prompt_that_can_never_fit_is_told_by_diagnose_and_by_watch(tmp_path: Path):
    with serving(
        "vllm", "0.23.0", TinyQwen2VL(), tmp_path / "it", *TINY, max_model_len=1024
    ) as server:
        ask(server.url)
        port = free_port()
        watch = subprocess.Popen(
            [*COMMAND, "watch", server.url, "--http", str(port), "--no-diagnose"],
            stdout=subprocess.DEVNULL,
            cwd=tmp_path,
        )
        client = http.client.HTTPConnection(
            server.url.removeprefix("http://"), timeout=300
        )
        try:
            wait_for(
                lambda: answers(f"http://127.0.0.1:{port}/ready"), 60, "its readiness"
            )
            body = json.dumps({"model": "tiny", "prompt": [100] * 900, "max_tokens": 4})
            client.request(
                "POST", "/v1/completions", body, {"Content-Type": "application/json"}
            )

            def told() -> bool:
                with urllib.request.urlopen(
                    f"http://127.0.0.1:{port}/metrics"
                ) as answer:
                    return (
                        'mmrepro_watch_class{class="never-fits"} 3.0'
                        in answer.read().decode()
                    )

            wait_for(told, 180, "the class, from the watch")
            found = diagnose(server.url, cwd=tmp_path, timeout=300)
            assert (found.fit("capacity-never"), found.found) == (
                "match",
                ["capacity-never"],
            )
            assert classes(found) == {"never-fits": "certain"}
        finally:
            client.close()
            watch.terminate()
            watch.wait(30)
