"""LMDeploy's two KV scenarios: bounds, and which of several lines is the one that
tells."""

from typing import Any

import pytest
from made_up import request
from made_up_kv import (
    BLOCK,
    FREE,
    RUNTIME,
    crash_run,
    ended,
    log,
    logged,
    opaque_run,
    replace_log,
    sized,
    told,
    truth,
    witness,
)
from mmrepro.failure.signature import Truth
from mmrepro.scenarios import kv_growth_crash as growth
from mmrepro.scenarios.undersized_kv_budget import SCENARIO as BUDGET

MET, NOT_MET, UNKNOWN = Truth.MET, Truth.NOT_MET, Truth.UNKNOWN


@pytest.mark.parametrize(
    ("status", "fails"),
    [(None, True), (399, True), (400, False), (499, False), (500, True), (501, True)],
)
def test_a_4xx_tells_nothing_of_the_engine(status: int | None, fails: bool) -> None:
    sent = request("trigger", "growing", status, error="no")
    assert growth.fails(sent) is fails


@pytest.mark.parametrize(
    ("prompt", "answer", "length"), [(None, 44, 44), (1300, None, 1300), (7, 4, 11)]
)
def test_the_length_of_prompt_and_answer(
    prompt: int | None, answer: int | None, length: int
) -> None:
    sent = request("trigger", "growing", prompt_tokens=prompt, completion_tokens=answer)
    assert growth.length(sent) == length


@pytest.mark.parametrize(
    ("status", "answer", "cut"),
    [(200, 99, True), (200, 100, False), (200, None, False), (500, 99, False)],
)
def test_only_an_answer_is_cut_short(
    status: int, answer: int | None, cut: bool
) -> None:
    sent = request("trigger", "growing", status, text="abc", completion_tokens=answer)
    assert growth.told(sent).endswith(", cut short: 100 were asked for") is cut


def test_it_is_the_second_of_the_longest_that_grew() -> None:
    """The first is the gate's."""
    for first, second, seen in ((4, 11, MET), (11, 10, NOT_MET)):
        both = ended(1270, 1344, "FINISH", first), ended(1270, 1344, "SUCCESS", second)
        evidence = logged(crash_run(), sized(0.1, 21, 1344), *both)
        found = told(growth.SCENARIO, evidence)["grew"]
        assert found.truth is seen
        assert f"the engine had {1270 + second} tokens of 1344" in found.observed


def test_the_first_of_both_ways_of_asking_is_told() -> None:
    first = ended(3446, 1344, "INTERNAL_ENGINE_ERROR")
    second = ended(3500, 1344, "INTERNAL_ENGINE_ERROR")
    found = told(BUDGET, logged(opaque_run(), sized(0.1, 21, 1344), first, second))
    assert found["input-length-error"].observed.startswith("3446 tokens")
    assert "for a prompt of 3446;" in found["limit-from-blocks"].observed


def budget(**more: Any) -> dict[str, Any]:
    known = {"memory": [FREE, 1], "runtime": [RUNTIME, 1], "block_bytes": BLOCK}
    return {"witness-budget": witness("budget", **known | more)}


@pytest.mark.parametrize(
    ("ours", "control", "expected"),
    [
        (sized(0.1, 21, 1344), sized(0.5, 107, 6848), MET),
        (sized(0.1, 22, 1344), sized(0.5, 107, 6848), NOT_MET),
        (sized(0.1, 21, 1344), sized(0.5, 108, 6848), NOT_MET),
        (sized(0.1, 21, 1344), sized(0.1, 21, 1344), NOT_MET),
        (sized(0.5, 107, 1344), sized(0.1, 21, 1344), NOT_MET),
        (
            sized(0.1, 21, 1344),
            sized(0.5, 107, 6848) | budget(memory=[FREE + 1, 1]),
            NOT_MET,
        ),
    ],
)
def test_only_the_setting_makes_the_blocks_fewer(
    ours: dict[str, Any], control: dict[str, Any], expected: Truth
) -> None:
    evidence = opaque_run()
    refused = ended(3446, 1344, "INPUT_LENGTH_ERROR")
    replace_log(evidence, log(ours, refused, refused))
    replace_log(evidence, log(control), "control")
    assert truth(BUDGET, evidence, "blocks-from-bytes") is expected
