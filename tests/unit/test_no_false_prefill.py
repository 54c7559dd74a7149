"""chunked-mm-prefill's placeholders: nothing is said of a token that never arrived
(issue 14, 4), of another process's error, or of options that the engine does not
confirm."""

from collections.abc import Callable
from typing import Any

import pytest
from made_up import judge, probed, processes, request, run_facts, swap
from made_up_crash import (
    API,
    ASSIGN,
    CORE,
    MISMATCH_TEXT,
    death_log,
    death_run,
    later,
    line,
    quiet_log,
    said,
    survived_run,
)
from mmrepro.failure.documents import ClaimResult
from mmrepro.failure.signature import Outcome, Truth, crash
from mmrepro.failure.signature.views import Logs
from mmrepro.probes.data import LogLine, LogsData, ProcessesData
from mmrepro.scenario.registry import load_scenario
from mmrepro.scenarios.chunked_mm_prefill import placeholder as module
from mmrepro.traffic.evidence import Evidence, ImageSent, RequestRecord

MET, NOT_MET, UNKNOWN = Truth.MET, Truth.NOT_MET, Truth.UNKNOWN
REPRODUCED, DIFFERENT = Outcome.REPRODUCED, Outcome.DIFFERENT_FAILURE
NOT_REPRODUCED, INCONCLUSIVE = Outcome.NOT_REPRODUCED, Outcome.INCONCLUSIVE
PREFILL = load_scenario("chunked-mm-prefill")
GENERATED = PREFILL.with_variant("generated-placeholder")
LITERAL = PREFILL.with_variant("literal-placeholder")
TEXT = f"hello {module.PLACEHOLDER} world"
GATE_TOKENS = 232
AS_TOKEN, AS_TEXT = GATE_TOKENS + 11, GATE_TOKENS + 20
"""Tokens of a prompt whose text has 13 or 22 where the gate's "hi" has 2."""

Change = Callable[[Evidence], object]


# -------------------------------------------------------------- the literal placeholder


def with_literal(evidence: Evidence, tokens: int | None = AS_TOKEN) -> Evidence:
    image = ImageSent(sha256="0" * 64, width=420, height=420, bytes=1000)
    for record in evidence.labelled(module.SAME_SIZE):
        record.prompt_head, record.prompt_tokens, record.images = (
            "hi",
            GATE_TOKENS,
            [image],
        )
    for record in evidence.labelled(module.LITERAL):
        record.prompt_head, record.prompt_tokens, record.images = TEXT, tokens, [image]
    return evidence


def answered(tokens: int | None = AS_TOKEN) -> Evidence:
    return with_literal(survived_run(module.LITERAL), tokens)


def refused() -> Evidence:
    evidence = answered(None)
    for record in evidence.labelled(module.LITERAL):
        record.status, record.error = 400, "no placeholders, please"
    return evidence


def resized() -> Evidence:
    evidence = answered()
    for record in evidence.labelled(module.LITERAL):
        record.images = [record.images[0].model_copy(update={"width": 84})]
    return evidence


def bare(label: str) -> Evidence:
    evidence = answered()
    for record in evidence.labelled(label):
        record.images = []
    return evidence


def unsaid(label: str) -> Evidence:
    evidence = answered()
    for record in evidence.labelled(label):
        record.prompt_tokens = None
    return evidence


