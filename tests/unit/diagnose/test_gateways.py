"""What stands before a server: FAKE gateways and balancers. What they say is not the
server's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fake_server import Reply, answering, completion, http, silent
from made_up import metrics
from mmrepro.failure.documents.diagnosis import Assessment, LiveClass, ServerState
from mmrepro.failure.signature import Truth, live_server
from mmrepro.live.diagnose.classes import classes
from mmrepro.live.diagnose.general import assess
from mmrepro.probes.data import AnyProbeData, MetricSample
from mmrepro.probes.http import NOT_SENT, fetch
from seen import (
    GREEN,
    SILENCE,
    answer,
    evidence,
    failed,
    http as endpoints,
    log,
    still,
    target,
)
from test_hostile_answers import MODELS, looked

NOBODY = {"root_pid": None, "processes": [], "place": "remote", "listening": None}
NGINX = (
    b"<html><head><title>502 Bad "
    b"Gateway</title></head><center>nginx/1.27.4</center></html>"
)


def said(*data: AnyProbeData, **facts: object) -> Assessment:
    return assess(evidence(*data), target(**{**NOBODY, **facts}))


def routed(post: Reply, **others: bytes) -> Reply:
    """A FAKE server: ``post`` answers completions, and each other one its path
    (``v1_models``)."""

    async def reply(request: bytes, writer) -> None:  # type: ignore[no-untyped-def]
        method, path, _ = request.split(b" ", 2)
        name = path.decode().strip("/").replace("/", "_")
        other = answering(others.get(name, http(404, b"no")))
        await (post if method == b"POST" else other)(request, writer)

    return reply


# --------------------------------------------------------------- a gateway's own errors


@pytest.mark.parametrize(
    ("raw", "state"),
    [
        (http(502, NGINX, "text/html"), ServerState.UNREACHABLE),
        (http(502, b"Bad Gateway", "text/plain"), ServerState.UNREACHABLE),
        (http(504, NGINX.replace(b"502", b"504"), "text/html"), ServerState.UNKNOWN),
        (
            http(503, NGINX.replace(b"502", b"503"), "text/html"),
            ServerState.UNREACHABLE,
        ),
        (http(503, b"no healthy upstream", "text/plain"), ServerState.UNREACHABLE),
        (
            http(500, NGINX.replace(b"502", b"500"), "text/html"),
            ServerState.UNREACHABLE,
        ),
    ],
    ids=["502 page", "502 text", "504", "503 page", "503 envoy", "500 page"],
)
@pytest.mark.parametrize(
    "models", [True, False], ids=["models are listed", "all of it"]
)
def test_a_gateways_error_is_neither_a_start_nor_a_failure_of_the_server(
    raw: bytes, state: ServerState, models: bool, tmp_path: Path
) -> None:
    listed = http(200, MODELS) if models else raw
    reply = routed(answering(raw), health=raw, v1_models=listed, metrics=raw)
    told = looked(reply, tmp_path).diagnosis.assessment
    assert told.state is state, told
    assert told.sentence.startswith(
        "A gateway answers in the server's place: HTTP 50"
    ), told
    assert "normal" not in " ".join(told.advice)


def test_each_gateways_sentence_tells_what_it_waited_for() -> None:
    late = said(GREEN, failed(504, "HTTP 504: <html>", 9.5))
    assert "504, it waited 9.5 s for the server behind it" in late.sentence
    lost = said(endpoints(502, 502), failed(401, "HTTP 401"))
    assert (lost.state, "502" in lost.sentence) == (ServerState.UNREACHABLE, True)
    one = said(endpoints(502, 200), answer())
    assert (one.state, "a gateway's 502" in one.sentence) == (ServerState.FAILING, True)


WARMING = (
    '{"error": {"message": "The model is loading", "type": '
    '"unavailable_error", "code": 503}}'
)


@pytest.mark.parametrize("body", ["", WARMING, '{"detail":"Not ready"}'])
def test_a_warming_server_that_turns_a_request_away_does_not_fail(body: str) -> None:
    for front in (endpoints(503, 200), GREEN):
        told = said(front, failed(503, f"HTTP 503: {body}"))
        assert told.state is ServerState.NOT_READY, told
        dead = said(front, failed(503, f"HTTP 503: {body}"), _died())
        assert dead.state is ServerState.FAILING, dead
    assert live_server.fails(failed(503, f"HTTP 503: {body}")).truth is Truth.UNKNOWN


def _died():  # type: ignore[no-untyped-def]
    data = log("EngineDeadError")
    data.match_counts["engine-died"] = 1
    data.matches["engine-died"] = data.errors[:1]
    return data


def test_only_503_is_a_servers_word_that_it_starts() -> None:
    starts = said(endpoints(503, 200), failed(404, "HTTP 404"))
    fails = said(endpoints(500, 200), failed(404, "HTTP 404"))
    assert (starts.state, fails.state) == (ServerState.NOT_READY, ServerState.FAILING)
    assert "normal" not in " ".join(fails.advice)
    login = said(endpoints(302, 302), failed(302, "HTTP 302"))
    assert login.state is ServerState.UNKNOWN, "a redirect to a login page says nothing"


KEY_ERRORS = [
    {
        "error": {
            "message": "Authentication Error, No api key passed in.",
            "type": "auth_error",
            "param": "None",
            "code": "401",
        }
    },
    {
        "error": {
            "message": "Authentication Error, Invalid proxy token passed",
            "code": "500",
        }
    },
    {
        "error": {
            "message": "litellm.InternalServerError: connection error",
            "code": 500,
        }
    },
    {"error": {"message": "No deployments available for selected model", "code": 500}},
    {"message": "An unexpected error occurred", "request_id": "9f"},
    {"error_msg": "missing key"},
    {"error": {"message": "Provider returned error", "code": 500, "metadata": {}}},
    {"error": {"message": "Budget has been exceeded! Current cost: 1", "code": 500}},
    {"error": {"message": "quota", "type": "one_api_error", "code": ""}},
    {"error": {"message": "m", "type": "new_api_error", "param": "", "code": 500}},
    {"error": {"message": "Internal Server Error", "code": 500}, "user_id": "u"},
    {"error": {"message": "Internal Server Error", "code": 500}},
    {
        "type": "about:blank",
        "title": "Internal Server Error",
        "status": 500,
        "detail": "no",
    },
    {"detail": {"error": "Internal server error"}},
    {"kind": "Status", "status": "Failure", "message": "dial tcp", "code": 500},
    {"message": "the stream ended", "type": "Internal Server Error", "code": 500},
    ["no"],
]


@pytest.mark.parametrize("body", KEY_ERRORS, ids=str)
def test_a_gateways_key_error_is_no_failure_of_the_engine(
    body: object, tmp_path: Path
) -> None:
    raw = json.dumps(body)
    assert live_server.fails(failed(500, f"HTTP 500: {raw}")).truth is Truth.UNKNOWN
    assert said(GREEN, failed(500, f"HTTP 500: {raw}")).state is ServerState.UNREACHABLE
    reply = routed(
        answering(http(500, raw.encode())),
        health=http(200, b""),
        v1_models=http(200, MODELS),
    )
    told = looked(reply, tmp_path, engine="lmdeploy").diagnosis
    assert [
        m.scenario for m in told.matches if m.fit not in ("exposed", "not-this")
    ] == []


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (500, "no Route matched with those values"),
        (500, "Request failed during generation: Unexpected error from replica"),
        (520, "error code: 520"),
        (530, "error code: 1033"),
    ],
)
def test_a_text_that_no_engine_has_is_none_of_an_engine(status: int, text: str) -> None:
    answer = failed(status, f"HTTP {status}: {text}")
    assert live_server.fails(answer).truth is Truth.UNKNOWN
    assert said(GREEN, answer).state is ServerState.UNREACHABLE


@pytest.mark.parametrize(
    "body",
    [
        "Internal Server Error",
        "",
        '{"detail":"x"}',
        '{"object":"error","message":"m","type":"internal_error","param":null,"code":500}',
        '{"error":{"message":"m","type":"InternalServerError","param":null,"code":500}}',
        '{"error":{"message":"m","type":"server_error","code":"server_error"}}',
        '{"error":{"message":"' + "m" * 1600,
    ],
)
def test_an_engines_own_error_is_a_failure(body: str) -> None:
    assert live_server.fails(failed(500, f"HTTP 500: {body}")).truth is Truth.MET
    assert said(GREEN, failed(500, f"HTTP 500: {body}")).state is ServerState.FAILING


# ----------------------------------------------------------- a balancer's other replica


def other_replicas(*begun: float, **values: float) -> list[AnyProbeData]:
    """Readings, each of the process that began then."""
    read = [metrics(**values) for _ in begun]
    for one, at in zip(read, begun, strict=True):
        one.samples.append(
            MetricSample(name="process_start_time_seconds", labels={}, value=at)
        )
    return list(read)


def test_a_slow_replica_behind_a_balancer_is_not_frozen() -> None:
    """Its request went to one replica, the counters are those of an idle one."""
    idle = said(GREEN, *still(), SILENCE)
    assert idle.state is ServerState.UNKNOWN, idle
    assert "another replica's" in idle.sentence
    found = classes(evidence(GREEN, *still(), SILENCE), target(**NOBODY))
    assert {one.name for one in found}.isdisjoint(
        {LiveClass.GAUGES_LIE, LiveClass.STEPS_STOPPED}
    )
    for gauge in ("running", "waiting"):
        counted = said(GREEN, *still(**{gauge: 1}), SILENCE)
        assert counted.state in (ServerState.FROZEN, ServerState.STARVED), counted
    assert (
        assess(evidence(GREEN, *still(), SILENCE), target()).state is ServerState.FROZEN
    )


def test_counters_of_two_replicas_show_neither_work_nor_a_standstill() -> None:
    """One has more tokens than the other, which is no work done between two
    readings."""
    two = other_replicas(1.0, 2.0, running=1)
    two[1].samples[4] = two[1].samples[4].model_copy(update={"value": 9999})  # type: ignore[union-attr]
    assert said(GREEN, *two, SILENCE).state is ServerState.UNKNOWN
    falls = [metrics(generation_tokens=n, running=1) for n in (60, 10, 60)]
    assert said(GREEN, *falls, SILENCE).state is ServerState.UNKNOWN
    same = other_replicas(2.0, 2.0, running=1)
    assert said(GREEN, *same, SILENCE).state is ServerState.FROZEN


def test_who_listens_unseen_and_answers_nothing_is_not_called_frozen(
    tmp_path: Path,
) -> None:
    told = said(endpoints(None, None), place="local", listening=True)
    assert told.state is ServerState.UNKNOWN
    assert "stands before it" in told.sentence
    assert looked(silent, tmp_path).diagnosis.state is not ServerState.FROZEN


# ---------------------------------------------------------------- what is never sent


def test_what_cannot_be_sent_is_no_answer_of_the_server(tmp_path: Path) -> None:
    good = routed(
        answering(http(200, completion())),
        health=http(200, b""),
        v1_models=http(200, MODELS),
    )
    for bad in ({"X": "ü"}, {"X": "a\nb"}, {"": "a"}, {"Content-Length": "5"}):
        told = looked(
            good, tmp_path / str(len(str(bad))), headers=bad
        ).diagnosis.assessment
        assert told.state is ServerState.UNKNOWN, told
        assert "HTTP answer" not in told.sentence, told
    error = fetch(
        "GET", "http://127.0.0.1:9", timeout_s=1, max_bytes=9, headers={"X": "ü"}
    ).error
    assert error.startswith(NOT_SENT)
