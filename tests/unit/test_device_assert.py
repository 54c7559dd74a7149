"""What a GPU says of a device-side assert, as one said it, against the rules that look
for it."""

import json
from pathlib import Path
from typing import Any

import pytest
from mmrepro.failure.documents import Incident
from mmrepro.failure.signature import Truth, evaluate
from mmrepro.probes.data import LogsData
from mmrepro.reports import load
from mmrepro.scenario import LiveFacts
from mmrepro.scenario.registry import load_scenario
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
        (
            INDEX.partition("Traceback")[0] + SCATTER,
            NOT_MET,
        ),  # another assertion came first
        (
            TRACEBACK + RAISED + PRINTED,
            UNKNOWN,
        ),  # printed after it: of another process, or life
        (SCATTER.replace("device-side assert triggered", "out of memory"), NOT_MET),
        (PRINTED, UNKNOWN),  # the process was aborted before it said anything
        ("", NOT_MET),
    ],
)
def test_only_masked_scatters_own_assert_is_told(
    output: str, truth: Truth, tmp_path: Path
) -> None:
    assert judged(output, tmp_path).truth is truth


def test_the_words_of_a_cpu_are_told_too(tmp_path: Path) -> None:
    words = "RuntimeError: Number of elements of source < number of ones in mask\n"
    assert judged("Traceback (most recent call last):\n" + words, tmp_path).truth is MET
    other = words.replace("<", ">")
    assert (
        judged("Traceback (most recent call last):\n" + other, tmp_path).truth
        is NOT_MET
    )


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


# ---------------------------------------------------------- stop-token-oov, as recorded

KILLED = Path(__file__).parents[1] / "evidence/stop-token-oov-0.23.0-on-a-gpu.zip"
LIVE = LiveFacts("vllm", "0.23.0", ("serve",), 15.0)


def cause(incident: Incident) -> dict[str, Truth]:
    """Of a look at the log alone: no gate, and no request of the scenario's own."""
    seen = incident.evidence
    seen.probes = [one for one in seen.probes if one.probe == "logs"]
    conditions = load_scenario("stop-token-oov").live_conditions(LIVE)
    return {
        one.id: one.truth for one in evaluate(conditions, seen) if one.part == "cause"
    }


def test_a_look_knows_the_failed_step_without_a_log_of_requests() -> None:
    incident = load(KILLED)
    (data,) = (data for _, data in incident.evidence.results(LogsData))
    assert cause(incident) == {"first-error": MET, "raised-in": MET}
    data.matches["request-as-sent"], data.match_counts["request-as-sent"] = [], 0
    assert cause(incident) == {"first-error": MET, "raised-in": MET}


def test_a_dump_that_was_not_kept_says_nothing_and_none_at_all_speaks_against_it() -> (
    None
):
    incident = load(KILLED)
    (data,) = (data for _, data in incident.evidence.results(LogsData))
    data.errors = [
        one for one in data.errors if "Dumping scheduler output" not in one.text
    ]
    assert cause(incident)["raised-in"] is UNKNOWN
    data.error_count = len(data.errors)
    assert cause(incident)["raised-in"] is NOT_MET
