"""What was once said falsely of vLLM's encoder cache: one test for each."""

import pytest
from made_up import (
    drop,
    judge,
    metrics,
    probed,
    swap,
)
from made_up_crash import TOO_LARGE, image, overflow_run, refused_run, scheduling
from mmrepro.failure.documents.diagnosis import Fit
from mmrepro.failure.signature import Outcome, Truth
from mmrepro.live.diagnose.match import match
from mmrepro.probes.data import (
    Frame,
    InferenceData,
    LogLine,
    LogsData,
    StacksData,
)
from mmrepro.scenario import LiveFacts, vllm
from mmrepro.scenarios import encoder_cache_overflow as overflow
from mmrepro.scenarios.encoder_cache_overflow import SCENARIO as OVERFLOW
from mmrepro.traffic.evidence import Evidence
from vllm_runs import Change, claims, edited, facts, judged, relabel, truth

MET, NOT_MET, UNKNOWN = Truth.MET, Truth.NOT_MET, Truth.UNKNOWN
REPRODUCED, INCONCLUSIVE = Outcome.REPRODUCED, Outcome.INCONCLUSIVE
NOT_REPRODUCED, DIFFERENT = Outcome.NOT_REPRODUCED, Outcome.DIFFERENT_FAILURE


def tokens(label: str, count: int | None) -> Change:
    def change(evidence: Evidence) -> None:
        evidence.labelled(label)[0].prompt_tokens = count

    return change


def big_answered(prompt_tokens: int) -> Change:
    def change(evidence: Evidence) -> None:
        evidence.requests = [r for r in evidence.requests if r.label != overflow.BIG]
        more = {"prompt_tokens": prompt_tokens}
        evidence.requests.append(image(overflow.BIG, overflow.TOO_LARGE, **more))

    return change


def budget_line(size: int) -> Change:
    log = LogsData(
        file="engine.log", bytes_read=1, lines=1, match_counts={vllm.ENCODER_CACHE: 1}
    )
    text = (
        f"Encoder cache will be initialized with a budget of {size} tokens, and "
        "profiled"
    )
    log.matches = {vllm.ENCODER_CACHE: [LogLine(number=1, text=text)]}

    return lambda evidence: evidence.probes.append(probed(log.model_copy(deep=True)))


def no_stacks(evidence: Evidence) -> None:
    drop(evidence, "stacks")


@pytest.mark.parametrize(
    ("changes", "resized", "larger"),
    [
        (
            (big_answered(550),),
            MET,
            MET,
        ),  # it fits, says the count; the cache is smaller
        ((big_answered(231),), NOT_MET, MET),
        ((big_answered(551),), NOT_MET, MET),
        ((relabel(overflow.BIG, 400, "another reason"),), UNKNOWN, MET),
        ((relabel(overflow.BIG, 400, TOO_LARGE.replace("544", "225")),), NOT_MET, MET),
        ((relabel(overflow.BIG, 400, TOO_LARGE.replace("512", "544")),), MET, NOT_MET),
        ((relabel(overflow.BIG, 400, TOO_LARGE.replace("512", "543")),), MET, MET),
        ((tokens(overflow.CONTROL, 512),), NOT_MET, MET),
        ((tokens(overflow.CONTROL, 513),), MET, MET),
        ((tokens(overflow.CONTROL, 543),), MET, MET),
        ((tokens(overflow.CONTROL, 544),), NOT_MET, MET),
        ((tokens(overflow.CONTROL, None),), UNKNOWN, MET),
        ((relabel(overflow.CONTROL, 500, "boom"),), UNKNOWN, MET),
        ((big_answered(550), no_stacks), MET, UNKNOWN),
        ((big_answered(550), no_stacks, budget_line(512)), MET, MET),
        ((big_answered(550), no_stacks, budget_line(543)), MET, MET),
        ((big_answered(550), no_stacks, budget_line(544)), MET, NOT_MET),
        (
            (big_answered(550), budget_line(2048)),
            MET,
            NOT_MET,
        ),  # the log before the locals
    ],
)
def test_item_4_the_large_image_arrives_as_it_is_and_does_not_fit(
    changes: tuple[Change, ...], resized: Truth, larger: Truth
) -> None:
    evidence = edited(
        overflow_run, relabel(overflow.TEXT, 200), relabel(overflow.OTHER, 200)
    )
    for change in changes:
        change(evidence)
    assert truth(OVERFLOW, evidence, "not-resized") is resized
    assert truth(OVERFLOW, evidence, "larger-than-the-cache") is larger


