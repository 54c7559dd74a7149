"""LMDeploy's KV chain link by link, which requests failed, and what a live server shows
of it."""

from collections.abc import Callable

import pytest
from made_up import http, probed, request
from made_up_kv import (
    BLOCK,
    FREE,
    REFUSED,
    RUNTIME,
    claimed,
    crash_run,
    ended,
    line,
    log,
    logged,
    mitigated_run,
    opaque_run,
    relabelled,
    replace_log,
    sized,
    truncated_run,
    truth,
    witness,
)
from mmrepro.base.records import ClaimStatus
from mmrepro.failure.documents.diagnosis import Fit
from mmrepro.failure.signature import Truth
from mmrepro.failure.signature.live_server import FAILED
from mmrepro.live.diagnose.match import match
from mmrepro.probes.data import InferenceData, LogLine, LogsData
from mmrepro.scenario import LiveFacts, lmdeploy as kv
from mmrepro.scenarios import kv_growth_crash as growth
from mmrepro.scenarios.kv_growth_crash import SCENARIO as GROWTH
from mmrepro.scenarios.undersized_kv_budget import SCENARIO as BUDGET
from mmrepro.traffic.evidence import Evidence, RequestRecord

MET, NOT_MET, UNKNOWN = Truth.MET, Truth.NOT_MET, Truth.UNKNOWN
CONFIRMED, REFUTED, NOT_TESTED = (
    ClaimStatus.CONFIRMED,
    ClaimStatus.REFUTED,
    ClaimStatus.NOT_TESTED,
)


# -------------------------------------------------------------- the chain, link by link


def budget(change: Callable[[dict[str, LogLine]], None], phase: str) -> Truth:
    evidence = opaque_run()
    share, blocks, limit = (0.1, 21, 1344) if phase == "check" else (0.5, 107, 6848)
    lines = sized(share, blocks, limit)
    change(lines)
    replace_log(evidence, log(lines, REFUSED, REFUSED), phase)
    return truth(BUDGET, evidence, "blocks-from-bytes")


def bytes_of(free: int = FREE, runtime: int = RUNTIME, block: int = BLOCK) -> LogLine:
    return witness("budget", memory=[free, 1], runtime=[runtime, 1], block_bytes=block)


@pytest.mark.parametrize("phase", ["check", "control"])
@pytest.mark.parametrize(
    "line_of",
    [
        bytes_of(free=FREE + 64),
        bytes_of(runtime=RUNTIME - 64),
        bytes_of(block=BLOCK - 8),
        bytes_of(free=FREE - BLOCK * 30),
    ],
)
def test_the_same_bytes_on_both_servers_give_each_ones_blocks(
    line_of: LogLine, phase: str
) -> None:
    """The first three still give the same blocks: both servers must have the same
    bytes."""
    assert budget(lambda lines: None, phase) is MET
    assert (
        budget(lambda lines: lines.update({"witness-budget": line_of}), phase)
        is NOT_MET
    )


@pytest.mark.parametrize(
    ("ours", "other", "holds"),
    [
        ((0.1, 21), (0.5, 107), MET),
        ((0.1, 22), (0.5, 107), NOT_MET),
        ((0.1, 21), (0.5, 108), NOT_MET),
        ((0.1, 21), (0.1, 21), NOT_MET),
        ((0.5, 107), (0.1, 21), NOT_MET),
    ],
)
def test_each_operand_of_holds_alone(
    ours: tuple[float, int], other: tuple[float, int], holds: Truth
) -> None:
    evidence = logged(opaque_run(), sized(*ours, ours[1] * 64), REFUSED, REFUSED)
    replace_log(evidence, log(sized(*other, other[1] * 64)), "control")
    assert truth(BUDGET, evidence, "blocks-from-bytes") is holds


