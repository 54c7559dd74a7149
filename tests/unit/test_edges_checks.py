"""Shared checks at their edges: each comparison from both sides, each half of an `and`
alone."""

from typing import Any

import pytest
from made_up import (
    GHOST,
    OTHER,
    at,
    logs,
    metrics,
    probed,
    processes,
    request,
    stacks,
    syscalls,
    thread,
)
from mmrepro.failure.signature import (
    checks,
    checks as digests,
    crash,
    live_server,
    views,
)
from mmrepro.failure.signature.decide import guarded
from mmrepro.probes.data import InferenceData, LogLine, LogsData
from mmrepro.scenario import Finding, Truth
from mmrepro.traffic.evidence import Evidence
from vllm_checks import finding_of, truth_of

MET, NOT_MET, UNKNOWN = Truth.MET, Truth.NOT_MET, Truth.UNKNOWN


# ------------------------------------------------------------------ shared checks


def test_what_is_usual_is_the_slowest_of_the_gate() -> None:
    hung = request("trigger", "x", None, timed_out=True, latency_s=9.0)
    quick, slow = request("gate", "a"), request("gate", "b", latency_s=0.3)
    failed = request("gate", "c", 500, latency_s=5.0)
    found = finding_of(
        checks.unanswered, Evidence(requests=[quick, slow, failed, hung])
    )
    assert found.observed.endswith("against 0.30 s at most in the gate")
    assert (
        finding_of(checks.unanswered, Evidence(requests=[hung])).observed
        == "x: no answer in 9.0 s"
    )


@pytest.mark.parametrize(
    ("seconds", "found"), [(8.99, NOT_MET), (9.0, MET), (10.0, MET)]
)
def test_silence_is_nearly_the_whole_deadline(seconds: float, found: Truth) -> None:
    data = InferenceData(answered=False, status=None, seconds=seconds, deadline_s=10.0)
    assert truth_of(checks.probe_unanswered, data) is found


@pytest.mark.parametrize(
    ("first", "then", "found"),
    [
        ((0, 0), (0, 0), MET),
        ((0, 0), (1, 0), NOT_MET),
        ((0, 1), (0, 0), NOT_MET),
        ((1, 1), (1, 1), NOT_MET),
    ],
)
def test_an_empty_queue_is_empty_twice(
    first: tuple[int, int], then: tuple[int, int], found: Truth
) -> None:
    readings = [metrics(running=r, waiting=w) for r, w in (first, then)]
    assert truth_of(checks.queue_empty, *readings) is found


@pytest.mark.parametrize(
    ("first", "then", "found"),
    [(1, 1, MET), (2, 1, MET), (0, 1, NOT_MET), (1, 0, NOT_MET), (0.5, 1, NOT_MET)],
)
def test_counted_as_running_in_both_readings(
    first: float, then: float, found: Truth
) -> None:
    readings = [metrics(running=first), metrics(running=then)]
    assert truth_of(checks.counted_as_running, *readings) is found


def test_what_stands_still_is_read_twice_and_the_same() -> None:
    still, moved = metrics(), metrics(prompt_tokens=3497)
    assert truth_of(checks.no_progress, still, still) is MET
    assert truth_of(checks.no_progress, still, moved) is NOT_MET
    assert truth_of(checks.no_progress, still, metrics(finished=17)) is NOT_MET
    one_moved = finding_of(
        checks.no_progress, Evidence(probes=[probed(still), probed(moved)])
    )
    assert one_moved.observed == "prompt_tokens 3496 → 3497"
    assert truth_of(checks.tokens_stand_still, still, metrics(finished=17)) is MET
    assert truth_of(checks.no_progress, still) is UNKNOWN
    lacks = metrics()
    lacks.samples = [s for s in lacks.samples if "prompt" not in s.name]
    assert truth_of(checks.no_progress, lacks, lacks) is UNKNOWN
    one, two = metrics(finished=1), metrics(finished=2)
    for data in (one, two):
        data.samples = [s for s in data.samples if "prompt" not in s.name]
    assert truth_of(checks.no_progress, one, two) is NOT_MET


