"""What is no failure although nothing answers, and what is one from the first check on:
a start, a compiler, an operator's pause, a cache, one socket of two."""

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from enough_processors import told_by_stacks
from fake_server import Reply, answering, http, in_turn, silent
from mmrepro.base.machine.host import Lateness
from mmrepro.base.processes import Stat, Thread, thread_ids
from mmrepro.live.diagnose.options import DiagnoseCommand
from mmrepro.live.diagnose.session import diagnose
from mmrepro.live.watch import checker as checker_module
from mmrepro.live.watch.checker import Checker
from mmrepro.live.watch.health import STATES, Check, CheckOutcome, Health
from mmrepro.live.watch.loop import ServerWatch
from mmrepro.live.watch.options import WatchCommand
from mmrepro.live.watch.processes import RunningTime, waited_to_run
from mmrepro.live.watch.server import states
from test_watch_liveness import against, checked, checker, fake_engine, routed

OK, BUSY, FAILED, SILENT, ABSENT, ERROR, HELD, PREPARING, UNKNOWN = CheckOutcome
DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(autouse=True)
def in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy this machine is."""
    monkeypatch.setattr(Lateness, "share", 0.0)


@pytest.fixture
def has_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunningTime, "is_starved", lambda _: False)


def outcome(verdict: CheckOutcome, at: float = 0.0, *, begun: bool = False) -> Check:
    return Check(verdict, at, 1.0, "why", begun=begun)


# ------------------------------------------------------------------ a start


def test_a_server_that_has_worked_is_not_starting() -> None:
    health = Health(failures=2, grace_s=600.0)
    health.observe(outcome(FAILED, 5, begun=True))
    assert (health.live, health.state) == (True, "live")
    health.observe(outcome(FAILED, 10, begun=True))
    assert not health.live


def test_one_that_has_worked_is_ready_only_after_an_answer() -> None:
    health = Health(failures=3)
    health.observe(outcome(BUSY, 5, begun=True))
    assert (health.live, health.ready, health.state) == (True, False, "live")
    health.observe(outcome(OK, 10, begun=True))
    assert health.ready


def test_a_new_process_is_starting_again_though_the_old_one_had_begun() -> None:
    health = Health(failures=2, grace_s=100.0)
    health.observe(outcome(OK, 1, begun=True))
    for at in range(10, 100, 5):
        health.observe(outcome(ABSENT, at))
        assert health.state == "starting"
    health.observe(outcome(ABSENT, 111))
    health.observe(outcome(ABSENT, 112))
    assert not health.live


@pytest.mark.usefixtures("has_processors")
def test_beside_a_server_that_is_hung_already_two_checks_end_liveness() -> None:
    health = Health(failures=2, grace_s=600.0, started=time.monotonic())
    with fake_engine("python") as (_, url), checker(url) as made:
        for _ in range(2):
            health.observe(told_by_stacks(made))
    assert not health.live, health.last


@pytest.mark.usefixtures("has_processors")
def test_a_new_server_has_its_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its counters have no answer yet, and where it stands is no loop that serves."""
    monkeypatch.setenv("FAKE_ENGINE_IS_NEW", "1")
    health = Health(failures=2, grace_s=600.0, started=time.monotonic())
    with fake_engine("nap") as (_, url), checker(url) as made:
        for _ in range(3):
            health.observe(told_by_stacks(made))
    assert (health.live, health.state) == (True, "starting")


@pytest.mark.parametrize(
    ("metrics", "worked"),
    [
        ("vllm:generation_tokens_total 3", True),
        ('vllm:request_success_total{finished_reason="stop"} 1', True),
        ('vllm:request_success_total{finished_reason="abort"} 9', False),
        ("vllm:generation_tokens_total 0", False),
        ("vllm:prompt_tokens_total 9", False),
    ],
)
def test_counters_tell_that_it_has_worked(metrics: str, worked: bool) -> None:
    reply = routed(silent, other=http(200, f"{metrics}\n".encode(), "text/plain"))

    def begun(url: str) -> bool:
        made = Checker(url, 0.3)
        try:
            return made.check().begun
        finally:
            made.close()

    assert against(reply, begun) is worked


# ------------------------------------------------------------------ what is no failure


def test_one_that_compiles_is_given_time_and_not_for_ever() -> None:
    health = Health(failures=2, grace_s=0.0)
    with fake_engine("compiles") as (_, url), checker(url) as made:
        found = told_by_stacks(made)
        health.observe(found)
    assert (found.verdict, health.live) == (PREPARING, True)
    assert "it compiles (make_ir" in found.why

    health = Health(failures=2, prepare_s=300.0)
    health.observe(outcome(OK, 1))
    for at in range(10, 300, 10):
        health.observe(outcome(PREPARING, at))
        assert (health.live, health.ready) == (True, at == 10)
    health.observe(outcome(PREPARING, 310))
    health.observe(outcome(PREPARING, 320))
    assert not health.live


