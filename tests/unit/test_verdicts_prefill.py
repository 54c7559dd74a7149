"""mm-prefill-contract on made-up evidence: one thing changed at a time, and the verdict
turns."""

from collections.abc import Callable

import pytest
from made_up import drop, http, judge, probed, request, run_facts, swap
from mmrepro.base.records import ClaimStatus
from mmrepro.failure.signature import Outcome, Truth
from mmrepro.probes.data import LogLine, LogsData, MetricSample, MetricsData
from mmrepro.scenario import Scenario
from mmrepro.scenario.minivllm import in_last_block
from mmrepro.scenario.registry import load_scenario
from mmrepro.scenarios import mm_prefill_contract as module
from mmrepro.traffic.evidence import Evidence, ImageSent, Phase, RequestRecord
from turns import Row, edit, half, no, to, without

MET, NOT_MET, UNKNOWN = Truth.MET, Truth.NOT_MET, Truth.UNKNOWN
WHOLE = ImageSent(sha256="0" * 64, width=224, height=224, bytes=100)
ODD = ImageSent(sha256="1" * 64, width=84, height=56, bytes=100)
TOKENS = {module.WHOLE: 85, module.ODD: 27, module.STREAMED: 85}
TEXT_TOKENS = 24
ERRORS = {
    "slot-mapping": "AssertionError: Slot mapping size must match number of tokens",
    "warmup-sequence": "TypeError: ImageRunner expects ImageSequence, got Sequence",
    "warmup-order": (
        "TypeError: Qwen3.forward() got an unexpected keyword argument 'inputs_embeds'"
    ),
    "broken-module": "SyntaxError: invalid syntax (fake_vision.py, line 21)",
    "image-path": (
        "FileNotFoundError: [Errno 2] No such file or directory: 'assets/warm-up.png'"
    ),
    "pinned-placeholder": "RuntimeError: cannot pin 'MetaLongType' only dense CPU "
    "tensors can be pinned",
}
VARIANTS = [load_scenario("mm-prefill-contract").with_variant(name) for name in ERRORS]
SLOTS = VARIANTS[0]


def image(scenario: Scenario, label: str) -> RequestRecord:
    assert isinstance(scenario, module.PrefillContract)
    sent = [ODD if label == module.ODD else WHOLE]
    record = request("trigger", label, images=sent, prompt_tokens=TOKENS[label])
    return (
        fails(record, ERRORS[scenario.variant]) if label in scenario.failing else record
    )


def fails(record: RequestRecord, error: str) -> RequestRecord:
    record.status, record.prompt_tokens = 500, None
    record.error = '{"error": {"message": "' + error + '", "code": 500}}'
    return record


def matches(
    scenario: Scenario, *tokens: int, on: bool = True
) -> dict[str, list[LogLine]]:
    """What the engine logged of requests with as many tokens, and of the fault."""
    added = [f"Added request chatcmpl-{i}: {n} tokens" for i, n in enumerate(tokens)]
    said = [f"fault {scenario.variant} is on: words"] if on else []
    lines = {"added-request": added, "fault-on": said}
    return {
        k: [LogLine(number=i, text=t) for i, t in enumerate(v)]
        for k, v in lines.items()
    }


ALL_TOKENS = (TEXT_TOKENS, TEXT_TOKENS, *TOKENS.values(), TEXT_TOKENS)


def text(phase: Phase, label: str) -> RequestRecord:
    return request(phase, label, prompt_tokens=TEXT_TOKENS)


def failed_run(scenario: Scenario, slots: int = 21, tokens: int = 27) -> Evidence:
    """As it reproduces."""
    assert isinstance(scenario, module.PrefillContract)
    count = len(scenario.failing)
    line = LogLine(
        number=84,
        text=(
            f"contract violated: slot-count: slot_mapping has {slots} entries "
            f"for {tokens} tokens"
        ),
    )
    short = [line] if scenario is SLOTS else []
    found = matches(scenario, *ALL_TOKENS) | {"contract-violated": short}
    counts = dict.fromkeys(scenario.log_patterns, count) | {
        k: len(v) for k, v in found.items()
    }
    log = LogsData(
        file="engine.log", bytes_read=9, lines=9, matches=found, match_counts=counts
    )
    return Evidence(
        requests=[
            text("gate", module.TEXTS[0]),
            text("gate", module.TEXTS[1]),
            *(image(scenario, label) for label in module.IMAGES),
            text("trigger", module.TEXTS[2]),
        ],
        probes=[probed(http(200, 200)), probed(log), probed(block_size(16))],
    )


