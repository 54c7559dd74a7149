"""Made-up evidence of LMDeploy runs, modelled on real ones of 0.6.4 and 0.18.0. No run
made it."""

import json
from typing import Any

from made_up import http, probed, request, run_facts
from mmrepro.failure.documents import ClaimResult
from mmrepro.failure.signature import ConditionResult, Truth, evaluate
from mmrepro.probes.data import LogLine, LogsData
from mmrepro.scenario import Scenario
from mmrepro.traffic.evidence import Evidence, RequestRecord

FREE, RUNTIME, BLOCK = 111_155_328, 82_919_424, 131_072
TRACEBACK = {
    "validation-error": "1 validation error for ChatCompletionResponseChoice",
    "finish-reason": "Input should be 'stop', 'length' or 'tool_calls' "
    "[type=literal_error, input_value='error', input_type=str]",
}


START = 7
"""The line in which the witness says how the engine sized its cache."""


def line(text: str, number: int = 90) -> LogLine:
    return LogLine(number=number, text=text)


def witness(event: str, **values: Any) -> LogLine:
    return line(f"mmrepro-witness-{event} {json.dumps(values)}", START)


def sized(
    share: float,
    blocks: int,
    limit: int,
    *,
    runtime: int = RUNTIME,
    reserved: int | None = None,
) -> dict[str, LogLine]:
    return {
        "witness-budget": witness(
            "budget",
            memory=[FREE, 4 * FREE],
            runtime=[runtime, 8192],
            block_bytes=BLOCK,
        ),
        "witness-limit": witness(
            "limit",
            cache_max_entry_count=share,
            num_gpu_blocks=blocks,
            num_reserved_gpu_blocks=reserved,
            block_size=64,
            max_session_len=limit,
        ),
    }


def log(
    lines: dict[str, LogLine], *requests: LogLine, error: LogLine | None = None
) -> LogsData:
    """What the logs probe found; patterns that it looked for and did not find count 0.
    Requests stand in lines 10, 20 and so on; ``error``: the first line of an error."""
    names = (
        *TRACEBACK,
        "says-length",
        "witness-vision",
        "assertion",
        "loop-ended",
        "truncated",
    )
    matches = {name: [found] for name, found in lines.items()}
    if requests:
        matches["witness-request"] = [
            at(number * 10, request) for number, request in enumerate(requests, 1)
        ]
    counts = dict.fromkeys(names, 0) | {
        name: len(found) for name, found in matches.items()
    }
    return LogsData(
        file="engine.log",
        bytes_read=1,
        lines=1,
        matches=matches,
        match_counts=counts,
        errors=[error] if error else [],
    )


def at(number: int, line: LogLine) -> LogLine:
    return line.model_copy(update={"number": number})


def ended(
    tokens: int, limit: int, status: str | None = "FINISH", generated: int | None = None
) -> LogLine:
    return witness(
        "request",
        input_tokens=tokens,
        max_input_len=limit,
        status=status,
        seconds=0.0003,
        generated=generated,
    )


REFUSED = ended(3446, 1344, "INPUT_LENGTH_ERROR")


def broken(label: str) -> RequestRecord:
    record = request(
        "trigger", label, 200, completion_tokens=None, text="", stream=True
    )
    record.error = "RemoteProtocolError: peer closed connection"
    return record


def opaque_run() -> Evidence:
    """0.6.4: the prompt gets 500; the control server answered it."""
    evidence = Evidence()
    evidence.requests = [
        request("control", "control server: short"),
        request("control", "control server: the prompt"),
        request("control", "control server: the prompt, streamed"),
        request("gate", "gate: short 1"),
        request("gate", "gate: short 2"),
        request("trigger", "short before"),
        request("trigger", "the prompt", 500, error="Internal Server Error"),
        broken("the prompt, streamed"),
        request("trigger", "short after"),
    ]
    lines = sized(0.1, 21, 1344) | {
        name: line(text) for name, text in TRACEBACK.items()
    }
    evidence.probes = [
        probed(log(sized(0.5, 107, 6848), ended(3446, 6848)), "control"),
        probed(http(200, 200)),
        probed(log(lines, ended(376, 1344), REFUSED, REFUSED)),
    ]
    return evidence


