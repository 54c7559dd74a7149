"""The few numbers that the general diagnosis turns on, each at its edge."""

from __future__ import annotations

from typing import Any

import pytest
from made_up import http, metrics
from mmrepro.live.diagnose.readings import DiagnosisView
from mmrepro.probes.data import AnyProbeData, ProcessesData
from seen import (
    CORE,
    FRONT,
    GREEN,
    SILENCE,
    TID,
    answer,
    evidence,
    failed,
    probed,
    sampled,
    target,
    thread,
    use,
    waiting,
)


def view(*data: AnyProbeData, **facts: Any) -> DiagnosisView:
    return DiagnosisView(target(**facts), evidence(*data))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (None, "not-asked"),
        (answer(), "answered"),
        (SILENCE, "silent"),
        (failed(None, "late", 13.5), "silent"),
        (failed(None, "reset", 13.4), "failed"),
        (
            failed(
                None, "no complete answer in 15.0 s in the body of a 200 answer", 15
            ),
            "failed",
        ),
        (failed(200, "ended with finish_reason 'error'"), "failed"),
        (failed(200, "not JSON"), "malformed"),
        (failed(429, "full"), "overload"),
        (failed(400, "bad"), "refused"),
        (failed(430, "bad"), "refused"),
        (failed(428, "bad"), "refused"),
        (failed(199, "odd"), "refused"),
        (failed(201, "odd"), "refused"),
        (failed(499, "bad"), "refused"),
        (failed(500, "boom"), "failed"),
        (failed(501, "boom"), "failed"),
    ],
)
def test_what_became_of_the_request(data: Any, said: str) -> None:
    assert view(*([data] if data else [])).answer == said


@pytest.mark.parametrize(
    ("statuses", "green", "late", "answers"),
    [
        ((200, 200), True, [], True),
        ((503, 200), False, [], True),
        ((201, 200), False, [], True),
        ((200, None), False, ["/v1/models"], True),
        ((None, None), False, ["/health", "/v1/models"], False),
        ((503, None), False, [], True),
        ((399, None), False, ["/v1/models"], True),
        ((500, None), False, [], True),
        ((200, 400), True, [], True),
        ((200, 499), True, [], True),
        ((200, 399), True, [], True),
        ((302, 299), False, [], True),
        ((200, 500), False, [], True),
        ((401, 404), None, [], True),
        ((401, None), False, ["/v1/models"], True),
    ],
)
def test_what_the_endpoints_say(
    statuses: tuple[int | None, int | None],
    green: bool | None,
    late: list[str],
    answers: bool,
) -> None:
    seen = view(http(*statuses))
    assert (seen.green, seen.late, seen.front_answers) == (green, late, answers)


def test_endpoints_that_were_not_asked() -> None:
    seen = view()
    assert (seen.green, seen.late, seen.front_answers, seen.refused_connection) == (
        None,
        [],
        None,
        False,
    )
    empty = http(200, 200)
    empty.answers = []
    assert (view(empty).green, view(empty).front_answers) == (None, None)
    latest = view(http(None, None), GREEN)
    assert (latest.green, latest.late) == (True, [])


def test_an_answer_to_the_request_is_an_answer_of_the_front() -> None:
    assert view(http(None, None), answer()).front_answers is True
    assert view(failed(400, "bad")).front_answers is True
    assert view(http(None, None), SILENCE).front_answers is False
    assert view(SILENCE).front_answers is None


def test_a_refused_connection_is_refused_by_each_endpoint() -> None:
    both = http(None, None)
    both.answers[0].error = "ConnectError: refused"
    assert not view(both).refused_connection
    both.answers[1].error = "ConnectError: refused"
    assert view(both).refused_connection


