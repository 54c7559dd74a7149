"""The watch: liveness with hysteresis, a diagnosis on failure, and what sidecars
read."""

import asyncio
import itertools
import json
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_server import answering, http, serving
from hypothesis import given, strategies as st
from mmrepro.base.errors import ExitCode, UsageError
from mmrepro.base.machine.host import Lateness
from mmrepro.cli.app import app
from mmrepro.live.watch.checker import GAUGES, PROGRESS, Checker, moved_signs
from mmrepro.live.watch.health import STATES, Check, CheckOutcome, Health
from mmrepro.live.watch.loop import (
    CONFIRM_PAUSE_S,
    ServerWatch,
    WatchDiagnosis,
    default_deadline,
    small_picture,
)
from mmrepro.live.watch.options import WatchCommand
from mmrepro.live.watch.server import WatchServer, parse_address, state
from typer.testing import CliRunner

OK, BUSY, FAILED, SILENT, ABSENT, ERROR, HELD, PREPARING, UNKNOWN = CheckOutcome


def check(verdict: CheckOutcome, at: float = 0.0) -> Check:
    return Check(verdict, at, 0.1, "why")


def started(**more: int) -> Health:
    health = Health(**more)
    health.observe(check(OK))
    return health


# ------------------------------------------------------------------ health


def test_a_hang_ends_liveness_after_the_threshold_and_not_before() -> None:
    health = started(failures=3)
    assert not health.observe(check(FAILED))
    assert not health.observe(check(FAILED))
    assert health.live
    assert health.undecided
    assert health.observe(check(FAILED))
    assert not health.live
    assert not health.ready
    assert not health.undecided


@pytest.mark.parametrize(
    ("verdict", "ready"), [(FAILED, False), (SILENT, True), (BUSY, True), (ERROR, True)]
)
def test_readiness_falls_at_once_where_a_standstill_was_observed(
    verdict: CheckOutcome, ready: bool
) -> None:
    health = started(failures=2)
    assert not health.observe(check(verdict))
    assert (health.live, health.ready) == (True, ready)
    health.observe(check(OK))
    assert health.ready


def test_it_takes_several_successes_to_come_back() -> None:
    health = started(failures=1, successes=2)
    health.observe(check(FAILED))
    assert not health.observe(check(OK))
    assert not health.live
    assert health.observe(check(OK))
    assert health.live
    assert health.ready


def test_a_busy_server_is_alive_but_not_ready() -> None:
    health = started(failures=2)
    for _ in range(50):
        health.observe(check(BUSY))
    assert health.live
    assert not health.ready
    health.observe(check(OK))
    assert health.ready


def test_work_between_failures_is_no_hang() -> None:
    health = started(failures=2)
    for verdict in [FAILED, BUSY, FAILED, OK, FAILED, BUSY] * 5:
        health.observe(check(verdict))
    assert health.live


def test_while_it_starts_failures_do_not_count_until_the_grace_is_over() -> None:
    health = Health(failures=2, grace_s=60, started=100)
    for at in range(100, 160, 5):
        health.observe(check(FAILED, at))
    assert health.live
    assert not health.ready
    health.observe(check(FAILED, 161))
    health.observe(check(FAILED, 162))
    assert not health.live


def test_thresholds_below_one_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Health(failures=0)


@given(
    st.lists(st.sampled_from(list(CheckOutcome)), max_size=60),
    st.integers(1, 4),
    st.integers(1, 4),
)
def test_the_rules_hold_for_any_history(
    history: list[CheckOutcome], failures: int, successes: int
) -> None:
    health = started(failures=failures, successes=successes)
    live, fails, oks, away = True, 0, 1, False
    for verdict in history:
        changed = health.observe(check(verdict))
        before = live
        if verdict is OK:
            fails, oks, away = 0, oks + 1, False
            live = live or oks >= successes
        elif verdict is not UNKNOWN:
            oks = 0
        if verdict is ABSENT and not away:
            fails, away, live = 0, True, True
        elif verdict in (BUSY, ERROR, HELD, PREPARING):
            fails = 0
        elif verdict in (FAILED, SILENT) and not away:
            fails += verdict is FAILED
            live = live and fails < failures
        assert (health.live, changed) == (live, before is not live)
        assert not health.ready or health.live


# ------------------------------------------------------------------ one check

COMPLETION = {
    "choices": [{"message": {"content": "OK"}, "finish_reason": "length"}],
    "usage": {"completion_tokens": 1},
}
MODELS = {"data": [{"id": "tiny"}]}


