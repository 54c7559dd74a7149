"""What LMDeploy's witness and clients say, read: each bound from both sides, each word
alone."""

from typing import Any

import pytest
from made_up import http, judge, probed, request, run_facts
from made_up_kv import (
    BLOCK,
    FREE,
    REFUSED,
    RUNTIME,
    at,
    crash_run,
    ended,
    line,
    log,
    mitigated_run,
    opaque_run,
    relabelled,
    replace_log,
    sized,
    told,
    truncated_run,
    truth as truth_of,
    witness,
)
from mmrepro.base.records import ClaimStatus
from mmrepro.failure.signature import Outcome, Truth
from mmrepro.failure.signature.views import Requests
from mmrepro.kv_budget import LmdeployPlan
from mmrepro.scenario import lmdeploy as kv
from mmrepro.scenarios import kv_growth_crash as growth
from mmrepro.scenarios.undersized_kv_budget import (
    SCENARIO as BUDGET,
    WAYS,
    opaque_500,
    refused_for_length,
    stream_breaks,
)
from mmrepro.scenarios.undersized_kv_budget.report import CHAIN
from mmrepro.traffic.evidence import Evidence, Missing, ReproducerResult

MET, NOT_MET = Truth.MET, Truth.NOT_MET
CONFIRMED, REFUTED, NOT_TESTED = (
    ClaimStatus.CONFIRMED,
    ClaimStatus.REFUTED,
    ClaimStatus.NOT_TESTED,
)


def claim(evidence: Evidence, name: str, *mitigations: str) -> ClaimStatus:
    results = BUDGET.claim_results(evidence, run_facts(BUDGET, "", *mitigations))
    return next(c.status for c in results if c.id == name)


# ------------------------------------------------------------------ the witness


def witnessed(budget: dict[str, Any], **limit: Any) -> kv.Witness:
    lines = sized(0.1, 21, 1344)
    told = {"memory": [FREE, 1], "runtime": [RUNTIME, 1], "block_bytes": BLOCK} | budget
    lines["witness-budget"] = witness("budget", **told)
    if limit:
        known = {"cache_max_entry_count": 0.1, "num_gpu_blocks": 21, "block_size": 64}
        lines["witness-limit"] = witness(
            "limit", **{"max_session_len": 1344, **known, **limit}
        )
    evidence = opaque_run()
    replace_log(evidence, log(lines, REFUSED, REFUSED))
    return kv.Witness(evidence)


def test_a_sizing_is_read_whole_or_not_at_all() -> None:
    whole = kv.Sizing(FREE, RUNTIME, BLOCK, 0.1, 21, 0, 64, 1344)
    assert witnessed({}).sizing() == whole
    for budget in (
        {"block_bytes": 0},
        {"memory": None},
        {"memory": []},
        {"runtime": ["many"]},
        {"memory": [float("inf")]},
    ):
        with pytest.raises(Missing, match="the witness did not see the server size"):
            witnessed(budget).sizing()
    with pytest.raises(Missing):
        witnessed({}, max_session_len=None).sizing()
    assert (
        witnessed({}, num_reserved_gpu_blocks=1).sizing().num_reserved_gpu_blocks == 1
    )
    with pytest.raises(Missing, match="see the control server size"):
        kv.Witness(Evidence()).sizing("control")


@pytest.mark.parametrize("free", [6784 << 20, (6785 << 20) - 1])
def test_every_memory_that_the_report_prints_so_has_its_blocks(free: int) -> None:
    """``free gpu memory: 6784 mb``, cut to whole MiB, and the report's model as it
    is."""
    assert free >> 20 == kv.LOGGED_FREE_MB
    plan = LmdeployPlan(
        "0.6.4", free, bytes_per_block=kv.BLOCK_BYTES, vocab_size=kv.VOCABULARY
    )
    assert [plan.forward(s).blocks for s in (kv.SMALL, kv.BIG)] == [21, 107]


def test_what_the_runs_memory_is_solved_from() -> None:
    """With 0.5 the report's gpu_mem; with the report's bytes a block that is 107.7 of
    them."""
    assert kv.KV_BYTES * kv.BIG == 903_548_928
    assert (kv.BLOCK_BYTES, kv.VOCABULARY, kv.SCALE) == (8_388_608, 92_553, 64)
    assert [BUDGET.plan_of("0.6.4").forward(s).blocks for s in (kv.SMALL, kv.BIG)] == [
        21,
        107,
    ]
    assert (kv.SHORT, kv.ANSWER, growth.ANSWER, growth.ROOM) == ("hi", 4, 100, 44)
    assert (growth.SCENARIO.trigger_deadline_s, BUDGET.trigger_deadline_s) == (
        60.0,
        240.0,
    )


