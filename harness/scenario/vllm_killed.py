"""What scenarios of vLLM share whose one request ends EngineCore, and with it the
server."""

import re
from dataclasses import replace
from typing import ClassVar

from mmrepro.engines import Engine
from mmrepro.failure.signature import Finding, crash
from mmrepro.failure.signature.views import Logs, Requests, log_lines
from mmrepro.probes.data import LogLine, LogPattern, LogsData, ProcessesData
from mmrepro.scenario import vllm
from mmrepro.scenario.common import answered, death_rows, dies_of, refused_or_answered
from mmrepro.scenario.definition import Scenario
from mmrepro.scenario.parts import RunFacts, cause, precondition, row, symptom
from mmrepro.traffic.evidence import Missing

SENT, FATAL, THROUGH = "request-as-sent", "fatal-exception", "raised-in"
DUMPED = "Dumping scheduler output for model execution: "
"""EngineCore's line of the step whose outcome it waited for when it failed, with all
that the step computes (vllm/logging_utils/dump_input.py, 0.12.0 to 0.23.0)."""
KILLER, CONTROL = "the request", "control: the same but for that"


def of_the_killer(sent: str, raised: str, through: str) -> dict[str, str]:
    """For ``log_patterns`` of a :class:`KilledByRequest`.

    Args:
        sent: the API server's line of the request that comes in
            (``--enable-log-requests``).
        raised: EngineCore's exception.
        through: a frame of its traceback.
    """
    asked = LogPattern(sent, clients=True)
    return {**crash.LOG_PATTERNS, SENT: asked, FATAL: raised, THROUGH: through}


def _own_lines(logs: Logs, lines: list[LogLine]) -> list[LogLine]:
    """Those of a process that the gate saw, where the gate saw any; a look has no
    gate."""
    gate = logs.evidence.results(ProcessesData, "gate")
    known = {f"pid={process.pid}" for _, data in gate for process in data.processes}
    return vllm.of_processes(lines, known) if known else lines


def _device_of(logs: Logs, facts: RunFacts) -> str:
    """The run's; a look goes by whether a device printed something."""
    return facts.fidelity.device or ("cuda" if logs.count("device-assert") else "cpu")


def _through_the_bug(logs: Logs) -> Finding:
    own = _own_lines(logs, logs.lines(THROUGH))
    text = f"{len(own)} × in a traceback"
    return Finding.of(
        bool(own), f"{text}: {own[0].text.strip()[:120]}" if own else text
    )


def _in_the_failed_step(logs: Logs, step: str) -> Finding:
    """The step that failed computes the request, by its id where the log has that.

    A call that comes later raises a device-side assert, so that no traceback has its
    place. Kernels run in order, and EngineCore waits for the outcomes of its steps in
    order.

    Args:
        step: expression of what the dump has of such a request.
    """
    found = [data for _, data in logs.evidence.results(LogsData)]
    dumps = _own_lines(
        logs, [one for data in found for one in data.errors if DUMPED in one.text]
    )
    if not dumps:
        if not found or any(data.error_count > len(data.errors) for data in found):
            raise Missing("not all errors of the log were kept, and no dump of a step")
        return Finding.of(False, "EngineCore dumps no step")
    asserted = [line.number for line in log_lines(logs.evidence, "device-assert")]
    sent = [one for one in logs.lines(SENT) if not asserted or one.number < asserted[0]]
    ids = {
        m[1]
        for line in sent
        if (m := re.search(r"Received request ([\w-]+)", line.text))
    }
    computed = re.search(r".*num_scheduled_tokens=\{([^}]*)\}", dumps[0].text)
    named = any(one in (computed[1] if computed else "") for one in ids)
    alike = re.search(step, dumps[0].text) is not None
    met = alike and (named or not logs.count(SENT))
    computes = f"it computes {computed[1][:120]}" if computed else "it computes nothing"
    return Finding.of(
        met, f"line {dumps[0].number} dumps the step that failed: {computes}"
    )


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
    def came_in(self, logs: Logs, requests: Requests) -> Finding:
        sent = requests.first(KILLER)
        if sent.status is not None and 400 <= sent.status < 500:
            named = re.search(self.refusal, sent.error, re.IGNORECASE)
            return Finding.of(named is not None, f"{KILLER}: {sent.reply}")
        return Finding.of(
            logs.count(SENT) > 0, f"{logs.count(SENT)} × logged as it was sent"
        )

    symptoms = (
        # The API server may end before /health is asked.
        *(
            replace(one, required=one.required and one.id != "health-503")
            for one in dies_of(
                KILLER,
                "the request gets HTTP 500, and a later text is not answered either",
            )
        ),
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
