"""What ends liveness: a process that is seen to have ended or to stand still, and
nothing else."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest
from enough_processors import told_by_stacks
from fake_server import (
    Reply,
    answering,
    completion,
    http,
    in_turn,
    serving,
    silent,
    then_silent,
)
from mmrepro.base.machine.host import SHORT, Lateness
from mmrepro.live.watch.checker import CHECKS, GAUGES, PROGRESS, Checker
from mmrepro.live.watch.health import Check, CheckOutcome, Health
from mmrepro.live.watch.processes import RunningTime, WatchedProcesses

T = TypeVar("T")
_VAIN_S = 0.8
"""Of a check that waits in vain: its metrics have to come in that time as well, on a
busy machine too."""
MODELS = http(200, json.dumps({"data": [{"id": "tiny"}]}).encode())


def routed(
    post: Reply, models: bytes = MODELS, other: bytes = http(404, b"no")
) -> Reply:
    """A FAKE server: ``post`` answers completions, ``models`` /v1/models, ``other`` the
    rest."""

    async def reply(request: bytes, writer: asyncio.StreamWriter) -> None:
        if request.startswith(b"POST"):
            return await post(request, writer)
        raw = models if request.startswith(b"GET /v1/models") else other
        return await answering(raw)(request, writer)

    return reply


def against(reply: Reply, watched: Callable[[str], T]) -> T:
    async def main() -> T:
        async with serving(reply) as server:
            return await asyncio.to_thread(watched, server.url)

    run: Awaitable[T] = main()
    return asyncio.run(run)  # type: ignore[arg-type]


def lived(url: str, checks: int = 4) -> tuple[Health, list[CheckOutcome]]:
    """A watch with neither patience nor grace."""
    checker, health = Checker(url, 0.3), Health(failures=2, grace_s=0.0)
    try:
        for _ in range(checks):
            health.observe(checker.check())
    finally:
        checker.close()
    return health, [health.last.verdict] if health.last else []


@pytest.mark.parametrize(
    "status", [301, 302, 400, 401, 403, 404, 405, 407, 418, 429, 451]
)
def test_a_models_list_that_is_refused_ends_no_liveness(status: int) -> None:
    reply = routed(answering(http(200, completion())), models=http(status, b"no"))
    health, _ = against(reply, lived)
    assert health.live
    assert not health.ready


@pytest.mark.parametrize("status", [500, 501, 502, 503, 504, 529])
def test_an_error_that_is_answered_ends_readiness_and_no_liveness(status: int) -> None:
    health, _ = against(routed(answering(http(status, b"down"))), lived)
    assert health.live
    assert not health.ready
    health, _ = against(routed(silent, models=http(status, b"down")), lived)
    assert health.live


@pytest.mark.parametrize(
    "post",
    [
        answering(http(200, b"<html>log in</html>")),
        answering(b""),
        answering(b"garbage\r\n\r\n"),
        then_silent(b"HTTP/1.1 200 OK\r\n"),
        silent,
    ],
    ids=[
        "login page",
        "closed",
        "garbage",
        "half an answer",
        "silence and no counters",
    ],
)
def test_what_shows_no_process_that_stands_ends_no_liveness(post: Reply) -> None:
    health, _ = against(routed(post), lived)
    assert health.live
    assert not health.ready


def test_a_name_that_does_not_resolve_ends_no_liveness() -> None:
    health, _ = lived("http://no-such-host.invalid:8000")
    assert health.live
    assert not health.ready


# ------------------------------------------------------------------ counters


def counting(post: Reply, metric: str, *values: float, busy: float = 1) -> Reply:
    """``post`` for completions; /metrics tells ``values`` of ``metric`` in turn, then
    the last.
    ``busy``: requests that run, by the same metrics."""
    left = list(values)

    async def reply(request: bytes, writer: asyncio.StreamWriter) -> None:
        value = (
            left.pop(0)
            if request.startswith(b"GET /metrics") and len(left) > 1
            else left[0]
        )
        text = f"{metric} {value}\nvllm:num_requests_running {busy}\n"
        metrics = http(200, text.encode(), "text/plain")
        await routed(post, other=metrics)(request, writer)

    return reply


def checked(reply: Reply, times: int = 1, *, answered: int = 0) -> list[CheckOutcome]:
    """``answered``: how many of the first checks get an answer. Those wait for it,
    however busy this machine is; the others wait in vain, and not for long."""

    def watched(url: str) -> list[CheckOutcome]:
        checker, seen = Checker(url, _VAIN_S), []
        try:
            for number in range(times):
                checker.deadline_s = 60.0 if number < answered else _VAIN_S
                seen.append(checker.check().verdict)
        finally:
            checker.close()
        return seen

    return against(reply, watched)


@pytest.fixture
def in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy this machine is: what is tested are the counters."""
    monkeypatch.setattr(Lateness, "share", 0.0)
    monkeypatch.setattr(RunningTime, "is_starved", lambda _: False)


