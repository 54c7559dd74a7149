"""borrowed-faults: when the trigger arrived, on made-up evidence, one thing changed at
a time."""

from collections.abc import Callable

import pytest
from made_up import probed, request, run_facts
from mmrepro.failure.signature import Truth, evaluate
from mmrepro.probes.data import LogLine, LogsData, MetricSample, MetricsData
from mmrepro.scenario import Requests, Scenario
from mmrepro.scenario.registry import load_scenario
from mmrepro.scenarios import borrowed_faults as faults
from mmrepro.traffic.evidence import Evidence, ImageSent, Phase, RequestRecord
from mmrepro.traffic.pictures import Picture

MET, NOT_MET, UNKNOWN = Truth.MET, Truth.NOT_MET, Truth.UNKNOWN
GHOST_KEY, PAD_VALUE, KV_BUDGET, REUSED_MASK = load_scenario("borrowed-faults").variants
Change = Callable[[Evidence], object]


def truth_of(scenario: Scenario, condition: str, evidence: Evidence) -> Truth:
    results = evaluate(scenario.conditions(run_facts(scenario)), evidence)
    result = next(r for r in results if r.id == condition)
    assert result.part == "precondition"
    assert result.required
    return result.truth


def metrics(phase: str, **values: float) -> object:
    samples = [
        MetricSample(name=f"minivllm:{n}", labels={}, value=v)
        for n, v in values.items()
    ]
    return probed(MetricsData(url="http://x", samples=samples), phase)


def log(*tokens: int) -> object:
    lines = [
        LogLine(number=n, text=f"Added request {n}: {t} tokens")
        for n, t in enumerate(tokens)
    ]
    found, counts = {"added-request": lines}, {"added-request": len(lines)}
    return probed(
        LogsData(
            file="engine.log", bytes_read=9, lines=9, matches=found, match_counts=counts
        )
    )


def seen(requests: list[RequestRecord], *probes: object) -> Evidence:
    return Evidence(requests=requests, probes=list(probes))  # type: ignore[arg-type]


def picture(phase: Phase, label: str, digest: int, **more: object) -> RequestRecord:
    sent = [ImageSent(sha256=f"{digest:064x}", width=224, height=224, bytes=1)]
    return request(phase, label, images=sent, **{"prompt_tokens": None, **more})


# ------------------------------------------------------------------ ghost-key-lru

LONG = "Input length (2181) exceeds the maximum context length (2048)."


def refused(evicted: float = 2, **long: object) -> Evidence:
    """The gate's image twice, the refused one and again; the log has no line of the
    refused."""
    first = {"status": 400, "error": LONG, **long}
    return seen(
        [
            picture("gate", "gate: an image", 1),
            picture("gate", "gate: the image again", 1),
            picture("trigger", faults.TOO_LONG, 2, **first),
            picture("trigger", faults.AGAIN, 2),
        ],
        log(85, 85, 85),
        metrics("check", mm_cache_evictions_total=evicted),
    )


def other_image(evidence: Evidence) -> None:
    evidence.requests[3].images[0].sha256 = "9"


def no_image(evidence: Evidence) -> None:
    evidence.requests[2].images = evidence.requests[3].images = []


def last_line_lost(evidence: Evidence) -> None:
    evidence.probes[0] = log(85, 85)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("evidence", "change", "truth"),
    [
        (refused(), None, MET),
        (
            refused(error="no image may be sent"),
            None,
            NOT_MET,
        ),  # refused for something else
        (refused(status=413), None, NOT_MET),
        (refused(), other_image, NOT_MET),
        (refused(), no_image, NOT_MET),
        (refused(), last_line_lost, NOT_MET),
        (refused(), lambda e: e.probes.pop(0), UNKNOWN),
        (refused(), lambda e: e.requests.pop(2), UNKNOWN),
        (refused(), lambda e: e.requests.pop(3), UNKNOWN),
    ],
)
def test_refused_then_taken(
    evidence: Evidence, change: Change | None, truth: Truth
) -> None:
    if change:
        change(evidence)
    assert truth_of(GHOST_KEY, "refused-then-taken", evidence) is truth


@pytest.mark.parametrize(
    ("evicted", "truth"), [(0, NOT_MET), (1, NOT_MET), (2, MET), (99, MET)]
)
def test_the_eviction_came_past_the_gate_s_image(evicted: int, truth: Truth) -> None:
    assert truth_of(GHOST_KEY, "eviction-reached", refused(evicted)) is truth


def test_the_last_reading_of_evictions_counts() -> None:
    evidence = refused(2)
    evidence.probes.append(metrics("check", mm_cache_evictions_total=3))  # type: ignore[arg-type]
    evidence.probes[1] = metrics("check", mm_cache_evictions_total=1)  # type: ignore[call-overload]
    assert truth_of(GHOST_KEY, "eviction-reached", evidence) is MET


def test_evictions_of_which_the_engine_does_not_tell_are_unknown() -> None:
    evidence = refused()
    evidence.probes.pop()
    assert truth_of(GHOST_KEY, "eviction-reached", evidence) is UNKNOWN


# ------------------------------------------------------------------ pad-value-key