def block_size(size: int) -> MetricsData:
    sample = MetricSample(name="minivllm:kv_cache_block_size", labels={}, value=size)
    return MetricsData(url="http://x", samples=[sample])


@pytest.mark.parametrize("scenario", VARIANTS, ids=list(ERRORS))
def test_every_variant_reproduces(scenario: Scenario) -> None:
    outcome, truths, results = judge(scenario, failed_run(scenario))
    assert set(truths.values()) == {MET}, results
    assert outcome is Outcome.REPRODUCED


def test_decode_by_graph_is_judged_where_graphs_were_captured() -> None:
    scenario = VARIANTS[0]

    def told(run: Evidence, *mitigations: str) -> ClaimStatus:
        facts = run_facts(scenario, "", *mitigations)
        return {c.id: c.status for c in scenario.claim_results(run, facts)}[
            "decode-graph"
        ]

    def captured(run: Evidence) -> Evidence:
        log = next(p.data for p in run.probes if isinstance(p.data, LogsData))
        line = "decode graphs of [1, 2, 4, 8] sequences captured in 0.71 s"
        log.matches["decode-graphs"] = [LogLine(number=1, text=line)]
        log.match_counts["decode-graphs"] = 1
        return run

    assert told(captured(fixed_run(scenario)), "fix") is ClaimStatus.CONFIRMED
    assert told(captured(failed_run(scenario))) is ClaimStatus.NOT_TESTED
    other = captured(fixed_run(scenario))
    other.requests[-1].text = "another answer"
    assert told(other, "fix") is ClaimStatus.REFUTED


@pytest.mark.parametrize("scenario", VARIANTS, ids=list(ERRORS))
def test_the_error_of_another_variant_is_not_this_one(scenario: Scenario) -> None:
    for other, error in ERRORS.items():
        evidence = failed_run(scenario)
        for record in evidence.requests_in("trigger"):
            if record.status == 500:
                fails(record, error)
        outcome, truths, _ = judge(scenario, evidence)
        same = other == scenario.variant
        assert (truths["image-500"] is MET) == same, other
        assert (outcome is Outcome.REPRODUCED) == same


def counted(name: str, count: int) -> Callable[[Evidence], None]:
    def change(evidence: Evidence) -> None:
        for _, data in evidence.results(LogsData):
            data.match_counts[name] = count

    return change


def relabel(label: str, **fields: object) -> Callable[[Evidence], None]:
    def change(evidence: Evidence) -> None:
        for record in evidence.requests:
            if record.label == label:
                for name, value in fields.items():
                    setattr(record, name, value)

    return change


DIFFERENT, INCONCLUSIVE = Outcome.DIFFERENT_FAILURE, Outcome.INCONCLUSIVE
ROWS: dict[str, Row] = {
    "the error is not in the log": (
        counted("note-error", 0),
        "different -error-raised-there",
    ),
    "more errors than failed requests": (
        counted("note-error", 5),
        "different -error-raised-there",
    ),
    "raised elsewhere": (counted("frame-0", 0), "different -error-raised-there"),
    "no log": (no("logs"), "inconclusive ?error-raised-there"),
    "half a log": (half("logs"), "inconclusive ?error-raised-there"),
    "whole blocks fail too": (edit(module.WHOLE, status=500), "different -image-500"),
    "400 instead": (edit(module.ODD, status=400), "different -image-500"),
    "the image was not sent": (without(module.ODD), "inconclusive ?image-500"),
    "text answers change": (
        edit(module.TEXTS[2], text="other"),
        "different -text-undisturbed",
    ),
    "text fails": (edit(module.TEXTS[2], status=500), "different -text-undisturbed"),
    "text was not sent": (without(module.TEXTS[2]), "inconclusive ?text-undisturbed"),
    "/health is red": (to(http(503, 200)), "different -endpoints-green"),
}


