"""What scenarios of vLLM share whose one request ends EngineCore, and with it the
server."""

import re
from dataclasses import replace
from typing import ClassVar

from mmrepro.engines import Engine
from mmrepro.failure.signature import Finding, Logs, Requests, crash, log_lines
from mmrepro.probes import LogLine, LogPattern, LogsData, ProcessesData
from mmrepro.scenario import vllm
from mmrepro.scenario.common import answered, death_rows, dies_of, refused_or_answered
from mmrepro.scenario.definition import Scenario
from mmrepro.scenario.parts import (
    Declared,
    RunFacts,
    cause,
    precondition,
    row,
    symptom,
)
from mmrepro.traffic.evidence import Missing

SENT, FATAL, THROUGH = "request-as-sent", "fatal-exception", "raised-in"
DUMPED = "Dumping scheduler output for model execution: "
"""EngineCore's line of the step whose outcome it waited for when it failed, with all
that the step computes (vllm/logging_utils/dump_input.py, 0.12.0 to 0.23.0)."""
_RUST = "Rust front end"
"""In the name of the runner of a server behind vllm-rs."""
KILLER, CONTROL = "the request", "control: the same but for that"


def of_the_killer(sent: str, raised: str, through: str) -> dict[str, str]:
    """For ``log_patterns`` of a :class:`KilledByRequest`.

    Args:
        sent: the API server's line of the request that comes in
            (``--enable-log-requests``).
        raised: EngineCore's exception.
        through: a frame of its traceback.
    """
    came_in = LogPattern(sent, clients=True)
    return {**crash.LOG_PATTERNS, SENT: came_in, FATAL: raised, THROUGH: through}


def _own_lines(logs: Logs, lines: list[LogLine]) -> list[LogLine]:
    """The lines of a process that the gate saw, where the gate saw any; a look has no
    gate."""
    in_gate: set[str] = set()
    for _, data in logs.evidence.results(ProcessesData, "gate"):
        in_gate.update(f"pid={process.pid}" for process in data.processes)
    return vllm.of_processes(lines, in_gate) if in_gate else lines


def _device_of(logs: Logs, facts: RunFacts) -> str:
    """The run's; a look goes by whether a device printed something."""
    if facts.fidelity.device:
        return facts.fidelity.device
    return "cuda" if logs.count("device-assert") else "cpu"


def _through_the_bug(logs: Logs) -> Finding:
    """The traceback of EngineCore goes through the place of the bug."""
    own = _own_lines(logs, logs.lines(THROUGH))
    text = f"{len(own)} × in a traceback"
    if own:
        text = f"{text}: {own[0].text.strip()[:120]}"
    return Finding.of(bool(own), text)


def _in_the_failed_step(logs: Logs, step: str) -> Finding:
    """The step that failed computes the request, by its id where the log has that.

    A call that comes later raises a device-side assert, so that no traceback has its
    place. Kernels run in order, and EngineCore waits for the outcomes of its steps in
    order.

    Args:
        step: expression of what the dump has of such a request.
    """
    dump = _dump_of_a_step(logs)
    if dump is None:
        return Finding.of(False, "EngineCore dumps no step")
    ids = _ids_before_the_assert(logs)
    scheduled = re.search(r".*num_scheduled_tokens=\{([^}]*)\}", dump.text)
    requests = scheduled[1] if scheduled else ""
    # Without a line of the request that came in, its id is not known.
    is_in_it = any(id in requests for id in ids) or not logs.count(SENT)
    alike = re.search(step, dump.text) is not None

    computes = "it computes nothing"
    if scheduled:
        computes = f"it computes {requests[:120]}"
    return Finding.of(
        alike and is_in_it,
        f"line {dump.number} dumps the step that failed: {computes}",
    )


def _dump_of_a_step(logs: Logs) -> LogLine | None:
    """EngineCore's first dump of a step. Raises Missing: the lines that were kept may
    lack it."""
    dumps: list[LogLine] = []
    readings = [data for _, data in logs.evidence.results(LogsData)]
    for data in readings:
        dumps += [line for line in data.errors if DUMPED in line.text]
    own = _own_lines(logs, dumps)
    if own:
        return own[0]
    if not readings or any(data.error_count > len(data.errors) for data in readings):
        raise Missing("not all errors of the log were kept, and no dump of a step")
    return None


