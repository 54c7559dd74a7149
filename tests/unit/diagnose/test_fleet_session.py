"""Several servers, found and looked at: nobody listens there, or a FAKE that answers as
its API."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from fake_server import http, serving
from mmrepro.base.errors import UnwritableOutput, UsageError
from mmrepro.base.records import Moment
from mmrepro.failure.documents.fleet import Fleet, FleetState, Scraped
from mmrepro.live.diagnose.options import DiagnoseCommand
from mmrepro.live.fleet import prometheus, session
from mmrepro.live.watch.health import Check, CheckOutcome, Health
from mmrepro.live.watch.loop import ServerWatch, Together
from mmrepro.live.watch.options import WatchCommand
from mmrepro.live.watch.server import states
from prometheus_client import CollectorRegistry, generate_latest
from typer.testing import CliRunner

A, B = "127.0.0.1:8001", "127.0.0.1:8002"


@contextmanager
def nobody(count: int = 2) -> Iterator[list[str]]:
    """Addresses of this machine where nothing listens, while this lasts."""
    held = [socket.socket() for _ in range(count)]
    try:
        for one in held:
            one.bind(("127.0.0.1", 0))
        yield [f"http://127.0.0.1:{one.getsockname()[1]}" for one in held]
    finally:
        for one in held:
            one.close()


# ---------------------------------------------------------------- the look


def test_each_is_looked_at_and_kept_beside_the_others(tmp_path: Path) -> None:
    with nobody() as (first, second):
        out = tmp_path / "look"
        (out / "mine").mkdir(parents=True)
        told: list[str] = []
        asked = DiagnoseCommand(first, more=(second, f"{first}/v1"), out=out)
        looked = session.look(asked, told.append)
    fleet = looked.fleet
    assert [m.url for m in fleet.members] == [first, second], "each once, in order"
    assert (fleet.state, fleet.exit_code) == (FleetState.ALL_UNWELL, 1)
    assert len(told) == 2
    assert json.loads((out / "fleet.json").read_text())["state"] == "all-unwell"
    assert len(list(out.glob("*/incident.json"))) == 2
    with pytest.raises(UnwritableOutput, match="already holds"):
        session.look(asked)
    assert (out / "mine").is_dir()


def test_an_interrupted_look_leaves_only_what_others_put_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        next(tmp_path.glob("look")).joinpath(session._below(0, "http://x:1")).mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr(session, "_each", interrupted)
    (tmp_path / "look/mine").mkdir(parents=True)
    with pytest.raises(KeyboardInterrupt):
        session.look(
            DiagnoseCommand("http://x:1", more=("http://x:2",), out=tmp_path / "look")
        )
    assert [p.name for p in (tmp_path / "look").iterdir()] == ["mine"]


def test_options_of_one_server_alone() -> None:
    with pytest.raises(UsageError, match="belong to one server"):
        session.look(DiagnoseCommand("http://x:1", more=("http://x:2",), pid=1))
    with pytest.raises(UsageError, match="is not the address"):
        session.look(DiagnoseCommand("http://x:1", more=("x",)))


def test_as_it_is_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mmrepro.cli import live
    from mmrepro.cli.app import app

    monkeypatch.setattr(live, "_bound", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    with nobody() as urls:
        done = CliRunner().invoke(app, ["diagnose", *urls, "--json"])
        shown = CliRunner().invoke(app, ["diagnose", *urls])
    assert (done.exit_code, shown.exit_code) == (1, 1)
    assert json.loads(done.stdout)["$id"] == "urn:mmrepro:fleet:1"
    assert "All 2 servers are unwell: dead." in shown.stdout
    folder = Path(json.loads(done.stdout)["incident_dir"])
    assert {"fleet.json", "report.md", "report.html"} <= {
        p.name for p in folder.iterdir()
    }
    mistyped = CliRunner().invoke(app, ["diagnose", "http://"])
    assert isinstance(mistyped.exception, UsageError)


# ---------------------------------------------------------------- Prometheus


def target(
    instance: str, job: str = "llm", health: str = "up", **more: Any
) -> dict[str, Any]:
    """In the form of prometheus.io/docs/prometheus/latest/querying/api#targets."""
    return {
        "discoveredLabels": {"__address__": instance},
        "labels": {"instance": instance, "job": job},
        "scrapePool": job,
        "scrapeUrl": f"http://{instance}/metrics",
        "lastError": "" if health == "up" else "connection refused",
        "health": health,
    } | more


