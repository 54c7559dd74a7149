"""From what a child left to rows."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import verdicts
from mmrepro.base.errors import UsageError
from mmrepro.campaign.accept import parts
from mmrepro.campaign.accept.judging import (
    EXAMINED,
    Ended,
    Judged,
    claims_judge,
    junit_judge,
    machine_judge,
    run_judge,
)
from mmrepro.campaign.accept.parts import BORROWED_FAULTS, NOTE_FAULTS, PARTS, chosen
from mmrepro.cli.app import app
from mmrepro.failure.documents.acceptance import Status
from mmrepro.reports import load
from mmrepro.scenario.registry import load_scenario
from mmrepro.tools.check import HostReport
from typer.testing import CliRunner

EVIDENCE = Path(__file__).parents[2] / "evidence"


def ended(tmp_path: Path, code: int | None = 0, **more: Any) -> Ended:
    return Ended("cpu", code, 3.0, 60.0, tmp_path / "it", tmp_path / "it.xml", **more)


def recorded(name: str, tmp_path: Path, **changes: Any) -> Ended:
    """A recorded run as the child's incident."""
    incident = load(EVIDENCE / f"{name}.zip").model_copy(update=changes)
    folder = tmp_path / "it"
    folder.mkdir(parents=True)
    (folder / "incident.json").write_text(incident.model_dump_json())
    return ended(tmp_path)


def statuses(judged: Judged) -> list[Status]:
    return [row.status for row in judged.rows]


# ------------------------------------------------------------------ runs


def test_a_run_as_expected_passes(tmp_path: Path) -> None:
    judged = run_judge("it hangs", ("gpu-idle",))(
        recorded("ghost-key-eviction-0.23.0", tmp_path)
    )
    assert statuses(judged) == [Status.PASSED, Status.NOT_TESTED], "that was a CPU"
    assert judged.rows[0].expected == "reproduced"
    assert "no NVIDIA driver" in judged.rows[1].seen


def test_a_run_that_came_out_otherwise_fails(tmp_path: Path) -> None:
    made = recorded("borrowed-faults-reused-mask-with-fault-kv-budget", tmp_path)
    assert statuses(run_judge("it")(made)) == [Status.FAILED]


def test_a_run_without_a_verdict_is_broken_off_and_tried_again(tmp_path: Path) -> None:
    made = recorded(
        "ghost-key-eviction-0.23.0",
        tmp_path,
        verdict=None,
        state="failed",
        failure="vllm 0.23.0 ended with 1.",
    )
    judged = run_judge("it")(made)
    assert statuses(judged) == [Status.BROKEN_OFF]
    assert judged.rows[0].seen == "vllm 0.23.0 ended with 1."
    assert not judged.whole


def test_a_run_that_broke_off_after_its_verdict_proves_nothing(tmp_path: Path) -> None:
    failure = "The engine could not be ended."
    made = recorded(
        "ghost-key-eviction-0.23.0", tmp_path, state="failed", failure=failure
    )
    judged = run_judge("it")(made)
    assert statuses(judged) == [Status.BROKEN_OFF]
    assert judged.rows[0].seen == failure


def test_a_verdict_that_is_there_does_not_excuse_a_run_that_was_ended(
    tmp_path: Path,
) -> None:
    made = replace(recorded("ghost-key-eviction-0.23.0", tmp_path), exit_code=None)
    judged = run_judge("it")(made)
    assert statuses(judged) == [Status.BROKEN_OFF]
    assert "60 s" in judged.rows[0].seen


def test_an_inconclusive_run_tells_nothing_and_is_whole(tmp_path: Path) -> None:
    made = recorded("ghost-key-eviction-with-limit-mm-per-prompt-image-0", tmp_path)
    judged = run_judge("it")(made)
    assert statuses(judged) == [Status.NOT_TESTED]
    assert judged.whole


def test_without_an_incident_its_last_words_are_told(tmp_path: Path) -> None:
    judged = run_judge("it")(ended(tmp_path, 4, words="There is no room."))
    assert statuses(judged) == [Status.BROKEN_OFF]
    assert judged.rows[0].seen == "There is no room."


# ------------------------------------------------------------------ documents


def test_claims_become_rows(tmp_path: Path) -> None:
    document = {
        "torch": "2.11.0",
        "claims": [
            {
                "id": "a",
                "text": "it allocates",
                "status": "confirmed",
                "observed": "256 MiB",
            },
            {"id": "b", "text": "it copies", "status": "refuted"},
            {"id": "c", "text": "it captures", "status": "not-tested", "seconds": 0.5},
            {"id": "d", "text": "it flies", "status": "maybe"},
        ],
    }
    judged = claims_judge("it", "torch", keys=("torch",))(
        ended(tmp_path, 1, document=document)
    )
    assert statuses(judged) == [
        Status.PASSED,
        Status.FAILED,
        Status.NOT_TESTED,
        Status.BROKEN_OFF,
    ]
    assert judged.rows[0].seen == "256 MiB (torch 2.11.0)"
    assert judged.rows[2].seconds == 0.5


