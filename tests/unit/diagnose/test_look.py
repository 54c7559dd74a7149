"""A whole diagnosis, from URL to report, of servers that are gone, fake or hidden."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from mmrepro import reports
from mmrepro.failure.documents.diagnosis import Fit, ServerState
from mmrepro.live.diagnose import collect, discover
from mmrepro.live.diagnose.kernel import Kill
from mmrepro.live.diagnose.options import DiagnoseCommand
from mmrepro.live.diagnose.session import diagnose
from mmrepro.reports import documents
from mmrepro.reports.incident import KIND

LOG = """\
(EngineCore pid=9) INFO 11-21 03:37:40 [core.py:113] Initializing a V1 LLM engine (v0.23.0) with x
(EngineCore pid=9) DEBUG 11-21 03:37:41 [core.py:1245] EngineCore waiting for work.
(APIServer pid=8) ERROR 11-21 03:37:42 [core_client.py:1] Engine core proc died unexpectedly
"""
KEY = "sk-planted-0123456789abcdef"


@pytest.fixture
def nobody() -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{free.getsockname()[1]}"


def test_a_server_that_is_gone_is_read_from_its_log(
    nobody: str, tmp_path: Path
) -> None:
    log = tmp_path / "server.log"
    log.write_text(LOG)
    out = tmp_path / "out"
    options = DiagnoseCommand(
        url=nobody, logs=(log,), out=out, headers={"Authorization": f"Bearer {KEY}"}
    )
    found = diagnose(options)
    told = found.diagnosis
    assert (told.state, told.exit_code, found.folder) == (ServerState.DEAD, 1, out)
    assert (told.target.engine, told.target.release) == ("vllm", "0.23.0")
    assert "EngineCore died first" in told.assessment.sentence
    assert "03:37:41" in told.since
    assert told.effect.inferences == 0
    assert found.incident.fidelity == "live"
    reports.write_reports(out)
    assert "died unexpectedly" in (out / "evidence" / "server.log").read_text()
    texts = [p.read_text() for p in out.rglob("*") if p.is_file()]
    assert any("EngineCore died first" in text for text in texts)
    assert not any(KEY in text for text in texts)
    again = reports.load(out)
    assert again.diagnosis is not None
    assert again.diagnosis.state is ServerState.DEAD
    for format in ("md", "html", "junit"):
        assert "died first" in documents.render(KIND, again, format)


class Front(BaseHTTPRequestHandler):
    """FAKE: answers every request with one and the same completion."""

    def do_GET(self) -> None:
        body = {"data": [{"id": "fake-model"}]}
        self._send(200 if self.path != "/metrics" else 404, json.dumps(body).encode())

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert asked["model"] == "fake-model"
        assert asked["max_tokens"] <= 8
        assert self.headers["X-Mmrepro-Probe"] == "1"
        body = {"choices": [{"message": {"content": "ok"}, "finish_reason": "stop"}]}
        self._send(200, json.dumps(body).encode())

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def fake() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Front) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_a_server_of_an_unknown_engine_is_still_looked_at(
    fake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collect, "APART_S", 0.1)
    monkeypatch.chdir(tmp_path)
    found = diagnose(DiagnoseCommand(url=fake, samples=3))
    told = found.diagnosis
    assert (told.state, told.exit_code, told.target.model) == (
        ServerState.HEALTHY,
        0,
        "fake-model",
    )
    assert any("engine was not recognised" in text for text in told.unseen)
    assert told.effect.inferences == 1
    assert told.effect.paused_s == 0
    assert told.effect.cpu_s > 0
    assert sorted(told.effect.requests)[-1] == "POST /v1/chat/completions"
    assert told.found == []
    assert found.folder is None
    assert list(tmp_path.iterdir()) == []


def test_a_remote_server_is_judged_by_what_http_shows(
    fake: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(collect, "APART_S", 0.1)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mmrepro.live.diagnose.discover.is_ours", lambda address: False)
    monkeypatch.setattr(
        "mmrepro.live.diagnose.discover.namespace_with", lambda address: None
    )
    told = diagnose(DiagnoseCommand(url=fake)).diagnosis
    assert (told.target.place, told.state) == ("remote", ServerState.HEALTHY)
    assert any("only what HTTP shows" in text for text in told.unseen)
    assert told.target.processes == []


@pytest.mark.parametrize(
    ("late", "state"), [(1, ServerState.HEALTHY), (9, ServerState.SLOW)]
)
def test_an_endpoint_that_was_late_is_asked_again(
    late: int, state: ServerState, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Once late is a busy machine; twice is a front that a load balancer takes out."""
    monkeypatch.setattr(collect, "APART_S", 0.1)
    # Sound answers keep it on a busy machine too.
    monkeypatch.setattr(collect, "FRONT_S", 1.5)
    monkeypatch.chdir(tmp_path)
    asked, over = [], threading.Event()

    class Late(Front):
        def do_GET(self) -> None:
            if self.path == "/health":
                asked.append(self.path)
                if len(asked) <= late:
                    over.wait(30)
                    return
            super().do_GET()

    with ThreadingHTTPServer(("127.0.0.1", 0), Late) as server:
        server.daemon_threads = True
        server.block_on_close = False
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            told = diagnose(
                DiagnoseCommand(url=f"http://127.0.0.1:{server.server_address[1]}")
            )
        finally:
            over.set()
            server.shutdown()
    assert told.diagnosis.state is state
    assert len(asked) == 2


