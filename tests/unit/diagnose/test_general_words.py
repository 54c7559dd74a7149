"""The general diagnosis in words, and each of its thresholds from both sides."""

from __future__ import annotations

from typing import Any

import pytest
from made_up import http, metrics
from mmrepro.failure.documents.diagnosis import Assessment, ServerState, TargetProcess
from mmrepro.live.diagnose.general import (
    assess,
    at_once,
    core_died,
    last_words,
    suspicious,
)
from mmrepro.live.diagnose.readings import DiagnosisView
from mmrepro.probes.base import ProbeStatus
from mmrepro.probes.data import AnyProbeData, LogLine
from seen import (
    CORE,
    FRONT,
    GREEN,
    SILENCE,
    answer,
    evidence,
    failed,
    idle,
    log,
    moving,
    still,
    target,
    use,
)

NOBODY: dict[str, Any] = {"root_pid": None, "processes": [], "listening": False}
REMOTE: dict[str, Any] = {**NOBODY, "place": "remote", "listening": None}


def said(
    *data: AnyProbeData, seen: dict[str, Any] | None = None, **facts: Any
) -> Assessment:
    return assess(evidence(*data, **(seen or {})), target(**facts))


def refused() -> Any:
    data = http(None, None)
    for one in data.answers:
        one.error = "ConnectError: refused"
    return data


def died(text: str = "EngineDeadError") -> Any:
    data = log(text, "echo")
    data.match_counts, data.matches = {"engine-died": 2}, {"engine-died": data.errors}
    return data


# ---------------------------------------------------------------- dead


def test_a_server_of_another_machine() -> None:
    silent = said(http(None, None), **REMOTE)
    assert (silent.state, silent.sentence) == (
        ServerState.UNREACHABLE,
        "http://127.0.0.1:8000: nothing answers there.",
    )
    assert silent.why == ["/health: late", "/v1/models: late"]
    assert silent.advice == [
        "run mmrepro on the machine of the server to see its processes"
    ]
    dead = said(refused(), **REMOTE)
    assert dead.state is ServerState.DEAD
    assert dead.sentence.endswith("the connection is refused: no server listens there.")
    nothing = said(**REMOTE)
    assert (nothing.state, nothing.why) == (ServerState.UNREACHABLE, [])
    named = said(
        http(None, None),
        **{**REMOTE, "root_pid": FRONT, "processes": target().processes},
    )
    assert named.state is not ServerState.UNREACHABLE


def test_nothing_listens_and_nobody_is_known() -> None:
    gone = said(log("boom"), **NOBODY)
    assert gone.sentence == "No server: nothing listens on port 8000."
    assert gone.why == [
        "nothing listens on port 8000 of this machine",
        "first error in its log: boom",
    ]
    assert gone.advice == [
        "read the end of its log (--log FILE); dmesg names what the kernel killed"
    ]
    killed = said(seen={"oom": "Killed process 9 (python)"}, **NOBODY)
    assert (
        killed.why[-1]
        == "the kernel's OOM killer was at work: Killed process 9 (python)"
    )
    unseen = said(**{**NOBODY, "listening": None})
    assert unseen.state is ServerState.UNKNOWN
    by_log = said(died(), **NOBODY)
    assert (
        by_log.sentence == "The server is dead: its EngineCore died first, by its log."
    )
    assert by_log.why[1] == "its log says at ?: EngineDeadError"
    unnamed = said(died(), **{**NOBODY, "core_role": ""})
    assert unnamed.sentence == "The server is dead: its engine died first, by its log."


def test_processes_that_have_ended() -> None:
    seen = {f"exit:{FRONT}": 9, f"exit:{CORE}": 3 << 8}
    gone = said(refused(), seen=seen, states="ZX")
    assert gone.sentence == "The server is dead: its process is gone."
    assert gone.why == [
        f"process {FRONT} (APIServer): killed by signal 9",
        f"process {CORE} (EngineCore): ended with exit code 3",
    ]
    hidden = (
        "has ended and was not collected by its parent; its exit code cannot be seen"
    )
    assert said(states="ZZ").why[0] == f"process {FRONT} (APIServer): {hidden}"
    core_dumped = said(seen={f"exit:{FRONT}": 0x80 | 11}, states="ZZ")
    assert core_dumped.why[0].endswith("killed by signal 11")
    hung_up = said(seen={f"exit:{FRONT}": 1}, states="ZZ")
    assert hung_up.why[0].endswith("killed by signal 1")
    high = said(seen={f"exit:{FRONT}": 64}, states="ZZ")
    assert high.why[0].endswith("killed by signal 64")
    clean = said(seen={f"exit:{FRONT}": 0}, states="ZZ")
    assert clean.why[0].endswith("ended with exit code 0")
    away = said(GREEN, processes=[], found_by="it listens on port 8000")
    assert away.why == [
        f"process {FRONT} (it listens on port 8000) does not exist any more"
    ]
    one_left = said(refused(), states="ZS")
    assert one_left.state is not ServerState.DEAD
    assert (
        said(refused(), seen={}, states="ZZ", listening=False).state is ServerState.DEAD
    )