def test_what_is_set_up_for_each_variant() -> None:
    found = {s.variant: (s.prompt_tokens, s.predicted.setting) for s in BUDGET.variants}  # type: ignore[attr-defined]
    assert {
        name: (tokens, str(setting)) for name, (tokens, setting) in found.items()
    } == {
        "text": (3446, "0.26"),
        "image": (1600, "0.13"),
        "full-size": (3446, "0.26"),
    }
    assert growth.SCENARIO.mitigations[0].server_args == (
        "--cache-max-entry-count",
        "0.11",
    )
    assert BUDGET.expected("0.8.0rc1", frozenset())[0] is Outcome.DIFFERENT_FAILURE
    claims = BUDGET.claim_results(opaque_run(), run_facts(BUDGET))
    said = next(c.observed for c in claims if c.id == "works-with-0.8")
    assert "172 blocks" in said


def test_018_names_the_bytes_of_each_rank() -> None:
    evidence = opaque_run()
    lines = sized(0.1, 21, 1344)
    ranks = witness(
        "budget", memory=[FREE, 1], runtime=[RUNTIME, 1], rank_block_bytes=[BLOCK]
    )
    replace_log(evidence, log(lines | {"witness-budget": ranks}, REFUSED))
    assert kv.Witness(evidence).sizing().block_bytes == BLOCK


def test_the_last_sizing_counts() -> None:
    evidence = opaque_run()
    data = log(sized(0.1, 21, 1344))
    later = [at(50, found) for found in sized(0.26, 56, 3584).values()]
    for name, found in zip(("witness-budget", "witness-limit"), later, strict=True):
        data.matches[name].append(found)
    replace_log(evidence, data)
    assert kv.Witness(evidence).sizing().num_gpu_blocks == 56


def test_requests_are_those_of_at_least_so_many_tokens() -> None:
    evidence = opaque_run()
    odd = [
        witness("request", input_tokens="3446", max_input_len=1344, seconds=0),
        witness("request", input_tokens=3446, max_input_len=None, seconds=0),
        line("mmrepro-witness-request 5"),
    ]
    kept = (ended(1599, 1344), ended(1600, 1344, "INPUT_LENGTH_ERROR", 3))
    replace_log(evidence, log(sized(0.1, 21, 1344), *odd, *kept))
    seen = kv.Witness(evidence)
    assert [r.tokens for r in seen.requests()] == [1599, 1600]
    (long,) = seen.requests(1600)
    assert (long.tokens, long.limit, long.generated, long.line) == (1600, 1344, 3, 50)
    assert (long.refused, seen.requests()[0].refused) == (True, False)
    assert seen.requests()[0].generated == 0  # it was not told
    with pytest.raises(Missing, match="no request of 1601 tokens"):
        seen.requests(1601)


@pytest.mark.parametrize(("tokens", "seen"), [(0, 0), (1, 1)])
def test_a_request_has_tokens(tokens: int, seen: int) -> None:
    evidence = opaque_run()
    replace_log(evidence, log(sized(0.1, 21, 1344), ended(tokens, 1344), REFUSED))
    assert len(kv.Witness(evidence).requests()) == 1 + seen


def test_without_a_witness_every_line_counts() -> None:
    evidence = opaque_run()
    replace_log(evidence, log({"assertion": line("x", 1)}, error=line("y", 1)))
    logs = kv.Logs(evidence)
    assert len(kv.since_start(logs, "assertion")) == 1
    assert kv.first_error(logs) is not None


def test_one_line_that_two_readings_saw_is_one_request() -> None:
    evidence = opaque_run()
    data = log(sized(0.1, 21, 1344), REFUSED)
    replace_log(evidence, data)
    evidence.probes.append(probed(data, "after"))
    assert len(kv.Witness(evidence).requests()) == 1


def test_which_errors_are_this_servers() -> None:
    evidence = opaque_run()
    data = log(sized(0.1, 21, 1344), error=line("of before", 7))
    replace_log(evidence, data)
    logs = kv.Logs(evidence)
    assert kv.first_error(logs) is None
    data.errors += [line("mine", 8), line("later", 9)]
    assert getattr(kv.first_error(logs), "text", "") == "mine"


def test_a_prompt_fills_what_the_template_leaves() -> None:
    short = request("gate", "short", prompt_tokens=417)
    assert len(kv.filling(3446, short)) == 3446 - 415
    assert kv.filling(100, short) == "7"
    short.prompt_tokens = None
    assert len(kv.filling(10, short)) == 12
    assert (growth.prompt_tokens("0.6.4"), growth.prompt_tokens("0.18.0")) == (
        1300,
        1172,
    )


# ------------------------------------------------------------------ what clients read


