"""What variants of one scenario share: words with attributes in them, methods by their
names."""

import pytest
from made_up import at, http, probed, request, run_facts
from mmrepro.base.records import ClaimStatus
from mmrepro.failure.signature import evaluate
from mmrepro.failure.signature.checks import stays_in
from mmrepro.failure.signature.decide import guarded
from mmrepro.failure.signature.live_server import CORE_ALIVE
from mmrepro.probes.data import (
    Frame,
    LogLine,
    LogsData,
    StackSample,
    StacksData,
    ThreadStack,
)
from mmrepro.scenario import (
    Drive,
    Finding,
    LiveFacts,
    Logs,
    Requests,
    RunFacts,
    Scenario,
    Truth,
    cause,
    claim,
    endpoints_green,
    sglang,
    symptom,
)
from mmrepro.scenario.definition import bind
from mmrepro.scenario.minivllm import place
from mmrepro.scenario.more import (
    Fidelity,
    answered_alike,
    as_by_control,
    in_log,
    not_logged,
)
from mmrepro.scenario.parts import Check
from mmrepro.scenario.registry import load_scenario
from mmrepro.traffic.evidence import Evidence

MET, NOT_MET, UNKNOWN = Truth.MET, Truth.NOT_MET, Truth.UNKNOWN


def is_live(facts: RunFacts) -> Finding:
    return Finding.of(facts.fidelity is Fidelity.LIVE, "as the run is")


class Family(Scenario):
    """It fails.

    What: A request fails.

    Why: For a reason.
    """

    name, variant, release, affected = "family", "first", "1", ">0"
    reason = "the clock"
    log_patterns = {"error": "clock", "other": "other"}

    async def trigger(self, drive: Drive) -> None: ...

    def image_fails(self, requests: Requests) -> Finding:
        return requests.failed("image", self.reason)

    def logged(self, logs: Logs) -> Finding:
        return Finding.of(logs.count("error") > 0, "the log was read")

    symptoms = (
        symptom("an image fails with {reason} and {nothing of the kind}", image_fails),
        endpoints_green(live=False),
    )
    causes = (
        in_log("the log tells", "error", "other", live="optional"),
        cause("{reason} is in the log", logged),
    )
    works_after = (image_fails,)
    claims = (
        claim("cause", "it is {reason}", "{name}", by="cause"),
        claim(
            "again",
            "…",
            by=Scenario.healthy_after,
            given=is_live,
            otherwise="run {variant}",
        ),
    )


class Second(Family):
    variant = "second"
    reason = "the fan"

    def image_fails(self, requests: Requests) -> Finding:
        return Finding.of(True, "it has its own way")


def log(error: int, other: int, text: str = "the clock: 3 of 4") -> LogsData:
    return LogsData(
        file="engine.log",
        bytes_read=9,
        lines=9,
        matches={"error": [LogLine(number=1, text=text, time="04:05")] * error},
        match_counts={"error": error, "other": other},
    )


def seen(error: int = 1, other: int = 1) -> Evidence:
    failed = request(
        "trigger", "image", 500, error='{"error": {"message": "the clock"}}'
    )
    return Evidence(
        requests=[failed], probes=[probed(http(200, 200)), probed(log(error, other))]
    )


def test_words_name_attributes() -> None:
    statements = [c.statement for c in Second().conditions(run_facts(Second()))]
    assert statements[0] == "an image fails with the fan and {nothing of the kind}"
    assert statements[-1] == "the fan is in the log"
    told = Second().claim_results(Evidence(), run_facts(Second()))
    assert [(c.text, c.source) for c in told] == [
        ("it is the fan", "family"),
        ("…", ""),
    ]
    assert told[1].observed == "run second: as the run is"
    unsaid = type("Unsaid", (Second,), {"rows": ()})()
    assert unsaid.symptom_rows(seen(), run_facts(unsaid))[0].check == statements[0]


def test_a_function_of_the_class_is_its_method_and_may_be_overridden() -> None:
    for scenario, evidence, truth in (
        (Family(), seen(), MET),
        (Family(), Evidence(), UNKNOWN),
        (Second(), Evidence(), MET),
    ):
        facts = run_facts(scenario)
        first = evaluate(scenario.conditions(facts), evidence)[0]
        assert (first.id, first.truth) == ("image-fails", truth)
        assert scenario.healthy_after(evidence, facts).truth is truth


def test_what_an_observer_has_of_them() -> None:
    found = Family().live_conditions(LiveFacts("vllm", "1", (), 1.0))
    assert [(c.id, c.required) for c in found] == [("error", False), ("logged", True)]


@pytest.mark.parametrize(
    ("error", "other", "status"),
    [
        (1, 1, ClaimStatus.CONFIRMED),
        (1, 0, ClaimStatus.REFUTED),
        (0, 1, ClaimStatus.REFUTED),
    ],
)
def test_a_claim_by_the_whole_cause(
    error: int, other: int, status: ClaimStatus
) -> None:
    told = Family().claim_results(seen(error, other), run_facts(Family()))
    assert told[0].status is status
    assert f"error: {error} × error, {other} × other" in told[0].observed
    assert "logged: the log was read" in told[0].observed
    assert (
        Family().claim_results(Evidence(), run_facts(Family()))[0].status
        == "not-tested"
    )