@pytest.mark.parametrize(
    ("ours", "other", "sent", "holds"),
    [
        (1344, 6848, (3446, 1344), MET),
        (1344, 3456, (3446, 1344), MET),
        (1344, 3446, (3446, 1344), NOT_MET),  # not 107 blocks, nor 106
        (3456, 6848, (3446, 3456), NOT_MET),
        (1344, 6848, (3446, 1280), NOT_MET),
        (1343, 6848, (3446, 1343), NOT_MET),
        (1344, 3392, (3446, 1344), NOT_MET),
    ],
)
def test_each_operand_of_the_limit_alone(
    ours: int, other: int, sent: tuple[int, int], holds: Truth
) -> None:
    lines = sized(0.1, -(-ours // 64), ours)
    request = ended(*sent, "INPUT_LENGTH_ERROR")
    evidence = logged(opaque_run(), lines, request, request)
    replace_log(evidence, log(sized(0.5, -(-other // 64), other)), "control")
    assert truth(BUDGET, evidence, "limit-from-blocks") is holds


@pytest.mark.parametrize(
    ("reserved", "limit", "right"),
    [
        (0, 1344, True),
        (0, 1280, True),
        (0, 1216, False),
        (1, 1216, True),
        (1, 1280, False),
    ],
)
def test_how_many_blocks_may_be_held_back(
    reserved: int, limit: int, right: bool
) -> None:
    sizing = kv.Sizing(FREE, RUNTIME, BLOCK, 0.1, 21, reserved, 64, limit)
    assert sizing.limit_adds_up is right


def test_the_blocks_are_the_pools_whole_ones() -> None:
    for share, blocks in ((0.1, 21), (0.5, 107), (0.26, 56)):
        assert kv.Sizing(FREE, RUNTIME, BLOCK, share, blocks, 0, 64, 0).blocks_add_up
    assert not kv.Sizing(FREE, 0, BLOCK, 0.1, 21, 0, 64, 0).blocks_add_up


# ---------------------------------------------------------------- which requests failed


@pytest.mark.parametrize(
    ("status", "text", "fails"),
    [
        (500, "", True),
        (503, "", True),
        (499, "", False),
        (429, "", False),
        (400, "", False),
        (399, "", False),
        (200, "internal error happened", True),
        (200, "abc", False),
        (None, "", True),
    ],
)
def test_a_server_error_is_500_and_above(
    status: int | None, text: str, fails: bool
) -> None:
    sent = RequestRecord.model_validate(request("trigger", "x", status).model_dump())
    sent.text, sent.error = text, "Too Many Requests" if (status or 0) >= 400 else ""
    if status == 399:
        sent.text = "abc"
    assert growth.fails(sent) is fails
    evidence = crash_run()
    relabelled(evidence, "short after 2").status = status
    relabelled(evidence, "short after 2").text = sent.text
    relabelled(evidence, "short after 2").error = sent.error
    assert truth(GROWTH, evidence, "all-fail-after") is (MET if fails else NOT_MET)


def test_what_ends_at_the_limit_was_cut_there() -> None:
    for tokens, status in ((44, CONFIRMED), (43, NOT_TESTED), (100, REFUTED)):
        evidence = truncated_run()
        relabelled(evidence, "growing").completion_tokens = tokens
        assert claimed(GROWTH, evidence, "0.18.0")["truncates"].status is status, tokens
    failed = crash_run()
    assert claimed(GROWTH, failed, "0.18.0")["truncates"].status is NOT_TESTED


@pytest.mark.parametrize(
    ("status", "tokens", "cut"),
    [(200, 99, True), (200, 100, False), (200, None, False), (500, 44, False)],
)
def test_an_answer_that_is_cut_is_said_to_be(
    status: int, tokens: int | None, cut: bool
) -> None:
    sent = request("trigger", "growing", status)
    sent.completion_tokens = tokens
    assert growth.told(sent).endswith("cut short: 100 were asked for") is cut


@pytest.mark.parametrize("odd", ["opaque-500", "input-length-error"])
def test_a_500_by_another_cause_confirms_nothing_of_the_report(odd: str) -> None:
    """Another exception: the engine refused no prompt for its length."""
    evidence = opaque_run()
    if odd == "input-length-error":
        evidence = logged(
            evidence, sized(0.1, 21, 1344), *[ended(3446, 1344, "ERROR")] * 2
        )
    else:
        relabelled(evidence, "the prompt").error = "the prompt is too long"
    assert claimed(BUDGET, evidence)["fails-with-0.1"].status is not CONFIRMED


def test_silence_is_told_of_a_refusal_only() -> None:
    assert claimed(BUDGET, opaque_run())["silence"].status is CONFIRMED
    assert (
        claimed(BUDGET, mitigated_run(), "", "kv-budget")["silence"].status
        is NOT_TESTED
    )
    spoken = opaque_run()
    (data,) = (
        p.data for p in spoken.probes if p.phase == "check" and p.probe == "logs"
    )
    assert isinstance(data, LogsData)
    data.match_counts["says-length"] = 1
    assert claimed(BUDGET, spoken)["silence"].status is REFUTED


# ------------------------------------------------------------------ a live server


def inference(status: int | None, error: str) -> InferenceData:
    return InferenceData(
        answered=False, status=status, seconds=1, deadline_s=15, error=error
    )


@pytest.mark.parametrize(
    ("status", "error", "fit"),
    [
        (500, "HTTP 500: Internal Server Error", Fit.MATCH),
        (503, "HTTP 503: x", Fit.LIKELY),  # a gateway's words, perhaps
        (200, "the completion ended with finish_reason 'error'", Fit.MATCH),
        (200, "the 200 answer is not JSON", Fit.LIKELY),
        (401, "HTTP 401: Unauthorized", Fit.LIKELY),
        (429, "HTTP 429: Too Many Requests", Fit.LIKELY),
        (499, "HTTP 499: x", Fit.LIKELY),
        (None, "no answer", Fit.EXPOSED),
    ],
)
def test_live_a_refusal_tells_nothing_of_the_engine(
    status: int | None, error: str, fit: Fit
) -> None:
    """A server error is 500 and above; with a key that is missing nothing was
    learned."""
    evidence = Evidence(
        probes=[
            probed(http(200, 200)),
            probed(inference(status, error)),
            probed(log({"assertion": line("assert len(running) > 0")})),
        ]
    )
    facts = LiveFacts("lmdeploy", "0.6.4", ("lmdeploy", "serve"), 15.0)
    assert match(GROWTH, evidence, facts).fit is fit


def test_live_any_error_as_finish_reason_makes_the_budget_likely_no_more() -> None:
    """Other errors of the engine end so as well: only the witness sees why."""
    lines = {name: line(name) for name in ("validation-error", "finish-reason", FAILED)}
    answered = inference(200, "").model_copy(update={"answered": True})
    probes = [probed(http(200, 200)), probed(answered), probed(log(lines))]
    facts = LiveFacts("lmdeploy", "0.6.4", ("lmdeploy", "serve"), 15.0)
    assert match(BUDGET, Evidence(probes=probes), facts).fit is Fit.LIKELY
    seen = log(lines | sized(0.1, 21, 1344), REFUSED)
    assert (
        match(BUDGET, Evidence(probes=[*probes[:2], probed(seen)]), facts).fit
        is Fit.MATCH
    )
    other = log(lines | sized(0.1, 21, 1344), ended(100, 1344, "ERROR"))
    assert (
        match(BUDGET, Evidence(probes=[*probes[:2], probed(other)]), facts).fit
        is Fit.LIKELY
    )
