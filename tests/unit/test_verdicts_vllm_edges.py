"""Where the conditions of vLLM's cache scenarios turn: both sides of each
comparison."""

import pytest
from made_up import (
    GHOST,
    LOOP,
    OTHER,
    desync_run,
    hang_run,
    healthy_run,
    http,
    logs,
    metrics,
    probed,
    stacks,
    swap,
    thread,
)
from made_up_crash import TOO_LARGE, overflow_run, scheduling
from mmrepro.failure.signature import Outcome, Truth
from mmrepro.failure.signature.decide import guarded
from mmrepro.failure.signature.views import Requests
from mmrepro.probes.data import StackSample, StacksData
from mmrepro.scenario import LiveFacts, vllm
from mmrepro.scenario.definition import bind
from mmrepro.scenarios import encoder_cache_overflow as overflow
from mmrepro.scenarios.encoder_cache_overflow import SCENARIO as OVERFLOW
from mmrepro.scenarios.ghost_key_eviction import SCENARIO as GHOST_KEY
from mmrepro.scenarios.vllm_mm_caches import MM_CACHE_DESYNC as DESYNC
from mmrepro.traffic.evidence import Evidence
from vllm_runs import Change, edited, facts, judged, relabel, truth

MET, NOT_MET, UNKNOWN = Truth.MET, Truth.NOT_MET, Truth.UNKNOWN

# ------------------------------------------------------------------ the encoder cache


def idle(sample: StackSample) -> StackSample:
    """The same thread, waiting for work in the busy loop."""
    waits = sample.model_copy(deep=True)
    del waits.threads[0].frames[:-1]
    return waits


def with_samples(*samples: StackSample) -> Change:
    return lambda evidence: swap(evidence, StacksData(samples=list(samples)))


def budget(value: str) -> StackSample:
    return scheduling(encoder_compute_budget=value, total_num_scheduled_tokens="0")


def scheduled(value: str) -> StackSample:
    return scheduling(total_num_scheduled_tokens=value)


@pytest.mark.parametrize(
    ("budgets", "expected"),
    [
        (("512",), MET),
        (("511",), NOT_MET),
        (("543",), MET),
        (("544",), NOT_MET),
        (("512", "512", "2048"), MET),
        (("512", "2048"), NOT_MET),
        (("512", "2048", "0"), NOT_MET),
        (("<Scheduler>", "512"), MET),
        (("<Scheduler>",), UNKNOWN),
    ],
)
def test_the_budget_lies_between_the_two_images(
    budgets: tuple[str, ...], expected: Truth
) -> None:
    evidence = edited(overflow_run, with_samples(*map(budget, budgets)))
    assert truth(OVERFLOW, evidence, "larger-than-the-budget") is expected


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [(512, UNKNOWN), (513, MET), (543, MET), (544, UNKNOWN), (None, UNKNOWN)],
)
def test_the_control_shows_that_the_arithmetic_is_the_servers(
    prompt: int | None, expected: Truth
) -> None:
    evidence = overflow_run()
    evidence.labelled(overflow.CONTROL)[0].prompt_tokens = prompt
    assert truth(OVERFLOW, evidence, "larger-than-the-budget") is expected
    evidence.labelled(overflow.CONTROL)[0].status = 500
    assert truth(OVERFLOW, evidence, "larger-than-the-budget") is UNKNOWN


NONE, SOME = scheduled("0"), scheduled("512")
LEFT, TAKEN = scheduling(num_new_tokens="0"), scheduling(num_new_tokens="512")
BARE = scheduling()


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ((NONE, NONE), UNKNOWN),  # three at least
        ((NONE, NONE, BARE), MET),
        ((NONE, BARE, BARE), UNKNOWN),  # two that tell at least
        ((NONE, NONE, SOME), MET),
        ((NONE, NONE, SOME, SOME), NOT_MET),
        ((NONE, SOME, BARE), NOT_MET),
        ((SOME, SOME, SOME), NOT_MET),
        ((LEFT, LEFT, BARE), MET),
        ((TAKEN, TAKEN, BARE), UNKNOWN),  # what is left of the prompt, before it is cut
        ((NONE, NONE, idle(NONE), idle(NONE)), MET),
        ((NONE, NONE, idle(NONE), idle(NONE), idle(NONE), idle(NONE)), NOT_MET),
        ((NONE, idle(NONE), idle(NONE), idle(NONE)), NOT_MET),
        ((idle(NONE), idle(NONE), idle(NONE)), NOT_MET),
    ],
)
def test_a_busy_loop_that_schedules_nothing(
    samples: tuple[StackSample, ...], expected: Truth
) -> None:
    evidence = edited(overflow_run, with_samples(*samples))
    assert truth(OVERFLOW, evidence, "schedules-nothing") is expected


