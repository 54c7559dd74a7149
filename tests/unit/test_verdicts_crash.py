"""Engine deaths and the encoder-cache hang on made-up evidence, one change at a time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from made_up import drop, judge, out_of_time, probed, processes, request, run_facts, swap
from made_up_crash import (
    API,
    NOTHING,
    death_log,
    death_run,
    later,
    overflow_run,
    quiet_log,
    refused_run,
    scheduling,
    survived_run,
)
from mmrepro.failure.signature import Outcome, Truth
from mmrepro.probes.data import LogLine, LogsData, StacksData
from mmrepro.scenario import Scenario
from mmrepro.scenario.registry import load_scenario
from mmrepro.scenarios import encoder_cache_overflow as overflow
from mmrepro.scenarios.chunked_mm_prefill import placeholder as mask
from mmrepro.traffic.evidence import Evidence, RequestRecord

MET, NOT_MET, UNKNOWN = Truth.MET, Truth.NOT_MET, Truth.UNKNOWN
REPRODUCED, DIFFERENT = Outcome.REPRODUCED, Outcome.DIFFERENT_FAILURE
NOT_REPRODUCED, INCONCLUSIVE = Outcome.NOT_REPRODUCED, Outcome.INCONCLUSIVE

Change = Callable[[Evidence], object]
Case = tuple[str, Change, dict[str, Truth], Outcome]
PREFILL = load_scenario("chunked-mm-prefill")
GENERATED = PREFILL.with_variant("generated-placeholder")
LITERAL = PREFILL.with_variant("literal-placeholder")
OVERFLOW = load_scenario("encoder-cache-overflow")


def generating(seconds: float = 5.0) -> RequestRecord:
    record = request("trigger", mask.GENERATING, 200, text=mask.PLACEHOLDER * 86, stream=True)
    record.ttft_s = 0.1
    return later(record, 2, seconds)


def literal(evidence: Evidence) -> Evidence:
    for record in evidence.labelled(mask.LITERAL):
        record.prompt_head = f"hello {mask.PLACEHOLDER} world"
        record.images = evidence.requests[0].images
        record.prompt_tokens = (evidence.requests[0].prompt_tokens or 0) + len("hello  world") + 1
    return evidence


def dead() -> Evidence:
    return death_run(mask.IMAGE, generating())


def alive() -> Evidence:
    return survived_run(mask.IMAGE, generating())


def edit(label: str, **fields: object) -> Change:
    def change(evidence: Evidence) -> None:
        for record in evidence.labelled(label):
            for name, value in fields.items():
                setattr(record, name, value)

    return change


def without(label: str) -> Change:
    def change(evidence: Evidence) -> None:
        evidence.requests = [r for r in evidence.requests if not r.label.startswith(label)]

    return change


def both(*changes: Change) -> Change:
    return lambda evidence: [change(evidence) for change in changes]


def scheduled(**numbers: str) -> Change:
    return lambda e: swap(e, StacksData(samples=[scheduling(**NOTHING | numbers)] * 4))


def lives_on(evidence: Evidence) -> None:
    evidence.probes.append(probed(processes(user=1.0)))
    evidence.engine_exit = None


DEATHS: list[Case] = [
    (
        "the image is answered",
        both(edit(mask.IMAGE, status=200, error=""), lambda e: swap(e, quiet_log())),
        {"request-500": NOT_MET, "core-died": NOT_MET, "first-error": NOT_MET},
        DIFFERENT,
    ),
    ("never sent", without(mask.IMAGE), {"request-500": UNKNOWN}, INCONCLUSIVE),
    (
        "a later text is answered",
        edit("after: a new text", status=200, error=""),
        {"request-500": NOT_MET},
        DIFFERENT,
    ),
    ("nothing sent later", without("after:"), {"request-500": UNKNOWN}, INCONCLUSIVE),
    ("EngineCore lives on", lives_on, {"core-died": NOT_MET, "server-exits": NOT_MET}, DIFFERENT),
    (
        "nobody looked at the processes",
        lambda e: setattr(e, "engine_exit", None),
        {"core-died": UNKNOWN},
        INCONCLUSIVE,
    ),
    (
        "/health is green",
        edit("health after the failure", status=200, error=""),
        {"health-503": NOT_MET},
        DIFFERENT,
    ),
    (
        "/health was too late",
        edit("health after the failure", status=None),
        {"health-503": UNKNOWN},
        INCONCLUSIVE,
    ),
    ("/health not asked", without("health"), {"health-503": UNKNOWN}, INCONCLUSIVE),
    (
        "nobody was asked after the failure, and the server goes on",
        both(without("health"), lambda e: setattr(e, "engine_exit", None)),
        {"server-exits": UNKNOWN},
        INCONCLUSIVE,
    ),
    (
        "another error came first",
        lambda e: swap(e, death_log("IndexError: list index out of range")),
        {"first-error": NOT_MET},
        DIFFERENT,
    ),
    (
        "all errors are the API server's",
        lambda e: swap(e, death_log(process=API, echo=API)),
        {"first-error": NOT_MET},
        DIFFERENT,
    ),
    (
        "no EngineDeadError",
        lambda e: swap(e, death_log(dead=False)),
        {"core-died": NOT_MET, "first-error": MET},
        DIFFERENT,
    ),
    ("no log", lambda e: drop(e, "logs"), {"first-error": UNKNOWN}, INCONCLUSIVE),
    ("half a log", lambda e: out_of_time(e, "logs"), {"core-died": UNKNOWN}, INCONCLUSIVE),
    (
        "no placeholder was generated",
        edit(mask.GENERATING, text="hello"),
        {"stray-placeholder": NOT_MET},
        DIFFERENT,
    ),
    (
        "the text had ended before",
        edit(mask.GENERATING, latency_s=0.5),
        {"stray-placeholder": NOT_MET},
        DIFFERENT,
    ),
    ("no text request", without(mask.GENERATING), {"stray-placeholder": UNKNOWN}, INCONCLUSIVE),
]


HUNG: list[Case] = [
    (
        "answered",
        edit(overflow.BIG, timed_out=False, status=200, error="", latency_s=0.2),
        {"no-answer": NOT_MET},
        DIFFERENT,  # the others were not answered
    ),
    ("never sent", without(overflow.BIG), {"no-answer": UNKNOWN}, INCONCLUSIVE),
    (
        "EngineCore died",
        lambda e: setattr(e, "engine_exit", 0),
        {"core-alive": NOT_MET},
        DIFFERENT,
    ),
    ("no process seen", lambda e: drop(e, "processes"), {"core-alive": UNKNOWN}, INCONCLUSIVE),
    (
        "the control hangs too",
        edit(overflow.CONTROL, status=None, timed_out=True),
        {"larger-than-the-budget": UNKNOWN},
        INCONCLUSIVE,
    ),
    (
        "the control was another size",
        edit(overflow.CONTROL, prompt_tokens=231),
        {"larger-than-the-budget": UNKNOWN},
        INCONCLUSIVE,
    ),
    (
        "the budget is larger",
        scheduled(encoder_compute_budget="2048"),
        {"larger-than-the-budget": NOT_MET},
        DIFFERENT,
    ),
    (
        "tokens are scheduled",
        scheduled(total_num_scheduled_tokens="512"),
        {"schedules-nothing": NOT_MET},
        DIFFERENT,
    ),
    (
        "no locals",
        lambda e: swap(e, StacksData(samples=[scheduling()] * 4)),
        {"schedules-nothing": UNKNOWN, "larger-than-the-budget": UNKNOWN},
        INCONCLUSIVE,
    ),
    ("no stacks", lambda e: drop(e, "stacks"), {"schedules-nothing": UNKNOWN}, INCONCLUSIVE),
]


def cases(scenario: Scenario, run: Callable[[], Evidence], table: list[Case]) -> list[object]:
    return [pytest.param(scenario, run, *case[1:], id=case[0]) for case in table]


@pytest.mark.parametrize(
    ("scenario", "run", "change", "flipped", "outcome"),
    [
        *cases(GENERATED, dead, DEATHS),
        *cases(OVERFLOW, overflow_run, HUNG),
    ],
)
def test_one_change_turns_the_verdict(
    scenario: Scenario,
    run: Callable[[], Evidence],
    change: Change,
    flipped: dict[str, Truth],
    outcome: Outcome,
) -> None:
    evidence = run()
    change(evidence)
    got, truths, results = judge(scenario, evidence)
    assert {name: truths[name] for name in flipped} == flipped
    assert got is outcome
    assert all(r.observed for r in results)


@pytest.mark.parametrize(
    ("scenario", "evidence", "outcome"),
    [
        (GENERATED, dead(), REPRODUCED),
        (GENERATED, alive(), NOT_REPRODUCED),
        (LITERAL, literal(death_run(mask.LITERAL)), REPRODUCED),
        (LITERAL, literal(survived_run(mask.LITERAL)), NOT_REPRODUCED),
        (LITERAL, survived_run(mask.LITERAL), INCONCLUSIVE),  # the text was not in the prompt
        (OVERFLOW, overflow_run(), REPRODUCED),
        (OVERFLOW, refused_run(), NOT_REPRODUCED),
    ],
)
def test_whole_runs(scenario: Scenario, evidence: Evidence, outcome: Outcome) -> None:
    got, truths, _ = judge(scenario, evidence)
    assert got is outcome, truths


@pytest.mark.parametrize(
    ("seconds", "ttft"),
    [
        (0.5, 0.1),  # the text had ended before the image was sent
        (1.05, 0.1),  # it ended before the image was answered: prefilled with it or not?
        (5.0, 1.05),  # it began after the image was sent
        (5.0, None),  # it never began
    ],
)
def test_a_placeholder_that_was_not_surely_in_the_batch_proves_nothing(
    seconds: float, ttft: float | None
) -> None:
    text = generating(seconds)
    text.ttft_s = ttft
    assert judge(GENERATED, survived_run(mask.IMAGE, text))[0] is INCONCLUSIVE


def test_one_of_several_texts_is_enough() -> None:
    texts = (generating(0.5), generating())
    assert judge(GENERATED, survived_run(mask.IMAGE, *texts))[0] is NOT_REPRODUCED
    assert judge(GENERATED, death_run(mask.IMAGE, *texts))[0] is REPRODUCED


def test_every_required_condition_can_fail_and_can_be_unknown() -> None:
    for scenario, run, table in (
        (GENERATED, dead, DEATHS),
        (OVERFLOW, overflow_run, HUNG),
    ):
        seen: dict[str, set[Truth]] = {}
        for change in [lambda e: None, *(case[1] for case in table)]:
            evidence = run()
            change(evidence)
            for result in judge(scenario, evidence)[2]:
                if result.required:
                    seen.setdefault(result.id, set()).add(result.truth)
        assert {name: truths for name, truths in seen.items() if truths != set(Truth)} == {}


def test_the_claims_about_the_way_in_are_refuted_only_by_a_crash() -> None:
    def status(evidence: Evidence) -> dict[str, str]:
        claims = GENERATED.claim_results(evidence, run_facts(GENERATED))
        return {c.id: c.status.value for c in claims}

    crashed, survived = status(dead()), status(alive())
    assert crashed.pop("assertion") == "confirmed"
    assert crashed.pop("reporters-crash") == "not-tested"
    assert crashed.pop("kv-cache-scatter") == "not-tested"  # this log quotes no line of code
    assert set(crashed.values()) == {"refuted"}
    assert set(survived.values()) == {"not-tested"}
    told = dead()
    for _, data in told.results(LogsData, "check"):
        line = LogLine(number=1, text="inputs_embeds.masked_scatter_(is_multimodal.unsqueeze(-1),")
        data.matches["scatter-line"], data.match_counts["scatter-line"] = [line], 1
    assert status(told)["kv-cache-scatter"] == "refuted"