def burning(
    user: float, system: float = 0.0, queued: float = 0.0, gate: float | None = 0.0
) -> Finding:
    now = processes(user, system)
    now.processes[0].queued_pct = queued
    before = [] if gate is None else [probed(processes(gate), "gate")]
    return finding_of(checks.core_burns_cpu, Evidence(probes=[*before, probed(now)]))


@pytest.mark.parametrize(
    ("user", "system", "queued", "found"),
    [
        (50.0, 0.0, 0.0, MET),
        (49.9, 0.0, 0.0, NOT_MET),
        (5.0, 0.0, 75.0, MET),
        (5.0, 0.0, 74.9, UNKNOWN),
        (4.9, 0.0, 80.0, UNKNOWN),
        (20.0, 5.0, 70.0, MET),
        (20.0, 5.1, 70.0, UNKNOWN),
        (30.0, 0.0, 50.0, MET),
        (29.9, 0.0, 50.0, UNKNOWN),
        (29.9, 0.0, 49.9, NOT_MET),
    ],
)
def test_a_whole_core_or_a_wish_for_one(
    user: float, system: float, queued: float, found: Truth
) -> None:
    assert burning(user, system, queued).truth is found
    assert burning(user, system, queued, gate=None).truth is (
        UNKNOWN if found is MET else found
    )


def test_system_calls_tell_spinning_from_waiting_or_nothing() -> None:
    assert truth_of(checks.spins_in_user_space, syscalls()) is MET
    assert truth_of(checks.spins_in_user_space, syscalls("unclear")) is UNKNOWN
    assert truth_of(checks.spins_in_user_space, syscalls("blocked")) is NOT_MET


def test_what_a_core_waited_for_is_said_where_it_is_worth_it() -> None:
    assert "waited 10 %" in burning(97.0, queued=10.0).observed
    assert "waited" not in burning(97.0, queued=9.9).observed
    assert burning(97.0, gate=30.0).truth is MET
    assert burning(97.0, gate=30.1).truth is NOT_MET


def test_the_last_reading_of_a_core_counts() -> None:
    def burns(*gate: float, check: tuple[float, ...]) -> Finding:
        probes = [probed(processes(user), "gate") for user in gate]
        probes += [probed(processes(user)) for user in check]
        return finding_of(checks.core_burns_cpu, Evidence(probes=probes))

    assert burns(97.0, 97.0, 1.0, check=(97.0,)).truth is MET
    assert burns(1.0, 1.0, 97.0, check=(97.0,)).truth is NOT_MET
    assert burns(1.0, check=(1.0, 1.0, 97.0)).truth is MET
    assert burns(1.0, check=(97.0, 97.0, 1.0)).truth is NOT_MET
    ended = processes(0.0)
    ended.processes[0].state = "Z"
    assert truth_of(checks.core_alive, processes(0.0), processes(0.0), ended) is NOT_MET


def test_a_busy_core_of_a_live_server() -> None:
    assert truth_of(checks.core_busy, processes(50.0)) is MET
    assert truth_of(checks.core_busy, processes(49.9)) is NOT_MET
    assert truth_of(checks.core_busy, processes(1.0), processes(50.0)) is MET
    assert truth_of(checks.core_busy, processes(1.0), syscalls()) is MET
    assert truth_of(checks.core_busy, processes(1.0), syscalls("blocked")) is NOT_MET
    stranger = syscalls()
    stranger.pid = 1
    assert truth_of(checks.core_busy, processes(1.0), stranger) is NOT_MET
    assert truth_of(checks.core_busy, syscalls()) is UNKNOWN

    def queued(user: float, system: float, waited: float) -> Truth:
        crowded = processes(user, system)
        crowded.processes[0].queued_pct = waited
        return truth_of(checks.core_busy, crowded)

    assert queued(30.0, 2.0, 50.0) is MET
    assert queued(30.0, 2.0, 49.9) is NOT_MET
    assert queued(30.0, 20.0, 60.0) is UNKNOWN, (
        "it is in the kernel, on an overloaded machine"
    )
    assert queued(2.0, 0.0, 98.0) is UNKNOWN


