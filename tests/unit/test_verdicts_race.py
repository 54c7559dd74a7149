"""async-race on made-up evidence: one change at a time, and the verdict turns."""

from dataclasses import replace
from typing import Any

import pytest
from made_up import at, judge, metrics, probed, run_facts, swap
from made_up_crash import death_log, with_stream
from made_up_race import (
    RACE,
    RACE_LABELS,
    apart,
    caching,
    counting,
    idle,
    large,
    ordered,
    race,
    right_mask,
    stream,
    unread,
)
from mmrepro.failure.signature import Outcome, Truth
from mmrepro.probes.data import LogLine, LogsData, MetricSample
from mmrepro.runs.judge import judge as judged
from mmrepro.scenarios.chunked_mm_prefill import async_race as module
from mmrepro.traffic.evidence import Evidence, ImageSent
from turns import Change, Row, both, edit, exited, lives_on, no, to, without

MET, NOT_MET, UNKNOWN = Truth.MET, Truth.NOT_MET, Truth.UNKNOWN
REPRODUCED, DIFFERENT = Outcome.REPRODUCED, Outcome.DIFFERENT_FAILURE
NOT_REPRODUCED, INCONCLUSIVE = Outcome.NOT_REPRODUCED, Outcome.INCONCLUSIVE


ROWS: dict[str, Row] = {
    "no step began early": (idle, "inconclusive -steps-overlap"),
    "no step was counted": (
        stream(overwrite=7, mask=4, error=1),
        "inconclusive ?steps-overlap",
    ),
    "each image in one step": (apart, "inconclusive -image-in-steps"),
    "nothing was overwritten": (
        stream(steps=1, mask=4, error=1),
        "different -unordered-buffer",
    ),
    "no stand-in": (
        to(with_stream(death_log())),
        "inconclusive ?unordered-buffer ?wrong-mask",
    ),
    "no step was watched": (stream(error=1), "inconclusive ?unordered-buffer"),
    "no step failed": (stream(steps=1, overwrite=7, mask=4), "different -wrong-mask"),
    "the mask was right": (right_mask, "different -wrong-mask"),
    "the mask was not read": (unread, "inconclusive ?wrong-mask"),
    "another error came first": (
        to(with_stream(death_log("IndexError: 7"), overwrite=7, mask=4, error=1)),
        "different -first-error",
    ),
    "no log": (no("logs"), "inconclusive ?wrong-mask ?unordered-buffer ?first-error"),
    "all are answered": (
        both(*(edit(label, status=200, error="") for label in RACE_LABELS)),
        "different -request-500",
    ),
    "no large image was sent": (
        both(without(module.FIRST), without(module.SECOND)),
        "inconclusive ?request-500",
    ),
    "EngineCore lives on": (lives_on, "different -core-died"),
    "nobody looked at the processes": (exited(None), "inconclusive ?core-died"),
    "/health is green": (
        edit("health after the failure", status=200, error=""),
        "different -health-503",
    ),
    "/health not asked": (without("health"), "inconclusive ?health-503"),
}


# ----------------------------------------------------------------- the trigger (item 4)


def masks(*steps: tuple[int, int]) -> Change:
    """The log has just these steps with image rows: (number, rows)."""

    def change(evidence: Evidence) -> None:
        for _, data in evidence.results(LogsData):
            first = data.matches["stream-mask"][0]
            texts = (
                f"mmrepro-stream: step {n}: mask: {rows} embeddings, …"
                for n, rows in steps
            )
            data.matches["stream-mask"] = [
                first.model_copy(update={"text": t}) for t in texts
            ]
            data.match_counts["stream-mask"] = len(steps)

    return change


@pytest.mark.parametrize(
    ("steps", "answered", "truth", "said"),
    [
        (
            [(1, 144), (9, 254), (10, 256), (11, 92)],
            True,
            MET,
            "in 3 steps: 254 + 256 + 92 rows",
        ),
        (
            [(1, 144), (9, 254), (10, 46), (20, 144)],
            True,
            NOT_MET,
            "in 2 steps: 254 + 46 rows",
        ),
        (
            [(1, 144), (9, 254), (10, 46), (20, 254)],
            False,
            MET,
            "in 2 steps: 254 + 46 rows",
        ),
        ([(1, 144), (9, 144), (20, 254)], False, NOT_MET, "in 1 steps: 144 rows"),
        ([(1, 144), (3, 144), (5, 144)], True, NOT_MET, "in 1 steps"),
        ([(1, 254), (2, 0), (3, 254), (4, 0), (5, 92)], True, NOT_MET, "in 1 steps"),
        ([(1, 0), (2, 0), (3, 0)], True, UNKNOWN, "no step with an image was watched"),
    ],
)
def test_an_image_in_several_steps_is_seen_in_the_engines_steps(
    steps: list[tuple[int, int]], answered: bool, truth: Truth, said: str
) -> None:
    evidence = ordered() if answered else race()
    masks(*steps)(evidence)
    found = {r.id: r for r in judge(RACE, evidence)[2]}["image-in-steps"]
    assert found.truth is truth
    assert said in found.observed