@pytest.mark.parametrize(
    ("evidence", "truth", "outcome"),
    [
        (answered(), MET, NOT_REPRODUCED),
        (answered(AS_TEXT), NOT_MET, INCONCLUSIVE),  # the token never arrived
        (answered(AS_TOKEN - 1), NOT_MET, INCONCLUSIVE),  # nor any character of it
        (answered(AS_TOKEN + 1), NOT_MET, INCONCLUSIVE),
        (resized(), NOT_MET, INCONCLUSIVE),
        (bare(module.LITERAL), NOT_MET, INCONCLUSIVE),
        (bare(module.SAME_SIZE), NOT_MET, INCONCLUSIVE),
        (unsaid(module.LITERAL), UNKNOWN, INCONCLUSIVE),
        (unsaid(module.SAME_SIZE), UNKNOWN, INCONCLUSIVE),
        (refused(), UNKNOWN, DIFFERENT),
        (with_literal(death_run(module.LITERAL), None), MET, REPRODUCED),
    ],
)
def test_the_text_must_have_become_the_token(
    evidence: Evidence, truth: Truth, outcome: Outcome
) -> None:
    got, truths, results = judge(LITERAL, evidence)
    assert truths["made-a-token"] is truth, results
    assert got is outcome


def why(evidence: Evidence, name: str = "made-a-token") -> str:
    return next(r.observed for r in judge(LITERAL, evidence)[2] if r.id == name)


def test_what_is_told_of_the_token() -> None:
    said = "11 tokens more than gate: image 2; with the token 11, as plain text 20"
    assert why(answered()) == said
    for evidence in (unsaid(module.LITERAL), unsaid(module.SAME_SIZE)):
        assert why(evidence) == "the server did not say how long its prompts were"
    assert why(with_literal(death_run(module.LITERAL), None)) == MISMATCH_TEXT
    assert why(refused()) == "400 no placeholders, please, and no word of placeholders"
    assert (
        why(bare(module.LITERAL)) == "it was not sent with an image of the gate's size"
    )


def test_a_death_without_a_word_of_placeholders_shows_no_token() -> None:
    evidence = with_literal(death_run(module.LITERAL), None)
    log = death_log("IndexError: 7", echo=API)
    log.matches["mask-mismatch"], log.match_counts["mask-mismatch"] = [], 0
    swap(evidence, log)
    assert judge(LITERAL, evidence)[1]["made-a-token"] is UNKNOWN
    assert judge(LITERAL, evidence)[0] is DIFFERENT


def test_without_the_text_in_the_prompt_it_is_another_failure() -> None:
    evidence = with_literal(death_run(module.LITERAL), None)
    for record in evidence.labelled(module.LITERAL):
        record.prompt_head = "hello world"
    assert judge(LITERAL, evidence)[0] is DIFFERENT


# ------------------------------------------------------------ the generated placeholder


def text(begun: float | None, ended: float, **more: Any) -> RequestRecord:
    """A text that was sent at 2 s, generated from ``begun`` and ended at ``ended``."""
    given = {"text": module.PLACEHOLDER * 9, "stream": True, **more}
    record = later(request("trigger", module.GENERATING, 200, **given), 2, ended - 2)
    record.ttft_s = None if begun is None else begun - 2
    return record


DIED = {"error": "EngineCore encountered an issue."}
GAVE_UP = {"error": module.GIVEN_UP}
"""The image is sent at 3 s, and answered or dead at 3.1 s."""


@pytest.mark.parametrize(
    ("record", "alive", "dead"),
    [
        (text(2.1, 5), MET, MET),
        (text(3.0, 3.1), MET, MET),
        (
            text(3.05, 5),
            NOT_MET,
            MET,
        ),  # what had begun before the answer may have begun too late
        (text(3.1, 5), NOT_MET, MET),
        (text(3.2, 5), NOT_MET, NOT_MET),
        (text(2.1, 3.0, **DIED), NOT_MET, MET),
        (text(None, 5), NOT_MET, NOT_MET),
        (text(2.1, 3.05), NOT_MET, NOT_MET),  # it ended by itself
        (text(2.1, 3.05, **DIED), NOT_MET, MET),  # the death of both
        (text(3.05, 3.09, **DIED), NOT_MET, MET),
        (text(2.1, 2.9, **DIED), NOT_MET, NOT_MET),  # another death
        (text(2.1, 3.05, **GAVE_UP), NOT_MET, NOT_MET),
        (text(2.1, 5, text="hello"), NOT_MET, NOT_MET),
    ],
)
def test_the_token_must_have_been_in_the_images_batch(
    record: RequestRecord, alive: Truth, dead: Truth
) -> None:
    for run, truth, outcome in (
        (survived_run, alive, NOT_REPRODUCED),
        (death_run, dead, REPRODUCED),
    ):
        got, truths, results = judge(GENERATED, run(module.IMAGE, record))
        assert (
            truths["placeholder-generated"] is truths["stray-placeholder"] is truth
        ), results
        otherwise = INCONCLUSIVE if run is survived_run else DIFFERENT
        assert got is (outcome if truth is MET else otherwise)


