"""What evidence hands out, deadlines and cells at their edges: each comparison from
both sides."""

from typing import Any

import pytest
from made_up import (
    GHOST,
    OTHER,
    at,
    http,
    logs,
    metrics,
    probed,
    processes,
    request,
    stacks,
    thread,
)
from mmrepro.campaign.ablate.search import decided, state_of_cell
from mmrepro.failure.documents.searches import CellState
from mmrepro.failure.signature import checks, comparison, views
from mmrepro.failure.signature.decide import all_met, guarded
from mmrepro.probes.base import ProbeStatus
from mmrepro.probes.data import LogsData, MetricSample, MetricsData, StacksData
from mmrepro.runs.judge import Deadlines, derive, of_gate
from mmrepro.scenario import Finding, Truth, minivllm, vllm
from mmrepro.traffic.evidence import Evidence, Missing, ReproducerResult, RequestRecord
from mmrepro.traffic.evidence.model import files_read
from vllm_checks import finding_of

MET, NOT_MET, UNKNOWN = Truth.MET, Truth.NOT_MET, Truth.UNKNOWN


# ------------------------------------------------------------------ deadlines


def test_the_deadline_in_seconds() -> None:
    assert derive([9.0, 0.1]).answer_s == derive([0.0, 0.2]).answer_s
    assert (derive([9.0, 0.2]).answer_s, derive([9.0, 0.2]).suspect_s) == (6.0, 2.4)
    assert (derive([0.0, 0.3]).answer_s, derive([0.0, 0.3]).suspect_s) == (9.0, 3.6)
    assert (derive([0.0, 4.0]).answer_s, derive([0.0, 4.1]).answer_s) == (120.0, 120.0)
    assert (derive([0.0, 0.33371]).answer_s, derive([0.0, 0.33371]).suspect_s) == (
        10.01,
        4.0,
    )
    assert (derive([0.0, 0.3347]).answer_s, derive([0.0, 0.3347]).suspect_s) == (
        10.04,
        4.02,
    )


def test_a_gate_that_failed_leaves_the_deadlines() -> None:
    before = Deadlines(7.0, 3.0, "as before")
    facts, kept = of_gate(Finding.of(True, "well"), [1.0, 0.3], before)
    assert (facts.passed, facts.deadline_s, kept.answer_s) == (True, 9.0, 9.0)
    assert facts.deadline_rule == kept.rule != ""
    for finding in (Finding.of(False, "ill"), Finding.unknown("?")):
        facts, kept = of_gate(finding, [1.0, 0.3], before)
        assert (facts.passed, facts.deadline_s, kept) == (False, None, before)
        assert facts.latencies_s == [1.0, 0.3]


# ------------------------------------------------------------------ requests


@pytest.mark.parametrize(
    ("status", "timed_out", "error", "answered"),
    [
        (200, False, "", True),
        (201, False, "", False),
        (None, False, "", False),
        (200, True, "", False),
        (200, False, "cut", False),
    ],
)
def test_answered_is_a_whole_completion(
    status: int | None, timed_out: bool, error: str, answered: bool
) -> None:
    more = {"timed_out": timed_out, "error": error}
    assert request("trigger", "x", status, **more).answered is answered


def test_a_record_claims_nothing_by_default() -> None:
    plain = RequestRecord(id=1, phase="gate", label="x", sent=at(0), deadline_s=1.0)
    assert (plain.latency_s, plain.prompt_chars, plain.stream, plain.timed_out) == (
        0,
        0,
        False,
        False,
    )
    assert not plain.answered
    assert plain.reply == "no answer"
    assert (
        request("gate", "x", None, timed_out=True, latency_s=3.0).reply
        == "no answer in 3.0 s"
    )
    assert (
        request("gate", "x", 500, error='{"message": "why \\"so\\""}').reply
        == '500 why \\"so\\"'
    )
    assert request("gate", "x", 500, error="why").reply == "500 why"


def test_of_another_phase_and_label_is_another_request() -> None:
    evidence = Evidence(requests=[request("gate", "a"), request("trigger", "ab")])
    assert [r.label for r in evidence.requests_in("trigger", "check")] == ["ab"]
    assert [r.label for r in evidence.labelled("a")] == ["a"]


def test_a_pair_is_of_the_trigger_and_the_control_server() -> None:
    mine, right = request("trigger", "x", text="1"), request("control", "x", text="2")
    pair = views.Requests(Evidence(requests=[mine, right])).pair("x")
    assert [r.text for r in pair] == ["1", "2"]
    for one in (mine, right):
        with pytest.raises(Missing):
            views.Requests(Evidence(requests=[one])).pair("x")
    for label, status in (("y", 200), ("x", 500)):
        with pytest.raises(Missing):
            views.Requests(
                Evidence(requests=[mine, request("control", label, status)])
            ).pair("x")


