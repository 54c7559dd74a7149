"""What chunked-mm-prefill reads in requests and in the log: each bound from both
sides."""

from typing import Any

import pytest
from made_up import probed, request
from made_up_crash import DEAD, MISMATCH_TEXT, death_log, later, line, quiet_log, said
from mmrepro.engines import get_engine
from mmrepro.failure.signature import Truth
from mmrepro.probes.data import LogsData
from mmrepro.scenario import Finding, Logs, Requests
from mmrepro.scenarios.chunked_mm_prefill import placeholder as mask, report, stream
from mmrepro.traffic.evidence import Evidence, ImageSent, Missing

MET, NOT_MET, UNKNOWN = Truth.MET, Truth.NOT_MET, Truth.UNKNOWN

# ------------------------------------------------------------------ in one batch


def beside(image_status: int, begins: float, ends: float, **text: Any) -> Finding:
    """Of an image that was sent in second 3 and ended in second 4."""
    image = later(request("trigger", mask.IMAGE, image_status, error=""), 3, 1.0)
    status, words = text.get("status", 200), text.get("text", mask.PLACEHOLDER)
    sent = request(
        "trigger", mask.GENERATING, status, text=words, error=text.get("error", "")
    )
    sent.ttft_s = begins - 2
    return mask.generated_beside(
        Requests(Evidence(requests=[later(sent, 2, ends - 2), image]))
    )


FAILED = {"status": 500, "error": DEAD}
LEFT = {"status": 500, "error": mask.GIVEN_UP}


@pytest.mark.parametrize(
    ("begins", "ends", "expected"),
    [(2.5, 5.0, MET), (3.0, 4.0, MET), (3.125, 5.0, NOT_MET), (2.5, 3.875, NOT_MET)],
)
def test_beside_an_image_that_was_answered(
    begins: float, ends: float, expected: Truth
) -> None:
    assert beside(200, begins, ends).truth is expected


@pytest.mark.parametrize(
    ("begins", "ends", "text", "expected"),
    [
        (2.5, 3.0, FAILED, MET),  # it died with it
        (2.5, 2.875, FAILED, NOT_MET),
        (2.5, 3.5, LEFT, NOT_MET),
        (2.5, 4.0, LEFT, MET),
        (2.5, 3.5, {}, NOT_MET),
        (2.5, 4.0, {}, MET),
        (4.0, 5.0, {}, MET),
        (4.125, 5.0, {}, NOT_MET),
        (4.125, 5.0, FAILED, NOT_MET),
    ],
)
def test_beside_an_image_that_died(
    begins: float, ends: float, text: dict[str, Any], expected: Truth
) -> None:
    assert beside(500, begins, ends, **text).truth is expected


@pytest.mark.parametrize(("cut", "least"), [(0, "at least 390 ×"), (1, "389 ×")])
def test_a_text_that_was_cut_holds_at_least_so_many(cut: int, least: str) -> None:
    text = mask.PLACEHOLDER * 390
    assert len(text) == 3900
    assert beside(200, 2.5, 5.0, text=text[cut:]).observed.startswith(least)


# ------------------------------------------------------------------ in the prompt

SIZE = ImageSent(sha256="0" * 64, width=420, height=420, bytes=1000)
SMALLER = ImageSent(sha256="0" * 64, width=392, height=420, bytes=1000)


def prompted(**more: Any) -> Evidence:
    """The literal placeholder in a text that is 10 characters and a token longer than
    the other."""
    known = {"images": [SIZE], "prompt_tokens": 240 + 11}
    known |= {"prompt_head": f"a short text {mask.PLACEHOLDER}"}
    other = request(
        "gate",
        mask.SAME_SIZE,
        images=more.pop("others", [SIZE]),
        prompt_tokens=more.pop("of", 240),
    )
    other.prompt_head = "say"
    sent = request("trigger", mask.LITERAL, more.pop("status", 200), **known | more)
    return Evidence(requests=[other, sent])


@pytest.mark.parametrize(
    ("evidence", "expected"),
    [
        (prompted(), MET),
        (prompted(prompt_tokens=240 + 10), NOT_MET),
        (prompted(prompt_tokens=240 + 12), NOT_MET),
        (prompted(prompt_tokens=None), UNKNOWN),
        (prompted(of=None), UNKNOWN),
        (prompted(images=[SMALLER]), NOT_MET),
        (prompted(images=[], others=[]), NOT_MET),
        (prompted(status=500, error="boom"), UNKNOWN),
    ],
)
def test_the_placeholders_text_became_one_token(
    evidence: Evidence, expected: Truth
) -> None:
    evidence.probes = [probed(quiet_log())]
    assert mask.made_a_token(Requests(evidence), Logs(evidence)).truth is expected


