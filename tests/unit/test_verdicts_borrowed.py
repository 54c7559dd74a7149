"""borrowed-faults on made-up evidence: one thing changed at a time, and the verdict
turns."""

import re

import pytest
from made_up import at, http, probed, request, run_facts
from mmrepro.failure.signature import Truth, evaluate
from mmrepro.probes.data import (
    AnyProbeData,
    Frame,
    LogLine,
    LogsData,
    MetricSample,
    MetricsData,
    StackSample,
    StacksData,
    ThreadStack,
)
from mmrepro.scenario import LiveFacts, Scenario
from mmrepro.scenario.minivllm import AFTER, place
from mmrepro.scenario.registry import load_scenario
from mmrepro.scenarios import borrowed_faults as faults
from mmrepro.traffic.evidence import Evidence, ImageSent, Phase, RequestRecord

MET, NOT_MET, UNKNOWN = Truth.MET, Truth.NOT_MET, Truth.UNKNOWN
VARIANTS = load_scenario("borrowed-faults").variants
GHOST_KEY, PAD_VALUE, KV_BUDGET, REUSED_MASK = VARIANTS
DIGEST = "ab" * 32
FUNCTIONS = (
    "ImageCache.pop_oldest",
    "ImageCache.put",
    "ImageCache.received",
    "<genexpr>",
)
FUNCTIONS += ("Engine.add", "Service._take", "Service._loop")


def seen(*data: AnyProbeData) -> Evidence:
    return Evidence(probes=[probed(d) for d in data])


def truth_of(scenario: Scenario, condition: str, evidence: Evidence) -> Truth:
    """Of the condition called so."""
    results = evaluate(scenario.conditions(run_facts(scenario)), evidence)
    return next(r.truth for r in results if r.id == condition)


def log(**lines: list[str]) -> LogsData:
    found = {
        name.replace("_", "-"): [LogLine(number=i, text=t) for i, t in enumerate(texts)]
        for name, texts in lines.items()
    }
    counts = {name: len(texts) for name, texts in found.items()}
    return LogsData(
        file="engine.log", bytes_read=9, lines=9, matches=found, match_counts=counts
    )


def stacks(
    *functions: str, key: str = repr(DIGEST), count: int = 4, active: bool = True
) -> StacksData:
    """``key``: what py-spy prints of the local ``digest``."""
    frames = [Frame(function=name, file="x.py", line=1) for name in functions]
    if functions[0].endswith("pop_oldest"):
        frames[0].locals["digest"] = key
    one = ThreadStack(
        tid=1, name="EngineCore", active=active, owns_gil=active, frames=frames
    )
    return StacksData(
        samples=[StackSample(pid=1, taken=at(1), blocking=False, threads=[one])] * count
    )


def assertion(digest: str = DIGEST) -> LogsData:
    return log(
        cached_item_assertion=[
            f"AssertionError: Expected a cached item for mm_hash={digest!r}"
        ]
    )


@pytest.mark.parametrize(
    ("data", "truth"),
    [
        (stacks(*FUNCTIONS), MET),
        (stacks(*FUNCTIONS[1:], count=9), UNKNOWN),  # never seen in pop_oldest
        (stacks(*FUNCTIONS[1:], count=10), NOT_MET),
        (stacks("Condition.wait", "Service._loop"), NOT_MET),
        (stacks(*FUNCTIONS, active=False), NOT_MET),
        (stacks(*FUNCTIONS, count=2), UNKNOWN),
        (stacks("ThreadingMixIn.process_request"), UNKNOWN),
    ],
)
def test_the_eviction_stack(data: StacksData, truth: Truth) -> None:
    assert truth_of(GHOST_KEY, "eviction-stack", seen(data)) is truth


@pytest.mark.parametrize(
    ("data", "truth"),
    [
        ([stacks(*FUNCTIONS), assertion()], MET),
        ([stacks(*FUNCTIONS, key=f'"{DIGEST[:40]}..."'), assertion()], MET),
        ([stacks(*FUNCTIONS, key=repr("cd" * 32)), assertion()], NOT_MET),
        ([stacks(*FUNCTIONS[1:]), assertion()], UNKNOWN),
        ([stacks(*FUNCTIONS)], UNKNOWN),
        # What py-spy prints of a local that is replaced while it reads.
        ([stacks(*FUNCTIONS, key="64"), assertion()], UNKNOWN),
        ([stacks(*FUNCTIONS, key="<Image at 0x7fa4d0c1>"), assertion()], UNKNOWN),
        ([stacks(*FUNCTIONS, key="64"), stacks(*FUNCTIONS), assertion()], MET),
        (
            [stacks(*FUNCTIONS, key=repr("cd" * 32)), stacks(*FUNCTIONS), assertion()],
            UNKNOWN,
        ),
    ],
)
def test_the_ghost_is_the_missing_item(data: list[AnyProbeData], truth: Truth) -> None:
    assert truth_of(GHOST_KEY, "ghost-is-the-key", seen(*data)) is truth