def test_how_many_placeholders_were_generated_is_told() -> None:
    def told(*records: RequestRecord) -> str:
        results = judge(GENERATED, survived_run(module.IMAGE, *records))[2]
        return next(r.observed for r in results if r.id == "placeholder-generated")

    assert told(text(2.1, 5), text(2.1, 3)).startswith("9 × ")
    assert told(text(2.1, 5), text(2.1, 5)).startswith("18 × ")
    assert told(text(2.1, 5, text=module.PLACEHOLDER * 390)).startswith(
        "at least 390 × "
    )
    assert told(text(2.1, 5, text=module.PLACEHOLDER * 389)).startswith("389 × ")


# ------------------------------------------------------------------ whose error it was


REFUSAL = "ValueError: 'max_tokens' is too large: 1900. This model's maximum is 1024"


def log_of(*lines: tuple[str, str], more: int = 0) -> LogsData:
    """Exceptions as (process, text), in that order, and ``more`` that were not kept."""
    found = [line(200 + n, process, words) for n, (process, words) in enumerate(lines)]
    data = death_log()
    data.matches["exception"] = found
    data.match_counts["exception"] = len(found) + more
    data.matches["mask-mismatch"] = [
        e for e in found if "mask" in e.text or "assign" in e.text
    ]
    return data


CORE_ERROR, ECHO = (CORE, MISMATCH_TEXT), (CORE, ASSIGN)
OTHER_CORE = "EngineCore_DP0 pid=99"


@pytest.mark.parametrize(
    ("data", "truth"),
    [
        (log_of(CORE_ERROR, ECHO), MET),
        (
            log_of((API, REFUSAL), CORE_ERROR, ECHO),
            MET,
        ),  # a refused client killed nothing
        (log_of((API, REFUSAL)), NOT_MET),
        (log_of((API, MISMATCH_TEXT)), NOT_MET),
        (log_of(("", MISMATCH_TEXT)), NOT_MET),
        (log_of((CORE, "IndexError: 7"), CORE_ERROR), NOT_MET),
        (log_of((OTHER_CORE, MISMATCH_TEXT)), NOT_MET),  # yesterday's
        (log_of((OTHER_CORE, MISMATCH_TEXT), (CORE, "IndexError: 7")), NOT_MET),
        (log_of((OTHER_CORE, "IndexError: 7"), CORE_ERROR), MET),
        (log_of(CORE_ERROR, ECHO, more=9), MET),
        (log_of((API, REFUSAL), (API, REFUSAL), CORE_ERROR, ECHO, more=9), UNKNOWN),
        (log_of((API, REFUSAL), CORE_ERROR, ECHO, ECHO, more=9), MET),
        (log_of((API, REFUSAL), CORE_ERROR, ECHO, more=9), MET),
        (quiet_log(), NOT_MET),
    ],
)
def test_the_first_error_is_that_of_the_process_that_died(
    data: LogsData, truth: Truth
) -> None:
    evidence = death_run(module.IMAGE, text(2.1, 5))
    swap(evidence, data)
    got, truths, _ = judge(GENERATED, evidence)
    assert truths["first-error"] is truth
    if truth is not MET:
        assert got is not REPRODUCED


