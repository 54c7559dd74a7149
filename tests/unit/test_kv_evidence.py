"""LMDeploy's two KV scenarios: what their evidence may be read as, and what it may not.

Each case is one that was, or could have been, believed: a trigger that never got there,
a number that was solved from the report, an order that nobody looked at, a log that
says nothing."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from made_up import drop, judge, run_facts
from made_up_kv import (
    GROWN,
    REFUSED,
    SHORT_ANSWER,
    START,
    TRACEBACK,
    at,
    claimed,
    crash_run,
    ended,
    line,
    log,
    logged,
    mitigated_run,
    opaque_run,
    refused_run,
    relabelled,
    replace_log,
    sized,
    told,
    truncated_run,
    truth,
    witness,
)
from mmrepro.base.errors import UsageError
from mmrepro.base.records import ClaimStatus
from mmrepro.failure.signature import Outcome, Truth
from mmrepro.probes.data import LogsData
from mmrepro.reports import load
from mmrepro.runs.judge import effect, facts_of, judge as judge_run
from mmrepro.scenarios.kv_growth_crash import ANSWER, SCENARIO as GROWTH
from mmrepro.scenarios.undersized_kv_budget import (
    SCENARIO as BUDGET,
    fewer_tokens,
    report,
)
from mmrepro.traffic.evidence import Evidence

pytestmark = pytest.mark.usefixtures("by_conditions")

MET, NOT_MET, UNKNOWN = Truth.MET, Truth.NOT_MET, Truth.UNKNOWN
CONFIRMED, REFUTED, NOT_TESTED = (
    ClaimStatus.CONFIRMED,
    ClaimStatus.REFUTED,
    ClaimStatus.NOT_TESTED,
)
IMAGE = BUDGET.with_variant("image")
CORPUS = Path(__file__).parent.parent / "evidence"
RECORDED = sorted(
    p.stem for p in CORPUS.glob("*.zip") if p.stem.startswith(("undersized", "kv-"))
)
LONG = ended(1661, 1344, "INPUT_LENGTH_ERROR")


# ----------------------------------------------------------------- item 4: it got there


def test_item_4_a_prompt_that_the_cache_holds_shows_nothing() -> None:
    """The answers are those of a fixed release; the cache was never too small."""
    healthy = mitigated_run()
    outcome, truths, _ = judge(BUDGET, healthy, "0.18.0")
    assert (truths["outgrows-cache"], outcome) == (NOT_MET, Outcome.INCONCLUSIVE)
    unseen = mitigated_run()
    drop(unseen, "logs")
    assert judge(BUDGET, unseen, "0.18.0")[0] is Outcome.INCONCLUSIVE
    assert judge(BUDGET, refused_run(), "0.18.0")[0] is Outcome.NOT_REPRODUCED


def test_item_4_an_answer_that_the_cache_holds_shows_nothing() -> None:
    roomy = logged(truncated_run(), sized(0.5, 107, 6848), *[ended(1172, 6848)] * 2)
    relabelled(roomy, "growing").completion_tokens = ANSWER
    outcome, truths, _ = judge(GROWTH, roomy, "0.18.0")
    assert (truths["outgrows-cache"], truths["grew"]) == (NOT_MET, MET)
    assert outcome is Outcome.INCONCLUSIVE


def test_item_4_an_answer_that_ended_early_shows_nothing() -> None:
    early = truncated_run()
    relabelled(early, "growing").completion_tokens = 12
    outcome, truths, _ = judge(GROWTH, early, "0.18.0")
    assert (truths["outgrows-cache"], truths["grew"]) == (MET, NOT_MET)
    assert outcome is Outcome.INCONCLUSIVE
    assert claimed(GROWTH, early, "0.18.0")["truncates"].status is NOT_TESTED


@pytest.mark.parametrize(("tokens", "seen"), [(1664, NOT_MET), (1665, MET)])
def test_item_4_the_prompt_is_held_against_the_engines_own_limit(
    tokens: int, seen: Truth
) -> None:
    evidence = logged(opaque_run(), sized(0.1, 26, 1664), *[ended(tokens, 1664)] * 2)
    assert truth(IMAGE, evidence, "outgrows-cache") is seen


@pytest.mark.parametrize(("tokens", "seen"), [(1244, NOT_MET), (1245, MET)])
def test_item_4_prompt_and_answer_are_held_against_it(tokens: int, seen: Truth) -> None:
    evidence = logged(crash_run(), sized(0.1, 21, 1344), *[ended(tokens, 1344)] * 2)
    assert truth(GROWTH, evidence, "outgrows-cache") is seen
    assert truth(GROWTH, evidence, "prompt-fits") is seen


def test_item_4_a_limit_that_is_not_the_blocks_tells_nothing_of_the_cache() -> None:
    """--session-len sets another; and of two that are named one is wrong."""
    for limit, also in ((256, 256), (1344, 256)):
        refused = ended(3446, also, "INPUT_LENGTH_ERROR")
        evidence = logged(opaque_run(), sized(0.1, 21, limit), refused, refused)
        found = told(BUDGET, evidence)["outgrows-cache"]
        assert (found.truth, "256" in found.observed) == (UNKNOWN, True)
    torn = logged(opaque_run(), sized(0.1, 21, 1344), REFUSED, ended(3446, 1343))
    assert truth(BUDGET, torn, "outgrows-cache") is UNKNOWN


def test_item_4_both_ways_of_asking_must_have_come_to_the_engine() -> None:
    evidence = opaque_run()
    lines = sized(0.1, 21, 1344)
    replace_log(evidence, log(lines, ended(376, 1344), REFUSED))
    truths = {r.id: r.truth for r in told(BUDGET, evidence).values()}
    assert truths["outgrows-cache"] is truths["input-length-error"] is UNKNOWN
    assert judge(BUDGET, evidence)[0] is Outcome.INCONCLUSIVE
    replace_log(evidence, log(lines, REFUSED, ended(3446, 1344, "FINISH")))
    assert truth(BUDGET, evidence, "input-length-error") is NOT_MET
    replace_log(evidence, log(lines, REFUSED, ended(3446, 3446, "INPUT_LENGTH_ERROR")))
    assert truth(BUDGET, evidence, "input-length-error") is NOT_MET
    shorter = logged(opaque_run(), sized(0.1, 21, 1344), REFUSED, ended(1300, 1344))
    assert truth(BUDGET, shorter, "outgrows-cache") is UNKNOWN


@pytest.mark.parametrize(
    ("prompt", "tokens", "seen"),
    [
        (1172, 43, NOT_MET),
        (1172, 44, MET),
        (1000, 99, NOT_MET),
        (1000, 100, MET),
        (None, 44, NOT_MET),
    ],
)
def test_item_4_how_far_an_answer_grew(
    prompt: int | None, tokens: int, seen: Truth
) -> None:
    evidence = truncated_run()
    growing = relabelled(evidence, "growing")
    growing.prompt_tokens, growing.completion_tokens = prompt, tokens
    assert truth(GROWTH, evidence, "grew") is seen


@pytest.mark.parametrize(
    ("generated", "seen"), [(1, MET), (0, UNKNOWN), (None, UNKNOWN)]
)
def test_item_4_how_far_a_failed_answer_grew(
    generated: int | None, seen: Truth
) -> None:
    """The engine's own count; the gate's short answer is not it."""
    edge = ended(1280, 1344, "SUCCESS", generated)
    evidence = logged(
        crash_run(), sized(0.1, 21, 1344), ended(1280, 1344, "FINISH", 4), edge
    )
    assert truth(GROWTH, evidence, "grew") is seen
    only = logged(crash_run(), sized(0.1, 21, 1344), SHORT_ANSWER)
    assert truth(GROWTH, only, "grew") is UNKNOWN
    one = [ended(1300, 1344, None), SHORT_ANSWER]  # not the first of them
    assert truth(GROWTH, logged(crash_run(), sized(0.1, 21, 1344), *one), "grew") is MET


def test_item_4_one_that_failed_early_did_not_fill_the_cache() -> None:
    lines = sized(0.1, 21, 1344) | {"assertion": line("assert len(running) > 0")}
    begun = ended(1270, 1344, "SUCCESS", 10)  # 1280: the last block is empty
    evidence = logged(crash_run(), lines, ended(1270, 1344, "FINISH", 4), begun)
    outcome, truths, _ = judge(GROWTH, evidence)
    assert (truths["grew"], outcome) == (NOT_MET, Outcome.INCONCLUSIVE)
    # 0.7.0: the engine never ends that request.
    hung = logged(crash_run(), lines, SHORT_ANSWER)
    assert truth(GROWTH, hung, "grew") is MET
    refused = truncated_run()
    growing = relabelled(refused, "growing")
    growing.status, growing.error = 400, "the request exceeds the context length"
    assert truth(GROWTH, refused, "grew") is MET


def test_item_4_a_setting_prevented_it_only_where_the_engine_has_the_blocks() -> None:
    facts = run_facts(BUDGET, "", "kv-budget")
    for evidence, prevented in (
        (mitigated_run(), True),
        (
            logged(mitigated_run(), sized(0.1, 21, 1344), *[ended(3446, 1344)] * 2),
            False,
        ),
        (logged(mitigated_run(), sized(0.1, 21, 1344), *[ended(3446, 3584)] * 2), None),
    ):
        verdict = judge_run(BUDGET, evidence, facts)
        assert verdict.outcome is Outcome.NOT_REPRODUCED
        assert effect(BUDGET, evidence, facts, verdict).prevented is prevented


# ------------------------------------------------------------------ item 6: solved


SOLVED = {"gpu-mem"}
BY_LOG = ("blocks-21", "limit-1344", "blocks-107", "limit-6848")
"""What follows from the free memory that the report's own log gives, and not from its
gpu_mem."""


def test_item_6_what_was_solved_from_the_report_is_consistent_with_it_no_more() -> None:
    run = load(CORPUS / "undersized-kv-budget-text-0.6.4.zip")
    claims = {
        c.id: c for c in BUDGET.claim_results(run.evidence, facts_of(run, BUDGET))
    }
    for name in SOLVED:
        assert claims[name].status is NOT_TESTED
        assert (
            "consistent with it, no more: the free memory was solved"
            in claims[name].observed
        )
    for name in BY_LOG:
        assert claims[name].status is CONFIRMED
        assert "its log says 6784 mb" in claims[name].observed
    assert claims["blocks-24"].status is REFUTED
    assert (
        "the report contradicts itself: 24 × 64 = 1536" in claims["blocks-24"].observed
    )


def test_item_6_another_memory_than_the_logs_says_nothing_of_the_blocks() -> None:
    run = load(CORPUS / "undersized-kv-budget-text-0.6.4.zip")
    for _, data in run.evidence.results(LogsData, "control", "gate", "check"):
        for entry in data.matches.get("witness-budget", ()):
            entry.text = re.sub(r"111155328", "111171840", entry.text)  # 6785.4 MiB
    claims = {
        c.id: c for c in BUDGET.claim_results(run.evidence, facts_of(run, BUDGET))
    }
    assert {claims[name].status for name in BY_LOG} == {NOT_TESTED}


@pytest.mark.parametrize("name", RECORDED)
def test_item_6_no_recording_confirms_a_solved_number(name: str) -> None:
    run = load(CORPUS / f"{name}.zip")
    scenario = (
        GROWTH if name.startswith("kv-") else BUDGET.with_variant(run.scenario.variant)
    )
    claims = scenario.claim_results(run.evidence, facts_of(run, scenario))
    assert not {c.id for c in claims if c.status is CONFIRMED} & SOLVED


def test_item_6_a_number_that_disagrees_is_still_refuted() -> None:
    other = logged(opaque_run(), sized(0.1, 22, 1408), REFUSED, REFUSED)
    claims = claimed(BUDGET, other)
    assert claims["blocks-21"].status is claims["limit-1344"].status is REFUTED
    assert "consistent" not in claims["blocks-21"].observed
    drop(other, "logs")
    assert claimed(BUDGET, other)["blocks-21"].status is NOT_TESTED


@pytest.mark.parametrize("name", ["limit-1344", "works-with-0.5", "limit-6848"])
def test_item_6_a_limit_that_was_set_says_nothing_of_the_blocks(name: str) -> None:
    evidence = opaque_run()
    relabelled(evidence, "control server: the prompt").status = 400
    for phase, share, blocks in (("check", 0.1, 21), ("control", 0.5, 107)):
        replace_log(evidence, log(sized(share, blocks, 256)), phase)
    assert claimed(BUDGET, evidence)[name].status is NOT_TESTED


@pytest.mark.parametrize(
    "name",
    [
        "fails-with-0.1",
        "validation-error",
        "status",
        "blocks-21",
        "blocks-24",
        "limit-1344",
    ],
)
def test_item_6_another_setting_says_nothing_of_the_reports(name: str) -> None:
    """The same failure, with 0.2: nothing of it is the report's number."""
    refused = ended(3446, 2752, "INPUT_LENGTH_ERROR")
    evidence = opaque_run()
    lines = sized(0.2, 43, 2752) | {
        name: line(text) for name, text in TRACEBACK.items()
    }
    replace_log(evidence, log(lines, refused, refused))
    assert judge(BUDGET, evidence)[0] is Outcome.REPRODUCED
    assert claimed(BUDGET, evidence)[name].status is NOT_TESTED