def test_no_race_is_absent_where_no_image_went_in_several_steps() -> None:
    """The engine made one step of each image: that it answers them says nothing of the
    race."""
    evidence = ordered()
    apart(evidence)
    assert judge(RACE, evidence)[0] is INCONCLUSIVE
    evidence = ordered()
    idle(evidence)
    assert judge(RACE, evidence)[0] is INCONCLUSIVE


def test_what_takes_the_trigger_away_on_purpose_need_not_bring_it() -> None:
    evidence = ordered(overwrite=2)
    apart(evidence)
    for name in ("budget",):
        assert (
            judged(RACE, evidence, run_facts(RACE, "", name)).outcome is NOT_REPRODUCED
        )
    for name, outcome in (("image-size", NOT_REPRODUCED), ("eager-mode", INCONCLUSIVE)):
        facts = replace(run_facts(RACE), flips=frozenset({name}))
        assert judged(RACE, evidence, facts).outcome is outcome
    evidence = ordered()
    idle(evidence)
    facts = replace(run_facts(RACE), flips=frozenset({"async-scheduling"}))
    assert judged(RACE, evidence, facts).outcome is NOT_REPRODUCED
    assert (
        judged(RACE, evidence, run_facts(RACE, "", "barrier")).outcome is INCONCLUSIVE
    )


# ------------------------------------------------------------------ the cause


def overwrites(*steps: int, count: int = 0) -> Change:
    def change(evidence: Evidence) -> None:
        for _, data in evidence.results(LogsData):
            first = data.matches["stream-overwrite"][0]
            text = (
                "mmrepro-stream: step {}: overwrite: … while the copy of [0:9] "
                "of step {} is queued"
            )
            data.matches["stream-overwrite"] = [
                first.model_copy(update={"text": text.format(n + 1, n)}) for n in steps
            ]
            data.match_counts["stream-overwrite"] = count or len(steps)

    return change


@pytest.mark.parametrize(
    ("change", "truth"),
    [
        (overwrites(1, 7), MET),
        (overwrites(1, 6), NOT_MET),  # what failed had been read as it was written
        (overwrites(1, 70), NOT_MET),
        (overwrites(1, 6, count=3), UNKNOWN),
        (overwrites(1, 7, count=3), MET),
    ],
)
def test_the_mask_that_failed_is_the_one_that_was_overwritten(
    change: Change, truth: Truth
) -> None:
    evidence = race()
    change(evidence)
    assert judge(RACE, evidence)[1]["unordered-buffer"] is truth


@pytest.mark.parametrize(
    ("failed", "label"),
    [
        ((module.FIRST, module.SECOND), module.FIRST),
        ((module.FIRST,), module.FIRST),
        ((module.SECOND,), module.SECOND),
        ((module.SILENT,), module.FIRST),
        ((), module.FIRST),
    ],
)
def test_the_image_that_failed_is_the_first_large_one(
    failed: tuple[str, ...], label: str
) -> None:
    evidence = race()
    for name in RACE_LABELS:
        status = 500 if name in failed else 200
        edit(name, status=status, error="" if status == 200 else "died")(evidence)
    assert module.failing(evidence) == label
    observed = next(
        r.observed for r in judge(RACE, evidence)[2] if r.id == "request-500"
    )
    assert observed.startswith(f"{label}: {500 if failed and label in failed else 200}")


def test_the_step_that_failed_first_is_looked_at() -> None:
    evidence = race()
    for _, data in evidence.results(LogsData):
        first = data.matches["stream-error"][0]
        other = first.text.replace("256 read", "254 read").replace("step 7", "step 70")
        right = first.model_copy(update={"text": other})
        data.matches["stream-error"].append(right)
        data.match_counts["stream-error"] += 1
    assert judge(RACE, evidence)[1]["wrong-mask"] is MET
    assert judge(RACE, evidence)[1]["unordered-buffer"] is MET
    observed = next(
        r.observed for r in judge(RACE, evidence)[2] if r.id == "wrong-mask"
    )
    assert observed.startswith(
        "step 7: device error with 254 embeddings, 254 image rows prepared"
    )


# --------------------------------------------------------------- what the report claims


def claims(evidence: Evidence, *flips: str, **more: Any) -> dict[str, str]:
    facts = replace(
        run_facts(RACE, "", *more.get("mitigations", ())), flips=frozenset(flips)
    )
    return {c.id: c.status.value for c in RACE.claim_results(evidence, facts)}