@pytest.mark.parametrize(
    ("state", "code", "found"),
    [("R", None, MET), ("Z", None, NOT_MET), ("X", None, NOT_MET), ("R", 0, NOT_MET)],
)
def test_a_core_that_lives(state: str, code: int | None, found: Truth) -> None:
    data = processes(0.0)
    data.processes[0].state = state
    assert truth_of(checks.core_alive, data, engine_exit=code) is found
    assert truth_of(checks.core_alive) is UNKNOWN


def test_an_engine_works_by_its_answer_or_by_its_counters() -> None:
    good = InferenceData(answered=True, status=200, seconds=0.1, deadline_s=9.0)
    bad = InferenceData(
        answered=False, status=500, seconds=0.1, deadline_s=9.0, error="why"
    )
    still, moved = metrics(), metrics(generation_tokens=61)
    assert truth_of(checks.engine_works, good) is MET
    assert truth_of(checks.engine_works, bad, still, moved) is NOT_MET
    assert truth_of(checks.engine_works, still, moved) is MET
    assert truth_of(checks.engine_works, still, still) is UNKNOWN
    spins = (still, still, processes(99.0), syscalls())
    assert truth_of(checks.engine_works, *spins) is NOT_MET
    assert truth_of(checks.engine_works, *spins[:3]) is UNKNOWN
    assert truth_of(checks.engine_works, still, still, syscalls()) is UNKNOWN
    assert truth_of(checks.engine_works, processes(99.0), syscalls()) is UNKNOWN
    assert truth_of(checks.engine_works) is UNKNOWN


def test_lines_of_the_log() -> None:
    def logged(*hashes: str) -> Finding:
        seen = views.Logs(Evidence(probes=[probed(logs(*hashes))]))
        return checks.logged(seen, "cached-item-assertion", "it")

    assert logged() == Finding.of(False, "the log holds no line of it")
    assert logged(GHOST, OTHER) == Finding.of(
        True, "2 lines of it, first at 11-21 03:37:42"
    )
    data = logs(GHOST, OTHER, GHOST)
    data.matches["cached-item-assertion"][0].time = ""
    seen = views.Logs(Evidence(probes=[probed(data)]))
    assert (
        checks.logged(seen, "cached-item-assertion", "it").observed == "3 lines of it"
    )


@pytest.mark.parametrize(
    ("added", "done", "failed", "found"),
    [
        (3, 3, 0, NOT_MET),
        (3, 4, 0, NOT_MET),
        (4, 3, 0, MET),
        (4, 3, 1, UNKNOWN),
        (5, 3, 1, MET),
        (3, 3, 1, NOT_MET),
        (0, 0, 0, UNKNOWN),
        (1, 0, 0, MET),
    ],
)
def test_added_and_never_finished(
    added: int, done: int, failed: int, found: Truth
) -> None:
    refused = [request("trigger", "r", 499), request("trigger", "r", None)]
    sent = [*refused, *(request("trigger", "f", 500) for _ in range(failed))]
    readings = (metrics(finished=7), metrics(finished=done), logs(added=added))
    assert truth_of(checks.added_but_unfinished, *readings, requests=sent) is found
    assert truth_of(checks.added_but_unfinished, *readings[1:], requests=sent) is found


# ------------------------------------------------------------------ deaths


def death(*lines: str, count: int | None = None) -> LogsData:
    found = [
        LogLine(number=n, process="APIServer", text=text)
        for n, text in enumerate(lines, 1)
    ]
    number = len(lines) if count is None else count
    return LogsData(
        file="engine.log",
        bytes_read=9,
        lines=9,
        matches={"engine-dead": found},
        match_counts={"engine-dead": number},
    )