@pytest.mark.parametrize(
    ("first", "again", "truth"),
    [
        (0, 80, MET),
        (0, 64, MET),
        (63, 64, MET),
        (0, 63, NOT_MET),
        (0, 0, NOT_MET),
        (64, 80, NOT_MET),  # it was there before it was sent
        (None, 80, UNKNOWN),
        (0, None, UNKNOWN),
    ],
)
def test_an_image_sent_again_is_cached(
    first: int | None, again: int | None, truth: Truth
) -> None:
    labels = zip(PAD_VALUE.gate_images, (first, again), strict=True)  # type: ignore[attr-defined]
    sent = [picture("gate", label, 1, cached_tokens=cached) for label, cached in labels]
    assert truth_of(PAD_VALUE, "prefix-cached", seen(sent)) is truth
    found = PAD_VALUE.prefix_cached(Requests(seen(sent)))  # type: ignore[attr-defined]
    assert found.observed == f"cached tokens in the gate: {first}, then {again}"


def test_a_pair_that_does_not_collide_never_arrived() -> None:
    def pair(second: int, third: int = 3) -> Evidence:
        digests = (1, second, third)
        return seen(
            [
                picture(phase, label, digest)
                for phase in ("control", "trigger")
                for label, digest in zip(faults.LABELS, digests, strict=True)
            ]
        )

    assert truth_of(PAD_VALUE, "one-key", pair(1 + (5 << 16))) is MET
    assert truth_of(PAD_VALUE, "one-key", pair(2)) is NOT_MET
    assert truth_of(PAD_VALUE, "one-key", pair(1)) is NOT_MET  # one picture
    assert truth_of(PAD_VALUE, "one-key", pair(3 + (5 << 16))) is NOT_MET  # C's value
    # C's too.
    assert truth_of(PAD_VALUE, "one-key", pair(1 + (5 << 16), 1 + (7 << 16))) is NOT_MET


# ------------------------------------------------------------------ kv-budget


def outgrown(
    *,
    prompt: int = 319,
    configured: float = 80,
    got: int | None = None,
    total: float = 117,
) -> Evidence:
    """``got``: tokens of the answer; None: it failed, and the server generated
    ``total``."""
    grows = (
        {"status": 500}
        if got is None
        else {"completion_tokens": got, "prompt_tokens": None}
    )
    return seen(
        [
            request("gate", "gate: text only", completion_tokens=12, prompt_tokens=24),
            request("trigger", faults.PROMPT, 500),
            request("trigger", faults.GROWS, **grows),
        ],
        log(24, prompt, 24),
        metrics(
            "check",
            kv_cache_blocks_configured=configured,
            generation_tokens_total=total,
        ),
    )


@pytest.mark.parametrize(
    ("evidence", "truth"),
    [
        (outgrown(), MET),
        (outgrown(prompt=129), MET),
        (outgrown(prompt=128), NOT_MET),  # a tenth holds it
        (outgrown(prompt=1280), MET),
        (outgrown(prompt=1281), NOT_MET),  # the whole does not
        (outgrown(configured=89), MET),
        (outgrown(configured=199, prompt=305), MET),  # a tenth: 19 blocks
        (outgrown(configured=199, prompt=304), NOT_MET),
        (outgrown(configured=2000), NOT_MET),
    ],
)
def test_the_prompt_outgrows_a_tenth(evidence: Evidence, truth: Truth) -> None:
    assert truth_of(KV_BUDGET, "prompt-outgrows", evidence) is truth


@pytest.mark.parametrize(
    ("evidence", "truth"),
    [
        (outgrown(), MET),  # 117 - 12: 105 tokens
        (outgrown(total=116), NOT_MET),
        (outgrown(got=300), MET),
        (outgrown(got=105), MET),
        (outgrown(got=104), NOT_MET),  # it ended early
        (outgrown(got=300, configured=400), NOT_MET),
    ],
)
def test_the_answer_outgrows_a_tenth(evidence: Evidence, truth: Truth) -> None:
    assert truth_of(KV_BUDGET, "answer-outgrows", evidence) is truth


@pytest.mark.parametrize("condition", ["prompt-outgrows", "answer-outgrows"])
def test_a_budget_of_which_nothing_is_known(condition: str) -> None:
    for lost in (1, 0):  # the budget, the log
        evidence = outgrown()
        evidence.probes.pop(lost)
        assert truth_of(KV_BUDGET, condition, evidence) is UNKNOWN
    evidence = outgrown()
    del evidence.requests[1:]
    assert truth_of(KV_BUDGET, condition, evidence) is UNKNOWN


# ------------------------------------------------------------------ reused-mask


@pytest.mark.parametrize(
    ("before", "after", "truth"),
    [(0, 1, MET), (2, 7, MET), (0, 0, NOT_MET), (3, 3, NOT_MET)],
)
def test_an_image_s_step_was_prepared_ahead(
    before: float, after: float, truth: Truth
) -> None:
    steps = {"gate": before, "check": after}
    evidence = seen(
        [], *(metrics(p, image_steps_ahead_total=n) for p, n in steps.items())
    )
    assert truth_of(REUSED_MASK, "prepared-ahead", evidence) is truth
    evidence.probes.pop()
    assert truth_of(REUSED_MASK, "prepared-ahead", evidence) is UNKNOWN


def test_the_pictures_that_are_sent_collide() -> None:
    """As the trigger makes them: three pictures, of which the first two share a
    value."""

    class Pictures:
        def picture(self, name: str, seed: int) -> Picture:
            return Picture(name, b"%d" % seed, 1, 1)

    first, second, other = (p.sent().sha256 for p in faults.pictures(Pictures()))  # type: ignore[arg-type]
    values = [int(digest, 16) % faults.PAD_RANGE for digest in (first, second, other)]
    assert values[0] == values[1] != values[2]
    assert len({first, second, other}) == 3
