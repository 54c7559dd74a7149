"""Conditions that scenarios share on a live server, which nobody drives: it is only looked at.

What a run knows from its own requests, an observer reads from the access log, from the one small
request that ``mmrepro diagnose`` sends, and from the processes.
"""

from __future__ import annotations

from collections.abc import Mapping

from mmrepro.evidence import Evidence
from mmrepro.probes.data import InferenceData
from mmrepro.signature import Condition, Finding, checks

FAILED = "failed-500"
LOG_PATTERNS: Mapping[str, str] = {FAILED: r'"POST /v1/\S+ HTTP/[0-9.]+" 500'}
"""Searched in every live server's log: uvicorn's access log, and those made after it."""

CORE_ALIVE = "core_alive"
"""Fact of a diagnosis: whether a process with the core's role lives; None: cannot be seen."""

COUNTERS = ("prompt_tokens", "generation_tokens")
"""Not of requests: a frozen vLLM counts as finished those that their clients give up."""


def some_requests_fail(metrics: Mapping[str, tuple[str, ...]], role: str) -> list[Condition]:
    """The symptom of a failure that takes single requests: those get 500, the rest goes on.

    Args:
        metrics: the engine's names by short name.
        role: of its core.
    """
    counters = {name: metrics[name] for name in COUNTERS if name in metrics}
    return [
        Condition(
            "requests-fail",
            "symptom",
            "requests end with HTTP 500, as the access log shows",
            lambda e: checks.logged(e, FAILED, "requests that got HTTP 500"),
        ),
        Condition(
            "others-answered",
            "symptom",
            "the engine works otherwise: a small text-only request is answered",
            lambda e: checks.engine_works(e, counters, role),
        ),
        Condition(
            "endpoints-green",
            "symptom",
            "/health and /v1/models answer 200",
            checks.endpoints_green,
        ),
    ]


def core_is_dead_condition(role: str, said: str) -> Condition:
    """The symptom of a crash: no process has the core's role any more, and the log says so.

    Args:
        said: name of the pattern that matches what the front calls it.
    """

    def check(evidence: Evidence) -> Finding:
        alive = evidence.facts.get(CORE_ALIVE)
        if alive is True:
            return Finding.of(False, f"a process {role} lives")
        if alive is None:
            return Finding.unknown("whether its processes live cannot be seen from here")
        logged = checks.logged(evidence, said, f"{said}")
        text = f"no process {role} lives; {logged.observed}"
        return Finding(logged.truth, text)

    return Condition(
        "core-died", "symptom", f"{role} is gone, and the log says that it died", check
    )


def no_progress(metrics: Mapping[str, tuple[str, ...]]) -> Condition:
    counters = {name: metrics[name] for name in COUNTERS if name in metrics}
    return Condition(
        "no-progress",
        "symptom",
        "counters of tokens stand still",
        lambda e: checks.no_progress(e, counters),
    )


def every_request_fails() -> Condition:
    """The symptom of an engine whose loop has ended behind a front that lives."""

    def check(evidence: Evidence) -> Finding:
        for _, data in evidence.results(InferenceData, "check"):
            said = f"a small valid request: {data.error[:160] or 'answered'}"
            return Finding.of(not data.answered and data.status is not None, said)
        return Finding.unknown(evidence.why_missing("inference", "check"))

    return Condition("every-request-fails", "symptom", "a small valid request fails", check)


def not_answered() -> Condition:
    return Condition(
        "no-answer", "symptom", "a small text-only request is not answered", checks.probe_unanswered
    )


def core_is_dead(evidence: Evidence, role: str, said: str) -> Finding:
    """No process has the core's role any more, and the log says so (pattern ``said``)."""
    alive = evidence.facts.get(CORE_ALIVE)
    if alive is True:
        return Finding.of(False, f"a process {role} lives")
    if alive is None:
        return Finding.unknown("whether its processes live cannot be seen from here")
    logged = checks.logged(evidence, said, said)
    return Finding(logged.truth, f"no process {role} lives; {logged.observed}")
