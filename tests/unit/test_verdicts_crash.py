"""Engine deaths and the encoder-cache hang on made-up evidence, one change at a
time."""

import pytest
from made_up import judge, request, run_facts, swap
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
from turns import Change, Row, both, edit, exited, half, lives_on, no, to, without

MET, NOT_MET, UNKNOWN = Truth.MET, Truth.NOT_MET, Truth.UNKNOWN
REPRODUCED, DIFFERENT = Outcome.REPRODUCED, Outcome.DIFFERENT_FAILURE
NOT_REPRODUCED, INCONCLUSIVE = Outcome.NOT_REPRODUCED, Outcome.INCONCLUSIVE

PREFILL = load_scenario("chunked-mm-prefill")
GENERATED = PREFILL.with_variant("generated-placeholder")
LITERAL = PREFILL.with_variant("literal-placeholder")
OVERFLOW = load_scenario("encoder-cache-overflow")


def generating(seconds: float = 5.0) -> RequestRecord:
    record = request(
        "trigger", mask.GENERATING, 200, text=mask.PLACEHOLDER * 86, stream=True
    )
    record.ttft_s = 0.1
    return later(record, 2, seconds)


def literal(evidence: Evidence) -> Evidence:
    for record in evidence.labelled(mask.LITERAL):
        record.prompt_head = f"hello {mask.PLACEHOLDER} world"
        record.images = evidence.requests[0].images
        record.prompt_tokens = (
            (evidence.requests[0].prompt_tokens or 0) + len("hello  world") + 1
        )
    return evidence


def dead() -> Evidence:
    return death_run(mask.IMAGE, generating())


def alive() -> Evidence:
    return survived_run(mask.IMAGE, generating())


def scheduled(**numbers: str) -> Change:
    return lambda e: swap(e, StacksData(samples=[scheduling(**NOTHING | numbers)] * 4))


DEATHS: dict[str, Row] = {
    "the image is answered": (
        both(edit(mask.IMAGE, status=200, error=""), to(quiet_log())),
        "different -request-500 -core-died -first-error",
    ),
    "never sent": (without(mask.IMAGE), "inconclusive ?request-500"),
    "a later text is answered": (
        edit("after: a new text", status=200, error=""),
        "different -request-500",
    ),
    "nothing sent later": (without("after:"), "inconclusive ?request-500"),
    "EngineCore lives on": (lives_on, "different -core-died -server-exits"),
    "nobody looked at the processes": (exited(None), "inconclusive ?core-died"),
    "/health is green": (
        edit("health after the failure", status=200, error=""),
        "different -health-503",
    ),
    "/health was too late": (
        edit("health after the failure", status=None),
        "inconclusive ?health-503",
    ),
    "/health not asked": (without("health"), "inconclusive ?health-503"),
    "nobody was asked after the failure, and the server goes on": (
        both(without("health"), exited(None)),
        "inconclusive ?server-exits",
    ),
    "another error came first": (
        to(death_log("IndexError: list index out of range")),
        "different -first-error",
    ),
    "all errors are the API server's": (
        to(death_log(process=API, echo=API)),
        "different -first-error",
    ),
    "no EngineDeadError": (
        to(death_log(dead=False)),
        "different -core-died +first-error",
    ),
    "no log": (no("logs"), "inconclusive ?first-error"),
    "half a log": (half("logs"), "inconclusive ?core-died"),
    "no placeholder was generated": (
        edit(mask.GENERATING, text="hello"),
        "different -stray-placeholder",
    ),
    "the text had ended before": (
        edit(mask.GENERATING, latency_s=0.5),
        "different -stray-placeholder",
    ),
    "no text request": (without(mask.GENERATING), "inconclusive ?stray-placeholder"),
}


HANGS: dict[str, Row] = {
    "answered": (
        edit(overflow.BIG, timed_out=False, status=200, error="", latency_s=0.2),
        "different -no-answer",
    ),
    "never sent": (without(overflow.BIG), "inconclusive ?no-answer"),
    "EngineCore died": (exited(0), "different -core-alive"),
    "no process seen": (no("processes"), "inconclusive ?core-alive"),
    "the control hangs too": (
        edit(overflow.CONTROL, status=None, timed_out=True),
        "inconclusive ?larger-than-the-budget",
    ),
    "the control was another size": (
        edit(overflow.CONTROL, prompt_tokens=231),
        "inconclusive ?larger-than-the-budget",
    ),
    "the budget is larger": (
        scheduled(encoder_compute_budget="2048"),
        "different -larger-than-the-budget",
    ),
    "tokens are scheduled": (
        scheduled(total_num_scheduled_tokens="512"),
        "different -schedules-nothing",
    ),
    "no locals": (
        to(StacksData(samples=[scheduling()] * 4)),
        "inconclusive ?schedules-nothing ?larger-than-the-budget",
    ),
    "no stacks": (no("stacks"), "inconclusive ?schedules-nothing"),
}


@pytest.mark.parametrize(
    ("scenario", "evidence", "outcome"),
    [
        (GENERATED, dead(), REPRODUCED),
        (GENERATED, alive(), NOT_REPRODUCED),
        (LITERAL, literal(death_run(mask.LITERAL)), REPRODUCED),
        (LITERAL, literal(survived_run(mask.LITERAL)), NOT_REPRODUCED),
        (
            LITERAL,
            survived_run(mask.LITERAL),
            INCONCLUSIVE,
        ),  # the text was not in the prompt
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
        (
            1.05,
            0.1,
        ),  # it ended before the image was answered: prefilled with it or not?
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


def test_the_claims_about_the_way_in_are_refuted_only_by_a_crash() -> None:
    def status(evidence: Evidence) -> dict[str, str]:
        claims = GENERATED.claim_results(evidence, run_facts(GENERATED))
        return {c.id: c.status.value for c in claims}

    crashed, survived = status(dead()), status(alive())
    assert crashed.pop("assertion") == "confirmed"
    assert crashed.pop("reporters-crash") == "not-tested"
    # This log quotes no line of code.
    assert crashed.pop("kv-cache-scatter") == "not-tested"
    assert set(crashed.values()) == {"refuted"}
    assert set(survived.values()) == {"not-tested"}
    told = dead()
    for _, data in told.results(LogsData, "check"):
        line = LogLine(
            number=1, text="inputs_embeds.masked_scatter_(is_multimodal.unsqueeze(-1),"
        )
        data.matches["scatter-line"], data.match_counts["scatter-line"] = [line], 1
    assert status(told)["kv-cache-scatter"] == "refuted"