def test_a_core_is_dead_by_the_log_and_by_its_absence() -> None:
    gone, zombie = processes(0.0, role="APIServer"), processes(0.0)
    zombie.processes[0].state = "Z"

    def died(*probes: Any, gate: bool = True, code: int | None = None) -> Truth:
        before = [probed(processes(0.0), "gate")] if gate else []
        found = [probed(data) for data in probes]
        return finding_of(
            crash.core_died, Evidence(probes=[*before, *found], engine_exit=code)
        ).truth

    assert died(death("dead"), gone) is MET
    assert died(death("dead"), zombie) is MET
    assert died(death("dead"), processes(0.0)) is NOT_MET
    assert died(death(), gone) is NOT_MET
    assert died(death("dead")) is UNKNOWN
    assert died(death("dead"), gone, gate=False) is UNKNOWN
    assert died(death("dead"), code=1) is MET
    assert died(death("dead"), gate=False, code=1) is MET
    assert died(gone) is UNKNOWN


def test_every_request_after_it_fails_too() -> None:
    def fails(status: int | None, later: int | None) -> Truth:
        sent = [request("trigger", "x"), request("trigger", "x", status)]
        sent.append(request("trigger", crash.AFTER, later))
        return guarded(
            lambda e: crash.requests_fail_with_500(views.Requests(e), "x"),
            Evidence(requests=sent),
        ).truth

    def late(label: str) -> Truth:
        sent = [request("trigger", "x", 500), request("trigger", crash.AFTER, 500)]
        for record in sent:
            if record.label == label:
                record.timed_out = True
        return guarded(
            lambda e: crash.requests_fail_with_500(views.Requests(e), "x"),
            Evidence(requests=sent),
        ).truth

    assert (late("x"), late(crash.AFTER)) == (UNKNOWN, UNKNOWN)
    assert (fails(500, 500), fails(500, None)) == (MET, MET)
    assert (fails(500, 200), fails(200, 500), fails(None, None)) == (
        NOT_MET,
        NOT_MET,
        NOT_MET,
    )


def test_health_is_503_each_time_that_it_answers() -> None:
    def health(*statuses: int | None) -> Truth:
        return truth_of(
            crash.health_is_503,
            requests=[request("trigger", crash.HEALTH, s) for s in statuses],
        )

    assert (health(503), health(503, None), health(503, 503)) == (MET, MET, MET)
    assert (health(200), health(503, 200)) == (NOT_MET, NOT_MET)
    assert (health(None), health()) == (UNKNOWN, UNKNOWN)


def test_a_server_exits_and_after_how_long() -> None:
    asked = [
        request("trigger", crash.HEALTH, 503),
        request("trigger", crash.HEALTH, None),
    ]
    asked[0].sent, asked[1].sent = at(1), at(7)
    found = finding_of(crash.server_exits, Evidence(requests=asked, engine_exit=0))
    assert (found.truth, "about 6 s later" in found.observed) == (MET, True)
    assert finding_of(crash.server_exits, Evidence(requests=asked)).truth is NOT_MET
    assert finding_of(crash.server_exits, Evidence(engine_exit=-9)).truth is MET
    assert finding_of(crash.server_exits, Evidence()).truth is UNKNOWN
    only = finding_of(crash.server_exits, Evidence(requests=asked[:1], engine_exit=1))
    assert "later" not in only.observed


def test_the_first_error_is_the_cores_and_the_one() -> None:
    core, other, front = "EngineCore pid=1764", "EngineCore pid=1", "APIServer pid=2"

    def first(
        *lines: tuple[int, str], wanted: int = 10, more: int = 0, gate: bool = True
    ) -> Finding:
        found = [
            LogLine(number=n, process=process, text="E: x") for n, process in lines
        ]
        matching = [line for line in found if line.number == wanted]
        data = LogsData(
            file="engine.log",
            bytes_read=9,
            lines=9,
            matches={"exception": found, "mine": matching},
            match_counts={"exception": len(found) + more, "mine": len(matching)},
        )
        before = [probed(processes(0.0), "gate")] if gate else []
        seen = views.Logs(Evidence(probes=[*before, probed(data)]))
        return crash.first_error(seen, "EngineCore", "mine")

    assert first((10, core), (11, front)).truth is MET
    assert first((10, core), (11, front)).observed.endswith("; 1 later lines echo it")
    assert first((9, front), (10, core)).observed.endswith("; 0 later lines echo it")
    assert first((9, front), (10, core)).truth is MET
    assert first((9, core), (10, core)).truth is NOT_MET
    assert first((10, front)).truth is NOT_MET
    assert "line 10, a process without a name: E: x" in first((10, "")).observed
    assert first((10, other)).truth is NOT_MET
    assert first((10, other), gate=False).truth is MET
    assert first().truth is NOT_MET
    # Of many lines the middle ones are not kept: the first of the core may be among
    # them.
    assert first((10, core), (11, front), more=1).truth is MET
    assert first((9, front), (10, core), more=1).truth is UNKNOWN
    assert "1 of 3 exceptions" in first((9, front), (10, core), more=1).observed
    assert first((9, front), (10, core), (11, core), more=1).truth is MET
    assert (
        first((8, front), (9, front), (10, core), (11, core), more=1).truth is UNKNOWN
    )