def test_processes_run_and_nothing_listens() -> None:
    loading = said(refused(), log("slow"), listening=False)
    assert loading.state is ServerState.NOT_READY
    assert loading.sentence.startswith(
        "Its processes run, but nothing listens on port 8000"
    )
    assert loading.why == ["2 processes run", "first error in its log: slow"]
    assert loading.advice == ["its log tells which; then diagnose again"]
    ended = said(refused(), died(), listening=False)
    assert ended.state is not ServerState.NOT_READY
    assert said(refused(), listening=None).state is ServerState.UNREACHABLE
    assert said(GREEN, *still(), listening=False).state is ServerState.NO_FAULT_SEEN


# ------------------------------------------------------------- stopped, or in part dead


def test_a_stopped_process() -> None:
    front = said(states="TS")
    assert front.sentence == (
        f"APIServer (pid {FRONT}): stopped by a signal (SIGSTOP or SIGTSTP)."
    )
    assert front.why == [f"APIServer (pid {FRONT}) is in state T"]
    assert (front.process, front.advice) == (
        "APIServer",
        [f"to let it go on: kill -CONT {FRONT}"],
    )
    both = said(states="TT")
    assert both.advice == [f"to let it go on: kill -CONT {FRONT} {CORE}"]
    assert both.process == "APIServer"
    assert both.sentence.startswith(
        f"APIServer (pid {FRONT}), EngineCore (pid {CORE}): stopped"
    )
    traced = said(seen={f"tracer:{CORE}": 77}, states="St")
    assert traced.sentence == f"EngineCore (pid {CORE}): stopped by a tracer."
    assert traced.why[-1] == "its tracer is process 77"
    assert traced.advice == ["end the tracer, process 77"]


def test_a_dead_core_behind_a_living_front() -> None:
    part = said(
        GREEN,
        died(),
        seen={f"exit:{CORE}": 9, "oom": "Killed process 1764 (python)"},
        states="SZ",
    )
    assert part.state is ServerState.PART_DEAD
    assert part.sentence == (
        f"EngineCore (pid {CORE}) is dead, while the rest of the server lives."
    )
    assert part.why == [
        f"EngineCore (pid {CORE}): killed by signal 9",
        "the kernel's OOM killer was at work: Killed process 1764 (python)",
        "the API server reports /health 200, /v1/models 200",
        "its log says at ?: EngineDeadError",
        "first error in its log: EngineDeadError",
    ]
    assert (part.process, len(part.advice)) == ("EngineCore", 1)
    bare = said(states="SZ")
    assert len(bare.why) == 1
    more = target(states="SZ").processes
    more.append(
        TargetProcess(pid=9, ppid=1, role="EngineCore_DP1", name="x", state="S")
    )
    assert said(processes=more).state is ServerState.PART_DEAD


def test_a_log_that_tells_of_a_death_is_no_dead_process() -> None:
    """Its core is there, or none of its processes can be seen."""
    assert said(GREEN, *still(), SILENCE, died()).state is ServerState.FROZEN
    counted = still(running=1)
    assert said(GREEN, *counted, SILENCE, died(), **REMOTE).state is ServerState.FROZEN
    assert said(GREEN, *still(), SILENCE, died(), **REMOTE).state is ServerState.UNKNOWN
    assert said(died(), **{**NOBODY, "listening": None}).state is ServerState.UNKNOWN


def test_many_roles_are_cut_short() -> None:
    many = [
        TargetProcess(pid=n, ppid=1, role=f"w{n}", name="x", state="S")
        for n in range(20, 40)
    ]
    gone = said(died(), *still(), processes=many)
    assert gone.state is ServerState.PART_DEAD
    assert gone.why[0].endswith("w31 (31)")


# ---------------------------------------------------------------- an answer