@pytest.mark.parametrize(
    ("status", "error", "timed_out", "breaks"),
    [
        (200, "RemoteProtocolError: closed", False, MET),
        (200, "RemoteProtocolError: closed", True, NOT_MET),
        (None, "ConnectError", False, NOT_MET),
        (500, "Internal Server Error", False, NOT_MET),
        (200, "", False, NOT_MET),
    ],
)
def test_a_stream_that_breaks_began_with_200(
    status: int | None, error: str, timed_out: bool, breaks: Truth
) -> None:
    evidence = opaque_run()
    sent = relabelled(evidence, "the prompt, streamed")
    sent.status, sent.error, sent.timed_out = status, error, timed_out
    sent.text = "" if error else "abc"
    assert stream_breaks(Requests(evidence), kv.Witness(evidence)).truth is breaks


@pytest.mark.parametrize(
    ("status", "error", "opaque"),
    [
        (500, "x", MET),
        (499, "x", NOT_MET),
        (500, "too long", NOT_MET),
        (200, "", NOT_MET),
    ],
)
def test_an_opaque_500_does_not_name_the_length(
    status: int, error: str, opaque: Truth
) -> None:
    evidence = opaque_run()
    sent = relabelled(evidence, "the prompt")
    sent.status, sent.error, sent.text = status, error, "abc"
    assert opaque_500(Requests(evidence), kv.Witness(evidence)).truth is opaque


@pytest.mark.parametrize(("tokens", "truth"), [(1344, NOT_MET), (1345, MET)])
def test_live_a_refusal_is_for_its_length_where_it_is_longer(
    tokens: int, truth: Truth
) -> None:
    evidence = opaque_run()
    refused = ended(tokens, 1344, "INPUT_LENGTH_ERROR")
    replace_log(evidence, log(sized(0.1, 21, 1344), ended(9000, 1344), refused))
    assert refused_for_length(kv.Witness(evidence)).truth is truth


def test_live_the_first_refusal_is_read() -> None:
    evidence = opaque_run()
    first, second = (
        ended(n, m, "INPUT_LENGTH_ERROR") for n, m in ((1500, 1400), (1350, 1600))
    )
    replace_log(evidence, log(sized(0.1, 21, 1344), first, second))
    found = refused_for_length(kv.Witness(evidence))
    assert (found.truth, found.observed) == (MET, "1500 tokens, at most 1400")
    replace_log(evidence, log(sized(0.1, 21, 1344), second, first))
    assert refused_for_length(kv.Witness(evidence)).truth is NOT_MET


def test_the_prompt_is_sent_whole_and_streamed() -> None:
    assert list(WAYS.items()) == [("the prompt", False), ("the prompt, streamed", True)]


def test_a_growing_request_that_is_refused_for_its_length_is_a_fix() -> None:
    refused = truncated_run()
    sent = relabelled(refused, "growing")
    sent.status, sent.error, sent.text = (
        400,
        "the request exceeds the context length",
        "",
    )
    assert judge(growth.SCENARIO, refused, "0.18.0")[0] is Outcome.NOT_REPRODUCED
    sent.error = "no"
    assert judge(growth.SCENARIO, refused, "0.18.0")[0] is Outcome.DIFFERENT_FAILURE


def test_a_whole_answer_below_the_limit_was_not_cut() -> None:
    whole = truncated_run()
    sent = relabelled(whole, "growing")
    sent.prompt_tokens, sent.completion_tokens = 1000, 100
    facts = run_facts(growth.SCENARIO, "0.18.0")
    claims = {c.id: c.status for c in growth.SCENARIO.claim_results(whole, facts)}
    assert claims["truncates"] is REFUTED
    sent.completion_tokens = None
    claims = {c.id: c.status for c in growth.SCENARIO.claim_results(whole, facts)}
    assert claims["truncates"] is NOT_TESTED


# --------------------------------------------------------- claims by code and by number


@pytest.mark.parametrize(
    ("fact", "status"),
    [
        (8_388_608, CONFIRMED),
        (8_388_607, REFUTED),
        ("8388608", NOT_TESTED),
        (None, NOT_TESTED),
    ],
)
def test_what_the_chain_computed_is_a_number(
    fact: int | str | None, status: ClaimStatus
) -> None:
    evidence = opaque_run()
    assert claim(evidence, "block-bytes") is NOT_TESTED
    ran = ReproducerResult(
        name=CHAIN, exit_code=0, seconds=1, facts={"block_bytes": fact}
    )
    evidence.reproducers = [ran]
    assert claim(evidence, "block-bytes") is status
    assert claim(evidence, "runtime") is NOT_TESTED