@pytest.mark.parametrize("name", ["works-with-0.5", "blocks-107", "limit-6848"])
def test_item_6_nor_does_another_control_server(name: str) -> None:
    evidence = opaque_run()
    replace_log(evidence, log(sized(0.8, 172, 11008)), "control")
    assert judge(BUDGET, evidence)[0] is Outcome.REPRODUCED
    assert claimed(BUDGET, evidence)[name].status is NOT_TESTED


# ------------------------------------------------------------------ item 7: the order


def encoded(
    *lines: int, refused: tuple[int, ...] = (20, 40), step: str = "forward"
) -> Evidence:
    """An image run whose encoder was done in these lines of the log."""
    data = log(sized(0.1, 21, 1344))
    work = witness("vision", step=step, seconds=4.02)
    data.matches["witness-vision"] = [at(number, work) for number in lines]
    data.matches["witness-request"] = [at(number, LONG) for number in refused]
    evidence = opaque_run()
    replace_log(evidence, data)
    return evidence


@pytest.mark.parametrize(
    ("evidence", "seen"),
    [
        (encoded(15, 35), MET),
        (encoded(15, 16), MET),
        (encoded(19, 39), MET),
        (encoded(25, 45), NOT_MET),
        (encoded(15, 45), NOT_MET),
        (encoded(25, 26), NOT_MET),
        (encoded(20, 40), NOT_MET),
        (encoded(15), NOT_MET),
        (encoded(), UNKNOWN),
        (encoded(15, refused=(20,)), UNKNOWN),
        (encoded(15, 35, step="async_infer"), MET),
        (encoded(15, 35, step="preprocess"), UNKNOWN),
    ],
)
def test_item_7_the_encoder_was_done_before_each_refusal(
    evidence: Evidence, seen: Truth
) -> None:
    found = told(IMAGE, evidence)["encoder-first"]
    assert found.truth is seen, found.observed
    if seen is not UNKNOWN:
        assert (", before each refusal" in found.observed) is (seen is MET)