@pytest.mark.usefixtures("in_time")
def test_a_long_prompt_fills_the_cache_while_no_token_is_counted() -> None:
    assert checked(counting(silent, GAUGES[0], 0.1, 0.2)) == [CheckOutcome.BUSY]
    assert checked(counting(silent, GAUGES[0], 0.2, 0.1)) == [CheckOutcome.BUSY]
    assert checked(counting(silent, GAUGES[0], 0.2)) == [CheckOutcome.SILENT]
    assert checked(counting(silent, PROGRESS[0], 9, 0)) == [CheckOutcome.ERROR], (
        "counted anew"
    )


@pytest.mark.usefixtures("in_time")
def test_a_server_that_answers_has_its_counters_read_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are a quarter of the cost; one that is late has them read at once."""
    monkeypatch.setattr(WatchedProcesses, "seen", True)
    reads = 0

    async def reply(request: bytes, writer: asyncio.StreamWriter) -> None:
        nonlocal reads
        reads += request.startswith(b"GET /metrics")
        turn = counting(turns, PROGRESS[0], 1, 2, 3, 3, 3, 3)
        await turn(request, writer)

    answers = answering(http(200, completion()))
    turns = in_turn(*[answers] * 9)
    assert checked(reply, 9, answered=9) == [CheckOutcome.OK] * 9
    assert reads == CHECKS
    turns = in_turn(*[answers] * 4, silent)
    reads = 0
    last = checked(reply, 5, answered=4)[-1]
    assert (last, reads) == (CheckOutcome.SILENT, CHECKS + 2)


@pytest.mark.usefixtures("in_time")
def test_counters_of_another_replica_end_no_liveness() -> None:
    """A FAKE balancer: completions go to a slow replica, /metrics to one that idles, or
    in turn."""
    works = answering(http(200, completion()))
    idle = counting(silent, PROGRESS[0], 7, busy=0)
    assert checked(idle, 3) == [CheckOutcome.ERROR] * 3
    assert against(idle, lived)[0].live
    slow = counting(in_turn(works, silent), PROGRESS[0], 7, busy=0)
    assert checked(slow, 3, answered=1) == [
        CheckOutcome.OK,
        CheckOutcome.ERROR,
        CheckOutcome.ERROR,
    ]
    fails = counting(in_turn(works, answering(http(500, b"x"))), PROGRESS[0], 7, busy=0)
    assert checked(fails, 2, answered=2) == [CheckOutcome.OK, CheckOutcome.ERROR]
    assert checked(counting(silent, PROGRESS[0], 7, busy=1)) == [CheckOutcome.SILENT]


@pytest.mark.usefixtures("in_time")
def test_counters_that_moved_with_each_answer_are_the_servers_own() -> None:
    """Where no process can be observed, an idle hang is known by what its answers
    counted."""
    works = answering(http(200, completion()))
    turns = in_turn(works, works, works, silent)
    own = counting(turns, PROGRESS[0], 1, 2, 2, 3, 3, 4, busy=0)
    assert checked(own, 4, answered=3) == [CheckOutcome.OK] * 3 + [CheckOutcome.SILENT]
    turns = in_turn(works, works, works, silent)
    less = counting(turns, PROGRESS[0], 1, 2, 2, 2, 3, 4, busy=0)
    assert checked(less, 4, answered=3) == [CheckOutcome.OK] * 3 + [CheckOutcome.ERROR]
    turns = in_turn(works, works, works, silent)
    fell = counting(turns, PROGRESS[0], 11, 12, 12, 13, 13, 14, 14, 3, busy=0)
    assert checked(fell, 4, answered=3) == [CheckOutcome.OK] * 3 + [CheckOutcome.ERROR]


@pytest.mark.usefixtures("in_time")
def test_an_engine_that_worked_and_fails_for_all_is_silent_one_that_never_did_is_not() -> (
    None
):
    broken = answering(http(500, b"the engine is dead"))
    works = answering(http(200, completion()))
    still = counting(in_turn(works, broken), PROGRESS[0], 7)
    assert checked(still, 2, answered=2) == [CheckOutcome.OK, CheckOutcome.SILENT]
    assert (
        checked(counting(broken, PROGRESS[0], 7), 2, answered=2)
        == [CheckOutcome.ERROR] * 2
    )
    others = counting(in_turn(works, broken), PROGRESS[0], 7, 7, 7, 8)
    assert checked(others, 2, answered=2) == [CheckOutcome.OK, CheckOutcome.ERROR]
    gateway = counting(in_turn(works, answering(http(502, b""))), PROGRESS[0], 7)
    assert checked(gateway, 2, answered=2) == [CheckOutcome.OK, CheckOutcome.ERROR]


# ------------------------------------------------------------------ the state


def seen(verdict: CheckOutcome, at: float) -> Check:
    return Check(verdict, at, 4.0, "why")


def working(**more: float) -> Health:
    health = Health(failures=2, **more)  # type: ignore[arg-type]
    health.observe(seen(CheckOutcome.OK, 0))
    return health


def test_a_silence_ends_liveness_only_when_it_has_lasted() -> None:
    health = working(stall_s=60)
    for at in (10, 20, 30, 40, 50, 60):
        assert not health.observe(seen(CheckOutcome.SILENT, at))
        assert (health.live, health.confirming) == (True, False)
    assert health.undecided
    assert health.observe(seen(CheckOutcome.SILENT, 66))  # the first began at 6
    assert not health.live


@pytest.mark.parametrize(
    "between", [CheckOutcome.BUSY, CheckOutcome.ERROR, CheckOutcome.OK]
)
def test_whatever_answers_ends_a_silence(between: CheckOutcome) -> None:
    health = working(stall_s=20)
    for at in range(10, 500, 20):
        health.observe(seen(CheckOutcome.SILENT, at))
        health.observe(seen(between, at + 10))
    assert health.live


def test_one_look_after_a_long_pause_is_no_long_silence() -> None:
    health = working(stall_s=1)
    health.observe(seen(CheckOutcome.SILENT, 10))
    assert health.live


def test_one_that_is_gone_is_starting_again_and_has_its_grace() -> None:
    health = working(grace_s=100)
    health.observe(seen(CheckOutcome.FAILED, 10))
    health.observe(seen(CheckOutcome.FAILED, 14))
    assert not health.live
    assert health.observe(seen(CheckOutcome.ABSENT, 20))
    assert (health.live, health.ready, health.starting) == (True, False, True)
    for at in range(30, 120, 10):
        health.observe(seen(CheckOutcome.ABSENT, at))
        assert health.live
    health.observe(seen(CheckOutcome.ABSENT, 120))
    health.observe(seen(CheckOutcome.ABSENT, 121))
    assert not health.live, "it never came"
    health.observe(seen(CheckOutcome.OK, 130))
    health.observe(seen(CheckOutcome.OK, 131))
    assert health.ready


# ------------------------------------------------------------------ real processes

FAKE = Path(__file__).parent.parent / "engine" / "fake_engine.py"


@contextmanager
def fake_engine(
    mode: str, port: int = 0
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A FAKE engine in a process of its own, that calls itself as minivllm does.

    Its command is this test process's own: one of another worker would be the same
    engine, started again."""
    command = [
        sys.executable,
        str(FAKE),
        mode,
        "minivllm.server",
        str(port),
        f"--of={os.getpid()}",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield process, f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


@contextmanager
def checker(url: str, deadline_s: float = 1.0) -> Iterator[Checker]:
    # A busy front may be late with its list of models.
    made = Checker(url, deadline_s, model="tiny")
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize(
    ("mode", "says"),
    [
        ("python", "stands still (spins_in_python"),
        ("nap", "stands still (naps_in_c"),
        ("lock", "stands still (waits_for_lock"),
        ("deaf", "idles while a request waits"),
    ],
)
@pytest.mark.usefixtures("in_time")
def test_a_process_that_stands_still_ends_liveness(mode: str, says: str) -> None:
    health = Health(failures=2, grace_s=0.0)
    with fake_engine(mode) as (_, url), checker(url) as made:
        for _ in range(2):
            found = told_by_stacks(made)
            health.observe(found)
            assert found.verdict is CheckOutcome.FAILED, found.why
            assert says in found.why
    assert not health.live


@pytest.mark.usefixtures("in_time")
@pytest.mark.slow
def test_a_process_that_a_signal_stops_ends_liveness_while_it_is_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    health = Health(failures=2)
    with fake_engine("well") as (process, url), checker(url) as made:
        made.deadline_s = 60.0
        health.observe(made.check())
        assert health.ready
        made.deadline_s = 1.0
        process.send_signal(signal.SIGSTOP)
        for _ in range(2):
            check = told_by_stacks(made)
            health.observe(check)
            assert check.verdict is CheckOutcome.FAILED, check.why
            assert "stopped by a signal" in check.why
        assert not health.live
        # On a machine short of processors it is as stopped as on any other.
        monkeypatch.setattr(Lateness, "share", SHORT + 0.01)
        assert told_by_stacks(made).verdict is CheckOutcome.FAILED
        # One that goes on by the end of the look, as beside a debugger, is not.
        process.send_signal(signal.SIGCONT)
        verdict, _ = made._processes._stays_stopped(0.0)
        assert verdict is CheckOutcome.SILENT
        made.deadline_s = 60.0
        assert made.check().verdict is CheckOutcome.OK


def test_one_that_computes_is_given_time() -> None:
    """The first check in which it had a processor: without one it looks as if it stood
    still."""
    with fake_engine("moves") as (_, url), checker(url) as made:
        checks = (made.check() for _ in range(60))
        found = next(check for check in checks if "its stacks move" in check.why)
    assert found.verdict is CheckOutcome.PREPARING


def test_a_process_that_ended_is_dead_until_its_command_runs_again() -> None:
    with fake_engine("well") as (process, url), checker(url, 60.0) as made:
        assert made.check().verdict is CheckOutcome.OK
        process.kill()
        process.wait()
        found = made.check()
        assert (found.verdict, found.why) == (
            CheckOutcome.FAILED,
            f"process {process.pid}, which answered before, has ended",
        )
        # The same command again, before it listens: held back, as one that loads a
        # model is.
        held = {**os.environ, "FAKE_ENGINE_HOLDS_BACK": "1"}
        with subprocess.Popen(process.args, env=held) as starting:
            try:
                found = made.check()
                assert found.verdict is CheckOutcome.ABSENT
                assert f"process {starting.pid} has its command" in found.why
            finally:
                starting.kill()
        assert made.check().verdict is CheckOutcome.FAILED


def test_on_a_machine_short_of_processors_silence_is_no_standstill(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Lateness, "share", SHORT + 0.01)
    assert checked(counting(silent, PROGRESS[0], 7)) == [CheckOutcome.ERROR]
    with fake_engine("python") as (process, url), checker(url) as made:
        assert made.check().verdict is CheckOutcome.ERROR
        process.kill()
        process.wait()
        assert made.check().verdict is CheckOutcome.FAILED, "it was seen to end"
