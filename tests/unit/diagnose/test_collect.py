"""What a look does, in which order and with which bounds; the probes themselves are
stand-ins."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from looked import NOW, Told, collector, told
from made_up import http
from mmrepro.live.diagnose import collect
from mmrepro.live.diagnose.collect import Collector
from mmrepro.live.diagnose.dumps import _result
from mmrepro.live.diagnose.options import DiagnoseCommand
from mmrepro.probes.data import EndpointAnswer, HttpData, LogsData
from mmrepro.probes.http import Fetched
from seen import FRONT, GREEN, URL, log

assert told  # a fixture


def look(made: Collector, suspicious: bool = False, plain: bool = False) -> None:
    if made.look(lambda evidence: suspicious, plain=plain):
        made.look_on()


# ---------------------------------------------------------------- the course of a look


def test_a_dead_or_stopped_server_is_looked_at_once_and_asked_nothing(
    tmp_path: Path, told: Told
) -> None:
    made = collector(tmp_path, logs=["a.log"])
    look(made, suspicious=True, plain=True)
    assert told.labels == ["stacks", "processes", "syscalls", "logs-1", "gpu"]
    assert (made.requests, made.inferences, told.until, told.waited) == ([], 0, [], [])


def test_a_healthy_server_is_read_twice_and_asked_once(
    tmp_path: Path, told: Told
) -> None:
    made = collector(tmp_path, "vllm", GREEN)
    made.plan = DiagnoseCommand(deadline_s=10.0, model="m", request=False)
    look(made)
    first = ["stacks", "others", "processes", "syscalls"]
    assert told.labels == [*first, "gpu", "connections-2", "metrics-2"]
    assert told.probe("connections-2") == ("connections", (8000, FRONT), {})
    assert told.until == [collect.APART_S]
    assert made.requests == ["GET /metrics"]


def test_a_front_that_was_not_well_is_asked_again(tmp_path: Path, told: Told) -> None:
    made = collector(tmp_path, "vllm", http(None, 200))
    made.plan = DiagnoseCommand(deadline_s=10.0, model="m", request=False)
    look(made)
    assert told.labels[-2:] == ["metrics-2", "http-2"]
    assert made.requests == ["GET /metrics", "GET /health", "GET /v1/models"]


def test_a_silent_one_is_looked_at_again_before_the_deadline(
    tmp_path: Path, told: Told
) -> None:
    """The request is still on its way: a second round, and the last readings before its
    end."""
    made = collector(tmp_path, "vllm", GREEN)
    look(made)
    first = ["stacks", "others", "processes", "syscalls"]
    second = [f"2-{label}" for label in first]
    rest = ["connections-3", "metrics-3", "http-2"]
    looked = [*first, "gpu", "connections-2", "metrics-2"]
    assert told.labels == ["inference", *looked, *second, *rest]
    # -1.0: the processes are looked at again.
    assert told.until == pytest.approx([2.0, 6.0, -1.0, 8.5, -1.0])
    assert told.waited == pytest.approx([0.5, 3.0, 11.0])
    assert told.seconds("2-stacks") == pytest.approx(8.5)
    assert made.inferences == 1
    assert made.requests[0] == "POST /v1/chat/completions"


def test_the_logs_are_read_again_where_a_process_ended_meanwhile(
    tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = collector(tmp_path, "vllm", GREEN, logs=["a.log"])
    look(made)
    assert "logs-1" in told.labels
    assert "logs-late-1" not in told.labels

    made = collector(tmp_path, "vllm", GREEN, logs=["a.log"])
    first, later = {1, 2}, {1}
    lives = iter([first, later, later])
    monkeypatch.setattr(Collector, "_living", lambda self: next(lives))
    look(made)
    assert told.labels[-1] == "logs-late-1"


def test_what_is_read_again_replaces_the_first_reading_of_that_log(
    tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = collector(tmp_path, "vllm", GREEN)
    probes = made.evidence.probes
    for name in ("a.log", "b.log"):
        probes.append(_result("logs", log("early").model_copy(update={"file": name})))

    def read(label: str) -> list[Future[None]]:
        late = log("early", "late").model_copy(update={"file": "a.log"})
        probes.append(_result("logs", late))
        return []

    monkeypatch.setattr(made, "_logs", read)
    made._logs_again()
    errors = {}
    for _, data in made.evidence.results(LogsData):
        errors[data.file] = len(data.errors)
    assert errors == {"b.log": 1, "a.log": 2}
    assert len(list(made.evidence.results(LogsData))) == 2


def test_without_a_request_a_suspect_is_watched_as_long(
    tmp_path: Path, told: Told
) -> None:
    made = collector(tmp_path, "vllm", GREEN)
    made.plan = DiagnoseCommand(deadline_s=10.0, request=False)
    look(made, suspicious=True)
    second = ["2-stacks", "2-others", "2-processes", "2-syscalls"]
    assert told.labels[-7:] == [*second, "connections-3", "metrics-3", "http-2"]
    assert told.waited == []


def test_an_answer_at_once_saves_the_stacks(
    tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: Future[None] = Future()
    done.set_result(None)
    monkeypatch.setattr(Collector, "_request", lambda self: done)
    look(collector(tmp_path, "vllm", GREEN))
    assert told.labels == ["processes", "syscalls", "gpu", "connections-2", "metrics-2"]


def test_a_second_look_at_once_is_of_the_core_and_not_before_its_time(
    tmp_path: Path, told: Told
) -> None:
    made = collector(tmp_path, "vllm", GREEN)
    assert made.look(lambda evidence: True, plain=False)
    before = len(told.started)
    made.look_again_at_once()
    soon = ["soon-stacks", "soon-processes", "soon-syscalls"]
    counts = ["connections-soon", "metrics-soon", "http-soon"]
    assert told.labels[before:] == [*soon, *counts]
    assert told.until[-2:] == [collect.SOONEST_S, -1.0]
    assert not made._given_up.is_set()


def test_an_answered_suspect_is_watched_too(
    tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: Future[None] = Future()
    done.set_result(None)
    monkeypatch.setattr(Collector, "_request", lambda self: done)
    look(collector(tmp_path, "vllm", GREEN), suspicious=True)
    assert "http-2" in told.labels
    told.started.clear()
    look(collector(tmp_path, "vllm", GREEN))
    assert told.labels[-1] == "metrics-2"


def test_a_short_deadline_still_leaves_time_for_stacks(
    tmp_path: Path, told: Told
) -> None:
    made = collector(tmp_path, "vllm", GREEN)
    made.plan = DiagnoseCommand(deadline_s=2.0, model="m")
    look(made)
    assert told.seconds("2-stacks") == collect.EVIDENCE_S


def test_what_has_no_time_for_an_answer_is_not_asked_again(
    tmp_path: Path, told: Told
) -> None:
    made = collector(tmp_path, "vllm", GREEN)
    made._end = NOW + collect.WORTH_S - 0.1
    look(made)
    assert told.labels[-1] == "metrics-3"


def test_the_bounds_of_a_look() -> None:
    assert (collect.FRONT_S, collect.APART_S, collect.GLANCE_S) == (3.0, 2.0, 3.0)
    assert (collect.SECOND_LOOK, collect.LAST_S, collect.WINDOW_S) == (0.6, 1.5, 1.0)
    assert (collect.BESIDE_S, collect.LEAST_S, collect.WORTH_S) == (3.0, 0.3, 1.0)
    assert (collect.EVIDENCE_S, collect.MAX_LOG_BYTES) == (2.5, 536_870_912)
    assert (collect.MAX_LOGS, collect.MAX_SAMPLED, collect.TOKENS) == (8, 6, 8)
    assert DiagnoseCommand() == DiagnoseCommand(
        deadline_s=15.0, samples=5, request=True, native=False, model="", headers={}
    )


def test_a_log_that_grows_while_it_is_looked_at(
    tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "a.log"
    log.write_text("x" * 10)
    made = collector(tmp_path, logs=[str(log), str(tmp_path / "none.log")])
    assert made.log_growth() is None
    made.note_log_sizes()
    log.write_text("x" * 50)
    assert made.log_growth() is None  # no time has passed
    monkeypatch.setattr(collect.time, "monotonic", lambda: NOW + 4.0)
    assert made.log_growth() == 10.0


def test_nobody_is_looked_for_on_another_machine(tmp_path: Path, told: Told) -> None:
    made = collector(tmp_path, place="remote")
    made._counts("1")
    assert told.labels == ["metrics-1"]


# ---------------------------------------------------------------- the front


def test_the_front_is_asked_its_cheap_endpoints(tmp_path: Path, told: Told) -> None:
    made = collector(tmp_path, "sglang", plan=DiagnoseCommand(headers={"A": "b"}))
    made.ask_front()
    assert told.probe("http") == (
        "http",
        (URL, ["/health", "/v1/models"], 3.0),
        {"headers": {"A": "b"}},
    )
    assert told.probe("metrics-1") == (
        "metrics",
        (f"{URL}/metrics", 3.0),
        {"headers": {"A": "b"}},
    )
    assert made.requests == ["GET /health", "GET /v1/models", "GET /metrics"]
    unknown = collector(tmp_path, "")
    unknown.ask_front()
    assert unknown.requests == ["GET /health", "GET /v1/models", "GET /metrics"]
    assert told.seconds("http") == 6.0


def listed(status: int, body: str) -> HttpData:
    answers = [EndpointAnswer(path="/v1/models", status=status, seconds=0.1, body=body)]
    return HttpData(base_url=URL, answers=answers)


@pytest.mark.parametrize(
    ("plan", "status", "body", "command", "model"),
    [
        ("given", 200, '{"data": [{"id": "listed"}]}', ["--model", "named"], "given"),
        (
            "",
            200,
            '{"data": [{"id": "listed"}, {"id": "x"}]}',
            ["--model", "named"],
            "listed",
        ),
        ("", 401, '{"data": [{"id": "listed"}]}', ["--model", "named"], "named"),
        ("", 200, "<html>", ["--model", "named"], "named"),
        ("", 200, '{"data": []}', ["--model", "named"], "named"),
        ("", 200, '{"data": null}', ["--model", "named"], "named"),
        ("", 200, "{}", ["--model-path", "p", "--served-model-name", "s"], "s"),
        ("", 200, "{}", ["--model", "m", "--model-name", "n"], "n"),
        ("", 200, "{}", ["--model-path", "p"], "p"),
        ("", 200, "{}", ["x", "--model"], ""),
        ("", 200, "{}", ["--model", "a", "--model", "b"], "a"),
        ("", 200, "{}", [], ""),
    ],
)
def test_the_model_that_is_asked_for(
    plan: str, status: int, body: str, command: list[str], model: str, tmp_path: Path
) -> None:
    command = ["serve", *(str(word) for word in command)]
    made = collector(
        tmp_path,
        "vllm",
        listed(status, body),
        plan=DiagnoseCommand(model=plan),
        command=command,
    )
    assert made.model() == model


def test_without_a_model_no_request_is_sent(tmp_path: Path, told: Told) -> None:
    made = collector(tmp_path, plan=DiagnoseCommand())
    assert made._request() is None
    assert "give --model NAME" in made.target.unseen[0]
    assert (made.requests, made.inferences, told.started) == ([], 0, [])


def test_the_request_is_small_and_bounded(tmp_path: Path, told: Told) -> None:
    made = collector(
        tmp_path, plan=DiagnoseCommand(deadline_s=7.0, model="m", headers={"A": "b"})
    )
    assert made._request() is not None
    words, options = (URL, "m", 7.0), {"max_tokens": 8, "headers": {"A": "b"}}
    options |= {"given_up": made._given_up, "fields": {}}
    assert told.started == [(("inference", words, options), 7.5, "")]
    assert made.target.facts.model == "m"
    assert (made.requests, made.inferences) == (["POST /v1/chat/completions"], 1)
    known = collector(tmp_path, model="known", plan=DiagnoseCommand(model="other"))
    known._request()
    assert told.started[-1][0][1][1] == "known"


@pytest.fixture
def fetched(
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[list[Any], dict[str, tuple[int, bytes]]]:
    asked: list[Any] = []
    answers: dict[str, tuple[int, bytes]] = {}

    def fetch(method: str, url: str, **options: Any) -> Fetched:
        asked.append((method, url, options))
        status, body = answers.get(url, (404, b"{}"))
        return Fetched(status=status, body=body, seconds=0.1, error="", cut=False)

    monkeypatch.setattr(collect, "fetch", fetch)
    return asked, answers


def test_the_release_is_asked_for_where_no_file_tells_it(
    tmp_path: Path, fetched: Any
) -> None:
    asked, answers = fetched
    made = collector(
        tmp_path, "sglang", release="", plan=DiagnoseCommand(headers={"A": "b"})
    )
    answers[f"{URL}/get_server_info"] = (200, b"not JSON")
    answers[f"{URL}/server_info"] = (200, b'{"version": "0.5.6"}')
    made.ask_release()
    facts = made.target.facts
    assert (facts.release, facts.release_from) == ("0.5.6", "its endpoint /server_info")
    options = {"timeout_s": 3.0, "max_bytes": 1_048_576, "headers": {"A": "b"}}
    assert asked == [
        ("GET", f"{URL}{p}", options) for p in ("/get_server_info", "/server_info")
    ]
    assert made.requests == ["GET /get_server_info", "GET /server_info"]


@pytest.mark.parametrize(
    "answer",
    [
        (500, b'{"version": "0.5.6"}'),
        (200, b'{"version": "no"}'),
        (200, b"{}"),
        (200, b"[]"),
    ],
)
def test_a_release_that_is_not_told_stays_unknown(
    answer: tuple[int, bytes], tmp_path: Path, fetched: Any
) -> None:
    fetched[1][f"{URL}/version"] = answer
    made = collector(tmp_path, release="")
    made.ask_release()
    assert (made.target.facts.release, len(fetched[0])) == ("", 1)


def test_a_known_release_is_not_asked_for(tmp_path: Path, fetched: Any) -> None:
    collector(tmp_path).ask_release()
    collector(tmp_path, "", release="").ask_release()
    assert fetched[0] == []


def test_where_the_front_took_all_the_time_nothing_more_is_begun(
    tmp_path: Path, told: Told
) -> None:
    made = collector(tmp_path, "vllm", GREEN)
    made._end = NOW + collect.LEAST_S - 0.1
    look(made)
    assert told.labels[-1] == "metrics-2"
    assert told.waited[-1] == pytest.approx(collect.LEAST_S - 0.1)


@pytest.mark.parametrize("asked", [True, False])
def test_where_no_time_is_left_only_the_request_is_waited_for(
    tmp_path: Path, told: Told, asked: bool
) -> None:
    """The front end alone took it all: there is no second look."""
    made = collector(tmp_path, "vllm", GREEN)
    if asked:
        made._waiting = Future()
    made._end = NOW + collect.LEAST_S / 2
    made.look_on()
    assert told.labels == []
    assert told.waited == (pytest.approx([collect.LEAST_S / 2]) if asked else [])