def test_item_7_without_a_refusal_the_order_is_unknown() -> None:
    evidence = encoded(15, 35)
    (data,) = (
        p.data for p in evidence.probes if p.phase == "check" and p.probe == "logs"
    )
    assert isinstance(data, LogsData)
    data.matches["witness-request"] = [at(n, ended(1661, 1792)) for n in (20, 40)]
    found = told(IMAGE, evidence)["encoder-first"]
    assert (found.truth, found.observed) == (UNKNOWN, "the engine refused no prompt")
    data.matches["witness-request"][1] = at(40, LONG)
    assert truth(IMAGE, evidence, "encoder-first") is MET


# ---------------------------------------------------------------- item 12: a silent log


def test_item_12_a_log_without_errors_does_not_say_that_there_was_no_assertion() -> (
    None
):
    """--log-level=CRITICAL: the loop may have ended by it, and nobody wrote it down."""
    silent = logged(crash_run(), sized(0.1, 21, 1344), *GROWN)
    outcome, truths, _ = judge(GROWTH, silent)
    assert (truths["assertion"], outcome) == (UNKNOWN, Outcome.INCONCLUSIVE)
    claims = claimed(GROWTH, silent)
    assert claims["asserts"].status is claims["all-fail"].status is NOT_TESTED


@pytest.mark.parametrize(
    ("texts", "seen"),
    [
        (("Task <MainLoop> failed",), NOT_MET),
        (("exception happened: <class 'RuntimeError'> x",), NOT_MET),
        (("exception happened: <class 'AssertionError'> ",), UNKNOWN),
        (("Engine loop failed with error:", "AssertionError"), UNKNOWN),
    ],
)
def test_item_12_which_assertion_it_was_is_not_guessed(
    texts: tuple[str, ...], seen: Truth
) -> None:
    """0.9.0 and 0.9.1 log the class of what ended the loop, and not its text."""
    evidence = logged(crash_run(), sized(0.1, 21, 1344), *GROWN)
    (data,) = (
        p.data for p in evidence.probes if p.phase == "check" and p.probe == "logs"
    )
    assert isinstance(data, LogsData)
    data.matches["loop-ended"] = [line(text) for text in texts]
    assert truth(GROWTH, evidence, "assertion") is seen
    pattern = re.compile(GROWTH.log_patterns["loop-ended"])
    assert all(pattern.search(text) for text in texts)