def test_what_is_told_of_the_first_error() -> None:
    data = log_of((API, REFUSAL), CORE_ERROR, ECHO, (API, "EngineDeadError: x"))
    evidence = Evidence(probes=[probed(data)])
    found = crash.first_error(Logs(evidence), "EngineCore", "mask-mismatch")
    assert found.observed == f"line 201, {CORE}: {MISMATCH_TEXT}; 2 later lines echo it"
    evidence = Evidence(probes=[probed(log_of(("", REFUSAL)))])
    found = crash.first_error(Logs(evidence), "EngineCore", "mask-mismatch")
    assert (
        "none is of EngineCore's process; line 200, a process without a name"
        in found.observed
    )


@pytest.mark.parametrize(
    ("words", "truth"),
    [
        ("225 = 225 multimodal tokens to 226", MET),
        ("225 multimodal tokens to 227", MET),
        ("225 = 225 multimodal tokens to 225", NOT_MET),
        ("225 = 225 multimodal tokens to 224", NOT_MET),  # too few rows, not too many
        ("112 + 113 = 225 multimodal tokens to 224", NOT_MET),
    ],
)
def test_more_placeholders_than_rows_are_asked_for(words: str, truth: Truth) -> None:
    evidence = death_run(module.IMAGE, text(2.1, 5))
    swap(
        evidence,
        log_of((CORE, f"ValueError: Attempted to assign {words} placeholders")),
    )
    assert judge(GENERATED, evidence)[1]["first-error"] is truth


# -------------------------------------------------------- a machine with too much to do


@pytest.mark.parametrize("label", [module.IMAGE, crash.AFTER])
def test_a_request_without_an_answer_in_time_shows_no_death(label: str) -> None:
    evidence = death_run(module.IMAGE, text(2.1, 5))
    for record in evidence.labelled(label):
        record.status, record.timed_out, record.error = (
            None,
            True,
            "no answer in 13.0 s",
        )
    got, truths, _ = judge(GENERATED, evidence)
    assert truths["request-500"] is UNKNOWN
    assert got is INCONCLUSIVE


# ------------------------------------------------------------------ the core's process


def test_a_core_that_no_process_was_ever_called_is_not_seen_to_be_gone() -> None:
    """Without process titles it has no name while it lives either."""

    def run(named: bool, seen: bool) -> Truth:
        evidence = death_run(module.IMAGE, text(2.1, 5))
        evidence.engine_exit = None
        evidence.probes.append(probed(processes(user=1.0, role="")))
        for result in evidence.probes:
            if isinstance(result.data, ProcessesData) and result.phase == "gate":
                result.data.processes[0].role = "EngineCore" if named else ""
                result.phase = "gate" if seen else "control"
        return judge(GENERATED, evidence)[1]["core-died"]

    assert run(named=True, seen=True) is MET
    assert run(named=False, seen=True) is UNKNOWN
    assert run(named=True, seen=False) is UNKNOWN


def test_a_server_that_ended_is_seen_to_have_ended() -> None:
    truths = judge(GENERATED, death_run(module.IMAGE, text(2.1, 5)))[1]
    assert truths["server-exits"] is truths["core-died"] is MET


@pytest.mark.parametrize("state", ["Z", "X"])
def test_a_zombie_is_dead(state: str) -> None:
    evidence = death_run(module.IMAGE, text(2.1, 5))
    evidence.engine_exit = None
    data = processes(user=0.0)
    data.processes[0].state = state
    evidence.probes.append(probed(data))
    assert judge(GENERATED, evidence)[1]["core-died"] is MET


# ------------------------------------------------------------- what the engine confirms


NEEDS = ("needs-chunked-prefill", "needs-async", "needs-graph")