ASLEEP = "vllm:engine_sleep_state"


def sleeps(awake: int) -> Reply:
    text = (
        f'{ASLEEP}{{sleep_state="awake"}} {awake}\n'
        f'{ASLEEP}{{sleep_state="weights_offloaded"}} {1 - awake}\n'
        "vllm:generation_tokens_total 7\nvllm:num_requests_running 1\n"
    )
    return routed(silent, other=http(200, text.encode(), "text/plain"))


def test_one_that_sleeps_is_held_for_as_long_as_its_operator_likes() -> None:
    assert checked(sleeps(0)) == [HELD]
    assert checked(sleeps(1)) == [SILENT]
    health = Health(failures=2, stall_s=60.0)
    health.observe(outcome(OK, 1))
    for hour in range(1, 100):
        health.observe(outcome(HELD, hour * 3600))
    assert (health.live, health.state) == (True, "live")


def test_one_that_is_paused_says_so_at_an_endpoint() -> None:
    async def reply(request: bytes, writer: asyncio.StreamWriter) -> None:
        text = b"vllm:generation_tokens_total 7\nvllm:num_requests_running 1\n"
        raw = http(200, text, "text/plain")
        if request.startswith(b"GET /is_paused"):
            raw = http(200, b'{"is_paused": true}')
        await routed(silent, other=raw)(request, writer)

    assert checked(reply, 2) == [HELD, HELD]


def thread(ran_ticks: int, queued_s: float, state: str = "S") -> Thread:
    stat = Stat(1, "core", state, 0, ran_ticks, 0, 1, 0, 0)
    return Thread(stat, queued_s, 0, 0)


@pytest.mark.parametrize(
    ("before", "now", "starved"),
    [
        (thread(0, 0.0), thread(0, 0.0), False),
        (thread(0, 0.0), thread(5, 0.95), True),
        (thread(0, 0.0), thread(99, 0.01), False),
        (thread(0, 0.0), thread(50, 0.5), False),
        (thread(0, 0.0, "R"), thread(1, 0.0, "R"), True),
        (thread(0, 0.0, "R"), thread(99, 0.0, "R"), False),
    ],
    ids=["sleeps", "throttled", "spins", "busy machine", "waits still", "works"],
)
def test_a_thread_that_wants_to_run_and_may_not_is_starved(
    before: Thread, now: Thread, starved: bool
) -> None:
    assert waited_to_run(before, now, 1.0) is starved


