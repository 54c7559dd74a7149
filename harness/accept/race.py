"""The race on a real stream beside its prediction, which is made before it and never adjusted.

Of the torch-only reproducer the prediction is what the emulated stream gives, here, in the step
before. Of minivllm's ``reused-mask`` it is what the recorded CPU run gave.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mmrepro.accept.judging import claims_judge, late, run_judge, untried
from mmrepro.accept.steps import Ended, Judged
from mmrepro.campaign.trial import incident_in
from mmrepro.incident.acceptance import Row, Status

PREDICTION = "what the emulated stream says of a pinned buffer that is written too early"
OBSERVATION = "what a real stream does with a pinned buffer that is written too early"
REUSED_MASK = "minivllm's reused-mask"

RECORDED = "borrowed-faults-reused-mask-0.1"
"""In tests/evidence; a test holds RECORDED_TRUTHS to it."""
RECORDED_TRUTHS = {
    "prepared-ahead": "met",
    "image-500": "met",
    "text-answered": "met",
    "endpoints-green": "met",
    "scatter-error": "met",
    "mask-of-another-step": "met",
}


def judge_prediction(ended: Ended) -> Judged:
    """It is made where every outcome of the emulation is told."""
    if (ending := late(PREDICTION, ended) or untried(PREDICTION, ended)) is not None:
        return ending
    told = [f"{name}: {outcome}" for name, outcome in _outcomes(ended.document)]
    row = Row(
        asked=PREDICTION,
        expected="a prediction, written down before the real stream is tried",
        source="reproducers/pinned_reuse.py --device emulated",
        seen="; ".join(told) or ended.words or "the emulated stream gave no outcome",
        status=Status.PASSED if told else Status.BROKEN_OFF,
        seconds=ended.seconds,
    )
    return Judged([row], whole=bool(told))


def judge_observation(ended: Ended) -> Judged:
    """The reproducer's claims, and each outcome beside the one that was predicted."""
    judged = claims_judge(OBSERVATION, "CUDA's API synchronization behavior", keys=("gpu",))(ended)
    if not judged.whole:
        return judged
    predicted = dict(_outcomes(ended.before.get("prediction", {})))
    rows = [
        Row(
            asked=f"as emulated: {name}",
            expected=predicted.get(name, "no prediction was made"),
            source="the emulated stream, in the step before",
            seen=outcome,
            status=_held(predicted.get(name), outcome),
        )
        for name, outcome in _outcomes(ended.document)
    ]
    return Judged([*judged.rows, *rows])


def judge_reused_mask(ended: Ended) -> Judged:
    """The verdict, and each condition beside what the recorded CPU run had there."""
    judged = run_judge(REUSED_MASK)(ended)
    incident = incident_in(ended.incident)
    if not judged.whole or incident is None or incident.verdict is None:
        return judged
    seen = {one.id: str(one.truth) for one in incident.verdict.conditions}
    other = [
        f"{name} {seen.get(name, 'not judged')} in place of {truth}"
        for name, truth in RECORDED_TRUTHS.items()
        if seen.get(name) != truth
    ]
    row = Row(
        asked="it fails as it does on a CPU, condition for condition",
        expected=", ".join(f"{name} {truth}" for name, truth in RECORDED_TRUTHS.items()),
        source=f"the recorded run {RECORDED}",
        seen="; ".join(other) or "the same",
        status=Status.FAILED if other else Status.PASSED,
    )
    return Judged([*judged.rows, row])


def _held(predicted: str | None, seen: str) -> Status:
    if predicted is None or seen == "no answer":
        return Status.NOT_TESTED
    return Status.PASSED if predicted == seen else Status.FAILED


def _outcomes(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(what was tried, its outcome) of each mask."""
    for one in document.get("masks", []):
        yield f"mask {one['name']}", str(one["outcome"])