def test_tokens_are_progress_and_requests_only_where_no_token_is_counted() -> None:
    assert view(metrics()).progress is None
    assert view(metrics(), metrics()).progress is False
    assert view(metrics(), metrics(prompt_tokens=9999)).progress is True
    assert view(metrics(), metrics(generation_tokens=61)).progress is True
    assert view(
        metrics(generation_tokens=61), metrics(), metrics(generation_tokens=61)
    ).progress is (False)
    assert view(metrics(), metrics(finished=17)).progress is False

    def requests(*finished: int) -> DiagnosisView:
        seen = [metrics(finished=n) for n in finished]
        for one in seen:
            one.samples = [s for s in one.samples if "tokens" not in s.name]
        return view(*seen)

    assert requests(16, 17).progress is True
    assert requests(16, 16).progress is False
    assert requests(16).progress is None
    assert view(metrics(), metrics(prompt_tokens=1), engine="").progress is None


def test_always_is_in_every_reading_of_at_least_two() -> None:
    assert view(metrics(waiting=1)).always("waiting") is None
    assert view(metrics(waiting=1), metrics(waiting=2)).always("waiting") is True
    assert view(metrics(waiting=1), metrics(waiting=0)).always("waiting") is False
    assert view().always("waiting") is None


def test_counters_for_people() -> None:
    seen = view(metrics(running=1), metrics(running=2))
    assert seen.counted() == (
        "running 1 → 2, waiting 0 → 0, finished 16 → 16, prompt_tokens 3496 → 3496, "
        "generation_tokens 60 → 60"
    )
    assert view().counted() == ""


def test_the_core_and_its_process() -> None:
    assert (view().core_pid, view().core_is_front) == (CORE, False)
    assert (view(states="S").core_pid, view(states="S").core_is_front) == (None, False)
    several = view()
    several.facts.processes.append(
        several.facts.processes[1].model_copy(update={"pid": 9})
    )
    assert several.core_pid == CORE
    alone = view(states="S", core_role="")
    assert (alone.core_pid, alone.core_is_front) == (FRONT, True)
    nothing = view(root_pid=None, processes=[])
    assert (nothing.core_pid, nothing.core_is_front) == (None, True)


def test_cpu_of_a_process_is_its_latest_reading() -> None:
    seen = view(use(10.0), use(20.0), use(30.0, pid=7))
    assert seen.use(CORE).user_pct == 20.0  # type: ignore[union-attr]
    assert seen.use(8) is None
    empty = ProcessesData(root_pid=1, window_s=1.0, processes=[])
    assert view(use(10.0), empty).use(CORE).user_pct == 10.0  # type: ignore[union-attr]


def test_a_hot_core_is_one_that_was_hot_once_or_spins() -> None:
    assert view().core_hot is None
    assert view(use(49.9)).core_hot is False
    assert view(use(50.0)).core_hot is True
    assert view(use(50.0), use(1.0)).core_hot is True
    assert view(use(99.0, pid=7)).core_hot is None
    assert view(use(1.0), waiting("", "spinning-in-user-space")).core_hot is True
    assert view(use(99.0), states="S").core_hot is None
    assert view(waiting("", "spinning-in-user-space"), states="S").core_hot is None


def test_a_hot_thread_uses_half_a_core_in_all() -> None:
    assert view().hot_thread(CORE) is None
    assert view(use(50.0)).hot_thread(CORE) == TID
    assert view(use(90.0, thread=49.9)).hot_thread(CORE) is None
    both = use(90.0, thread=30.0)
    both.processes[0].busiest[0].system_pct = 20.0
    assert view(both).hot_thread(CORE) == TID
    both.processes[0].busiest += use(10.0).processes[0].busiest
    assert view(both).hot_thread(CORE) == TID
    both.processes[0].busiest = []
    assert view(both).hot_thread(CORE) is None


def test_system_calls_are_those_of_that_process() -> None:
    assert view(waiting("read")).waits(CORE) == {TID: "read"}
    assert view(waiting("read"), waiting("poll")).waits(CORE) == {TID: "poll"}
    assert view(waiting("read")).waits(FRONT) == {}


def test_courses_are_of_all_samples_of_the_check() -> None:
    two = sampled([thread([])], [thread([])])
    assert view(two, two).courses(CORE)[0].samples == 4
    assert view(two).courses(None) == []
    gate = view(two)
    gate.evidence.probes.append(probed(two, "gate"))
    assert gate.courses(CORE)[0].samples == 2