def test_first_last_and_failed() -> None:
    failed = request("trigger", "x", 500, error="the clock stands")
    seen = views.Requests(Evidence(requests=[failed, request("trigger", "x y")]))
    assert (seen.first("x").status, seen.last("x").status) == (500, 200)
    three = views.Requests(
        Evidence(requests=[failed, failed, request("trigger", "x y")])
    )
    assert three.last("x").status == 200
    assert seen.failed("x", "clock").truth is MET
    assert seen.failed("x", "fan").truth is NOT_MET
    assert seen.failed("x y", "").truth is NOT_MET


# -------------------------------------------------------------- what evidence hands out


def test_the_files_behind_a_finding() -> None:
    data = probed(stacks(thread(("f", "f.py"))))
    data.raw = ["1", "2", "3", "4"]
    log = probed(logs(GHOST))
    log.raw = []
    run = ReproducerResult(name="r.py", exit_code=0, seconds=1)
    assert not run.forked
    evidence = Evidence(probes=[data, log, data], reproducers=[run])
    with files_read() as outer:
        with files_read() as inner:
            assert list(evidence.results(StacksData))
            assert list(evidence.results(LogsData))
        evidence.reproducer("r.py")
        evidence.reproducer("other.py")
    assert inner == ["1", "2", "3", "engine.log"]
    assert outer == ["1", "2", "3", "engine.log", "r.py.json"]


def test_results_are_whole_and_of_this_server() -> None:
    whole, late, other = (probed(metrics()) for _ in range(3))
    late.status, other.phase = ProbeStatus.TIMED_OUT, "control"
    evidence = Evidence(probes=[whole, late, other])

    def count(*phases: Any, partial: bool = False) -> int:
        return len(list(evidence.results(type(whole.data), *phases, partial=partial)))

    assert (count(), count(partial=True), count("control"), count("gate")) == (
        1,
        2,
        1,
        0,
    )


def test_why_it_is_missing_is_told_of_the_phase() -> None:
    good, bad = probed(metrics(), "gate"), probed(metrics())
    bad.status, bad.reason, bad.data = ProbeStatus.UNAVAILABLE, "refused", None
    evidence = Evidence(probes=[good, bad])
    assert (
        evidence.why_missing("metrics", "gate") == "probe metrics ran but does not tell"
    )
    assert (
        evidence.why_missing("metrics", "check")
        == "probe metrics: unavailable: refused"
    )
    assert evidence.why_missing("metrics") == "probe metrics: unavailable: refused"
    assert evidence.why_missing("http", "check") == "probe http was not run"


def test_a_log_of_which_only_the_end_was_read_lacks_nothing_for_sure() -> None:
    def count(*skipped: int, found: int = 0) -> int | None:
        found_logs = []
        for number, passed in enumerate(skipped):
            data = logs(*[GHOST] * found)
            data.file, data.skipped_bytes = f"{number}.log", passed
            found_logs.append(probed(data))
        return views.log_count(Evidence(probes=found_logs), "cached-item-assertion")

    assert (count(0), count(1), count(0, 1), count(1, 0)) == (0, None, None, None)
    assert (count(1, found=1), count(0, 9, found=2)) == (1, 4)


def test_lines_are_those_of_the_last_reading_of_each_log() -> None:
    first, then, second = logs(GHOST), logs(GHOST, OTHER), logs(OTHER)
    second.file = "second.log"
    evidence = Evidence(probes=[probed(first), probed(second), probed(then)])
    seen = views.Logs(evidence)
    assert seen.count("cached-item-assertion") == 3
    assert [OTHER in line.text for line in seen.lines("cached-item-assertion")] == [
        False,
        True,
        True,
    ]
    found = seen.search("cached-item-assertion", r"mm_hash='(\w{4})")
    assert [match[1] for match in found] == [GHOST[:4], OTHER[:4], OTHER[:4]]
    assert not seen.search("cached-item-assertion", "nothing of it")


def test_two_readings_of_the_check_unless_told_otherwise() -> None:
    gate, once = probed(metrics(), "gate"), probed(metrics())
    names = ("vllm:num_requests_running",)
    seen = views.Metrics(Evidence(probes=[gate, once]))
    assert seen.readings(names, least=1) == [0.0]
    assert seen.readings(names, "gate", "check") == [0.0, 0.0]
    with pytest.raises(Missing, match="1 reading of"):
        seen.readings(names)
    of = views.Processes(
        Evidence(probes=[probed(processes(1.0), "gate"), probed(processes(2.0))])
    )
    assert [use.user_pct for use in of.of("EngineCore")] == [2.0]
    assert [use.user_pct for use in of.of("EngineCore", "gate")] == [1.0]


