"""Engine deaths and the encoder-cache hang on made-up evidence, one change at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from made_up import drop, judge, out_of_time, probed, processes, request, run_facts, swap
from made_up_crash import (
    API,
    NOTHING,
    death_log,
    death_run,
    later,
    ordered_run,
    overflow_run,
    quiet_log,
    race_run,
    refused_run,
    scheduling,
    survived_run,
    with_stream,
)
from mmrepro.evidence import Evidence, RequestRecord
from mmrepro.incident.ablation import Ablation, FactorClass, FactorResult
from mmrepro.probes.data import StacksData
from mmrepro.scenario import Scenario
from mmrepro.scenario.registry import load_scenario
from mmrepro.scenarios import encoder_cache_overflow as overflow
from mmrepro.scenarios.chunked_mm_prefill import async_race as race_module, placeholder as mask
from mmrepro.signature import Outcome, Truth

MET, NOT_MET, UNKNOWN = Truth.MET, Truth.NOT_MET, Truth.UNKNOWN
REPRODUCED, DIFFERENT = Outcome.REPRODUCED, Outcome.DIFFERENT_FAILURE
NOT_REPRODUCED, INCONCLUSIVE = Outcome.NOT_REPRODUCED, Outcome.INCONCLUSIVE

Change = Callable[[Evidence], object]
Case = tuple[str, Change, dict[str, Truth], Outcome]
PREFILL = load_scenario("chunked-mm-prefill")
GENERATED = PREFILL.with_variant("generated-placeholder")
LITERAL = PREFILL.with_variant("literal-placeholder")
OVERFLOW = load_scenario("encoder-cache-overflow")
RACE = PREFILL.with_variant("async-race")
RACE_LABELS = (race_module.SILENT, race_module.FIRST, race_module.SECOND)


def generating(seconds: float = 5.0) -> RequestRecord:
    record = request("trigger", mask.GENERATING, 200, text=mask.PLACEHOLDER * 86, stream=True)
    record.ttft_s = 0.1
    return later(record, 2, seconds)


def literal(evidence: Evidence) -> Evidence:
    for record in evidence.labelled(mask.LITERAL):
        record.prompt_head = f"hello {mask.PLACEHOLDER} world"
        record.images = evidence.requests[0].images
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
        "the API server's own error came first",
        lambda e: swap(e, death_log(process=API)),
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


def race() -> Evidence:
    return race_run(*RACE_LABELS)


def stream(**counts: int) -> Change:
    """The same death, with these lines of the stand-in."""
    return lambda e: swap(e, with_stream(death_log(), **counts))


def unread(evidence: Evidence) -> None:
    log = with_stream(death_log(), overwrite=7, mask=4, error=1)
    for entry in log.matches["stream-error"]:
        entry.text = entry.text.replace("256 read", "None read")
    swap(evidence, log)


def right_mask(evidence: Evidence) -> None:
    log = with_stream(death_log(), overwrite=7, mask=4, error=1)
    for entry in log.matches["stream-error"]:
        entry.text = entry.text.replace("256 read", "254 read")
    swap(evidence, log)


RACES: list[Case] = [
    ("nothing was overwritten", stream(mask=4, error=1), {"unordered-buffer": NOT_MET}, DIFFERENT),
    (
        "no stand-in",
        lambda e: swap(e, with_stream(death_log())),
        {"unordered-buffer": UNKNOWN, "wrong-mask": UNKNOWN},
        INCONCLUSIVE,
    ),
    ("no step was watched", stream(error=1), {"unordered-buffer": UNKNOWN}, INCONCLUSIVE),
    ("no step failed", stream(overwrite=7, mask=4), {"wrong-mask": NOT_MET}, DIFFERENT),
    ("the mask was right", right_mask, {"wrong-mask": NOT_MET}, DIFFERENT),
    ("the mask was not read", unread, {"wrong-mask": UNKNOWN}, INCONCLUSIVE),
    (
        "another error came first",
        lambda e: swap(e, with_stream(death_log("IndexError: 7"), overwrite=7, mask=4, error=1)),
        {"first-error": NOT_MET},
        DIFFERENT,
    ),
    (
        "no log",
        lambda e: drop(e, "logs"),
        {"wrong-mask": UNKNOWN, "unordered-buffer": UNKNOWN, "first-error": UNKNOWN},
        INCONCLUSIVE,
    ),
    (
        "all are answered",
        lambda e: [edit(label, status=200, error="")(e) for label in RACE_LABELS],
        {"request-500": NOT_MET},
        DIFFERENT,
    ),
    (
        "no large image was sent",
        both(without(race_module.FIRST), without(race_module.SECOND)),
        {"request-500": UNKNOWN},
        INCONCLUSIVE,
    ),
    ("EngineCore lives on", lives_on, {"core-died": NOT_MET}, DIFFERENT),
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
    ("/health not asked", without("health"), {"health-503": UNKNOWN}, INCONCLUSIVE),
]


def test_a_large_budget_hides_the_cause_and_synchronous_scheduling_ends_it() -> None:
    facts = run_facts(RACE)
    hidden, cured = ordered_run(*RACE_LABELS, overwrite=5), ordered_run(*RACE_LABELS)
    assert judge(RACE, hidden)[0] is judge(RACE, cured)[0] is NOT_REPRODUCED
    assert RACE.cause_remains(hidden, facts).truth is MET
    assert RACE.cause_remains(cured, facts).truth is NOT_MET


def test_answers_from_wrong_rows_are_not_healthy() -> None:
    evidence = ordered_run(*RACE_LABELS)
    swap(evidence, with_stream(quiet_log(), overwrite=5, mask=8, silent=2))
    assert judge(RACE, evidence)[0] is DIFFERENT


def test_the_reports_hypotheses_need_the_right_run() -> None:
    def status(evidence: Evidence, *flips: str, **more: Any) -> dict[str, str]:
        facts = replace(run_facts(RACE, "", *more.get("mitigations", ())), flips=frozenset(flips))
        return {c.id: c.status.value for c in RACE.claim_results(evidence, facts)}

    crashed = status(race())
    assert crashed["assertion"] == crashed["buffer"] == "confirmed"
    assert crashed["graphs"] == "refuted"
    for name in ("prefix-caching", "chunk-budget", "reporters-build", "request-1-passes"):
        assert crashed[name] == "not-tested"
    assert crashed["on-a-gpu"] == "not-tested"
    assert status(race(), "prefix-caching")["prefix-caching"] == "refuted"
    assert status(race(), "eager-mode")["graphs"] == "not-tested"
    hidden = ordered_run(*RACE_LABELS, overwrite=5)
    assert status(hidden, mitigations=("budget",))["chunk-budget"] == "refuted"
    assert status(ordered_run(*RACE_LABELS), "chunk-budget")["chunk-budget"] == "not-tested"


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
        *cases(RACE, race, RACES),
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
        (RACE, race(), REPRODUCED),
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
        (RACE, race, RACES),
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
    assert set(crashed.values()) == {"refuted"}
    assert set(survived.values()) == {"not-tested"}


@pytest.mark.parametrize(
    ("factor_class", "status"),
    [
        (FactorClass.NECESSARY, "confirmed"),
        (FactorClass.SUFFICIENT, "confirmed"),
        (FactorClass.CONTRIBUTES, "not-tested"),
        (FactorClass.IRRELEVANT, "refuted"),
        (FactorClass.HIDES, "refuted"),
        (FactorClass.OTHER, "not-tested"),
        (None, "not-tested"),
    ],
)
def test_the_reports_hypotheses_against_an_ablations_table(
    factor_class: FactorClass | None, status: str
) -> None:
    names = ("prefix-caching", "chunk-budget", "eager-mode", "async-scheduling")
    results = {
        name: FactorResult.model_construct(name=name, factor_class=factor_class, why="as it ran")
        for name in names
    }
    ablation = Ablation.model_construct(factors=list(results.values()))
    told = {c.id: (c.status.value, c.source) for c in RACE.hypotheses(ablation)}
    assert told.pop("reporters-build")[0] == "not-tested"
    assert set(told) == {"prefix-caching", "chunk-budget", "graphs", "async-scheduling"}
    assert set(told.values()) == {(status, "the report of 2025-11-01")}