@pytest.mark.parametrize("document", [{}, {"claims": []}, {"claims": "all well"}])
def test_a_reproducer_that_claims_nothing_shows_nothing(
    tmp_path: Path, document: dict[str, Any]
) -> None:
    judged = claims_judge("it", "torch")(ended(tmp_path, 0, document=document))
    assert statuses(judged) == [Status.BROKEN_OFF]


def test_what_cannot_be_tried_is_not_tested(tmp_path: Path) -> None:
    document = {"device": "cuda", "error": "torch finds no CUDA device here"}
    for judge in (
        claims_judge("it", "torch"),
        parts.judge_prediction,
        parts.judge_observation,
        parts.judge_refusals,
    ):
        judged = judge(ended(tmp_path, 4, document=document))
        assert statuses(judged) == [Status.NOT_TESTED]
        assert not judged.whole, "it is tried again"


PTRACE = {
    "name": "ptrace",
    "ok": False,
    "required": True,
    "found": "refused",
    "costs": "stacks",
    "seconds": 1.5,
}
GPU = {"name": "gpu", "ok": False, "found": "no NVIDIA driver"}


@pytest.mark.parametrize(
    ("device", "wanted"),
    [
        ("cpu", [Status.FAILED, Status.NOT_TESTED]),
        ("cuda", [Status.FAILED, Status.FAILED]),
    ],
)
def test_what_a_run_needs_of_the_machine(
    tmp_path: Path, device: Any, wanted: Any
) -> None:
    told = {"ok": False, "device": "cpu", "parts": [PTRACE, GPU], "environments": []}
    report = json.loads(HostReport.model_validate(told).model_dump_json())
    made = replace(ended(tmp_path, 4, document=report), device=device)
    assert statuses(machine_judge(made)) == wanted
    assert machine_judge(made).rows[0].seen == "refused; stacks"
    assert machine_judge(made).rows[0].seconds == 1.5


def test_what_check_prints_is_read(tmp_path: Path) -> None:
    printed = json.loads(CliRunner().invoke(app, ["check", "--json"]).stdout)
    judged = machine_judge(ended(tmp_path, document=printed))
    assert {row.asked for row in judged.rows} == {*EXAMINED}


# ------------------------------------------------------------------ tests

JUNIT = """<testsuites><testsuite>
<testcase name="test_it_is_equal[0-cuda]" time="1.5"/><testcase name="test_it_is_equal[1-cuda]"
 time="2"/>
<testcase name="test_it_pins" time="0"><failure message="assert 1 == 2&#10;more">trace</failure>
</testcase>
<testcase name="test_it_is_skipped" time="0"><skipped message="no CUDA device"/></testcase>
</testsuite></testsuites>"""


def test_test_functions_become_rows(tmp_path: Path) -> None:
    (tmp_path / "it.xml").write_text(JUNIT)
    judged = junit_judge("tests")(ended(tmp_path, 1))
    assert [row.asked for row in judged.rows] == [
        "it is equal",
        "it pins",
        "it is skipped",
    ]
    assert statuses(judged) == [Status.PASSED, Status.FAILED, Status.NOT_TESTED]
    assert [row.seen for row in judged.rows] == [
        "2 of 2 cases",
        "0 of 1 cases: assert 1 == 2",
        "no CUDA device",
    ]
    assert judged.rows[0].seconds == 3.5


@pytest.mark.parametrize(
    "text", ["", "<testsuites><testsuite/></testsuites>", JUNIT[:200]]
)
def test_no_report_of_tests_is_no_success(tmp_path: Path, text: str) -> None:
    (tmp_path / "it.xml").write_text(text)
    assert statuses(junit_judge("tests")(ended(tmp_path, 0))) == [Status.BROKEN_OFF]


# ---------------------------------------------------------- the race and its prediction


def test_the_prediction_of_reused_mask_is_the_recorded_run_s() -> None:
    pinned = verdicts.read()["recordings"][parts.RECORDED]
    assert pinned["conditions"] == parts.RECORDED_TRUTHS
    assert pinned["outcome"] == "reproduced"


def test_the_recorded_run_is_as_predicted(tmp_path: Path) -> None:
    judged = parts.judge_reused_mask(recorded(parts.RECORDED, tmp_path))
    assert statuses(judged) == [Status.PASSED, Status.PASSED]


def test_a_run_that_differs_from_the_prediction_fails_by_it(tmp_path: Path) -> None:
    judged = parts.judge_reused_mask(
        recorded("borrowed-faults-reused-mask-fix", tmp_path)
    )
    assert judged.rows[1].status is Status.FAILED
    assert "image-500 not-met in place of met" in judged.rows[1].seen


def masks(**outcomes: str) -> dict[str, Any]:
    made = [{"name": name, "outcome": outcome} for name, outcome in outcomes.items()]
    return {
        "claims": [{"text": "it races", "status": "confirmed"}],
        "masks": made,
        "gpu": "H100",
    }