@pytest.mark.parametrize(
    ("samples", "enough"),
    [
        ((), False),
        ((budget("512"),), False),
        ((budget("512"), NONE), True),
        ((NONE, NONE), False),
        ((scheduling(encoder_compute_budget="512"), SOME, NONE), True),
        ((scheduling(encoder_compute_budget="512"), SOME), False),
    ],
)
def test_sampling_goes_on_until_both_locals_were_seen(
    samples: tuple[StackSample, ...], enough: bool
) -> None:
    assert OVERFLOW.enough_stacks(samples) is enough


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ((), MET),
        ((relabel(overflow.TEXT, 200), relabel(overflow.OTHER, 200)), NOT_MET),
        ((relabel(overflow.TEXT, 200),), MET),
        ((relabel(overflow.OTHER, 200),), MET),
        (
            (
                relabel(overflow.TEXT, 200),
                relabel(overflow.OTHER, 200),
                lambda e: swap(e, http(200, 503)),
            ),
            MET,
        ),
    ],
)
def test_others_starve_where_one_of_them_is_not_answered(
    changes: tuple[Change, ...], expected: Truth
) -> None:
    assert truth(OVERFLOW, edited(overflow_run, *changes), "others-starve") is expected


def test_an_observer_of_the_overflow_asks_for_no_use_of_before() -> None:
    live = LiveFacts("vllm", "0.11.0", (), 13.0)
    told = {c.id: (c.part, c.required) for c in OVERFLOW.live_conditions(live)}
    assert told == {
        "no-progress": ("symptom", True),
        "no-answer": ("symptom", True),
        "core-alive": ("symptom", True),
        "counted-as-running": ("symptom", True),
        "larger-than-the-budget": ("cause", True),
        "schedules-nothing": ("cause", True),
    }
    run = {c.id: (c.part, c.required) for c in OVERFLOW.conditions(facts(OVERFLOW))}
    supporting = ("counted-as-running", "core-burns-cpu", "others-starve")
    assert [name for name, (_, required) in run.items() if not required] == list(
        supporting
    )


def test_the_rows_of_the_overflow_say_what_is_abnormal() -> None:
    evidence = edited(overflow_run, relabel(overflow.OTHER, 200))
    rows = {
        row.check: row.abnormal
        for row in OVERFLOW.symptom_rows(evidence, facts(OVERFLOW))
    }
    assert rows == {
        overflow.BIG: True,
        overflow.TEXT: True,
        overflow.OTHER: False,
        "/health, /v1/models": False,
        "requests running": None,
        "EngineCore CPU": True,
    }


def test_a_refusal_counts_its_own_tokens() -> None:
    refused = edited(overflow_run, relabel(overflow.BIG, 400, TOO_LARGE))
    refused.labelled(overflow.BIG)[0].prompt_tokens = 231
    assert truth(OVERFLOW, refused, "not-resized") is MET


# ---------------------------------------------------------------- the multimodal caches


@pytest.mark.parametrize(
    ("before", "after", "status", "expected"),
    [
        (2, 3, 500, MET),
        (2, 2, 500, NOT_MET),
        (2, 4, 500, NOT_MET),
        (2, 3, 200, NOT_MET),
        (0, 1, 500, MET),
        (3, 2, 500, NOT_MET),
    ],
)
def test_the_sender_counts_one_hit_for_the_request_that_fails(
    before: int, after: int, status: int, expected: Truth
) -> None:
    evidence = edited(desync_run, relabel(vllm.AGAIN, status))
    evidence.facts = {"mm_cache_hits_before": before, "mm_cache_hits_after": after}
    assert truth(DESYNC, evidence, "sender-hits") is expected


def test_for_ever_is_said_of_all_four() -> None:
    assert truth(DESYNC, desync_run(), "for-ever") is MET
    three = desync_run()
    three.requests = [r for r in three.requests if "(4)" not in r.label]
    assert truth(DESYNC, three, "for-ever") is UNKNOWN
    heals = desync_run()
    heals.labelled(vllm.AGAIN)[3].status = 200
    assert truth(DESYNC, heals, "for-ever") is NOT_MET
    assert truth(DESYNC, heals, "same-image-500") is MET
    rows = {
        row.check: row.abnormal for row in DESYNC.symptom_rows(heals, facts(DESYNC))
    }
    assert rows["image X again, short"] is True
    relabel(vllm.AGAIN, 200)(heals)
    rows = {
        row.check: row.abnormal for row in DESYNC.symptom_rows(heals, facts(DESYNC))
    }
    assert rows["image X again, short"] is False


def test_the_first_of_the_requests_with_the_image_is_the_one_that_tells() -> None:
    later = edited(desync_run, lambda e: relabel("image X again, short (2)", 200)(e))
    assert truth(DESYNC, later, "same-image-500") is MET
    first = desync_run()
    first.labelled(vllm.AGAIN)[0].status = 200
    assert truth(DESYNC, first, "same-image-500") is NOT_MET