AGAIN = """\
(APIServer pid=18) INFO 11-21 09:00:00 [api_utils.py:273] non-default args: {'model': 'm'}
(EngineCore pid=19) INFO 11-21 09:00:01 [core.py:113] Initializing a V1 LLM engine (v0.24.0) with x
(APIServer pid=18) INFO:     Started server process [18]
(EngineCore pid=19) DEBUG 11-21 09:10:00 [core.py:1245] EngineCore waiting for work.
"""


def test_one_that_the_oom_killer_ended_did_not_die_of_an_old_crash(
    nobody: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill = Kill(19, "VLLM::EngineCor", 5.0, "", "Killed process 19 (VLLM::EngineCor)")
    monkeypatch.setattr("mmrepro.live.diagnose.kernel.oom_kills", lambda: [kill])
    log = tmp_path / "server.log"
    log.write_text(LOG + AGAIN)
    told = diagnose(
        DiagnoseCommand(url=nobody, logs=(log,), out=tmp_path / "out")
    ).diagnosis
    assert (told.state, told.found, told.target.release) == (
        ServerState.DEAD,
        [],
        "0.24.0",
    )
    assert "died first" not in told.assessment.sentence
    assert "Killed process 19 (VLLM::EngineCor)" in " ".join(told.assessment.why)
    assert "died unexpectedly" not in " ".join(told.assessment.why)
    assert "11-21 09:10:00" in told.since
    log.write_text(AGAIN + LOG)
    crashed = diagnose(
        DiagnoseCommand(url=nobody, logs=(log,), out=tmp_path / "out2")
    ).diagnosis
    assert "EngineCore died first" in crashed.assessment.sentence


ASSERTION = """\
2026-11-20 04:01:50,680 - lmdeploy - ERROR - request.py:21 - Engine loop failed with error:
Traceback (most recent call last):
    assert len(running) > 0
AssertionError
"""


@pytest.mark.parametrize(
    ("status", "restarted", "fit"),
    [
        (401, True, Fit.EXPOSED),
        (404, True, Fit.EXPOSED),
        (500, True, Fit.SYMPTOM_ONLY),
        (401, False, Fit.LIKELY),
        (500, False, Fit.MATCH),
    ],
)
def test_lmdeploy_with_an_old_assertion_and_a_key_that_we_lack(
    status: int,
    restarted: bool,
    fit: Fit,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only a server's error, and the assertion of this very process, are the known
    failure."""
    monkeypatch.setattr(collect, "APART_S", 0.1)
    monkeypatch.setattr(discover, "find_release", lambda found: None)
    log = tmp_path / "server.log"
    log.write_text(ASSERTION + "INFO:     Started server process [7]\n" * restarted)

    class Refuses(Front):
        def do_POST(self) -> None:
            self._send(status, b"Internal Server Error")

    with ThreadingHTTPServer(("127.0.0.1", 0), Refuses) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        options = DiagnoseCommand(
            url=f"http://127.0.0.1:{server.server_address[1]}",
            logs=(log,),
            engine="lmdeploy",
            deadline_s=3.0,
            out=tmp_path / "out",
        )
        real = discover.find

        def found(*args: Any) -> discover.ServerTarget:
            target = real(*args)
            target.facts.release = "0.6.4"
            return target

        monkeypatch.setattr(discover, "find", found)
        told = diagnose(options).diagnosis
        server.shutdown()
    growth = next(m for m in told.matches if m.scenario == "kv-growth-crash")
    assert growth.fit is fit
    assert (told.found == []) is restarted