def vector(*series: tuple[str, str, str, float]) -> dict[str, Any]:
    """In the form of an instant query's answer: job, instance, name, value."""
    result = [
        {
            "metric": {"job": j, "instance": i} | ({"__name__": n} if n else {}),
            "value": [0, str(v)],
        }
        for j, i, n, v in series
    ]
    return {"resultType": "vector", "result": result}


def asked_of(
    answers: Callable[[str, dict[str, list[str]]], tuple[int, Any]], path: str = ""
) -> prometheus.Known:
    async def main() -> prometheus.Known:
        async def reply(request: bytes, writer: asyncio.StreamWriter) -> None:
            words = urlsplit(request.split(b" ")[1].decode())
            status, body = answers(words.path, parse_qs(words.query))
            raw = body if isinstance(body, bytes) else json.dumps(body).encode()
            writer.write(http(status, raw))

        async with serving(reply) as server:
            url = server.url.replace("http://", "http://user:hunter2@") + path
            return await asyncio.to_thread(prometheus.known, url)

    return asyncio.run(main())


def api(
    targets: list[Any] | None,
    *,
    tokens: tuple[float, float] = (10, 30),
    held: Any = None,
) -> Callable[[str, dict[str, list[str]]], tuple[int, Any]]:
    def answers(path: str, query: dict[str, list[str]]) -> tuple[int, Any]:
        def fine(data: Any) -> tuple[int, Any]:
            return 200, {"status": "success", "data": data}

        if path.endswith("/targets"):
            return (
                fine({"activeTargets": targets})
                if targets is not None
                else (404, b"no")
            )
        if query["query"][0].startswith("count"):
            return fine(held or vector(("llm", A, "", 5), ("llm", B, "", 5)))
        late = float(query["time"][0])
        value = tokens[1] if late > answers.first else tokens[0]  # type: ignore[attr-defined]
        answers.first = min(answers.first, late)  # type: ignore[attr-defined]
        return fine(
            vector(
                ("llm", A, "vllm:generation_tokens_total", value),
                ("llm", A, "vllm:num_requests_running", 1),
                ("node", "127.0.0.1:9100", "up", 1),
            )
        )

    answers.first = float("inf")  # type: ignore[attr-defined]
    return answers


@pytest.mark.parametrize("path", ["", "/", "/api/v1"])
def test_its_targets_that_are_inference_servers(path: str) -> None:
    node = target("127.0.0.1:9100", "node")
    found = asked_of(
        api([target(A), target(B, health="down"), node, "?", {"labels": 1}]), path
    )
    assert list(found.found) == [f"http://{A}", f"http://{B}"]
    assert found.found[f"http://{A}"].tokens == [10, 30]
    assert found.found[f"http://{A}"].running == [1, 1]
    down = found.found[f"http://{B}"]
    assert (down.health, down.last_error, down.tokens) == (
        "down",
        "connection refused",
        [],
    )


def test_a_label_that_is_no_address_is_no_server() -> None:
    pods = [("llm", name, "", 5) for name in ("vllm-0", "127.0.0.1:0", "vllm-0:8000")]
    found = asked_of(api(None, held=vector(*pods)))
    assert list(found.found) == ["http://vllm-0:8000"]


def test_what_stores_metrics_and_lists_no_targets() -> None:
    found = asked_of(api(None, tokens=(10, 10)))
    assert list(found.found) == [f"http://{A}", f"http://{B}"]
    assert found.found[f"http://{A}"].stands
    assert "hunter2" not in found.unseen[0]


@pytest.mark.parametrize(
    "held",
    [
        {"result": []},
        {"result": "no"},
        {"result": [{"metric": 1}, {"metric": {}, "value": []}, None]},
        vector(
            ("x", "unix:/run/x", "", 1),
            ("x", "http://[", "", 1),
            ("x", "ftp://x:1", "", 1),
        ),
    ],
)
def test_one_that_watches_no_inference_server(held: Any) -> None:
    with pytest.raises(UsageError, match="holds no metrics of a server") as raised:
        asked_of(api([target("127.0.0.1:9100", "node")], held=held))
    assert "hunter2" not in raised.value.message