@pytest.mark.parametrize(
    ("slots", "tokens", "truth"),
    [
        (21, 27, MET),  # 21 text ids: 5 tokens in the last block in place of 11
        (20, 27, NOT_MET),
        (26, 27, NOT_MET),
        (32, 22, NOT_MET),  # more slots than tokens
        (24, 30, MET),  # 24: 8 in place of 14
        (16, 22, NOT_MET),  # 16 ids fill their block: nothing would be short
    ],
)
def test_the_shortfall_is_the_last_blocks(
    slots: int, tokens: int, truth: Truth
) -> None:
    _, truths, _ = judge(SLOTS, failed_run(SLOTS, slots, tokens))
    assert truths["short-by-the-last-block"] is truth


def fixed_run(scenario: Scenario, *, on: bool = False) -> Evidence:
    evidence = failed_run(scenario)
    for record in evidence.requests_in("trigger"):
        record.status, record.error = 200, ""
        record.text, record.completion_tokens = "$Y", 4
        record.prompt_tokens = TOKENS.get(record.label, TEXT_TOKENS)
    found = matches(scenario, *ALL_TOKENS, on=on)
    counts = dict.fromkeys([*scenario.log_patterns, "contract-violated"], 0)
    counts |= {name: len(lines) for name, lines in found.items()}
    log = LogsData(
        file="engine.log", bytes_read=9, lines=9, matches=found, match_counts=counts
    )
    swap(evidence, log)
    return evidence


@pytest.mark.parametrize("scenario", VARIANTS, ids=list(ERRORS))
def test_the_fix_is_not_reproduced(scenario: Scenario) -> None:
    outcome, _, _ = judge(scenario, fixed_run(scenario))
    assert outcome is Outcome.NOT_REPRODUCED
    facts = run_facts(scenario, "", "fix")
    claims = {
        c.id: c.status for c in scenario.claim_results(fixed_run(scenario), facts)
    }
    own = OWN_CLAIMS.get(scenario.variant, {})
    assert claims == own | {
        "root-cause": ClaimStatus.NOT_TESTED,
        "decode-undisturbed": ClaimStatus.CONFIRMED,
        "decode-graph": ClaimStatus.NOT_TESTED,
        "fixed": ClaimStatus.CONFIRMED,
        "original": ClaimStatus.NOT_TESTED,
    }
    claims = {
        c.id: c.status
        for c in scenario.claim_results(failed_run(scenario), run_facts(scenario))
    }
    assert claims["root-cause"] is ClaimStatus.CONFIRMED
    assert claims["fixed"] is ClaimStatus.NOT_TESTED


def test_the_second_half_of_the_fix_is_judged_by_the_notes_error_alone() -> None:
    def told(evidence: Evidence) -> dict[str, ClaimStatus]:
        for log in (data for _, data in evidence.results(LogsData, "check")):
            line = LogLine(number=1, text="placeholder ids: text")
            log.matches["placeholder-ids"], log.match_counts["placeholder-ids"] = (
                [line],
                1,
            )
        facts = run_facts(SLOTS, "", "fix")
        return {c.id: c.status for c in SLOTS.claim_results(evidence, facts)}

    yes, no, untested = (
        ClaimStatus.CONFIRMED,
        ClaimStatus.REFUTED,
        ClaimStatus.NOT_TESTED,
    )
    mended = told(fixed_run(SLOTS))
    assert (mended["first-half"], mended["second-half"]) == (yes, no)
    other = fixed_run(SLOTS)
    for record in other.requests:
        if record.images:
            record.status, record.error = 500, "CUDA error: an illegal memory access"
    broken = told(other)
    assert (broken["first-half"], broken["second-half"]) == (untested, untested)