def test_without_a_reading_that_is_what_is_missing() -> None:
    sent = [request("gate", "a")]
    evidence = Evidence(requests=sent, probes=[probed(logs(added=1))])
    for check in (checks.added_but_unfinished, vllm.cache_is_used, vllm.cache_unused):
        assert finding_of(check, evidence).observed.startswith("0 readings of vllm:")
    with pytest.raises(Missing, match="0 readings of minivllm:x"):
        minivllm.told(views.Metrics(Evidence()), "x")


def test_a_metric_that_is_not_there_is_answered_with_those_that_are() -> None:
    names = ["minivllm:kv_cache_blocks", "minivllm:running"]
    samples = [MetricSample(name=name, labels={}, value=1.0) for name in names]
    data = MetricsData(url="http://x", samples=samples)
    metrics = views.Metrics(Evidence(probes=[probed(data)]))
    with pytest.raises(Missing) as raised:
        metrics.readings(["kv_cache_blocks"])
    assert str(raised.value) == (
        "the server has no metric kv_cache_blocks; it has minivllm:kv_cache_blocks, "
        "minivllm:running"
    )


@pytest.mark.parametrize("value", [True, False, "3", None])
def test_a_measure_is_a_number(value: Any) -> None:
    with pytest.raises(Missing):
        views.Measured(Evidence(facts={"x": value})).number("x")
    assert views.Measured(Evidence(facts={"x": 0})).number("x") == 0
    assert views.Measured(Evidence(facts={"x": 0.5})).number("x") == 0.5


@pytest.mark.parametrize("code", [1, -9, None])
def test_a_reproducer_that_failed_tells_nothing(code: int | None) -> None:
    run = ReproducerResult(
        name="r.py", exit_code=code, seconds=1, facts={"yes": True, "n": 1}
    )
    with pytest.raises(Missing, match=r"r\.py failed"):
        views.Reproducers(Evidence(reproducers=[run])).facts("r.py")
    run.exit_code = 0
    seen = views.Reproducers(Evidence(reproducers=[run]))
    assert seen.truth("r.py", "yes") is True
    assert seen.number("r.py", "n") == 1
    run.facts |= {"hash": "ff", "no hash": "xf"}
    assert seen.hash("r.py", "hash") == 255
    for ask, fact in ((seen.number, "yes"), (seen.hash, "n"), (seen.hash, "no hash")):
        with pytest.raises(Missing):
            ask("r.py", fact)
    for fact in ("n", "no"):
        with pytest.raises(Missing, match="did not say"):
            seen.truth("r.py", fact)


def test_an_observer_has_only_what_is_there_to_see() -> None:
    seen = (views.Logs, views.Metrics, views.Processes)
    own = (
        views.Requests,
        views.Measured,
        views.Reproducers,
        comparison.ComparedAnswers,
    )
    assert [v.observable for v in (*seen, *own)] == [True] * 3 + [False] * 4


# --------------------------------------------------------------- all of them, and cells


def test_all_met_is_of_something() -> None:
    met, not_met, unknown = (
        Finding.of(True, "a"),
        Finding.of(False, "b"),
        Finding.unknown("c"),
    )
    assert all_met(met, met) == Finding.of(True, "a; a")
    assert all_met(met, not_met, unknown) is not_met
    assert all_met(met, unknown, not_met) is unknown
    assert all_met().truth is UNKNOWN


def test_a_finding_of_its_own_files_keeps_them() -> None:
    evidence = Evidence(probes=[probed(http(200, 200))])
    read = finding_of(checks.endpoints_green, evidence)
    assert read.evidence == ("check-http.raw",)
    assert guarded(lambda _: Finding.of(True, "x", "own"), evidence).evidence == (
        "own",
    )


@pytest.mark.parametrize(
    ("states", "repeat", "threshold", "done"),
    [
        ("C", 2, 1, False),
        ("CC", 2, 1, True),
        ("F", 2, 1, True),
        ("F", 3, 3, False),
        ("FC", 3, 3, True),
        ("CC", 3, 3, False),
        ("FC", 4, 2, False),
        ("FCC", 4, 3, True),
        ("", 1, 1, False),
    ],
)
def test_when_a_cell_is_decided(
    states: str, repeat: int, threshold: int, done: bool
) -> None:
    made = [{"C": CellState.CURED, "F": CellState.FAILS}[state] for state in states]
    assert decided(made, repeat, threshold) is done


def test_what_a_cell_says() -> None:
    assert state_of_cell([], 3, 1)[1] == "no run, of 3"
    assert state_of_cell([CellState.LOST], 3, 1)[1] == "1 × lost, of 3"
    assert (
        state_of_cell([CellState.LOST, CellState.CURED], 2, 1)[0] is CellState.UNDECIDED
    )