def judged(check: Check, evidence: Evidence) -> Truth:
    return guarded(bind(check, Family(), run_facts(Family())), evidence).truth


def test_lines_of_the_log() -> None:
    assert judged(not_logged("other"), seen(1, 0)) is MET
    assert judged(not_logged("other"), seen(1, 1)) is NOT_MET
    assert judged(not_logged("other"), Evidence()) is UNKNOWN
    (match,) = Logs(seen()).search("error", r"(\d) of (\d)")
    assert match.groups() == ("3", "4")
    assert Logs(seen()).search("error", "fan") == []


def answers(mine: str, right: str, status: int | None = 200) -> Evidence:
    return Evidence(
        requests=[
            request("control", "A", text=right),
            request("trigger", "A", status, text=mine),
            request("trigger", "A again", text=right),
        ]
    )


@pytest.mark.parametrize(
    ("evidence", "by_control", "alike"),
    [
        (answers("x", "x"), MET, MET),
        (answers("y", "x"), NOT_MET, NOT_MET),
        (answers("x", "x", 500), UNKNOWN, NOT_MET),
        (Evidence(), UNKNOWN, UNKNOWN),
    ],
)
def test_answers_are_compared(
    evidence: Evidence, by_control: Truth, alike: Truth
) -> None:
    assert judged(as_by_control("A"), evidence) is by_control
    assert judged(answered_alike("A"), evidence) is alike


def test_a_reply_in_words() -> None:
    sent = seen().requests[0]
    assert sent.reply == "500 the clock"
    sent.error = "no JSON"
    assert sent.reply == "500 no JSON"
    sent.timed_out = True
    assert sent.reply == "no answer in 0.1 s"
    assert request("gate", "x").reply == "200"


def test_places_of_a_traceback() -> None:
    assert place("images.py:warm_up") == r'images\.py", line \d+, in warm_up'
    assert place("images.py") == r'images\.py", line \d+$'


def stacks(*samples: tuple[tuple[str, ...], bool]) -> StacksData:
    """Of each sample the functions, innermost first, and whether the thread runs."""
    threads = [
        ThreadStack(
            tid=1,
            name="t",
            active=active,
            owns_gil=active,
            frames=[Frame(function=f"C.{name}", file="x.py", line=1) for name in names],
        )
        for names, active in samples
    ]
    return StacksData(
        samples=[
            StackSample(pid=1, taken=at(1), blocking=False, threads=[t])
            for t in threads
        ]
    )


IN_POP, IN_PUT, IDLE = ("pop", "put", "loop"), ("put", "loop"), ("wait", "loop")


@pytest.mark.parametrize(
    ("samples", "truth"),
    [
        ([(IN_POP, True), (IN_PUT, False), (IN_PUT, False)], MET),
        ([(IN_POP, False), (IN_PUT, False), (IN_PUT, False)], NOT_MET),
        ([(IN_PUT, True)] * 9, UNKNOWN),
        ([(IN_PUT, True)] * 10, NOT_MET),
        ([(IN_POP, True), (IN_PUT, True), (IDLE, True)], NOT_MET),
        ([(IN_POP, True)] * 2, UNKNOWN),
        ([(("other",), True)] * 4, UNKNOWN),
    ],
)
def test_a_thread_that_stays_in_a_loop(
    samples: list[tuple[tuple[str, ...], bool]], truth: Truth
) -> None:
    assert stays_in(stacks(*samples), "loop", ("put", "loop"), "pop").truth is truth


@pytest.mark.parametrize(
    ("looks", "lives", "truth"),
    [
        ([(200, 200), (None, None)], None, MET),  # the last look counts
        ([(None, None), (200, 200)], None, NOT_MET),
        ([], None, UNKNOWN),
        ([], False, MET),
        ([(None, None)], True, NOT_MET),
        ([(200, 200)], False, MET),
    ],
)
def test_the_end_of_sglang_as_an_observer_sees_it(
    looks: list[tuple[int | None, ...]], lives: bool | None, truth: Truth
) -> None:
    line = LogLine(number=1, text="Scheduler hit an exception: Traceback")
    ended = LogsData(
        file="engine.log",
        bytes_read=9,
        lines=1,
        matches={sglang.ENDED: [line]},
        match_counts={sglang.ENDED: 1},
    )
    evidence = Evidence(probes=[probed(ended), *(probed(http(*one)) for one in looks)])
    if lives is not None:
        evidence.facts[CORE_ALIVE] = lives
    kills = load_scenario("top-logprobs-kill")
    assert guarded(bind(sglang.lost, kills, run_facts(kills)), evidence).truth is truth