def picture(
    phase: Phase, label: str, text: str, cached: int | None, digest: int
) -> RequestRecord:
    image = ImageSent(sha256=f"{digest:064x}", width=1, height=1, bytes=1)
    return request(phase, label, text=text, cached_tokens=cached, images=[image])


def corrupted(
    texts: str = "aac",
    cached: tuple[int | None, ...] = (0, 64, 0),
    second: int = 1 + (5 << 16),
) -> Evidence:
    """``texts``: what A, B and C are answered; the control server says "abc"."""
    digests = (1, second, 3)
    return Evidence(
        requests=[
            picture(phase, label, text, share, digest)
            for phase, said in (("control", "abc"), ("trigger", texts))
            for label, text, share, digest in zip(
                faults.LABELS, said, cached, digests, strict=True
            )
        ]
    )


CONDITIONS = ("wrong-answer", "others-right", "one-key", "taken-from-cache")


@pytest.mark.parametrize(
    ("evidence", "truths"),
    [
        (corrupted(), (MET, MET, MET, MET)),
        (corrupted("abc", (0, 0, 0)), (NOT_MET, MET, MET, NOT_MET)),
        (corrupted("aax"), (MET, NOT_MET, MET, MET)),
        (corrupted(second=2), (MET, MET, NOT_MET, MET)),
        (corrupted(second=1), (MET, MET, NOT_MET, MET)),  # one and the same picture
        (corrupted(cached=(0, 48, 0)), (MET, MET, MET, NOT_MET)),
        (corrupted(cached=(0, 64, 64)), (MET, MET, MET, NOT_MET)),
        (corrupted(cached=(64, 64, 0)), (MET, MET, MET, NOT_MET)),
        (corrupted(cached=(0, None, 0)), (MET, MET, MET, UNKNOWN)),
        (Evidence(), (UNKNOWN,) * 4),
    ],
)
def test_the_silent_one(evidence: Evidence, truths: tuple[Truth, ...]) -> None:
    assert tuple(truth_of(PAD_VALUE, name, evidence) for name in CONDITIONS) == truths
    healthy = PAD_VALUE.healthy_after(evidence, run_facts(PAD_VALUE)).truth
    assert (healthy is MET) == (truths[:2] == (NOT_MET, MET))


def test_a_pair_that_the_control_server_answers_alike_shows_nothing() -> None:
    evidence = corrupted()
    evidence.requests.append(request("gate", "gate: text only"))
    assert PAD_VALUE.gate_check(evidence).truth is MET
    evidence.requests[1].text = "a"
    assert PAD_VALUE.gate_check(evidence).truth is NOT_MET


def metrics(**values: float) -> MetricsData:
    samples = [
        MetricSample(name=f"minivllm:{n}", labels={}, value=v)
        for n, v in values.items()
    ]
    return MetricsData(url="http://x", samples=samples)


def blocks(count: int, configured: int = 80) -> MetricsData:
    return metrics(kv_cache_blocks=count, kv_cache_blocks_configured=configured)


def added(tokens: int) -> LogsData:
    return log(added_with_tokens=[f"Added request chatcmpl-1: {tokens} tokens"])


@pytest.mark.parametrize(
    ("data", "truth"),
    [
        ([blocks(8), added(319)], MET),
        ([blocks(80), added(319)], NOT_MET),
        ([blocks(8), added(100)], NOT_MET),
        ([blocks(8), added(128)], NOT_MET),  # fits, just so
        ([blocks(8), added(129)], MET),
        ([blocks(8), added(1280)], MET),
        ([blocks(8), added(1281)], NOT_MET),  # never had room
        ([metrics(kv_cache_blocks=8), added(319)], UNKNOWN),
        ([added(319)], UNKNOWN),
        ([blocks(8)], UNKNOWN),
    ],
)
def test_the_budget(data: list[AnyProbeData], truth: Truth) -> None:
    assert truth_of(KV_BUDGET, "budget-too-small", seen(*data)) is truth


