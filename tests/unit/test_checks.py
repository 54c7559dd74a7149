"""The shared checks at their edges; what they mean for verdicts is in
test_verdicts_*.py."""

import pytest
from made_up import (
    GHOST,
    drop,
    hang_run,
    http,
    hung,
    logs,
    metrics,
    out_of_time,
    probed,
    processes,
    request,
    swap,
)
from mmrepro.failure.signature import Truth, checks, views
from mmrepro.probes.data import (
    HttpData,
    InferenceData,
    MetricsData,
    ProcessesData,
    SyscallsData,
    ThreadUse,
)
from mmrepro.traffic.evidence import Evidence
from vllm_checks import finding_of

MET, NOT_MET, UNKNOWN = Truth.MET, Truth.NOT_MET, Truth.UNKNOWN
FINISHED = ("vllm:request_success_total",)


def test_partial_results_are_shown_but_never_judged() -> None:
    evidence = hang_run()
    out_of_time(evidence, "http")
    assert list(evidence.results(HttpData, "check")) == []
    ((_, data),) = evidence.results(HttpData, "check", partial=True)
    assert [a.status for a in data.answers] == [200, 200]


def test_why_evidence_is_missing() -> None:
    evidence = hang_run()
    assert evidence.why_missing("gpu", "check") == "probe gpu was not run"
    assert (
        evidence.why_missing("stacks", "check") == "probe stacks ran but does not tell"
    )
    drop(evidence, "stacks", "ptrace is not permitted")
    assert "stacks: unavailable: ptrace is not permitted" in evidence.why_missing(
        "stacks"
    )


def test_labels_are_matched_by_whole_words() -> None:
    evidence = Evidence(requests=[request("trigger", f"fill {i}") for i in (1, 10)])
    assert [r.label for r in evidence.labelled("fill 1")] == ["fill 1"]
    assert len(evidence.labelled("fill")) == 2


def test_unanswered_names_the_request_and_the_usual_latency() -> None:
    found = finding_of(checks.unanswered, hang_run())
    assert found.truth is MET
    assert (
        found.observed
        == "fill 11: no answer in 13.0 s, against 0.10 s at most in the gate"
    )


def test_a_hang_in_the_gate_is_no_hang_of_the_trigger() -> None:
    late = hung("gate: image 1")
    late.phase = "gate"
    assert finding_of(checks.unanswered, Evidence(requests=[late])).truth is UNKNOWN
    answered = request("trigger", "fill 1")
    assert (
        finding_of(checks.unanswered, Evidence(requests=[late, answered])).truth
        is NOT_MET
    )


def test_an_error_is_an_answer() -> None:
    failed = request("trigger", "fill 1", None, error="ConnectError")
    assert finding_of(checks.unanswered, Evidence(requests=[failed])).truth is NOT_MET


@pytest.mark.parametrize(
    ("status", "seconds", "truth"),
    [(None, 13.0, MET), (None, 5.0, NOT_MET), (500, 13.0, NOT_MET)],
)
def test_a_new_request(status: int | None, seconds: float, truth: Truth) -> None:
    data = InferenceData(
        answered=False, status=status, seconds=seconds, deadline_s=13.0
    )
    assert (
        finding_of(checks.probe_unanswered, Evidence(probes=[probed(data)])).truth
        is truth
    )


def test_no_endpoint_is_not_a_green_one() -> None:
    nothing = HttpData(base_url="", answers=[])
    assert (
        finding_of(checks.endpoints_green, Evidence(probes=[probed(nothing)])).truth
        is UNKNOWN
    )


def test_endpoints_before_the_check_do_not_count() -> None:
    assert (
        finding_of(
            checks.endpoints_green, Evidence(probes=[probed(http(200, 200), "gate")])
        ).truth
        is UNKNOWN
    )


def test_metrics_are_read_under_the_first_name_that_is_known() -> None:
    evidence = Evidence(
        probes=[probed(metrics(finished=3)), probed(metrics(finished=4))]
    )
    assert views.metric_readings(evidence, ("new_name", *FINISHED), "check") == [3, 4]
    assert views.metric_readings(evidence, ("unknown",), "check") == []


def test_a_metric_is_summed_over_engines() -> None:
    one = metrics(finished=3)
    two = MetricsData(url="", samples=one.samples * 2)
    assert two.total(FINISHED[0]) == 6


def test_no_counter_is_no_standstill() -> None:
    assert finding_of(checks.no_progress, Evidence()).truth is UNKNOWN
    evidence = hang_run()
    for _, data in evidence.results(MetricsData):
        data.samples = [s for s in data.samples if s.name not in FINISHED]
    assert finding_of(checks.no_progress, evidence).truth is UNKNOWN
    assert finding_of(checks.tokens_stand_still, evidence).truth is MET