@pytest.mark.parametrize(
    ("readings", "expected"),
    [((0, 2), MET), ((2, 2), MET), ((0,), NOT_MET), ((0, 0), NOT_MET), ((1,), MET)],
)
def test_the_gates_last_reading_tells_whether_the_cache_is_used(
    readings: tuple[int, ...], expected: Truth
) -> None:
    evidence = desync_run()
    evidence.probes = [r for r in evidence.probes if r.probe != "metrics"]
    evidence.probes += [probed(metrics(mm_hits=hits), "gate") for hits in readings]
    assert truth(DESYNC, evidence, "cache-on") is expected


def test_a_lookup_in_the_gate_alone_is_one() -> None:
    """That the cache is not used is said of both phases."""

    def images(evidence: Evidence) -> None:
        for record in evidence.requests_in("gate"):
            record.images = overflow_run().labelled(overflow.CONTROL)[0].images

    def lookups(gate: int, check: int) -> Change:
        def change(evidence: Evidence) -> None:
            swap(evidence, metrics(mm_queries=gate), phase="gate")
            swap(evidence, metrics(mm_queries=check))

        return change

    for gate, check, expected in ((0, 0, MET), (1, 0, NOT_MET), (0, 1, NOT_MET)):
        evidence = edited(healthy_run, images, lookups(gate, check))
        assert truth(GHOST_KEY, evidence, "flip-mm-cache", "mm-cache") is expected


def test_the_stack_that_is_shown_has_the_most_to_tell() -> None:
    """Of those in the loop, one in popitem; of those, one with its key."""
    bare, above = thread(*LOOP), thread(*LOOP[1:])
    shows = thread(*LOOP, key=GHOST)
    evidence = edited(
        hang_run, lambda e: swap(e, stacks(above, bare, shows, bare, above))
    )
    shown = GHOST_KEY.key_stack(evidence)
    assert shown is not None
    assert (shown.seen, shown.samples) == (5, 5)
    assert shown.frames[0].function == "LRUCache.popitem"
    assert shown.frames[0].locals["lru_key"] == repr(GHOST)
    assert "popitem evicts" in shown.note
    swap(evidence, stacks(above, bare))
    again = GHOST_KEY.key_stack(evidence)
    assert again is not None
    assert again.frames[0].function == "LRUCache.popitem"
    swap(evidence, stacks(thread(("Poller.poll", "zmq"))))
    assert GHOST_KEY.key_stack(evidence) is None


def test_sampling_goes_on_until_the_key_was_seen() -> None:
    shows, bare = (
        stacks(thread(*LOOP, key=GHOST)).samples,
        stacks(thread(*LOOP)).samples,
    )
    assert GHOST_KEY.enough_stacks(shows)
    assert GHOST_KEY.enough_stacks([*bare, *shows])
    assert not GHOST_KEY.enough_stacks(bare)
    assert not GHOST_KEY.enough_stacks([])


def test_the_key_is_the_one_of_the_assertion() -> None:
    for keys, expected in (
        ((GHOST, GHOST), MET),
        ((OTHER, OTHER), NOT_MET),
        ((GHOST, OTHER), UNKNOWN),
    ):
        seen = stacks(*(thread(*LOOP, key=key) for key in keys))
        evidence = edited(hang_run, lambda e, seen=seen: swap(e, seen))
        assert truth(GHOST_KEY, evidence, "ghost-is-the-key") is expected
    none = edited(hang_run, lambda e: swap(e, logs()))
    assert truth(GHOST_KEY, none, "ghost-is-the-key") is UNKNOWN


# ------------------------------------------------------------ what is sent, and of whom


def test_the_two_images_are_a_row_of_tokens_apart() -> None:
    sizes = (overflow.FITS, overflow.TOO_LARGE)
    small, large = (overflow.LIFTED.tokens_of(*size) for size in sizes)
    # Whole patches: a pixel more is rounded away.
    assert sizes == (
        (896, 448),
        (896, 476),
    )
    assert overflow.tokens_sent(Requests(overflow_run())) == (small, large)
    assert overflow.LIFTED.image_tokens == 2048
    assert (small, large - small) == (overflow.BUDGET, overflow.ROW_TOKENS) == (512, 32)
    assert (
        OVERFLOW.model.tokens_of(*overflow.TOO_LARGE)
        <= OVERFLOW.model.image_tokens
        == 225
    )
    options = OVERFLOW.server_args
    assert options[options.index("--max-num-batched-tokens") + 1] == "512"
    assert (options[options.index("--max-num-seqs") + 1], OVERFLOW.max_model_len) == (
        "8",
        4096,
    )
    lifted = overflow.KWARGS["mm_processor_kwargs"]["max_pixels"]
    assert lifted == overflow.LIFTED.max_pixels
    larger = OVERFLOW.mitigation("larger-budget").server_args
    assert larger == ("--max-num-batched-tokens", "2048")