def test_the_reports_hypotheses_need_the_right_run() -> None:
    crashed = claims(race())
    assert crashed["assertion"] == crashed["buffer"] == "confirmed"
    assert crashed["graphs"] == "refuted"
    for name in (
        "prefix-caching",
        "chunk-budget",
        "reporters-build",
        "request-1-passes",
    ):
        assert crashed[name] == "not-tested"
    assert crashed["on-a-gpu"] == "not-tested"
    assert claims(race(), "eager-mode")["graphs"] == "not-tested"
    hidden = ordered(overwrite=5)
    # No effect.
    assert claims(hidden, mitigations=("budget",))["chunk-budget"] == "not-tested"
    large(hidden)
    assert claims(hidden, mitigations=("budget",))["chunk-budget"] == "refuted"
    assert claims(ordered(), "chunk-budget")["chunk-budget"] == "not-tested"


def test_prefix_caching_is_refuted_where_it_was_off() -> None:
    for value, status in (("False", "refuted"), ("True", "not-tested")):
        evidence = race()
        caching(evidence, value)
        assert claims(evidence, "prefix-caching")["prefix-caching"] == status
        assert claims(evidence)["prefix-caching"] == "not-tested"
    assert claims(race(), "prefix-caching")["prefix-caching"] == "not-tested"


@pytest.mark.parametrize("change", [counting(graph_batch=1), counting(batch=0)])
def test_graphs_are_refuted_where_none_was_seen_to_run(change: Change) -> None:
    evidence = race()
    change(evidence)
    assert claims(evidence)["graphs"] == "not-tested"


def test_yesterdays_error_in_the_log_confirms_nothing() -> None:
    evidence = ordered()
    swap(evidence, with_stream(death_log(dead=False), steps=1, mask=8))
    told = claims(evidence)
    assert {"confirmed", "refuted"}.isdisjoint(told.values()), told


def at_once(evidence: Evidence) -> None:
    first, second = (
        evidence.labelled(label)[0] for label in (module.FIRST, module.SECOND)
    )
    second.sent, second.latency_s = first.sent, first.latency_s


def one_after_another(evidence: Evidence) -> None:
    for number, record in enumerate(evidence.requests):
        record.sent, record.latency_s = at(20 * number), 1.0


def test_the_cure_is_held_to_how_the_images_came() -> None:
    """The same answers say one thing of images in turn, and another of two at once."""
    for change, yes, other in (
        (one_after_another, "budget-cures", "cure-holds-at-once"),
        (at_once, "cure-holds-at-once", "budget-cures"),
    ):
        evidence = ordered(overwrite=5)
        large(evidence)
        change(evidence)
        told = claims(evidence, mitigations=("budget",))
        assert (told[yes], told[other]) == ("confirmed", "not-tested")
        edit(module.SECOND, status=500)(evidence)
        assert claims(evidence, mitigations=("budget",))[yes] == "refuted"
        assert claims(evidence)[yes] == "not-tested"


def test_an_image_above_the_larger_budget_is_told_by_its_size() -> None:
    evidence = ordered(overwrite=5)
    large(evidence)
    assert claims(evidence, mitigations=("budget",))["cure-holds-above"] == "not-tested"
    for (width, height), status in (
        (module.THREE_STEPS, "not-tested"),
        (module.ABOVE, "confirmed"),
    ):
        sent = [ImageSent(sha256="0" * 64, width=width, height=height, bytes=9)]
        edit(module.FIRST, images=sent)(evidence)
        told = claims(evidence, mitigations=("budget",))
        assert told["cure-holds-above"] == status


def test_three_flags_are_three() -> None:
    evidence = ordered(overwrite=5)
    large(evidence)
    caching(evidence, "False")
    for eager, status in (("False", "not-tested"), ("True", "confirmed")):
        text = f"V1 LLM engine (v0.12.0) with config: enforce_eager={eager}, "
        logged(evidence, "engine-config", text)
        told = claims(evidence, "prefix-caching", "chunk-budget")
        assert told["three-flags"] == status
    assert claims(evidence, "chunk-budget")["three-flags"] == "not-tested"
    assert claims(evidence, "prefix-caching")["three-flags"] == "not-tested"


def test_a_rate_of_zero_says_nothing_of_a_cache_that_is_on() -> None:
    for hits, status in ((0.0, "refuted"), (16.0, "not-tested")):
        evidence = race()
        caching(evidence, "True")
        data = metrics()
        for name, value in (("queries", 310.0), ("hits", hits)):
            data.samples.append(
                MetricSample(
                    name=f"vllm:prefix_cache_{name}_total", value=value, labels={}
                )
            )
        evidence.probes.append(probed(data, "gate"))
        assert claims(evidence)["zero-hit-rate"] == status
    assert claims(race())["zero-hit-rate"] == "not-tested"


def test_an_image_of_two_chunks_is_held_to_its_answer() -> None:
    assert claims(race())["two-chunks-crash"] == "refuted"
    evidence = race()
    edit(module.SILENT, status=500)(evidence)
    assert claims(evidence)["two-chunks-crash"] == "not-tested"


def logged(evidence: Evidence, name: str, text: str) -> None:
    for _, data in evidence.results(LogsData, "check"):
        data.matches[name], data.match_counts[name] = [LogLine(number=1, text=text)], 1
