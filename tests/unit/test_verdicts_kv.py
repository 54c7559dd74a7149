"""LMDeploy's two KV scenarios on made-up evidence: one change, and the verdict
turns."""

from decimal import Decimal

import pytest
from hypothesis import given, strategies as st
from made_up import drop, http, judge, request, run_facts
from made_up_kv import (
    BLOCK,
    FREE,
    GROWN,
    REFUSED,
    RUNTIME,
    TRACEBACK,
    ended,
    line,
    log,
    mitigated_run,
    opaque_run,
    refused_run,
    replace_log,
    sized,
    truncated_run,
    witness,
)
from mmrepro.base.records import ClaimStatus
from mmrepro.failure.signature import Outcome, Truth, answers
from mmrepro.runs.judge import effect, judge as judge_run
from mmrepro.scenario import lmdeploy as kv
from mmrepro.scenarios.kv_growth_crash import SCENARIO as GROWTH
from mmrepro.scenarios.undersized_kv_budget import SCENARIO as BUDGET
from mmrepro.scenarios.undersized_kv_budget.report import PROMPT
from mmrepro.traffic.evidence import Evidence, Missing
from turns import Change, Row, edit, no, nothing_sent, to

MET, NOT_MET, UNKNOWN = Truth.MET, Truth.NOT_MET, Truth.UNKNOWN
REPRODUCED, DIFFERENT = Outcome.REPRODUCED, Outcome.DIFFERENT_FAILURE
NOT_REPRODUCED, INCONCLUSIVE = Outcome.NOT_REPRODUCED, Outcome.INCONCLUSIVE


def test_the_opaque_error_reproduces_with_the_reports_numbers() -> None:
    outcome, truths, results = judge(BUDGET, opaque_run())
    assert set(truths.values()) == {MET}, truths
    assert outcome is REPRODUCED
    shown = {r.id: r.observed for r in results}
    for number in ("21 blocks", "1344", "3446", "107 blocks", "6848"):
        assert number in shown["limit-from-blocks"]
    assert (
        "3446 tokens, max_input_len 1344: status INPUT_LENGTH_ERROR" in shown.values()
    )


def with_log(*requests_or_lines: object, **lines: object) -> Change:
    def change(evidence: Evidence) -> None:
        found = (
            sized(0.1, 21, 1344) | {n: line(t) for n, t in TRACEBACK.items()} | lines
        )  # type: ignore[operator]
        kept = {name: value for name, value in found.items() if value is not None}
        both = (requests_or_lines or (REFUSED,)) * 2
        replace_log(
            evidence, log(kept, *both, error=line("Exception in ASGI application", 80))
        )  # type: ignore[arg-type]

    return change


def control_log(**lines: object) -> Change:
    def change(evidence: Evidence) -> None:
        found = sized(0.5, 107, 6848) | lines  # type: ignore[operator]
        replace_log(evidence, log(found, ended(3446, 6848)), "control")

    return change