def test_a_prompt_that_was_never_answered_is_told_by_the_core() -> None:
    evidence = prompted(status=500, error=DEAD)
    evidence.probes = [probed(death_log())]
    found = mask.made_a_token(Requests(evidence), Logs(evidence))
    assert (found.truth, found.observed) == (MET, MISMATCH_TEXT)


@pytest.mark.parametrize(
    ("evidence", "expected"),
    [
        (prompted(), MET),
        (prompted(images=[]), NOT_MET),
        (prompted(prompt_head="say"), NOT_MET),
    ],
)
def test_the_placeholder_stood_beside_an_image(
    evidence: Evidence, expected: Truth
) -> None:
    assert mask.literal_in_prompt(Requests(evidence)).truth is expected


# ------------------------------------------------------------------ in the log

ASSIGN = "ValueError: Attempted to assign {} multimodal tokens to {} placeholders"


@pytest.mark.parametrize(
    ("rows", "placeholders", "expected"),
    [
        ("225", 226, MET),
        ("225", 225, NOT_MET),
        ("225", 224, NOT_MET),
        ("100 + 125 = 225", 226, MET),
    ],
)
def test_there_were_more_placeholders_than_rows(
    rows: str, placeholders: int, expected: Truth
) -> None:
    logs = Logs(Evidence(probes=[probed(death_log(ASSIGN.format(rows, placeholders)))]))
    assert report.too_many(logs, get_engine("vllm")).truth is expected


STEP = "Chunked prefill is enabled with max_num_batched_tokens={}."


@pytest.mark.parametrize(
    ("budget", "mismatch", "expected"),
    [
        ("226", ASSIGN.format(225, 226), MET),
        ("225", ASSIGN.format(225, 226), NOT_MET),
        ("", ASSIGN.format(225, 226), UNKNOWN),
        ("226", "", UNKNOWN),
    ],
)
def test_a_budget_above_the_image(budget: str, mismatch: str, expected: Truth) -> None:
    data = said(
        quiet_log(), mask_mismatch=mismatch, budget=budget and STEP.format(budget)
    )
    logs = Logs(Evidence(probes=[probed(data)]))
    assert report.with_budget_above_the_image(logs).truth is expected


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("{'enforce_eager': True}", MET),
        ("{'async_scheduling': True}", NOT_MET),
        ("{'enforce_eager': True, 'mode", UNKNOWN),
    ],
)
def test_asynchronous_scheduling_is_listed(arguments: str, expected: Truth) -> None:
    data = said(quiet_log(), arguments=f"non-default args: {arguments}")
    assert (
        report.without_async_scheduling(Logs(Evidence(probes=[probed(data)]))).truth
        is expected
    )


def streamed(**lines: list[str]) -> Logs:
    names = {name.replace("_", "-"): texts for name, texts in lines.items()}
    data = LogsData(
        file="engine.log",
        bytes_read=1,
        lines=1,
        matches={
            n: [line(1, "", f"mmrepro-stream: {t}") for t in ts]
            for n, ts in names.items()
        },
        match_counts={name: len(texts) for name, texts in names.items()},
    )
    return Logs(Evidence(probes=[probed(data)]))


MASK = "step {}: mask: {} embeddings, …"


def test_one_is_some() -> None:
    logs = streamed(
        stream_mask=[MASK.format(1, 254)], stream_silent=["step 1: silent: …"]
    )
    assert stream.silent_steps(logs).truth is MET
    assert stream.right_rows(logs).truth is NOT_MET
    for busy, expected in ((1, MET), (0, NOT_MET)):
        steps = f"steps: 2 begun, {busy} with the device still busy"
        assert stream.steps_overlap(streamed(stream_steps=[steps])).truth is expected


def test_a_step_without_image_rows_ends_nothing_but_its_image() -> None:
    steps = [(1, 0), (2, 254), (3, 92), (4, 0), (5, 144)]
    logs = streamed(stream_mask=[MASK.format(*step) for step in steps])
    assert stream.image_steps(logs) == [[254, 92], [144]]
    with pytest.raises(Missing):
        stream.image_steps(streamed(stream_mask=[MASK.format(1, 0)]))