def told(*, dead: bool = True, **lines: str) -> dict[str, ClaimResult]:
    run = death_run if dead else survived_run
    evidence = run(module.IMAGE, text(2.1, 5))
    swap(evidence, said(death_log() if dead else quiet_log(), **lines))
    claims = GENERATED.claim_results(evidence, run_facts(GENERATED))
    return {c.id: c for c in claims if c.id in (*NEEDS, "assertion")}


def needs(*, dead: bool = True, **lines: str) -> dict[str, str]:
    return {
        name: claim.status.value for name, claim in told(dead=dead, **lines).items()
    }


def test_what_is_told_of_what_a_crash_needs() -> None:
    said = {name: claim.observed for name, claim in told().items()}
    assert (
        said["needs-chunked-prefill"] == "an image of 225 tokens and a budget of 2048"
    )
    assert said["needs-async"] == "asynchronous scheduling is off"
    assert said["needs-graph"] == "EngineCore runs with enforce_eager=True"
    missing = told(budget="", arguments="")
    assert (
        "did not log its budget and the image's rows"
        in missing["needs-chunked-prefill"].observed
    )
    assert "did not log what is not as by default" in missing["needs-async"].observed
    alive = told(dead=False)["needs-graph"].observed
    assert alive == "not told: the log holds no EngineDeadError"


def test_without_a_word_of_rows_the_budget_refutes_nothing() -> None:
    evidence = death_run(module.IMAGE, text(2.1, 5))
    swap(evidence, log_of(CORE_ERROR))
    claims = GENERATED.claim_results(evidence, run_facts(GENERATED))
    claim = next(c for c in claims if c.id == "needs-chunked-prefill")
    assert claim.status.value == "not-tested"
    assert "did not log its budget and the image's rows" in claim.observed


def test_what_a_crash_needs_is_refuted_by_what_the_engine_says() -> None:
    assert needs() == {"assertion": "confirmed", **dict.fromkeys(NEEDS, "refuted")}
    assert set(needs(dead=False).values()) == {"not-tested"}


@pytest.mark.parametrize(
    ("claim", "lines"),
    [
        (
            "needs-graph",
            {"engine_config": "… with config: m=1, enforce_eager=False, x"},
        ),
        ("needs-graph", {"engine_config": ""}),
        ("needs-async", {"arguments": "non-default args: {'async_scheduling': True}"}),
        ("needs-async", {"arguments": "non-default args: {'model': 'cut o"}),
        ("needs-async", {"arguments": ""}),
        ("needs-chunked-prefill", {"budget": "… max_num_batched_tokens=225."}),
        ("needs-chunked-prefill", {"budget": "… max_num_batched_tokens=128."}),
        ("needs-chunked-prefill", {"budget": ""}),
    ],
)
def test_an_option_that_the_engine_does_not_confirm_refutes_nothing(
    claim: str, lines: dict[str, str]
) -> None:
    """--server-arg may have said otherwise than the scenario does."""
    told = needs(**lines)
    assert told.pop(claim) == "not-tested"
    assert told.pop("assertion") == "confirmed"
    assert set(told.values()) == {"refuted"}


def test_a_budget_just_above_the_image_takes_it_at_once() -> None:
    assert (
        needs(budget="… max_num_batched_tokens=226.")["needs-chunked-prefill"]
        == "refuted"
    )


def test_yesterdays_error_in_the_log_confirms_nothing() -> None:
    """It is in the log of a server that lives; of another process, and even of this
    one."""
    for process in (OTHER_CORE, CORE):
        evidence = survived_run(module.IMAGE, text(2.1, 5))
        entry = LogLine(number=3, process=process, text=MISMATCH_TEXT)
        data = log_of((process, entry.text))
        data.match_counts["engine-dead"], data.matches["engine-dead"] = 0, []
        swap(evidence, data)
        told = GENERATED.claim_results(evidence, run_facts(GENERATED))
        assert {c.status.value for c in told} == {"not-tested"}
        assert judge(GENERATED, evidence)[0] is NOT_REPRODUCED