def _ids_before_the_assert(logs: Logs) -> set[str]:
    """Ids of the requests that came in before a device printed an assertion."""
    asserted = log_lines(logs.evidence, "device-assert")
    ids: set[str] = set()
    for line in logs.lines(SENT):
        if asserted and line.number >= asserted[0].number:
            continue
        match = re.search(r"Received request ([\w-]+)", line.text)
        if match:
            ids.add(match[1])
    return ids


def _symptoms_of_death() -> list[Declared]:
    statement = "the request gets HTTP 500, and a later text is not answered either"
    symptoms: list[Declared] = []
    for died in dies_of(KILLER, statement):
        # The API server may end before /health is asked.
        required = died.required and died.id != "health-503"
        symptoms.append(replace(died, required=required))
    return symptoms


class KilledByRequest(Scenario):
    """One request ends EngineCore, and with it the server; the same, but for one value,
    does not.

    Attributes:
        refusal: what releases with the fix answer with HTTP 400.
        died_of: the exception, in words.
        asserted: expression of what a GPU prints of the assertion that fails in a
            kernel there, where a CPU raises; "": the exception is Python's own on both.
        step: expression of what the dump of the failed step has of the request then.
    """

    server = "--max-num-seqs 8 --enable-log-requests"
    refusal: ClassVar[str]
    died_of: ClassVar[str]
    asserted: ClassVar[str] = ""
    step: ClassVar[str] = ""
    key_log_patterns = (FATAL, "device-assert")

    @precondition("the request came in as it was meant, or was refused for just that")
    def came_in(self, logs: Logs, requests: Requests, facts: RunFacts) -> Finding:
        sent = requests.first(KILLER)
        if sent.status is not None and 400 <= sent.status < 500:
            reason = re.search(self.refusal, sent.error, re.IGNORECASE)
            return Finding.of(reason is not None, f"{KILLER}: {sent.reply}")
        count = logs.count(SENT)
        if not count and _RUST in facts.runner:
            # vllm-rs logs that a request came in, and none of its values. Only the
            # engine's own exception shows which value reached it.
            if logs.count(FATAL):
                return Finding.of(True, "the engine raised what it raises of that")
            return Finding.unknown("vllm-rs logs no value of a request")
        return Finding.of(count > 0, f"{count} × logged as it was sent")

    symptoms = (
        *_symptoms_of_death(),
        symptom(
            "the same request, but for that, is answered before",
            answered(CONTROL),
            id="control-answered",
            abnormal=False,
        ),
    )

    @cause(
        "EngineCore's first exception is {died_of}; all others are its echoes",
        live=True,
    )
    def first_error(self, logs: Logs, engine: Engine, facts: RunFacts) -> Finding:
        """Where a kernel asserts, each device has a form of its own, and no other
        counts there."""
        if self.asserted and _device_of(logs, facts) == "cuda":
            return crash.first_error(logs, engine.core_role, "", self.asserted)
        return crash.first_error(logs, engine.core_role, FATAL, "")

    @cause(
        "its traceback goes through the place of the bug; on a GPU, where a kernel "
        "asserts, the request is in the step that failed",
        id=THROUGH,
        live=True,
    )
    def goes_through(self, logs: Logs, facts: RunFacts) -> Finding:
        if self.asserted and _device_of(logs, facts) == "cuda":
            return _in_the_failed_step(logs, self.step)
        return _through_the_bug(logs)

    works_after = (answered(crash.AFTER, CONTROL), refused_or_answered(KILLER))
    rows = (
        row(CONTROL, "control-answered", "200", abnormal_if=False),
        *death_rows(KILLER),
    )


def refused(requests: Requests) -> Finding:
    """For a claim that a fix refuses the request."""
    sent = requests.first(KILLER)
    return Finding.of(sent.status == 400, f"{KILLER}: {sent.reply}")


def survived(requests: Requests) -> Finding:
    """For a claim that a fix lets the engine live on: the request ended well or was
    refused, and a later one is answered."""
    sent, later = requests.first(KILLER), requests.first(crash.AFTER)
    lives = (sent.answered or sent.status == 400) and later.answered
    return Finding.of(lives, f"{KILLER}: {sent.reply}; {crash.AFTER}: {later.reply}")