def test_one_that_got_enough_of_a_processor_and_stands_is_hung(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A hang that spins beside others gets little of the machine."""
    monkeypatch.setattr(RunningTime, "is_starved", lambda _: True)
    monkeypatch.setattr(RunningTime, "ran_s", lambda _: 0.4)
    with fake_engine("python") as (_, url), checker(url) as made:
        seen = [told_by_stacks(made).verdict for _ in range(4)]
    assert seen == [ERROR, ERROR, FAILED, FAILED]


@pytest.mark.slow
def test_a_server_without_a_processor_is_not_hung() -> None:
    """A real process at the lowest priority beside one that spins, on one processor."""
    busy = [sys.executable, "-c", "while True: pass"]
    processor = {min(os.sched_getaffinity(0))}
    with (
        fake_engine("moves") as (process, url),
        subprocess.Popen(busy) as other,
        checker(url, 3.0) as made,
    ):
        try:
            told_by_stacks(made)
            for tid in thread_ids(process.pid):
                # A thread that answered a request may have ended meanwhile.
                with suppress(ProcessLookupError):
                    os.sched_setaffinity(tid, processor)
                    os.setpriority(os.PRIO_PROCESS, tid, 19)
            os.sched_setaffinity(other.pid, processor)
            os.setpriority(os.PRIO_PROCESS, other.pid, 0)
            running = RunningTime.of([process.pid])
            threading.Event().wait(2.0)
            assert running.is_starved()
            assert made.check().verdict is not FAILED
        finally:
            other.kill()


# ------------------------------------------------------------------ caches


def completion(number: int) -> bytes:
    document = {
        "id": f"chatcmpl-{number}",
        "created": 1_700_000_000 + number,
        "choices": [{"message": {"content": "OK"}, "finish_reason": "length"}],
    }
    return json.dumps(document).encode()


def cached(*headers: str) -> bytes:
    body = completion(1)
    lines = ["HTTP/1.1 200 OK", "Content-Type: application/json", *headers]
    lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


@pytest.mark.parametrize(
    "header",
    [
        "Age: 12",
        "X-Cache: HIT",
        "CF-Cache-Status: HIT",
        "X-Cache-Status: STALE",
        "X-LiteLLM-Cache-Key: 61bf",
        "x-portkey-cache-status: HIT",
        "X-Semantic-Cache-Hit: true",
    ],
)
def test_a_caches_answer_is_none(header: str) -> None:
    assert checked(routed(answering(cached(header)))) == [ERROR]


@pytest.mark.parametrize(
    "header", ["Age: 0", "X-Cache: MISS", "Cache-Control: no-store", "X-Cached: no"]
)
def test_an_answer_past_a_cache_is_one(header: str) -> None:
    assert checked(routed(answering(cached(header))), answered=1) == [OK]


def test_an_answer_that_comes_again_is_a_caches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checker_module, "_SAME_S", 1e-6)
    same = routed(answering(http(200, completion(1))))
    assert checked(same, 2, answered=2) == [OK, ERROR]
    new = [answering(http(200, completion(number))) for number in range(3)]
    assert checked(routed(in_turn(*new)), 3, answered=3) == [OK] * 3


def test_each_request_is_a_new_one() -> None:
    prompts: list[str] = []

    async def reply(request: bytes, writer: asyncio.StreamWriter) -> None:
        body = json.loads(request.partition(b"\r\n\r\n")[2])
        prompts.append(body["messages"][0]["content"])
        assert b"cache-control: no-cache" in request.lower()
        await answering(http(200, completion(len(prompts))))(request, writer)

    assert checked(routed(reply), 3, answered=3) == [OK] * 3
    assert len(set(prompts)) == 3


# ------------------------------------------------------------------ its own request


def test_a_server_that_ends_on_the_request_of_the_diagnosis_is_dead() -> None:
    with fake_engine("dies") as (process, url):
        port = urlsplit(url).port
        assert port
        found = diagnose(DiagnoseCommand(url=url, deadline_s=3.0)).diagnosis
        process.wait(5)
    assert found.assessment.state == "dead", found.assessment.sentence
    assert "request" in " ".join(found.assessment.why)


# ------------------------------------------------------------------ the documents


def rows(page: str, heading: str) -> list[list[str]]:
    """Cells of the table that begins with this heading."""
    lines = iter((DOCS / page).read_text().splitlines())
    for line in lines:
        if line.startswith(f"| {heading} |"):
            break
    next(lines)
    table = []
    for line in lines:
        if not line.startswith("|"):
            break
        table.append([cell.strip() for cell in line.strip("|").split("|")])
    return table


def in_state(state: str) -> Health:
    health = Health(failures=2, successes=1)
    checks = {
        "starting": [],
        "ready": [OK],
        "live": [OK, BUSY, BUSY],
        "not-live": [OK, FAILED, FAILED],
    }
    for verdict in checks[state]:
        health.observe(outcome(verdict))
    assert health.state == state
    return health


def test_the_table_of_states_is_what_a_watch_answers() -> None:
    table = rows("live-servers.md", "state")
    assert [row[0].strip("`") for row in table] == [*STATES]
    for name, _, live, ready, *_ in table:
        health = in_state(name.strip("`"))
        options = WatchCommand(url="http://127.0.0.1:9", http="9400")
        watch = ServerWatch(None, health, options)  # type: ignore[arg-type]
        known = states({"": watch})
        assert (live, ready) == tuple(
            "200" if known[path] else "503" for path in ("live", "ready")
        )


def ends_liveness(verdict: CheckOutcome) -> str:
    """After how long nothing but such checks end liveness of a server that worked."""
    health = Health(failures=2, grace_s=600, stall_s=60, prepare_s=600)
    health.observe(outcome(OK, 0))
    for at in range(10, 3600, 10):
        health.observe(outcome(verdict, at))
        if not health.live:
            bounds = {20: "`--failures`", 70: "`--stall`"}
            return bounds.get(at, "`--grace`")
    return "never"


def test_the_table_of_checks_is_what_a_watch_concludes() -> None:
    table = rows("live-servers.md", "check")
    assert [row[0] for row in table] == [verdict.value for verdict in CheckOutcome]
    for name, _, ends, unready in table:
        verdict = CheckOutcome(name)
        assert ends == ends_liveness(verdict), name
        health = Health(failures=2)
        health.observe(outcome(OK))
        before = health.ready
        health.observe(outcome(verdict))
        at_once = before and not health.ready
        health.observe(outcome(verdict))
        falls = "at once" if at_once else "`--failures`"
        assert unready == ("never" if health.ready else falls), name