def test_a_prediction_holds_where_blocks_tokens_and_answer_do() -> None:
    assert claim(mitigated_run(), "prediction", "kv-budget") is CONFIRMED
    assert claim(mitigated_run(), "prediction") is NOT_TESTED
    silent = mitigated_run()
    relabelled(silent, "the prompt").status = 500
    assert claim(silent, "prediction", "kv-budget") is REFUTED
    for blocks, limit in ((57, 3584), (56, 3648)):
        other = mitigated_run()
        replace_log(other, log(sized(0.26, blocks, limit), *[ended(3446, limit)] * 2))
        assert claim(other, "prediction", "kv-budget") is REFUTED
    cut = mitigated_run()
    replace_log(cut, log(sized(0.26, 56, 3584), ended(100, 3584)))
    assert claim(cut, "prediction", "kv-budget") is NOT_TESTED


@pytest.mark.parametrize(("tokens", "status"), [(3446, CONFIRMED), (3447, REFUTED)])
def test_the_prompt_is_as_long_as_reported(tokens: int, status: ClaimStatus) -> None:
    evidence = opaque_run()
    prompt = ended(tokens, 1344, "INPUT_LENGTH_ERROR")
    replace_log(evidence, log(sized(0.1, 21, 1344), prompt, prompt))
    assert claim(evidence, "prompt") is status
    later = ended(9000, 1344, "INPUT_LENGTH_ERROR")
    replace_log(evidence, log(sized(0.1, 21, 1344), prompt, later))
    assert claim(evidence, "prompt") is status


def test_the_table_of_symptoms_holds_both_servers_side_by_side() -> None:
    rows = BUDGET.symptom_rows(opaque_run(), run_facts(BUDGET))
    assert [(r.observed, r.healthy, r.abnormal) for r in rows[2:]] == [
        ("0.1", "0.5", True),
        ("21", "107", True),
        ("1344", "6848", True),
    ]
    assert [r.abnormal for r in rows[:2]] == [True, True]
    same = opaque_run()
    replace_log(same, log(sized(0.1, 21, 1344)), "control")
    assert [r.abnormal for r in BUDGET.symptom_rows(same, run_facts(BUDGET))[2:]] == [
        False
    ] * 3
    crashed = {
        r.check: r.abnormal
        for r in growth.SCENARIO.symptom_rows(
            truncated_run(), run_facts(growth.SCENARIO)
        )
    }
    assert set(crashed.values()) == {False}


@pytest.mark.parametrize(
    ("tokens", "ours", "other", "truth"),
    [(1664, 1664, 6848, NOT_MET), (1664, 1600, 6848, MET), (1664, 1344, 1664, MET)],
)
def test_a_prompt_as_long_as_the_limit_fits(
    tokens: int, ours: int, other: int, truth: Truth
) -> None:
    evidence, image = opaque_run(), BUDGET.with_variant("image")
    prompt = ended(tokens, ours, "INPUT_LENGTH_ERROR")
    replace_log(evidence, log(sized(0.1, ours // 64, ours), prompt, prompt))
    replace_log(evidence, log(sized(0.5, other // 64, other)), "control")
    assert truth_of(image, evidence, "limit-from-blocks") is truth


@pytest.mark.parametrize(("tokens", "truth"), [(1344, MET), (1345, NOT_MET)])
def test_a_growing_prompt_as_long_as_the_limit_fits(tokens: int, truth: Truth) -> None:
    evidence = crash_run()
    replace_log(evidence, log(sized(0.1, 21, 1344), *[ended(tokens, 1344)] * 2))
    assert truth_of(growth.SCENARIO, evidence, "prompt-fits") is truth


def test_24_blocks_would_be_the_reports_other_number() -> None:
    evidence = opaque_run()
    replace_log(evidence, log(sized(0.1, 24, 1536), *[ended(3446, 1536)] * 2))
    assert claim(evidence, "blocks-24") is CONFIRMED
    assert claim(evidence, "blocks-21") is REFUTED


def test_a_front_that_is_gone_is_abnormal() -> None:
    gone = truncated_run()
    gone.probes = [
        p if p.probe != "http" else probed(http(None, None, gone=True))
        for p in gone.probes
    ]
    rows = growth.SCENARIO.symptom_rows(gone, run_facts(growth.SCENARIO))
    assert [r.abnormal for r in rows] == [False, False, True]


def test_the_first_line_of_the_assertion_is_named() -> None:
    evidence = crash_run()
    data = log(sized(0.1, 21, 1344))
    data.matches["assertion"] = [line("assert len(running) > 0", n) for n in (90, 95)]
    replace_log(evidence, data)
    said = told(growth.SCENARIO, evidence)["assertion"].observed
    assert said == "2 × assert len(running) > 0, line 90"