def observed(
    tmp_path: Path, predicted: dict[str, Any], seen: dict[str, Any]
) -> list[Status]:
    made = ended(tmp_path, 0, document=seen, before={"prediction": predicted})
    return statuses(parts.judge_observation(made))[1:]


def test_a_prediction_stands_beside_each_outcome(tmp_path: Path) -> None:
    predicted = masks(one="assert", two="silent", three="right")
    seen = masks(one="assert", two="right", three="no answer")
    assert observed(tmp_path, predicted, seen) == [
        Status.PASSED,
        Status.FAILED,
        Status.NOT_TESTED,
    ]
    assert observed(tmp_path, {}, seen) == [Status.NOT_TESTED] * 3, (
        "none was made before"
    )


def test_a_prediction_is_made_where_outcomes_are_told(tmp_path: Path) -> None:
    made = parts.judge_prediction(ended(tmp_path, 0, document=masks(one="assert")))
    assert statuses(made) == [Status.PASSED]
    assert made.rows[0].seen == "mask one: assert"
    silent = parts.judge_prediction(ended(tmp_path, 1, document={}))
    assert statuses(silent) == [Status.BROKEN_OFF]


# ------------------------------------------------------------------ device-side asserts

RECORDED_ASSERTS = json.loads(
    (Path(__file__).parents[1] / "device_assert_h100.json").read_text()
)


def recorded_asserts(tmp_path: Path, **outputs: str) -> list[Status]:
    """The rules' rows of an H100's words, with other ``outputs`` in the place of
    some."""
    found = [
        one | {"output": outputs.get(one["cause"], one["output"])}
        for one in RECORDED_ASSERTS["refusals"]
    ]
    claims = [{"text": "it is raised late", "status": "confirmed"}]
    document = RECORDED_ASSERTS | {"refusals": found, "claims": claims}
    judged = parts.judge_refusals(ended(tmp_path, 0, document=document))
    return [row.status for row in judged.rows if "rules" in row.source]


def test_recorded_asserts_are_recognised_for_what_they_are(tmp_path: Path) -> None:
    assert recorded_asserts(tmp_path) == [Status.PASSED, Status.PASSED]


def test_an_assert_taken_for_another_is_noticed(tmp_path: Path) -> None:
    outputs = {one["cause"]: one["output"] for one in RECORDED_ASSERTS["refusals"]}
    assert recorded_asserts(tmp_path, scatter=outputs["index"])[0] is Status.FAILED
    assert recorded_asserts(tmp_path, index=outputs["scatter"])[1] is Status.FAILED
    assert recorded_asserts(tmp_path, scatter="")[0] is Status.FAILED


# ------------------------------------------------------------------ the plan


def test_every_fault_of_minivllm_is_in_a_part() -> None:
    for scenario, variants in (
        ("mm-prefill-contract", NOTE_FAULTS),
        ("borrowed-faults", (*BORROWED_FAULTS, "reused-mask")),
    ):
        known = {v.variant for v in load_scenario(scenario).variants}
        assert set(variants) == known, scenario


def test_steps_have_names_of_their_own_and_more_time_than_they_need() -> None:
    for part in PARTS:
        names = [step.name for step in part.steps]
        assert len(names) == len(set(names))
        for step in part.steps:
            assert step.limit_s > step.estimate_s
            assert step.child.file.is_file() or not (
                step.child.script or step.child.tests
            )
            if len(step.devices) < 2:
                assert step.why_not


def test_all_of_it_fits_the_default_budget() -> None:
    assert sum(part.estimate_s("cuda") for part in PARTS) < 25 * 60


def test_parts_keep_their_order_and_unknown_ones_are_refused() -> None:
    assert [part.name for part in chosen(("race", "check"))] == ["check", "race"]
    assert chosen(()) == list(PARTS)
    with pytest.raises(UsageError, match="no part 'rage'"):
        chosen(("rage",))


def test_a_reproducer_s_command_can_be_typed() -> None:
    def shown(part: int, step: int) -> str:
        return PARTS[part].steps[step].child.shown("cuda")

    assert shown(0, 0) == "mmrepro check"
    assert shown(0, 1) == "python reproducers/device_trial.py --device cuda"
    assert shown(2, 0).startswith(
        "python reproducers/pinned_reuse.py --device emulated"
    )
    assert shown(1, 0) == (
        "mmrepro run mm-prefill-contract --variant slot-mapping --start-mode cold "
        "--device cuda"
    )


@pytest.mark.parametrize("part", ["lmdeploy", "sglang"])
def test_each_device_has_its_own_release_and_the_other_says_why_not(part: str) -> None:
    (steps,) = (p.steps for p in PARTS if p.name == part)
    for device in ("cpu", "cuda"):
        taken = [step for step in steps if device in step.devices]
        assert len(taken) == 1
        (needs,) = taken[0].child.needs
        assert taken[0].child.words[:4][2:] == ("--release", needs.release)
    on_cpu, on_gpu = steps
    assert on_cpu.child.needs != on_gpu.child.needs
    assert on_gpu.child.needs[0].release in on_cpu.why_not
    assert on_cpu.child.needs[0].release in on_gpu.why_not