def one_check(
    completion: bytes | None,
    metrics: Iterator[int] | None = None,
    models: bytes | None = None,
) -> tuple[Check, list[bytes]]:
    """Against a FAKE server; ``completion`` None: it never answers."""

    async def main() -> tuple[Check, list[bytes]]:
        never = asyncio.Event()

        async def reply(request: bytes, writer: asyncio.StreamWriter) -> None:
            if request.startswith(b"GET /v1/models"):
                raw = (
                    http(200, json.dumps(MODELS).encode()) if models is None else models
                )
            elif request.startswith(b"GET /metrics") and metrics is not None:
                text = f"{PROGRESS[0]} {next(metrics)}\nvllm:num_requests_running 1\n"
                raw = http(200, text.encode(), "text/plain")
            elif request.startswith(b"GET"):
                raw = http(404, b"no")
            elif completion is None:
                await never.wait()
                return
            else:
                raw = completion
            await answering(raw)(request, writer)

        async with serving(reply) as server:
            # Whatever is answered comes in time, however busy this machine is.
            deadline_s = 60.0 if completion else 1.0
            checker = Checker(server.url, deadline_s, headers={"X-Key": "k"})
            try:
                return await asyncio.to_thread(checker.check), server.requests
            finally:
                checker.close()

    return asyncio.run(main())


def test_an_answer_is_ok_and_the_request_is_small_and_marked() -> None:
    found, requests = one_check(http(200, json.dumps(COMPLETION).encode()))
    assert found.verdict is OK
    sent = next(r for r in requests if r.startswith(b"POST"))
    assert b"x-mmrepro-probe: 1" in sent.lower()
    assert b"x-key: k" in sent.lower()
    assert json.loads(sent.partition(b"\r\n\r\n")[2])["max_tokens"] == 1
    assert sum(r.startswith(b"POST") for r in requests) == 1


@pytest.mark.parametrize(
    ("completion", "metrics", "verdict"),
    [
        (None, None, ERROR),
        (None, itertools.repeat(7), SILENT),
        (None, itertools.count(7), BUSY),
        (http(500, b"oops"), itertools.count(7), ERROR),
        (http(503, b"dead"), None, ERROR),
        (http(429, b"later"), None, BUSY),
        (http(401, b"who are you"), None, UNKNOWN),
        (http(404, b"no such model"), None, UNKNOWN),
        (http(200, b"<html>"), None, ERROR),
        (b"garbage\r\n\r\n", None, ERROR),
    ],
    ids=[
        "silence",
        "frozen",
        "busy",
        "500",
        "503",
        "429",
        "401",
        "404",
        "html",
        "garbage",
    ],
)
def test_what_a_server_may_do(
    completion: bytes | None,
    metrics: Iterator[int] | None,
    verdict: CheckOutcome,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Lateness, "share", 0.0)
    found, _ = one_check(completion, metrics)
    assert found.verdict is verdict
    assert found.why


@pytest.mark.parametrize(
    "models", [http(500, b""), http(200, b"{}"), http(200, b"nonsense")]
)
def test_without_a_model_the_check_fails(models: bytes) -> None:
    found, requests = one_check(None, models=models)
    assert found.verdict is ERROR
    assert "/v1/models" in found.why
    assert not any(r.startswith(b"POST") for r in requests)


def test_nobody_there() -> None:
    checker = Checker("http://127.0.0.1:9", 0.5)
    assert checker.check().verdict is ABSENT
    checker.close()


def test_only_growth_is_progress_and_any_change_of_the_cache() -> None:
    assert moved_signs({"a": 1, "b": 5}, {"a": 2, "b": 0, "c": 9}) == ["a"]
    full = {GAUGES[0]: 0.5, "b": 5}
    assert moved_signs(full, {GAUGES[0]: 0.4, "b": 5}) == [GAUGES[0]]
    assert moved_signs(full, full) == []


# ------------------------------------------------------------------ the loop


class Script:
    """Verdicts in turn; the last one for ever."""

    def __init__(self, *verdicts: CheckOutcome) -> None:
        self.left = list(verdicts)

    def check(self) -> Check:
        return check(self.left.pop(0) if len(self.left) > 1 else self.left[0])


def watch(*verdicts: CheckOutcome, **more: object) -> ServerWatch:
    events: list[tuple[str, str]] = []
    http = "" if more.pop("until_dead", False) else "9400"
    options = WatchCommand(interval_s=0.001, http=http, **more)  # type: ignore[arg-type]
    made = ServerWatch(
        Script(*verdicts),
        Health(failures=2, successes=1),
        options,
        diagnose=lambda: WatchDiagnosis("it is the ghost key", Path("incidents/x")),
        listener=lambda kind, text: events.append((kind, text)),
    )
    made.events = events  # type: ignore[attr-defined]
    return made


def kinds(made: ServerWatch) -> list[str]:
    return [kind for kind, _ in made.events]  # type: ignore[attr-defined]


def test_it_ends_when_the_server_is_dead_and_has_looked_why() -> None:
    made = watch(OK, OK, FAILED, FAILED, until_dead=True)
    assert made.run() is False
    assert kinds(made) == ["check"] * 4 + ["dead", "diagnosis"]
    assert state(made)["diagnosis"] == "it is the ghost key"
    assert state(made)["incident_dir"] == "incidents/x"