def test_nan_gives_one_token_again_and_again() -> None:
    def state(text: str) -> ServerState:
        return said(GREEN, answer(text=text)).state

    assert state("!" * 6) is ServerState.BROKEN_OUTPUT
    assert state("!" * 5) is ServerState.HEALTHY
    assert state("  " + "!" * 6 + " ") is ServerState.BROKEN_OUTPUT
    assert state("  " + "!" * 4) is ServerState.HEALTHY
    assert state("!!!!!!a") is ServerState.HEALTHY
    assert state("") is ServerState.HEALTHY
    told = said(GREEN, answer(text="!!!!!!"))
    assert told.why == ["the completion is '!!!!!!'"]
    assert len(told.advice) == 1


def test_half_of_the_deadline_is_slow() -> None:
    fast, slow = said(GREEN, answer(7.5)), said(GREEN, answer(7.51))
    assert (fast.state, slow.state) == (ServerState.HEALTHY, ServerState.SLOW)
    assert slow.sentence == (
        "It is alive but slow: a request of a few tokens was answered in 7.51 s."
    )
    assert slow.advice == ["look at CPU and GPU use"]
    queued = said(GREEN, *moving(waiting=2), answer(9))
    assert queued.sentence.endswith(
        "answered in 9.00 s, and requests wait in its queue."
    )
    assert queued.why[1].startswith("running 0 → 0, waiting 2 → 2")
    assert queued.advice == ["more replicas or less traffic"]


def test_a_healthy_answer() -> None:
    quiet = said(GREEN, *still(), answer(0.1))
    took = "a request of a few tokens was answered in 0.10 s"
    assert quiet.sentence == f"Healthy: {took}."
    assert quiet.why == [took, "the API server reports /health 200, /v1/models 200"]
    busy = said(GREEN, *still(running=1), answer(0.1))
    assert busy.why[1].startswith("running 1 → 1")
    assert said(answer()).why == ["a request of a few tokens was answered in 0.10 s"]


def test_answers_beside_endpoints_that_are_late_or_unwell() -> None:
    late = said(http(None, None), answer(0.1))
    assert late.sentence == (
        "Requests are answered, but /health and /v1/models gave no answer in time."
    )
    assert late.why[1] == "the API server reports /health late, /v1/models late"
    assert len(late.why) == 3
    unwell = said(http(503, 200), answer(0.1))
    assert (
        unwell.sentence
        == "Requests are answered, but an endpoint says that it is not well."
    )
    assert unwell.why[1] == "the API server reports /health 503, /v1/models 200"


def test_an_answer_that_is_none() -> None:
    broken = said(GREEN, failed(200, "not JSON"))
    assert broken.sentence == "It answers 200, but the answer is no completion."
    assert broken.why == ["not JSON"]


# ---------------------------------------------------------------- errors


def test_requests_that_fail() -> None:
    error = said(GREEN, failed(500, "e" * 999), log("boom"))
    assert error.sentence == "It is up, but a small valid request fails: HTTP 500."
    assert error.why == [
        "e" * 300,
        "the API server reports /health 200, /v1/models 200",
        "first error in its log: boom",
    ]
    broken = said(GREEN, failed(None, "reset"))
    assert (
        broken.sentence
        == "It is up, but a small valid request fails: the connection broke."
    )
    cut = "no complete answer in 15.0 s in the body of a 200 answer"
    begun = said(GREEN, failed(None, cut, 15))
    assert begun.state is ServerState.FAILING
    assert begun.sentence.endswith("fails: its answer began, and did not end in time.")
    full = said(GREEN, failed(429, "f" * 999), *still())
    assert full.sentence == "It turns requests away: HTTP 429."
    assert full.why[0] == "f" * 300
    assert full.why[1].startswith("running 0 → 0")


# ---------------------------------------------------------------- silence


def test_the_observations_of_a_silent_server() -> None:
    silent = said(GREEN, *still(running=1), SILENCE, use(1.0))
    assert silent.why[:3] == [
        "a test request got no answer for 15.1 s",
        "the API server reports /health 200, /v1/models 200",
        "running 1 → 1, waiting 0 → 0, finished 16 → 16, prompt_tokens 3496 → 3496, "
        "generation_tokens 60 → 60",
    ]
    assert silent.why[3:] == ["EngineCore uses 1 % user + 0 % system of a core"]
    turned = said(GREEN, failed(400, "r" * 999))
    assert (
        turned.why[1]
        == f"the small request was refused ({'r' * 160}): it proves nothing"
    )
    assert turned.why[0].startswith("the API server reports")


