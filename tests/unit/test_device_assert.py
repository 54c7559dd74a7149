"""What a GPU says of a device-side assert, as one said it, against the rules that look for it."""

import json
from pathlib import Path
from typing import Any

import pytest
from mmrepro.failure.signature import Truth
from mmrepro.scenarios.chunked_mm_prefill.device_assert import claims, judged

MET, NOT_MET, UNKNOWN = Truth.MET, Truth.NOT_MET, Truth.UNKNOWN
RECORDED: dict[str, Any] = json.loads(
    Path(__file__).with_name("device_assert_h100.json").read_text()
)
OUTPUT = {one["cause"]: one["output"] for one in RECORDED["refusals"]}
SCATTER, INDEX = OUTPUT["scatter"], OUTPUT["index"]
PRINTED, TRACEBACK, RAISED = SCATTER.partition("Traceback")


def test_it_was_recorded_on_a_gpu() -> None:
    assert (RECORDED["device"], RECORDED["gpu"]) == ("cuda", "NVIDIA H100 80GB HBM3")


@pytest.mark.parametrize(
    ("output", "truth"),
    [
        (SCATTER, MET),
        (INDEX, NOT_MET),
        (TRACEBACK + RAISED, UNKNOWN),  # what the device printed was lost
        (INDEX.partition("Traceback")[0] + SCATTER, NOT_MET),  # another assertion came first
        (TRACEBACK + RAISED + PRINTED, UNKNOWN),  # printed after it: of another process, or life
        (SCATTER.replace("device-side assert triggered", "out of memory"), NOT_MET),
        (PRINTED, UNKNOWN),  # the process was aborted before it said anything
        ("", NOT_MET),
    ],
)
def test_only_masked_scatters_own_assert_is_told(output: str, truth: Truth, tmp_path: Path) -> None:
    assert judged(output, tmp_path).truth is truth


def test_the_words_of_a_cpu_are_told_too(tmp_path: Path) -> None:
    words = "RuntimeError: Number of elements of source < number of ones in mask\n"
    assert judged("Traceback (most recent call last):\n" + words, tmp_path).truth is MET
    other = words.replace("<", ">")
    assert judged("Traceback (most recent call last):\n" + other, tmp_path).truth is NOT_MET


def test_what_is_told_names_the_assertion(tmp_path: Path) -> None:
    told = judged(SCATTER, tmp_path).observed
    assert "AcceleratorError: CUDA error: device-side assert triggered" in told
    assert "masked_scatter_size_check" in told


def test_the_claims_of_accept(tmp_path: Path) -> None:
    assert [one["status"] for one in claims(RECORDED, tmp_path)] == ["confirmed"] * 2
    swapped = {**RECORDED, "refusals": [*RECORDED["refusals"]]}
    swapped["refusals"] = [
        {**one, "output": OUTPUT["index" if one["cause"] == "scatter" else "scatter"]}
        for one in RECORDED["refusals"]
    ]
    assert [one["status"] for one in claims(swapped, tmp_path)] == ["refuted"] * 2
    on_a_cpu = {**RECORDED, "device": "cpu"}
    assert [one["status"] for one in claims(on_a_cpu, tmp_path)] == ["not-tested"] * 2