PINNED = "pinned-placeholder"
OWN_CLAIMS = {
    PINNED: {"pin-memory": ClaimStatus.NOT_TESTED},
    "slot-mapping": {
        "first-half": ClaimStatus.CONFIRMED,
        "second-half": ClaimStatus.NOT_TESTED,  # this log does not tell of placeholder ids
    },
}


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (module.NOTE_WORDS, ClaimStatus.CONFIRMED),  # recorded on an H100
        (
            (
                "RuntimeError: cannot pin 'torch.cuda.LongTensor' only dense CPU "
                "tensors can be pinned"
            ),
            ClaimStatus.REFUTED,
        ),
        (ERRORS[PINNED], ClaimStatus.NOT_TESTED),
    ],
)
def test_the_note_s_words_are_those_of_a_gpu(error: str, status: ClaimStatus) -> None:
    scenario = load_scenario("mm-prefill-contract").with_variant(PINNED)
    evidence = failed_run(scenario)
    for record in evidence.requests_in("trigger"):
        if record.status == 500:
            fails(record, error)
    for _, data in evidence.results(LogsData):
        data.matches["note-error"] = [
            LogLine(number=9, text=f"(EngineCore pid=1) ERROR {error}")
        ]
    assert judge(scenario, evidence)[0] is Outcome.REPRODUCED
    claims = scenario.claim_results(evidence, run_facts(scenario))
    assert {c.id: c.status for c in claims}["pin-memory"] is status


def test_one_picture_answered_in_two_ways_is_another_failure() -> None:
    evidence = fixed_run(SLOTS)
    relabel(module.WHOLE, text="other")(evidence)
    assert judge(SLOTS, evidence)[0] is DIFFERENT


def test_each_variant_switches_its_own_fault_and_its_fix_undoes_it() -> None:
    for scenario in VARIANTS:
        arguments = scenario.server_args
        assert arguments[arguments.index("--fault") + 1] == scenario.variant
        assert scenario.mitigation("fix").server_args == ("--fix", scenario.variant)


def retold(evidence: Evidence, *tokens: int) -> Evidence:
    """The log counts other tokens of the requests."""
    for _, log in evidence.results(LogsData):
        added = matches(SLOTS, *tokens)["added-request"]
        log.matches["added-request"], log.match_counts["added-request"] = (
            added,
            len(added),
        )
    return evidence


@pytest.mark.parametrize("scenario", VARIANTS, ids=list(ERRORS))
@pytest.mark.parametrize(
    ("tokens", "truth"),
    [
        (ALL_TOKENS, MET),
        ((24, 24, 85, 26, 85, 24), NOT_MET),  # the small image was made smaller
        ((24, 24, 85, 27), NOT_MET),  # the last image never got there
        ((24, 24, 64, 6, 64, 24), NOT_MET),  # embeddings alone
        ((24, 24, 65, 7, 65, 24), MET),
        ((24, 24, 21, 21, 21, 24), NOT_MET),  # text alone
        ((25, 24, 85, 27, 85, 24), UNKNOWN),  # of other requests: the answer counts 24
        ((), UNKNOWN),
    ],
)
def test_the_images_were_admitted(
    scenario: Scenario, tokens: tuple[int, ...], truth: Truth
) -> None:
    evidence = retold(failed_run(scenario), *tokens)
    for sent in evidence.requests_in("trigger"):
        sent.prompt_tokens = None  # what the log says of an answered one is tried last
    outcome, truths, _ = judge(scenario, evidence)
    assert truths["images-admitted"] is truth
    assert (outcome is Outcome.REPRODUCED) == (truth is MET)


def test_a_refused_request_is_in_no_log() -> None:
    """Those that were refused, or never sent, have no line; what hangs has one."""
    evidence = failed_run(SLOTS)
    refused = request("gate", "refused", 400)
    lost = request("gate", "lost", None, error="connection refused")
    evidence.requests[1:1] = [refused, lost]
    assert judge(SLOTS, evidence)[1]["images-admitted"] is MET
    waits = request("gate", "waits", None, timed_out=True)
    evidence.requests.insert(1, waits)
    assert judge(SLOTS, evidence)[1]["images-admitted"] is not MET
    retold(evidence, TEXT_TOKENS, 99, *ALL_TOKENS[1:])
    assert judge(SLOTS, evidence)[1]["images-admitted"] is MET