@pytest.mark.parametrize(
    ("scenario", "condition", "data", "truth"),
    [
        (
            KV_BUDGET,
            "nothing-to-preempt",
            log(nothing_to_preempt=["x"], raised_in_decode=["x"]),
            MET,
        ),
        (
            KV_BUDGET,
            "nothing-to-preempt",
            log(nothing_to_preempt=["x"], raised_in_decode=[]),
            NOT_MET,
        ),
        (KV_BUDGET, "nothing-to-preempt", log(), UNKNOWN),
        (
            REUSED_MASK,
            "mask-of-another-step",
            log(mask_rows=["mask-rows: 37 tokens are marked for 0 rows"]),
            MET,
        ),
        (
            REUSED_MASK,
            "mask-of-another-step",
            log(mask_rows=["mask-rows: 3 tokens are marked for 4 rows"]),
            NOT_MET,
        ),
        (
            REUSED_MASK,
            "mask-of-another-step",
            log(mask_rows=["mask-rows: 4 tokens are marked for 4 rows"]),
            NOT_MET,
        ),
        (REUSED_MASK, "mask-of-another-step", log(mask_rows=[]), NOT_MET),
        (REUSED_MASK, "mask-of-another-step", log(), UNKNOWN),
    ],
)
def test_what_the_log_tells(
    scenario: Scenario, condition: str, data: LogsData, truth: Truth
) -> None:
    assert truth_of(scenario, condition, seen(data)) is truth


def test_one_scattered_request_is_enough_and_another_500_is_none() -> None:
    evidence = Evidence(
        requests=[request("trigger", label) for label in faults.TOGETHER]
    )
    assert truth_of(REUSED_MASK, "image-500", evidence) is NOT_MET
    evidence.requests[2].status, evidence.requests[2].error = 500, "CUDA error"
    assert truth_of(REUSED_MASK, "image-500", evidence) is NOT_MET
    evidence.requests[2].error = f"RuntimeError: {faults.SCATTER}"
    assert truth_of(REUSED_MASK, "image-500", evidence) is MET
    assert truth_of(REUSED_MASK, "image-500", Evidence()) is UNKNOWN


DEVICE_ASSERT = "AcceleratorError: CUDA error: device-side assert triggered\nSearch for"


def test_on_a_gpu_the_first_one_takes_the_device_and_the_texts_with_it() -> None:
    evidence = Evidence(
        requests=[request("trigger", x) for x in (*faults.TOGETHER, AFTER)]
    )
    assert truth_of(REUSED_MASK, "text-answered", evidence) is MET
    for record in evidence.requests[1:4]:
        record.status, record.error = 500, DEVICE_ASSERT
    assert truth_of(REUSED_MASK, "image-500", evidence) is MET
    assert truth_of(REUSED_MASK, "text-answered", evidence) is NOT_MET, (
        "CUDA is lost with it"
    )
    evidence.requests[4].status, evidence.requests[4].error = 500, DEVICE_ASSERT
    assert truth_of(REUSED_MASK, "text-answered", evidence) is MET
    evidence.requests[4].error = "internal error happened"
    assert truth_of(REUSED_MASK, "text-answered", evidence) is NOT_MET
    for record in evidence.requests[1:4]:
        record.error = f"RuntimeError: {faults.SCATTER}"
    assert truth_of(REUSED_MASK, "text-answered", evidence) is NOT_MET, "a CPU goes on"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (f"RuntimeError: {faults.SCATTER}", True),
        (
            "/pytorch/aten/src/ATen/native/cuda/IndexKernel.cu:400: "
            "masked_scatter_size_check: "
            "block: [0,0,0], thread: [0,0,0] Assertion `totalElements <= srcSize` "
            "failed.",
            True,
        ),
        (
            "/pytorch/aten/src/ATen/native/cuda/Indexing.cu:1515: "
            "indexSelectSmallIndex: "
            "block: [0,0,0], thread: [0,0,0] Assertion `srcIndex < srcSelectDimSize` "
            "failed.",
            False,
        ),
        ("torch.AcceleratorError: CUDA error: device-side assert triggered", False),
    ],
)
def test_masked_scatter_s_refusal_in_both_devices_words(line: str, found: bool) -> None:
    assert bool(re.search(REUSED_MASK.log_patterns["scatter-error"], line)) is found