@pytest.mark.parametrize(
    ("change", "fixed"),
    [
        (big_answered(231), "not-tested"),
        (relabel(overflow.BIG, 400, "The prompt is too long"), "not-tested"),
        (relabel(overflow.BIG, 400, TOO_LARGE.replace("512", "2048")), "not-tested"),
    ],
    ids=["resized", "refused for something else", "a larger cache"],
)
def test_item_4_no_hang_means_nothing_where_the_image_fitted(
    change: Change, fixed: str
) -> None:
    healthy = refused_run()
    assert judge(OVERFLOW, healthy, "0.16.0")[0] is NOT_REPRODUCED
    assert claims(OVERFLOW, healthy, "0.16.0")["fixed"] == "confirmed"
    assert claims(OVERFLOW, healthy, "0.16.0")["hang"] == "not-tested"
    assert claims(OVERFLOW, healthy, "0.15.0")["hang"] == "refuted"
    change(healthy)
    assert judge(OVERFLOW, healthy, "0.16.0")[0] is INCONCLUSIVE
    assert claims(OVERFLOW, healthy, "0.16.0")["fixed"] == fixed
    assert claims(OVERFLOW, healthy, "0.15.0")["hang"] == "not-tested"


def test_item_4_an_image_that_a_fixed_release_answers_refutes_its_fix() -> None:
    answered = edited(refused_run, big_answered(550))
    assert claims(OVERFLOW, answered, "0.16.0")["fixed"] == "refuted"


def test_item_4_a_larger_budget_takes_the_full_cache_away_and_not_the_image() -> None:
    fits = edited(refused_run, big_answered(550), no_stacks)
    given = facts(OVERFLOW, by=("larger-budget",))
    assert judged(OVERFLOW, fits, given).outcome is NOT_REPRODUCED
    assert judged(OVERFLOW, fits, facts(OVERFLOW)).outcome is INCONCLUSIVE
    big_answered(231)(fits)
    assert judged(OVERFLOW, fits, given).outcome is INCONCLUSIVE


# ---------------------------------------------------------------- item 8: its neighbour

LIVE = LiveFacts("vllm", "0.11.0", ("serve",), 13.0)


def asking(*seen: tuple[str, str]) -> StacksData:
    """Samples of the busy loop, those of ``seen`` in the frame that asks for the
    image's room."""
    samples = [
        scheduling(encoder_compute_budget="512", total_num_scheduled_tokens="0")
    ] * 4
    for item, budget in seen:
        sample = scheduling(encoder_compute_budget="512").model_copy(deep=True)
        caught = {"num_encoder_tokens": item, "encoder_compute_budget": budget}
        frame = Frame(
            function="Scheduler._try_schedule_encoder_inputs",
            file="vllm/v1/core/sched/scheduler.py",
            line=1,
            locals=caught,
        )
        sample.threads[0].frames.insert(0, frame)
        samples = [*samples, sample]
    return StacksData(samples=samples)


def spinning_server(*seen: tuple[str, str]) -> Evidence:
    evidence = overflow_run()
    evidence.requests = []
    swap(evidence, asking(*seen))
    unanswered = InferenceData(
        answered=False, status=None, seconds=13.1, deadline_s=13.0
    )
    readings = [probed(metrics(running=1)) for _ in range(2)]
    evidence.probes += [probed(unanswered), *readings]
    return evidence


ABOVE, FITS, FULL = ("544", "512"), ("400", "512"), ("512", "512")


@pytest.mark.parametrize(
    ("seen", "fit"),
    [
        ((ABOVE, ABOVE), Fit.MATCH),
        ((ABOVE, ABOVE, FITS), Fit.MATCH),
        ((ABOVE, ABOVE, ("?", "512")), Fit.MATCH),
        ((ABOVE, ABOVE, ("544", "<object>")), Fit.MATCH),
        ((ABOVE, FITS), Fit.EXPOSED),
        ((FITS, FITS), Fit.EXPOSED),
        ((FULL, FULL), Fit.EXPOSED),
        ((ABOVE,), Fit.LIKELY),
        ((ABOVE, ("544", "<object>")), Fit.LIKELY),
        ((ABOVE, ("?", "512")), Fit.LIKELY),
        ((), Fit.LIKELY),
    ],
)
def test_item_8_a_full_cache_and_an_image_that_fits_is_no_match(
    seen: tuple[tuple[str, str], ...], fit: Fit
) -> None:
    assert match(OVERFLOW, spinning_server(*seen), LIVE).fit is fit