def replace_log(evidence: Evidence, data: LogsData, phase: str = "check") -> None:
    for result in evidence.probes:
        if result.probe == "logs" and result.phase == phase:
            result.data = data


def relabelled(evidence: Evidence, label: str) -> RequestRecord:
    return next(r for r in evidence.requests if r.label == label)


def refused_run() -> Evidence:
    """0.18.0: 400 with a reason, and the same within the stream."""
    evidence = opaque_run()
    text = '{"message":"The request exceeds the model context length."}'
    whole = relabelled(evidence, "the prompt")
    whole.status, whole.error = 400, text
    relabelled(evidence, "the prompt, streamed").error = text
    lines = sized(0.1, 21, 1216, reserved=1)
    refused = ended(3446, 1216, "INPUT_LENGTH_ERROR")
    replace_log(evidence, log(lines, refused, refused))
    return evidence


def mitigated_run() -> Evidence:
    evidence = opaque_run()
    for label in ("the prompt", "the prompt, streamed"):
        record = relabelled(evidence, label)
        record.status, record.error, record.text, record.completion_tokens = (
            200,
            "",
            "abc",
            4,
        )
    replace_log(evidence, log(sized(0.26, 56, 3584), *[ended(3446, 3584)] * 2))
    return evidence


SHORT_ANSWER = ended(1300, 1344, "FINISH", 4)
GROWN = (
    ended(376, 1344),
    SHORT_ANSWER,
    ended(1300, 1344, "SUCCESS", 31),
    ended(376, 1344, None),
)
"""The gate's short answer, and the one that grew: 0.6.4 gave 31 tokens of it."""


def crash_run() -> Evidence:
    """0.6.4: the growing request ends the loop."""
    evidence = Evidence()
    evidence.requests = [
        request("control", "control server: short"),
        request("control", "control server: growing", completion_tokens=100),
        request("gate", "gate: short"),
        request("gate", "gate: the prompt, a short answer"),
        request("gate", "gate: short again"),
        request("trigger", "short before"),
        *(
            request("trigger", label, 500, error="Internal Server Error")
            for label in ("growing", "short after 1", "short after 2", "short after 3")
        ),
    ]
    lines = sized(0.1, 21, 1344) | {"assertion": line("assert len(running) > 0", 90)}
    evidence.probes = [
        probed(log(sized(0.5, 107, 6848), ended(1300, 6848)), "control"),
        probed(http(200, 200)),
        probed(log(lines, *GROWN)),
    ]
    return evidence


def truncated_run() -> Evidence:
    evidence = crash_run()
    for record in evidence.requests:
        record.status, record.error, record.completion_tokens, record.text = (
            200,
            "",
            4,
            "abc",
        )
    growing = relabelled(evidence, "growing")
    growing.prompt_tokens, growing.completion_tokens = 1172, 44
    replace_log(
        evidence, log(sized(0.1, 21, 1216, reserved=1), *[ended(1172, 1216)] * 2)
    )
    return evidence


# ------------------------------------------------------------------ judged


def told(
    scenario: Scenario, evidence: Evidence, *mitigations: str
) -> dict[str, ConditionResult]:
    conditions = scenario.conditions(run_facts(scenario, "", *mitigations))
    return {result.id: result for result in evaluate(conditions, evidence)}


def truth(scenario: Scenario, evidence: Evidence, condition: str) -> Truth:
    return told(scenario, evidence)[condition].truth


def claimed(
    scenario: Scenario, evidence: Evidence, release: str = "", *mitigations: str
) -> dict[str, ClaimResult]:
    results = scenario.claim_results(
        evidence, run_facts(scenario, release, *mitigations)
    )
    return {claim.id: claim for claim in results}


def logged(
    evidence: Evidence, lines: dict[str, LogLine], *requests: LogLine
) -> Evidence:
    replace_log(evidence, log(lines, *requests))
    return evidence