@pytest.mark.parametrize(
    ("alive", "lines", "found"),
    [(True, 1, NOT_MET), (False, 1, MET), (False, 0, NOT_MET), (None, 1, UNKNOWN)],
)
def test_a_live_core_is_dead_by_its_processes(
    alive: bool | None, lines: int, found: Truth
) -> None:
    facts = {} if alive is None else {live_server.CORE_ALIVE: alive}
    evidence = Evidence(probes=[probed(death(*["dead"] * lines))], facts=facts)
    seen = guarded(
        lambda e: live_server.core_is_dead(
            e, views.Logs(e), "EngineCore", "engine-dead"
        ),
        evidence,
    )
    assert seen.truth is found


# ------------------------------------------------------------------ loops and digests

LOOP = (("step", "core.py"), ("run", "core.py"), ("main", "core.py"))
CALL = (("call", "core.py"), *LOOP)


@pytest.mark.parametrize(
    ("samples", "found"),
    [
        ((CALL, CALL), UNKNOWN),
        ((CALL, CALL, CALL), MET),
        ((CALL, LOOP, LOOP), MET),
        ((LOOP,) * 9, UNKNOWN),
        ((LOOP,) * 10, NOT_MET),
        ((*(LOOP,) * 9, CALL), MET),
        ((CALL, CALL, LOOP[1:]), NOT_MET),
        ((CALL, CALL, CALL, LOOP[2:]), NOT_MET),
    ],
)
def test_it_stays_in_its_loop(samples: tuple[Any, ...], found: Truth) -> None:
    seen = stacks(*(thread(*one) for one in samples))
    assert checks.stays_in(seen, "main", ["step", "run"], "call").truth is found
    idle = stacks(*(thread(*one, active=False) for one in samples))
    assert checks.stays_in(idle, "main", ["step", "run"], "call").truth is not MET
    if found is MET:
        idle.samples[0].threads[0].active = True
        assert checks.stays_in(idle, "main", ["step", "run"], "call").truth is MET


def test_a_digest_is_quoted_and_whole_or_cut() -> None:
    digest = "0123456789abcdef"
    for value in (
        f"'{digest}'",
        f'"{digest}"',
        f" '{digest}' ",
        f"'{digest}...",
        f"'{digest}…'",
    ):
        assert digests.digest_in(value) == digest
    for value in (digest, f"'{digest[1:]}'", "12", "<object>", f"x'{digest}'"):
        assert digests.digest_in(value) == ""


def test_a_long_digest_is_shown_short() -> None:
    assert digests.short_hash("a" * 17) == "a" * 17
    assert digests.short_hash("a" * 18) == "a" * 16 + "…"


def test_one_and_the_same_key() -> None:
    def same(keys: list[str], *named: str) -> Finding:
        return digests.same_digest(keys, named, "evicts")

    assert same([GHOST[:20], GHOST], GHOST, OTHER).truth is MET
    assert same([OTHER], GHOST).truth is NOT_MET
    assert same([GHOST, OTHER], GHOST).truth is UNKNOWN
    assert same([], GHOST).truth is UNKNOWN
    assert same([GHOST]).truth is UNKNOWN
    shown = same([f"{n}" * 16 for n in range(7)] + ["6" * 16], GHOST).observed
    assert shown.startswith(f"evicts 2 × {'6' * 16}, 1 × {'0' * 16}")
    assert shown.count("×") == 5