# ---------------------------------------------------------------- where the core sleeps


def after_a_step(*ran: str) -> StacksData:
    """Samples of the busy loop between two steps, as 0.14.0 spends its time."""
    samples = []
    for value in ran:
        sample = scheduling().model_copy(deep=True)
        del sample.threads[0].frames[:2]
        if value:
            sample.threads[0].frames[0].locals["model_executed"] = value
        samples.append(sample)
    return StacksData(samples=samples)


@pytest.mark.parametrize(
    ("ran", "expected"),
    [
        (("False", "False", ""), MET),
        (("False", "False", "False", "True"), MET),
        (("False", "True", ""), NOT_MET),
        (("True", "True", "True"), NOT_MET),
        (("False", "", ""), UNKNOWN),
        (("False", "False"), UNKNOWN),
        (("?", "<function at 0x7f>", "None"), UNKNOWN),
    ],
)
def test_a_step_that_ran_no_model_scheduled_nothing(
    ran: tuple[str, ...], expected: Truth
) -> None:
    evidence = edited(overflow_run, lambda e: swap(e, after_a_step(*ran)))
    assert truth(OVERFLOW, evidence, "schedules-nothing") is expected


def logged(**lines: str) -> Change:
    names = {
        "arguments": vllm.ARGUMENTS,
        "step": vllm.STEP,
        "cache": vllm.ENCODER_CACHE,
    }
    found = {
        names[name]: [LogLine(number=1, text=text)] for name, text in lines.items()
    }
    counts = {name: len(found.get(name, ())) for name in names.values()}
    log = LogsData(
        file="engine.log", bytes_read=1, lines=1, match_counts=counts, matches=found
    )
    return lambda evidence: evidence.probes.append(probed(log))


PARSED = "non-default args: {'max_num_seqs': 8, 'max_num_batched_tokens': 512}"
LARGER = "non-default args: {'mm_processor_kwargs': {'max_pixels': 1605632}}"
STEP = "Chunked prefill is enabled with max_num_batched_tokens={}."


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ({"arguments": PARSED, "step": STEP.format(512)}, MET),
        ({"arguments": PARSED, "step": STEP.format(543)}, MET),
        ({"arguments": PARSED, "step": STEP.format(544)}, NOT_MET),
        ({"arguments": PARSED, "step": STEP.format(511)}, MET),
        ({"arguments": PARSED}, UNKNOWN),
        ({"step": STEP.format(512)}, UNKNOWN),
        ({"arguments": LARGER, "step": STEP.format(512)}, UNKNOWN),
    ],
)
def test_the_step_sizes_the_cache_where_the_model_knows_no_larger_image(
    lines: dict[str, str], expected: Truth
) -> None:
    evidence = edited(overflow_run, logged(**lines), no_stacks)
    assert truth(OVERFLOW, evidence, "larger-than-the-cache") is expected
    asleep = edited(
        overflow_run, logged(**lines), lambda e: swap(e, after_a_step("False"))
    )
    found = truth(OVERFLOW, asleep, "larger-than-the-budget")
    assert found is (NOT_MET if "511" in lines.get("step", "") else expected)
    answered = edited(overflow_run, logged(**lines), no_stacks, big_answered(550))
    assert truth(OVERFLOW, answered, "larger-than-the-cache") is UNKNOWN


def test_the_locals_come_before_what_the_log_derives() -> None:
    told = logged(arguments=PARSED, step=STEP.format(2048))
    evidence = edited(overflow_run, told)
    assert truth(OVERFLOW, evidence, "larger-than-the-budget") is MET
    assert truth(OVERFLOW, evidence, "larger-than-the-cache") is MET
    without = edited(
        overflow_run, lambda e: swap(e, StacksData(samples=[scheduling()] * 4))
    )
    assert truth(OVERFLOW, without, "larger-than-the-budget") is UNKNOWN


@pytest.mark.parametrize(
    ("budgets", "expected"),
    [
        (("512", "512", "2048"), MET),
        (("512", "2048"), NOT_MET),
        (("512", "2048", "2048"), NOT_MET),
    ],
)
def test_most_readings_tell_the_caches_size(
    budgets: tuple[str, ...], expected: Truth
) -> None:
    samples = [scheduling(encoder_compute_budget=b) for b in budgets]
    evidence = edited(overflow_run, lambda e: swap(e, StacksData(samples=samples)))
    assert truth(OVERFLOW, evidence, "larger-than-the-cache") is expected