def test_failed_requests_alone_are_not_unfinished_ones() -> None:
    evidence = hang_run()
    assert finding_of(checks.added_but_unfinished, evidence).truth is MET
    swap(evidence, logs(GHOST, added=17))
    found = finding_of(checks.added_but_unfinished, evidence)
    assert found.truth is UNKNOWN
    assert "it may be those" in found.observed


@pytest.mark.parametrize(
    ("before", "now", "truth"),
    [
        (0.0, 97.0, MET),
        (checks.IDLE_PCT, checks.BUSY_PCT, MET),
        (0.0, checks.BUSY_PCT - 1, NOT_MET),
        (checks.IDLE_PCT + 1, 97.0, NOT_MET),
        (None, 97.0, UNKNOWN),
        (None, 5.0, NOT_MET),
        (0.0, None, UNKNOWN),
    ],
)
def test_a_core_that_burns_was_idle_before(
    before: float | None, now: float | None, truth: Truth
) -> None:
    evidence = Evidence()
    if before is not None:
        evidence.probes.append(probed(processes(before), "gate"))
    if now is not None:
        evidence.probes.append(probed(processes(now)))
    assert finding_of(checks.core_burns_cpu, evidence).truth is truth


@pytest.mark.parametrize(
    ("user", "system", "queued", "truth"),
    [
        (20.0, 0.0, 70.0, MET),  # seen with eight other programs on two cores
        (20.0, 0.0, 59.0, UNKNOWN),
        (20.0, 6.0, 70.0, UNKNOWN),
        (9.0, 0.0, 90.0, MET),  # seen of a nice server beside two loops
        (4.9, 0.0, 90.0, UNKNOWN),
        (20.0, 0.0, 49.0, NOT_MET),
        (2.0, 0.0, 0.0, NOT_MET),
    ],
)
def test_a_core_that_burns_on_an_overloaded_machine(
    user: float, system: float, queued: float, truth: Truth
) -> None:
    now = processes(user, system)
    now.processes[0].queued_pct = queued
    evidence = Evidence(probes=[probed(processes(0.0), "gate"), probed(now)])
    assert finding_of(checks.core_burns_cpu, evidence).truth is truth


def test_the_queue_of_the_busiest_thread_counts_where_it_was_read() -> None:
    now = processes(20.0)
    now.processes[0].queued_pct = 300.0  # of thirty threads
    evidence = Evidence(probes=[probed(processes(0.0), "gate"), probed(now)])
    assert finding_of(checks.core_burns_cpu, evidence).truth is MET
    now.processes[0].busiest = [
        ThreadUse(
            tid=1, name="one", state="S", user_pct=20.0, system_pct=0.0, queued_pct=10.0
        )
    ]
    assert finding_of(checks.core_burns_cpu, evidence).truth is UNKNOWN
    waiting = now.processes[0].busiest[0].model_copy(update={"queued_pct": 70.0})
    now.processes[0].busiest.append(waiting)
    assert finding_of(checks.core_burns_cpu, evidence).truth is UNKNOWN
    now.processes[0].busiest.reverse()
    assert finding_of(checks.core_burns_cpu, evidence).truth is MET


@pytest.mark.parametrize("verdict", ["busy-in-kernel", "blocked", "working"])
def test_other_uses_of_a_core_are_no_spin(verdict: str) -> None:
    evidence = hang_run()
    for _, data in evidence.results(SyscallsData, "check"):
        data.verdict = verdict  # type: ignore[assignment]
    assert finding_of(checks.spins_in_user_space, evidence).truth is NOT_MET


def test_a_pattern_that_was_not_searched_has_no_count() -> None:
    evidence = hang_run()
    assert views.log_count(evidence, "cached-item-assertion") == 1
    assert views.log_count(evidence, "cache-drift") == 0
    assert views.log_count(evidence, "not searched") is None
    assert views.log_count(Evidence(), "cached-item-assertion") is None


@pytest.mark.parametrize(
    ("code", "state", "truth"),
    [
        (None, "S", MET),
        (None, "", UNKNOWN),  # nobody looked
        (None, "Z", UNKNOWN),
        (None, "X", UNKNOWN),
        (0, "S", NOT_MET),
        (-9, "", NOT_MET),
    ],
)
def test_the_engine_lives(code: int | None, state: str, truth: Truth) -> None:
    evidence = Evidence(engine_exit=code)
    if state:
        evidence.probes.append(probed(processes(user=0.0)))
        for _, data in evidence.results(ProcessesData):
            data.processes[0].state = state
    assert finding_of(checks.engine_alive, evidence).truth is truth