def test_item_12_what_is_expected_of_releases_that_were_run() -> None:
    none: frozenset[str] = frozenset()
    expected = {
        "0.6.4": Outcome.REPRODUCED,
        "0.7.0.post3": Outcome.REPRODUCED,
        "0.7.1": Outcome.REPRODUCED,
        "0.8.0": Outcome.REPRODUCED,
        "0.9.0": Outcome.INCONCLUSIVE,
        "0.9.1": Outcome.INCONCLUSIVE,
        "0.9.2": Outcome.NOT_REPRODUCED,
        "0.18.0": Outcome.NOT_REPRODUCED,
    }
    assert {r: GROWTH.expected(r, none)[0] for r in expected} == expected
    cured = GROWTH.expected("0.9.1", frozenset({"kv-budget"}))
    assert cured[0] is Outcome.NOT_REPRODUCED


def test_item_12_nor_that_there_was_no_validation_error() -> None:
    silent = logged(opaque_run(), sized(0.1, 21, 1344), REFUSED, REFUSED)
    outcome, truths, _ = judge(BUDGET, silent)
    assert (truths["validation-error"], outcome) == (UNKNOWN, Outcome.INCONCLUSIVE)
    assert claimed(BUDGET, silent)["validation-error"].status is NOT_TESTED