WRONG_LIMIT = sized(0.1, 21, 1300)["witness-limit"]
WRONG_BYTES = sized(0.1, 21, 1344, runtime=RUNTIME // 2)["witness-budget"]
TOO_SMALL = sized(0.5, 50, 3200)["witness-limit"]

ROWS: dict[str, Row] = {
    "another 500": (no("logs"), "inconclusive ?validation-error ?limit-from-blocks"),
    "no validation error in the log": (
        with_log(**{"finish-reason": None}),
        "different -validation-error +opaque-500",
    ),
    "another status": (
        with_log(ended(3446, 1344, "INTERNAL_ENGINE_ERROR")),
        "different -input-length-error",
    ),
    "a prompt within the limit": (
        with_log(ended(3446, 3446, "INPUT_LENGTH_ERROR")),
        "different -input-length-error -limit-from-blocks",
    ),
    "a limit that is not the blocks'": (
        with_log(
            ended(3446, 1300, "INPUT_LENGTH_ERROR"), **{"witness-limit": WRONG_LIMIT}
        ),
        "different -limit-from-blocks",
    ),
    "blocks that are not the bytes'": (
        with_log(**{"witness-budget": WRONG_BYTES}),
        "different -blocks-from-bytes",
    ),
    "a torn line of the witness": (
        with_log(**{"witness-limit": line("mmrepro-witness-limit {")}),
        "inconclusive ?limit-from-blocks ?blocks-from-bytes",
    ),
    "a control server as small": (
        control_log(**{"witness-limit": TOO_SMALL}),
        "different -limit-from-blocks",
    ),
    "short prompts fail as well": (
        edit("short after", status=500, error="Internal Server Error"),
        "different -others-answered",
    ),
    "the server is gone": (
        to(http(None, None, gone=True)),
        "different -endpoints-green",
    ),
    "the prompt hangs": (edit("the prompt", timed_out=True), "different -opaque-500"),
    "an opaque answer with 200, as 0.7.0": (
        edit("the prompt", status=200, error="", text="internal error happened"),
        "different -opaque-500",
    ),
    "the control server fails": (
        edit("control server: the prompt", status=500),
        "inconclusive -control-answers",
    ),
    "nothing was sent": (nothing_sent, "inconclusive ?opaque-500 ?others-answered"),
}


def test_a_refusal_that_explains_is_not_the_bug_and_is_graded() -> None:
    outcome, _, results = judge(BUDGET, refused_run(), "0.18.0")
    assert outcome is NOT_REPRODUCED
    said = next(r.observed for r in results if r.id == "opaque-500")
    assert "HTTP 400 “The request exceeds the model context length.”" in said
    claims = {
        c.id: c.status
        for c in BUDGET.claim_results(refused_run(), run_facts(BUDGET, "0.18.0"))
    }
    assert claims["fails-with-0.1"] is ClaimStatus.NOT_TESTED
    assert claims["status"] is ClaimStatus.CONFIRMED
    assert "explained; it names the length, not the limit in tokens" in said
    unseen = refused_run()
    drop(unseen, "logs")  # what a client reads needs no witness; only its limit does
    results = judge(BUDGET, unseen, "0.18.0")[2]
    told = next(r for r in results if r.id == "opaque-500")
    assert (told.truth, "the limit" in told.observed) == (NOT_MET, False)


def test_under_the_predicted_setting_the_prompt_is_answered() -> None:
    facts = run_facts(BUDGET, "", "kv-budget")
    verdict = judge_run(BUDGET, mitigated_run(), facts)
    assert verdict.outcome is NOT_REPRODUCED
    assert effect(BUDGET, mitigated_run(), facts, verdict).prevented
    claims = {
        c.id: c
        for c in BUDGET.claim_results(
            mitigated_run(), run_facts(BUDGET, "", "kv-budget")
        )
    }
    assert claims["prediction"].status is ClaimStatus.CONFIRMED
    assert claims["blocks-21"].status is ClaimStatus.NOT_TESTED
    wrong = mitigated_run()
    replace_log(wrong, log(sized(0.26, 57, 3648), *[ended(3446, 3648)] * 2))
    claims = {
        c.id: c for c in BUDGET.claim_results(wrong, run_facts(BUDGET, "", "kv-budget"))
    }
    assert claims["prediction"].status is ClaimStatus.REFUTED


def test_the_reports_contradiction_is_decided() -> None:
    claims = {c.id: c for c in BUDGET.claim_results(opaque_run(), run_facts(BUDGET))}
    assert claims["blocks-24"].status is ClaimStatus.REFUTED
    assert "1536" in claims["blocks-24"].observed
    for name in ("prompt", "silence"):
        assert claims[name].status is ClaimStatus.CONFIRMED
    assert claims["gpu-mem"].status is ClaimStatus.NOT_TESTED


def test_what_is_expected_of_each_release() -> None:
    none: frozenset[str] = frozenset()
    expected = {
        "0.6.4": REPRODUCED,
        "0.6.5": REPRODUCED,
        "0.7.0.post3": DIFFERENT,
        "0.9.2": DIFFERENT,
        "0.10.0": NOT_REPRODUCED,
        "0.18.0": NOT_REPRODUCED,
    }
    assert {r: BUDGET.expected(r, none)[0] for r in expected} == expected
    assert BUDGET.expected("0.7.0.post3", frozenset({"kv-budget"}))[0] is NOT_REPRODUCED


@pytest.mark.parametrize(
    "release", ["0.6.4", "0.7.0.post3", "0.10.0", "0.13.0", "0.18.0"]
)
def test_every_release_gets_the_reports_budget(release: str) -> None:
    for variant in BUDGET.variants:
        plan = variant.plan_of(release)  # type: ignore[attr-defined]
        small, big = plan.forward(kv.SMALL), plan.forward(kv.BIG)
        assert (small.blocks, big.blocks) == (21, 107)
        # The prediction's claim computes with the tiny models' bytes.
        foretold = BUDGET.predicted.setting
        assert (
            plan.forward(foretold).blocks
            == kv.kv_plan(release).forward(foretold).blocks
        )


def test_the_predicted_setting_is_the_smallest() -> None:
    for variant in BUDGET.variants:
        best, plan = variant.predicted, variant.plan_of(BUDGET.release)  # type: ignore[attr-defined]
        tokens = variant.prompt_tokens + 4  # type: ignore[attr-defined]
        assert best.max_tokens >= tokens
        assert plan.forward(best.setting).blocks == best.blocks
        if variant.variant != "image":  # which leaves room for the chat template
            assert (
                plan.forward(best.setting - Decimal("0.01")).max_tokens
                < PROMPT + 4
                == tokens
            )


# ---------------------------------------------------------------- grades


@pytest.mark.parametrize(
    ("status", "error", "text", "kind"),
    [
        (500, "Internal Server Error", "", "opaque 500"),
        (500, "prompt too long", "", "refusal"),
        (200, "", "internal error happened", "opaque answer"),
        (
            200,
            "",
            "internal error happened, status code ResponseType.INPUT_LENGTH_ERROR",
            "named answer",
        ),
        (400, "The request exceeds the model context length.", "", "refusal"),
        (400, "bad request", "", "opaque answer"),
        (200, "", "hello", "answered"),
        (200, "RemoteProtocolError: peer closed", "", "broken"),
        (None, "ConnectError", "", "broken"),
    ],
)
def test_how_a_refusal_reads(
    status: int | None, error: str, text: str, kind: str
) -> None:
    record = request("trigger", "x", status)
    record.error, record.text = error, text
    assert answers.grade(record, 1344).kind == kind


def test_a_message_that_names_limit_and_cause() -> None:
    record = request("trigger", "x", 400)
    record.error = "3446 tokens exceed the limit of 1344: the KV cache has 21 blocks"
    found = answers.grade(record, 1344)
    assert (found.names_limit, found.names_cause) == (True, True)
    assert "names the limit and the cause" in str(found)
    assert not answers.grade(record, 134).names_limit


@given(
    st.integers(1, 2**40),
    st.integers(0, 2**40),
    st.integers(1, 2**30),
    st.floats(0.01, 0.99),
)
def test_a_sizing_adds_up_only_with_its_own_blocks(
    free: int, runtime: int, block: int, share: float
) -> None:
    blocks = int((free - runtime) * share / block)
    right = kv.Sizing(free, runtime, block, share, blocks, 0, 64, blocks * 64)
    assert right.blocks_add_up
    assert right.limit_adds_up
    assert not kv.Sizing(
        free, runtime, block, share, blocks + 1, 0, 64, 0
    ).blocks_add_up


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(), st.lists, max_leaves=5
    )
)
def test_whatever_the_witness_line_holds_nothing_is_made_up(value: object) -> None:
    evidence = opaque_run()
    replace_log(
        evidence, log({"witness-limit": witness("limit", max_session_len=value)})
    )
    with pytest.raises(Missing):
        kv.Witness(evidence).sizing()