@pytest.mark.parametrize("scenario", VARIANTS, ids=lambda s: s.variant)
def test_exposed_is_who_runs_with_the_switch(scenario: Scenario) -> None:
    def truth(*command: str) -> Truth:
        return scenario.exposure(LiveFacts("minivllm", "0.1", command, 15.0)).truth

    fault = scenario.variant
    assert truth("serve", "--fault", fault) is truth("serve", f"--fault={fault}") is MET
    assert truth("serve", "--fault", fault, "--fix", fault) is NOT_MET
    assert truth("serve", "--fault", "other") is NOT_MET
    assert truth("serve", "--fault", fault, "--fault-probability=0.5") is UNKNOWN
    assert truth("serve", "--fault-probability=0.5") is NOT_MET
    assert truth() is UNKNOWN


def test_the_switch_s_own_words_are_no_evidence() -> None:
    """The log's "fault … is on" announces; nothing of a signature looks for it."""
    for scenario in VARIANTS:
        text = f"fault {scenario.variant} is on: {scenario.title}"
        assert not any(re.search(p, text) for p in scenario.log_patterns.values())


def test_the_table_has_a_row_for_each_request_of_the_trigger() -> None:
    facts = run_facts(GHOST_KEY)
    evidence = Evidence(
        requests=[
            request("gate", "gate: an image"),
            request("trigger", faults.TOO_LONG, 400),
            request("trigger", faults.AGAIN, 500),
            request("trigger", faults.FILLS[0]),
            request("trigger", faults.FILLS[0], 500),
        ],
        probes=[probed(http(200, 200))],
    )

    def rows() -> list[tuple[str, str, bool | None]]:
        found = GHOST_KEY.symptom_rows(evidence, facts)
        return [(row.check, row.healthy, row.abnormal) for row in found]

    endpoints = ("/health, /v1/models", "200", False)
    again, fill = (faults.AGAIN, "200", True), (faults.FILLS[0], "200", False)
    assert rows() == [(faults.TOO_LONG, "400", False), again, fill, endpoints]
    evidence.requests[1].status = 200
    assert rows()[0] == (faults.TOO_LONG, "400", True)
    evidence.probes = [probed(http(503, 200))]
    assert rows()[-1] == ("/health, /v1/models", "200", True)


def test_what_a_row_of_its_own_tells_of_is_summed_up() -> None:
    """mm-prefill-contract's last text."""
    scenario = load_scenario("mm-prefill-contract").variants[0]
    evidence = Evidence(requests=[request("trigger", "control: text only")])
    found = scenario.symptom_rows(evidence, run_facts(scenario))
    assert [row.check for row in found] == ["text alone", "/health, /v1/models"]
    assert [row.abnormal for row in found] == [None, None]


@pytest.mark.parametrize(
    ("name", "line", "found"),
    [
        ("images.py:warm_up", '  File "/x/images.py", line 8, in warm_up', True),
        ("images.py:warm_up", '  File "/x/images.py", line 8, in other', False),
        ("images.py:warm_up", '  File "/x/images.py", line 8', False),
        ("images.py:warm_up", '  File "/x/imagesXpy", line 8, in warm_up', False),
        ("vision.py", '  File "/x/vision.py", line 8', True),
        ("vision.py", '  File "/x/vision.py", line 8, in embed', False),
    ],
)
def test_the_place_of_a_traceback(name: str, line: str, found: bool) -> None:
    assert bool(re.search(place(name), line)) == found


def test_a_pair_that_the_control_server_did_not_answer_passes_no_gate() -> None:
    evidence = corrupted()
    evidence.requests.append(request("gate", "gate: text only"))
    evidence.requests[1].status = None
    assert PAD_VALUE.gate_check(evidence).truth is NOT_MET


def test_what_this_server_was_sent_and_said_counts_and_not_the_control_server() -> None:
    evidence = corrupted("xxc")
    assert truth_of(PAD_VALUE, "wrong-answer", evidence) is MET
    evidence.requests[1].images[0].sha256 = f"{9:064x}"  # the control server's B
    assert truth_of(PAD_VALUE, "one-key", evidence) is MET


def test_one_step_is_shown_of_those_whose_mask_does_not_fit() -> None:
    said = [f"mask-rows: {n} tokens are marked for 4 rows" for n in (3, 37, 38)]
    results = evaluate(
        REUSED_MASK.conditions(run_facts(REUSED_MASK)), seen(log(mask_rows=said))
    )
    (found,) = (r for r in results if r.id == "mask-of-another-step")
    assert found.observed == (
        "3 steps whose mask does not fit its rows; 37 tokens are marked for 4 rows"
    )