# ------------------------------------------------------------------ a log of before


@pytest.mark.parametrize(("number", "seen"), [(START, UNKNOWN), (START + 1, MET)])
def test_lines_of_before_the_engine_sized_its_cache_are_another_servers(
    number: int, seen: Truth
) -> None:
    asserted = line("assert len(running) > 0", number)
    lines = sized(0.1, 21, 1344) | {"assertion": asserted}
    assert truth(GROWTH, logged(crash_run(), lines, *GROWN), "assertion") is seen
    crashed = logged(crash_run(), lines, SHORT_ANSWER)
    assert truth(GROWTH, crashed, "grew") is seen
    ended_so = sized(0.1, 21, 1344) | {"loop-ended": asserted}
    other = truth(GROWTH, logged(crash_run(), ended_so, *GROWN), "assertion")
    assert other is (NOT_MET if seen is MET else UNKNOWN)


@pytest.mark.parametrize("old", ["validation-error", "finish-reason"])
def test_a_validation_error_of_before_is_not_this_prompts(old: str) -> None:
    evidence = opaque_run()
    (data,) = (
        p.data for p in evidence.probes if p.phase == "check" and p.probe == "logs"
    )
    assert isinstance(data, LogsData)
    data.matches[old] = [at(START, data.matches[old][0])]
    assert truth(BUDGET, evidence, "validation-error") is UNKNOWN
    data.errors = [line("Exception in ASGI application", START)]
    assert truth(BUDGET, evidence, "validation-error") is UNKNOWN
    data.errors.append(line("Exception in ASGI application", START + 1))
    assert truth(BUDGET, evidence, "validation-error") is NOT_MET