def test_the_control_servers_log_is_never_taken_for_the_runs_own() -> None:
    evidence = opaque_run()
    control = kv.Witness(evidence).sizing("control")
    assert control == kv.Sizing(FREE, RUNTIME, BLOCK, 0.5, 107, 0, 64, 6848)
    drop(evidence, "logs")
    with pytest.raises(Missing):
        kv.Witness(evidence).sizing()


# ---------------------------------------------------------------- growth


def test_an_answer_that_is_cut_is_no_crash() -> None:
    outcome, truths, _ = judge(GROWTH, truncated_run(), "0.18.0")
    assert (outcome, truths["growth-fails"]) == (NOT_REPRODUCED, NOT_MET)
    claims = {
        c.id: c.status
        for c in GROWTH.claim_results(truncated_run(), run_facts(GROWTH, "0.18.0"))
    }
    assert claims["truncates"] is ClaimStatus.CONFIRMED
    assert claims["all-fail"] is ClaimStatus.NOT_TESTED


def growth_log(*requests: object, ended_by: str = "assertion") -> Change:
    def change(evidence: Evidence) -> None:
        lines = sized(0.1, 21, 1344)
        lines[ended_by] = line("assert len(running) > 0")
        replace_log(evidence, log(lines, *requests))  # type: ignore[arg-type]

    return change


GROWTH_ROWS: dict[str, Row] = {
    "another exception": (
        growth_log(*GROWN, ended_by="loop-ended"),
        "different -assertion",
    ),
    "the prompt was refused": (
        growth_log(ended(1300, 1344, "INPUT_LENGTH_ERROR")),
        "different -prompt-fits",
    ),
    "prompt and answer fit": (growth_log(ended(1200, 1344)), "different -prompt-fits"),
    "no log": (no("logs"), "inconclusive ?assertion"),
    "it recovers": (
        edit("short after 3", status=200, error="", text="abc"),
        "different -all-fail-after",
    ),
    "the server dies as well": (
        to(http(None, None, gone=True)),
        "different -front-lives",
    ),
    "the control server fails": (
        edit("control server: growing", status=500),
        "inconclusive -control-answers",
    ),
}
