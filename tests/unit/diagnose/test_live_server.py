"""What counts as a failure on a server that is only looked at."""

from __future__ import annotations

import re

import pytest
from made_up import logs, probed
from mmrepro.failure.signature import Truth, live_server
from mmrepro.failure.signature.views import Logs
from mmrepro.probes.data import InferenceData, LogLine, LogsData
from mmrepro.traffic.evidence import Evidence, Missing
from seen import SILENCE, answer, failed


@pytest.mark.parametrize("status", [400, 401, 403, 404, 408, 422, 429, 499])
def test_a_refusal_is_no_servers_error(status: int) -> None:
    """LMDeploy with an old assertion in its log and a key that we lack: it works."""
    said = live_server.fails(failed(status, f"HTTP {status}: no"))
    told = f"a small valid request: HTTP {status}: no: this tells nothing of the engine"
    assert (said.truth, said.observed) == (Truth.UNKNOWN, told)


@pytest.mark.parametrize(
    ("data", "truth"),
    [
        (failed(500, "HTTP 500"), Truth.MET),
        (failed(501, "HTTP 501"), Truth.MET),
        (failed(200, "the completion ended with finish_reason 'error'"), Truth.MET),
        (failed(200, "the 200 answer is not JSON"), Truth.UNKNOWN),
        (failed(400, "finish_reason is unknown"), Truth.UNKNOWN),
        (failed(None, "ReadError"), Truth.NOT_MET),
        (SILENCE, Truth.NOT_MET),
        (answer(), Truth.NOT_MET),
        (answer(status=500), Truth.NOT_MET),
    ],
)
def test_a_servers_error_is_500_or_an_answer_that_ends_as_one(
    data: InferenceData, truth: Truth
) -> None:
    assert live_server.fails(data).truth is truth


def test_what_failed_is_told() -> None:
    assert live_server.fails(answer()).observed == "a small valid request: answered"
    told = live_server.fails(failed(500, "x" * 999)).observed
    assert told == "a small valid request: " + "x" * 160


def died(count: int) -> LogsData:
    data = logs()
    data.match_counts["engine-dead"] = count
    if count:
        data.matches["engine-dead"] = [
            LogLine(number=1, text="EngineDeadError")
        ] * count
    return data


@pytest.mark.parametrize(
    ("alive", "count", "truth"),
    [
        (False, 2, Truth.MET),
        (False, 0, Truth.NOT_MET),
        (True, 2, Truth.NOT_MET),
        (True, 0, Truth.NOT_MET),
    ],
)
def test_a_core_is_dead_where_none_lives_and_the_log_says_so(
    alive: bool, count: int, truth: Truth
) -> None:
    evidence = Evidence(
        probes=[probed(died(count))], facts={live_server.CORE_ALIVE: alive}
    )
    said = live_server.core_is_dead(
        evidence, Logs(evidence), "EngineCore", "engine-dead"
    )
    assert said.truth is truth
    assert "EngineCore lives" in said.observed


def test_a_core_that_cannot_be_seen_is_not_dead() -> None:
    evidence = Evidence(probes=[probed(died(2))])
    with pytest.raises(Missing, match="cannot be seen"):
        live_server.core_is_dead(evidence, Logs(evidence), "EngineCore", "engine-dead")


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (
            (
                '127.0.0.1:1 - "POST /v1/chat/completions HTTP/1.1" 500 Internal '
                "Server Error"
            ),
            True,
        ),
        ('127.0.0.1 - "POST /v1/completions HTTP/1.1" 500 -', True),
        ('127.0.0.1:1 - "POST /v1/chat/completions HTTP/1.1" 401 Unauthorized', False),
        ('127.0.0.1:1 - "POST /v1/chat/completions HTTP/1.1" 200 OK', False),
        ('127.0.0.1:1 - "GET /v1/models HTTP/1.1" 500 Internal Server Error', False),
        ('127.0.0.1:1 - "POST /health HTTP/1.1" 500 Internal Server Error', False),
    ],
)
def test_a_failed_request_in_the_access_log(line: str, found: bool) -> None:
    pattern = live_server.LOG_PATTERNS[live_server.FAILED]
    assert bool(re.search(pattern, line)) is found