@pytest.mark.parametrize(
    ("size", "truth"),
    [(16, MET), (32, MET), (2, NOT_MET), (6, NOT_MET), (8, NOT_MET), (1, NOT_MET)],
)
def test_the_last_block_differs(size: int, truth: Truth) -> None:
    evidence = failed_run(SLOTS)
    swap(evidence, block_size(size))
    _, truths, _ = judge(SLOTS, evidence)
    assert truths["last-block-differs"] is truth
    healthy = fixed_run(SLOTS)
    swap(healthy, block_size(size))
    expected = Outcome.NOT_REPRODUCED if truth is MET else INCONCLUSIVE
    assert judge(SLOTS, healthy)[0] is expected


def test_without_the_engine_s_word_nothing_is_said_of_its_blocks() -> None:
    evidence = failed_run(SLOTS)
    drop(evidence, "metrics")
    assert judge(SLOTS, evidence)[1]["last-block-differs"] is UNKNOWN
    evidence = failed_run(SLOTS)
    without(module.ODD)(evidence)
    assert judge(SLOTS, evidence)[1]["last-block-differs"] is UNKNOWN
    evidence = retold(failed_run(SLOTS), *ALL_TOKENS[:3])
    assert judge(SLOTS, evidence)[1]["last-block-differs"] is UNKNOWN


@pytest.mark.parametrize(
    ("tokens", "size", "last"),
    [(1, 16, 1), (15, 16, 15), (16, 16, 16), (17, 16, 1), (33, 32, 1)],
)
def test_tokens_in_the_last_block(tokens: int, size: int, last: int) -> None:
    assert in_last_block(tokens, size) == last


def test_text_that_is_as_it_was_is_not_abnormal() -> None:
    rows = SLOTS.symptom_rows(failed_run(SLOTS), run_facts(SLOTS))
    told = {row.check: row.abnormal for row in rows}
    assert (told["text alone"], told[module.ODD], told[module.WHOLE]) == (
        False,
        True,
        False,
    )


def test_each_variant_is_a_bug_of_the_note() -> None:
    assert {
        s.variant: s.origin for s in VARIANTS if isinstance(s, module.PrefillContract)
    } == {
        "warmup-sequence": "milestone note, bug 1",
        "warmup-order": "milestone note, bug 2",
        "broken-module": "milestone note, bug 3",
        "image-path": "milestone note, bug 4",
        "pinned-placeholder": "milestone note, bug 5",
        "slot-mapping": "milestone note, bug 6",
    }


def test_text_alone_has_one_row() -> None:
    rows = SLOTS.symptom_rows(failed_run(SLOTS), run_facts(SLOTS))
    assert [row.check for row in rows] == [
        *module.IMAGES,
        "text alone",
        "/health, /v1/models",
    ]


@pytest.mark.parametrize(("first", "truth"), [((21, 27), MET), ((20, 27), NOT_MET)])
def test_the_first_missing_slots_count(first: tuple[int, int], truth: Truth) -> None:
    evidence = failed_run(SLOTS)
    said = [first, (41 - first[0], 30), (41 - first[0], 30)]
    lines = [
        LogLine(number=n, text=f"slot_mapping has {slots} entries for {tokens} tokens")
        for n, (slots, tokens) in enumerate(said)
    ]
    for _, data in evidence.results(LogsData):
        data.matches["contract-violated"] = lines
    assert judge(SLOTS, evidence)[1]["short-by-the-last-block"] is truth


def test_a_fix_that_the_engine_does_not_confirm_takes_no_cause_away() -> None:
    plain, fixed = run_facts(SLOTS), run_facts(SLOTS, "", "fix")
    assert SLOTS.cause_remains(fixed_run(SLOTS), fixed).truth is NOT_MET
    assert SLOTS.cause_remains(fixed_run(SLOTS, on=True), fixed).truth is UNKNOWN
    assert SLOTS.cause_remains(fixed_run(SLOTS, on=True), plain).truth is NOT_MET
    assert SLOTS.cause_remains(failed_run(SLOTS), fixed).truth is MET
    found = SLOTS.cause_remains(fixed_run(SLOTS), fixed)
    assert found == SLOTS.cause_remains(fixed_run(SLOTS), plain)
