"""What is looked for on a live server, which nobody drives: it is only looked at.

What a run knows from its own requests, an observer reads from the access log, from the one small
request that ``mmrepro diagnose`` sends, and from the processes.
"""

from collections.abc import Mapping

from mmrepro.failure.signature import checks
from mmrepro.failure.signature.decide import Finding
from mmrepro.failure.signature.views import Logs
from mmrepro.probes.data import InferenceData
from mmrepro.traffic.evidence import Evidence, Missing

FAILED = "failed-500"
LOG_PATTERNS: Mapping[str, str] = {FAILED: r'"POST /v1/\S+ HTTP/[0-9.]+" 500'}
"""Searched in every live server's log: uvicorn's access log, and those made after it."""

ENDED_BADLY = "finish_reason"
"""In the error of a completion that is whole, but for how it ended."""

LATENESS = "lateness"
"""Fact of a diagnosis: the part of its time for which it waited for a processor, where that was so
much that a server's silence may be the same."""

CORE_ALIVE = "core_alive"
"""Fact of a diagnosis: whether a process with the core's role lives; None: cannot be seen."""


def fails(inference: InferenceData) -> Finding:
    """The small valid request gets a server's error: 500 or more, or 200 with a completion that
    ended in one. A refusal (400, 401, 404, 429) tells nothing of the engine: it is about the
    request, its key, its model or the queue."""
    told = f"a small valid request: {inference.error[:160] or 'answered'}"
    status = inference.status
    if inference.answered or status is None:
        return Finding.of(False, told)
    if status >= 500 or (status == 200 and ENDED_BADLY in inference.error):
        return Finding.of(True, told)
    return Finding.unknown(f"{told}: this tells nothing of the engine")


def core_is_dead(evidence: Evidence, logs: Logs, role: str, pattern: str) -> Finding:
    """No process has the core's role any more, and the log holds lines of ``pattern``."""
    alive = evidence.facts.get(CORE_ALIVE)
    if alive is True:
        return Finding.of(False, f"a process {role} lives")
    if alive is None:
        raise Missing("whether its processes live cannot be seen from here")
    logged = checks.logged(logs, pattern, pattern)
    return Finding(logged.truth, f"no process {role} lives; {logged.observed}")