def test_once_ends_with_a_verdict_either_way() -> None:
    assert watch(OK, once=True).run() is True
    health = watch(FAILED, FAILED, once=True)
    health.health = Health(failures=2, grace_s=0)
    assert health.run() is False


def test_incidents_are_limited() -> None:
    made = watch(OK, *[FAILED, FAILED, OK] * 4, max_incidents=2)
    seen = 0

    def listen(kind: str, text: str) -> None:
        nonlocal seen
        made.events.append((kind, text))  # type: ignore[attr-defined]
        if kind == "dead" and made._diagnosis is not None:
            made._diagnosis.join()
        seen += kind == "live"
        if seen == 4:
            made.stop()

    made.listener = listen
    made.run()
    told = [text for kind, text in made.events if kind == "diagnosis"]  # type: ignore[attr-defined]
    assert made.incidents == 2
    assert sum("limit" in text for text in told) == 2
    assert state(made)["diagnosis"] is None, "it is live again"


def test_a_diagnosis_that_fails_does_not_end_the_watch() -> None:
    made = watch(OK, FAILED, FAILED, until_dead=True)

    def broken() -> WatchDiagnosis:
        raise OSError("no disk")

    made.diagnose = broken
    assert made.run() is False
    assert made.events[-1] == ("error", "the diagnosis failed: OSError")  # type: ignore[attr-defined]


# ------------------------------------------------------------------ what sidecars read


def get(address: tuple[str, int], path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(
            f"http://{address[0]}:{address[1]}{path}"
        ) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def state_of(server: WatchServer) -> str:
    """The one state whose metric is 1."""
    text = get(server.address, "/metrics")[1]
    states = re.findall(r'mmrepro_watch_state\{state="(.*)"\} (\d)', text)
    assert [name for name, _ in states] == [*STATES]
    (one,) = [name for name, value in states if value == "1"]
    assert f"mmrepro_watch_starting {float(one == 'starting')}" in text
    return one


@pytest.mark.parametrize("quiet", [False, True])
def test_each_line_has_the_state(monkeypatch: pytest.MonkeyPatch, quiet: bool) -> None:
    answers = iter([BUSY, OK, BUSY, BUSY, FAILED, FAILED])
    monkeypatch.setattr(Checker, "check", lambda self: check(next(answers)))
    monkeypatch.setattr(ServerWatch, "_pause", lambda self, began: 0.0)
    words = ["watch", "http://127.0.0.1:9", "--interval", "0.5", "--no-diagnose"]
    done = CliRunner().invoke(app, [*words, *(["-q"] if quiet else [])])
    assert done.exit_code == ExitCode.NOT_AS_EXPECTED
    checks = ["starting", "ready", "ready", "live", "live", "not-live"]
    assert [line.split()[1:3] for line in done.stdout.splitlines()] == [
        *([] if quiet else [[state, "check"] for state in checks]),
        ["not-live", "dead"],
    ]


def test_the_endpoints_follow_the_state() -> None:
    made = watch(OK)
    server = WatchServer(made, ("127.0.0.1", 0))
    try:
        assert get(server.address, "/live")[0] == 200
        assert get(server.address, "/ready")[0] == 503, "nothing was answered yet"
        assert state_of(server) == "starting"
        made.health.observe(check(OK))
        assert state_of(server) == "ready"
        assert get(server.address, "/ready")[0] == 200
        made.health.observe(check(FAILED))
        made.health.observe(check(FAILED))
        status, body = get(server.address, "/live")
        assert status == 503
        assert json.loads(body)["failed_in_a_row"] == 2
        assert get(server.address, "/ready?x=1")[0] == 503
        assert get(server.address, "/")[0] == 200
        assert get(server.address, "/other")[0] == 404
        status, text = get(server.address, "/metrics")
        assert "mmrepro_watch_live 0.0" in text
        assert state_of(server) == json.loads(body)["state"] == "not-live"
        assert 'mmrepro_watch_checks_total{verdict="failed"}' in text
        with pytest.raises(UsageError, match="cannot be bound"):
            WatchServer(made, server.address)
    finally:
        server.close()
    assert not any(
        t.name == "watch-http" and t.is_alive() for t in threading.enumerate()
    )


@pytest.mark.parametrize("text", ["x", "", ":", "h:70000", "h:-1"])
def test_bad_addresses(text: str) -> None:
    with pytest.raises(UsageError):
        parse_address(text)


@given(st.floats(0.5, 3600), st.integers(1, 20))
def test_a_hang_is_told_within_two_intervals(interval: float, failures: int) -> None:
    """The worst case: it hangs right after an answer; then an interval, then the
    failures."""
    one = default_deadline(interval, failures) + CONFIRM_PAUSE_S
    assert one > 0
    assert interval + failures * one <= 2 * interval


def test_the_picture_is_small() -> None:
    assert small_picture().startswith("data:image/png;base64,")
    assert len(small_picture()) < 1000