def test_counters_that_move_while_a_request_waits() -> None:
    over = said(GREEN, *moving(waiting=2), SILENCE)
    assert over.state is ServerState.OVERLOADED
    assert over.sentence.startswith("It works, but gets more work than it can do")
    assert over.advice == [
        "more replicas or less traffic; a shorter queue limit fails faster"
    ]
    slow = said(GREEN, *moving(), SILENCE)
    assert slow.sentence == (
        "It works on something, but a small request is not answered in time."
    )
    assert said(GREEN, *moving(waiting=2)).state is ServerState.HEALTHY
    assert (
        said(GREEN, *moving()).sentence
        == "It works: its counters of finished work move."
    )
    unwell = said(http(503, 200), *moving())
    assert unwell.state is ServerState.FAILING
    assert (
        unwell.sentence
        == "Its counters move, but an endpoint says that it is not well."
    )


def test_what_cannot_be_told_has_its_words() -> None:
    unsure = said(GREEN, *still())
    assert unsure.sentence == (
        "Nothing wrong can be seen, but nothing shows either that it works: no request "
        "was answered and no counter moved."
    )
    unready = said(http(503, 200), *still(), log("boom"), failed(404, "HTTP 404"))
    assert unready.state is ServerState.NOT_READY
    assert (
        unready.sentence == "Its API server answers, and reports that it is not ready."
    )
    assert unready.why[-1] == "first error in its log: boom"
    closed = said(refused())
    assert (
        closed.sentence
        == "A process listens there, but connections from here are refused."
    )
    assert closed.advice == [
        "run mmrepro where its clients are, or in its network namespace"
    ]
    nothing = said(root_pid=None, processes=[], listening=None)
    assert nothing.sentence == "What was seen does not tell what it does."
    assert len(nothing.advice) == 1


@pytest.mark.parametrize(
    ("data", "suspect"),
    [
        ([GREEN, *still()], False),
        ([GREEN, *still(running=1)], True),
        ([GREEN, *still(waiting=1)], True),
        ([GREEN, *still(), use(98.0)], True),
        ([GREEN, *moving(running=1)], False),
        ([GREEN, metrics(running=1)], False),
        ([GREEN, use(98.0)], True),
        ([http(503, 200), *moving()], True),
        ([http(503, 200), answer()], False),
        ([GREEN, *still(running=1), failed(400, "no")], False),
        ([GREEN, *still(running=1), SILENCE], True),
        ([GREEN, *still(running=1), failed(500, "no")], True),
        ([], False),
    ],
)
def test_what_could_be_a_hang(data: list[AnyProbeData], suspect: bool) -> None:
    assert suspicious(evidence(*data), target()) is suspect


def test_only_a_suspect_whose_counters_stand_is_called_frozen_without_a_request() -> (
    None
):
    stands = said(GREEN, *still(running=1), idle(), use(1.0))
    assert stands.state is ServerState.NO_FAULT_SEEN
    assert "whether work reaches it was not tried" in stands.sentence
    unread = said(GREEN, use(98.0), idle())
    assert "nothing shows either that it works" in unread.sentence
    refused_one = said(GREEN, *still(running=1), failed(400, "no"), idle())
    assert "nothing shows either that it works" in refused_one.sentence


# ---------------------------------------------------------------- the log's words


def view(*data: AnyProbeData) -> DiagnosisView:
    return DiagnosisView(target(), evidence(*data))


def test_the_words_of_a_log_are_its_first_error() -> None:
    data = log("first", "second")
    assert last_words(view(data)) == ["first error in its log: first"]
    data.errors[0].time = "11-21 03:37:42"
    data.errors[0].text = "x" * 999
    assert last_words(view(data)) == [
        f"first error in its log at 11-21 03:37:42: {'x' * 200}"
    ]
    assert last_words(view(log(), log("later"))) == ["first error in its log: later"]
    assert last_words(view(log())) == []
    part = view(log("boom"))
    part.evidence.probes[0].status = ProbeStatus.TIMED_OUT
    assert last_words(part) == ["first error in its log: boom"]


def test_the_death_that_a_log_tells() -> None:
    data = died()
    data.matches["engine-died"] = [
        LogLine(number=1, time="T", text="y" * 999),
        LogLine(number=2, time="U", text="z"),
    ]
    assert core_died(view(data)) == f"its log says at T: {'y' * 200}"
    assert core_died(view(log())) == ""
    none = log()
    none.match_counts = {"engine-died": 0}
    assert core_died(view(none)) == ""


def test_at_once_is_dead_before_in_part_dead_before_stopped() -> None:
    def state(**facts: Any) -> ServerState | None:
        found = at_once(evidence(), target(**facts))
        return found.state if found else None

    assert state(states="ZZ") is ServerState.DEAD
    assert state(states="TZ") is ServerState.PART_DEAD
    assert state(states="TS") is ServerState.STOPPED
    assert state() is None