@pytest.mark.parametrize(
    "answer",
    [(200, b"<html>"), (401, b"{}"), (200, {"status": "error"}), (200, b"[" * 10_000)],
)
def test_what_is_no_prometheus_server(answer: tuple[int, Any]) -> None:
    with pytest.raises(UsageError, match="is no Prometheus server") as raised:
        asked_of(lambda *_: answer)
    assert "hunter2" not in raised.value.message


def test_its_servers_come_after_those_that_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = prometheus.Known(
        {f"http://{A}": Scraped(health="up"), f"http://{B}": Scraped()}
    )
    monkeypatch.setattr(prometheus, "known", lambda url: known)
    asked = DiagnoseCommand(
        "http://x:1", more=(f"http://{A}/",), prometheus="http://p:9090"
    )
    found, unseen = session.servers(asked)
    assert list(found) == ["http://x:1", f"http://{A}", f"http://{B}"]
    assert found[f"http://{A}"] == Scraped(health="up")
    assert unseen == []


# ---------------------------------------------------------------- watched


class Never:
    def check(self) -> Check:
        raise AssertionError("this watch does not run")


def watch(*verdicts: CheckOutcome) -> ServerWatch:
    made = ServerWatch(Never(), Health(), WatchCommand(http="9400"))
    for n, verdict in enumerate(verdicts):
        made.health.observe(Check(verdict, float(n), 0.1))
    return made


def test_several_watches_are_served_together() -> None:
    from mmrepro.live.watch.server import _Metrics

    ok, failed = [CheckOutcome.OK] * 2, [CheckOutcome.OK, *[CheckOutcome.FAILED] * 2]
    served = {A: watch(*ok), B: watch(*failed)}
    found = states(served)
    assert (found["live"], found["ready"], found["odd"]) == (False, False, [B])
    assert found["servers"][A]["ready"] is True
    registry = CollectorRegistry()
    registry.register(_Metrics(served))
    lines = generate_latest(registry).decode().splitlines()
    assert f'mmrepro_watch_odd{{server="{B}"}} 1.0' in lines
    assert f'mmrepro_watch_odd{{server="{A}"}} 0.0' in lines
    assert f'mmrepro_watch_live{{server="{B}"}} 0.0' in lines
    assert states({A: watch(*failed), B: watch(*failed)})["odd"] == [], (
        "none is unlike the other"
    )
    assert "odd" not in states({"": served[A]})


def test_several_are_watched_as_it_is_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mmrepro.cli.app import app

    monkeypatch.chdir(tmp_path)
    words = ["--once", "--no-diagnose", "--json", "--interval", "1", "--failures", "1"]
    with nobody() as urls:
        done = CliRunner().invoke(app, ["watch", *urls, *words])
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.exit_code == 1
    assert {one["server"] for one in events} == {
        url.partition("://")[2] for url in urls
    }


def test_watches_that_fail_at_once_share_one_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[str] = []
    began, all_ask = threading.Event(), threading.Event()

    def look(asked: DiagnoseCommand) -> session.Looked:
        looks.append(asked.url)
        began.set()
        assert all_ask.wait(30)
        fleet = Fleet(
            taken=Moment.now(), state=FleetState.ODD_ONE_OUT, sentence="B.", members=[]
        )
        return session.Looked(fleet, None, ())

    class Counted:
        """A lock that says when three have come to it."""

        def __init__(self) -> None:
            self.lock, self.came = threading.Lock(), itertools.count(1)

        def __enter__(self) -> None:
            if next(self.came) == 3:
                all_ask.set()
            self.lock.acquire()

        def __exit__(self, *_: object) -> None:
            self.lock.release()

    monkeypatch.setattr(session, "look", look)
    asked = WatchCommand(f"http://{A}", more=(f"http://{B}",))
    together = Together(asked, lambda folder: None, 1.0, _lock=Counted())  # type: ignore[arg-type]
    said: list[str] = []

    def diagnosed(url: str) -> None:
        said.append(together.diagnosed(url).sentence)

    first = threading.Thread(target=diagnosed, args=(f"http://{A}",))
    first.start()
    assert began.wait(10)
    rest = [threading.Thread(target=diagnosed, args=(f"http://{B}",)) for _ in range(2)]
    for one in rest:
        one.start()
    for one in [first, *rest]:
        one.join()
    assert said == ["B."] * 3
    assert len(looks) == 2, "who asked during a look waits for the next one, together"
