"""What scenarios of vLLM share whose one request ends EngineCore, and with it the server."""

import re
from dataclasses import replace
from typing import ClassVar

from mmrepro.failure.signature import Finding, crash
from mmrepro.failure.signature.views import Logs, Requests
from mmrepro.probes.data import LogPattern, ProcessesData
from mmrepro.scenario import vllm
from mmrepro.scenario.common import answered, death_rows, dies_of, first_error, refused_or_answered
from mmrepro.scenario.definition import Scenario
from mmrepro.scenario.parts import cause, precondition, row, symptom

SENT, FATAL, THROUGH = "request-as-sent", "fatal-exception", "raised-in"
KILLER, CONTROL = "the request", "control: the same but for that"


def of_the_killer(sent: str, raised: str, through: str) -> dict[str, str]:
    """For ``log_patterns`` of a :class:`KilledByRequest`.

    Args:
        sent: the API server's line of the request that comes in (``--enable-log-requests``).
        raised: EngineCore's exception.
        through: a frame of its traceback.
    """
    asked = LogPattern(sent, clients=True)
    return {**crash.LOG_PATTERNS, SENT: asked, FATAL: raised, THROUGH: through}


def through_the_bug(logs: Logs) -> Finding:
    """A process that the gate saw logged it, where the gate saw any; a look has no gate."""
    gate = logs.evidence.results(ProcessesData, "gate")
    known = {f"pid={process.pid}" for _, data in gate for process in data.processes}
    lines = logs.lines(THROUGH)
    own = vllm.of_processes(lines, known) if known else lines
    text = f"{len(own)} × in a traceback"
    return Finding.of(bool(own), f"{text}: {own[0].text.strip()[:120]}" if own else text)


class KilledByRequest(Scenario):
    """One request ends EngineCore, and with it the server; the same, but for one value, does not.

    Attributes:
        refusal: what releases with the fix answer with HTTP 400.
        died_of: the exception, in words.
    """

    server = "--max-num-seqs 8 --enable-log-requests"
    refusal: ClassVar[str]
    died_of: ClassVar[str]
    key_log_patterns = (FATAL,)

    @precondition("the request came in as it was meant, or was refused for just that")
    def came_in(self, logs: Logs, requests: Requests) -> Finding:
        sent = requests.first(KILLER)
        if sent.status is not None and 400 <= sent.status < 500:
            named = re.search(self.refusal, sent.error, re.IGNORECASE)
            return Finding.of(named is not None, f"{KILLER}: {sent.reply}")
        return Finding.of(logs.count(SENT) > 0, f"{logs.count(SENT)} × logged as it was sent")

    symptoms = (
        # The API server may end before /health is asked.
        *(
            replace(one, required=one.required and one.id != "health-503")
            for one in dies_of(
                KILLER, "the request gets HTTP 500, and a later text is not answered either"
            )
        ),
        symptom(
            "the same request, but for that, is answered before",
            answered(CONTROL),
            id="control-answered",
            abnormal=False,
        ),
    )
    causes = (
        first_error(FATAL, "EngineCore's first exception is {died_of}; all others are its echoes"),
        cause("its traceback goes through the place of the bug", through_the_bug, id=THROUGH),
    )
    works_after = (answered(crash.AFTER, CONTROL), refused_or_answered(KILLER))
    rows = (row(CONTROL, "control-answered", "200", abnormal_if=False), *death_rows(KILLER))


def refused(requests: Requests) -> Finding:
    """For a claim that a fix refuses the request."""
    sent = requests.first(KILLER)
    return Finding.of(sent.status == 400, f"{KILLER}: {sent.reply}")


def survived(requests: Requests) -> Finding:
    """For a claim that a fix lets the engine live on: the request ended well or was refused, and a
    later one is answered."""
    sent, later = requests.first(KILLER), requests.first(crash.AFTER)
    lives = (sent.answered or sent.status == 400) and later.answered
    return Finding.of(lives, f"{KILLER}: {sent.reply}; {crash.AFTER}: {later.reply}")