def test_the_refused_request_is_too_long_by_its_image() -> None:
    text = DESYNC.max_model_len - vllm.TEXT_MARGIN
    assert text + 24 < DESYNC.max_model_len < text + DESYNC.model.image_tokens
    for scenario in (DESYNC, GHOST_KEY):
        options = scenario.server_args
        assert (
            options[options.index("--mm-processor-cache-gb") + 1]
            == str(vllm.CACHE_GB)
            == "0.02"
        )


@pytest.mark.parametrize(
    ("release", "mitigations", "outcome"),
    [
        ("0.13.0", (), Outcome.DIFFERENT_FAILURE),
        ("0.13.0", ("disable-mm-cache",), Outcome.NOT_REPRODUCED),
        ("0.14.0", (), Outcome.REPRODUCED),
        ("0.14.0", ("disable-mm-cache",), Outcome.NOT_REPRODUCED),
        ("0.23.0", ("patch",), Outcome.NOT_REPRODUCED),
        ("0.24.0", (), Outcome.NOT_REPRODUCED),
    ],
)
def test_what_is_expected_of_a_release(
    release: str, mitigations: tuple[str, ...], outcome: Outcome
) -> None:
    assert GHOST_KEY.expected(release, frozenset(mitigations))[0] is outcome


@pytest.mark.parametrize(
    ("command", "exposed"),
    [
        (("--mm-processor-cache-gb", "0"), NOT_MET),
        (("--mm-processor-cache-gb=0.0",), NOT_MET),
        (("--mm-processor-cache-gb", "4"), MET),
        ((), MET),
    ],
)
def test_a_server_without_the_cache_is_not_exposed(
    command: tuple[str, ...], exposed: Truth
) -> None:
    live = LiveFacts("vllm", "0.23.0", command, 13.0)
    assert GHOST_KEY.exposure(live).truth is exposed
    (told,) = [c for c in GHOST_KEY.live_conditions(live) if c.id == "affected-release"]
    assert (told.check(Evidence()).truth, told.required) == (exposed, False)


def test_the_gate_wants_the_cached_image_alike() -> None:
    assert GHOST_KEY.gate_check(hang_run()).truth is MET
    for label in ("gate: image 1 again", "gate: image 1, streamed"):
        other = hang_run()
        other.labelled(label)[0].text = "another"
        assert GHOST_KEY.gate_check(other).truth is NOT_MET
    for label in ("gate: image 2", "gate: image 1 (cold)"):
        fine = hang_run()
        fine.labelled(label)[0].text = "another"
        assert GHOST_KEY.gate_check(fine).truth is MET
        fine.labelled(label)[0].status = 500
        assert GHOST_KEY.gate_check(fine).truth is NOT_MET


def test_a_request_without_an_answer_is_named_so() -> None:
    silent = desync_run()
    silent.labelled(vllm.AGAIN)[1].status = None
    bound = bind(vllm.image_fails, DESYNC, facts(DESYNC))
    assert guarded(bound, silent).observed == "image X: 500, no answer, 500, 500"


def test_the_rows_of_the_mm_caches_say_what_is_abnormal() -> None:
    rows = {
        row.check: row.abnormal
        for row in GHOST_KEY.symptom_rows(hang_run(), facts(GHOST_KEY))
    }
    normal = ("process alive", "/health, /v1/models")
    assert [rows.pop(name) for name in normal] == [False, False]
    assert rows.pop("GPU utilisation") is None
    assert set(rows.values()) == {True}
    rows = {
        row.check: row.abnormal
        for row in DESYNC.symptom_rows(desync_run(), facts(DESYNC))
    }
    assert rows.pop("image X again, short") is True
    assert set(rows.values()) == {False}
    assert len(rows) == 3


def test_what_an_observer_asks_of_the_mm_caches() -> None:
    live = LiveFacts("vllm", "0.23.0", (), 13.0)
    told = [c.id for c in DESYNC.live_conditions(live) if c.required]
    assert told == [
        "requests-fail",
        "others-answered",
        "endpoints-green",
        "receiver-misses",
    ]
    optional = [c.id for c in DESYNC.conditions(facts(DESYNC)) if not c.required]
    assert optional == ["for-ever"]


def test_without_a_log_it_is_said_what_no_sample_showed() -> None:
    evidence = edited(overflow_run, with_samples(budget("<Scheduler>")))
    results = judged(OVERFLOW, evidence, facts(OVERFLOW)).conditions
    told = {r.id: r.observed for r in results}
    assert told["larger-than-the-budget"].startswith(
        "no sample caught the scheduler's local"
    )
    assert told["larger-than-the-cache"].startswith("neither the log nor a stack tells")
