"""What is looked for on a live server, which nobody drives: it is only looked at.

What a run knows from its own requests, an observer reads from the access log, from the
one small request that ``mmrepro diagnose`` sends, and from the processes."""

import re
from collections.abc import Mapping

from mmrepro.failure.signature import checks
from mmrepro.failure.signature.decide import Finding
from mmrepro.failure.signature.foreign_errors import foreign_error, not_the_engines
from mmrepro.failure.signature.views import Logs
from mmrepro.probes import InferenceData
from mmrepro.traffic.evidence import Evidence, Missing

FAILED = "failed-500"
LOG_PATTERNS: Mapping[str, str] = {FAILED: r'"POST /v1/\S+ HTTP/[0-9.]+" 500'}
"""Searched in every live server's log: uvicorn's access log, and those made after
it."""

ENDED_BADLY = "finish_reason"
"""In the error of a completion that is whole, but for how it ended."""

LATENESS = "lateness"
"""Fact of a diagnosis: the part of its time for which it waited for a processor, where
that was so much that a server's silence may be the same."""

SILENT_SOCKET = "silent_socket"
"""Fact of a diagnosis: that one of several sockets of its port answers nothing."""

CORE_ALIVE = "core_alive"
"""Fact of a diagnosis: whether a process with the core's role lives; None: cannot be
seen."""


_KEYS = re.compile(
    r"auth(?:entication|ori[sz]ation)?[ _]?error|(?:api|virtual|access)[ _-]?key"
    r"|unauthori[sz]ed|"
    r"invalid token|litellm|llm provider|upstream|no healthy|deployments? (?:available"
    r"|found)|"
    r"provider returned|(?:one|new)[_-]api|budget has been exceeded|quota|billing"
    r"|rate limit|"
    r"no route",
    re.IGNORECASE,
)
"""Words of gateways: of the client's key, and of the servers that they know."""


def stands_before(status: int | None, body: str) -> str:
    """Why an error of 500 or more is by its words that of something before the server,
    or ""."""
    if status is None or status < 500:
        return ""
    why = not_the_engines(status, body)
    if why:
        return why
    word = _KEYS.search(body)
    if word is None:
        return ""
    return f"the answer {status} is a gateway's: it tells of {word[0]!r}"


def gateways(inference: InferenceData) -> str:
    """Why an error of 500 or more is that of something which stands before the engine;
    "": it may be the engine's own."""
    status, body = inference.status, inference.error.partition(": ")[2]
    if status is None or status < 500:
        return ""
    return stands_before(status, body) or foreign_error(status, body)


def fails(inference: InferenceData) -> Finding:
    """The small valid request gets a server's error: 500 or more, or 200 with a
    completion that ended in one. A refusal (400, 401, 404, 429) tells nothing of the
    engine: it is about the request, its key, its model or the queue. Nor does the error
    of a gateway, or a server's 503: it is not ready, or full."""
    observed = f"a small valid request: {inference.error[:160] or 'answered'}"
    status = inference.status
    if inference.answered or status is None:
        return Finding.of(False, observed)
    if why := gateways(inference):
        return Finding.unknown(f"{observed}: {why}")
    failed = status >= 500 and status != 503
    if failed or (status == 200 and ENDED_BADLY in inference.error):
        return Finding.of(True, observed)
    return Finding.unknown(f"{observed}: this tells nothing of the engine")


def core_is_dead(evidence: Evidence, logs: Logs, role: str, pattern: str) -> Finding:
    """No process has the core's role any more, and the log holds lines of
    ``pattern``."""
    alive = evidence.facts.get(CORE_ALIVE)
    if alive is True:
        return Finding.of(False, f"a process {role} lives")
    if alive is None:
        raise Missing("whether its processes live cannot be seen from here")
    logged = checks.logged(logs, pattern, pattern)
    return Finding(logged.truth, f"no process {role} lives; {logged.observed}")