# ----------------------------------------------------------------- prompts at the limit

AT_LIMIT = {"less-than": "0", "fewer-serves": "16", "room-ahead": "17"}
"""Claims, and the recording that judges each, by tokens fewer than the limit."""


def at_limit(
    fewer: str, change: Callable[[Evidence], object] = lambda _: None
) -> dict[str, str]:
    run = load(CORPUS / f"undersized-kv-budget-option-at-limit-{fewer}.zip")
    change(run.evidence)
    results = BUDGET.claim_results(run.evidence, facts_of(run, BUDGET))
    return {c.id: c.status.value for c in results if c.id in AT_LIMIT}


def only(claim: str, status: str) -> dict[str, str]:
    return dict.fromkeys(AT_LIMIT, "not-tested") | {claim: status}


def answered_with(tokens: int | None) -> Callable[[Evidence], object]:
    """HTTP 200 and so many tokens; the next one is answered as well. None: neither."""

    def change(evidence: Evidence) -> None:
        for label in (report.AT_LIMIT, report.AT_LAST):
            sent = next(r for r in evidence.requests if r.label == label)
            sent.status = 500 if tokens is None else 200
            sent.error, sent.completion_tokens = (
                "",
                tokens if label == report.AT_LIMIT else 4,
            )
            sent.finish_reason = "length"

    return change


@pytest.mark.parametrize(
    ("claim", "tokens", "status"),
    [
        ("less-than", 1, "refuted"),
        ("less-than", None, "confirmed"),
        ("fewer-serves", 1, "confirmed"),
        ("room-ahead", 0, "refuted"),
        ("room-ahead", None, "refuted"),
    ],
)
def test_another_answer_there_turns_it(
    claim: str, tokens: int | None, status: str
) -> None:
    assert at_limit(AT_LIMIT[claim], answered_with(tokens)) == only(claim, status)


def test_a_prompt_that_the_engine_did_not_see_judges_nothing() -> None:
    def unseen(evidence: Evidence) -> None:
        for _, data in evidence.results(LogsData):
            lines = data.matches["witness-request"]
            data.matches["witness-request"] = [
                one for one in lines if "1344, " not in one.text
            ]

    def no_limit(evidence: Evidence) -> None:
        for _, data in evidence.results(LogsData):
            data.matches["witness-limit"] = []

    for change in (unseen, no_limit):
        assert at_limit("0", change) == dict.fromkeys(AT_LIMIT, "not-tested")


def test_the_option_takes_a_number() -> None:
    assert (fewer_tokens(""), fewer_tokens("17")) == (0, 17)
    with pytest.raises(UsageError, match="'many' is no number of tokens"):
        fewer_tokens("many")


@pytest.mark.parametrize(
    ("eight", "four", "status"),
    [
        (4_325_376, 2_228_224, "confirmed"),
        (4_194_304, 2_097_152, "refuted"),
        (8_388_608, 2_228_224, "refuted"),
        (4_325_376, None, "not-tested"),
    ],
)
def test_a_quantised_block_is_smaller_and_has_more_than_its_elements(
    eight: int, four: int | None, status: str
) -> None:
    run = load(CORPUS / "undersized-kv-budget-option-at-limit-17.zip")
    facts = run.evidence.reproducers[0].facts
    facts |= {"block_bytes_8_bit": eight, "block_bytes_4_bit": four}
    results = BUDGET.claim_results(run.evidence, facts_of(run, BUDGET))
    assert {c.id: c.status.value for c in results}["quantised"] == status
