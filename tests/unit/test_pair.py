"""The proxy before a prefill and a decode server, with small servers in their
places."""

import contextlib
import http.client
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from mmrepro.engines.base import PROXY
from mmrepro.engines.supervise import free_port
from mmrepro.reproducers import reproducer_path

ENGINE = """
import json, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

words = dict(zip(sys.argv[1::2], sys.argv[2::2]))
role, log = json.loads(words["--kv-transfer-config"])["kv_role"], open(words["--log"], "a", 1)

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *args): ...
    def answer(self, body, status=200):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        kinds = "# TYPE held gauge\\n# TYPE done counter\\n# TYPE process_open_fds gauge\\n"
        kinds += "# TYPE told_info gauge\\n"
        lines = 'held{engine="0"} 2.0\\ndone 3.0\\nprocess_start_time_seconds 1.0\\n'
        lines += "process_open_fds 9.0\\ntold_info 1.0\\n"
        self.answer((kinds + lines if self.path == "/metrics" else role).encode())
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"] or 0)).decode()
        print(json.dumps([role, self.path, body]), file=log)
        if "end yourself" in body and role == "kv_consumer":
            import os; os._exit(7)
        if "refuse" in body and role == "kv_producer":
            return self.answer(b'{"error": "too long"}', 400)
        if "hang" in body:
            self.rfile.read(1)
            print(json.dumps([role, "gone", ""]), file=log)
            return
        told = {"role": role}
        if role == "kv_producer" and "remote" in body:
            told["kv_transfer_params"] = {"remote_engine_id": "p1"}
        self.answer(json.dumps(told).encode())

ThreadingHTTPServer(("127.0.0.1", int(words["--port"])), Handler).serve_forever()
"""


class Pair:
    """The proxy as it runs, and what its two servers were sent."""

    def __init__(self, folder: Path) -> None:
        (folder / "small_engine.py").write_text(ENGINE)
        self.log, self.port = folder / "log", free_port()
        config = (
            '--kv-transfer-config={"kv_connector": "Example", "kv_role": "kv_both"}'
        )
        script = reproducer_path("pair") / "server.py"
        arguments = [
            "small_engine",
            "--port",
            str(self.port),
            "--log",
            str(self.log),
            config,
        ]
        self.process = subprocess.Popen(
            [sys.executable, str(script), *arguments], cwd=folder
        )
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError, http.client.HTTPException):
                if self.get("/health")[0] == 200:
                    return
            time.sleep(0.05)
        raise TimeoutError

    def get(self, path: str) -> tuple[int, str]:
        return self.ask("GET", path)

    def ask(self, method: str, path: str, body: str = "") -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        with contextlib.closing(connection):
            connection.request(method, path, body.encode())
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    def sent(self) -> list[tuple[str, str, str]]:
        return [tuple(json.loads(line)) for line in self.log.read_text().splitlines()]

    def end(self) -> int:
        self.process.terminate()
        return self.process.wait(10)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    yield made
    made.end()


def test_a_prompt_is_prefilled_for_one_token_and_then_decoded(pair: Pair) -> None:
    asked = {
        "prompt": "remote",
        "max_tokens": 9,
        "stream": True,
        "n": 2,
        "temperature": 0,
    }
    status, text = pair.ask("POST", "/v1/completions", json.dumps(asked))
    assert (status, json.loads(text)) == (200, {"role": "kv_consumer"})
    (first, _, prompt), (then, _, whole) = pair.sent()
    assert (first, then) == ("kv_producer", "kv_consumer")
    remote = {"do_remote_decode": True, "do_remote_prefill": False}
    alone = {
        "prompt": "remote",
        "temperature": 0,
        "max_tokens": 1,
        "kv_transfer_params": remote,
    }
    assert json.loads(prompt) == alone
    assert json.loads(whole) == asked | {
        "kv_transfer_params": {"remote_engine_id": "p1"}
    }


def test_what_the_prefill_server_refuses_is_the_answer(pair: Pair) -> None:
    status, text = pair.ask("POST", "/v1/chat/completions", '{"prompt": "refuse"}')
    assert (status, json.loads(text)) == (400, {"error": "too long"})
    assert [role for role, *_ in pair.sent()] == ["kv_producer"]


def test_other_posts_go_to_both_and_what_is_no_request_to_the_decode_server(
    pair: Pair,
) -> None:
    assert pair.ask("POST", "/reset_prefix_cache")[0] == 200
    assert [role for role, *_ in pair.sent()] == ["kv_producer", "kv_consumer"]
    pair.ask("POST", "/v1/completions", "no JSON")
    assert pair.sent()[2:] == [("kv_consumer", "/v1/completions", "no JSON")]
    assert pair.get("/v1/models") == (200, "kv_consumer")


def test_counters_are_the_decode_servers_and_gauges_are_of_both(pair: Pair) -> None:
    lines = pair.get("/metrics")[1].splitlines()
    values = [line for line in lines if line and line[0] != "#"]
    start = next(
        line.split()[1] for line in values if line.startswith("process_start_time")
    )
    assert abs(float(start) - time.time()) < 60  # the proxy's
    assert [line for line in values if "start" not in line] == [
        'held{engine="0"} 2.0',
        "done 3.0",
        "process_open_fds 9.0",
        "told_info 1.0",
        'held{server="prefill",engine="0"} 2.0',
    ]


@pytest.mark.parametrize("where", ["kv_producer", "kv_consumer"])
def test_a_client_that_leaves_is_gone_for_the_server_as_well(
    pair: Pair, where: str
) -> None:
    body = (
        {"prompt": "a", "stop": "hang"}
        if where == "kv_consumer"
        else {"prompt": "hang"}
    )
    data = json.dumps(body).encode()
    with socket.create_connection(("127.0.0.1", pair.port)) as client:
        head = (
            "POST /v1/completions HTTP/1.1\r\n"
            "Host: a\r\n"
            f"Content-Length: {len(data)}\r\n"
            "\r\n"
        )
        client.sendall(head.encode() + data)
        until(lambda: (where, "/v1/completions") in [one[:2] for one in pair.sent()])
    until(lambda: (where, "gone", "") in pair.sent())


def until(holds: object) -> None:
    assert callable(holds)
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_it_ends_with_either_server_and_ends_both(pair: Pair) -> None:
    with pytest.raises((OSError, http.client.HTTPException)):
        pair.ask("POST", "/v1/completions", '{"prompt": "a", "stop": "end yourself"}')
    assert pair.process.wait(10) == 7
    with pytest.raises(OSError):
        pair.get("/health")


def test_it_is_known_by_its_command_and_ends_when_asked(pair: Pair) -> None:
    command = Path(f"/proc/{pair.process.pid}/cmdline").read_text()
    assert PROXY.search(command)
    assert pair.end() == 0
